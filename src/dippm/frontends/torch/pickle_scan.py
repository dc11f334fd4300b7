"""What a pickle would import, found without unpickling it: no code of the file runs."""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader, BytesIO

__all__ = ["PickleScan", "scan_pickles"]

_OPCODE_LIMIT = 20_000_000
_HARMLESS_MODULES = frozenset({"collections", "torch", "torch._utils", "torch.storage", "torch.serialization"})
_HARMLESS_NAMES = frozenset(
    {
        "OrderedDict", "defaultdict", "_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3",
        "_rebuild_parameter", "_rebuild_parameter_with_state", "_rebuild_sparse_tensor", "_rebuild_qtensor",
        "_rebuild_meta_tensor_no_storage", "_rebuild_device_tensor_from_numpy", "Size", "device", "dtype", "Tensor",
        "UntypedStorage", "TypedStorage", "_get_layout", "_get_dtype",
    }
)  # fmt: skip
_HARMLESS_GLOBALS = frozenset(
    {
        "torch.nn.parameter.Parameter", "numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar",
        "numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct", "numpy.dtype", "numpy.ndarray",
        "_codecs.encode", "builtins.set", "builtins.frozenset", "builtins.bytearray", "builtins.complex",
        "__builtin__.set", "pathlib.PosixPath", "pathlib.Path", "datetime.datetime", "argparse.Namespace",
        "builtins.slice", "builtins.range",
    }
)  # fmt: skip
_STRINGS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE", "STRING", "BINSTRING"})


@dataclass(frozen=True, kw_only=True, slots=True)
class PickleScan:
    """What was found in one or more pickles.

    Args:
        globals: Everything that unpickling would import, as ``module.name``, in order of appearance.
        is_complete: Whether every pickle was read to its end.
    """

    globals: tuple[str, ...]
    is_complete: bool

    @property
    def foreign(self) -> tuple[str, ...]:
        """Those that a dictionary of tensors does not need: classes of modules, functions, anything unknown."""
        return tuple(name for name in self.globals if not _is_harmless(name))


def scan_pickles(data: bytes | BufferedReader, *, count: int = 1) -> PickleScan:
    """List what unpickling would import.

    Args:
        data: Bytes or a stream at the first opcode.
        count: Number of pickles that follow one another.
    """
    stream = BytesIO(data) if isinstance(data, bytes) else data
    found: dict[str, None] = {}
    try:
        for _ in range(count):
            found.update(dict.fromkeys(_globals_of(stream)))
    except (ValueError, IndexError, EOFError, UnicodeDecodeError, OverflowError, MemoryError):
        return PickleScan(globals=tuple(found), is_complete=False)
    return PickleScan(globals=tuple(found), is_complete=True)


def _globals_of(stream: BytesIO | BufferedReader) -> Iterator[str]:
    """Names imported by one pickle; a name that cannot be followed is reported as ``?``."""
    memo: dict[int, str] = {}
    recent: list[str] = []
    for position, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if position > _OPCODE_LIMIT:
            raise ValueError("too many opcodes")
        name = opcode.name
        if name in {"GLOBAL", "INST"}:
            yield str(argument).replace(" ", ".")
        elif name == "STACK_GLOBAL":
            yield ".".join(recent[-2:]) if len(recent) >= 2 else "?"
        elif name in {"EXT1", "EXT2", "EXT4"}:
            yield "?"
        elif name in _STRINGS:
            recent = [*recent[-3:], str(argument)]
        elif name == "MEMOIZE" and recent:
            memo[len(memo)] = recent[-1]
        elif name in {"BINPUT", "LONG_BINPUT", "PUT"} and recent:
            memo[int(str(argument))] = recent[-1]
        elif name in {"BINGET", "LONG_BINGET", "GET"}:
            recent = [*recent[-3:], memo.get(int(str(argument)), "?")]


def _is_harmless(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    if name in _HARMLESS_GLOBALS:
        return True
    return module in _HARMLESS_MODULES and (
        attribute in _HARMLESS_NAMES
        or attribute.endswith("Storage")
        or (module == "torch" and attribute.startswith(("float", "int", "uint", "bfloat", "bool", "complex", "q")))
    )
