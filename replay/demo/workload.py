"""The demo's conversations: what users say to which assistant, and how much cache that needs."""

from dataclasses import dataclass
from importlib.resources import files
from math import ceil
from typing import Any, TypeAlias

import orjson
import yaml

from protocol.prompts import PromptEncoder
from protocol.requests import parse_chat
from replay.bounds import InfiniteCache

Message: TypeAlias = dict[str, str]


@dataclass(frozen=True, slots=True)
class Conversation:
    system: str
    turns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """See workloads/demo.yaml, which explains each of these and why it is what it is."""

    conversations: tuple[Conversation, ...]
    block_size: int
    cache_share: float
    answer_tokens: int
    stagger_s: float
    pause: tuple[float, float]
    seed: int
    warm_up: str

    @property
    def requests(self) -> int:
        return sum(len(conversation.turns) for conversation in self.conversations)


def bundled() -> Workload:
    return parse((files("replay") / "workloads" / "demo.yaml").read_text())


def parse(text: str) -> Workload:
    fields: dict[str, Any] = yaml.safe_load(text)
    systems = fields.pop("systems")
    conversations = tuple(
        Conversation(systems[each["system"]], tuple(each["turns"])) for each in fields.pop("conversations")
    )
    return Workload(conversations=conversations, pause=tuple(fields.pop("pause")), **fields)


def token_ids(encoder: PromptEncoder, messages: list[Message], *, for_answer: bool = True) -> tuple[int, ...]:
    """The messages as the engine sees them; `for_answer`: with the words that make the assistant speak next."""
    request = parse_chat(orjson.dumps({"messages": messages, "add_generation_prompt": for_answer}))
    [tokens] = encoder.encode(request)
    return tokens


def working_set_blocks(workload: Workload, encoder: PromptEncoder) -> int:
    """Blocks that hold every conversation to its end once, shared prefixes once for all."""
    cache = InfiniteCache(workload.block_size)
    answers = 0
    for conversation in workload.conversations:
        messages = [{"role": "system", "content": conversation.system}]
        for text in conversation.turns:
            messages += [{"role": "user", "content": text}, {"role": "assistant", "content": ""}]
        cache.store(token_ids(encoder, messages, for_answer=False))
        answers += ceil(len(conversation.turns) * workload.answer_tokens / workload.block_size)
    return cache.blocks + answers
