"""Protobuf tensors and attributes as Python values, small ones with their contents."""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dippm.errors import ModelReadError
from dippm.frontends.onnx.element_types import NUMPY_TYPES, element_type
from dippm.frontends.onnx.external_data import ExternalFiles
from dippm.frontends.onnx.program import Array, AttributeValue, Weight
from dippm.frontends.onnx.skeleton import KEPT_INTEGER_BYTES
from dippm.graph import DType

if TYPE_CHECKING:
    import onnx

__all__ = ["Decoder", "decode_scope"]

_EXTERNAL = 1
_RANK_LIMIT = 32
_TORCH_SCOPES = "pkg.torch.onnx.name_scopes"
_FLOAT, _INT, _STRING, _TENSOR, _FLOATS, _INTS, _STRINGS, _TENSORS, _SPARSE = 1, 2, 3, 4, 6, 7, 8, 9, 11


class Decoder:
    """Reads tensors and attributes of one model.

    Args:
        files: Its external data.
    """

    def __init__(self, files: ExternalFiles) -> None:
        self.files = files

    def tensor(self, proto: onnx.TensorProto) -> Weight:
        """A tensor's header, with its values where they are at hand and small."""
        shape = tuple(proto.dims)
        if len(shape) > _RANK_LIMIT or any(size < 0 for size in shape):
            raise ModelReadError(
                f"Tensor '{proto.name[:200]}' of the ONNX file has an impossible shape {shape[:8]}.",
                code="onnx.invalid",
            )
        dtype = element_type(proto.data_type)
        if proto.data_location == _EXTERNAL:
            entries = {str(entry.key): str(entry.value) for entry in proto.external_data}
            self.files.check(entries.get("location", ""), tensor=proto.name[:200])
            data = self._external_values(entries, shape, dtype)
        else:
            data = _values(proto, shape, dtype)
        return Weight(name=str(proto.name), shape=shape, dtype=dtype, data=data)

    def sparse_tensor(self, proto: onnx.SparseTensorProto) -> Weight:
        """A sparse tensor, known by its dense shape alone."""
        values = self.tensor(proto.values)
        self.tensor(proto.indices)
        shape = tuple(proto.dims)
        if len(shape) > _RANK_LIMIT or any(size < 0 for size in shape):
            raise ModelReadError(f"A sparse tensor has an impossible shape {shape[:8]}.", code="onnx.invalid")
        return Weight(name=values.name, shape=shape, dtype=values.dtype)

    def attribute(self, proto: onnx.AttributeProto) -> AttributeValue | None:
        """An attribute's value, None where it holds none that is understood."""
        kind = proto.type
        if kind == _INT:
            return proto.i
        if kind == _INTS:
            return list(proto.ints)
        if kind == _FLOAT:
            return proto.f
        if kind == _FLOATS:
            return list(proto.floats)
        if kind == _STRING:
            return proto.s.decode("utf-8", errors="replace")
        if kind == _STRINGS:
            return [text.decode("utf-8", errors="replace") for text in proto.strings]
        if kind == _TENSOR:
            return self.tensor(proto.t)
        if kind == _TENSORS:
            return [self.tensor(tensor) for tensor in proto.tensors]
        if kind == _SPARSE:
            return self.sparse_tensor(proto.sparse_tensor)
        return None

    def _external_values(self, entries: dict[str, str], shape: tuple[int, ...], dtype: DType) -> Array | None:
        numpy_type = NUMPY_TYPES.get(dtype)
        if numpy_type is None or dtype.is_floating:
            return None
        raw = self.files.read_small(entries, nbytes=_numel(shape) * numpy_type.itemsize)
        return None if raw is None else _from_raw(raw, shape, numpy_type)


def _values(proto: onnx.TensorProto, shape: tuple[int, ...], dtype: DType) -> Array | None:
    numpy_type = NUMPY_TYPES.get(dtype)
    if numpy_type is None:
        return None
    count = _numel(shape)
    if count * numpy_type.itemsize > KEPT_INTEGER_BYTES:
        return None
    if proto.HasField("raw_data"):
        return _from_raw(proto.raw_data, shape, numpy_type)
    stored = {
        DType.FLOAT32: proto.float_data, DType.FLOAT64: proto.double_data, DType.INT64: proto.int64_data,
        DType.UINT64: proto.uint64_data, DType.UINT32: proto.uint64_data,
    }.get(dtype, proto.int32_data)  # fmt: skip
    if len(stored) != count or (dtype is DType.FLOAT16 and count):
        return None
    values: Array = np.array(list(stored))
    with np.errstate(all="ignore"):
        return values.astype(numpy_type).reshape(shape)


def _from_raw(raw: bytes, shape: tuple[int, ...], numpy_type: np.dtype[Any]) -> Array | None:
    if len(raw) != _numel(shape) * numpy_type.itemsize:
        return None
    return np.frombuffer(raw, dtype=numpy_type).reshape(shape)


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def decode_scope(node: onnx.NodeProto) -> str:
    """The module path that PyTorch's exporters leave in a node, ``""`` where there is none.

    The older exporter writes it into the name (``/layer1/layer1.0/conv1/Conv``), the newer one into metadata.
    """
    for entry in node.metadata_props:
        if entry.key == _TORCH_SCOPES:
            try:
                scopes = ast.literal_eval(entry.value) if len(entry.value) < 10_000 else []
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                return ""
            # The last entry is the operator itself.
            modules = [scope for scope in scopes[:-1] if isinstance(scope, str)] if isinstance(scopes, list) else []
            return modules[-1] if modules else ""
    name = node.name
    # protobuf hands over as bytes what is no UTF-8.
    if not isinstance(name, str) or not name.startswith("/"):
        return ""
    return _module_path(name.rpartition("/")[0])


@lru_cache(maxsize=1024)
def _module_path(prefix: str) -> str:
    path = ""
    for part in prefix.split("/")[1:]:
        # A child of a sequence repeats the sequence's own name: /layer1/layer1.0/conv1.
        parent = path.rpartition(".")[2]
        is_repeated = bool(parent) and part.startswith(f"{parent}.")
        path = path.removesuffix(parent) + part if is_repeated or not path else f"{path}.{part}"
    return path
