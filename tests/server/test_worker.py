from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

import pytest

from dippm.api import ModelReadError
from dippm.server import worker
from dippm.server.jobs import Job, Reply, Verb
from dippm.server.verbs import GraphReader


def reply_to(path: Path | None, **options: object) -> Reply:
    job = Job(
        verb=Verb.PREDICT,
        name="named.onnx",
        path=None if path is None else str(path),
        content="hash",
        options={"device": "A100", "batch": 1, **options},
    )
    # Other tests may have left this process large.
    return worker._reply_to(job, GraphReader(unpacked_mb=1), memory_mb=1_000_000)


def code_of(reply: Reply) -> str:
    return str(json.loads(reply.body)["error"]["code"])


def test_an_answer_lasts(onnx_file: Path) -> None:
    reply = reply_to(onnx_file)
    assert (reply.status, reply.is_lasting, reply.is_last) == (200, True, False)
    assert json.loads(reply.body)["predictions"][0]["device"] == "A100-SXM4-40GB"


def test_an_error_lasts_and_names_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "upload.onnx"
    path.write_bytes(b"")
    reply = reply_to(path)
    assert (reply.status, reply.is_lasting, code_of(reply)) == (422, True, "model.empty")
    assert b"named.onnx" in reply.body
    assert str(tmp_path).encode() not in reply.body


@pytest.mark.parametrize(
    ("raised", "status", "code", "is_last"),
    [
        (MemoryError(), 422, "service.memory", True),
        (RuntimeError("std::bad_alloc"), 422, "model.unforeseen", True),
        (RecursionError("secret of the file"), 422, "model.unforeseen", False),
    ],
)
def test_whatever_a_file_does_is_answered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, raised: Exception, status: int, code: str, is_last: bool
) -> None:
    def fail(*_: Any) -> None:
        raise raised

    monkeypatch.setattr(worker, "answer", fail)
    reply = reply_to(tmp_path / "upload.onnx")
    assert (reply.status, code_of(reply), reply.is_last, reply.is_lasting) == (status, code, is_last, False)
    assert b"secret" not in reply.body
    assert "secret" not in reply.defect
    if code == "model.unforeseen":
        assert "test_worker.py" in reply.defect


@pytest.mark.parametrize(
    ("code", "is_lasting"), [("conversion.failed", False), ("conversion.no_space", False), ("onnx.damaged", True)]
)
def test_what_the_machine_may_have_done_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, is_lasting: bool
) -> None:
    def fail(*_: Any) -> None:
        raise ModelReadError("It cannot be read.", code=code)

    monkeypatch.setattr(worker, "answer", fail)
    reply = reply_to(tmp_path / "upload.zip")
    assert (code_of(reply), reply.is_lasting) == (code, is_lasting)


def test_a_defect_without_a_file_is_the_services(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("x")

    monkeypatch.setattr(worker, "answer", fail)
    assert reply_to(None).status == 500


def test_an_answer_that_is_too_large_is_an_error(onnx_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LARGEST_BODY", 100)
    assert code_of(reply_to(onnx_file)) == "answer.too_large"


def test_a_worker_that_keeps_too_much_ends_itself(onnx_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_private_mb", lambda: 600_000.0)
    reply = reply_to(onnx_file)
    assert reply.status == 200
    assert reply.is_last


def test_private_memory_is_counted() -> None:
    before = worker._private_mb()
    if before == 0:
        pytest.skip("this system does not say")
    # A mapping of its own: the heap would serve it from what earlier tests gave back to it.
    with mmap.mmap(-1, 64 * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):
        assert worker._private_mb() - before > 32


def test_no_cure_asks_for_what_the_service_never_gives() -> None:
    error = json.loads(reply_to(None, device="A10000").body)["error"]
    assert error["cure"] == "GET /v1/devices lists all devices."
    assert error["message"].endswith(f". {error['cure']}")
    assert "`dippm devices`" not in error["message"]
