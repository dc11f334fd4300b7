from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from dippm.server.logs import configure_logs, log_event


@pytest.fixture
def _own_handlers() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("_own_handlers")
def test_every_event_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs()
    log_event("request", {"path": "/a\nb", "status": 200})
    log_event("worker.lost", level=logging.WARNING)
    logging.getLogger("elsewhere").info("not shown")
    try:
        raise KeyError("x")
    except KeyError:
        logging.getLogger("elsewhere").exception("shown")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["request", "worker.lost", "shown"]
    assert lines[0]["path"] == "/a\nb"
    assert lines[0]["time"].endswith("+00:00")
    assert lines[1]["level"] == "warning"
    assert "KeyError" in lines[2]["exception"]
