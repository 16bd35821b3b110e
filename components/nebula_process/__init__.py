"""What every service process of a deployment does alike at its start: settings, logs, readiness."""
