"""Which endpoint a method and a path mean."""

import re
from typing import Generic, TypeVar
from urllib.parse import unquote

from protocol.errors import MethodNotAllowed, NotFound

Endpoint = TypeVar("Endpoint")

ANY = "*"
_VARIABLE = re.compile(r"\\\{(\w+)\\\}")


class Routes(Generic[Endpoint]):
    """Of (method, path, endpoint); the first that fits is taken. GET covers HEAD, ANY all methods.

    `{name}` in a path stands for one segment; `*` at its end for all that may follow.
    """

    def __init__(self, *routes: tuple[str, str, Endpoint]) -> None:
        self._routes = [(_methods(method), _pattern(path), endpoint) for method, path, endpoint in routes]
        plain = [(method, path) for method, path, _ in routes if not {"{", "*"} & {*path, *method}]
        self._found = {route: self._search(*route) for route in plain}

    def find(self, method: str, path: str) -> tuple[Endpoint, dict[str, str]]:
        """The endpoint and the values of the path's variables. Raises NotFound or MethodNotAllowed."""
        return self._found.get((method, path)) or self._search(method, path)

    def _search(self, method: str, path: str) -> tuple[Endpoint, dict[str, str]]:
        allowed: set[str] = set()
        for methods, pattern, endpoint in self._routes:
            match = pattern.fullmatch(path)
            if match is None:
                continue
            if method in methods or ANY in methods:
                return endpoint, {name: unquote(value) for name, value in match.groupdict().items()}
            allowed |= methods
        if allowed:
            raise MethodNotAllowed(path, method, sorted(allowed))
        raise NotFound(f"there is nothing at {path}")


def _methods(method: str) -> frozenset[str]:
    return frozenset({"GET", "HEAD"} if method == "GET" else {method})


def _pattern(path: str) -> re.Pattern[str]:
    segments = _VARIABLE.sub(r"(?P<\1>[^/]+)", re.escape(path.removesuffix("*")))
    return re.compile(segments + ".*" if path.endswith("*") else segments)
