"""The converter's side: what it answers, whatever becomes of the conversion."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = """
import sys
from dippm.errors import MissingExtraError, UnsupportedError
from dippm.frontends.conversion.worker import ConversionRequest, run_worker

def convert(request: ConversionRequest) -> None:
    {body}

run_worker(convert)
print("never comes here")
"""


def _run(
    folder: Path, body: str, *, hints: dict[str, Any] | None = None, **options: Any
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    request = folder / "request.json"
    reply = folder / "reply.json"
    given = {"source": "model.fake", "output": str(folder), "name": "model", "reply": str(reply), "options": options}
    given["hints"] = hints or {}
    request.write_text(json.dumps(given), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(body=body), str(request)], capture_output=True, text=True, check=False
    )
    return done, json.loads(reply.read_text(encoding="utf-8"))


def test_the_request_arrives_and_the_answer_tells_the_time(tmp_path: Path) -> None:
    body = "print(request.source, request.options['trust']); request.onnx_path.write_bytes(b'x')"
    done, reply = _run(tmp_path, body, trust=True)
    assert (done.returncode, done.stdout) == (0, "model.fake True\n")
    assert {name: reply[name] for name in reply if name != "converter_s"} == {"warnings": [], "used_hints": False}
    assert 0 <= reply["converter_s"] < 10
    assert (tmp_path / "model.onnx").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("body", "reply"),
    [
        (
            "raise UnsupportedError('It has five legs.', code='fake.legs', cure='Take one away.')",
            {
                "error": {
                    "kind": "UnsupportedError",
                    "code": "fake.legs",
                    "message": "It has five legs.",
                    "cure": "Take one away.",
                }
            },
        ),
        (
            "raise MissingExtraError(package='legs', extra='animals', purpose='walk')",
            {"missing": {"package": "legs", "extra": "animals"}},
        ),
        ("raise MemoryError", {"memory": True}),
        ("raise OSError(28, 'No space left on device')", {"space": True}),
        ("raise OSError(13, 'Permission denied')", {"failure": "PermissionError: [Errno 13] Permission denied"}),
        ("raise KeyError('weights')", {"failure": "KeyError: 'weights'"}),
    ],
)
def test_what_is_raised_reaches_the_caller_as_words(tmp_path: Path, body: str, reply: dict[str, Any]) -> None:
    done, found = _run(tmp_path, body)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert found == reply


def test_what_the_converter_notes_is_answered(tmp_path: Path) -> None:
    body = "request.notes.warnings.append(request.hints['word']); request.notes.used_hints = True"
    _, reply = _run(tmp_path, body, hints={"word": "It limps."})
    assert (reply["warnings"], reply["used_hints"]) == (["It limps."], True)


def test_a_long_message_is_cut(tmp_path: Path) -> None:
    _, reply = _run(tmp_path, "raise ValueError('x' * 100_000)")
    assert len(reply["failure"]) == 2000


def test_an_answer_is_left_for_the_case_of_a_crash(tmp_path: Path) -> None:
    body = "request.answer_if_crashed(UnsupportedError('It may end here.', code='fake.crash')); import os; os._exit(7)"
    done, reply = _run(tmp_path, body)
    assert done.returncode == 7
    assert reply["crash"]["code"] == "fake.crash"
