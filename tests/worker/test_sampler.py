"""Picking tokens: distributions against the textbook's, streams that depend on nobody else, log-probabilities."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from worker.plan import Draw
from worker.request import SamplingParams
from worker.sampler import sample

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0])
PLAIN = SamplingParams(max_tokens=1, seed=0)


def drawn(params: SamplingParams, draws: int = 4000) -> Counter[int]:
    """Tokens of many streams from the same logits."""
    rows = [Draw(replace(params, seed=seed), seed % 7) for seed in range(draws)]
    return Counter(token.token_id for token in sample(LOGITS.expand(draws, -1), rows))


def reference(params: SamplingParams) -> torch.Tensor:
    """The probabilities by definition, one token after the other from the most probable."""
    probs = (LOGITS / params.temperature).softmax(-1)
    order = probs.argsort(descending=True).tolist()
    kept = order[: params.top_k] if params.top_k else order
    total = sum(probs[token].item() for token in kept)
    nucleus, mass = [], 0.0
    for token in kept:
        if nucleus and mass >= params.top_p:
            break
        nucleus.append(token)
        mass += probs[token].item() / total
    allowed = torch.zeros_like(probs)
    allowed[nucleus] = probs[nucleus]
    return allowed / allowed.sum()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 2},
        {"top_k": 99},
        {"top_p": 0.7},
        {"top_p": 0.0},
        {"top_k": 3, "top_p": 0.8, "temperature": 1.5},
    ],
)
def test_frequencies_follow_the_parameters(changes: dict[str, float]) -> None:
    params = replace(PLAIN, **changes)
    counts, probs = drawn(params), reference(params)
    for token, prob in enumerate(probs.tolist()):
        share = counts[token] / 4000
        assert share == 0 if prob == 0 else abs(share - prob) < 4 * (prob / 4000) ** 0.5 + 1e-9


def test_greedy_takes_the_best_whatever_the_filters() -> None:
    [token] = sample(LOGITS[None], [Draw(replace(PLAIN, temperature=0, top_k=2, top_p=0.1), 0)])
    assert token.token_id == 0
    assert set(drawn(replace(PLAIN, temperature=1e-6), 50)) == {0}


def test_a_draw_depends_on_its_own_seed_and_index_alone() -> None:
    others = [
        Draw(replace(PLAIN, temperature=0), 0),
        Draw(replace(PLAIN, seed=5, top_p=0.9), 3),
        Draw(replace(PLAIN, seed=6), 4),
        Draw(replace(PLAIN, seed=7, top_k=2, logprobs=1), 1),
    ]
    flat = torch.zeros(len(others), 1000)
    together = sample(flat, others)
    for number, draw in enumerate(others):
        assert sample(flat[:1], [draw]) == [together[number]]
        assert sample(flat, [draw] * 4) == [together[number]] * 4


def test_a_stream_goes_on() -> None:
    tokens = [sample(torch.zeros(1, 1000), [Draw(PLAIN, index)])[0].token_id for index in range(20)]
    assert len(set(tokens)) > 15


def test_end_tokens_wait_for_min_tokens() -> None:
    params = replace(PLAIN, temperature=0, min_tokens=2, stop_token_ids=frozenset({0, 1}))
    logits = LOGITS.expand(3, -1)
    tokens = sample(logits, [Draw(params, index) for index in range(3)])
    assert [token.token_id for token in tokens] == [2, 2, 0]
    assert torch.equal(logits, LOGITS.expand(3, -1)), "the logits are not the sampler's to change"


def test_logprobs_are_the_models_own() -> None:
    """Before temperature, filters and min_tokens, for the token chosen and the best alternatives."""
    logprobs = LOGITS.log_softmax(-1)
    params = replace(PLAIN, temperature=0, min_tokens=1, stop_token_ids=frozenset({0}), logprobs=2)
    [token] = sample(LOGITS[None], [Draw(params, 0)])
    assert token.token_id == 1
    assert token.logprob == pytest.approx(logprobs[1].item())
    assert [token_id for token_id, _ in token.top_logprobs] == [0, 1]
    assert [logprob for _, logprob in token.top_logprobs] == pytest.approx(logprobs[:2].tolist())


def test_logprobs_only_where_asked() -> None:
    own, none = sample(LOGITS.expand(2, -1), [Draw(replace(PLAIN, logprobs=0), 0), Draw(PLAIN, 0)])
    assert own.logprob is not None
    assert (own.top_logprobs, none.logprob) == ((), None)


def test_half_precision_logits() -> None:
    tokens = sample(LOGITS.bfloat16().expand(2, -1), [Draw(PLAIN, 0), Draw(replace(PLAIN, top_p=0.5), 0)])
    assert [0 <= token.token_id < 5 for token in tokens] == [True, True]
