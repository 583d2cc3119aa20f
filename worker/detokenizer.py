"""Token ids to text, a token at a time, and stop strings found in that text across the borders of tokens.

A character may take several tokens, and how a token reads may depend on the one before it (sentencepiece drops a
leading space). So a short window is decoded again for each token; its text is final once it ends in a whole character.
"""

from operator import itemgetter
from typing import Any

MAX_HELD_TOKENS = 16
"""A character is at most four tokens; a longer run that still ends in no character is not going to become one."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """The text of a growing sequence, from any tokenizer of transformers. Each token costs one window of decoding."""

    def __init__(self, tokenizer: Any, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = frozenset(tokenizer.all_special_ids) if skip_special_tokens else frozenset()
        self._window: list[int] = []  # tokens whose text is out already (the context), then tokens that are held
        self._context_tokens = 0
        self._context_text = ""

    def add(self, token_id: int) -> str:
        """The text that this token makes final; often "", for the first bytes of a character."""
        if token_id in self._skipped:
            return ""
        self._window.append(token_id)
        text = self._decode(self._window)
        is_whole = len(text) > len(self._context_text) and not text.endswith(_REPLACEMENT)
        if not is_whole and len(self._window) - self._context_tokens < MAX_HELD_TOKENS:
            return ""
        return self._release(text)

    def finish(self) -> str:
        """What is held, without the bytes of a character that never got whole."""
        return self._release(self._decode(self._window).rstrip(_REPLACEMENT))

    def _release(self, text: str) -> str:
        new = text[len(self._context_text) :]
        del self._window[: self._context_tokens]
        self._context_tokens = len(self._window)
        self._context_text = self._decode(self._window)
        return new

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


class StopStrings:
    """Passes text through up to the first stop string. Holds back what may be the beginning of one, and no more."""

    def __init__(self, stop: tuple[str, ...], *, keep_stop: bool = False) -> None:
        self._stop = stop
        self._keep_stop = keep_stop
        self._held = ""
        self.found: str | None = None

    def add(self, text: str) -> str:
        """The part of the text so far that no stop string can reach any more; sets `found` and ends there at a stop."""
        self._held += text
        found = self._first_stop()
        if found is not None:
            end, self.found = found
            return self._take(end if self._keep_stop else end - len(self.found))
        return self._take(len(self._held) - self._begun())

    def finish(self) -> str:
        """What was held back, as no stop string came of it."""
        return self._take(len(self._held))

    def _first_stop(self) -> tuple[int, str] | None:
        """The stop string that is complete first, and where it ends: the same however the text was cut."""
        ends = [(place + len(stop), stop) for stop in self._stop if (place := self._held.find(stop)) >= 0]
        return min(ends, key=itemgetter(0), default=None)

    def _begun(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max(map(len, self._stop), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stop):
                return length
        return 0

    def _take(self, chars: int) -> str:
        text, self._held = self._held[:chars], self._held[chars:]
        return text
