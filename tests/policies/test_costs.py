from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.views import RequestView
from tests.policies.fleet import best, costs, prefixes, worker

CACHED = 256  # the four blocks that are LMetric's class


def test_lmetric_formula() -> None:
    c = worker("a", cached_tokens=600, queued_prefill_tokens=50, active_requests=2)
    assert costs("lmetric", RequestView(1000), c) == [450 * 3]


def test_lmetric_ignores_how_long_the_contexts_are() -> None:
    light, heavy = worker("light", active_requests=1), worker("heavy", active_requests=1, decode_tokens=10**6)
    assert best("lmetric", RequestView(1000), light, heavy) == {"light", "heavy"}


@pytest.mark.parametrize(
    ("share", "holders", "crowded"),
    [
        (0.20, 1, False),  # one of four workers carries a fifth of the traffic
        (0.25, 1, False),
        (0.252, 1, False),  # above a quarter, but perhaps not for two requests running
        (0.253, 1, True),
        (0.50, 2, False),
        (0.51, 2, True),
        (1.00, 4, False),  # all hold it: nobody is left to exclude for
        (1.00, 3, True),
        (1.00, 0, False),
    ],
)
def test_lmetric_leaves_out_the_holders_of_a_hot_spot(share: float, holders: int, crowded: bool) -> None:
    fleet = [worker(f"w{i}", cached_tokens=CACHED if i < holders else 64) for i in range(4)]
    request = RequestView(1000, prefixes=prefixes(1.0, share, share, 0.0))
    found = costs("lmetric", request, *fleet)
    assert [cost == inf for cost in found] == [crowded and i < holders for i in range(4)]


def test_lmetric_has_no_class_for_a_prompt_of_few_blocks() -> None:
    fleet = worker("a", cached_tokens=128), worker("b")
    assert best("lmetric", RequestView(200, prefixes=prefixes(1.0, 1.0)), *fleet) == {"a"}


@given(history=st.lists(st.booleans(), min_size=100, max_size=300), holders=st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_lmetric_s_hot_spot_has_lasted(history: list[bool], holders: int) -> None:
    """Against the condition as the paper has it, counted request by request: never a hot spot too early."""
    fleet = [worker(f"w{i}", cached_tokens=CACHED if i < holders else 0) for i in range(8)]
    hits, running = 100 * holders, 0  # below the bound of 125 * holders, and nothing leaves the window
    for hit in history:
        hits += hit
        running = running + 1 if hits / 1000 > holders / 8 else 0
        request = RequestView(1000, prefixes=prefixes(1.0, 1.0, hits / 1000))
        assert inf not in costs("lmetric", request, *fleet) or running >= 2 * holders


def test_dynamo_formula() -> None:
    c = worker("a", cached_tokens=600, queued_prefill_tokens=50, decode_tokens=1000)
    assert costs("dynamo", RequestView(1000), c) == [450 + 1000]
    assert costs("dynamo:prefill_load_scale=16", RequestView(1000), c) == [16 * 450 + 1000]


def test_dynamo_by_default_leaves_a_hit_for_a_few_held_tokens() -> None:
    warm, cold = worker("warm", cached_tokens=900, decode_tokens=1000), worker("cold")
    assert best("dynamo", RequestView(1000), warm, cold) == {"cold"}
    assert best("dynamo:prefill_load_scale=16", RequestView(1000), warm, cold) == {"warm"}


def test_ttft_is_wait_and_prefill_and_attention() -> None:
    c = worker("a", cached_tokens=600, queued_prefill_tokens=500)
    assert costs("ttft:attention_s_per_pair=0", RequestView(1000), c) == [pytest.approx(0.9)]
    pairs = sum(range(600, 1000)) + 400 / 2  # each new token and those before it, itself by half
    assert costs("ttft:attention_s_per_pair=1e-6", RequestView(1000), c) == [pytest.approx(0.9 + 1e-6 * pairs)]


def test_ttft_goes_to_the_faster_worker() -> None:
    slow, fast = worker("slow"), worker("fast", queued_prefill_tokens=1000, prefill_tokens_per_s=4000)
    assert best("ttft", RequestView(1000), slow, fast) == {"fast"}


def test_ttft_refuses_what_would_miss_the_slo_everywhere() -> None:
    late, in_time = worker("late", queued_prefill_tokens=1500), worker("in_time", queued_prefill_tokens=900)
    assert costs("ttft:slo_s=2", RequestView(1000), late, in_time)[0] == inf
    assert best("ttft:slo_s=2", RequestView(1000), late, in_time) == {"in_time"}
    assert best("ttft:slo_s=1.8", RequestView(1000), late, in_time) == set()


def test_ttft_piles_decodes_onto_one_worker() -> None:
    """Its documented failure: nothing that decodes is in its cost."""
    full, idle = worker("full", cached_tokens=1, active_requests=200, decode_tokens=10**6), worker("idle")
    assert best("ttft", RequestView(1000), full, idle) == {"full"}


@pytest.mark.parametrize("name", ["expected_work", "lmetric", "dynamo", "ttft"])
@given(
    st.integers(0, 999),
    st.floats(0, 1e4),
    st.integers(0, 50),
    st.integers(0, 10**5),
    st.sampled_from(
        [
            ("cached_tokens", -1),
            ("queued_prefill_tokens", 1),
            ("active_requests", 1),
            ("decode_tokens", 1),
            ("mean_decode_tokens", 1),
            ("waiting_requests", 1),
        ]
    ),
)
def test_more_work_never_costs_less(
    name: str, cached: int, queued: float, active: int, decode: int, worse: tuple[str, int]
) -> None:
    before = worker(
        "a", cached_tokens=cached + 1, queued_prefill_tokens=queued, active_requests=active, decode_tokens=decode
    )
    field, step = worse
    after = before._replace(**{field: getattr(before, field) + step})
    [low], [high] = (costs(name, RequestView(2000), c) for c in (before, after))
    assert low <= high
