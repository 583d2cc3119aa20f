"""An engine that costs next to nothing: it answers any prompt at once, or streams events at a pace that can be set.

    python benchmarks/fake_engine.py --port 9101 [--root DIR]

POST /pace {"events": 50, "gap_ms": 10} sets what a stream is made of; a gap of 0 sends each event as soon as the loop
comes round. It answers with how many prompts were rendered into tokens since the last time: routers may ask for that
(/v1/chat/completions/render), and get a token for every four bytes of the messages. A prompt that names a tag
("tag-7f") has it in every event, so that its reader can check each byte.
"""

import asyncio
import re

import click
import orjson
import uvloop

from protocol.sse import DONE, encode_event
from router.http.answers import json_response
from router.http.server import Request, listening

TAG = re.compile(rb"tag-([0-9a-f]+)")
EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
USAGE = {"prompt_tokens": 500, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 480}}
WHOLE = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello " * 20}, "finish_reason": "stop"}],
    "usage": USAGE,
}


def event(tag: str, number: int) -> bytes:
    """The event of that number in the stream of a tag: about what vLLM sends for a token."""
    delta = {"index": 0, "delta": {"content": f" {tag}-{number}"}, "logprobs": None, "finish_reason": None}
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [delta]}
    return encode_event(orjson.dumps(chunk))


END = encode_event(orjson.dumps({"id": "chatcmpl-1", "choices": [], "usage": USAGE})) + DONE


class FakeEngine:
    def __init__(self, root: str) -> None:
        self._root = root
        self._events, self._gap_s = 50, 0.0
        self._rendered = 0

    async def handle(self, request: Request) -> None:
        if request.path == "/pace":
            pace = orjson.loads(request.body)
            self._events, self._gap_s = pace["events"], pace["gap_ms"] / 1e3
            request.answer.send(json_response({"rendered": self._rendered}))
            self._rendered = 0
        elif request.path.endswith("/render"):
            self._rendered += 1
            text = orjson.dumps(orjson.loads(request.body)["messages"])
            token_ids = list(memoryview(text[: len(text) // 4 * 4]).cast("I"))
            request.answer.send(json_response({"request_id": "r", "model": "m", "token_ids": token_ids}))
        elif request.path == "/v1/models":
            card = {"id": "m", "object": "model", "root": self._root, "max_model_len": 1 << 20}
            request.answer.send(json_response({"object": "list", "data": [card]}))
        elif b'"stream":true' in request.body:
            await self._stream(request)
        elif request.path.startswith("/v1/"):
            request.answer.send(json_response(WHOLE))
        else:
            request.answer.send(json_response({"status": "ok", "model_path": "m", "served_model_name": "m"}))

    async def _stream(self, request: Request) -> None:
        found = TAG.findall(request.body)
        tag = found[-1].decode() if found else ""
        answer, loop = request.answer, asyncio.get_running_loop()
        answer.begin(200, b"OK", [EVENT_STREAM], None)
        due_s = loop.time()
        for number in range(self._events):
            due_s += self._gap_s
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            answer.write([event(tag, number)], False)
        answer.write([END], True)


async def serve(port: int, root: str) -> None:
    async with listening(FakeEngine(root).handle, "127.0.0.1", port, max_body_bytes=1 << 30, grace_s=0.0):
        await asyncio.Event().wait()


@click.command
@click.option("--port", type=int, required=True)
@click.option("--root", default="m", help="What it says its model's files are: a tokenizer's directory.")
def main(port: int, root: str) -> None:
    """Serve until it is killed."""
    uvloop.run(serve(port, root))


if __name__ == "__main__":
    main()
