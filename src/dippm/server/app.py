"""The service as an ASGI application."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from dippm import api
from dippm.server.answers import ANSWERS, DevicesAnswer, HealthAnswer
from dippm.server.description import ERRORS, SUMMARIES, add_questions, describe_body
from dippm.server.endpoints import Answerer, refuse_query
from dippm.server.errors import SCHEMA, ServiceError, error_body
from dippm.server.jobs import Verb
from dippm.server.metrics import Metrics
from dippm.server.middleware import Guard, Observer
from dippm.server.result_cache import ResultCache
from dippm.server.settings import Settings
from dippm.server.state import ServiceState
from dippm.server.uploads import UploadStore
from dippm.server.worker_pool import WorkerPool

__all__ = ["make_app"]

_STATIC = Path(__file__).with_name("static")
_JSON = "application/json"
_LEFT = 499
_ABOUT = (
    "Predicts latency, energy, memory and the MIG slice of a deep-learning model from its file, without running it. "
    "The same question has the same answer on the command line (`dippm predict --json`) and here. Within one `schema` "
    "fields may be added to answers; none is taken away, renamed or given another meaning."
)


def make_app(settings: Settings, *, pool: WorkerPool, metrics: Metrics, state: ServiceState, folder: Path) -> ASGIApp:
    """Put the service together.

    Args:
        settings: Its settings.
        pool: Its workers, which are kept going while the application runs.
        metrics: Where it counts.
        state: Whether it is about to stop.
        folder: Where uploads lie while their requests run.
    """
    kept = ResultCache(most_bytes=settings.cache_mb * 2**20)
    store = UploadStore(folder, max_upload_mb=settings.max_upload_mb, workers=settings.workers)
    answerer = Answerer(pool=pool, cache=kept, store=store, metrics=metrics)
    metrics.watch("dippm_workers", "Workers that can work.", lambda: pool.ready)
    metrics.watch("dippm_cache_bytes", "Memory that kept answers take.", lambda: kept.size_bytes)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        pool.open()
        try:
            yield
        finally:
            await pool.close()

    # No pages of documentation: they would load their scripts from other hosts.
    app = FastAPI(
        title="dippm",
        version=version("dippm"),
        description=_ABOUT,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for verb in Verb:
        app.add_api_route(
            f"/v1/{verb.value}",
            _endpoint(answerer, verb),
            methods=["POST"],
            operation_id=verb.value,
            summary=SUMMARIES[verb],
            response_class=Response,
            responses={200: {"model": ANSWERS[verb], "content": {_JSON: {}}}, **ERRORS},
            openapi_extra=describe_body(verb),
        )
    _add_others(app, pool=pool, metrics=metrics, state=state)
    _add_page(app)
    _add_errors(app)
    _describe(app, has_token=settings.token is not None)
    paths = frozenset(path for route in app.routes if isinstance(path := getattr(route, "path", None), str))
    return Observer(Guard(app, settings=settings), metrics=metrics, state=state, paths=paths)


def _endpoint(answerer: Answerer, verb: Verb) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return await answerer.answer(request, verb)

    return answer


def _add_others(app: FastAPI, *, pool: WorkerPool, metrics: Metrics, state: ServiceState) -> None:
    guarded: dict[int | str, dict[str, Any]] = {status: ERRORS[status] for status in (401, 421, 429, 503)}
    described: dict[int | str, dict[str, Any]] = {200: {"model": DevicesAnswer}, **guarded}

    @app.get("/v1/devices", summary="List the devices.", response_class=Response, responses=described)
    async def devices(request: Request) -> Response:
        refuse_query(request)
        return Response(_devices_body(), media_type=_JSON)

    @app.get("/healthz", summary="Whether requests are answered now.", responses={503: {"model": HealthAnswer}})
    async def health(response: Response) -> HealthAnswer:
        status = "stopping" if state.is_draining else "ready" if pool.ready else "starting"
        response.status_code = 200 if status == "ready" else 503
        return HealthAnswer(status=status, workers=pool.ready)

    @app.get("/healthz/live", summary="Whether the service runs, even where it cannot answer now.")
    async def live() -> HealthAnswer:
        return HealthAnswer(status="live", workers=pool.ready)

    @app.get(
        "/metrics",
        summary="Figures for Prometheus.",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}, **guarded},
    )
    async def figures() -> Response:
        return Response(metrics.render(), media_type=metrics.content_type)


def _add_page(app: FastAPI) -> None:
    app.mount("/static", StaticFiles(directory=_STATIC))

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return FileResponse(_STATIC / "index.html", headers={"Cache-Control": "no-cache"})


def _add_errors(app: FastAPI) -> None:
    """Give every error the one form."""

    @app.exception_handler(ServiceError)
    async def refuse(_: Request, exc: ServiceError) -> Response:
        return Response(error_body(exc), status_code=exc.status, media_type=_JSON, headers=dict(exc.headers))

    @app.exception_handler(HTTPException)
    async def refuse_path(request: Request, exc: HTTPException) -> Response:
        is_method = exc.status_code == 405
        what = f"{request.method} {request.url.path}"[:200]
        error = ServiceError(
            f"'{what}' is not asked this way." if is_method else f"There is nothing at '{what}'.",
            code="method.unknown" if is_method else "path.unknown",
            status=exc.status_code,
            cure="See /openapi.json.",
            headers=exc.headers or {},
        )
        return await refuse(request, error)

    @app.exception_handler(ClientDisconnect)
    async def note_absence(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=_LEFT)

    @app.exception_handler(Exception)
    async def report(request: Request, exc: Exception) -> Response:
        error = ServiceError(
            f"The service failed: {type(exc).__name__}. This is a defect of dippm.", code="internal", status=500
        )
        return await refuse(request, error)


def _describe(app: FastAPI, *, has_token: bool) -> None:
    without_questions = app.openapi

    @cache
    def describe() -> dict[str, Any]:
        return add_questions(without_questions(), has_token=has_token)

    app.openapi = describe  # type: ignore[method-assign]


@cache
def _devices_body() -> bytes:
    specs = [asdict(spec) for spec in api.list_devices()]
    return json.dumps({"schema": SCHEMA, "devices": specs}, allow_nan=False).encode()
