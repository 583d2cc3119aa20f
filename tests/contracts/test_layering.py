"""Imports go one way between the rooms, and heavy or I/O libraries stay in the modules that own them.

The walk covers function bodies too, so a late import cannot hide a wrong dependency.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ALLOWED = {
    "protocol": set(),
    "kv_events": set(),
    "policies": set(),
    "worker": {"protocol", "kv_events"},
    "router": {"protocol", "kv_events", "policies"},
    "replay": {"protocol", "kv_events", "policies", "worker", "router"},
}
ROOMS = set(ALLOWED)

CONFINED = {
    "torch": {
        "worker/torch_runner.py",
        "worker/paged_attention.py",
        "worker/sampler.py",
        "worker/model_loader.py",
        "worker/model_recipes.py",
    },
    "zmq": {"kv_events/publisher.py", "kv_events/subscriber.py"},
    "httptools": {"router/http/readers.py"},
    "transformers": {
        "protocol/message_template.py",
        "protocol/prompts.py",
        "protocol/segments.py",
        "worker/torch_runner.py",
        "worker/paged_attention.py",
        "worker/model_loader.py",
        "worker/model_recipes.py",
    },
}

CORES = [  # no sockets, no clocks, no ambient randomness
    "kv_events/codec.py",
    "kv_events/events.py",
    "kv_events/hashing.py",
    "kv_events/tracker.py",
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "policies").glob("*.py")),
    "router/assumed.py",
    "router/chain_tree.py",
    "router/chains.py",
    "router/core.py",
    "router/fleet.py",
    "router/held_blocks.py",
    "router/http/heads.py",
    "router/http/readers.py",
    "router/http/routes.py",
    "router/index.py",
    "router/leases.py",
    "router/load.py",
    "router/processes/merging.py",
    "router/slot_blocks.py",
    "worker/block_manager.py",
    "worker/scheduler.py",
    "worker/engine.py",
]
IO_LIBRARIES = {"aiohttp", "asyncio", "httpx", "socket", "threading", "time", "zmq"}


def sources() -> Iterator[Path]:
    yield ROOT / "warmroute.py"
    for room in sorted(ROOMS):
        yield from sorted((ROOT / room).rglob("*.py"))


def imported_modules(path: Path) -> Iterator[str]:
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            yield ".".join([*base, node.module or ""]).strip(".")


def tops(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported_modules(path)}


@pytest.mark.parametrize("path", list(sources()), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    relative = str(path.relative_to(ROOT))
    room = path.relative_to(ROOT).parts[0]
    used = tops(path)
    if room in ROOMS:
        wrong = (used & ROOMS) - ALLOWED[room] - {room}
        assert not wrong, f"{relative} may not import {sorted(wrong)}"
        assert "warmroute" not in used, f"{relative} imports the front door"
    for library, owners in CONFINED.items():
        assert library not in used or relative in owners, f"{relative} may not import {library}"


@pytest.mark.parametrize("relative", CORES)
def test_cores_do_no_io(relative: str) -> None:
    wrong = tops(ROOT / relative) & IO_LIBRARIES
    assert not wrong, f"{relative} is a core and may not import {sorted(wrong)}"


def test_front_door_imports_no_room_eagerly() -> None:
    """The rooms are mounted by name, so that `warmroute router` runs where torch is not installed."""
    assert not tops(ROOT / "warmroute.py") & ROOMS


def test_walk_sees_imports_inside_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    module = tmp_path / "policies" / "late.py"
    module.parent.mkdir()
    module.write_text("def f():\n    from router.core import RouterCore\n    import kv_events.codec as c\n")
    assert tops(module) & ROOMS == {"router", "kv_events"}
