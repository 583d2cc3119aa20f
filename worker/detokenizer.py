"""Token ids to text, a token at a time, and stop strings found in that text across the borders of tokens.

A character may take several tokens, and how a token reads may depend on the one before it (sentencepiece drops a
leading space). So a short window is decoded again for each token; its text is final once it ends in a whole character.
"""

from functools import lru_cache
from operator import itemgetter
from typing import Any

MAX_HELD_TOKENS = 16
"""A character is at most four tokens; a longer run that still ends in no character is not going to become one."""

MAX_CACHED_WINDOWS = 1 << 14  # some 200 bytes each

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class WindowDecoder:
    """A tokenizer of transformers that remembers the last `max_cached_windows` that it decoded: text repeats its pairs
    of tokens, and decoding one is most of what a token costs the server."""

    def __init__(self, tokenizer: Any, max_cached_windows: int = MAX_CACHED_WINDOWS) -> None:
        self.special_ids: frozenset[int] = frozenset(tokenizer.all_special_ids)
        self.decode = lru_cache(max_cached_windows)(self._decode)
        self._tokenizer = tokenizer

    def _decode(self, token_ids: tuple[int, ...]) -> str:
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text


class Detokenizer:
    """The text of a growing sequence. Each token costs one window of decoding."""

    def __init__(self, decoder: WindowDecoder, *, skip_special_tokens: bool = True) -> None:
        self._decoder = decoder
        self._skipped = decoder.special_ids if skip_special_tokens else frozenset()
        self._window: list[int] = []  # tokens whose text is out already (the context), then tokens that are held
        self._context_tokens = 0
        self._context_text = ""

    def add(self, token_id: int) -> str:
        """The text that this token makes final; often "", for the first bytes of a character."""
        if token_id in self._skipped:
            return ""
        self._window.append(token_id)
        text = self._decoder.decode(tuple(self._window))
        is_whole = len(text) > len(self._context_text) and not text.endswith(_REPLACEMENT)
        if not is_whole and len(self._window) - self._context_tokens < MAX_HELD_TOKENS:
            return ""
        return self._release(text)

    def finish(self) -> str:
        """What is held, without the bytes of a character that never got whole."""
        return self._release(self._decoder.decode(tuple(self._window)).rstrip(_REPLACEMENT))

    def _release(self, text: str) -> str:
        new = text[len(self._context_text) :]
        del self._window[: self._context_tokens]
        self._context_tokens = len(self._window)
        self._context_text = self._decoder.decode(tuple(self._window))
        return new


class StopStrings:
    """Passes text through up to the first stop string. Holds back what may be the beginning of one, and no more."""

    def __init__(self, stop: tuple[str, ...], *, keep_stop: bool = False) -> None:
        self._stop = stop
        self._keep_stop = keep_stop
        self._held = ""
        self.found: str | None = None

    def add(self, text: str) -> str:
        """The part of the text so far that no stop string can reach any more; sets `found` and ends there at a stop."""
        if not self._stop:
            return text
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
