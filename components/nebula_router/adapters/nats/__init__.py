"""The router's side of NATS."""
