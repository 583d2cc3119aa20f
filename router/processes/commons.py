"""What the processes of one router share: a directory that only their user can enter, with sockets and the load."""

import asyncio
import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, NamedTuple, TypeVar

from filelock import FileLock

from router.load import LoadTable
from router.processes.questions import ask
from router.records import WorkerReport

IN_MEMORY = Path("/dev/shm")
"""Nothing here is ever written to a disk, which mapped memory would have to wait for."""

T = TypeVar("T")


class Sight(NamedTuple):
    """What one process sees of the fleet: the workers, and why a model's prompts are known as text only."""

    workers: list[WorkerReport]
    problems: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Replies(Generic[T]):
    """By number of the process; `unanswered` are those that did not answer in time, or are just being started."""

    by_process: Mapping[int, T]
    unanswered: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Commons:
    directory: Path
    processes: int

    @property
    def supervisor(self) -> Path:
        """The socket where the supervisor answers."""
        return self.directory / "supervisor"

    def member(self, number: int) -> Path:
        """The socket where process `number` answers."""
        return self.directory / f"process-{number}"

    def loads(self, process: int) -> LoadTable:
        """The load of all, of which `process` writes its own. The lock is free again when its holder dies."""
        with (self.directory / "load").open("r+b") as file:
            cells = memoryview(mmap.mmap(file.fileno(), 0))
        lock = FileLock(self.directory / "load.lock")
        return LoadTable(cells, processes=self.processes, process=process, lock=lock)

    async def ask_all(self, name: str, *arguments: object) -> Replies[Any]:
        """Of every process, whoever asks included. Raises ApiError if that is an answer."""
        questions = (ask(self.member(number), name, *arguments) for number in range(self.processes))
        results = dict(enumerate(await asyncio.gather(*questions, return_exceptions=True)))
        for result in results.values():
            if isinstance(result, BaseException) and not isinstance(result, OSError):
                raise result
        unanswered = tuple(number for number, result in results.items() if isinstance(result, OSError))
        return Replies({n: result for n, result in results.items() if n not in unanswered}, unanswered)


@contextmanager
def commons_of(processes: int) -> Iterator[Commons]:
    """A directory for them, as long as the block runs."""
    with TemporaryDirectory(prefix="warmroute-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as directory:
        commons = Commons(Path(directory), processes)
        (commons.directory / "load").write_bytes(bytes(LoadTable.size_bytes(processes)))
        yield commons
