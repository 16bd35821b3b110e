"""The worker's side of NATS."""
