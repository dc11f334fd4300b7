"""Errors of the service, and the form in which every error is answered."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dippm.api import DippmError

__all__ = ["ServiceError", "error_body", "http_status"]

SCHEMA = 1
# The exit statuses of the command line, as HTTP has it.
_HTTP_STATUSES = {2: 400, 3: 422, 4: 422, 5: 501}
_INTERNAL = 500


class ServiceError(DippmError):
    """A request that the service refuses or cannot serve.

    Args:
        message: What happened.
        code: Stable name for programs.
        status: HTTP status.
        cure: What the client can do about it.
        headers: Headers of the answer; none where left out.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int,
        cure: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, code=code, cure=cure)
        self.status = status
        self.headers: dict[str, str] = dict(headers or {})
        self.exit_status = 2 if status < _INTERNAL else 1


def http_status(error: DippmError) -> int:
    """The HTTP status of an error."""
    return error.status if isinstance(error, ServiceError) else _HTTP_STATUSES.get(error.exit_status, _INTERNAL)


def error_body(error: DippmError, *, message: str | None = None, cure: str | None = None) -> bytes:
    """The body of an error's answer.

    Args:
        error: The error.
        message: Another wording of its message, the cure with it.
        cure: Another wording of its cure.
    """
    content = {
        "code": error.code,
        "message": str(error) if message is None else message,
        "cure": error.cure if cure is None else cure,
        "exit_status": error.exit_status,
    }
    return json.dumps({"schema": SCHEMA, "error": content}).encode()
