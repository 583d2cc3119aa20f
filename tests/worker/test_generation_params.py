import json
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import InvalidRequest
from protocol.requests import chat_request, completion_request
from worker.generation_params import (
    DEFAULT_COMPLETION_TOKENS,
    NEUTRAL,
    GenerationParams,
    ModelLimits,
    SamplingDefaults,
    chat_params,
    completion_params,
)

LIMITS = ModelLimits(context_tokens=100, vocab_size=50)
HELLO = [{"role": "user", "content": "hello"}]


def chat(defaults: SamplingDefaults | None = None, **fields: Any) -> GenerationParams:
    return chat_params(chat_request({"messages": HELLO} | fields), defaults or SamplingDefaults(), LIMITS)


def completion(**fields: Any) -> GenerationParams:
    return completion_params(completion_request({"prompt": "hello"} | fields), SamplingDefaults(), LIMITS)


def test_openais_defaults() -> None:
    for params, max_tokens in ((chat(), LIMITS.context_tokens), (completion(), DEFAULT_COMPLETION_TOKENS)):
        sampling = params.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (1.0, 1.0, 0, None)
        assert (sampling.max_tokens, sampling.min_tokens, sampling.logprobs, params.n) == (max_tokens, 0, None, 1)
        assert (params.stop, params.echo, params.skip_special_tokens) == ((), False, True)


def test_everything_that_is_given_is_taken() -> None:
    params = completion(
        temperature=0.5, top_p=0.9, top_k=7, seed=3, max_tokens=9, min_tokens=2, logprobs=4, n=2, stop=["a", "b"],
        stop_token_ids=[5, 6], ignore_eos=True, include_stop_str_in_output=True, skip_special_tokens=False,
        return_token_ids=True, return_tokens_as_token_ids=True,
    )  # fmt: skip
    sampling = params.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.5, 0.9, 7, 3)
    assert (sampling.max_tokens, sampling.min_tokens, sampling.logprobs) == (9, 2, 4)
    assert (sampling.stop_token_ids, sampling.ignore_eos) == ({5, 6}, True)
    assert (params.n, params.stop, params.include_stop, params.skip_special_tokens) == (2, ("a", "b"), True, False)
    assert (params.return_token_ids, params.tokens_as_ids) == (True, True)


def test_one_stop_string_and_vllms_other_word_for_no_top_k() -> None:
    params = chat(stop="end", top_k=-1)
    assert (params.stop, params.sampling.top_k) == (("end",), 0)


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [({}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 5}, 5)],
)
def test_chat_logprobs(fields: dict[str, Any], logprobs: int | None) -> None:
    assert chat(**fields).sampling.logprobs == logprobs


def test_newer_name_of_the_token_limit_wins() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).sampling.max_tokens == 7
    assert chat(max_tokens=5).sampling.max_tokens == 5


BAD = [
    ({"temperature": -0.1}, "temperature", "from 0 to 2, not -0.1"),
    ({"temperature": 2.1}, "temperature", "from 0 to 2, not 2.1"),
    ({"temperature": "hot"}, "temperature", 'a number from 0 to 2, not "hot"'),
    ({"top_p": 0}, "top_p", "over 0, up to 1, not 0"),
    ({"top_p": 1.1}, "top_p", "from 0 to 1, not 1.1"),
    ({"top_k": -2}, "top_k", "from -1"),
    ({"top_k": 1.5}, "top_k", "whole number"),
    ({"seed": "x"}, "seed", "whole number"),
    ({"max_tokens": 0}, "max_tokens", "from 1 to 100, not 0"),
    ({"max_tokens": 101}, "max_tokens", "from 1 to 100, not 101"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "from 0 to 4, not 5"),
    ({"n": 0}, "n", "from 1 to 1024, not 0"),
    ({"n": 1025}, "n", "from 1 to 1024, not 1025"),
    ({"stop": 5}, "stop", "a string or a list of at most 64 strings, not 5"),
    ({"stop": ["a"] * 65}, "stop", "at most 64 strings"),
    ({"stop": ["a", ""]}, "stop", 'non-empty string or a list of them, not ""'),
    ({"stop_token_ids": 5}, "stop_token_ids", "a list of token ids, not 5"),
    ({"stop_token_ids": [1, -1]}, "stop_token_ids", "each from 0 to 49, not -1"),
    ({"stop_token_ids": [50]}, "stop_token_ids", "each from 0 to 49, not 50"),
    ({"ignore_eos": 1}, "ignore_eos", "true or false, not 1"),
    ({"response_format": {"type": "json_object"}}, "response_format", '"json_object" is not supported'),
    ({"response_format": "json"}, "response_format", '"json" is not supported'),
]


@pytest.mark.parametrize(("fields", "param", "says"), BAD)
def test_bad_values_name_parameter_value_and_range(fields: dict[str, Any], param: str, says: str) -> None:
    for parse in (chat, completion):
        with pytest.raises(InvalidRequest) as caught:
            parse(**fields)
        assert caught.value.param == param
        assert f"'{param}'" in caught.value.message
        assert says in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"logprobs": 3}, "logprobs", "true or false, not 3"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20, not 21"),
        ({"top_logprobs": 2}, "top_logprobs", "only when 'logprobs' is true"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "from 1 to 100, not 0"),
        ({"echo": True}, "echo", "not supported"),
    ],
)
def test_bad_values_of_chat(fields: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"logprobs": True}, "logprobs", "whole number from 0 to 20, not true"),
        ({"logprobs": -1}, "logprobs", "from 0 to 20, not -1"),
        ({"echo": True, "logprobs": 1}, "echo", "not supported"),
        ({"prompt": ["a"] * 100, "n": 11}, "n", "from 1 to 10, not 11"),
    ],
)
def test_bad_values_of_completions(fields: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        completion(**fields)
    assert caught.value.param == param
    assert says in caught.value.message


@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 0.5},
        {"frequency_penalty": -1},
        {"repetition_penalty": 1.1},
        {"logit_bias": {"5": 1}},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"best_of": 2},
        {"suffix": "x"},
        {"use_beam_search": True},
        {"audio": {"voice": "x"}},
        {"modalities": ["text", "audio"]},
        {"prompt_logprobs": 1},
        {"structured_outputs": {"regex": "a"}},
        {"min_p": 0.1},
        {"truncate_prompt_tokens": 5},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_known_parameters_without_support_are_refused_by_name(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(InvalidRequest, match=f"'{name}' is not supported by this server") as caught:
        chat(**fields)
    assert caught.value.param == name


@pytest.mark.parametrize("name", NEUTRAL)
def test_values_that_ask_for_nothing_are_fine(name: str) -> None:
    for value in (None, *NEUTRAL[name]):
        assert chat(**{name: value}) == chat()


def test_unknown_fields_and_the_text_format_are_fine() -> None:
    assert chat(own_field={"a": 1}, user="me", response_format={"type": "text"}) == chat()


def test_a_prompt_may_leave_less_than_nobody_asked_for() -> None:
    assert chat().sampling_for(0, prompt_tokens=90).max_tokens == 10
    assert completion().sampling_for(0, prompt_tokens=90).max_tokens == 10
    assert completion().sampling_for(0, prompt_tokens=10).max_tokens == 16


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_asking_for_more_than_is_left_says_all_numbers(name: str) -> None:
    params = chat(**{name: 11})
    assert params.sampling_for(0, prompt_tokens=89).max_tokens == 11
    with pytest.raises(InvalidRequest) as caught:
        params.sampling_for(0, prompt_tokens=90)
    assert caught.value.param == name
    for figure in ("11", "90", "10", "100"):
        assert figure in caught.value.message.replace(",", " ").split() or f"{figure}:" in caught.value.message


def test_choices_of_a_seeded_request_draw_from_seeds_of_their_own() -> None:
    params = chat(seed=5, n=3)
    assert [params.sampling_for(choice, 1).seed for choice in range(3)] == [5, 6, 7]
    assert chat(n=2).sampling_for(1, 1).seed is None


def test_the_models_own_defaults(tmp_path: Path) -> None:
    config = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "max_new_tokens": 30, "eos_token_id": 2}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    defaults = SamplingDefaults.of_model(tmp_path)
    assert defaults == SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, max_tokens=30)
    sampling = chat(defaults).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.6, 0.9, 20, 30)
    assert chat(defaults, temperature=0, top_k=0).sampling.temperature == 0
    assert chat(defaults, temperature=0, top_k=0).sampling.top_k == 0


def test_a_model_without_defaults_has_openais(tmp_path: Path) -> None:
    assert SamplingDefaults.of_model(tmp_path) == SamplingDefaults()
