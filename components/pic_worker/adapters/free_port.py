"""A port that nobody uses at the moment."""

import socket


def free_port(host: str, port: int = 0) -> int:
    """`port`, or any port for 0: free now, so whoever binds it later must be ready to find it taken.

    Raises:
        OSError: it is taken or not allowed, or `host` is no address of this machine.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # A port whose last connections are still dying can be listened on all the same.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        found: int = probe.getsockname()[1]
    return found
