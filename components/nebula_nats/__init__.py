"""How every process of a deployment talks to NATS: one way to connect, one envelope for events."""
