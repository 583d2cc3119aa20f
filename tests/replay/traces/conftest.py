"""Where traces are."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def samples() -> Path:
    """A small file by hand for each format."""
    return ROOT / "tests" / "data" / "traces"


@pytest.fixture
def published() -> Path:
    """Real traces beside the checkout, too large for it."""
    folder = ROOT.parent / "shared" / "traces"
    if not folder.is_dir():
        pytest.skip(
            f"NOT CHECKED against published traces: {folder} is absent; docs/replay.md says where they come from"
        )
    return folder
