"""The demo itself: starts workers and a router, lets the users talk under each policy, and compares."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from random import Random

import aiohttp
import orjson
from rich.progress import Progress

from protocol.prompts import PromptEncoder
from replay.bounds import InfiniteCache
from replay.client import Answer, ChatClient, open_session
from replay.demo.report import DemoReport, policy_report
from replay.demo.workload import Conversation, Message, Workload, token_ids, working_set_blocks
from replay.errors import RequestFailed
from replay.processes import Processes, cores_apart, free_ports

WORKERS = 2
POLICIES = ("round_robin", "expected_work")
WORKER_READY_TIMEOUT_S = 180.0
ROUTER_READY_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer: turn `turn` of conversation `conversation`, both counted from 0."""

    conversation: int
    turn: int
    messages: list[Message]
    answer: Answer


async def run_demo(model: str, workload: Workload, encoder: PromptEncoder, progress: Progress) -> DemoReport:
    """Raises ChildFailed or RequestFailed; nothing that it started runs on after it."""
    async with Processes() as processes, open_session() as session:
        demo = Demo(model, workload, encoder, progress, processes, session)
        return await processes.guard(demo.compare())


class Demo:
    """One run, on children and through a session that its caller ends."""

    def __init__(
        self,
        model: str,
        workload: Workload,
        encoder: PromptEncoder,
        progress: Progress,
        processes: Processes,
        session: aiohttp.ClientSession,
    ) -> None:
        self._model, self._workload, self._encoder, self._progress = model, workload, encoder, progress
        self._processes, self._session = processes, session
        self._working_set_blocks = working_set_blocks(workload, encoder)
        self._blocks_per_worker = ceil(workload.cache_share * self._working_set_blocks)

    async def compare(self) -> DemoReport:
        workers = await self._start_workers()
        runs = {policy: await self._run(policy, workers) for policy in POLICIES}
        outputs = [outputs_of(exchanges) for exchanges in runs.values()]
        return DemoReport(
            model=self._model,
            workers=WORKERS,
            block_size=self._workload.block_size,
            blocks_per_worker=self._blocks_per_worker,
            working_set_blocks=self._working_set_blocks,
            policies={policy: policy_report([each.answer for each in exchanges]) for policy, exchanges in runs.items()},
            largest_hit_ratio=max(
                largest_hit_ratio(exchanges, self._encoder, self._workload.block_size) for exchanges in runs.values()
            ),
            outputs_identical=all(output == outputs[0] for output in outputs),
        )

    async def _start_workers(self) -> list[str]:
        """Their URLs, once each has answered a prompt."""
        task = self._progress.add_task(f"starting {WORKERS} workers", total=WORKERS)

        async def start(name: str, port: int, core: int | None) -> str:
            url = f"http://127.0.0.1:{port}"
            child = await self._processes.start(name, *self._worker_command(port), core=core)
            await self._processes.wait_ready(child, self._session, f"{url}/health", WORKER_READY_TIMEOUT_S)
            await ChatClient(self._session, url).chat(
                self._fields([{"role": "user", "content": self._workload.warm_up}])
            )
            self._progress.advance(task)
            return url

        names = [f"worker-{number}" for number in range(1, WORKERS + 1)]
        places = zip(names, free_ports(WORKERS), cores_apart(WORKERS), strict=True)
        return list(await asyncio.gather(*(start(*place) for place in places)))

    def _worker_command(self, port: int) -> list[str]:
        options = {
            "--model": self._model,
            "--served-model-name": self._model,
            "--port": port,
            "--threads": 1,
            "--block-size": self._workload.block_size,
            "--blocks": self._blocks_per_worker,
        }
        return command("worker", *(str(part) for option in options.items() for part in option))

    async def _run(self, policy: str, workers: Sequence[str]) -> list[Exchange]:
        """All conversations under `policy`, from cold caches and with a router that knows nothing yet."""
        task = self._progress.add_task(policy, total=self._workload.requests)
        for worker in workers:
            await self._reset_cache(worker)
        [port] = free_ports(1)
        url = f"http://127.0.0.1:{port}"
        options = ["--port", str(port), "--policy", policy]
        for worker in workers:
            options += ["--worker", worker]
        router = await self._processes.start(f"router-{policy}", *command("router", *options))
        await self._processes.wait_ready(
            router, self._session, f"{url}/workers", ROUTER_READY_TIMEOUT_S, caches_are_known
        )
        client = ChatClient(self._session, url)
        exchanges = await converse(client, self._workload, self._fields, lambda: self._progress.advance(task))
        await self._processes.stop(router)
        return exchanges

    async def _reset_cache(self, worker: str) -> None:
        async with self._session.post(f"{worker}/reset_prefix_cache") as response:
            body = await response.read()
        if response.status != 200 or not orjson.loads(body)["success"]:
            raise RequestFailed(f"{response.url} answered {response.status}: {body.decode()}")

    def _fields(self, messages: list[Message]) -> dict[str, object]:
        return {
            "model": self._model,
            "messages": messages,
            "max_tokens": self._workload.answer_tokens,
            "temperature": 0,
        }


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "warmroute", *arguments]


def caches_are_known(body: bytes) -> bool:
    """Whether a router's /workers says that it reaches all of them and follows their events."""
    workers = orjson.loads(body)["workers"]
    return all(
        worker["health"] == "up" and all(slot["cache_state"] == "live" for slot in worker["slots"])
        for worker in workers
    )


async def converse(
    client: ChatClient,
    workload: Workload,
    fields: Callable[[list[Message]], dict[str, object]],
    on_answer: Callable[[], None],
) -> list[Exchange]:
    """Let all users talk, each waiting for its answers; the exchanges in the order of sending. Raises RequestFailed."""
    exchanges: list[Exchange] = []

    async def user(number: int, conversation: Conversation) -> None:
        rng = Random(f"{workload.seed}/{number}")
        messages = [{"role": "system", "content": conversation.system}]
        await asyncio.sleep(number * workload.stagger_s)
        for turn, text in enumerate(conversation.turns):
            messages = [*messages, {"role": "user", "content": text}]
            answer = await client.chat(fields(messages))
            exchanges.append(Exchange(number, turn, messages, answer))
            on_answer()
            messages = [*messages, {"role": "assistant", "content": answer.text}]
            if turn + 1 < len(conversation.turns):
                await asyncio.sleep(rng.uniform(*workload.pause) * answer.duration_ms / 1e3)

    try:
        async with asyncio.TaskGroup() as users:
            for number, conversation in enumerate(workload.conversations):
                users.create_task(user(number, conversation))
    except* RequestFailed as failures:
        raise RequestFailed(str(failures.exceptions[0])) from failures
    return sorted(exchanges, key=lambda exchange: exchange.answer.sent_at_s)


def outputs_of(exchanges: Sequence[Exchange]) -> dict[tuple[int, int], str]:
    return {(each.conversation, each.turn): each.answer.text for each in exchanges}


def largest_hit_ratio(exchanges: Sequence[Exchange], encoder: PromptEncoder, block_size: int) -> float:
    """Of one endless cache for all workers, over these prompts in the order of sending.

    It keeps answers too, as engines do: all tokens of an answer but the last, which was never an input.
    """
    cache = InfiniteCache(block_size)
    hit_tokens = prompt_tokens = 0
    for exchange in exchanges:
        answer = exchange.answer
        prompt = token_ids(encoder, exchange.messages)
        if len(prompt) != answer.usage.prompt_tokens:
            raise RequestFailed(
                f"the worker counts {answer.usage.prompt_tokens} tokens in a prompt that has {len(prompt)} for us"
            )
        hit_tokens += cache.hit_tokens(prompt)
        prompt_tokens += len(prompt)
        said = [*exchange.messages, {"role": "assistant", "content": answer.text}]
        whole = token_ids(encoder, said, for_answer=False)
        cache.store(prompt)
        cache.store(whole[: len(prompt) + answer.usage.completion_tokens - 1])
    return hit_tokens / prompt_tokens
