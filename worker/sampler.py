"""Picking tokens from logits: greedy, or by temperature, top_k and top_p, each request from its own random stream.

The order is vLLM's: log-probabilities are those of the model itself, before anything else; then end tokens are ruled
out up to `min_tokens`, then temperature, top_k, top_p.
"""

import torch
from torch import Tensor

from worker.plan import Draw, SampledToken
from worker.request import SamplingParams

GREEDY_BELOW = 1e-5  # a smaller temperature would overflow what it divides; vLLM draws the line here too


def sample(logits: Tensor, draws: list[Draw]) -> list[SampledToken]:
    """One token for each row of `logits` [rows, vocab], as the draw of that row says."""
    logits = logits.float()
    allowed = _without_early_ends(logits, draws)
    token_ids = allowed.argmax(-1)
    for rows, filtered in _random_rows(draws):
        token_ids[rows] = _pick(allowed[rows], [draws[row] for row in rows], filtered)
    chosen: list[int] = token_ids.tolist()
    return [
        _report(logits[row], token_id, draw.params.logprobs)
        for row, (token_id, draw) in enumerate(zip(chosen, draws, strict=True))
    ]


def _without_early_ends(logits: Tensor, draws: list[Draw]) -> Tensor:
    """The logits with the stop tokens of requests that have not yet `min_tokens` at minus infinity."""
    early = [row for row, draw in enumerate(draws) if draw.index < draw.params.min_tokens]
    if not early:
        return logits
    logits = logits.clone()
    for row in early:
        logits[row, list(draws[row].params.stop_token_ids)] = -torch.inf
    return logits


def _random_rows(draws: list[Draw]) -> list[tuple[list[int], bool]]:
    """The rows that are not greedy, those without and those with a filter apart: only the latter must be sorted.

    A row's group depends on its own parameters alone, and so does its token.
    """
    groups: dict[bool, list[int]] = {}
    for row, draw in enumerate(draws):
        if draw.params.temperature >= GREEDY_BELOW:
            groups.setdefault(_is_filtered(draw.params), []).append(row)
    return [(rows, filtered) for filtered, rows in groups.items()]


def _is_filtered(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1


def _pick(logits: Tensor, draws: list[Draw], filtered: bool) -> Tensor:
    """Token ids [rows] by inverting the cumulative distribution at one uniform number a row."""
    params = [draw.params for draw in draws]
    scaled = logits / _column([each.temperature for each in params], logits)
    if filtered:
        scaled, token_ids = scaled.sort(-1, descending=True)
        top_k = _column([each.top_k or scaled.shape[-1] for each in params], logits)
        rank = torch.arange(scaled.shape[-1], device=scaled.device)
        scaled = scaled.masked_fill(rank >= top_k, -torch.inf)
    probs = scaled.softmax(-1)
    if filtered:
        top_p = _column([each.top_p for each in params], logits)
        probs = probs.masked_fill(probs.cumsum(-1) - probs >= top_p, 0)  # keeps the token that crosses top_p
    mass = probs.double().cumsum(-1)
    targets = _column([_uniform(draw) for draw in draws], mass) * mass[:, -1:]
    places = torch.searchsorted(
        mass, targets
    )  # never past the end, nor on a token ruled out, also if rounding meets it
    return token_ids.gather(-1, places).squeeze(-1) if filtered else places.squeeze(-1)


def _uniform(draw: Draw) -> float:
    """Number `draw.index` of the request's stream, in [0, 1): no state to keep, to share or to lose at a preemption."""
    stream = torch.Generator().manual_seed(draw.params.seed or 0)
    return torch.rand(draw.index + 1, generator=stream, dtype=torch.float64)[-1].item()


def _column(values: list[int] | list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _report(logits: Tensor, token_id: int, alternatives: int | None) -> SampledToken:
    """The token with what was asked of log-probabilities, from its row of `logits` [vocab]."""
    if alternatives is None:
        return SampledToken(token_id)
    logprobs = logits.log_softmax(-1)
    best = logprobs.topk(alternatives)
    top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return SampledToken(token_id, logprobs[token_id].item(), top)
