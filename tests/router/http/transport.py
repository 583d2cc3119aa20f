"""A transport that only remembers: a protocol's bytes without a socket."""

import asyncio
from typing import Any


class FakeTransport(asyncio.Transport):
    """`sent` is what the protocol wrote; `feed` is what its peer would send, while it reads."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.sent = b""
        self.reading, self.closed, self.aborted, self.half_closed = True, False, False, False
        protocol.connection_made(self)

    def feed(self, data: bytes) -> None:
        assert self.reading, "the protocol has paused reading"
        self.protocol.data_received(data)

    def lose(self) -> None:
        """The peer has gone."""
        self.closed = True
        self.protocol.connection_lost(None)

    def taken(self) -> bytes:
        """What was sent since the last call."""
        sent, self.sent = self.sent, b""
        return sent

    def write(self, data: Any) -> None:
        assert not self.closed, "the protocol writes to a closed transport"
        self.sent += data

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def write_eof(self) -> None:
        self.half_closed = True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.aborted = True
        self.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self  # as its own socket

    def setsockopt(self, *args: Any) -> None:
        pass
