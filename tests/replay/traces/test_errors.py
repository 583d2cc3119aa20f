"""What cannot be read is refused with the file, the line, what is wrong and what is expected."""

import gzip

import pytest

from replay.traces.errors import FormatError
from replay.traces.reader import read_trace
from replay.traces.text import ModelTokens

GOOD = '{"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}\n'


def problem(tmp_path, content: str | bytes, name: str = "t.jsonl") -> str:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FormatError) as error:
        read_trace(path)
    assert isinstance(error.value, ValueError)
    text = str(error.value)
    assert text.startswith(str(path))
    return text.removeprefix(str(path))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", ", line 2: is not JSON ("),
        ("[1]", ", line 2: is a JSON list; expected a JSON object"),
        ('{"timestamp": 1, "output_length": 2}', ", line 2: 'input_length' is missing; expected exactly one of "),
        ('{"input_length": 5, "text_input": "a"}', ", line 2: 'text_input' is 'a'; expected exactly one of "),
        ('{"input_length": 0, "output_length": 2}', ", line 2: 'input_length' is 0; expected a whole number of at lea"),
        ('{"input_length": true, "output_length": 2}', ", line 2: 'input_length' is True; expected a whole number"),
        ('{"input_length": 5, "output_length": -2}', ", line 2: 'output_length' is -2; expected a whole number"),
        ('{"input_length": 5, "output_length": 2.5}', ", line 2: 'output_length' is 2.5; expected a whole number"),
        ('{"input_length": 5}', ", line 2: does not say how long the answer is; expected that, or a default"),
        ('{"input_length": 5, "output_length": 2, "hash_ids": 7}', ", line 2: 'hash_ids' is 7; expected a list of"),
        ('{"input_length": 5, "output_length": 2, "hash_ids": [1.5]}', ", line 2: 'hash_ids' is [1.5]; expected a"),
        ('{"input_length": 5, "output_length": 2, "hash_ids": [1, 2]}', ", line 2: has 2 hashes for 5 tokens; expect"),
        (
            '{"input_length": 5, "output_length": 2, "block_size": 0}',
            ", line 2: 'block_size' is 0; expected a whole num",
        ),
        ('{"input_length": 5, "output_length": 2, "timestamp": "1"}', ", line 2: 'timestamp' is '1'; expected a num"),
        ('{"input_length": 5, "output_length": 2, "session_id": []}', ", line 2: 'session_id' is []; expected a te"),
        ('{"text_input": "", "output_length": 2}', ", line 2: has an empty prompt; expected at least one token"),
        ('{"messages": "a", "output_length": 2}', ", line 2: 'messages' is 'a'; expected a list of objects"),
    ],
)
def test_a_bad_line_of_mooncakes(tmp_path, line, expected):
    assert problem(tmp_path, GOOD + line + "\n").startswith(expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", ": is empty; expected a trace"),
        ("\n \n", ": is empty; expected a trace"),
        (
            '{"what": 1, "ever": 2}\n',
            ", line 1: has fields of no known format: what, ever; expected a trace of one of ",
        ),
        ("a,b\n1,2\n", ", line 2: has fields of no known format: a, b; expected"),
        ('{"timestamp": 0,\n "input_length"}\n', ", line 2: is not JSON ("),
        ('[{"conversations": []}]', ": has no request in it, though it looks like sharegpt"),
        ('[{"conversations": [{"from": "human"}]}]', ", item 1: 'conversations[0].value' is missing; expected a text"),
        ('{"event": {"schema": "v2"}}', ", line 1: 'event.schema' is 'v2'; expected 'dynamo.request.trace.v1'"),
        ('{"block_size": 64, "hash_id_scope": "x", "requests": []}', ", line 1: 'hash_id_scope' is 'x'; expected 'lo"),
        ('{"block_size": 64, "requests": [{"in": 1}]}', ", line 1: 'requests[0].out' is missing; expected a whole n"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,5,6\n", ", line 2: 'TIMESTAMP' is 'noon'; expected a date"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-01,5\n", ", line 2: does not have the header's 3 columns"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-01,x,6\n", ", line 2: 'ContextTokens' is 'x'; expected a"),
        (b"\x89PNG\r\n\x1a\n\xff", ": is neither JSON nor CSV: it is not UTF-8 text"),
        (gzip.compress(GOOD.encode() * 99)[:-9], ": is not a whole gzip file: "),
    ],
)
def test_a_bad_file(tmp_path, content, expected):
    assert problem(tmp_path, content).startswith(expected)


def test_a_directory_names_the_file_in_it(tmp_path):
    (tmp_path / "a.json").write_text('{"block_size": 64, "requests": []}')
    (tmp_path / "b.json").write_text('{"block_size": 0, "requests": []}')
    with pytest.raises(FormatError, match=r"b\.json, line 1: 'block_size' is 0"):
        read_trace(tmp_path)


def test_blocks_of_two_sizes_do_not_go_together(tmp_path):
    session = '{"block_size": %d, "requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": [1]}]}\n'
    text = problem(tmp_path, session % 64 + session % 32)
    assert text == ", line 2: has blocks of 32 tokens; expected 64, as in the rows before"


def test_a_prompt_that_the_model_refuses(tmp_path, encoder):
    path = tmp_path / "t.jsonl"
    path.write_text('{"messages": [{"role": "user"}, {"content": 1}], "output_length": 1}\n')
    with pytest.raises(FormatError, match=r"t\.jsonl, line 1: has a prompt without tokens: "):
        read_trace(path, text=ModelTokens(encoder))
