"""The service as people run it: a process, asked over a socket."""

from __future__ import annotations

import http.client
import io
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TOKEN = "a-token-of-some-length"  # noqa: S105


class Evil:
    """Would run a command when its pickle is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def zipped(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def test_a_model_is_predicted_as_on_the_command_line(
    service: Any, onnx_bytes: Callable[..., bytes], onnx_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dippm import cli

    answer = service.upload("predict", onnx_bytes(), name=str(onnx_file), options={"batch": [1, 8], "device": "T4"})
    assert cli.main(["predict", str(onnx_file), "--batch", "1,8", "--device", "T4", "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    expected["model"]["source"] = "small.onnx"
    assert (answer.status, answer.json) == (200, expected)
    assert answer.headers["x-dippm-cache"] == "miss"
    again = service.upload("predict", onnx_bytes(), name="small.onnx", options={"device": "T4", "batch": [1, 8]})
    assert (again.headers["x-dippm-cache"], again.body) == ("hit", answer.body)
    assert service.uploads() == []


def test_all_verbs_answer(service: Any, onnx_bytes: Callable[..., bytes]) -> None:
    wide = onnx_bytes(channels=1024)
    assert service.upload("fits", onnx_bytes()).json["fits"][0]["fits"] == "yes"
    assert service.upload("max-batch", wide, options={"latency_ms": 0.3}).json["max_batches"][0]["batch"] > 1
    assert len(service.upload("inspect", onnx_bytes(), options={"top": 1}).json["operators"]) == 1
    assert service.upload("predict", zipped(**{"m.onnx": onnx_bytes()}), name="m.zip").json["model"]["nodes"] == 2


def test_hostile_uploads_are_refused_and_the_worker_lives(
    service: Any, onnx_bytes: Callable[..., bytes], tmp_path: Path
) -> None:
    good, mark = onnx_bytes(nodes=50), tmp_path / "mark"
    pickled = pickle.dumps(Evil(mark))
    uploads: dict[str, tuple[bytes, str, int]] = {
        "noise": (os.urandom(2**20), "noise.onnx", 422),
        "noise that says ONNX": (b"\x08\x07\x12" + os.urandom(2**16), "noise.onnx", 422),
        "empty": (b"", "empty.onnx", 422),
        "cut off": (good[: len(good) // 2], "cut.onnx", 422),
        "zeros": (bytes(2**22), "zeros.onnx", 422),
        "a pickle": (pickled, "model.pt", 422),
        "a pickle named otherwise": (pickled, "model.onnx", 422),
        "a pickle in an archive of PyTorch": (zipped(**{"archive/data.pkl": pickled}), "model.pt", 422),
        "a zip bomb": (zipped(**{"saved_model.pb": bytes(64 * 2**20)}), "bomb.zip", 422),
        "names that lead elsewhere": (zipped(**{"../../evil.onnx": good}), "evil.zip", 422),
        "many members": (zipped(**{f"f{number}": b"" for number in range(5000)}), "many.zip", 422),
        "no archive": (os.urandom(1000), "none.zip", 422),
        "nothing in it that is known": (zipped(**{"readme.txt": b"x"}), "readme.zip", 422),
        "a path for a name": (good, "../../../../etc/passwd", 415),
        "too large": (bytes(9 * 2**20), "large.onnx", 413),
    }
    found = {name: service.upload("predict", body, name=file) for name, (body, file, _) in uploads.items()}
    statuses = {name: answer.status for name, answer in found.items()}
    assert statuses == {name: status for name, (_, _, status) in uploads.items()}
    codes = {name: answer.code for name, answer in found.items()}
    assert not {"model.unforeseen", "service.worker_died", "internal"} & set(codes.values()), codes
    assert not mark.exists()
    assert b"pickle" in found["a pickle"].body
    assert service.upload("predict", good).status == 200
    assert service.uploads() == []
    assert b"/tmp" not in b"".join(answer.body for answer in found.values())


def test_a_name_with_a_path_in_it_is_only_shown(service: Any, onnx_bytes: Callable[..., bytes]) -> None:
    answer = service.upload("predict", onnx_bytes(), name="../../../tmp/x.onnx")
    assert answer.json["model"]["source"] == "x.onnx"


def test_a_client_that_leaves_leaves_no_file(service: Any, onnx_bytes: Callable[..., bytes], form: Any) -> None:
    body, content_type = form(bytes(4 * 2**20))
    connection = http.client.HTTPConnection("127.0.0.1", service.port)
    connection.putrequest("POST", "/v1/predict")
    connection.putheader("Content-Type", content_type)
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders()
    connection.send(body[: 2 * 2**20])
    end = time.monotonic() + 20
    while not service.uploads() and time.monotonic() < end:
        time.sleep(0.01)
    assert len(service.uploads()) == 1
    connection.close()
    while service.uploads() and time.monotonic() < end:
        time.sleep(0.01)
    assert service.uploads() == []
    assert service.wait_for_status(499)["path"] == "/v1/predict"


def test_a_stop_loses_no_request_and_leaves_nothing(
    start_service: Any, tmp_path: Path, onnx_bytes: Callable[..., bytes]
) -> None:
    with start_service(tmp_path, "--workers", "1", "--drain-s", "1") as service:
        statuses: list[int] = []
        bodies = [onnx_bytes(nodes=1500 + number) for number in range(4)]
        threads = [
            threading.Thread(target=lambda body=body: statuses.append(service.upload("predict", body).status))
            for body in bodies
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert service.ask("/healthz").json["status"] == "stopping"
        # Who still comes is answered, and asked to come to another service the next time.
        late = service.upload("predict", onnx_bytes())
        assert (late.status, late.headers["connection"]) == (200, "close")
        for thread in threads:
            thread.join()
        assert statuses == 4 * [200]
        assert service.process.wait(60) == 0
        assert service.wait_for("service.stopped")
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", service.port)):
            pass


def test_workers_end_with_the_service_however_it_ends(start_service: Any, tmp_path: Path) -> None:
    with start_service(tmp_path, "--workers", "1") as service:
        worker = service.worker
        service.process.kill()
        service.process.wait()
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                os.kill(worker, 0)
            except ProcessLookupError:
                break
            time.sleep(0.05)
        else:
            pytest.fail("the worker is still there")
    shutil.rmtree(next(tmp_path.glob("dippm-serve-*")))


def test_the_token_is_read_and_never_shown(start_service: Any, tmp_path: Path) -> None:
    with start_service(tmp_path, "--host", "0.0.0.0", "--workers", "1", DIPPM_TOKEN=TOKEN) as service:  # noqa: S104
        assert service.ask("/v1/devices").status == 401
        assert service.ask("/v1/devices", authorization=f"Bearer {TOKEN}").status == 200
        assert service.ask("/healthz").status == 200
        environment = Path(f"/proc/{service.worker}/environ")
        if environment.exists():
            assert TOKEN.encode() not in environment.read_bytes()
        assert service.stop() == 0
        while not service.lines.empty():
            assert TOKEN not in json.dumps(service.lines.get())


def run(*words: str) -> tuple[int, str]:
    found = subprocess.run(
        [sys.executable, "-m", "dippm", "serve", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={name: value for name, value in os.environ.items() if name != "DIPPM_TOKEN"},
    )
    return found.returncode, found.stderr


def test_an_address_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, said = run("--port", str(taken.getsockname()[1]))
    assert status == 2
    assert "[service.address]" in said


def test_the_service_does_not_open_itself_to_others_without_a_token(tmp_path: Path) -> None:
    status, said = run("--host", "0.0.0.0", "--port", "0")  # noqa: S104
    assert status == 2
    assert "[service.token_missing]" in said
    status, said = run("--token-file", str(tmp_path / "absent"))
    assert status == 2
    assert "[service.token_file]" in said
