"""What happens to every request, whatever it asks: who may ask, what is counted and logged, what browsers are told."""

from __future__ import annotations

import hmac
import logging
import math
import re
import secrets
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dippm.server.errors import ServiceError, error_body
from dippm.server.logs import log_event
from dippm.server.metrics import Metrics
from dippm.server.rate_limit import RateLimit
from dippm.server.settings import Settings
from dippm.server.state import ServiceState

__all__ = ["CACHE_HEADER", "Guard", "Observer"]

#: Header that says whether an answer was kept (``hit``), shared with another request, or worked out (``miss``).
CACHE_HEADER = "X-Dippm-Cache"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LONGEST_PATH = 200
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_COMMON_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ANSWER_POLICY = "default-src 'none'; frame-ancestors 'none'"
_QUIET = ("/healthz", "/healthz/live", "/metrics")


def _is_page(path: str) -> bool:
    return path == "/" or path.startswith("/static/")


def _is_guarded(path: str) -> bool:
    return path.startswith("/v1/") or path == "/metrics"


class Observer:
    """Gives every request an id, counts and logs it, and sets the headers that every answer has.

    Args:
        app: What answers.
        metrics: Where to count.
        state: Whether the service is about to stop.
        paths: Paths to count under their own name.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics, state: ServiceState, paths: frozenset[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._state = state
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        path: str = scope["path"]
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        # 499, as proxies have it: the client left before there was an answer.
        seen: dict[str, object] = {"status": 499}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_COMMON_HEADERS)
                headers["X-Request-Id"] = request_id
                headers["Content-Security-Policy"] = _PAGE_POLICY if _is_page(path) else _ANSWER_POLICY
                headers.setdefault("Cache-Control", "no-store")
                if self._state.is_draining:
                    headers["Connection"] = "close"
                seen["status"] = message["status"]
                seen["cache"] = headers.get(CACHE_HEADER)
            await send(message)

        try:
            with self._metrics.under_way.track_inprogress():
                await self._app(scope, receive, send_with_headers)
        except Exception as exc:  # noqa: BLE001 - the answer, status 500, is sent; what is left is to say where it was
            fields = {"request_id": request_id, "exception": repr(exc)[:_LONGEST_PATH]}
            log_event("defect", fields, level=logging.ERROR)
        finally:
            self._note(scope, request_id, seen, seconds=time.perf_counter() - start)

    def _note(self, scope: Scope, request_id: str, seen: dict[str, object], *, seconds: float) -> None:
        path: str = scope["path"]
        label = path if path in self._paths else "other"
        self._metrics.requests.labels(path=label, status=str(seen["status"])).inc()
        self._metrics.seconds.labels(path=label).observe(seconds)
        if path in _QUIET:
            return
        client = scope.get("client")
        fields = {
            "request_id": request_id,
            "client": client[0] if client else None,
            "method": scope["method"],
            "path": path[:_LONGEST_PATH],
            "status": seen["status"],
            "ms": round(1e3 * seconds, 2),
        }
        log_event("request", fields | ({"cache": seen["cache"]} if seen.get("cache") else {}))


class Guard:
    """Lets through who may ask, as often as they may, while there is room.

    Args:
        app: What answers.
        settings: Settings of the service.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self._app = app
        self._token = None if settings.token is None else settings.token.encode()
        self._names = _LOCAL_NAMES | {settings.host.lower()}
        self._rate = RateLimit(per_s=settings.client_rate_per_s)
        self._most = settings.max_requests
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] != "http" or not _is_guarded(scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except ServiceError as exc:
            await _send_error(exc, send)
            return
        self._under_way += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        client = scope.get("client")
        wait_s = self._rate.take(client[0] if client else "")
        if wait_s > 0:
            raise ServiceError(
                "Too many requests.",
                code="rate.exceeded",
                status=429,
                cure=f"Try again in {wait_s:.1f} s.",
                headers={"Retry-After": str(math.ceil(wait_s))},
            )
        if self._token is None:
            self._check_name(headers)
        else:
            self._check_token(self._token, headers)
        if self._under_way >= self._most:
            raise ServiceError(
                f"{self._most} requests are under way already.",
                code="service.busy",
                status=503,
                cure="Try again later.",
                headers={"Retry-After": "1"},
            )

    def _check_name(self, headers: Headers) -> None:
        """Refuse what a web page of elsewhere makes a browser on this machine ask."""
        name = _host_name(headers.get("host", ""))
        origin = headers.get("origin")
        if name not in self._names or (origin is not None and _host_name(urlsplit(origin).netloc) not in self._names):
            raise ServiceError(
                "Without a token the service answers to the names of this machine alone.",
                code="service.host",
                status=421,
                cure="Ask 127.0.0.1, or start the service with a token.",
            )

    def _check_token(self, token: bytes, headers: Headers) -> None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode("latin-1", errors="replace"), token)
        if scheme.lower() != "bearer" or not is_right:
            raise ServiceError(
                "The request has no valid token.",
                code="auth.required",
                status=401,
                cure="Send the header 'Authorization: Bearer TOKEN'.",
                headers={"WWW-Authenticate": "Bearer"},
            )


def _host_name(host: str) -> str:
    """The name in a Host header or an origin, without its port."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).strip("[]").lower()


async def _send_error(error: ServiceError, send: Send) -> None:
    body = error_body(error)
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **error.headers}
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
