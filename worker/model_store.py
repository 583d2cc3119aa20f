"""From a model's name to a directory that holds it: a directory, an alias built on first use, or a hub repository."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

ALIASES = ("smollm2-135m", "tiny-random")
HUB_FILES = ("*.json", "*.jinja", "*.model", "*.txt")
HUB_WEIGHTS = ("*.safetensors",)


class UnknownModel(ValueError):
    """No model of this name. The message says where it was looked for."""


class ModelBuildError(RuntimeError):
    """A model could not be built. The message says at which step and why."""


def resolve(name: str, cache_dir: Path | None = None, *, weights: bool = True) -> Path:
    """The directory of model `name`: an alias, a local directory, or a repository of the Hugging Face hub.

    Aliases are built into `cache_dir`, by default `default_cache_dir()`, with progress on stderr. Without `weights` no
    weights are downloaded. Raises UnknownModel, or ModelBuildError when an alias cannot be built.
    """
    if name in ALIASES:
        return _built(name, cache_dir or default_cache_dir())
    directory = Path(name).expanduser()
    if directory.is_dir():
        if not (directory / "config.json").is_file():
            raise UnknownModel(f"directory {name!r} holds no model: it has no config.json")
        return directory
    return _downloaded(name, HUB_FILES + HUB_WEIGHTS if weights else HUB_FILES)


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/warmroute/models`, by default in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "warmroute" / "models"


def _built(name: str, cache_dir: Path) -> Path:
    """The alias' directory. It appears complete or not at all, also when two workers start at once."""
    target = cache_dir / name
    if target.is_dir():
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(cache_dir / f".{name}.lock"):
        if not target.is_dir():
            for leftover in cache_dir.glob(f".{name}-*"):  # of a builder that was killed: the lock says none runs
                shutil.rmtree(leftover)
            _build(name, target)
    return target


def _build(name: str, target: Path) -> None:
    from worker.model_recipes import RECIPES  # only here: it brings all of torch, and is used once a machine

    recipe = RECIPES[name]
    with TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as workspace, _progress(name, recipe.steps) as step:
        recipe.build(Path(workspace), step).rename(target)


@contextmanager
def _progress(name: str, steps: int) -> Iterator["_Stepper"]:
    """A bar on stderr, gone when done."""
    columns = TextColumn(f"{name}: {{task.description}}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Stepper(bar, steps)


class _Stepper:
    """Call it as each step begins."""

    def __init__(self, bar: Progress, steps: int) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=steps)
        self._begun = 0

    def __call__(self, description: str) -> None:
        self._bar.update(self._task, description=description, completed=self._begun)
        self._begun += 1


def _downloaded(name: str, files: tuple[str, ...]) -> Path:
    try:
        return Path(snapshot_download(name, allow_patterns=list(files)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        aliases = ", ".join(ALIASES)
        raise UnknownModel(
            f"no model {name!r}: it is no directory here, no alias ({aliases}), and the hub says: {reason}"
        ) from error
