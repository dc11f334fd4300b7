"""Reads ``multipart/form-data`` as it comes in: a file goes to disk, never whole into memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from dippm.server.errors import ServiceError
from dippm.server.uploads import IncomingFile

__all__ = ["LARGEST_OPTIONS", "read_form"]

#: Bytes that the options of a request may have.
LARGEST_OPTIONS = 2**18
_LARGEST_PART_HEAD = 8192
_MOST_PARTS = 2
_FILE, _OPTIONS = "file", "options"


async def read_form(content_type: str, chunks: AsyncIterator[bytes], incoming: IncomingFile) -> bytes:
    """Read a form of a ``file`` and, where the client gives them, ``options``.

    Args:
        content_type: The request's, with the boundary.
        chunks: The request's body.
        incoming: Where the file goes.

    Returns:
        The options as they came; ``{}`` where none came.

    Raises:
        ServiceError: ``form.invalid``, ``form.fields``, ``form.no_file``, and those of :class:`IncomingFile`.
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 1 <= len(boundary) <= 70:
        raise _invalid("it has no boundary of 1 to 70 characters")
    form = _Form(incoming)
    try:
        parser = MultipartParser(boundary, form.callbacks())  # type: ignore[arg-type]
        async for chunk in chunks:
            parser.write(chunk)
            await form.drain()
        parser.finalize()
    except FormParserError as exc:
        raise _invalid(f"it is no multipart/form-data that can be read ({exc})") from exc
    if not form.is_complete:
        raise _invalid("its end is missing")
    if incoming.path is None:
        raise ServiceError(
            "The form has no field 'file'.", code="form.no_file", status=400, cure="Send it as -F file=@model.onnx."
        )
    await incoming.flush()
    incoming.close()
    return bytes(form.options) or b"{}"


class _Form:
    """What the parser calls back."""

    def __init__(self, incoming: IncomingFile) -> None:
        self.options = bytearray()
        self.is_complete = False
        self._incoming = incoming
        self._seen: list[str] = []
        self._field = ""
        self._name = bytearray()
        self._value = bytearray()
        self._disposition = b""
        self._head_bytes = 0
        self._pending: list[bytes] = []

    def callbacks(self) -> dict[str, object]:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._add_name,
            "on_header_value": self._add_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._add_data,
            "on_end": self._end,
        }

    async def drain(self) -> None:
        """Write what the parser found of the file."""
        pending, self._pending = self._pending, []
        for data in pending:
            await self._incoming.write(data)

    def _begin(self) -> None:
        self._disposition, self._head_bytes, self._field = b"", 0, ""

    def _add_name(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._name += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._value += data[start:end]

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > _LARGEST_PART_HEAD:
            raise _invalid("the head of a part is too large")

    def _end_header(self) -> None:
        if bytes(self._name).lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _end_headers(self) -> None:
        _, entries = parse_options_header(self._disposition)
        self._field = entries.get(b"name", b"").decode("utf-8", errors="replace")
        if self._field not in (_FILE, _OPTIONS) or self._field in self._seen or len(self._seen) >= _MOST_PARTS:
            raise ServiceError(
                f"A form has one field 'file' and at most one field 'options'. Got '{self._field[:100]}' "
                f"{'again' if self._field in self._seen else 'instead'}.",
                code="form.fields",
                status=400,
                cure="Put everything else into options, as JSON: -F 'options={\"batch\": [1, 8]}'.",
            )
        self._seen.append(self._field)
        if self._field == _FILE:
            self._incoming.open(entries.get(b"filename", b"").decode("utf-8", errors="replace"))

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._field == _FILE:
            self._pending.append(data[start:end])
            return
        if len(self.options) + end - start > LARGEST_OPTIONS:
            raise ServiceError(
                f"The options are larger than {LARGEST_OPTIONS // 1024} KiB.", code="request.too_large", status=413
            )
        self.options += data[start:end]

    def _end(self) -> None:
        self.is_complete = True


def _invalid(why: str) -> ServiceError:
    return ServiceError(f"The form cannot be read: {why}.", code="form.invalid", status=400)
