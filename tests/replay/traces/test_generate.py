"""Generated traces: the same for the same seed, and with the sharing that they promise."""

from itertools import pairwise

from replay.traces.generate import small_workloads
from replay.traces.ideal import ideal_hit_ratio
from replay.traces.mix import Mix, generate_mix

SMALL = Mix(sessions=60, tenants=3)


def sessions(trace):
    grouped = {}
    for request in trace.requests:
        grouped.setdefault(request.session, []).append(request)
    return grouped


def shared(a, b) -> int:
    return sum(x == y for x, y in zip(a.hash_ids, b.hash_ids, strict=False))


def test_the_same_seed_makes_the_same_requests():
    assert small_workloads(3) == small_workloads(3) != small_workloads(4)
    assert generate_mix(SMALL, 3) == generate_mix(SMALL, 3) != generate_mix(SMALL, 4)


def test_small_workloads_are_token_ids_and_conversations_follow_their_turns():
    workloads = small_workloads()
    assert [len(trace.requests) for trace in workloads.values()] == [100, 160, 100, 240]
    assert all(r.input_tokens == len(r.prompt) for trace in workloads.values() for r in trace.requests)
    conversations = sessions(workloads["multi-turn"])
    assert len(conversations) == 20
    for turns in conversations.values():
        assert [request.turn for request in turns] == list(range(8))
        for before, after in pairwise(turns):
            assert after.prompt[: before.input_tokens] == before.prompt
            assert after.input_tokens >= before.input_tokens + before.output_tokens + 10


def test_turns_of_the_mix_continue_the_ones_before():
    trace = generate_mix(SMALL)
    for turns in sessions(trace).values():
        assert [request.turn for request in turns] == list(range(len(turns)))
        for before, after in pairwise(turns):
            assert shared(before, after) == before.input_tokens // trace.block_tokens
            assert after.arrival_s > before.arrival_s
            assert after.delay_s is not None


def test_subagents_start_together_from_their_agents_context_and_are_waited_for():
    trace = generate_mix(SMALL)
    by_name = sessions(trace)
    agents = {name.partition("/")[0] for name in by_name if "/" in name}
    assert agents
    for agent in agents:
        subagents = [turns for name, turns in by_name.items() if name.startswith(f"{agent}/")]
        starts = {turns[0].arrival_s for turns in subagents}
        assert 2 <= len(subagents) <= 6
        assert len(starts) == 1
        before = [request for request in by_name[agent] if request.arrival_s < min(starts)]
        after = [request for request in by_name[agent] if request.arrival_s >= min(starts)]
        assert all(shared(before[-1], turns[0]) >= before[-1].input_tokens // 16 for turns in subagents)
        assert all(request.arrival_s > turns[-1].arrival_s for request in after for turns in subagents)


def test_tenants_share_their_system_prompts_with_nobody_else():
    trace = generate_mix(SMALL)
    firsts = [turns[0] for name, turns in sessions(trace).items() if "/" not in name]
    assert len({request.hash_ids[0] for request in firsts}) == 3
    for tenant in {request.hash_ids[0] for request in firsts}:
        same = [request for request in firsts if request.hash_ids[0] == tenant]
        assert all(shared(same[0], other) >= 500 // 16 for other in same)


def test_the_mix_rewards_placement():
    """One cache holds far more than blind placement over eight finds: else it could not tell policies apart."""
    trace = generate_mix(Mix())
    assert ideal_hit_ratio(trace) - ideal_hit_ratio(trace, caches=8) > 0.2


def test_times_of_the_mix():
    trace = generate_mix(Mix(sessions=500, sessions_per_s=2.0, agent_share=0.0, turns=(1, 1)))
    assert len(trace.requests) == 500
    assert 200 < trace.span_s < 300
