"""Graphs as files: what a model computes, without its weights; gzipped JSON."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dippm.costs.autocast import DEFAULT_FORMAT, LOWERS_TO, NAMED_FORMATS
from dippm.errors import ModelReadError, UsageError
from dippm.graph import Graph
from dippm.graph.fingerprint import fingerprint
from dippm.graph.graph_json import graph_from_dict, graph_to_dict
from dippm.processes.collection_pause import collection_paused

__all__ = ["is_graph_file", "read_graph_file", "write_graph_file"]

_FORMAT = 1
_MAGIC = b"\x1f\x8b"
_GZIP_BITS = 31  # zlib's word for a stream of gzip
_FIRST_WORD = b'{"format":'
_LEVEL = 6
# The largest graphs of public models take 2 MiB.
_MOST_BYTES = 64 * 2**20
# With batches of up to 2^24 such sizes stay below 2^63.
_LARGEST_SIZE = 2**38
# Every text and warning is repeated in the rows of a sweep.
_LONGEST_TEXT, _MOST_WARNINGS = 2**14, 256


def is_graph_file(head: bytes) -> bool:
    """Whether a file is a graph that :func:`write_graph_file` wrote.

    Args:
        head: Its first bytes.
    """
    if not head.startswith(_MAGIC):
        return False
    try:
        return zlib.decompressobj(_GZIP_BITS).decompress(head, len(_FIRST_WORD)) == _FIRST_WORD
    except zlib.error:
        return False


def write_graph_file(graph: Graph, path: Path) -> None:
    """Write a graph; equal graphs make equal files. Whoever reads meanwhile sees the old file or the new one.

    Raises:
        UsageError: ``graph_file.unwritable``.
    """
    # The format comes first: by it the file is told. No time in the header, so that equal graphs make equal files.
    values = {"format": _FORMAT, "fingerprint": fingerprint(graph), "graph": graph_to_dict(graph)}
    content = gzip.compress(json.dumps(values, separators=(",", ":")).encode(), _LEVEL, mtime=0)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError as exc:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise UsageError(
            f"The graph cannot be written to '{path}': {exc.strerror or exc}.", code="graph_file.unwritable"
        ) from exc


def read_graph_file(path: Path) -> Graph:
    """Read a graph.

    Args:
        path: A file of :func:`write_graph_file`, or of a cache of graphs. It need not be trusted.

    Raises:
        ModelReadError: ``model.unreadable``, ``model.truncated``, ``model.too_large``, ``graph_file.invalid`` where it
            is JSON of something else, ``graph_file.format`` where another version wrote it, ``graph.invalid``.
    """
    content = _decompress(path)
    try:
        with collection_paused():
            values = json.loads(content)
            if values["format"] != _FORMAT:
                raise ModelReadError(
                    f"The graph in '{path}' has format {str(values['format'])[:20]}; this dippm reads {_FORMAT}.",
                    code="graph_file.format",
                    cure="Write it again with this dippm.",
                )
            _check_types(values["graph"])
            return graph_from_dict({**values["graph"], "source": str(path)})
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as exc:
        raise ModelReadError(
            f"'{path}' holds no graph of dippm: {type(exc).__name__} {str(exc)[:100]}.",
            code="graph_file.invalid",
            cure="Write it with dippm.save_graph.",
        ) from exc


def _decompress(path: Path) -> bytes:
    try:
        with gzip.open(path, "rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
        raise ModelReadError(
            f"The graph in '{path}' cannot be unpacked: {exc}.",
            code="model.truncated",
            cure="The file is cut off or damaged: write or copy it again.",
        ) from exc
    except OSError as exc:
        raise ModelReadError(f"'{path}' cannot be read: {exc}.", code="model.unreadable") from exc
    if len(content) > _MOST_BYTES:
        raise ModelReadError(
            f"The graph in '{path}' takes more than {_MOST_BYTES // 2**20} MiB unpacked.", code="model.too_large"
        )
    return content


def _check_types(values: dict[str, Any]) -> None:
    """Refuse what would do harm further on; what makes no graph at all is found when it is made into one.

    Raises:
        ValueError: Something is of another type or size than any graph has.
    """
    for name, shape, _dtype, _role, alias_of, per_sample, fixed in values["tensors"]:
        _demand(_is_text(name) and type(shape) is list and all(map(_is_dim, shape)), "a tensor's shape")
        _demand(all(each is None or _is_size(each) for each in (alias_of, per_sample)), "a tensor's storage")
        _demand(fixed is None or _is_offset(fixed), "a tensor's storage")
    gradients = values.get("own_gradients", [])
    for name, *tensors, _nodes in gradients:
        _demand(_is_text(name) and all(map(_are_indices, tensors)), "the tensors of a gradient of the model's own")
    nodes = [*values["nodes"], *(node for gradient in gradients for node in gradient[-1])]
    for _kind, inputs, outputs, attributes, scope, source_op, releases in nodes:
        _demand(_are_indices(inputs) and _are_indices(outputs) and _are_indices(releases), "a node's tensors")
        _demand(_is_text(scope) and _is_text(source_op), "a node's name")
        _demand(all(map(_is_attribute, attributes.values())), "a node's attributes")
        _demand(attributes.get(LOWERS_TO, DEFAULT_FORMAT) in NAMED_FORMATS, "the format of a node's autocast")
    count, held = len(values["tensors"]), values["fixed_batch"]
    # A negative index would count from the end.
    _demand(
        all(0 <= each < count for row in nodes for each in row[6])
        and _are_indices([*values["inputs"], *values["outputs"]])
        and type(values["has_lifetimes"]) is bool
        and (held is None or (_is_size(held) and held > 0))
        and all(type(values.get(name, False)) is bool for name in ("is_scored_in_fp32", "keeps_fp32_parts"))
        and _is_size(values.get("smallest_batch", 1))
        and (values.get("proved_batch") is None or _is_size(values["proved_batch"]))
        and all(_are_indices(values.get(name, [])) for name in ("other_batches", "known_batches")),
        "the graph's inputs, outputs or batch",
    )
    texts = (values["framework"], values["fixed_batch_reason"], *values["warnings"], *values["unsupported_ops"])
    _demand(len(values["warnings"]) <= _MOST_WARNINGS and all(map(_is_text, texts)), "a text")
    _demand(all(_is_size(each) for each in values["unsupported_ops"].values()), "the unsupported operators")


def _demand(is_so: bool, what: str) -> None:
    if not is_so:
        raise ValueError(f"{what} cannot be so")


def _is_text(value: object) -> bool:
    """Whether it is one that may be written: half of a surrogate pair may not."""
    if type(value) is not str or len(value) > _LONGEST_TEXT:
        return False
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST_SIZE


def _is_offset(value: object) -> bool:
    return type(value) is int and abs(value) <= _LARGEST_SIZE


def _is_dim(value: list[object]) -> bool:
    per_sample, fixed = value
    return _is_size(per_sample) and _is_offset(fixed)


def _are_indices(values: Iterable[object]) -> bool:
    return all(type(each) is int for each in values)


def _is_attribute(value: object) -> bool:
    if type(value) is list:
        return all(map(_is_offset, value))
    return type(value) in (bool, float) or _is_offset(value) or _is_text(value)
