"""What a request asks of generation, read from its OpenAI and vLLM fields.

Ranges are vLLM's (vllm/sampling_params.py). A parameter that vLLM knows and this worker does not support is refused
where its value would make a difference; a field that nobody knows is ignored, as vLLM does.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from protocol.errors import InvalidRequest
from protocol.fields import boolean, integer, number, shown, wrong_value
from protocol.requests import ChatRequest, CompletionRequest
from worker.request import SamplingParams

DEFAULT_COMPLETION_TOKENS = 16  # of /v1/completions, OpenAI's; chat has no limit but the context
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_SEQUENCES = 1024  # of one request: its prompts times n
INT64_MAX = 2**63 - 1

NEUTRAL: dict[str, tuple[object, ...]] = {
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "kv_transfer_params": ({},),
    "logit_bias": ({},),
    "logprob_token_ids": ([],),
    "min_p": (0,),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "priority": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "repetition_detection": (),
    "repetition_penalty": (1,),
    "stream_interval": (1,),
    "structured_outputs": (),
    "suffix": ("",),
    "thinking_token_budget": (-1,),
    "tool_choice": ("none", "auto"),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "watermarking": (False,),
    "web_search_options": (),
}
"""Known and not supported parameters, and the values beside null that ask for nothing."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a model's own generation_config.json says where a request says nothing, as vLLM takes it by default."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int | None = None

    @classmethod
    def of_model(cls, model_dir: Path) -> "SamplingDefaults":
        """Without such a file: OpenAI's defaults."""
        path = model_dir / "generation_config.json"
        config = json.loads(path.read_text()) if path.is_file() else {}
        names = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_new_tokens": "max_tokens"}
        return cls(**{ours: config[theirs] for theirs, ours in names.items() if config.get(theirs) is not None})


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What no request can go beyond. `context_tokens` counts prompt and answer together."""

    context_tokens: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """What a request wants of each of its choices. `max_tokens` of `sampling` is a ceiling: a prompt may leave less."""

    n: int
    sampling: SamplingParams
    limit_asked: str | None  # the field that set `sampling.max_tokens`; None: nobody did, whatever fits is right
    stop: tuple[str, ...]
    include_stop: bool
    skip_special_tokens: bool
    echo: bool
    return_token_ids: bool
    tokens_as_ids: bool
    context_tokens: int

    def sampling_for(self, choice: int, prompt_tokens: int) -> SamplingParams:
        """For the choice of that index after a prompt of `prompt_tokens`; InvalidRequest when more was asked than fits.

        Choices of a seeded request draw from seed, seed + 1, ..., as vLLM's do: each is repeatable, no two are alike.
        """
        room, asked, seed = self.context_tokens - prompt_tokens, self.sampling.max_tokens, self.sampling.seed
        if self.limit_asked is not None and 0 < room < asked:  # of a prompt that leaves no room the engine complains
            raise InvalidRequest(
                f"'{self.limit_asked}' is {asked}, but a prompt of {prompt_tokens} tokens leaves room for {room}: "
                f"this model's context is {self.context_tokens} tokens",
                param=self.limit_asked,
            )
        return replace(self.sampling, max_tokens=min(asked, room), seed=None if seed is None else seed + choice)


def chat_params(request: ChatRequest, defaults: SamplingDefaults, limits: ModelLimits) -> GenerationParams:
    """Raises InvalidRequest naming the parameter that is wrong or not supported."""
    fields = request.fields
    logprobs = boolean(fields, "logprobs")
    top_logprobs = integer(fields, "top_logprobs", 0, MAX_LOGPROBS) or 0
    if top_logprobs and not logprobs:
        raise InvalidRequest("'top_logprobs' is allowed only when 'logprobs' is true", param="top_logprobs")
    if boolean(fields, "echo"):
        raise _unsupported("echo", True)
    limit_field = "max_tokens" if fields.get("max_completion_tokens") is None else "max_completion_tokens"
    max_tokens = integer(fields, limit_field, 1, limits.context_tokens)
    return _params(
        fields,
        defaults,
        limits,
        prompts=1,
        logprobs=top_logprobs if logprobs else None,
        limit_asked=None if max_tokens is None else limit_field,
        max_tokens=max_tokens or defaults.max_tokens or limits.context_tokens,
    )


def completion_params(request: CompletionRequest, defaults: SamplingDefaults, limits: ModelLimits) -> GenerationParams:
    """Raises InvalidRequest naming the parameter that is wrong or not supported."""
    fields = request.fields
    logprobs = integer(fields, "logprobs", 0, MAX_LOGPROBS)
    if boolean(fields, "echo") and logprobs is not None:
        raise InvalidRequest("'echo' with 'logprobs' is not supported: prompts have no logprobs here", param="echo")
    max_tokens = integer(fields, "max_tokens", 1, limits.context_tokens)
    return _params(
        fields,
        defaults,
        limits,
        prompts=len(request.prompts),
        logprobs=logprobs,
        limit_asked=None if max_tokens is None else "max_tokens",
        max_tokens=max_tokens or DEFAULT_COMPLETION_TOKENS,
    )


def _params(
    fields: Mapping[str, Any],
    defaults: SamplingDefaults,
    limits: ModelLimits,
    *,
    prompts: int,
    logprobs: int | None,
    limit_asked: str | None,
    max_tokens: int,
) -> GenerationParams:
    _check_support(fields)
    return GenerationParams(
        n=integer(fields, "n", 1, MAX_SEQUENCES // prompts) or 1,
        sampling=_sampling(fields, defaults, logprobs, max_tokens, limits.vocab_size),
        limit_asked=limit_asked,
        stop=_stop_strings(fields.get("stop")),
        include_stop=boolean(fields, "include_stop_str_in_output"),
        skip_special_tokens=boolean(fields, "skip_special_tokens", True),
        echo=boolean(fields, "echo"),
        return_token_ids=boolean(fields, "return_token_ids"),
        tokens_as_ids=boolean(fields, "return_tokens_as_token_ids"),
        context_tokens=limits.context_tokens,
    )


def _sampling(
    fields: Mapping[str, Any], defaults: SamplingDefaults, logprobs: int | None, max_tokens: int, vocab_size: int
) -> SamplingParams:
    temperature = number(fields, "temperature", 0, 2)
    top_p = number(fields, "top_p", 0, 1)
    if top_p == 0:
        raise wrong_value("top_p", "a number over 0, up to 1", top_p)
    top_k = integer(fields, "top_k", -1, INT64_MAX)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=defaults.temperature if temperature is None else temperature,
        top_p=defaults.top_p if top_p is None else top_p,
        top_k=max(0, defaults.top_k if top_k is None else top_k),  # -1 is vLLM's other word for "off"
        seed=integer(fields, "seed", -INT64_MAX, INT64_MAX - MAX_SEQUENCES),
        stop_token_ids=_stop_token_ids(fields.get("stop_token_ids"), vocab_size),
        ignore_eos=boolean(fields, "ignore_eos"),
        min_tokens=integer(fields, "min_tokens", 0, max_tokens) or 0,
        logprobs=logprobs,
    )


def _stop_strings(stop: object) -> tuple[str, ...]:
    if stop is None:
        return ()
    strings = [stop] if isinstance(stop, str) else stop
    if not isinstance(strings, list) or len(strings) > MAX_STOP_STRINGS:
        raise wrong_value("stop", f"a string or a list of at most {MAX_STOP_STRINGS} strings", stop)
    for string in strings:
        if not isinstance(string, str) or not string:
            raise wrong_value("stop", "a non-empty string or a list of them", string)
    return tuple(strings)


def _stop_token_ids(token_ids: object, vocab_size: int) -> frozenset[int]:
    if token_ids is None:
        return frozenset()
    if not isinstance(token_ids, list):
        raise wrong_value("stop_token_ids", "a list of token ids", token_ids)
    for token_id in token_ids:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise wrong_value("stop_token_ids", f"a list of token ids, each from 0 to {vocab_size - 1}", token_id)
    return frozenset(token_ids)


def _check_support(fields: Mapping[str, Any]) -> None:
    for name, neutral in NEUTRAL.items():
        if fields.get(name) is not None and fields[name] not in neutral:
            raise _unsupported(name, fields[name])
    response_format = fields.get("response_format")
    if response_format is not None and response_format != {"type": "text"}:
        kind = response_format.get("type") if isinstance(response_format, dict) else response_format
        raise InvalidRequest(
            f"'response_format' of type {shown(kind)} is not supported by this server: only text is",
            param="response_format",
        )


def _unsupported(name: str, value: object) -> InvalidRequest:
    allowed = [shown(each) for each in NEUTRAL.get(name, ())]
    only = f"only {' or '.join(allowed)} is accepted" if allowed else "leave it out"
    return InvalidRequest(f"'{name}' is not supported by this server (it is {shown(value)}): {only}", param=name)
