"""Our engine alone: seconds to prefill a cold prompt, and tokens/s of one stream that decodes after it.

    python benchmarks/engine.py [--model smollm2-135m] [--threads 1] [--prompt-tokens 700] [--decode-tokens 64]

Compare with another engine on the same machine, in the same minute: a shared machine's speed changes by half.
"""

import time
from dataclasses import dataclass
from random import Random
from statistics import median

import click

from kv_events.publisher import NullPublisher
from worker.block_manager import BlockManager
from worker.engine import Engine
from worker.model_store import resolve
from worker.request import EngineRequest, SamplingParams
from worker.scheduler import Scheduler
from worker.torch_runner import TorchRunner, open_runner

COUNT = click.IntRange(min=1)


@dataclass(frozen=True, slots=True)
class Timing:
    prefill_s: float
    decode_ms: float  # a token, median of the run


@click.command
@click.option("--model", default="smollm2-135m", show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--threads", type=COUNT, default=1, show_default=True)
@click.option("--prompt-tokens", type=COUNT, default=700, show_default=True)
@click.option("--decode-tokens", type=COUNT, default=64, show_default=True)
@click.option("--runs", type=COUNT, default=5, show_default=True)
def main(model: str, device: str, threads: int, prompt_tokens: int, decode_tokens: int, runs: int) -> None:
    """Time cold prompts of random tokens, one after the other; every run has tokens of its own."""
    runner = open_runner(resolve(model), device=device, threads=threads)
    measured(runner, Random(0), prompt_tokens, 8)  # the first call of a model is slower than all others
    click.echo(f"{runner}, {threads} threads, {prompt_tokens} prompt tokens, {decode_tokens} decoded")
    click.echo("run     prefill s   decode ms/token   decode tokens/s")
    timings = [measured(runner, Random(run), prompt_tokens, decode_tokens) for run in range(1, runs + 1)]
    for run, timing in enumerate(timings, 1):
        click.echo(row(str(run), timing))
    click.echo(row("median", Timing(median(t.prefill_s for t in timings), median(t.decode_ms for t in timings))))


def measured(runner: TorchRunner, random: Random, prompt_tokens: int, decode_tokens: int) -> Timing:
    """One request on an engine with an empty cache. The first step is the prefill, each later one decodes a token."""
    blocks = BlockManager(runner.num_blocks, runner.block_size)
    scheduler = Scheduler(blocks, max_batched_tokens=max(2048, prompt_tokens), max_num_seqs=1)
    engine = Engine(runner, scheduler, NullPublisher(), random)
    prompt = tuple(random.randrange(runner.model.vocab_size) for _ in range(prompt_tokens))
    sampling = SamplingParams(max_tokens=decode_tokens + 1, temperature=0, ignore_eos=True)
    engine.add(EngineRequest("0", prompt, sampling))
    steps_s = []
    while engine.has_work:
        start = time.perf_counter()
        engine.step()
        steps_s.append(time.perf_counter() - start)
    return Timing(steps_s[0], 1000 * median(steps_s[1:]))


def row(name: str, timing: Timing) -> str:
    return f"{name:<6} {timing.prefill_s:>10.2f} {timing.decode_ms:>17.1f} {1000 / timing.decode_ms:>17.1f}"


if __name__ == "__main__":
    main()
