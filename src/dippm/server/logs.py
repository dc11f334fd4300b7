"""The service's log: one JSON object a line on stderr, without tokens, query strings or anything of a file."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

__all__ = ["configure_logs", "log_event"]

_logger = logging.getLogger("dippm.server")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        entry |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0] is not None:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure_logs() -> None:
    """Send this service's events and the warnings of the libraries that it runs on to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    _logger.setLevel(logging.INFO)
    # A client's mistakes are in the log as its requests; their libraries need not add words of their own.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)


def log_event(event: str, fields: Mapping[str, object] | None = None, *, level: int = logging.INFO) -> None:
    """Write one line.

    Args:
        event: What happened, words joined by dots.
        fields: What belongs to it.
        level: A level of :mod:`logging`.
    """
    _logger.log(level, event, extra={"fields": fields or {}})
