"""What answers ``/v1/predict`` and its like: reads the question, and asks a worker where no answer is kept."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from dippm.errors import quote
from dippm.server.errors import ServiceError
from dippm.server.forms import LARGEST_OPTIONS, read_form
from dippm.server.jobs import Job, Reply, Verb
from dippm.server.metrics import Metrics
from dippm.server.middleware import CACHE_HEADER
from dippm.server.questions import NAMED, OPTIONS, parse_question
from dippm.server.result_cache import ResultCache
from dippm.server.uploads import RETRY_AFTER, IncomingFile, UploadStore
from dippm.server.worker_pool import WorkerPool

__all__ = ["FILE_HEADER", "Answerer", "refuse_query"]

#: Header that says of which file an answer is.
FILE_HEADER = "X-Dippm-File-Sha256"
_JSON = "application/json"
_FORM = "multipart/form-data"
_STALL_S = 30.0
_RECEIVE_S = 900.0
# Of a form beside its file and options: boundaries and heads.
_FORM_BYTES = 2**16


class Answerer:
    """Answers questions about models.

    Args:
        pool: Workers.
        cache: Kept answers.
        store: Where uploads lie.
        metrics: Where to count.
    """

    def __init__(self, *, pool: WorkerPool, cache: ResultCache, store: UploadStore, metrics: Metrics) -> None:
        self._pool = pool
        self._cache = cache
        self._store = store
        self._metrics = metrics

    async def answer(self, request: Request, verb: Verb) -> Response:
        """Answer one request.

        Args:
            request: The request, whose body is not read yet.
            verb: What is asked.

        Raises:
            ServiceError: Whatever keeps it from being answered.
        """
        refuse_query(request)
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in {"", "identity"}:
            raise ServiceError(
                f"A body that is encoded as {quote(encoding)} is not taken.",
                code="request.content_encoding",
                status=415,
                cure="Send it as it is.",
            )
        content_type = request.headers.get("content-type", "")
        kind = content_type.partition(";")[0].strip().lower()
        if kind == _JSON:
            asked = parse_question(NAMED[verb], await self._read(request))
            name: str = asked.pop("model")
            return await self._respond(Job(verb=verb, name=name, path=None, content=name, options=asked))
        if kind == _FORM:
            return await self._answer_form(request, verb, content_type)
        raise ServiceError(
            f"The content type must be {_JSON} or {_FORM}. Got '{kind[:100]}' instead.",
            code="request.content_type",
            status=415,
        )

    async def _answer_form(self, request: Request, verb: Verb, content_type: str) -> Response:
        most = self._store.most_bytes + LARGEST_OPTIONS + _FORM_BYTES
        async with self._store.receive() as incoming:
            options = await read_form(content_type, _chunks(request, most=most), incoming)
            self._metrics.upload_bytes.inc(incoming.size)
            asked = parse_question(OPTIONS[verb], options)
            job = Job(verb=verb, name=incoming.name, path=str(incoming.path), content=incoming.content, options=asked)
            return await self._respond(job, incoming)

    async def _read(self, request: Request) -> bytes:
        body = bytearray()
        async for chunk in _chunks(request, most=LARGEST_OPTIONS):
            body += chunk
        return bytes(body)

    async def _respond(self, job: Job, incoming: IncomingFile | None = None) -> Response:
        async def ask() -> Reply:
            if incoming is None:
                return await self._pool.ask(job)
            async with incoming.reading():
                return await self._pool.ask(job, prepare=incoming.claim_unpacked)

        reply, how = await self._cache.answer(job.key, ask)
        self._metrics.cache.labels(result=how).inc()
        headers = {CACHE_HEADER: how} | ({} if job.path is None else {FILE_HEADER: job.content})
        if reply.status == HTTPStatus.SERVICE_UNAVAILABLE:  # a worker found no room to unpack
            headers |= RETRY_AFTER
        return Response(reply.body, status_code=reply.status, media_type=_JSON, headers=headers)


def refuse_query(request: Request) -> None:
    """Refuse what stands behind a question mark: nothing is asked there.

    Raises:
        ServiceError: ``request.query``.
    """
    names = list(request.query_params)
    if names:
        raise ServiceError(
            f"There is no query parameter '{names[0][:100]}'.",
            code="request.query",
            status=400,
            cure="Options stand in the body of a request, as JSON.",
        )


async def _chunks(request: Request, *, most: int) -> AsyncIterator[bytes]:
    """The body as it comes in, within bounds on size and time."""
    length = request.headers.get("content-length", "0")
    left = most
    if length.isdigit() and int(length) > left:
        raise _too_large(most)
    stream = request.stream()
    end_s = asyncio.get_running_loop().time() + _RECEIVE_S
    while True:
        try:
            wait_s = min(_STALL_S, end_s - asyncio.get_running_loop().time())
            async with asyncio.timeout(wait_s):
                chunk = await anext(stream, None)
        except TimeoutError as exc:
            raise ServiceError(
                "The request came too slowly.", code="request.too_slow", status=408, headers={"Connection": "close"}
            ) from exc
        if chunk is None:
            return
        left -= len(chunk)
        if left < 0:
            raise _too_large(most)
        yield chunk


def _too_large(most: int) -> ServiceError:
    return ServiceError(
        f"The request is larger than {math.ceil(most / 2**20):,} MiB.",
        code="request.too_large",
        status=413,
        cure="Leave the weights out where the format allows it, ask dippm on your own machine, or have the service "
        "take more (--max-upload-mb).",
    )
