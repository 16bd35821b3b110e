"""Integration tests share one nats-server."""

from support.nats_server import nats_url as nats_url
