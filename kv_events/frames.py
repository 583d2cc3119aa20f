"""The message frames around a batch: sequence numbers and the end of a replay.

Live: [topic, seq, payload]. Replayed, as a DEALER receives it: [b"", topic, seq, payload], without the topic up to vLLM
0.24 and SGLang 0.5.21. A replay ends with a seq of eight 0xff bytes and no payload.
"""

from collections.abc import Sequence

END_OF_REPLAY = 2**64 - 1


def encode_seq(seq: int) -> bytes:
    """The sequence number as it stands on the wire: 8 bytes, big-endian."""
    return seq.to_bytes(8, "big")


def parse_message(frames: Sequence[bytes]) -> tuple[int, bytes] | None:
    """(seq, payload) of a live or replayed message in any of its forms; None when it is none of them."""
    if not 3 <= len(frames) <= 4 or len(frames[-2]) != 8:
        return None
    return int.from_bytes(frames[-2], "big"), frames[-1]
