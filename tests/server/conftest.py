"""Models as files, and the service as a process of its own."""

from __future__ import annotations

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

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
