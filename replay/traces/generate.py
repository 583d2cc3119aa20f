"""Four small workloads that share prefixes in typical ways, as token ids, the same for the same seed.

They are those of the chapter "Prefix caching: hashed blocks and radix trees", drawn in its order: with seed 0 they are
its very tokens, and ideal.granularity_table gives its table.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from random import Random

from replay.traces.assembly import Defaults, assemble
from replay.traces.errors import Place
from replay.traces.row import Row
from replay.traces.text import Characters
from replay.traces.trace import Trace

PLACE = Place("generated")
VOCABULARY = range(1000, 50000)
BLOCK_TOKENS = 16
SMALL_WORKLOADS = {
    "shared-system-prompt": "A hundred short questions behind one long system prompt.",
    "multi-turn": "Twenty conversations of eight turns.",
    "few-shot": "A hundred questions behind two to five of the same examples.",
    "parallel-sampling": "Thirty problems, eight answers to each.",
}


def small_workloads(seed: int = 0, answer_tokens: int = 100) -> dict[str, Trace]:
    """By name. Without times: requests and conversations follow one another as fast as the replay lets them.

    `answer_tokens` is the length of the answers that no later prompt contains.
    """
    rng = Random(seed)  # one for all four, which draw from it in this order
    rows = (
        _shared_system_prompt(rng, answer_tokens),
        _multi_turn(rng),
        _few_shot(rng, answer_tokens),
        _parallel_sampling(rng, answer_tokens),
    )
    return {name: generated(name, each) for name, each in zip(SMALL_WORKLOADS, rows, strict=True)}


def generated(name: str, rows: Iterable[Row]) -> Trace:
    """Rows that nobody wrote to a file, as a trace."""
    defaults = Defaults(Characters(), BLOCK_TOKENS, BLOCK_TOKENS, output_tokens=None)
    trace = assemble(name, rows, defaults)
    assert trace is not None, "a generator generates"
    return trace


def _tokens(rng: Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCABULARY.start, VOCABULARY.stop) for _ in range(count))


def _shared_system_prompt(rng: Random, answer_tokens: int) -> Iterator[Row]:
    system = _tokens(rng, 1000)
    for _ in range(100):
        yield Row(PLACE, prompt=system + _tokens(rng, rng.randint(20, 200)), output_tokens=answer_tokens)


def _multi_turn(rng: Random) -> Iterator[Row]:
    for conversation in range(20):
        history = _tokens(rng, 300)
        for _ in range(8):
            prompt = history + _tokens(rng, rng.randint(10, 60))
            answer = _tokens(rng, rng.randint(50, 300))
            yield Row(PLACE, prompt=prompt, output_tokens=len(answer), session=str(conversation))
            history = prompt + answer


def _few_shot(rng: Random, answer_tokens: int) -> Iterator[Row]:
    """A header, two to five of five examples, a question."""
    examples = [_tokens(rng, rng.randint(100, 200)) for _ in range(5)]
    header = _tokens(rng, 37)
    for _ in range(100):
        shots = chain.from_iterable(examples[: rng.randint(2, 5)])
        yield Row(PLACE, prompt=(*header, *shots, *_tokens(rng, rng.randint(20, 80))), output_tokens=answer_tokens)


def _parallel_sampling(rng: Random, answer_tokens: int) -> Iterator[Row]:
    """Eight answers to each problem. A token of its own keeps each prompt apart from the others."""
    for _ in range(30):
        problem = _tokens(rng, rng.randint(80, 400))
        for _ in range(8):
            yield Row(PLACE, prompt=problem + _tokens(rng, 1), output_tokens=answer_tokens)
