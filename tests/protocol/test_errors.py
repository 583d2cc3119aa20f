import pytest

from protocol import errors
from protocol.errors import ApiError


def subclasses() -> list[type[ApiError]]:
    return [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, ApiError)]


def test_body_is_openais() -> None:
    error = errors.InvalidRequest("'n' must be 1", param="n", code="bad_n")
    assert error.body() == {
        "error": {"message": "'n' must be 1", "type": "invalid_request_error", "param": "n", "code": "bad_n"}
    }


def test_model_not_found_has_openais_code() -> None:
    assert errors.ModelNotFound("no model 'x'").body()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(("retry_after_s", "header"), [(0.0, "0"), (0.2, "1"), (3.0, "3"), (3.1, "4"), (-1.0, "0")])
def test_retry_after_is_whole_seconds_rounded_up(retry_after_s: float, header: str) -> None:
    assert errors.Overloaded("busy", retry_after_s=retry_after_s).headers() == {"Retry-After": header}


def test_no_retry_after_unless_known() -> None:
    assert errors.Unavailable("nobody").headers() == {}


@pytest.mark.parametrize("kind", subclasses(), ids=lambda kind: kind.__name__)
def test_tree_in_the_docstring_is_true(kind: type[ApiError]) -> None:
    if kind is not ApiError:
        (line,) = [line for line in (errors.__doc__ or "").splitlines() if f" {kind.__name__} " in line]
        assert str(kind.status) in line.split()
        assert kind.type in line.split()
