"""One choice of an answer as it grows: token outputs become text, stop strings end it."""

from dataclasses import dataclass

from worker.detokenizer import Detokenizer, StopStrings, WindowDecoder
from worker.generation_params import GenerationParams
from worker.request import FinishReason, TokenOutput


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What came of one token, or of several merged. Text may lag behind its tokens while it is held back.

    `stop_reason` is the stop string or the stop token's id that ended the choice, None for an end-of-sequence token.
    """

    index: int
    text: str
    tokens: tuple[TokenOutput, ...]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


def merged(deltas: list[ChoiceDelta]) -> ChoiceDelta:
    """All of one choice's deltas, in order, as one."""
    last = deltas[-1]
    return ChoiceDelta(
        index=last.index,
        text="".join(delta.text for delta in deltas),
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )


class Choice:
    """Feed it one sequence's outputs until a delta carries a finish reason; nothing may follow that."""

    def __init__(self, index: int, params: GenerationParams, decoder: WindowDecoder, echoed: str = "") -> None:
        self.index = index
        self._params = params
        self._echoed = echoed
        self._detokenizer = Detokenizer(decoder, skip_special_tokens=params.skip_special_tokens)
        self._stop = StopStrings(params.stop, keep_stop=params.include_stop)
        self._tokens = 0

    def add(self, output: TokenOutput) -> ChoiceDelta:
        self._tokens += 1
        text = self._echoed + self._checked(self._text_of(output))
        self._echoed = ""
        if self._stop.found is not None:
            return ChoiceDelta(self.index, text, (output,), FinishReason.STOP, self._stop.found)
        if output.finish_reason is not None:
            text += self._stop.finish()
        return ChoiceDelta(self.index, text, (output,), output.finish_reason, self._stop_token(output))

    def _stop_token(self, output: TokenOutput) -> int | None:
        stopped = output.finish_reason is FinishReason.STOP
        return output.token_id if stopped and output.token_id in self._params.sampling.stop_token_ids else None

    def _text_of(self, output: TokenOutput) -> str:
        """The token that stops a sequence is not part of its text, unless the client asked for it."""
        hidden = output.finish_reason is FinishReason.STOP and not self._params.include_stop
        text = "" if hidden or output.token_id is None else self._detokenizer.add(output.token_id)
        return text if output.finish_reason is None else text + self._detokenizer.finish()

    def _checked(self, text: str) -> str:
        """No stop string counts before `min_tokens`, as no stop token does."""
        return text if self._tokens <= self._params.sampling.min_tokens else self._stop.add(text)
