"""Joins a Ray cluster, or starts one on this machine for as long as a command runs."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from types import ModuleType
from typing import Any

from dippm.errors import DippmError, MissingExtraError, UsageError

__all__ = ["ClusterResources", "connected_cluster", "import_ray"]

_LOG = logging.getLogger(__name__)
_AUTO, _LOCAL = "auto", "local"
_CLIENT = "ray://"
_OBJECT_STORE_BYTES = 256 * 2**20
_KNOCK_S = 10.0
_KNOCK_EVERY_S, _MISSED_KNOCKS = 5.0, 3
_CLIENT_ATTEMPTS = 4
# Ray speaks gRPC, which is HTTP/2: both sides begin with a frame of settings, here an empty one.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_FRAME_BYTES, _FRAME_TYPE, _SETTINGS = 9, slice(3, 4), b"\4"
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterResources:
    """What a cluster offers while we are connected to it.

    Args:
        nodes: Living machines.
        cpus: Processor cores of all of them.
        gpus: GPUs of all of them.
        is_own: Whether the cluster was started by us and ends with the connection.
    """

    nodes: int
    cpus: int
    gpus: int
    is_own: bool


def import_ray() -> ModuleType:
    """Ray, told to send nothing about its use to anybody.

    Raises:
        MissingExtraError: Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as exc:
        raise MissingExtraError(package="ray", extra="ray", purpose="work on a cluster") from exc
    module: ModuleType = ray
    return module


@contextmanager
def connected_cluster(
    address: str, *, cpus: int | None = None, takes_clients: bool = False
) -> Iterator[ClusterResources]:
    """Be connected to a cluster inside the ``with`` block.

    A connection that the process has already is used as it is and stays.

    Args:
        address: ``"auto"`` for the cluster that RAY_ADDRESS names or that this machine belongs to, else one started
            here and ended with the block; or where one is to be found: ``"ray://HOST:PORT"``, ``"HOST:PORT"``.
        cpus: Cores of a cluster that is started here; all when left out.
        takes_clients: Whether the work can be led from a machine outside the cluster, by Ray's client (``ray://``).

    Raises:
        MissingExtraError: Ray is not installed.
        UsageError: ``cluster.unreachable``: nothing answers there; ``cluster.refused``: it is no Ray, or wants a token;
            ``cluster.client`` for a client where the work must be led from inside.
    """
    ray = import_ray()
    if not takes_clients:
        _refuse_client(address)
    if ray.is_initialized():
        yield _resources(ray, is_own=False)
        return
    found = _find_cluster() if address == _AUTO else address
    if found is not None and not takes_clients:
        _refuse_client(found)
    with _silent_backend():
        if found is None:
            _start(ray, cpus=cpus)
        else:
            _join(ray, found)
    try:
        with _watched(found):
            yield _resources(ray, is_own=found is None)
    finally:
        ray.shutdown()


@contextmanager
def _watched(address: str | None) -> Iterator[None]:
    """Say so where the head is lost: Ray waits for it for a minute, and then ends this process without a word."""
    is_over = Event()

    def watch(head: str) -> None:
        missed = 0
        while missed < _MISSED_KNOCKS and not is_over.wait(_KNOCK_EVERY_S):
            try:
                _knock(head)
                missed = 0
            except (ValueError, OSError):
                missed += 1
        if missed == _MISSED_KNOCKS:
            _LOG.warning(
                "The head of the cluster at '%s' does not answer any more. If it stays away, Ray ends this command "
                "within a minute; the same command with --resume then goes on, on any cluster or without one.",
                head,
            )

    if address is not None:
        Thread(target=watch, args=(address,), daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def _refuse_client(address: str) -> None:
    if address.startswith(_CLIENT):
        raise UsageError(
            f"This cannot be led from outside a cluster. Got '{address}' instead of an address inside.",
            code="cluster.client",
            cure="Run the command on a machine of the cluster with 'auto', or give it to 'ray job submit'.",
        )


def _find_cluster() -> str | None:
    """The cluster that Ray would take for ``auto``: that of RAY_ADDRESS, else one of this machine; None for none."""
    from ray._private import services

    services.find_gcs_addresses.cache_clear()  # type: ignore[attr-defined]
    try:
        found: str = services.get_ray_address_from_environment(_AUTO, None)
    except ConnectionError:
        return None
    return None if found == _LOCAL else found


def _join(ray: ModuleType, address: str) -> None:
    """Connect to a cluster that is there.

    Raises:
        UsageError: ``cluster.unreachable``, ``cluster.refused``.
    """
    try:
        _knock(address)
    except (ValueError, OSError) as exc:
        raise UsageError(
            f"No Ray cluster answers at '{address}': {_first_line(exc)}.",
            code="cluster.unreachable",
            cure="Start one with 'ray start --head'. The address 'auto' takes one from RAY_ADDRESS, or from what "
            "'ray start' left on this machine ('ray stop' removes it); with RAY_ADDRESS=local it starts one here.",
        ) from exc
    try:
        for attempt in range(_CLIENT_ATTEMPTS):
            try:
                ray.init(address=address, **_QUIET)
                break
            except ConnectionAbortedError as exc:
                # The head forks a server for each client out of a process with threads, and now and then the child
                # ends before it has begun.
                if attempt == _CLIENT_ATTEMPTS - 1:
                    raise
                _LOG.info("The cluster has no server for this client yet: %s; trying again.", _last_line(exc))
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as exc:
        raise UsageError(
            f"Something listens at '{address}', but no connection to Ray came of it: {_reason(exc)}.",
            code="cluster.refused",
            cure="If the cluster was started with a token, set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to what "
            "'ray get-auth-token' prints on its head. Both sides must have the same versions of Ray and Python.",
        ) from exc


def _start(ray: ModuleType, *, cpus: int | None) -> None:
    """Start a cluster of this machine alone.

    Raises:
        DippmError: ``cluster.not_started``.
    """
    try:
        ray.init(
            address=_LOCAL,
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            **_QUIET,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as exc:
        raise DippmError(
            f"No Ray cluster could be started on this machine: {_first_line(exc)}", code="cluster.not_started"
        ) from exc


@contextmanager
def _silent_backend() -> Iterator[None]:
    """Ray's native side starts in here, and says nothing on stderr then or later; what fails is an exception anyhow."""
    name = "RAY_BACKEND_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    # It tells that it was told to be silent.
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.environ[name] = "fatal"
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
        del os.environ[name]


def _knock(address: str) -> None:
    """Find out whether anything like Ray listens there: Ray itself would try for minutes, or for ever.

    Raises:
        ValueError: It is no address, or what listens there is no Ray.
        OSError: Nothing listens there, or it is silent.
    """
    scheme, _, place = address.rpartition("://")
    host, _, port = place.rpartition(":")
    if scheme not in ("", "ray") or not host or not port.isdecimal():
        raise ValueError("an address reads 'ray://HOST:PORT' or 'HOST:PORT'")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S) as connection:
        if os.environ.get("RAY_USE_TLS", "0") != "0":
            return
        connection.sendall(_GREETING)
        if connection.recv(_FRAME_BYTES)[_FRAME_TYPE] != _SETTINGS:
            raise ValueError("what listens there is no Ray")


def _resources(ray: ModuleType, *, is_own: bool) -> ClusterResources:
    found = ray.cluster_resources()
    return ClusterResources(
        nodes=sum(bool(node["Alive"]) for node in ray.nodes()),
        cpus=int(found.get("CPU", 0)),
        gpus=int(found.get("GPU", 0)),
        is_own=is_own,
    )


def _reason(error: BaseException) -> str:
    """The server of a client hands on a whole traceback, whose last line says what it was."""
    return _last_line(error) if isinstance(error, ConnectionAbortedError) else _first_line(error)


def _last_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
