"""The shapes that a caller gives for a model's inputs: per sample, without the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dippm.errors import UsageError
from dippm.graph import DType

__all__ = ["InputEntry", "InputShapes", "parse_input_shapes"]

_DTYPE_NAMES = {
    "fp32": DType.FLOAT32, "float": DType.FLOAT32, "fp16": DType.FLOAT16, "half": DType.FLOAT16,
    "bf16": DType.BFLOAT16, "fp64": DType.FLOAT64, "double": DType.FLOAT64, "long": DType.INT64, "int": DType.INT32,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class InputEntry:
    """One input.

    Args:
        shape: Size of one sample, without the batch; ``()`` is one number per sample.
        dtype: Element type, or None to take what the model asks for (else float32).
    """

    shape: tuple[int, ...]
    dtype: DType | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class InputShapes:
    """All inputs that a caller gave, by position or by name; both empty where nothing was given."""

    positional: tuple[InputEntry, ...] = ()
    named: Mapping[str, InputEntry] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the caller left the shapes to the file."""
        return not self.positional and not self.named


def parse_input_shapes(given: object) -> InputShapes:
    """Bring every accepted spelling of input shapes to one form.

    Args:
        given: None; ``"3,224,224"`` or ``"384:int64"``; ``(3, 224, 224)``; ``((384,), "int64")``; a list of those, by
            position; a dict from input name to one of those.

    Raises:
        UsageError: ``input.invalid`` where the value is none of these or a size is not a positive integer.
    """
    if given is None:
        return InputShapes()
    if isinstance(given, InputShapes):
        return given
    if isinstance(given, Mapping):
        return InputShapes(named={str(name): _parse_entry(value) for name, value in given.items()})
    if isinstance(given, list) and not all(isinstance(size, int) for size in given):
        return InputShapes(positional=tuple(_parse_entry(value) for value in given))
    return InputShapes(positional=(_parse_entry(given),))


def _parse_entry(given: object) -> InputEntry:
    if isinstance(given, InputEntry):
        return given
    if isinstance(given, str):
        sizes, _, dtype = given.partition(":")
        parts = [part.strip() for part in sizes.replace("x", ",").split(",") if part.strip()]
        return InputEntry(shape=_parse_sizes(parts, given=given), dtype=_parse_dtype(dtype) if dtype else None)
    if isinstance(given, Sequence):
        if len(given) == 2 and isinstance(given[0], Sequence) and not isinstance(given[0], str):
            return InputEntry(shape=_parse_sizes(given[0], given=given), dtype=_parse_dtype(given[1]))
        return InputEntry(shape=_parse_sizes(given, given=given))
    raise _invalid(given)


def _parse_sizes(parts: Sequence[object], *, given: object) -> tuple[int, ...]:
    sizes = []
    for part in parts:
        is_number = (isinstance(part, int) and not isinstance(part, bool)) or (
            isinstance(part, str) and part.isascii() and part.isdigit()
        )
        if not is_number or int(str(part)) <= 0 or int(str(part)) >= 2**40:
            raise _invalid(given)
        sizes.append(int(str(part)))
    return tuple(sizes)


def _parse_dtype(given: object) -> DType:
    if isinstance(given, DType):
        return given
    name = str(given).strip().lower().removeprefix("torch.")
    if name in _DTYPE_NAMES:
        return _DTYPE_NAMES[name]
    try:
        return DType(name)
    except ValueError as exc:
        raise UsageError(
            f"Unknown element type '{given}' in an input shape.",
            code="input.dtype_unknown",
            cure="Use one of float32, float16, bfloat16, int64, int32, int8, uint8, bool.",
        ) from exc


def _invalid(given: object) -> UsageError:
    return UsageError(
        f"An input shape must be positive sizes of one sample without the batch, such as 3,224,224. Got {given!r}.",
        code="input.invalid",
        cure="Name inputs as name=3,224,224 and add an element type as 384:int64.",
    )
