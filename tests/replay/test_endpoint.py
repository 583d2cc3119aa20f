"""URLs as people write them, and the model that is meant."""

import aiohttp
import pytest
from aiohttp import web

from replay.endpoint import Model, served_model
from replay.errors import UnusableEndpoint
from replay.options import base_url

LISTED = [{"id": "a", "max_model_len": 8192}, {"id": "b"}]


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("https://host/v1/", "https://host"),
        ("http://[::1]:80/gateway/v1", "http://[::1]:80/gateway"),
    ],
)
def test_urls(text, url):
    assert base_url(text) == url


@pytest.mark.parametrize("text", ["", "127.0.0.1:8000", "tcp://host:1", "http://", "http://host:port", "http://h?a=1"])
def test_what_is_no_url(text):
    with pytest.raises(ValueError):  # noqa: PT011 - urllib's own among them
        base_url(text)


@pytest.fixture
async def serving():
    """An endpoint that lists the models that it is given."""
    answer: list[object] = []

    async def models(request: web.Request) -> web.Response:
        return web.json_response(answer[0])

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()

    def start(listed: object) -> str:
        answer[:] = [listed]
        return "http://{}:{}".format(*runner.addresses[0][:2])

    yield start
    await runner.cleanup()


async def test_the_only_model_or_the_named_one(serving, session):
    assert await served_model(session, serving({"data": LISTED[:1]}), None) == Model("a", 8192)
    url = serving({"data": LISTED})
    assert await served_model(session, url, "b") == Model("b", None)
    assert await served_model(session, url, "not-listed") == Model("not-listed", None)


@pytest.mark.parametrize(("listed", "says"), [(LISTED, "serves a, b: say which"), ([], "serves no model: say which")])
async def test_which_model_must_be_clear(serving, session, listed, says):
    with pytest.raises(UnusableEndpoint, match=says):
        await served_model(session, serving({"data": listed}), None)


@pytest.mark.parametrize("listed", [{"detail": "Not Found"}, {"data": [7]}, {"data": [{}]}, "models", None])
async def test_what_is_no_list_of_models(serving, session, listed):
    with pytest.raises(UnusableEndpoint, match="answered 200 and no list of models"):
        await served_model(session, serving(listed), "a")


async def test_nobody_listening(session: aiohttp.ClientSession, unused_tcp_port: int):
    with pytest.raises(UnusableEndpoint, match=f"127.0.0.1:{unused_tcp_port}"):
        await served_model(session, f"http://127.0.0.1:{unused_tcp_port}", None)
