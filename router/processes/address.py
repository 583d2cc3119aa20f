"""One address for several processes: held by the supervisor, listened on by each with SO_REUSEPORT."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def reserved(host: str, port: int) -> Iterator[int]:
    """Hold the address while the block runs; gives the port, which for 0 is a free one. No connection comes here.

    Raises OSError if the address cannot be bound, also where whoever listens there would have shared it.
    """
    with ExitStack() as stack:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            held = stack.enter_context(socket.socket(family, kind, protocol))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as asyncio's servers have it
            held.bind((address[0], port, *address[2:]))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # before bind, it would share with anybody's
            port = held.getsockname()[1]
        yield port
