import gc
import weakref
from collections.abc import Iterator

import pytest

from router.collector import short_collections


class Link:
    """May refer to itself."""

    other: "Link | None" = None


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.parametrize(("long_s", "looked_at_again"), [(0.0, False), (60.0, True)])
def test_what_survived_a_long_search_is_not_looked_at_again(long_s: float, looked_at_again: bool) -> None:
    kept = [Link()]
    with short_collections(long_s):
        gc.collect()
        assert any(each is kept for each in gc.get_objects()) == looked_at_again


def test_garbage_goes_all_the_same() -> None:
    with short_collections(long_s=0.0):
        lone = Link()
        gc.collect()
        gone = [weakref.ref(lone)]
        del lone
        young = Link()
        young.other, gone = young, [*gone, weakref.ref(young)]
        del young
        gc.collect()
        assert [each() for each in gone] == [None, None]


def test_nobody_watches_any_more_afterwards() -> None:
    before = [*gc.callbacks]
    with short_collections(long_s=0.0):
        assert len(gc.callbacks) == len(before) + 1
    assert gc.callbacks == before
