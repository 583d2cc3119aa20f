"""An OpenAI-compatible endpoint as a command names it: its URL, and the model that it serves."""

from dataclasses import dataclass

import aiohttp
import orjson

from replay.errors import UnusableEndpoint


@dataclass(frozen=True, slots=True)
class Model:
    """`context_tokens` is what prompt and answer may have together; None: the endpoint does not say."""

    name: str
    context_tokens: int | None = None


async def served_model(session: aiohttp.ClientSession, url: str, name: str | None) -> Model:
    """The only model that is served there, or the one of this `name`, whether it is listed or not: some routers list
    none of those that they serve. Raises UnusableEndpoint."""
    models = {model.name: model for model in await _models(session, url + "/v1/models")}
    if name is not None:
        return models.get(name, Model(name))
    if len(models) != 1:
        raise UnusableEndpoint(f"{url} serves {', '.join(models) or 'no model'}: say which with --model")
    return next(iter(models.values()))


async def _models(session: aiohttp.ClientSession, url: str) -> list[Model]:
    try:
        async with session.get(url) as response:
            body = await response.read()
    except (aiohttp.ClientError, OSError) as error:
        raise UnusableEndpoint(f"{url}: {str(error) or type(error).__name__}") from error
    try:
        return [Model(str(card["id"]), card.get("max_model_len")) for card in orjson.loads(body)["data"]]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise UnusableEndpoint(f"{url} answered {response.status} and no list of models") from error
