"""Models as files, and the service as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from onnx import TensorProto, helper

if TYPE_CHECKING:
    from dippm.server.jobs import Job, Reply

_NEEDED = ("fastapi", "uvicorn", "python_multipart", "prometheus_client", "httpx")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests of the service are left out where its extra is not installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing and Path(__file__).parent in item.path.parents:
        pytest.skip(f"not installed: {', '.join(missing)}")


def make_onnx(*, nodes: int = 2, channels: int = 8) -> bytes:
    """A model of so many activations after one matrix multiplication."""
    shape = ["batch", channels]
    operators = [helper.make_node("Gemm", ["x", "w"], ["v0"])]
    operators += [helper.make_node("Relu", [f"v{place}"], [f"v{place + 1}"]) for place in range(nodes - 1)]
    graph = helper.make_graph(
        operators,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(f"v{nodes - 1}", TensorProto.FLOAT, shape)],
        [helper.make_tensor("w", TensorProto.FLOAT, [channels, channels], bytes(4 * channels**2), raw=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


@pytest.fixture(name="onnx_bytes", scope="session")
def _onnx_bytes() -> Callable[..., bytes]:
    return make_onnx


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.onnx"
    path.write_bytes(make_onnx())
    onnx.checker.check_model(str(path))
    return path


_BOUNDARY = "b0undary"


def make_form(
    file: bytes | None, *, name: str = "small.onnx", options: object = None, fields: dict[str, str] | None = None
) -> tuple[bytes, str]:
    """A form's body and content type."""
    parts = []
    if file is not None:
        parts.append(
            f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode("utf-8", "surrogateescape")
            + file
        )
    values = dict(fields or {})
    if options is not None:
        values["options"] = options if isinstance(options, str) else json.dumps(options)
    parts += [f'Content-Disposition: form-data; name="{key}"\r\n\r\n{value}'.encode() for key, value in values.items()]
    mark = f"--{_BOUNDARY}".encode()
    body = b"".join(mark + b"\r\n" + part + b"\r\n" for part in parts) + mark + b"--\r\n"
    return body, f"multipart/form-data; boundary={_BOUNDARY}"


@pytest.fixture(name="form", scope="session")
def _form() -> Callable[..., tuple[bytes, str]]:
    return make_form


@dataclass(kw_only=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


@dataclass(kw_only=True)
class Service:
    """``dippm serve`` as a process, on a free port."""

    process: subprocess.Popen[str]
    port: int
    folder: Path
    lines: queue.Queue[dict[str, Any]]
    worker: int = 0
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, path: str, body: bytes | None = None, *, method: str | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            given = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method or ("GET" if body is None else "POST"), path, body=body, headers=given)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(status=response.status, headers=found, body=response.read())

    def ask_json(self, verb: str, **question: object) -> Answer:
        return self.ask(f"/v1/{verb}", json.dumps(question).encode(), content_type="application/json")

    def upload(self, verb: str, file: bytes | None, **form: Any) -> Answer:
        body, content_type = make_form(file, **form)
        return self.ask(f"/v1/{verb}", body, content_type=content_type)

    def wait_for(self, event: str, *, seconds: float = 60) -> dict[str, Any]:
        """The next line of the log of this kind."""
        end = time.monotonic() + seconds
        while True:
            line = self.lines.get(timeout=max(0.01, end - time.monotonic()))
            if line["event"] == event:
                return line

    def wait_for_status(self, status: int) -> dict[str, Any]:
        """The next request in the log that was answered so."""
        while True:
            line = self.wait_for("request")
            if line["status"] == status:
                return line

    def uploads(self) -> list[Path]:
        """What lies on disk for requests."""
        return list(self.folder.glob("dippm-serve-*/upload-*"))

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextlib.contextmanager
def run_service(folder: Path, *words: str, **variables: str) -> Iterator[Service]:
    """The service with these options, ready to answer."""
    environment = {name: value for name, value in os.environ.items() if name != "DIPPM_TOKEN"}
    process = subprocess.Popen(
        [sys.executable, "-m", "dippm", "serve", "--port", "0", "--drain-s", "0", *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "TMPDIR": str(folder), "DIPPM_CACHE": "", **variables},
    )
    lines: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.put(json.loads(line))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    service = Service(process=process, port=0, folder=folder, lines=lines)
    try:
        service.port = int(service.wait_for("service.started")["url"].rpartition(":")[2])
        service.worker = service.wait_for("worker.ready")["worker"]
        yield service
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join(10)
        if process.stderr is not None:
            process.stderr.close()


@pytest.fixture(name="start_service", scope="session")
def _start_service() -> Callable[..., contextlib.AbstractContextManager[Service]]:
    return run_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all tests of a module: one worker, small limits."""
    options = ("--workers", "1", "--max-upload-mb", "8", "--timeout-s", "30", "--memory-mb", "3072")
    with run_service(tmp_path_factory.mktemp("service"), *options) as running:
        yield running


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
        from dippm.server.jobs import Reply

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
        from dippm.server.settings import Settings
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

    @staticmethod
    def named(**question: object) -> dict[str, object]:
        """A question about a model by name, as the client sends it."""
        return {"json": {"model": "timm:resnet50", **question}}

    @staticmethod
    def uploaded(*arguments: Any, **options: Any) -> dict[str, object]:
        """A question with a file, as the client sends it; arguments are those of ``make_form``."""
        body, content_type = make_form(*arguments, **options)
        return {"content": body, "headers": {"content-type": content_type}}

    def run(self, use: Callable[[Any], Awaitable[None]], *, host: str = "127.0.0.1:8080") -> None:
        import httpx

        async def run() -> None:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
                await use(client)

        asyncio.run(run())


@pytest.fixture(scope="session")
def make_setup() -> type[Setup]:
    return Setup


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


@pytest.fixture
def count_turns() -> Callable[[], contextlib.AbstractAsyncContextManager[list[int]]]:
    """How often another task had its turn meanwhile."""

    @contextlib.asynccontextmanager
    async def counting() -> AsyncIterator[list[int]]:
        turns: list[int] = []

        async def count() -> None:
            while True:
                await asyncio.sleep(0.01)
                turns.append(len(turns))

        counter = asyncio.create_task(count())
        try:
            yield turns
        finally:
            counter.cancel()

    return counting
