import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from protocol.conversation import UnsupportedContent
from protocol.errors import InvalidRequest
from protocol.prompts import PromptEncoder
from protocol.requests import ChatRequest, chat_request, completion_request

VLLM = json.loads((Path(__file__).parents[1] / "data" / "vllm_chat_prompts.json").read_text())
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße, 世界 🌍!"}]


def chat(**fields: Any) -> ChatRequest:
    return chat_request({"messages": CHAT} | fields)


def refused(encoder: PromptEncoder, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        encoder.encode(chat(**fields))
    return caught.value


@pytest.mark.parametrize("case", range(len(VLLM["cases"])))
@pytest.mark.parametrize("template", VLLM["templates"], ids=lambda each: str(VLLM["templates"].index(each)))
def test_renders_what_vllm_renders(tokenizer: PreTrainedTokenizerFast, template: dict[str, Any], case: int) -> None:
    tokenizer.chat_template = template["template"]
    assert PromptEncoder(tokenizer).render(chat_request(VLLM["cases"][case])) == template["rendered"][case]


@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_chat_is_what_the_tokenizers_own_template_gives(
    encoder: PromptEncoder, tokenizer: PreTrainedTokenizerFast, add_generation_prompt: bool
) -> None:
    expected = tokenizer.apply_chat_template(CHAT, add_generation_prompt=add_generation_prompt, return_dict=False)
    assert encoder.encode(chat(add_generation_prompt=add_generation_prompt)) == (tuple(expected),)


def test_a_longer_conversation_starts_with_the_tokens_of_the_shorter(encoder: PromptEncoder) -> None:
    (first,) = encoder.encode(chat())
    answered = [*CHAT, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "more"}]
    (second,) = encoder.encode(chat(messages=answered))
    assert second[: len(first)] == first


def test_special_tokens_are_the_templates_in_chat_and_the_tokenizers_in_completions(encoder: PromptEncoder) -> None:
    bos = encoder.tokenizer.bos_token_id
    text = completion_request({"prompt": "hi"})
    (chatted,), (completed,) = encoder.encode(chat()), encoder.encode(text)
    assert bos not in chatted
    assert completed == (bos, *encoder.tokenizer.encode("hi", add_special_tokens=False))


def test_add_special_tokens_overrides_both(encoder: PromptEncoder) -> None:
    bos = encoder.tokenizer.bos_token_id
    (chatted,) = encoder.encode(chat(add_special_tokens=True))
    (completed,) = encoder.encode(completion_request({"prompt": "hi", "add_special_tokens": False}))
    assert chatted[0] == bos
    assert bos not in completed


def test_every_prompt_is_encoded_and_token_ids_stay_as_they_are(encoder: PromptEncoder) -> None:
    ids = encoder.encode(completion_request({"prompt": ["hi", [5, 6, 7]], "n": 3}))
    assert ids == (tuple(encoder.tokenizer.encode("hi")), (5, 6, 7))


def test_template_arguments_reach_the_template(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = "{{ style }} {{ documents[0].text }} {{ reasoning_effort }} {{ enable_thinking }}"
    text = PromptEncoder(tokenizer).render(
        chat(
            chat_template_kwargs={"style": "formal"},
            documents=[{"text": "doc"}],
            reasoning_effort="none",
        )
    )
    assert text == "formal doc none False"


def test_the_template_for_tools_is_used_when_there_are_tools(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = {"default": "plain", "tool_use": "{{ tools[0].function.name }}"}
    encoder = PromptEncoder(tokenizer)
    assert encoder.render(chat()) == "plain"
    assert encoder.render(chat(tools=[{"type": "function", "function": {"name": "look_up"}}])) == "look_up"


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"chat_template": "{{ 1 }}"}, "chat_template", "not accepted from requests"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs", "an object, not a list"),
        ({"chat_template_kwargs": {"tokenize": True, "conversation": []}}, "chat_template_kwargs", "conversation, tok"),
        ({"add_generation_prompt": "yes"}, "add_generation_prompt", 'true or false, not "yes"'),
        ({"add_special_tokens": 1}, "add_special_tokens", "true or false, not 1"),
        ({"continue_final_message": True}, "messages", "not compatible"),
        ({"tools": "f"}, "tools", "list"),
    ],
)
def test_bad_template_input_is_refused_by_name(
    encoder: PromptEncoder, fields: dict[str, Any], param: str, says: str
) -> None:
    error = refused(encoder, **fields)
    assert error.param == param
    assert says in error.message


@pytest.mark.parametrize("template", ["{{ raise_exception('no system role') }}", "{{ messages[9].content }}", "{%"])
def test_whatever_a_template_raises_is_the_clients_error(tokenizer: PreTrainedTokenizerFast, template: str) -> None:
    tokenizer.chat_template = template
    assert "the chat template refuses" in refused(PromptEncoder(tokenizer)).message


def test_a_model_without_a_template_says_what_to_use(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = None
    assert "/v1/completions" in refused(PromptEncoder(tokenizer)).message


def test_images_are_told_apart_from_mistakes(encoder: PromptEncoder) -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]
    with pytest.raises(UnsupportedContent):
        encoder.encode(chat(messages=image))


def test_load_from_a_directory(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    assert PromptEncoder.load(str(tmp_path)).encode(chat()) == PromptEncoder(tokenizer).encode(chat())


def test_load_says_which_place_has_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no tokenizer can be loaded from") as caught:
        PromptEncoder.load(str(tmp_path))
    assert str(tmp_path) in str(caught.value)
