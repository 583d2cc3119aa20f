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
        "candidates": [
            {
                "slot": candidate.key,
                "cache_state": state,
                "cached_tokens": candidate.cached_tokens,
                "queued_prefill_tokens": candidate.queued_prefill_tokens,
                "active_requests": candidate.active_requests,
                "decode_tokens": candidate.decode_tokens,
                "mean_decode_tokens": candidate.mean_decode_tokens,
                "waiting_requests": candidate.waiting_requests,
                "cost": cost,
            }
            for candidate, state, cost in zip(decision.candidates, decision.cache_states, decision.costs, strict=True)
        ],
        "slot": decision.slot,
        "predicted_cached_tokens": decision.predicted_cached_tokens,
        "unknown_prompt": decision.unknown_prompt,
        "age_s": round(now - decision.at_s, 6),
        "finish": None if finish is None else _finish_json(decision, finish),
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
