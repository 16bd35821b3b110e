"""What ends a command with one clear line and an exit code."""


class CliError(Exception):
    """Wrong usage, or something that the command needs is not there."""

    exit_code = 2


class ConnectionLostError(CliError):
    """It was there, and went away while the command ran."""

    exit_code = 1
