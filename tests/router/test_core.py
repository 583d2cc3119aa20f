"""The core as its shells use it: requests and events in, placements out, and everything back to zero."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kv_events.deliveries import Lost
from kv_events.hashing import block_hashes, root_hash
from policies.registry import make_policy
from policies.views import SHARE_WINDOW, Candidates, RequestView
from protocol.errors import Conflict, InvalidRequest, ModelNotFound, NotFound, Overloaded, Unavailable
from protocol.sse import Usage
from router.core import RouterCore
from router.fleet import ASSUMED_BLOCK_SIZE
from router.records import CacheState, ModelCard, Outcome, Placement, RouteRequest, WorkerInfo
from router.request_view import session_key
from tests.router.conftest import MakeCore
from tests.router.fakes import SIZE, FakeEngine, ask

PROMPT = list(range(100, 141))  # ten blocks and a token


def finish(core: RouterCore, *tickets: int) -> None:
    for ticket in tickets:
        core.on_finish(ticket, Outcome.OK, 0.0)


def engines(core: RouterCore, *ranks: int) -> list[FakeEngine]:
    found = [FakeEngine(core, w.id, s.rank) for w in core.workers(0.0) for s in w.slots]
    for engine in found:
        engine.sync()
    return found


def test_a_prompt_goes_where_it_is_cached(make_core: MakeCore) -> None:
    core = make_core(4)
    engines(core)[2].cache(PROMPT)
    for _ in range(5):
        placement = core.route(ask(PROMPT), 0.0)
        assert placement.worker == "w2:1"
        assert placement.decision.predicted_cached_tokens == 40
        finish(core, placement.ticket)


def test_the_last_token_is_never_a_hit(make_core: MakeCore) -> None:
    core = make_core(1)
    engines(core)[0].cache(PROMPT[:40])
    assert core.explain(ask(PROMPT[:40]), 0.0).predicted_cached_tokens == 36
    assert core.explain(ask(PROMPT[:41]), 0.0).predicted_cached_tokens == 40
    assert core.explain(ask(PROMPT[:39]), 0.0).predicted_cached_tokens == 36


def test_a_burst_of_one_prefix_stays_together_before_any_event(make_core: MakeCore) -> None:
    core = make_core(4)
    engines(core)
    placements = [core.route(ask([*PROMPT, i]), now) for i, now in enumerate((0.0, 0.03, 0.06))]
    assert len({p.worker for p in placements}) == 1
    assert [p.decision.predicted_cached_tokens for p in placements] == [0, 40, 40]
    finish(core, *(p.ticket for p in placements))
    assert core.explain(ask(PROMPT), 0.0).predicted_cached_tokens == 0, "a lease ends with its request"
    assert core.leased_blocks == 0


def test_a_saturated_holder_is_left(make_core: MakeCore) -> None:
    core = make_core(2)
    engines(core)[0].cache(PROMPT)
    others = [core.route(ask([i] * 500), 0.0) for i in range(8)]
    spread = Counter(p.worker for p in others)
    assert spread == {"w0:1": 4, "w1:1": 4}, "each reservation is seen by the next request"
    core.on_worker_down("w1:1", "test")
    tickets = [core.route(ask([7] * 500), 0.0) for _ in range(3)]
    assert {p.worker for p in tickets} == {"w0:1"}
    core.on_worker_up("w1:1", WorkerInfo((ModelCard("m"),), SIZE))
    finish(core, *(p.ticket for p in others if p.worker == "w1:1"))
    assert core.route(ask(PROMPT), 0.0).worker == "w1:1", "forty cached tokens are not worth that queue"


def test_ties_spread_cold_prompts(make_core: MakeCore) -> None:
    core = make_core(4)
    seen: Counter[str] = Counter()
    for i in range(200):
        placement = core.route(ask([i] * 20), 0.0)
        finish(core, placement.ticket)
        seen[placement.worker] += 1
    assert all(seen[f"w{i}:1"] > 25 for i in range(4))


@pytest.mark.parametrize(("model", "salt"), [("lora", None), ("m", "tenant")])
def test_adapter_and_salt_do_not_share(make_core: MakeCore, model: str, salt: str | None) -> None:
    core = make_core(1)
    (engine,) = engines(core)
    engine.cache(PROMPT)
    assert core.explain(ask(PROMPT, model, salt), 0.0).predicted_cached_tokens == 0
    FakeEngine(core, engine.worker, 0, 50).cache(PROMPT, "lora" if model == "lora" else None, salt)
    assert core.explain(ask(PROMPT, model, salt), 0.0).predicted_cached_tokens == 40


def test_block_sizes_may_differ(make_core: MakeCore) -> None:
    core = make_core(1)
    wide = core.add_worker("http://wide:1")
    core.on_worker_up(wide, WorkerInfo((ModelCard("m"),), None))
    engines(core)
    FakeEngine(core, wide, size=16).cache(PROMPT)
    decision = core.explain(ask(PROMPT), 0.0)
    assert (decision.slot, decision.predicted_cached_tokens) == (wide, 32)


def test_ranks_have_caches_of_their_own(make_core: MakeCore) -> None:
    core = make_core(1, ranks=(0, 1))
    engines(core)[1].cache(PROMPT)
    placement = core.route(ask(PROMPT), 0.0)
    assert (placement.decision.slot, placement.rank) == ("w0:1@1", 1)
    assert make_core(1).route(ask(PROMPT), 0.0).rank is None, "a worker with one rank is not told"


def computed(core: RouterCore, placement: Placement, outcome: Outcome = Outcome.OK) -> None:
    core.on_first_token(placement.ticket, 0.0)
    core.on_finish(placement.ticket, outcome, 0.0)


def texts(*texts: Sequence[int], model: str = "m") -> RouteRequest:
    return RouteRequest("r", model, sum(map(len, texts)), texts, unknown_prompt="no tokenizer")


TEXT = range(10 * ASSUMED_BLOCK_SIZE + 1)


def test_a_text_is_expected_where_it_was_computed(make_core: MakeCore) -> None:
    core = make_core(3)
    [engine.cache(PROMPT) for engine in engines(core)]
    home = core.route(texts(TEXT), 0.0)
    assert home.decision.predicted_cached_tokens == 0
    computed(core, home)
    core.check()
    follow_up = core.explain(texts([*TEXT, *TEXT]), 0.0)
    assert (follow_up.slot, follow_up.predicted_cached_tokens) == (home.worker, 10 * ASSUMED_BLOCK_SIZE)
    assert core.explain(texts(TEXT, model="lora"), 0.0).predicted_cached_tokens == 0, "another model's text"
    assert core.explain(RouteRequest("r", "m", len(TEXT), (TEXT,)), 0.0).predicted_cached_tokens == 0, "tokens"
    core.on_worker_down(home.worker, "gone")
    core.on_worker_up(home.worker, WorkerInfo((ModelCard("m"),), SIZE))
    assert core.explain(texts(TEXT), 0.0).predicted_cached_tokens == 0


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.BROKEN, Outcome.REROUTED])
def test_a_text_that_was_not_computed_is_expected_nowhere(make_core: MakeCore, outcome: Outcome) -> None:
    core = make_core(2)
    core.on_finish(core.route(texts(TEXT), 0.0).ticket, outcome, 0.0)
    assert core.explain(texts(TEXT), 0.0).predicted_cached_tokens == 0


def test_a_worker_without_events_is_taken_to_keep_its_last_prompts(make_core: MakeCore) -> None:
    core = make_core(0)
    silent = core.add_worker("http://silent:1")
    core.on_worker_up(silent, WorkerInfo((ModelCard("m"),), publishes_events=False))
    size = ASSUMED_BLOCK_SIZE
    prompts = [tuple(range(start, start + size + 1)) for start in range(0, 100 * size, size)]
    kept = 4096 // size
    for prompt in prompts:
        computed(core, core.route(ask(prompt), 0.0), Outcome.CLIENT_GONE)
    core.check()
    predicted = [core.explain(ask(prompt), 0.0).predicted_cached_tokens for prompt in prompts]
    assert predicted == [0] * (len(prompts) - kept) + [size] * kept


def test_a_prompt_of_which_nothing_is_known_is_placed_by_load(make_core: MakeCore) -> None:
    core = make_core(2)
    engines(core)[0].cache(PROMPT)
    busy = core.route(ask(PROMPT), 0.0)
    placement = core.route(RouteRequest("r", "m", 10, unknown_prompt="no tokenizer"), 0.0)
    assert placement.worker != busy.worker
    assert placement.decision.unknown_prompt == "no tokenizer"
    assert placement.decision.predicted_cached_tokens == 0


def test_a_policy_sees_all_that_is_known(make_core: MakeCore) -> None:
    core, seen = make_core(1), []

    def policy(request: RequestView, candidates: Candidates, /) -> list[float]:
        seen.append((request._replace(prefixes=tuple(request.prefixes)), candidates))
        return [0.0] * len(candidates.keys)

    core._policy = policy
    engines(core)[0].cache(PROMPT[:8])
    asked = RouteRequest("r", "m", 41, (tuple(PROMPT),), session="s", follow_up=True)
    finish(core, core.route(asked, 0.0).ticket, core.route(asked, 0.0).ticket)
    (first, place), (second, _) = seen
    assert (first.session_key, first.follow_up) == (session_key("s"), True)
    assert first.head_key == block_hashes(PROMPT, SIZE, root_hash())[-1], "of its whole blocks"
    assert [each.tokens for each in first.prefixes] == [SIZE, 2 * SIZE, 4 * SIZE, 8 * SIZE]
    assert (first.prefixes[0].share, second.prefixes[0].share) == (1 / SHARE_WINDOW, 2 / SHARE_WINDOW)
    assert first.draw != second.draw
    assert (place.tree_tokens[0], place.prefill_tokens_per_s[0]) == (8, 1000.0)


def test_a_policy_that_refuses_sheds(make_core: MakeCore) -> None:
    core = make_core(2, policy="ttft:slo_s=0.01")
    engines(core)
    with pytest.raises(Overloaded, match="placement policy's limit"):
        core.route(ask(PROMPT), 0.0)
    assert core.in_flight == 0
    core.check()


def test_several_prompts_count_together(make_core: MakeCore) -> None:
    core = make_core(1)
    engines(core)[0].cache(PROMPT)
    request = RouteRequest("r", "m", 82, (tuple(PROMPT), tuple(PROMPT)))
    assert core.explain(request, 0.0).predicted_cached_tokens == 80


# What is known of a cache


def state(core: RouterCore) -> CacheState:
    return core.workers(0.0)[0].slots[0].cache_state


def predicted(core: RouterCore) -> int:
    return core.explain(ask(PROMPT), 0.0).predicted_cached_tokens


def test_only_a_synced_cache_is_believed(make_core: MakeCore) -> None:
    core = make_core(1)
    engine = FakeEngine(core, "w0:1")
    engine.cache(PROMPT)
    assert (state(core), predicted(core)) == (CacheState.SYNCING, 0)
    engine.sync()
    assert (state(core), predicted(core)) == (CacheState.LIVE, 40)
    core.on_kv_events("w0:1", 0, Lost("test"))
    assert (state(core), predicted(core)) == (CacheState.STALE, 0)
    engine.sync()
    assert predicted(core) == 40, "a replay without a reset: what was known is still true"
    engine.restart()
    assert (state(core), predicted(core)) == (CacheState.SYNCING, 0)
    engine.sync()
    assert predicted(core) == 0
    assert core.workers(0.0)[0].slots[0].generation == 1


def test_eviction_and_clear(make_core: MakeCore) -> None:
    core = make_core(1)
    (engine,) = engines(core)
    engine.cache(PROMPT)
    engine.evict(PROMPT[:20])
    assert predicted(core) == 16
    engine.clear()
    assert predicted(core) == 0


def test_a_dead_worker_loses_its_tree_and_keeps_its_books(make_core: MakeCore) -> None:
    core = make_core(2)
    engines(core)[0].cache(PROMPT)
    placement = core.route(ask(PROMPT), 0.0)
    core.on_worker_down("w0:1", "killed")
    assert core.workers(0.0)[0].slots[0].blocks == 0
    elsewhere = core.route(ask(PROMPT), 0.0)
    assert elsewhere.worker == "w1:1"
    core.on_finish(placement.ticket, Outcome.REROUTED, 1.0)
    finish(core, elsewhere.ticket)
    core.on_worker_up("w0:1", WorkerInfo((ModelCard("m"),), SIZE))
    assert (state(core), core.in_flight) == (CacheState.SYNCING, 0)
    core.check()


def test_events_of_a_worker_that_left_mean_nothing(make_core: MakeCore) -> None:
    core = make_core(1)
    (engine,) = engines(core)
    core.drain_worker("w0:1")
    engine.cache(PROMPT)
    core.on_worker_up("w0:1", WorkerInfo((ModelCard("m"),), SIZE))
    core.on_worker_down("w0:1", "late news")
    assert core.workers(0.0) == []


# Refusals


def test_refusals_reserve_nothing(make_core: MakeCore) -> None:
    core = make_core(1, max_in_flight=1)
    with pytest.raises(ModelNotFound, match="'gpt-9' does not exist here; models: lora, m"):
        core.route(ask(PROMPT, "gpt-9"), 0.0)
    with pytest.raises(Unavailable, match="w0:1 was tried") as unavailable:
        core.route(ask(PROMPT), 0.0, tried={"w0:1"})
    assert unavailable.value.headers() == {"Retry-After": "1"}
    core.route(ask(PROMPT), 0.0)
    with pytest.raises(Overloaded, match="1 requests are in flight"):
        core.route(ask(PROMPT), 0.0)
    assert core.in_flight == 1


def test_nobody_is_ready(make_core: MakeCore) -> None:
    core = make_core(0)
    with pytest.raises(Unavailable, match="the router has no workers"):
        core.route(ask(PROMPT), 0.0)
    core.add_worker("http://w9:1")
    with pytest.raises(Unavailable, match="not reached yet: w9:1"):
        core.route(ask(PROMPT), 0.0)


def test_a_model_of_a_dead_worker_is_unavailable_not_unknown(make_core: MakeCore) -> None:
    core = make_core(1)
    core.on_worker_down("w0:1", "connection refused")
    with pytest.raises(Unavailable, match="w0:1 connection refused"):
        core.route(ask(PROMPT), 0.0)


def test_no_model_named_means_any(make_core: MakeCore) -> None:
    assert make_core(1).route(ask(PROMPT, None), 0.0).worker == "w0:1"


@pytest.mark.parametrize("url", ["w0:1", "ftp://w0", "http://", "http://w0:1/v1", "http://w0:x"])
def test_bad_worker_urls(make_core: MakeCore, url: str) -> None:
    with pytest.raises(InvalidRequest, match="must look like http://HOST:PORT"):
        make_core(0).add_worker(url)


def test_workers_are_known_by_host_and_port(make_core: MakeCore) -> None:
    core = make_core(1)
    with pytest.raises(Conflict, match="'w0:1' is here already"):
        core.add_worker("http://w0:1/")
    with pytest.raises(NotFound, match="no worker 'x'; workers: w0:1"):
        core.drain_worker("x")


# Leaving


def test_a_draining_worker_finishes_what_it_has(make_core: MakeCore) -> None:
    core = make_core(2)
    first = core.route(ask(PROMPT), 0.0)
    assert core.drain_worker(first.worker) == 1
    assert core.route(ask(PROMPT), 0.0).worker != first.worker
    assert core.has_worker(first.worker)
    finish(core, first.ticket)
    assert not core.has_worker(first.worker)
    core.check()


def test_a_rank_that_left_gives_its_bit_back_after_its_last_request(make_core: MakeCore) -> None:
    core = make_core(1, ranks=(0, 1))
    engines(core)[1].cache(PROMPT)
    placement = core.route(ask(PROMPT), 0.0)
    core.on_worker_up("w0:1", WorkerInfo((ModelCard("m"),), SIZE, (0,)))
    newcomer = core.add_worker("http://new:1")
    core.on_worker_up(newcomer, WorkerInfo((ModelCard("n"),), SIZE))
    FakeEngine(core, newcomer).sync()
    assert core.explain(ask(PROMPT, "n"), 0.0).predicted_cached_tokens == 0, (
        "the leases of the old rank are not its own"
    )
    finish(core, placement.ticket)
    core.check()


# The log


def test_the_log_keeps_prediction_and_report(make_core: MakeCore) -> None:
    core = make_core(2)
    placement = core.route(ask(PROMPT, name="first"), 1.0)
    core.on_first_token(placement.ticket, 1.5)
    ((decision, running),) = core.decisions(5)
    assert (decision.request_id, running) == ("first", None)
    core.on_finish(placement.ticket, Outcome.OK, 2.0, Usage(41, 7, 32))
    ((_, done),) = core.decisions(5)
    assert done is not None
    assert (done.outcome, done.ttft_s, done.usage) == (Outcome.OK, 0.5, Usage(41, 7, 32))
    assert decision.candidates.keys == ("w0:1", "w1:1")
    for i in range(20):
        finish(core, core.route(ask(PROMPT, name=str(i)), 3.0).ticket)
    assert [d.request_id for d, _ in core.decisions(3)] == ["19", "18", "17"]
    assert len(core.decisions(100)) == 10


def test_explaining_changes_nothing(make_core: MakeCore) -> None:
    asked, unasked = make_core(4, policy="random"), make_core(4, policy="random")
    for i in range(30):
        foretold = asked.explain(ask([i] * 20), 0.0)
        asked.explain(ask([i] * 30), 0.0)
        assert asked.route(ask([i] * 20), 0.0).worker == unasked.route(ask([i] * 20), 0.0).worker == foretold.slot


def test_a_second_finish_is_a_bug(make_core: MakeCore) -> None:
    core = make_core(1)
    ticket = core.route(ask(PROMPT), 0.0).ticket
    finish(core, ticket)
    with pytest.raises(KeyError):
        finish(core, ticket)


class CoreMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order, the books balance."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.core = RouterCore(
            make_policy("expected_work"),
            Random(0),
            policy_name="expected_work",
            max_in_flight=20,
            max_decisions=5,
            prior_prefill_tokens_per_s=100.0,
            max_index_bytes=1 << 30,
            assumed_cache_tokens=4096,
        )
        self.now, self.open = 0.0, 0

    @rule(i=st.integers(0, 3))
    def add(self, i: int) -> None:
        if not self.core.has_worker(f"w{i}:1"):
            self.core.add_worker(f"http://w{i}:1")

    @rule(i=st.integers(0, 3), ranks=st.sampled_from([(0,), (0, 1), (1,)]), events=st.booleans())
    def up(self, i: int, ranks: tuple[int, ...], events: bool) -> None:
        self.core.on_worker_up(f"w{i}:1", WorkerInfo((ModelCard("m"),), SIZE, ranks, events))

    @rule(i=st.integers(0, 3))
    def down(self, i: int) -> None:
        self.core.on_worker_down(f"w{i}:1", "test")

    @rule(i=st.integers(0, 3))
    def drain(self, i: int) -> None:
        if self.core.has_worker(f"w{i}:1"):
            self.core.drain_worker(f"w{i}:1")

    @rule(i=st.integers(0, 3), rank=st.integers(0, 1), value=st.integers(0, 2), blocks=st.integers(1, 4))
    def cache(self, i: int, rank: int, value: int, blocks: int) -> None:
        engine = FakeEngine(self.core, f"w{i}:1", rank)
        engine.cache([value] * SIZE * blocks)
        engine.sync()

    @rule(i=st.integers(0, 3), rank=st.integers(0, 1))
    def restart(self, i: int, rank: int) -> None:
        FakeEngine(self.core, f"w{i}:1", rank).restart()

    @rule(target=tickets, value=st.integers(0, 2), length=st.integers(0, 30), wait=st.floats(0, 1))
    def route(self, value: int, length: int, wait: float) -> int | None:
        self.now += wait
        try:
            placement = self.core.route(ask([value] * length), self.now)
        except (Unavailable, Overloaded):
            return None
        assert placement.decision.predicted_cached_tokens <= max(0, length - 1)
        self.open += 1
        return placement.ticket

    @rule(ticket=consumes(tickets), answered=st.booleans(), outcome=st.sampled_from(Outcome))
    def finish(self, ticket: int | None, answered: bool, outcome: Outcome) -> None:
        if ticket is None:
            return
        if answered:
            self.core.on_first_token(ticket, self.now)
        self.core.on_finish(ticket, outcome, self.now)
        self.open -= 1

    @invariant()
    def books_balance(self) -> None:
        self.core.check()
        assert self.core.in_flight == self.open


TestCore = CoreMachine.TestCase
TestCore.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
