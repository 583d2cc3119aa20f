"""Streams captured from real engines, through codec and index, against a model of the engine's pool in a dict."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kv_events.codec import decode_batch
from kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash
from kv_events.hashing import block_hashes, root_hash
from router.index import PrefixIndex

DATA = Path(__file__).parents[1] / "data"
REPEATS_WITHOUT_A_COPY = "r13:kv_cache_report_mode=full re-reports the hit blocks"


def captures() -> list[Any]:
    """The frames of each engine process in the files, live and replayed ones put together; a restart begins another."""
    found = []
    for file in ("vllm_events.jsonl", "vllm_events_legacy.jsonl", "sglang_events.jsonl"):
        runs: list[dict[tuple[int, int], dict[str, Any]]] = []
        for row in map(json.loads, (DATA / file).read_text().splitlines()):
            if row["kind"] == "header" or (row["kind"] == "control" and "restart" in row["label"]):
                runs.append({})
            elif row["kind"] in ("frame", "replay_frame") and "payload_hex" in row:
                runs[-1].setdefault((row.get("socket_rank", 0), row["seq"]), row)
        found += [
            pytest.param([frames[key] for key in sorted(frames)], id=f"{file}-{i}") for i, frames in enumerate(runs)
        ]
    return found


class Pool:
    """What the engine holds: how many physical copies of each block. Knows from the capture's labels what the events
    do not say: which of them repeat a block without a new copy."""

    def __init__(self) -> None:
        self.copies: Counter[EngineHash] = Counter()

    def apply(self, event: Any, cause: str) -> None:
        if isinstance(event, BlockStored):
            nameless_adapter = event.lora_id is not None and event.lora_name is None  # vLLM <= 0.12: no match
            if cause != REPEATS_WITHOUT_A_COPY and not nameless_adapter:
                self.copies.update(event.block_hashes)
        elif isinstance(event, BlockRemoved):
            self.copies.subtract(event.block_hashes)
        elif isinstance(event, AllBlocksCleared):
            self.copies.clear()

    @property
    def held(self) -> set[EngineHash]:
        return {name for name, copies in self.copies.items() if copies > 0}


def apply(index: PrefixIndex, slot: int, event: Any) -> None:
    if isinstance(event, BlockStored):
        index.store(slot, event)
    elif isinstance(event, BlockRemoved):
        index.remove(slot, event)
    else:
        index.clear(slot)


@pytest.mark.parametrize("frames", captures())
def test_a_capture_leaves_exactly_what_its_engine_holds(frames: list[dict[str, Any]]) -> None:
    index, pools = PrefixIndex(), {}
    for frame in frames:
        batch = decode_batch(bytes.fromhex(frame["payload_hex"]))
        rank = batch.data_parallel_rank or 0
        if rank not in pools:
            pools[rank] = Pool()
            index.open(rank)
        for event in batch.events:
            pools[rank].apply(event, frame["cause"])
            apply(index, rank, event)
        index.check()
        for slot, pool in pools.items():
            assert index.engine_blocks(slot) <= pool.held, f"never more than there is, after {frame['cause']}"
    for slot, pool in pools.items():
        assert index.engine_blocks(slot) == pool.held
        assert index.stats(slot).orphans == 0


NOT_PREDICTABLE = {
    "r17": "three twins in one step",
    "r18": "three twins in one step",
    "r19": "three twins in one step",
    "r24": "the cache was reset while idle: vLLM tells with the next step only",
}


def first_run(file: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (DATA / file).read_text().splitlines()]
    return rows[: next(i for i, row in enumerate(rows) if i and row["kind"] == "header")]


def test_the_match_is_the_usage_that_vllm_reported() -> None:
    """Each request of the capture, matched just before it, against its usage; its events come with its answer."""
    index = PrefixIndex()
    index.open(0)
    size, asked, predicted = 32, {}, {}
    compared = 0
    for row in first_run("vllm_events.jsonl"):
        if row["kind"] == "request":
            asked[row["id"]] = row["body"]
        elif row["kind"] == "frame":
            owner = row["cause"].partition(":")[0]
            predicted.setdefault(owner, snapshot(index))
            for event in decode_batch(bytes.fromhex(row["payload_hex"])).events:
                apply(index, 0, event)
        elif row["kind"] == "response":
            body, tokens = asked[row["id"]], row["prompt_token_ids"]
            if "prompt_logprobs" in body or row["id"] in NOT_PREDICTABLE:
                continue
            adapter = body["model"] if body["model"].startswith("lora") else None
            hashes = block_hashes(tokens, size, root_hash(adapter, body.get("cache_salt")))
            held = predicted.get(row["id"], snapshot(index))
            depth = 0
            while depth < (len(tokens) - 1) // size and hashes[depth] in held:
                depth += 1
            assert row["usage"]["prompt_tokens_details"]["cached_tokens"] == depth * size, row["id"]
            compared += 1
    assert compared >= 15


def snapshot(index: PrefixIndex) -> frozenset[int]:
    return index.blocks(0)
