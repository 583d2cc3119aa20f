"""Errors as a tree: each carries the HTTP status and the OpenAI-style body that its client gets.

    ApiError
    ├── InvalidRequest     400  invalid_request_error   the request is wrong; `param` names the field
    ├── ModelNotFound      404  invalid_request_error   code model_not_found
    ├── NotFound           404  not_found_error         no such path or resource
    ├── MethodNotAllowed   405  invalid_request_error   the path exists, this method does not
    ├── Conflict           409  conflict_error          the resource is in another state
    ├── PayloadTooLarge    413  invalid_request_error   the body is over its bound
    ├── HeadersTooLarge    431  invalid_request_error   the head is over its bound
    ├── Overloaded         429  rate_limit_error        try again after `retry_after_s`
    ├── InternalError      500  server_error            our fault
    ├── UpstreamFailed     502  server_error            the engine behind us broke or spoke nonsense
    ├── Unavailable        503  server_error            nobody can serve this now
    └── UpstreamTimeout    504  server_error            the engine behind us said nothing in time

The body is that of OpenAI's API reference: `{"error": {"message", "type", "param", "code"}}`.
"""

import logging
import math
from collections.abc import Iterable
from typing import Any, ClassVar

log = logging.getLogger(__name__)


class ApiError(Exception):
    """An answer other than 2xx. The message is for the client: it says what was wrong, where, and what is allowed."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """The JSON object to send."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """`Retry-After` in whole seconds, rounded up (RFC 9110, 10.2.3 knows no fractions); else nothing."""
        if self.retry_after_s is None:
            return {}
        return {"Retry-After": str(max(0, math.ceil(self.retry_after_s)))}


class InvalidRequest(ApiError):
    status = 400
    type = "invalid_request_error"


class ModelNotFound(ApiError):
    status = 404
    type = "invalid_request_error"
    default_code = "model_not_found"


class NotFound(ApiError):
    status = 404
    type = "not_found_error"


class MethodNotAllowed(ApiError):
    status = 405
    type = "invalid_request_error"
    default_code = "method_not_allowed"

    def __init__(self, path: str, method: str, allowed: Iterable[str]) -> None:
        self.allowed = ", ".join(allowed)
        super().__init__(f"{path} does not know {method}; allowed: {self.allowed}")

    def headers(self) -> dict[str, str]:
        return {"Allow": self.allowed}


class Conflict(ApiError):
    status = 409
    type = "conflict_error"


class PayloadTooLarge(ApiError):
    status = 413
    type = "invalid_request_error"
    default_code = "payload_too_large"


class HeadersTooLarge(ApiError):
    status = 431
    type = "invalid_request_error"


class Overloaded(ApiError):
    status = 429
    type = "rate_limit_error"


class InternalError(ApiError):
    status = 500


class UpstreamFailed(ApiError):
    status = 502


class Unavailable(ApiError):
    status = 503


class UpstreamTimeout(ApiError):
    status = 504


def unexpected(whose: str, error: Exception) -> InternalError:
    """What a client is told of a bug in `whose` code; the log has the rest."""
    log.error("a request failed", exc_info=error)
    return InternalError(f"the {whose} failed on this request; its log says why")
