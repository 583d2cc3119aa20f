"""What clients get for what they ask, streamed and at once, over a real socket."""

import json
from typing import Any

import pytest

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


def chunks(events: list[str]) -> list[dict[str, Any]]:
    """Of a stream that ended as it should."""
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


async def test_chat_answers_as_openai_does(serve: Any) -> None:
    async with serve("hello there") as worker:
        status, answer = await worker.post(CHAT, model="scripted", messages=HELLO)
    assert status == 200
    assert answer["id"].startswith("chatcmpl-")
    assert (answer["object"], answer["model"]) == ("chat.completion", "scripted")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello there"},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    prompt_tokens = len(worker.tokenizer.apply_chat_template(HELLO, add_generation_prompt=True, return_dict=False))
    assert answer["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len("hello there") + 1,  # the end token counts
        "total_tokens": prompt_tokens + len("hello there") + 1,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_completions_answer_as_openai_does(serve: Any) -> None:
    async with serve("hello there") as worker:
        status, answer = await worker.post(COMPLETIONS, prompt="say", max_tokens=5)
    assert status == 200
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "hello", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
    assert answer["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("text", ["hello there", "Grüße, 世界 🌍", "", "a" * 300])
async def test_streamed_text_is_the_text_that_comes_at_once(serve: Any, text: str) -> None:
    async with serve(text) as worker:
        _, chat = await worker.post(CHAT, messages=HELLO)
        chat_chunks = chunks(await worker.events(CHAT, messages=HELLO))
        _, completion = await worker.post(COMPLETIONS, prompt="x", max_tokens=400)
        completion_chunks = chunks(await worker.events(COMPLETIONS, prompt="x", max_tokens=400))
    assert chat["choices"][0]["message"]["content"] == text
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chat_chunks) == text
    assert completion["choices"][0]["text"] == text
    assert "".join(chunk["choices"][0]["text"] for chunk in completion_chunks) == text


async def test_chat_chunks_begin_with_the_role_and_end_with_the_usage(serve: Any) -> None:
    async with serve("hi") as worker:
        _, whole = await worker.post(CHAT, messages=HELLO)
        first, *middle, last, usage = chunks(
            await worker.events(CHAT, messages=HELLO, stream_options={"include_usage": True})
        )
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["delta"]["content"] for chunk in middle] == ["h", "i"]
    assert {chunk["choices"][0]["finish_reason"] for chunk in (first, *middle)} == {None}
    assert last["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert not any("usage" in chunk for chunk in (first, *middle, last))
    assert len({chunk["id"] for chunk in (first, *middle, last, usage)}) == 1


async def test_no_usage_unless_asked_for(serve: Any) -> None:
    async with serve("hi") as worker:
        assert not any("usage" in chunk for chunk in chunks(await worker.events(COMPLETIONS, prompt="x")))


async def test_cached_tokens_are_reported(serve: Any) -> None:
    prompt = "a prompt of two blocks, and a bit."
    async with serve() as worker:
        for cached in (0, 32):
            _, answer = await worker.post(COMPLETIONS, prompt=prompt)
            assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}
        *_, usage = chunks(await worker.events(COMPLETIONS, prompt=prompt, stream_options={"include_usage": True}))
        assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}


async def test_cache_salts_separate_caches(serve: Any) -> None:
    async with serve() as worker:
        reported = [
            (await worker.post(COMPLETIONS, prompt="x" * 20, cache_salt=salt))[1]["usage"]["prompt_tokens_details"]
            for salt in ("a", "b", "a")
        ]
    assert [details["cached_tokens"] for details in reported] == [0, 0, 16]


async def test_n_choices_and_their_usage(serve: Any) -> None:
    async with serve("hi") as worker:
        _, answer = await worker.post(CHAT, messages=HELLO, n=3)
        streamed = chunks(await worker.events(CHAT, messages=HELLO, n=3))
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in answer["choices"]} == {"hi"}
    assert answer["usage"]["completion_tokens"] == 9
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 9
    for index in range(3):
        own = [chunk["choices"][0] for chunk in streamed if chunk["choices"][0]["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert "".join(choice["delta"]["content"] for choice in own) == "hi"
        assert own[-1]["finish_reason"] == "stop"


async def test_what_choices_share_with_each_other_does_not_count_as_cached(serve: Any) -> None:
    async with serve("hi") as worker:
        for cached in (0, 64):
            _, answer = await worker.post(COMPLETIONS, prompt=["x" * 40, "y" * 40], n=3)
            assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}


async def test_several_prompts_of_text_and_of_token_ids(serve: Any) -> None:
    async with serve("hi") as worker:
        ids = worker.tokenizer.encode("other", add_special_tokens=False)
        _, answer = await worker.post(COMPLETIONS, prompt=["one", ids], n=2, echo=True)
        _, one = await worker.post(COMPLETIONS, prompt=ids)
    assert [choice["text"] for choice in answer["choices"]] == ["onehi", "onehi", "otherhi", "otherhi"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == len(["<s>", "o", "n", "e"]) + len("other")
    assert one["choices"][0]["text"] == "hi"


async def test_stop_strings_end_the_text_before_them_and_the_sequence_with_it(serve: Any) -> None:
    async with serve("one two three " * 10) as worker:
        _, answer = await worker.post(COMPLETIONS, prompt="x", stop=["three", "never"], max_tokens=100)
        streamed = chunks(await worker.events(COMPLETIONS, prompt="x", stop="three", max_tokens=100))
        _, kept = await worker.post(
            COMPLETIONS, prompt="x", stop="two", max_tokens=100, include_stop_str_in_output=True
        )
        await worker.until_idle()
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("one two ", "stop", "three")
    assert answer["usage"]["completion_tokens"] == len("one two three")
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == "one two "
    assert streamed[-1]["choices"][0]["finish_reason"] == "stop"
    assert kept["choices"][0]["text"] == "one two"


async def test_stop_strings_wait_for_min_tokens(serve: Any) -> None:
    async with serve("abab!") as worker:
        _, answer = await worker.post(COMPLETIONS, prompt="x", stop="b", min_tokens=3)
    assert answer["choices"][0]["text"] == "aba"


async def test_stop_token_ids_are_named_as_the_reason(serve: Any) -> None:
    async with serve("abc") as worker:
        (b,) = worker.tokenizer.encode("b", add_special_tokens=False)
        _, answer = await worker.post(COMPLETIONS, prompt="x", stop_token_ids=[b])
        _, kept = await worker.post(COMPLETIONS, prompt="x", stop_token_ids=[b], include_stop_str_in_output=True)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("a", "stop", b)
    assert kept["choices"][0]["text"] == "ab"


async def test_the_beginning_of_a_stop_string_is_text_when_nothing_follows(serve: Any) -> None:
    async with serve("one tw") as worker:
        _, answer = await worker.post(COMPLETIONS, prompt="x", stop="two")
        streamed = chunks(await worker.events(COMPLETIONS, prompt="x", stop="two"))
    assert answer["choices"][0]["text"] == "one tw"
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == "one tw"


async def test_chat_logprobs(serve: Any) -> None:
    async with serve("é") as worker:
        _, answer = await worker.post(CHAT, messages=HELLO, logprobs=True, top_logprobs=2, max_tokens=2)
        streamed = chunks(await worker.events(CHAT, messages=HELLO, logprobs=True, top_logprobs=2, max_tokens=2))
    content = answer["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == [-0.5, -0.5]
    assert [[each["logprob"] for each in entry["top_logprobs"]] for entry in content] == [[-0.5, -1.5]] * 2
    for entry in content:
        assert entry["bytes"] == list(entry["token"].encode())
    in_chunks = [chunk["choices"][0]["logprobs"] for chunk in streamed]
    assert [entry for logprobs in in_chunks if logprobs for entry in logprobs["content"]] == content


async def test_completion_logprobs(serve: Any) -> None:
    async with serve("abc") as worker:
        _, answer = await worker.post(COMPLETIONS, prompt="x", logprobs=1, max_tokens=3)
        streamed = chunks(await worker.events(COMPLETIONS, prompt="x", logprobs=1, max_tokens=3))
        _, ids = await worker.post(COMPLETIONS, prompt="x", logprobs=0, max_tokens=1, return_tokens_as_token_ids=True)
        (a,) = worker.tokenizer.encode("a", add_special_tokens=False)
    assert answer["choices"][0]["logprobs"] == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "tokens": ["a", "b", "c"],
        "top_logprobs": [{"a": -0.5}, {"b": -0.5}, {"c": -0.5}],
    }
    offsets = [offset for chunk in streamed for offset in chunk["choices"][0]["logprobs"]["text_offset"]]
    assert offsets == [0, 1, 2]
    assert ids["choices"][0]["logprobs"]["tokens"] == [f"token_id:{a}"]


async def test_token_ids_are_returned_when_asked_for(serve: Any) -> None:
    async with serve("ab") as worker:
        said = worker.tokenizer.encode("ab", add_special_tokens=False)
        prompt = worker.tokenizer.encode("xyz")
        _, completion = await worker.post(COMPLETIONS, prompt="xyz", max_tokens=2, return_token_ids=True)
        streamed = chunks(await worker.events(COMPLETIONS, prompt="xyz", max_tokens=2, return_token_ids=True))
        _, chat = await worker.post(CHAT, messages=HELLO, max_tokens=2, return_token_ids=True)
        first, *_ = chunks(await worker.events(CHAT, messages=HELLO, max_tokens=2, return_token_ids=True))
    assert completion["choices"][0]["token_ids"] == said
    assert completion["choices"][0]["prompt_token_ids"] == prompt
    assert [token for chunk in streamed for token in chunk["choices"][0]["token_ids"]] == said
    assert [chunk["choices"][0].get("prompt_token_ids") for chunk in streamed] == [prompt, None]
    assert chat["choices"][0]["token_ids"] == said
    assert chat["prompt_token_ids"] == first["prompt_token_ids"]


async def test_the_clients_request_id_is_part_of_the_answers(serve: Any) -> None:
    async with (
        serve() as worker,
        worker.client.post(COMPLETIONS, json={"prompt": "x"}, headers={"X-Request-Id": "mine-7"}) as response,
    ):
        assert (await response.json())["id"] == "cmpl-mine-7"
