"""The prompts that a slot is taken to have cached, against a plain list of them."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.assumed import Assumed

paths = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)


def hashes(path: tuple[int, ...]) -> tuple[int, ...]:
    """A block's hash says the whole path to it."""
    return tuple(hash(path[: i + 1]) for i in range(len(path)))


@given(st.lists(paths, max_size=40), st.integers(0, 15))
def test_the_newest_stay_up_to_the_bound(paths: list[tuple[int, ...]], max_blocks: int) -> None:
    assumed, plain = Assumed(), list[tuple[int, ...]]()
    for path in paths:
        before = Counter(map(hashes, [*plain, path]))
        plain = [other for other in plain if path[: len(other)] != other] + [path]
        while sum(map(len, plain)) > max_blocks:
            plain.pop(0)
        gone = assumed.add(hashes(path), max_blocks)
        assert Counter(gone) == before - Counter(map(hashes, plain))
        assert len(assumed) == sum(map(len, plain))
    assert assumed.clear() == [hashes(path) for path in plain]
    assert len(assumed) == 0
