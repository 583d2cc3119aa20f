"""The router's own JSON: its values as people and scripts get them over HTTP."""

from dataclasses import asdict
from typing import Any

from router.index import Edge
from router.records import Decision, Finish, ModelCard, WorkerReport


def model_json(card: ModelCard) -> dict[str, Any]:
    """An entry of /v1/models, as OpenAI's and vLLM's clients read it."""
    return {"id": card.id, "object": "model", "created": 0, "owned_by": "warmroute", **asdict(card)}


def worker_json(report: WorkerReport) -> dict[str, Any]:
    return asdict(report)


def decision_json(decision: Decision, finish: Finish | None, now: float) -> dict[str, Any]:
    """`age_s`: how long ago it was made. `finish` null: the request runs, or was only asked about."""
    return {
        "request_id": decision.request_id,
        "model": decision.model,
        "policy": decision.policy,
        "prompt_tokens": decision.prompt_tokens,
        "candidates": [_candidate_json(decision, position) for position in range(len(decision.candidates))],
        "slot": decision.slot,
        "predicted_cached_tokens": decision.predicted_cached_tokens,
        "unknown_prompt": decision.unknown_prompt,
        "age_s": round(now - decision.at_s, 6),
        "finish": None if finish is None else _finish_json(decision, finish),
    }


def _candidate_json(decision: Decision, position: int) -> dict[str, Any]:
    candidates = decision.candidates
    return {
        "slot": candidates.keys[position],
        "cache_state": decision.cache_states[position],
        "cached_tokens": int(candidates.cached_tokens[position]),
        "queued_prefill_tokens": float(candidates.queued_prefill_tokens[position]),
        "active_requests": int(candidates.active_requests[position]),
        "decode_tokens": int(candidates.decode_tokens[position]),
        "mean_decode_tokens": float(candidates.mean_decode_tokens[position]),
        "waiting_requests": int(candidates.waiting_requests[position]),
        "cost": float(decision.costs[position]),
    }


def _finish_json(decision: Decision, finish: Finish) -> dict[str, Any]:
    usage = finish.usage
    return {
        "outcome": finish.outcome,
        "duration_s": round(finish.at_s - decision.at_s, 6),
        "ttft_s": finish.ttft_s,
        "reported_prompt_tokens": usage.prompt_tokens if usage else None,
        "reported_cached_tokens": usage.cached_tokens if usage else None,
        "completion_tokens": usage.completion_tokens if usage else None,
    }


def tree_json(worker: str, trees: dict[str, list[Edge]]) -> dict[str, Any]:
    """Edges flat, parents first: prompts are deeper than JSON readers like their nesting. Hashes as hexadecimal text,
    since JSON numbers end at 2**53 for many readers."""
    return {
        "worker": worker,
        "slots": {
            slot: {"blocks": sum(edge.blocks for edge in edges), "edges": [_edge_json(edge) for edge in edges]}
            for slot, edges in trees.items()
        },
    }


def _edge_json(edge: Edge) -> dict[str, Any]:
    parent = None if edge.parent is None else f"{edge.parent:016x}"
    return {"first": f"{edge.first:016x}", "parent": parent, "blocks": edge.blocks}
