"""One address for several processes."""

import socket

import pytest

from router.processes.address import reserved


def listener(port: int, *, shared: bool) -> socket.socket:
    return socket.create_server(("127.0.0.1", port), reuse_port=shared)


def test_port_0_is_a_free_one_that_only_sharers_can_listen_on() -> None:
    with reserved("127.0.0.1", 0) as port, listener(port, shared=True), listener(port, shared=True):
        with pytest.raises(OSError, match="in use"):
            listener(port, shared=False)
        socket.create_connection(("127.0.0.1", port)).close()


@pytest.mark.parametrize("shared", [False, True])
def test_an_address_where_somebody_listens_is_refused(shared: bool) -> None:
    with (
        listener(0, shared=shared) as taken,
        pytest.raises(OSError, match="in use"),
        reserved("127.0.0.1", taken.getsockname()[1]),
    ):
        pass


def test_a_host_of_several_addresses_gets_one_port_for_all() -> None:
    with reserved("", 0) as port:
        for family, *_, address in socket.getaddrinfo(None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            with socket.socket(family) as other, pytest.raises(OSError, match="in use"):
                other.bind(address[:2])


def test_a_name_that_is_none() -> None:
    with pytest.raises(OSError), reserved("no.such.host.invalid", 0):  # noqa: PT011 - the resolver's words differ
        pass
