"""Baseten's Parquet files, and what is said where they cannot be read."""

import gzip
import sys
from pathlib import Path

import pytest

from replay.traces.errors import FormatError
from replay.traces.reader import read_trace

HASHED = {"prompt": "?", "input_tokens": 150, "total_hashes": [9, 8, 2**63], "block_size": 64}
ROWS = [
    HASHED
    | {"timestamp_start_unix_ms": 1_700_000_000_000, "output_tokens": 6, "provided_session_id": "a"}
    | {"duration_e2e_ms": 500},
    HASHED
    | {"timestamp_start_unix_ms": 1_700_000_002_000, "output_tokens": 8, "provided_session_id": "a"}
    | {"total_hashes": [9, 8, 5, 6], "input_tokens": 256},
]


@pytest.fixture
def parquet(tmp_path: Path):
    """`parquet(rows)` is the path of a file with them."""
    pyarrow = pytest.importorskip("pyarrow", reason="NOT CHECKED on Parquet files: pyarrow is not installed")
    from pyarrow.parquet import write_table

    def parquet(rows: list[dict]) -> Path:
        path = tmp_path / "trace.parquet"
        types = {"total_hashes": pyarrow.list_(pyarrow.uint64())}
        names = rows[0].keys()
        columns = {n: pyarrow.array([row.get(n) for row in rows], type=types.get(n)) for n in names}
        write_table(pyarrow.table(columns), path)
        return path

    return parquet


def test_hashes_beat_the_text(parquet):
    trace = read_trace(parquet(ROWS))
    assert (trace.format, trace.block_tokens, trace.has_prefixes) == ("baseten", 64, True)
    first, second = trace.requests
    assert (first.input_tokens, first.output_tokens, first.hash_ids, first.prompt) == (150, 6, (0, 1, 2), None)
    assert (second.hash_ids, second.arrival_s, second.turn, second.delay_s) == ((0, 1, 3, 4), 2.0, 1, 1.5)


def test_without_hashes_the_text_tells(parquet):
    trace = read_trace(parquet([row | {"total_hashes": None, "prompt": "What floats?"} for row in ROWS]))
    assert [(r.prompt, r.input_tokens) for r in trace.requests] == [("What floats?", 12)] * 2
    assert trace.requests[0].hash_ids == trace.requests[1].hash_ids


def test_gzip_and_directories_work_too(parquet, tmp_path):
    path = parquet(ROWS)
    assert len(read_trace(tmp_path).requests) == 2
    zipped = tmp_path / "zipped"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert read_trace(zipped) == read_trace(path)


def test_a_bad_row_is_told_by_its_number(parquet):
    with pytest.raises(FormatError, match=r"trace\.parquet, item 2: 'output_tokens' is missing"):
        read_trace(parquet([ROWS[0], ROWS[1] | {"output_tokens": None}]))


def test_a_cut_file(parquet):
    path = parquet(ROWS)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(FormatError, match="is not a whole Parquet file"):
        read_trace(path)


def test_without_pyarrow_it_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "trace.parquet"
    path.write_bytes(b"PAR1\n")
    with pytest.raises(FormatError, match=r"pip install 'warmroute\[parquet\]'"):
        read_trace(path)
