"""The prefix index: events applied, batches decoded, prompts matched, decisions, memory, and the drop of a worker.

    python benchmarks/index.py [--only match] [--dynamo PYTHON] [--blocks 100000]

Beside it, where it can do the like, runs the `RadixTree` binding of ai-dynamo-runtime, in a process of its own: with
the interpreter that `--dynamo` names, or one that is set up in build/dynamo. Every round measures both one after the
other; printed are medians of the rounds. Times are CPU times of one process, but for p50 and p99.
"""

import gc
import json
import multiprocessing
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from copy import copy
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any

import click
import psutil
from rich.console import Console
from rich.table import Table

from kv_events.codec import decode_batch, encode_batch
from kv_events.deliveries import Batch, Synced
from kv_events.events import BlockRemoved, BlockStored, EventBatch
from kv_events.hashing import block_hashes, root_hash
from policies.registry import DEFAULT, make_policy
from protocol.prompt_tokens import PromptTokens
from router.core import RouterCore
from router.index import PrefixIndex
from router.records import ModelCard, Outcome, RouteRequest, WorkerInfo

HERE = Path(__file__).parent
DYNAMO = HERE.parent / "build" / "dynamo"
WHEEL = "ai-dynamo-runtime==1.6.1"
BLOCK_SIZE = 16
ROOMY = 1 << 40
SIZES = (1, 16, 64, 512)
FLEETS = ((512, 64), (4096, 256))  # blocks of the prompt, workers
SCENES = ("typical", "worst")


class Prompt:
    """A random prompt, and its engine's names for its blocks."""

    def __init__(self, blocks: int, random: Random) -> None:
        self.tokens = array("I", random.choices(range(100_000), k=blocks * BLOCK_SIZE))
        self.names = [random.getrandbits(64) for _ in range(blocks)]

    def event(self, start: int, stop: int) -> BlockStored:
        """Its blocks between two, as the codec gives them."""
        parent = self.names[start - 1] if start else None
        tokens = tuple(self.tokens[start * BLOCK_SIZE : stop * BLOCK_SIZE])
        return BlockStored(tuple(self.names[start:stop]), parent, tokens, BLOCK_SIZE)

    def events(self, size: int) -> Iterator[BlockStored]:
        return (self.event(at, min(at + size, len(self.names))) for at in range(0, len(self.names), size))

    def hashes(self) -> list[int]:
        return block_hashes(self.tokens, BLOCK_SIZE, root_hash())


def opened(slots: int) -> PrefixIndex:
    index = PrefixIndex(max_bytes=ROOMY)
    for slot in range(slots):
        index.open(slot)
    return index


def cpu_s(work: Callable[[], object]) -> float:
    gc.collect()
    start_s = time.process_time()
    work()
    return time.process_time() - start_s


# Events and the codec


def apply_rate(size: int, blocks: int = 16_384) -> float:
    """Million blocks/s of prompts of 512 blocks, in events of `size`, their tokens hashed."""
    random = Random(size)
    events = [event for _ in range(blocks // 512) for event in Prompt(512, random).events(size)]
    index = opened(1)

    def work() -> None:
        for event in events:
            index.store(0, event)

    return blocks / cpu_s(work) / 1e6


def codec_rate(size: int, blocks: int = 16_384) -> float:
    """Million blocks/s out of vLLM's msgpack, 16 events a batch."""
    random = Random(size)
    events = [event for _ in range(blocks // 512) for event in Prompt(512, random).events(size)]
    batches = [events[at : at + 16] for at in range(0, len(events), 16)]
    payloads = [encode_batch(EventBatch(0.0, tuple(batch), 0)) for batch in batches]

    def work() -> None:
        for payload in payloads:
            decode_batch(payload)

    return blocks / cpu_s(work) / 1e6


# Matching and deciding


def depths_of(scene: str, blocks: int, workers: int) -> list[int]:
    """How much of the prompt each worker holds. Typical: the system prompt everywhere, a shared document on one in
    eight, the conversation on two. Worst: each ends at a depth of its own."""
    if scene == "worst":
        return [blocks * (worker + 1) // workers for worker in range(workers)]
    depths = [64 if worker % 8 else blocks // 2 for worker in range(workers)]
    depths[1] = depths[2] = blocks
    return depths


def timed_us(call: Callable[[], object], calls: int = 2_000) -> list[float]:
    """p50 and p99."""
    times = []
    for _ in range(calls):
        start_ns = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start_ns) / 1e3)
    cuts = quantiles(times, n=100)
    return [cuts[49], cuts[98]]


def match_us(scene: str, blocks: int, workers: int) -> list[float]:
    prompt, index, mask = Prompt(blocks, Random(0)), opened(workers), (1 << workers) - 1
    for worker, depth in enumerate(depths_of(scene, blocks, workers)):
        index.store(worker, prompt.event(0, depth))
    hashes = prompt.hashes()
    return timed_us(lambda: index.match(hashes, len(hashes), mask, mask))


def decision_us(scene: str, blocks: int, workers: int) -> list[float]:
    """route and on_finish, the prompt's hashes known. Where it goes is part of it, so its blocks are never stored."""
    prompt = Prompt(blocks, Random(0))
    core = RouterCore(
        make_policy(DEFAULT),
        Random(0),
        policy_name=DEFAULT,
        max_in_flight=8,
        max_decisions=8,
        prior_prefill_tokens_per_s=10_000.0,
        max_index_bytes=8 << 30,
        assumed_cache_tokens=1,
    )
    info = WorkerInfo((ModelCard("m"),), BLOCK_SIZE)
    for worker, depth in enumerate(depths_of(scene, blocks, workers)):
        name = core.add_worker(f"http://w{worker}:1")
        core.on_worker_up(name, info)
        core.on_kv_events(name, 0, Batch(0, EventBatch(0.0, (prompt.event(0, depth),))))
        core.on_kv_events(name, 0, Synced())
    tokens = PromptTokens(prompt.tokens)
    request = RouteRequest("r", "m", len(tokens), (tokens,))
    now = iter(range(1 << 60))

    def decide() -> None:
        placement = core.route(request, float(next(now)))
        core.on_finish(placement.ticket, Outcome.OK, float(next(now)))

    decide()
    return timed_us(decide)


# Memory and the drop of a worker

PROMPT_BLOCKS = 256


def rss() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def announced(seed: str, workers: int, alike: bool) -> list[tuple[int, Prompt]]:
    """A prompt on each worker, by the names that its engine has for the blocks."""
    random = Random(seed)
    prompt = Prompt(PROMPT_BLOCKS, random)
    found = [(0, prompt)]
    for worker in range(1, workers):
        named = copy(prompt)
        named.names = [name + 0 for name in prompt.names] if alike else [random.getrandbits(64) for _ in prompt.names]
        found.append((worker, named))
    return found


def memory(workers: int, blocks: int, alike: bool, rounds: int) -> dict[str, float]:
    """Bytes a membership when `blocks` on each worker are stored, all of them on all workers; after all was replaced,
    prompt by prompt, once, and as often as `rounds` says; and what the index's account says then. Also the CPU time in
    which a worker is dropped, by the block."""
    index, memberships = opened(workers), workers * blocks
    empty = rss()
    sizes = []
    for number in range(rounds + 1):
        for at in range(blocks // PROMPT_BLOCKS):
            if number:
                for slot, prompt in announced(f"{number - 1} {at}", workers, alike):
                    index.remove(slot, BlockRemoved(tuple(reversed(prompt.names))))
            for slot, prompt in announced(f"{number} {at}", workers, alike):
                index.store(slot, prompt.event(0, PROMPT_BLOCKS))
        sizes.append((rss() - empty) / memberships)
    account = index.held_bytes / memberships
    dropped_us = cpu_s(lambda: index.close(workers - 1)) / blocks * 1e6
    return {"stored": sizes[0], "once": sizes[1], "often": sizes[-1], "account": account, "dropped_us": dropped_us}


def in_child(work: Callable[..., object], *arguments: object) -> Any:
    """What `work` answers in a process of its own, whose memory is not that of others."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


# The tables


def dynamo_python(python: str | None) -> str:
    if python is None and not (DYNAMO / "bin" / "python").exists():
        click.echo(f"installing {WHEEL} into {DYNAMO}", err=True)
        subprocess.run([sys.executable, "-m", "venv", DYNAMO], check=True)
        subprocess.run([DYNAMO / "bin" / "pip", "install", "--quiet", WHEEL], check=True)
    return python or str(DYNAMO / "bin" / "python")


def of_dynamo(python: str, *arguments: object) -> list[float]:
    command = [python, str(HERE / "dynamo_tree.py"), *map(str, arguments)]
    figures: list[float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return figures


def medians(rounds: Sequence[Sequence[float]]) -> str:
    return " / ".join(f"{median(figures):.2f}" for figures in zip(*rounds, strict=True))


def show_rates(python: str, runs: int) -> None:
    table = Table("million blocks/s, in events of", *map(str, SIZES))
    ours: list[list[list[float]]] = [[] for _ in SIZES]
    theirs: list[list[list[float]]] = [[] for _ in SIZES]
    codec: list[list[list[float]]] = [[] for _ in SIZES]
    for _ in range(runs):
        for at, size in enumerate(SIZES):
            ours[at].append([apply_rate(size)])
            theirs[at].append(of_dynamo(python, "apply", size))
            codec[at].append([codec_rate(size)])
    table.add_row("index: decoded batches, tokens hashed", *map(medians, ours))
    table.add_row("dynamo: JSON that has the hashes", *map(medians, theirs))
    table.add_row("codec: msgpack of vLLM", *map(medians, codec))
    Console().print(table)


def show_times(python: str, runs: int, only: str) -> None:
    table = Table("p50 / p99, us", *(f"{scene} {b} x {w}" for scene in SCENES for b, w in FLEETS))
    cases = [(scene, *fleet) for scene in SCENES for fleet in FLEETS]
    measures: dict[str, Callable[..., list[float]]] = {
        "match": match_us,
        "match, dynamo": lambda scene, blocks, workers: of_dynamo(
            python, "match", blocks, *depths_of(scene, blocks, workers)
        ),
        "decision": decision_us,
    }
    measures = {name: measure for name, measure in measures.items() if only in name}
    rounds: dict[str, list[list[list[float]]]] = {name: [[] for _ in cases] for name in measures}
    for _ in range(runs):
        for at, case in enumerate(cases):
            for name, measure in measures.items():
                rounds[name][at].append(measure(*case))
    for name, found in rounds.items():
        table.add_row(name, *map(medians, found))
    Console().print(table)


def show_memory(blocks: int, rounds: int) -> None:
    table = Table("bytes a membership", "stored", "replaced once", f"{rounds} times", "by account", "drop, us a block")
    for workers, alike in ((1, True), (8, True), (64, True), (8, False)):
        found = in_child(memory, workers, blocks, alike, rounds)
        how = "" if workers == 1 else ", blocks named alike" if alike else ", each names blocks its own way"
        cells = [f"{found[name]:.1f}" for name in ("stored", "once", "often", "account")]
        table.add_row(f"{workers} x {blocks:,} blocks{how}", *cells, f"{found['dropped_us']:.3f}")
    Console().print(table)


@click.command
@click.option("--only", default="", help="One of: rates, match, decision, memory.")
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--dynamo", help="A Python that has ai-dynamo-runtime; default: one in build/dynamo.")
@click.option("--blocks", type=click.IntRange(min=PROMPT_BLOCKS), default=102_400, show_default=True, help="A worker.")
@click.option("--rounds", type=click.IntRange(min=1), default=10, show_default=True, help="Of replacing all blocks.")
def main(only: str, runs: int, dynamo: str | None, blocks: int, rounds: int) -> None:
    """Measure, and print tables."""
    python = dynamo_python(dynamo) if only not in ("memory", "decision") else ""
    if only in ("", "rates"):
        show_rates(python, runs)
    if only in ("", "match", "decision"):
        show_times(python, runs, only)
    if only in ("", "memory"):
        show_memory(blocks, rounds)


if __name__ == "__main__":
    main()
