"""The application in this process, with a pool that reads no model."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dippm.server.errors import ServiceError
from dippm.server.jobs import Job, Reply
from dippm.server.settings import Settings

TOKEN = "a-token-of-some-length"  # noqa: S105
Form = Callable[..., tuple[bytes, str]]


class FakePool:
    """Answers with what it was asked."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.files: list[bytes] = []
        self.ready = 1
        self.is_open = False
        self.hold: asyncio.Event | None = None
        self.error: Exception | None = None

    def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    async def ask(self, job: Job, *, prepare: Callable[[], None] | None = None) -> Reply:
        assert (prepare is None) == (job.path is None)
        self.jobs.append(job)
        if job.path is not None:
            self.files.append(Path(job.path).read_bytes())
        if self.hold is not None:
            await self.hold.wait()
        if self.error is not None:
            raise self.error
        return Reply(status=200, body=json.dumps({"asked": job.name}).encode(), is_lasting=True)


class Setup:
    """An application, a client of it and its parts."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        from dippm.server.app import make_app
        from dippm.server.metrics import Metrics
        from dippm.server.state import ServiceState

        self.folder, self.pool, self.state = folder, FakePool(), ServiceState()
        self.settings = Settings(**settings)
        self.app = make_app(
            self.settings,
            pool=self.pool,
            metrics=Metrics(),
            state=self.state,
            folder=folder,  # type: ignore[arg-type]
        )

    def run(self, use: Callable[[Any], Awaitable[None]], *, host: str = "127.0.0.1:8080") -> None:
        import httpx

        async def run() -> None:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
                await use(client)

        asyncio.run(run())


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def named(**question: object) -> dict[str, object]:
    return {"json": {"model": "timm:resnet50", **question}}


def typed(content_type: str, body: bytes) -> dict[str, object]:
    return {"content": body, "headers": {"content-type": content_type}}


def uploaded(form: Form, *arguments: Any, **options: Any) -> dict[str, object]:
    body, content_type = form(*arguments, **options)
    return typed(content_type, body)


def test_a_model_by_name_is_asked_of_a_worker_once(setup: Setup) -> None:
    async def use(client: Any) -> None:
        for expected in ("miss", "hit"):
            answer = await client.post("/v1/predict", **named(batch=[1, 8]))
            assert (answer.status_code, answer.json()) == (200, {"asked": "timm:resnet50"})
            assert answer.headers["x-dippm-cache"] == expected
        (job,) = setup.pool.jobs
        assert (job.path, job.options["batch"], job.options["device"]) == (None, [1, 8], "A100")
        assert "model" not in job.options

    setup.run(use)


def test_an_upload_is_on_disk_while_it_is_asked_about(setup: Setup, form: Form) -> None:
    async def use(client: Any) -> None:
        for name, how in (("a.onnx", "miss"), ("a.onnx", "hit"), ("b.onnx", "miss")):
            answer = await client.post("/v1/fits", **uploaded(form, b"content", name=name, options={"batch": 3}))
            assert answer.json() == {"asked": name}
            assert answer.headers["x-dippm-cache"] == how
        assert setup.pool.files == [b"content", b"content"]
        assert setup.pool.jobs[0].options["batch"] == 3
        assert list(setup.folder.iterdir()) == []

    setup.run(use)


def test_an_upload_is_gone_when_its_job_fails(setup: Setup, form: Form) -> None:
    async def use(client: Any) -> None:
        setup.pool.error = ServiceError("m", code="service.timeout", status=504)
        answer = await client.post("/v1/predict", **uploaded(form, b"x"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "service.timeout")
        setup.pool.error = ZeroDivisionError("secret")
        answer = await client.post("/v1/predict", **uploaded(form, b"y"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
        assert "secret" not in answer.text
        assert answer.headers["x-request-id"]
        assert list(setup.folder.iterdir()) == []

    setup.run(use)


def test_who_waits_with_another_is_answered_though_that_one_leaves(setup: Setup, form: Form) -> None:
    async def use(client: Any) -> None:
        setup.pool.hold = asyncio.Event()
        first = asyncio.create_task(client.post("/v1/fits", **uploaded(form, b"content")))
        while not setup.pool.jobs:
            await asyncio.sleep(0.001)
        (job,) = setup.pool.jobs
        second = asyncio.create_task(client.post("/v1/fits", **uploaded(form, b"content")))
        while len(list(setup.folder.iterdir())) < 2:
            await asyncio.sleep(0.001)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert job.path is not None
        # The worker reads it still.
        assert Path(job.path).read_bytes() == b"content"
        setup.pool.hold.set()
        answer = await second
        assert (answer.status_code, answer.headers["x-dippm-cache"]) == (200, "shared")
        assert (len(setup.pool.jobs), list(setup.folder.iterdir())) == (1, [])

    setup.run(use)


def test_a_client_that_leaves_in_the_middle_leaves_no_file(setup: Setup, form: Form) -> None:
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


@pytest.mark.parametrize(
    ("method", "path", "arguments", "status", "code"),
    [
        ("GET", "/nothing", {}, 404, "path.unknown"),
        ("GET", "/v1/predict", {}, 405, "method.unknown"),
        ("POST", "/v1/predict/", {}, 404, "path.unknown"),
        ("POST", "/v1/predict", {"content": b"x"}, 415, "request.content_type"),
        ("POST", "/v1/predict", typed("application/json", b"{"), 400, "request.invalid"),
        ("POST", "/v1/predict", {"json": {"model": "x" * 300_000}}, 413, "request.too_large"),
        ("POST", "/v1/predict", typed("multipart/form-data", b""), 400, "form.invalid"),
    ],
)  # fmt: skip
def test_every_refusal_has_the_one_form(
    setup: Setup, method: str, path: str, arguments: dict[str, Any], status: int, code: str
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


def test_a_method_that_is_not_asked_is_told_which_are(setup: Setup) -> None:
    async def use(client: Any) -> None:
        assert (await client.get("/v1/predict")).headers["allow"] == "POST"

    setup.run(use)


def test_an_upload_that_announces_too_much_is_not_read(tmp_path: Path, form: Form) -> None:
    setup = Setup(tmp_path, max_upload_mb=1)

    async def use(client: Any) -> None:
        answer = await client.post("/v1/predict", **uploaded(form, bytes(3 * 2**20)))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request.too_large")
        # Larger than a file may be, and not than a form with options.
        answer = await client.post("/v1/predict", **uploaded(form, bytes(2**20 + 1)))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "upload.too_large")

    setup.run(use)


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    setup = Setup(tmp_path, host="0.0.0.0", token=TOKEN)  # noqa: S104

    async def use(client: Any) -> None:
        for given in (None, "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xe4"):
            headers = {} if given is None else {"authorization": given.encode("latin-1")}
            for path in ("/v1/devices", "/metrics"):
                answer = await client.get(path, headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "auth.required")
                assert answer.headers["www-authenticate"] == "Bearer"
        for scheme in ("Bearer", "bearer"):
            assert (await client.get("/v1/devices", headers={"authorization": f"{scheme} {TOKEN}"})).status_code == 200
        for path in ("/healthz", "/healthz/live", "/openapi.json", "/"):
            assert (await client.get(path)).status_code == 200
        answer = await client.post("/v1/predict", **named())
        assert answer.status_code == 401
        assert setup.pool.jobs == []

    setup.run(use, host="service.example")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil"])
def test_without_a_token_other_names_of_this_machine_are_refused(setup: Setup, host: str) -> None:
    async def use(client: Any) -> None:
        for headers in ({"host": host}, {"host": "localhost:8080", "origin": f"https://{host}"}):
            answer = await client.post("/v1/predict", **named(), headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (421, "service.host")
        answer = await client.post("/v1/predict", **named(), headers={"host": "localhost", "origin": "null"})
        assert answer.status_code == 421
        for own in ("localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080", "LOCALHOST"):
            answer = await client.get("/v1/devices", headers={"host": own, "origin": f"http://{own}"})
            assert answer.status_code == 200

    setup.run(use)


def test_no_page_of_elsewhere_may_read_an_answer(setup: Setup) -> None:
    async def use(client: Any) -> None:
        answer = await client.get("/v1/devices")
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"

    setup.run(use)


def test_one_client_has_its_rate(tmp_path: Path) -> None:
    setup = Setup(tmp_path, rate_per_s=0.5)

    async def use(client: Any) -> None:
        answers = [await client.get("/v1/devices") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 429, 429]
        assert answers[1].json()["error"]["code"] == "rate.exceeded"
        assert answers[1].headers["retry-after"] == "2"
        assert (await client.get("/healthz")).status_code == 200

    setup.run(use)


def test_more_requests_than_may_be_under_way_are_told_to_come_back(tmp_path: Path) -> None:
    setup = Setup(tmp_path, max_requests=2)

    async def use(client: Any) -> None:
        setup.pool.hold = asyncio.Event()
        held = [asyncio.create_task(client.post("/v1/predict", **named(batch=size))) for size in (1, 2)]
        while len(setup.pool.jobs) < 2:
            await asyncio.sleep(0.01)
        answer = await client.post("/v1/predict", **named(batch=3))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "service.busy")
        assert answer.headers["retry-after"]
        assert (await client.get("/healthz")).status_code == 200
        setup.pool.hold.set()
        assert [(await each).status_code for each in held] == [200, 200]
        assert (await client.post("/v1/predict", **named(batch=3))).status_code == 200

    setup.run(use)


def test_health_follows_the_workers_and_the_end(setup: Setup) -> None:
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
        answer = await client.post("/v1/predict", **named())
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")

    setup.run(use)


def test_a_request_keeps_its_id(setup: Setup) -> None:
    async def use(client: Any) -> None:
        answer = await client.get("/v1/devices", headers={"x-request-id": "job-17.a_b"})
        assert answer.headers["x-request-id"] == "job-17.a_b"
        for wrong in ("x" * 65, "a b", "a;b"):
            answer = await client.get("/v1/devices", headers={"x-request-id": wrong})
            assert answer.headers["x-request-id"] != wrong
            assert len(answer.headers["x-request-id"]) == 16

    setup.run(use)


def test_figures_are_counted(setup: Setup, form: Form) -> None:
    async def use(client: Any) -> None:
        await client.post("/v1/predict", **named())
        await client.post("/v1/predict", **named())
        await client.post("/v1/inspect", **uploaded(form, b"12345"))
        await client.get("/secret-path")
        figures = (await client.get("/metrics")).text.splitlines()
        for line in (
            'dippm_requests_total{path="/v1/predict",status="200"} 2.0',
            'dippm_requests_total{path="other",status="404"} 1.0',
            'dippm_cache_total{result="hit"} 1.0',
            'dippm_cache_total{result="miss"} 2.0',
            "dippm_upload_bytes_total 5.0",
            "dippm_workers 1.0",
        ):
            assert line in figures
        assert not any("secret" in line or "_created" in line for line in figures)

    setup.run(use)


def test_devices_are_those_of_the_command_line(setup: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    from dippm import cli

    async def use(client: Any) -> None:
        answer = await client.get("/v1/devices")
        cli.main(["devices", "--json"])
        assert answer.json() == json.loads(capsys.readouterr().out)

    setup.run(use)


def test_the_description_is_whole_and_loads_nothing_from_elsewhere(setup: Setup) -> None:
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


def test_the_page_may_load_and_ask_nothing_but_the_service(setup: Setup) -> None:
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


def test_an_answer_says_of_which_file_it_is(setup: Setup, form: Form) -> None:
    async def use(client: Any) -> None:
        answer = await client.post("/v1/inspect", **uploaded(form, b"12345"))
        assert answer.headers["x-dippm-file-sha256"] == hashlib.sha256(b"12345").hexdigest()
        answer = await client.post("/v1/predict", **named())
        assert "x-dippm-file-sha256" not in answer.headers

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


def test_workers_run_as_long_as_the_application(setup: Setup) -> None:
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
