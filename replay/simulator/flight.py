"""What becomes of one request of the trace."""

from array import array
from dataclasses import dataclass

from replay.simulator.prompts import answer_token
from replay.traces.trace import TraceRequest
from worker.request import EngineRequest, SamplingParams


@dataclass(slots=True, eq=False)
class Flight:
    """`number` counts the trace's requests. Times are None until they come, and for a rejected request for good."""

    number: int
    request: TraceRequest
    sent_s: float
    prompt: "array[int] | None"
    """Its tokens, as long as it is under way."""
    worker: int = -1
    predicted_tokens: int = 0
    cached_tokens: int = 0
    first_token_s: float | None = None
    ended_s: float | None = None
    rejection: str | None = None

    @property
    def id(self) -> str:
        return str(self.number)

    @property
    def output_tokens(self) -> int:
        """A model says at least one token."""
        return max(1, self.request.output_tokens)

    @property
    def tokens(self) -> int:
        """Of prompt and answer."""
        return self.request.input_tokens + self.output_tokens

    def for_engine(self) -> EngineRequest:
        """The seed is what a simulated runner draws as every token: no two answers are the same."""
        assert self.prompt is not None, "a request that has ended is not sent again"
        sampling = SamplingParams(max_tokens=self.output_tokens, seed=answer_token(self.number), ignore_eos=True)
        return EngineRequest(self.id, self.prompt, sampling)
