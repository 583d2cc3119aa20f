"""What to send for each request of a trace: the prompt that it holds, or one made of its blocks' names."""

from collections.abc import Callable

import numpy as np

from replay.errors import RequestFailed, UnusableEndpoint
from replay.live.api import Api
from replay.live.client import LoadClient, SendablePrompt
from replay.traces.tokens import TokenExpander
from replay.traces.trace import Chat, Trace, TraceRequest
from replay.traces.words import TextExpander

SAMPLE_WORDS = 100

PromptOf = Callable[[TraceRequest], SendablePrompt]


async def make_prompts(trace: Trace, client: LoadClient, vocabulary: range, seed: int) -> PromptOf:
    """Asks the endpoint once or twice what it makes of such prompts, so that what cannot be is known before the load.

    Raises UnusableEndpoint.
    """
    if client.api is Api.COMPLETIONS:
        return await _completions(trace, client, vocabulary, seed)
    expand = TextExpander(trace.block_tokens, await _tokens_per_word(client), seed).text
    return lambda request: request.prompt if isinstance(request.prompt, str | Chat) else expand(request)


async def _completions(trace: Trace, client: LoadClient, vocabulary: range, seed: int) -> PromptOf:
    if any(isinstance(request.prompt, Chat) for request in trace.requests):
        raise UnusableEndpoint(f"{client.api.path} takes no chats, which this trace has: they go to {Api.CHAT.path}")
    all_texts = all(isinstance(request.prompt, str) for request in trace.requests)
    await _prompt_tokens(client, "Hello" if all_texts else np.array(vocabulary[-1:], dtype=np.uint32))
    expander = TokenExpander(trace, vocabulary, seed)

    def prompt_of(request: TraceRequest) -> SendablePrompt:
        if isinstance(request.prompt, str):
            return request.prompt
        tokens = expander.token_ids(request) if request.prompt is None else request.prompt
        return np.array(tokens, dtype=np.uint32)

    return prompt_of


async def _tokens_per_word(client: LoadClient) -> float:
    """By the difference between two texts, for a chat template adds some tokens to each."""
    expander = TextExpander(1, 1.0)
    few = await _prompt_tokens(client, expander.sample(SAMPLE_WORDS))
    many = await _prompt_tokens(client, expander.sample(2 * SAMPLE_WORDS))
    if many <= few:
        raise UnusableEndpoint(f"{SAMPLE_WORDS} words more are {many - few} tokens more, says the endpoint's usage")
    return (many - few) / SAMPLE_WORDS


async def _prompt_tokens(client: LoadClient, prompt: SendablePrompt) -> int:
    try:
        return (await client.send(client.body(prompt, answer_tokens=1))).usage.prompt_tokens
    except RequestFailed as error:
        raise UnusableEndpoint(str(error)) from error
