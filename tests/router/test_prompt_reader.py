import threading
from array import array
from pathlib import Path
from typing import Any

import orjson
import pytest
from transformers import PreTrainedTokenizerFast

from protocol.prompts import Encoding, PromptEncoder
from router.prompt_reader import INLINE_BYTES, PromptReader
from router.records import ModelCard


@pytest.fixture
def tokenizer_path(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> str:
    tokenizer.save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Where each encoding was finished."""
    threads: list[threading.Thread] = []
    begin = PromptEncoder.begin

    def watched(self: PromptEncoder, *arguments: Any) -> Encoding:
        encoding = begin(self, *arguments)

        def finish() -> Any:
            threads.append(threading.current_thread())
            return encoding.finish()

        return Encoding(encoding.new_bytes, finish)

    monkeypatch.setattr(PromptEncoder, "begin", watched)
    return threads


async def test_only_new_text_that_is_long_leaves_the_event_loop(
    tokenizer_path: str, threads: list[threading.Thread]
) -> None:
    reader = PromptReader(tokenizer_path)
    await reader.learn([ModelCard("m")])
    messages = [{"role": "user", "content": "x" * INLINE_BYTES}, {"role": "assistant", "content": "yes"}]
    for more in ([], messages[1:], [{"role": "user", "content": "and " * INLINE_BYTES}]):
        messages = messages + more
        body = orjson.dumps({"model": "m", "messages": messages})
        route = await reader.chat(body, "id")
        assert route.prompt_tokens == len(route.prompts[0]) > INLINE_BYTES
    on_loop = [thread is threading.current_thread() for thread in threads]
    assert on_loop == [False, True, False]


async def test_a_model_without_a_tokenizer_is_placed_by_text_and_says_so(tokenizer_path: str) -> None:
    reader = PromptReader(tokenizer_path)
    await reader.learn([ModelCard("m"), ModelCard("n")])
    body = orjson.dumps({"model": "other", "messages": [{"role": "user", "content": "x"}], "user": "u"})
    route = await reader.chat(body, "id")
    assert (route.session, route.follow_up) == ("u", False)
    assert route.unknown_prompt == "the model 'other' is not known yet"


async def text_of(body: dict[str, Any]) -> bytes:
    [prompt] = (await PromptReader(None).chat(orjson.dumps(body), "id")).prompts
    return bytes(array("I", prompt))


async def test_a_text_begins_as_the_earlier_turn_s_whatever_else_the_body_says() -> None:
    messages = [{"role": "user", "content": "hé" * 100}]
    first = await text_of({"model": "m", "messages": messages})
    later = [*messages, {"role": "assistant", "content": "yes"}]
    second = await text_of({"temperature": 0.5, "messages": later, "stream": True, "model": "m"})
    assert second.startswith(first)
    assert len(second) > len(first)
    assert not (await text_of({"model": "m", "messages": messages, "tools": [{}]})).startswith(first[:8])
