"""Questions between processes: real sockets, both ends in one process here."""

import asyncio
from pathlib import Path

import pytest

from protocol.errors import Conflict
from router.processes.commons import Commons, commons_of
from router.processes.questions import answering, ask


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


async def refuse() -> None:
    raise Conflict("it is here", param="url")


async def test_values_go_there_and_back(path: Path) -> None:
    async with answering(path, {"add": lambda a, b: a + b, "long": lambda: "x" * (1 << 20)}):
        assert await ask(path, "add", (1,), (2,)) == (1, 2)
        assert len(await ask(path, "long")) == 1 << 20


async def test_an_api_error_comes_back_as_it_was(path: Path) -> None:
    async with answering(path, {"refuse": refuse}):
        with pytest.raises(Conflict) as caught:
            await ask(path, "refuse")
    assert (caught.value.message, caught.value.param) == ("it is here", "url")


async def test_nobody_there_and_nobody_any_more(path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        await ask(path, "what")
    async with answering(path, {}):
        pass
    with pytest.raises(OSError):  # noqa: PT011 - refused, or no such file: versions of Python differ
        await ask(path, "what")


async def test_a_process_that_started_again_answers_where_the_one_before_did(path: Path) -> None:
    server = await asyncio.start_unix_server(lambda reader, writer: None, path)
    server.close()  # and leaves its socket file, as a process that is killed does
    async with answering(path, {"who": lambda: "the second"}):
        assert await ask(path, "who") == "the second"


async def test_one_that_is_silent_is_given_up(path: Path) -> None:
    async with answering(path, {"hang": lambda: asyncio.Event().wait()}):
        with pytest.raises(TimeoutError):
            await ask(path, "hang", timeout_s=0.01)


@pytest.mark.parametrize("sent", [b"", b"\x80\x04\x95"])
async def test_half_an_answer_is_none(path: Path, sent: bytes) -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.write(sent)
        writer.close()

    async with await asyncio.start_unix_server(break_off, path):
        with pytest.raises(ConnectionError, match="no whole answer to 'what'"):
            await ask(path, "what")


async def test_all_are_asked_and_who_is_missing_is_said(tmp_path: Path) -> None:
    commons = Commons(tmp_path, 3)
    async with (
        answering(commons.member(0), {"twice": lambda n: 2 * n}),
        answering(commons.member(2), {"twice": lambda n: 3 * n}),
    ):
        replies = await commons.ask_all("twice", 5)
    assert (replies.by_process, replies.unanswered) == ({0: 10, 2: 15}, (1,))


def test_only_its_user_enters_the_commons() -> None:
    with commons_of(2) as commons:
        assert commons.directory.stat().st_mode & 0o777 == 0o700
    assert not commons.directory.exists()
