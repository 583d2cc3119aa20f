from collections.abc import Sequence

import orjson
from hypothesis import given
from hypothesis import strategies as st

from kv_events.hashing import block_hashes
from protocol.chat_reader import ChatReader
from router.text_encoder import chat_text

TURNS = st.lists(st.tuples(st.integers(0, 9), st.lists(st.text(max_size=9), min_size=1, max_size=3)), max_size=6)
"""Each keeps so many messages and appends others."""


@given(turns=TURNS, tools=st.sampled_from([{}, {"tools": [{"type": "function"}]}]))
def test_a_continued_text_is_what_it_would_be_alone(turns: Sequence[tuple[int, list[str]]], tools: object) -> None:
    reader, messages = ChatReader(), []
    for kept, more in turns:
        messages = [*messages[:kept], *({"role": "user", "content": text} for text in more)]
        body = orjson.dumps({"messages": messages, "tools": tools})
        chat = reader.read(body)
        text = chat_text(chat)
        reader.keep(chat, text)
        alone = chat_text(ChatReader().read(body))
        assert text.ends == alone.ends
        assert text.prompt.token_ids == alone.prompt.token_ids
        assert text.prompt.block_hashes(2, 7, block_hashes) == block_hashes(alone.prompt, 2, 7)
