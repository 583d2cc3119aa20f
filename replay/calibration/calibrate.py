"""One calibration from beginning to end: find the model, measure, fit."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from replay.calibration.engine import HttpEngine
from replay.calibration.fit import Fitted, fit_profile, residuals
from replay.calibration.measure import ANSWER_TOKENS, Measurement, make_plan
from replay.client import open_session
from replay.endpoint import served_model
from replay.errors import CalibrationFailed
from worker.timing import Profile


@dataclass(frozen=True, slots=True)
class Calibration:
    profile: Profile
    fitted: tuple[Fitted, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """The worker to measure. `model` None: the only one that it serves. `longest_prompt` is to be what it computes in
    one pass, and is cut to what its context allows."""

    url: str
    model: str | None
    vocabulary: range
    longest_prompt: int
    max_sequences: int


async def calibrate(
    subject: Subject, on_planned: Callable[[int], object], on_answered: Callable[[int], object]
) -> Calibration:
    """`on_planned` hears how many requests there will be. Raises UnusableEndpoint, RequestFailed, CalibrationFailed."""
    async with open_session() as session:
        model = await served_model(session, subject.url, subject.model)
        context_tokens = model.context_tokens or subject.longest_prompt + ANSWER_TOKENS
        longest_prompt = min(subject.longest_prompt, context_tokens - ANSWER_TOKENS)
        if longest_prompt < 1:
            raise CalibrationFailed(f"{model.name} has a context of {context_tokens} tokens, too few to measure")
        plan = make_plan(longest_prompt, subject.max_sequences)
        on_planned(plan.requests)
        engine = HttpEngine(session, subject.url, model.name)
        measurement = Measurement(engine, subject.vocabulary, np.random.default_rng(), on_answered)
        prefill, decode = await measurement.run(plan)
    profile = fit_profile(prefill, decode)
    return Calibration(profile, tuple(residuals(profile, prefill, decode)))
