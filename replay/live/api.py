"""The two ways to ask an OpenAI-compatible endpoint."""

from enum import StrEnum


class Api(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self is Api.CHAT else "/v1/completions"
