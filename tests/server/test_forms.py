from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dippm.server.errors import ServiceError
from dippm.server.uploads import UploadStore

pytest.importorskip("python_multipart")

from dippm.server.forms import LARGEST_OPTIONS, read_form

Form = Callable[..., tuple[bytes, str]]


def read(folder: Path, body: bytes, content_type: str, *, step: int = 7) -> tuple[bytes, bytes, str]:
    """Options, file and its name."""

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), step):
            yield body[start : start + step]

    async def run() -> tuple[bytes, bytes, str]:
        async with UploadStore(folder, max_upload_mb=1, workers=1).receive() as incoming:
            options = await read_form(content_type, chunks(), incoming)
            assert incoming.path is not None
            return options, incoming.path.read_bytes(), incoming.name

    return asyncio.run(run())


def refused(folder: Path, body: bytes, content_type: str, *, step: int = 1000) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        read(folder, body, content_type, step=step)
    assert list(folder.iterdir()) == []
    return caught.value


@pytest.mark.parametrize("step", [1, 3, 64, 100_000])
def test_a_form_is_read_however_it_is_cut(tmp_path: Path, form: Form, step: int) -> None:
    content = b"\r\n--b0undar\r\n" * 50 + bytes(range(256))
    body, content_type = form(content, options={"batch": 1})
    assert read(tmp_path, body, content_type, step=step) == (b'{"batch": 1}', content, "small.onnx")


def test_options_may_be_left_out(tmp_path: Path, form: Form) -> None:
    assert read(tmp_path, *form(b"x"))[0] == b"{}"


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ("form.no_file", {"file": None, "options": {}}),
        ("form.fields", {"file": b"x", "fields": {"batch": "1"}}),
        ("form.fields", {"file": b"x", "fields": {f"f{number}": "1" for number in range(100)}}),
        ("upload.extension", {"file": b"x", "name": "x.exe"}),
        ("request.too_large", {"file": b"x", "options": "x" * (LARGEST_OPTIONS + 1)}),
    ],
)
def test_other_forms_are_refused(tmp_path: Path, form: Form, code: str, arguments: dict[str, object]) -> None:
    assert refused(tmp_path, *form(arguments.pop("file"), **arguments)).code == code


def test_a_field_may_come_once(tmp_path: Path, form: Form) -> None:
    body, content_type = form(b"x")
    part = body[: body.rindex(b"--b0undary--")]
    assert refused(tmp_path, part + body, content_type).code == "form.fields"


@pytest.mark.parametrize("kept", [0, 1, 20, 100, -1, -4])
def test_a_form_that_is_cut_off_is_refused(tmp_path: Path, form: Form, kept: int) -> None:
    body, content_type = form(b"x" * 100)
    end = kept if kept >= 0 else len(body.rstrip()) + kept
    assert refused(tmp_path, body[:end], content_type).code == "form.invalid"


@pytest.mark.parametrize("boundary", ["", "; boundary=", "; boundary=" + "x" * 71])
def test_a_form_needs_a_boundary(tmp_path: Path, form: Form, boundary: str) -> None:
    assert refused(tmp_path, form(b"x")[0], "multipart/form-data" + boundary).code == "form.invalid"


def test_a_part_with_an_endless_head_is_refused(tmp_path: Path) -> None:
    body = b"--b\r\nX-Y: " + b"y" * 100_000
    assert refused(tmp_path, body, "multipart/form-data; boundary=b").code == "form.invalid"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(content=st.binary(max_size=300), step=st.integers(1, 50))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, step: int) -> None:
    try:
        read(tmp_path, b"--b\r\n" + content, "multipart/form-data; boundary=b", step=step)
    except ServiceError as exc:
        assert 400 <= exc.status < 500
