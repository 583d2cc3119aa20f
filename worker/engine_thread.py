"""The synchronous engine on a thread of its own, its outputs back on the event loop.

Only that thread touches the engine: the loop sends it commands and reads the statistics that it leaves behind. If the
engine raises, the thread ends, every request fails at once and `failure` says why.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Self

from protocol.errors import ApiError, InternalError, Overloaded, Unavailable
from worker.engine import BadPrompt, Engine, EngineStats
from worker.request import EngineRequest, FinishReason, TokenOutput

MAX_SEQUENCES = 4096
RETRY_AFTER_S = 1.0
STEP_PATIENCE_S = 30.0  # for the step under way at shutdown: a prefill takes seconds, a hung device for ever

log = logging.getLogger(__name__)


class OutputStream:
    """The outputs of some sequences, in the order in which they come; ends when all of them are finished.

    Its reader aborts what it no longer wants, and everything in `running` before it lets go of the stream. What the
    reader has not fetched waits here: at most `max_tokens` outputs of each sequence.
    """

    def __init__(self, owner: "EngineThread", request_ids: Sequence[str]) -> None:
        self._owner = owner
        self._running = set(request_ids)
        self._outputs: asyncio.Queue[TokenOutput | Exception] = asyncio.Queue()

    @property
    def running(self) -> frozenset[str]:
        """The sequences whose end has not been read yet."""
        return frozenset(self._running)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TokenOutput:
        """Raises BadPrompt when the engine cannot take a prompt, ApiError when it fails or shuts down."""
        while self._running:
            output = await self._outputs.get()
            if isinstance(output, Exception):
                raise output
            if output.request_id in self._running:  # else it was aborted while this output waited
                return self._seen(output)
        raise StopAsyncIteration

    def abort(self, request_id: str) -> None:
        """End one of the sequences, if it has not ended; no further output of it will come."""
        self._running.discard(request_id)
        self._owner.abort(request_id)

    def put(self, output: TokenOutput | Exception) -> None:
        self._outputs.put_nowait(output)

    def _seen(self, output: TokenOutput) -> TokenOutput:
        if output.finish_reason is FinishReason.ERROR:
            raise InternalError(f"the engine failed on this request: {output.error}")
        if output.finish_reason is not None:
            self._running.discard(output.request_id)
        return output


class EngineThread:
    """Runs `engine`. Create, use and close it on one event loop; at most `max_sequences` are in it at a time."""

    def __init__(self, engine: Engine, max_sequences: int = MAX_SEQUENCES) -> None:
        self._engine = engine
        self._max_sequences = max_sequences
        self._loop = asyncio.get_running_loop()
        self._streams: dict[str, OutputStream] = {}  # by request id, at most max_sequences
        self._commands: SimpleQueue[Callable[[], object] | None] = SimpleQueue()  # a few for each sequence
        self._resets: set[asyncio.Future[bool]] = set()  # one for each client that waits
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self.failure: str | None = None
        self.stats: EngineStats = engine.stats()
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def sequences(self) -> int:
        """Those that somebody waits for."""
        return len(self._streams)

    def check_open(self) -> None:
        """Raises Unavailable when nothing can be generated any more: the engine is dead, or the worker shuts down."""
        if self.failure is not None:
            raise Unavailable(f"the engine is dead: {self.failure}")
        if self._closing:
            raise Unavailable("the worker shuts down")

    def generate(self, requests: Sequence[EngineRequest]) -> OutputStream:
        """Start sequences together. Raises ApiError when the engine is dead, closing or full."""
        self.check_open()
        if self.sequences + len(requests) > self._max_sequences:
            raise Overloaded(
                f"{self.sequences} sequences are in the engine, which takes {self._max_sequences}",
                retry_after_s=RETRY_AFTER_S,
            )
        stream = OutputStream(self, [request.request_id for request in requests])
        self._streams |= {request.request_id: stream for request in requests}
        self._idle.clear()
        self._commands.put(partial(self._add, requests))
        return stream

    def abort(self, request_id: str) -> None:
        """Make the engine forget a sequence, if it still knows it."""
        if self._forget(request_id):
            self._commands.put(partial(self._engine.abort, request_id))

    async def reset_prefix_cache(self) -> bool:
        """Whether the cache could be emptied. Raises ApiError when the engine is dead or closing."""
        self.check_open()
        answer: asyncio.Future[bool] = self._loop.create_future()
        self._resets.add(answer)
        self._commands.put(partial(self._reset, answer))
        return await answer

    async def close(self, grace_s: float) -> None:
        """Take nothing new, let what runs finish for `grace_s`, fail the rest, end the thread after its step."""
        self._closing = True
        try:
            await asyncio.wait_for(self._idle.wait(), grace_s)
        except TimeoutError:
            self._fail_all(Unavailable("the worker shuts down"))
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join, STEP_PATIENCE_S)

    def _forget(self, request_id: str) -> bool:
        known = self._streams.pop(request_id, None) is not None
        if not self._streams:
            self._idle.set()
        return known

    def _deliver(self, outputs: Sequence[TokenOutput]) -> None:
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:  # aborted while this step ran
                continue
            stream.put(output)
            if output.finish_reason is not None:
                self._forget(output.request_id)

    def _refuse(self, request_id: str, error: BadPrompt) -> None:
        if (stream := self._streams.get(request_id)) is not None:
            self._forget(request_id)
            stream.put(error)

    def _answer(self, answer: asyncio.Future[bool], success: bool) -> None:
        self._resets.discard(answer)
        if not answer.done():  # its client may have gone
            answer.set_result(success)

    def _fail_all(self, error: ApiError) -> None:
        for stream in set(self._streams.values()):
            stream.put(error)
        self._streams.clear()
        self._idle.set()
        for answer in self._resets:
            if not answer.done():
                answer.set_exception(error)
        self._resets.clear()

    def _die(self, failure: str) -> None:
        self.failure = failure
        self._fail_all(InternalError(f"the engine is dead: {failure}"))

    # What follows runs on the engine's thread.

    def _run(self) -> None:
        try:
            while self._obey():
                outputs = self._engine.step() if self._engine.has_work else ()
                self.stats = self._engine.stats()
                if outputs:
                    self._post(self._deliver, outputs)
        except Exception as error:
            log.exception("the engine died")
            self._post(self._die, f"{type(error).__name__}: {error}")

    def _obey(self) -> bool:
        """Run the commands that wait, wait for one if there is no work; False when the last one came."""
        try:
            while (command := self._commands.get(block=not self._engine.has_work)) is not None:
                command()
                if self._commands.empty():
                    return True
        except Empty:
            return True
        return False

    def _add(self, requests: Sequence[EngineRequest]) -> None:
        for request in requests:
            try:
                self._engine.add(request)
            except BadPrompt as error:
                self._post(self._refuse, request.request_id, error)

    def _reset(self, answer: asyncio.Future[bool]) -> None:
        self._post(self._answer, answer, self._engine.reset_prefix_cache())

    def _post(self, function: Callable[..., object], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)
