"""What is to be sent when, for any trace and any answers."""

from heapq import heappop, heappush

from hypothesis import given
from hypothesis import strategies as st

from replay.arrivals import LoadSpec
from replay.live.schedule import Due, Schedule
from replay.traces.trace import Trace, TraceRequest

ROWS = [
    {"input_tokens": 8, "arrival_s": 0.0, "session": "a"},
    {"input_tokens": 8, "arrival_s": 10.0},
    {"input_tokens": 8, "arrival_s": 10.0},
    {"input_tokens": 8, "arrival_s": 20.0, "session": "a", "turn": 1, "delay_s": 4.0},
]


def test_open_loop_by_the_clock(make_trace):
    schedule = Schedule(make_trace(ROWS), LoadSpec(speedup=2.0))
    assert schedule.upcoming(3) == [2, 1, 0]
    assert schedule.next_s == 0
    assert list(schedule.take(4.9)) == [Due(0, 0.0)]
    assert schedule.next_s == 5
    assert list(schedule.take(6.0)) == [Due(1, 5.0), Due(2, 5.0)]
    assert list(schedule.take(10.0)) == [Due(3, 10.0)]
    assert not schedule.over
    for number in range(4):
        schedule.ended(number, 11.0)
    assert schedule.over


def test_a_turn_is_scheduled_by_the_answer_before(make_trace):
    schedule = Schedule(make_trace(ROWS), LoadSpec(closed_loop=True))
    assert [due.number for due in schedule.take(12.0)] == [0, 1, 2]
    assert schedule.next_s is None
    schedule.ended(0, 13.0)
    assert schedule.next_s == 17
    assert list(schedule.take(17.5)) == [Due(3, 17.0)]


def test_what_concurrency_keeps_back_is_due_when_there_is_room(make_trace):
    schedule = Schedule(make_trace(ROWS), LoadSpec(concurrency=1))
    assert list(schedule.take(30.0)) == [Due(0, 0.0)]
    assert schedule.next_s is None
    schedule.ended(0, 15.0)
    assert list(schedule.take(15.1)) == [Due(1, 15.0)]
    schedule.ended(1, 16.0)
    assert list(schedule.take(16.0)) == [Due(2, 16.0)]
    schedule.ended(2, 17.0)
    assert list(schedule.take(20.0)) == [Due(3, 20.0)]


REQUESTS = st.lists(
    st.tuples(
        st.none() | st.floats(0, 100), st.none() | st.sampled_from("ab"), st.none() | st.floats(0, 9), st.floats(0, 30)
    ),
    min_size=1,
    max_size=20,
)


@given(REQUESTS, st.booleans(), st.none() | st.integers(1, 4))
def test_each_is_sent_once_and_none_too_early(rows, closed_loop, concurrency):
    requests = [
        TraceRequest(5, 1, (n,), arrival_s=arrival_s, session=session, turn=1, delay_s=delay_s)
        for n, (arrival_s, session, delay_s, _) in enumerate(rows)
    ]
    schedule = Schedule(Trace("test", tuple(requests), 8, True), LoadSpec(2.0, closed_loop, concurrency))
    answers: list[tuple[float, int]] = []
    now_s, sent = 0.0, []
    while not schedule.over:
        for due in schedule.take(now_s):
            assert due.due_s <= now_s
            assert due.due_s >= ((requests[due.number].arrival_s or 0) / 2 if not closed_loop else 0)
            sent.append(due.number)
            heappush(answers, (now_s + rows[due.number][3], due.number))
        assert concurrency is None or len(answers) <= concurrency
        coming = [time_s for time_s in (schedule.next_s, answers[0][0] if answers else None) if time_s is not None]
        now_s = max(now_s, min(coming, default=now_s))
        while answers and answers[0][0] <= now_s:
            schedule.ended(heappop(answers)[1], now_s)
    assert sorted(sent) == list(range(len(rows)))
