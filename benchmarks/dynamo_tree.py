"""The `RadixTree` of ai-dynamo-runtime, as benchmarks/index.py asks for it; runs where that wheel is, prints JSON.

python benchmarks/dynamo_tree.py apply EVENT_BLOCKS
python benchmarks/dynamo_tree.py match PROMPT_BLOCKS DEPTH...
"""

import json
import sys
import time
from collections.abc import Sequence
from random import Random
from statistics import quantiles

from dynamo._core import RadixTree


def stored(names: Sequence[int], start: int, stop: int) -> bytes:
    """An event as the binding reads it: it carries hashes of the tokens, which are not hashed here."""
    blocks = [{"block_hash": name, "tokens_hash": name} for name in names[start:stop]]
    parent = names[start - 1] if start else None
    return json.dumps({"event_id": 0, "data": {"stored": {"parent_hash": parent, "blocks": blocks}}}).encode()


def apply_rate(size: int, blocks: int = 16_384) -> list[float]:
    """Million blocks/s."""
    random = Random(size)
    prompts = [[random.getrandbits(63) for _ in range(512)] for _ in range(blocks // 512)]
    events = [stored(prompt, at, at + size) for prompt in prompts for at in range(0, 512, size)]
    tree = RadixTree()
    start_s = time.process_time()
    for event in events:
        tree.apply_event(0, event)
    tree.find_matches(prompts[-1])  # waits until all are applied
    return [blocks / (time.process_time() - start_s) / 1e6]


def match_us(blocks: int, depths: Sequence[int], calls: int = 2_000) -> list[float]:
    """p50 and p99."""
    random, tree = Random(0), RadixTree()
    names = [random.getrandbits(63) for _ in range(blocks)]
    for worker, depth in enumerate(depths):
        tree.apply_event(worker, stored(names, 0, depth))
    times = []
    for _ in range(calls):
        start_ns = time.perf_counter_ns()
        tree.find_matches(names)
        times.append((time.perf_counter_ns() - start_ns) / 1e3)
    cuts = quantiles(times, n=100)
    return [cuts[49], cuts[98]]


if __name__ == "__main__":
    kind, first, *rest = sys.argv[1:]
    print(json.dumps(apply_rate(int(first)) if kind == "apply" else match_us(int(first), [*map(int, rest)])))
