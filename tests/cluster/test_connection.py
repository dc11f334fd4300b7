from __future__ import annotations

import os
import socket
import sys

import pytest

from dippm.cluster import connection
from dippm.cluster.connection import ClusterResources, connected_cluster, import_ray
from dippm.errors import MissingExtraError, UsageError


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
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UsageError, match="Version mismatch") as caught, connected_cluster(address):
            pass
    assert caught.value.code == "cluster.refused"
    assert "more lines" not in str(caught.value)


@pytest.mark.usefixtures("ray")
def test_ray_is_told_to_report_nothing_of_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    import_ray()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_connection_that_is_there_is_used_and_stays() -> None:
    import ray

    with connected_cluster("127.0.0.1:1") as resources:
        assert resources == ClusterResources(nodes=1, cpus=2, gpus=resources.gpus, is_own=False)
    assert ray.is_initialized()
    assert connection.AUTO == "auto"


@pytest.mark.usefixtures("ray")
def test_what_must_be_led_from_inside_refuses_a_client() -> None:
    with pytest.raises(UsageError) as caught, connected_cluster("ray://127.0.0.1:1"):
        pass
    assert caught.value.code == "cluster.client"
