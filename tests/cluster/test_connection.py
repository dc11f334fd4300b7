from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dippm.cluster import connection
from dippm.cluster.connection import ClusterResources, connected_cluster, import_ray
from dippm.errors import MissingExtraError, UsageError

# How a gRPC server begins.
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


@contextmanager
def listen(answer: bytes | None) -> Iterator[str]:
    """Address of a server that says this to whoever comes first, and hangs up; of a silent one for None."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as visitor:
                visitor.recv(64)
                visitor.sendall(answer or b"")

        thread = threading.Thread(target=serve)
        if answer is not None:
            thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        if answer is not None:
            thread.join()


def test_a_missing_ray_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError) as caught:
        import_ray()
    assert (caught.value.package, caught.value.extra) == ("ray", "ray")
    with pytest.raises(MissingExtraError), connected_cluster("auto"):
        pass


@pytest.fixture(name="ray")
def _ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray as if this process were connected to nothing."""
    pytest.importorskip("ray")
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.shutdown", lambda: None)


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(
    "address", ["nonsense", "", ":6379", "host:", "host:port", "http://127.0.0.1:1", "ray://127.0.0.1", "127.0.0.1:1"]
)
def test_an_address_where_nothing_answers_is_said_at_once(address: str) -> None:
    with pytest.raises(UsageError) as caught, connected_cluster(address, takes_clients=True):
        pass
    assert caught.value.code == "cluster.unreachable"
    assert f"'{address}'" in str(caught.value)


@pytest.mark.usefixtures("ray")
def test_what_listens_and_is_no_cluster_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: object) -> None:
        raise RuntimeError(f"Version mismatch at {options['address']}\nmore lines")

    monkeypatch.setattr("ray.init", init)
    with (
        listen(SETTINGS) as address,
        pytest.raises(UsageError, match="Version mismatch") as caught,
        connected_cluster(address),
    ):
        pass
    assert caught.value.code == "cluster.refused"
    assert "more lines" not in str(caught.value)


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize("failures", [0, 1, 3, 4])
def test_a_server_for_a_client_that_did_not_start_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    asked: list[object] = []

    def init(**options: object) -> None:
        asked.append(options["address"])
        if len(asked) <= failures:
            raise ConnectionAbortedError("Initialization failure from server:\nTraceback\nRuntimeError: no server")

    for name, answer in (("cluster_resources", {}), ("nodes", [])):
        monkeypatch.setattr(f"ray.{name}", lambda answer=answer: answer)
    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr(connection, "_knock", lambda address: None)
    if failures < 4:
        with connected_cluster("ray://127.0.0.1:1", takes_clients=True):
            pass
    else:
        with (
            pytest.raises(UsageError, match="RuntimeError: no server") as caught,
            connected_cluster("ray://127.0.0.1:1", takes_clients=True),
        ):
            pass
        assert caught.value.code == "cluster.refused"
    assert asked == ["ray://127.0.0.1:1"] * min(failures + 1, 4)


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(
    ("answer", "words"), [(b"HTTP/1.1 400 Bad Request", "no Ray"), (b"", "no Ray"), (None, "timed out")]
)
def test_what_listens_and_is_no_ray_is_said_soon(
    monkeypatch: pytest.MonkeyPatch, answer: bytes | None, words: str
) -> None:
    """A web server, one that hangs up, and one that is silent."""
    monkeypatch.setattr(connection, "_KNOCK_S", 0.2)
    monkeypatch.setattr("ray.init", lambda **_: pytest.fail("Ray would try for ever"))
    with listen(answer) as address, pytest.raises(UsageError, match=words) as caught, connected_cluster(address):
        pass
    assert caught.value.code == "cluster.unreachable"


@pytest.mark.usefixtures("ray")
def test_a_head_that_is_lost_is_said_before_ray_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "_KNOCK_EVERY_S", 0.01)
    for name, answer in (("init", None), ("cluster_resources", {}), ("nodes", [])):
        monkeypatch.setattr(f"ray.{name}", lambda answer=answer, **_: answer)
    with listen(SETTINGS) as address:
        connected = connected_cluster(address)
        connected.__enter__()
    try:
        until = time.monotonic() + 20.0
        while "does not answer any more" not in caplog.text:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert address in caplog.text
        assert "--resume" in caplog.text
    finally:
        connected.__exit__(None, None, None)


@pytest.fixture(name="alone")
def _alone(ray: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine on which no Ray runs; the file in which ``ray start`` leaves the address of its cluster."""
    from ray._private import services

    def find_none() -> set[str]:
        return set()

    find_none.cache_clear = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setattr(services, "find_gcs_addresses", find_none)
    monkeypatch.setattr("ray.cluster_resources", dict)
    monkeypatch.setattr("ray.nodes", list)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "ray").mkdir()
    return tmp_path / "ray" / "ray_current_cluster"


@pytest.mark.parametrize("place", ["variable", "file"])
def test_a_dead_cluster_that_auto_names_is_said_at_once(
    alone: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr("ray.init", lambda **_: pytest.fail("Ray would try for minutes"))
    if place == "variable":
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    else:
        alone.write_text("127.0.0.1:1")
    with pytest.raises(UsageError, match="Connection refused") as caught, connected_cluster("auto"):
        pass
    assert caught.value.code == "cluster.unreachable"


def test_a_cluster_that_auto_names_and_that_refuses_is_not_replaced(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def init(address: str, **_: object) -> None:
        asked.append(address)
        raise ConnectionError("Failed to connect")

    monkeypatch.setattr("ray.init", init)
    with listen(SETTINGS) as address:
        alone.write_text(address)
        with pytest.raises(UsageError, match="RAY_AUTH_TOKEN") as caught, connected_cluster("auto"):
            pass
    assert caught.value.code == "cluster.refused"
    assert asked == [address]


@pytest.mark.parametrize("named", ["", "local", "auto"])
@pytest.mark.usefixtures("alone")
def test_a_machine_of_no_cluster_starts_its_own(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    asked: list[object] = []
    monkeypatch.setattr("ray.init", lambda **options: asked.append((options["address"], options["num_cpus"])))
    monkeypatch.setenv("RAY_ADDRESS", named)
    with connected_cluster("auto", cpus=3) as resources:
        assert resources.is_own
    assert asked == [("local", 3)]


@pytest.mark.usefixtures("alone")
def test_a_client_may_be_named_by_the_variable_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:1")
    for takes_clients, code in ((False, "cluster.client"), (True, "cluster.unreachable")):
        with pytest.raises(UsageError) as caught, connected_cluster("auto", takes_clients=takes_clients):
            pass
        assert caught.value.code == code


@pytest.mark.usefixtures("ray")
def test_ray_is_told_to_report_nothing_of_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    import_ray()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_connection_that_is_there_is_used_and_stays() -> None:
    import ray

    gpus = int(ray.cluster_resources().get("GPU", 0))
    with connected_cluster("127.0.0.1:1") as resources:
        assert resources == ClusterResources(nodes=1, cpus=2, gpus=gpus, is_own=False)
    assert ray.is_initialized()


@pytest.mark.usefixtures("ray")
def test_what_must_be_led_from_inside_refuses_a_client() -> None:
    with pytest.raises(UsageError) as caught, connected_cluster("ray://127.0.0.1:1"):
        pass
    assert caught.value.code == "cluster.client"


@pytest.mark.slow
def test_the_command_that_the_cure_names_is_there() -> None:
    pytest.importorskip("ray")
    words = [sys.executable, "-m", "ray.scripts.scripts", "get-auth-token", "--help"]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert "--generate" in said
    assert "~/.ray/auth_token" in said
