"""Questions by name and with a file, from the request to the answer, with a pool that reads no model."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dippm.server.errors import ServiceError
from dippm.server.jobs import Reply
from dippm.server.result_cache import ResultCache

Form = Callable[..., tuple[bytes, str]]


def test_a_model_by_name_is_asked_of_a_worker_once(setup: Any) -> None:
    async def use(client: Any) -> None:
        for expected in ("miss", "hit"):
            answer = await client.post("/v1/predict", **setup.named(batch=[1, 8]))
            assert (answer.status_code, answer.json()) == (200, {"asked": "timm:resnet50"})
            assert answer.headers["x-dippm-cache"] == expected
        (job,) = setup.pool.jobs
        assert (job.path, job.options["batch"], job.options["device"]) == (None, [1, 8], "A100")
        assert "model" not in job.options

    setup.run(use)


def test_an_upload_is_on_disk_while_it_is_asked_about(setup: Any) -> None:
    async def use(client: Any) -> None:
        for name, how in (("a.onnx", "miss"), ("a.onnx", "hit"), ("b.onnx", "miss")):
            answer = await client.post("/v1/fits", **setup.uploaded(b"content", name=name, options={"batch": 3}))
            assert answer.json() == {"asked": name}
            assert answer.headers["x-dippm-cache"] == how
        assert setup.pool.files == [b"content", b"content"]
        assert setup.pool.jobs[0].options["batch"] == 3
        assert list(setup.folder.iterdir()) == []

    setup.run(use)


def test_an_upload_is_gone_when_its_job_fails(setup: Any) -> None:
    async def use(client: Any) -> None:
        setup.pool.error = ServiceError("m", code="service.timeout", status=504)
        answer = await client.post("/v1/predict", **setup.uploaded(b"x"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "service.timeout")
        setup.pool.error = ZeroDivisionError("secret")
        answer = await client.post("/v1/predict", **setup.uploaded(b"y"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
        assert "secret" not in answer.text
        assert answer.headers["x-request-id"]
        assert list(setup.folder.iterdir()) == []

    setup.run(use)


def test_a_worker_without_room_is_asked_again_later(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> Reply:
        return Reply(status=503, body=b"{}")

    async def use(client: Any) -> None:
        monkeypatch.setattr(setup.pool, "ask", refuse)
        answer = await client.post("/v1/predict", **setup.uploaded(b"x", name="a.zip"))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")

    setup.run(use)


def test_who_waits_with_another_is_answered_though_that_one_leaves(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, asked = ResultCache.answer, []

    async def noted(cache: ResultCache, key: str, make: Any) -> Any:
        asked.append(key)
        return await answer(cache, key, make)

    monkeypatch.setattr(ResultCache, "answer", noted)

    async def use(client: Any) -> None:
        setup.pool.hold = asyncio.Event()
        first = asyncio.create_task(client.post("/v1/fits", **setup.uploaded(b"content")))
        while not setup.pool.jobs:
            await asyncio.sleep(0.001)
        (job,) = setup.pool.jobs
        second = asyncio.create_task(client.post("/v1/fits", **setup.uploaded(b"content")))
        # Its file is there before it waits.
        while len(asked) < 2:
            await asyncio.sleep(0.001)
        assert len(list(setup.folder.iterdir())) == 2
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert job.path is not None
        # The worker reads it still.
        assert Path(job.path).read_bytes() == b"content"
        setup.pool.hold.set()
        shared = await second
        assert (shared.status_code, shared.headers["x-dippm-cache"]) == (200, "shared")
        assert (len(setup.pool.jobs), list(setup.folder.iterdir())) == (1, [])

    setup.run(use)


def test_a_client_that_leaves_in_the_middle_leaves_no_file(setup: Any, form: Form) -> None:
    body, content_type = form(b"x" * 5000)
    messages = [
        {"type": "http.request", "body": body[:3000], "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, object]:
        return messages.pop(0)

    async def send(_: object) -> None:
        pass

    async def run() -> None:
        headers = [(b"host", b"localhost"), (b"content-type", content_type.encode())]
        scope = {
            "type": "http", "method": "POST", "path": "/v1/predict", "raw_path": b"/v1/predict", "query_string": b"",
            "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8080), "scheme": "http",
            "http_version": "1.1", "root_path": "", "asgi": {"version": "3.0"},
        }  # fmt: skip
        await setup.app(scope, receive, send)  # type: ignore[arg-type]

    asyncio.run(run())
    assert setup.pool.jobs == []
    assert list(setup.folder.iterdir()) == []


def test_an_upload_that_announces_too_much_is_not_read(
    tmp_path: Path, form: Form, make_setup: Callable[..., Any]
) -> None:
    setup = make_setup(tmp_path, max_upload_mb=1)

    async def use(client: Any) -> None:
        answer = await client.post("/v1/predict", **setup.uploaded(bytes(3 * 2**20)))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request.too_large")
        # Larger than a file may be, and not than a form with options.
        answer = await client.post("/v1/predict", **setup.uploaded(bytes(2**20 + 1)))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "upload.too_large")

    setup.run(use)


def test_an_answer_says_of_which_file_it_is(setup: Any) -> None:
    async def use(client: Any) -> None:
        answer = await client.post("/v1/inspect", **setup.uploaded(b"12345"))
        assert answer.headers["x-dippm-file-sha256"] == hashlib.sha256(b"12345").hexdigest()
        answer = await client.post("/v1/predict", **setup.named())
        assert "x-dippm-file-sha256" not in answer.headers

    setup.run(use)
