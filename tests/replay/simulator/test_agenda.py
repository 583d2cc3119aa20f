"""Virtual time goes forward, and the order of one moment depends on nothing but what happens in it."""

from hypothesis import given
from hypothesis import strategies as st

from replay.simulator.agenda import Agenda, Rank

ENTRIES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(Rank), st.integers(0, 2)), max_size=20)


@given(ENTRIES)
def test_by_time_rank_place_and_then_as_noted(entries: list[tuple[int, Rank, int]]) -> None:
    agenda, happened = Agenda(), []
    for noted, (time_s, rank, place) in enumerate(entries):
        agenda.at(time_s, rank, place, lambda at_s, key=(rank, place, noted): happened.append((at_s, *key)))  # type: ignore[misc]
    agenda.run()
    assert happened == sorted((time_s, rank, place, noted) for noted, (time_s, rank, place) in enumerate(entries))


def test_what_happens_may_lead_to_more() -> None:
    agenda, times = Agenda(), []

    def tick(now: float) -> None:
        times.append(now)
        if now < 3:
            agenda.at(now + 1, Rank.PASS_ENDS, 0, tick)

    agenda.at(0.5, Rank.PASS_ENDS, 0, tick)
    agenda.run()
    assert times == [0.5, 1.5, 2.5, 3.5]
