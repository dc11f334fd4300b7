"""One small Ray of this machine for all tests that need one, and one of two nodes for programs that tests disturb."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

_LIMIT_S = 120


@pytest.fixture(scope="session", autouse=True)
def _variables() -> None:
    """All clusters here ask for a token, and all that tests start knows it; nothing is left in the home folder."""
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    # A training looks after its workers every 2 s by itself.
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.2"


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A local Ray of two cores, which this process is connected to; ended at the end."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_BACKEND_LOG_LEVEL"] = "fatal"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray = pytest.importorskip("ray")
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=128 * 2**20,
            log_to_driver=False,
            logging_level="ERROR",
        )
    yield
    ray.shutdown()


class TwoNodes:
    """A Ray cluster of two nodes in a process of its own, and what a test may do to it.

    One whose head has ended by itself is started anew when its address is asked for: what a busy machine does to Ray is
    not what the tests are about.

    Args:
        environment: Variables of it, and of the programs that use it, beside those of this process.
    """

    def __init__(self, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        self.environment = os.environ | environment
        self._start()

    @property
    def address(self) -> str:
        self._make_answer()
        return self._address

    @property
    def client_address(self) -> str:
        self._make_answer()
        return self._client_address

    def tell(self, command: str) -> None:
        """``remove`` the second node, ``add`` another one, or ``behead`` the cluster."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        assert self._read() == "done"

    def close(self) -> None:
        self._process.communicate(timeout=_LIMIT_S)

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("two_nodes.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self.environment,
        )
        self._address, _, self._client_address = self._read().partition(" ")
        assert self._address, "the cluster did not start"

    def _make_answer(self) -> None:
        host, _, port = self._address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_LIMIT_S).close()
        except ConnectionRefusedError:
            self.close()
            self._start()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[TwoNodes]:
    """A cluster of two nodes with a core each, which this process is not connected to."""
    pytest.importorskip("ray")
    cluster = TwoNodes()
    yield cluster
    cluster.close()


@pytest.fixture
def gpu_nodes() -> Iterator[TwoNodes]:
    """Another cluster of two nodes, which say that they have two GPUs each."""
    pytest.importorskip("ray")
    cluster = TwoNodes({"DIPPM_TEST_GPUS": "2"})
    yield cluster
    cluster.close()


@pytest.fixture
def doomed_nodes() -> Iterator[TwoNodes]:
    """Another cluster of two nodes, for a test that kills its head: all wait for 3 s for it instead of a minute."""
    pytest.importorskip("ray")
    cluster = TwoNodes({"RAY_gcs_rpc_server_reconnect_timeout_s": "3"})
    yield cluster
    cluster.close()
