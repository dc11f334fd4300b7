"""The application in this process, with a pool that reads no model."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest


def typed(content_type: str, body: bytes) -> dict[str, object]:
    return {"content": body, "headers": {"content-type": content_type}}


@pytest.mark.parametrize(
    ("method", "path", "arguments", "status", "code"),
    [
        ("GET", "/nothing", {}, 404, "path.unknown"),
        ("GET", "/v1/predict", {}, 405, "method.unknown"),
        ("POST", "/v1/predict/", {}, 404, "path.unknown"),
        ("POST", "/v1/predict?batch=8", {"json": {"model": "timm:resnet50"}}, 400, "request.query"),
        ("GET", "/v1/devices?name=A100", {}, 400, "request.query"),
        ("POST", "/v1/predict", {"content": b"x"}, 415, "request.content_type"),
        ("POST", "/v1/predict", {"json": {}, "headers": {"content-encoding": "gzip"}}, 415, "request.content_encoding"),
        ("POST", "/v1/predict", typed("application/json", b"{"), 400, "request.invalid"),
        ("POST", "/v1/predict", {"json": {"model": "x" * 300_000}}, 413, "request.too_large"),
        ("POST", "/v1/predict", typed("multipart/form-data", b""), 400, "form.invalid"),
    ],
)  # fmt: skip
def test_every_refusal_has_the_one_form(
    setup: Any, method: str, path: str, arguments: dict[str, Any], status: int, code: str
) -> None:
    async def use(client: Any) -> None:
        answer = await client.request(method, path, **arguments)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/json"
        content = answer.json()
        assert (content["schema"], content["error"]["code"]) == (1, code)
        assert {"message", "cure", "exit_status"} < content["error"].keys()
        assert answer.headers["x-content-type-options"] == "nosniff"

    setup.run(use)


def test_a_method_that_is_not_asked_is_told_which_are(setup: Any) -> None:
    async def use(client: Any) -> None:
        assert (await client.get("/v1/predict")).headers["allow"] == "POST"

    setup.run(use)


def test_health_follows_the_workers_and_the_end(setup: Any) -> None:
    async def use(client: Any) -> None:
        assert (await client.get("/healthz")).json() == {"status": "ready", "workers": 1}
        setup.pool.ready = 0
        answer = await client.get("/healthz")
        assert (answer.status_code, answer.json()["status"]) == (503, "starting")
        assert (await client.get("/healthz/live")).status_code == 200
        setup.pool.ready = 1
        setup.state.is_draining = True
        answer = await client.get("/healthz")
        assert (answer.status_code, answer.json()["status"]) == (503, "stopping")
        answer = await client.post("/v1/predict", **setup.named())
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")

    setup.run(use)


def test_devices_are_those_of_the_command_line(setup: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from dippm import cli

    async def use(client: Any) -> None:
        answer = await client.get("/v1/devices")
        cli.main(["devices", "--json"])
        assert answer.json() == json.loads(capsys.readouterr().out)

    setup.run(use)


def test_the_description_is_whole_and_loads_nothing_from_elsewhere(setup: Any) -> None:
    async def use(client: Any) -> None:
        description = (await client.get("/openapi.json")).json()
        assert {"/v1/predict", "/v1/fits", "/v1/max-batch", "/v1/inspect", "/v1/devices", "/healthz", "/metrics"} <= (
            description["paths"].keys()
        )
        text = json.dumps(description)
        named_schemas = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
        assert named_schemas <= description["components"]["schemas"].keys()
        assert "http://" not in text
        assert "https://" not in text
        for path in ("/docs", "/redoc"):
            assert (await client.get(path)).status_code == 404

    setup.run(use)


def test_the_page_may_load_and_ask_nothing_but_the_service(setup: Any) -> None:
    async def use(client: Any) -> None:
        answer = await client.get("/")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "<title>dippm</title>" in answer.text
        script = await client.get("/static/main.js")
        assert (script.status_code, script.headers["content-type"].split(";")[0]) == (200, "text/javascript")
        for each in (answer, script):
            policy = each.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
            assert "unsafe" not in policy
        assert (await client.get("/static/../app.py")).status_code == 404
        assert (await client.get("/static/%2e%2e/app.py")).status_code == 404

    setup.run(use)


def test_the_service_itself_imports_nothing_that_reads_models() -> None:
    code = (
        "import json, sys\n"
        "import dippm.server.app, dippm.server.serve\n"
        "dippm.server.app._devices_body()\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(json.loads(found.stdout))
    assert "fastapi" in imported
    assert imported & {"torch", "onnx", "onnxruntime", "numpy", "tensorflow", "paddle", "safetensors"} == set()


def test_workers_run_as_long_as_the_application(setup: Any) -> None:
    async def run() -> None:
        incoming: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        sent: list[str] = []

        async def send(message: Any) -> None:
            sent.append(message["type"])

        scope = {"type": "lifespan", "asgi": {"version": "3.0"}}
        running = asyncio.create_task(setup.app(scope, incoming.get, send))  # type: ignore[arg-type]
        await incoming.put({"type": "lifespan.startup"})
        while not sent:
            await asyncio.sleep(0.01)
        assert setup.pool.is_open
        await incoming.put({"type": "lifespan.shutdown"})
        await running
        assert not setup.pool.is_open
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    asyncio.run(run())
