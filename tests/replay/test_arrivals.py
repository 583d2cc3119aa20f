"""When requests come: by the clock, after an answer, or both."""

from replay.arrivals import Arrivals, LoadSpec

ROWS = [
    {"input_tokens": 8, "arrival_s": 0.0, "session": "a"},
    {"input_tokens": 8, "arrival_s": 10.0},
    {"input_tokens": 8, "arrival_s": 20.0, "session": "a", "turn": 1, "delay_s": 4.0},
    {"input_tokens": 8, "arrival_s": 30.0, "session": "a", "turn": 2},
]


def test_open_loop_by_the_clock_alone(make_trace) -> None:  # type: ignore[no-untyped-def]
    arrivals = Arrivals(make_trace(ROWS), LoadSpec(speedup=2.0))
    assert list(arrivals.independent()) == [(0, 0.0), (1, 5.0), (2, 10.0), (3, 15.0)]
    assert arrivals.after(0, 99.0) is None


def test_a_turn_waits_for_the_answer_and_then_for_its_user(make_trace) -> None:  # type: ignore[no-untyped-def]
    arrivals = Arrivals(make_trace(ROWS), LoadSpec(speedup=2.0, closed_loop=True))
    assert list(arrivals.independent()) == [(0, 0.0), (1, 5.0)]
    assert arrivals.after(0, 3.0) == (2, 5.0)
    assert arrivals.after(1, 3.0) is None


def test_without_a_delay_it_waits_for_answer_and_clock(make_trace) -> None:  # type: ignore[no-untyped-def]
    arrivals = Arrivals(make_trace(ROWS), LoadSpec(closed_loop=True))
    assert arrivals.after(2, 25.0) == (3, 30.0)
    assert arrivals.after(2, 35.0) == (3, 35.0)


def test_rows_without_a_clock_are_closed_loop_in_any_case(make_trace) -> None:  # type: ignore[no-untyped-def]
    rows = [
        {"input_tokens": 8, "arrival_s": None, "session": "a"},
        {"input_tokens": 8, "arrival_s": None, "session": "a", "turn": 1, "delay_s": 1.0},
        {"input_tokens": 8, "arrival_s": None},
    ]
    arrivals = Arrivals(make_trace(rows), LoadSpec())
    assert list(arrivals.independent()) == [(0, 0.0), (2, 0.0)]
    assert arrivals.after(0, 7.0) == (1, 8.0)
