"""Runs the service until it is told to stop."""

from __future__ import annotations

import math
import signal
import socket
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from dippm.api import MissingExtraError, UnsupportedError, UsageError
from dippm.server.settings import Settings
from dippm.server.worker_process import WorkerProcess

if TYPE_CHECKING:
    import uvicorn

    from dippm.server.state import ServiceState

__all__ = ["serve"]

_EXTRA = {"fastapi": "fastapi", "uvicorn": "uvicorn", "python_multipart": "python-multipart",
          "prometheus_client": "prometheus-client"}  # fmt: skip
_BACKLOG = 2048
# Longer than proxies keep a connection: it is for them to close it first.
_KEEP_ALIVE_S = 75
_SETTLE_S = 0.2


def serve(settings: Settings) -> None:
    """Serve until the process is told to stop by SIGTERM or SIGINT.

    Args:
        settings: Settings of the service.

    Raises:
        MissingExtraError: The extra ``serve`` is not installed.
        UnsupportedError: ``service.platform`` on Windows.
        UsageError: ``service.address`` where the address cannot be listened on.
    """
    for module, package in _EXTRA.items():
        if find_spec(module) is None:
            raise MissingExtraError(package=package, extra="serve", purpose="run the service")
    if sys.platform == "win32":
        raise UnsupportedError(
            "The service needs a system with limits for processes: Linux or macOS.",
            code="service.platform",
            cure="Run it in a container.",
        )
    listener = _listen(settings)
    # Until the server itself listens to signals, an order to stop must clear up as well.
    before = signal.signal(signal.SIGTERM, _stop_early)
    with tempfile.TemporaryDirectory(prefix="dippm-serve-", ignore_cleanup_errors=True) as folder, listener:
        # The first worker gets ready while the service is being imported.
        first = WorkerProcess(settings, Path(folder))
        try:
            _run(settings, listener=listener, folder=Path(folder), first=first)
        finally:
            first.clear_up()
            signal.signal(signal.SIGTERM, before)


def _stop_early(_: int, __: FrameType | None) -> None:
    raise SystemExit(0)


def _run(settings: Settings, *, listener: socket.socket, folder: Path, first: WorkerProcess) -> None:
    import uvicorn

    from dippm.server.app import make_app
    from dippm.server.logs import configure_logs, log_event
    from dippm.server.metrics import Metrics
    from dippm.server.state import ServiceState
    from dippm.server.worker_pool import WorkerPool

    configure_logs()
    state, metrics = ServiceState(), Metrics()
    pool = WorkerPool(settings, metrics, folder, first=first)
    app = make_app(settings, pool=pool, metrics=metrics, state=state, folder=folder)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(settings.grace_s),
    )
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    log_event("service.started", {"url": url, "workers": settings.workers})
    server = _make_server(config, state, drain_s=settings.drain_s)
    server.run(sockets=[listener])
    log_event("service.stopped")


def _listen(settings: Settings) -> socket.socket:
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as exc:
        raise UsageError(
            f"The service cannot listen on {settings.host}, port {settings.port}: {exc.strerror or exc}.",
            code="service.address",
            cure="Choose another --port or --host.",
        ) from exc
    return listener


def _make_server(config: uvicorn.Config, state: ServiceState, *, drain_s: float) -> uvicorn.Server:
    import uvicorn

    class DrainingServer(uvicorn.Server):
        """Goes on answering for a while once it is told to stop, so that no request is lost on its way."""

        _stop_at = math.inf

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's
            """A first signal ends the service in peace, a second one drops the rest of its time for that."""
            if not state.is_draining:
                state.is_draining = True
                # Whoever sits at a terminal does not wait for requests that may still come.
                self._stop_at = time.monotonic() + (drain_s if sig == signal.SIGTERM else 0.0)
            elif self.should_exit:
                self.force_exit = True
            else:
                self.should_exit = True

        async def on_tick(self, counter: int) -> bool:
            """Whether to stop now."""
            if time.monotonic() >= self._stop_at:
                self.should_exit = True
            return await super().on_tick(counter)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Stop listening, read what has come in already, then let all of it finish."""
            import asyncio

            for server in self.servers:
                server.close()
            await asyncio.sleep(_SETTLE_S)
            await super().shutdown(sockets)

    return DrainingServer(config)
