from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dippm.server.jobs import FRAME_HEAD, Job, Reply, Verb

JOB = Job(verb=Verb.PREDICT, name="a.onnx", path="/x/upload.onnx", content="00ff", options={"batch": [1], "mode": "x"})


def test_a_job_crosses_as_it_is() -> None:
    frame = JOB.to_frame()
    length, rest = FRAME_HEAD.unpack(frame[: FRAME_HEAD.size])
    assert rest == 0
    assert length == len(frame) - FRAME_HEAD.size
    assert Job.from_head(frame[FRAME_HEAD.size :]) == JOB


@pytest.mark.parametrize(
    "changed",
    [
        {"verb": Verb.FITS},
        {"name": "b.onnx"},
        {"content": "00fe"},
        {"options": {"batch": [2], "mode": "x"}},
        {"path": None},
    ],
)
def test_whatever_changes_the_answer_changes_the_key(changed: dict[str, object]) -> None:
    assert replace(JOB, **changed).key != JOB.key  # type: ignore[arg-type]


def test_where_the_file_lies_and_the_order_of_options_do_not_change_the_key() -> None:
    assert replace(JOB, path="/y/upload.onnx", options={"mode": "x", "batch": [1]}).key == JOB.key


def test_messages_name_what_the_client_knows() -> None:
    place = Path(pytest.__file__).parent / "y.py"
    text = f"'/x/upload.onnx', '/x/unpacked/m.onnx' and {place}:3"
    assert JOB.as_known(text) == "'a.onnx', 'a.onnx/m.onnx' and pytest/y.py:3"
    assert replace(JOB, path=None).as_known("'/x/upload.onnx'") == "'/x/upload.onnx'"


def test_a_reply_crosses_as_it_is() -> None:
    reply = Reply(status=422, body=b'{"a": 1}', is_lasting=True, is_last=True, defect="there")
    frame = reply.to_frame()
    head_length, body_length = FRAME_HEAD.unpack(frame[: FRAME_HEAD.size])
    head, body = frame[FRAME_HEAD.size :][:head_length], frame[FRAME_HEAD.size + head_length :]
    assert len(body) == body_length
    assert Reply.from_parts(head, body) == reply


@pytest.mark.parametrize("head", [b"", b"[]", b"{}", b'{"status": "200"}', b"\xff"])
def test_what_is_no_reply_is_an_error(head: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whichever of them
        Reply.from_parts(head, b"")
