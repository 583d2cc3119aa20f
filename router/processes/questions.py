"""Questions between the processes of one router, over Unix sockets.

One connection is one question: a name and arguments there, the answer or an ApiError back. Values are pickled, as
`multiprocessing` does it: both ends are ours, and the sockets lie where only their user can reach them.
"""

import asyncio
import inspect
import pickle
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from protocol.errors import ApiError

ANSWER_TIMEOUT_S = 2.0
"""Many times what a busy process takes; a client waits for it where one hangs."""


@asynccontextmanager
async def answering(path: Path, answers: Mapping[str, Callable[..., Any]]) -> AsyncIterator[None]:
    """Answer while the block runs. An answer may be awaitable, and may raise ApiError."""

    async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if question := await reader.read():
                name, *arguments = pickle.loads(question)
                writer.write(pickle.dumps(await _answer(answers[name], arguments)))
        finally:
            writer.close()

    server = await asyncio.start_unix_server(attend, path)
    try:
        yield
    finally:
        server.close()


async def _answer(answer: Callable[..., Any], arguments: list[Any]) -> Any:
    try:
        given = answer(*arguments)
        return await given if inspect.isawaitable(given) else given
    except ApiError as error:
        return error


async def ask(path: Path, name: str, *arguments: object, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
    """The answer of whoever listens at `path`. Raises OSError (TimeoutError included) where none comes, else the
    ApiError that is one."""
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            writer.write(pickle.dumps((name, *arguments)))
            writer.write_eof()
            reply = await reader.read()
        finally:
            writer.close()
    try:
        answer = pickle.loads(reply)
    except (EOFError, pickle.UnpicklingError) as error:  # it ended while it answered
        raise ConnectionError(f"{path}: no whole answer to {name!r}") from error
    if isinstance(answer, ApiError):
        raise answer
    return answer
