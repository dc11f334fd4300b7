from __future__ import annotations

import json
import pickle

import pytest

from dippm.errors import DippmError, MissingExtraError, ModelReadError, UnsupportedError, UsageError
from dippm.server.errors import ServiceError, error_body, http_status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("m", code="c"), 400),
        (ModelReadError("m", code="c"), 422),
        (UnsupportedError("m", code="c"), 422),
        (MissingExtraError(package="p", extra="e", purpose="u"), 501),
        (ServiceError("m", code="c", status=429), 429),
        (DippmError("m", code="c"), 500),
    ],
)
def test_every_error_has_its_status(error: DippmError, status: int) -> None:
    assert http_status(error) == status


def test_the_body_is_that_of_the_command_line_with_the_cure() -> None:
    body = json.loads(error_body(UnsupportedError("No such thing.", code="a.b", cure="Take another.")))
    assert body == {
        "schema": 1,
        "error": {"code": "a.b", "message": "No such thing. Take another.", "cure": "Take another.", "exit_status": 4},
    }


def test_errors_of_the_service_have_the_status_of_wrong_use_or_of_a_failure() -> None:
    assert ServiceError("m", code="c", status=413).exit_status == 2
    assert ServiceError("m", code="c", status=503).exit_status == 1


def test_an_error_of_the_service_comes_whole_from_another_process() -> None:
    error = ServiceError("Busy.", code="service.busy", status=503, cure="Wait.", headers={"Retry-After": "1"})
    for sent in (error, ServiceError("m", code="c", status=429)):
        received = pickle.loads(pickle.dumps(sent))
        assert (type(received), str(received), vars(received)) == (type(sent), str(sent), vars(sent))
