"""The bundled workload, and how much cache a workload needs."""

from replay.demo.workload import Conversation, Workload, bundled, parse, token_ids, working_set_blocks

SMALL = """
block_size: 16
cache_share: 0.5
answer_tokens: 8
stagger_s: 0
pause: [0, 1]
seed: 3
warm_up: hello
systems: {a: Speak like a pirate.}
conversations:
  - {system: a, turns: [one, two]}
"""


def test_parse():
    assert parse(SMALL) == Workload(
        conversations=(Conversation("Speak like a pirate.", ("one", "two")),),
        block_size=16,
        cache_share=0.5,
        answer_tokens=8,
        stagger_s=0,
        pause=(0, 1),
        seed=3,
        warm_up="hello",
    )


def test_the_bundled_workload_is_what_its_comment_says():
    workload = bundled()
    assert len({conversation.system for conversation in workload.conversations}) == 3
    assert [len(conversation.turns) for conversation in workload.conversations] == [5] * 12
    assert workload.requests == 60
    texts = [text for conversation in workload.conversations for text in conversation.turns]
    assert len(set(texts)) == 60, "nothing is said twice"


def test_prompt_as_the_engine_sees_it(encoder):
    said = [{"role": "user", "content": "hi"}]
    asked = "<|im_start|>user\nhi<|im_end|>\n"
    assert encoder.tokenizer.decode(token_ids(encoder, said, for_answer=False)) == asked
    assert encoder.tokenizer.decode(token_ids(encoder, said)) == asked + "<|im_start|>assistant\n"


def test_working_set_counts_a_shared_system_prompt_once(encoder):
    """Each byte is a token: with what the template adds, 64 tokens of system prompt and 96 of one turn."""
    system, question = "s" * 54, "q" * 74
    one = Workload((Conversation(system, (question + "a",)),), 16, 1.0, 20, 0, (0, 0), 0, "")
    two = Workload((*one.conversations, Conversation(system, (question[1:] + "ab",))), 16, 1.0, 20, 0, (0, 0), 0, "")
    first = 4 + 6 + 2  # blocks of the system prompt, of the turn, of its answer of 20 tokens
    assert working_set_blocks(one, encoder) == first
    assert first < working_set_blocks(two, encoder) < 2 * first
