"""The shapes that a caller gives for a model's inputs: per sample, without the batch."""

from __future__ import annotations

import ast
import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dippm.errors import UsageError, quote
from dippm.frontends.call_structure import CallStructure, Fixed, Group, Leaf, Part
from dippm.graph import DType

__all__ = [
    "InputEntry", "InputShapes", "by_position", "name_position", "nearest_input", "nest_dotted_names",
    "parse_input_shapes", "unknown_input",
]  # fmt: skip

_DTYPE_NAMES = {
    "fp32": DType.FLOAT32, "float": DType.FLOAT32, "fp16": DType.FLOAT16, "half": DType.FLOAT16,
    "bf16": DType.BFLOAT16, "fp64": DType.FLOAT64, "double": DType.FLOAT64, "long": DType.INT64, "int": DType.INT32,
}  # fmt: skip
_UNBATCHED = "unbatched"
_MOST_LISTED = 20
_SHORTEST_PART = 3
_VALUE_MARK = "="
_TOO_LARGE = 2**40
_MOST_DIGITS = 13
_WORDS = {"true": True, "false": False, "none": None}


@dataclass(frozen=True, kw_only=True, slots=True)
class InputEntry:
    """One input.

    Args:
        shape: Size of one sample, without the batch; ``()`` is one number per sample. The whole size of an input that
            is not batched.
        dtype: Element type, or None to take what the model asks for (else float32).
        is_batched: Whether the batch is its first dimension; a table that all samples share has none.
        rows: How much of the first dimension one sample has. The patches of all images of a batch may lie below each
            other there.
        values: What every sample holds, in order, where the model's sizes follow from it; None where they do not. Of an
            input with one row a sample.
        batch_axis: Which of its dimensions the batch is; 1 of a sequence that has the time in front.
    """

    shape: tuple[int, ...]
    dtype: DType | None = None
    is_batched: bool = True
    rows: int = 1
    values: tuple[int, ...] | None = None
    batch_axis: int = 0

    def at(self, batch: int) -> tuple[int, ...]:
        """The size of the input at a batch size."""
        if not self.is_batched:
            return self.shape
        return (*self.shape[: self.batch_axis], batch * self.rows, *self.shape[self.batch_axis :])


@dataclass(frozen=True, kw_only=True, slots=True)
class InputShapes:
    """All inputs that a caller gave, by position or by name; both empty where nothing was given.

    Args:
        positional: Tensors by position.
        named: Tensors by name; those inside another argument by their path, parts joined by dots.
        structure: How they make up the arguments of the call, where not each is an argument of its own or where some
            arguments are no tensors; its tensors are those by name, in order.
    """

    positional: tuple[InputEntry, ...] = ()
    named: Mapping[str, InputEntry] | None = None
    structure: CallStructure | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the caller left the shapes to the file."""
        return not self.positional and not self.named and self.structure is None

    @property
    def entries(self) -> tuple[InputEntry, ...]:
        """All tensors in order."""
        return (*self.positional, *(self.named or {}).values())

    def split_values(self, what: str) -> tuple[InputShapes, dict[str, bool | int | float]]:
        """The tensors, and the inputs by name of which the caller gave the number that they hold.

        Args:
            what: What takes the inputs, such as ``"An ONNX model"``.

        Raises:
            UsageError: ``input.nested`` where there is anything else.
        """
        if self.structure is None:
            return self, {}
        values = {
            name: part.value
            for name, part in self.structure.named.items()
            if isinstance(part, Fixed) and isinstance(part.value, bool | int | float)
        }
        rest = {name: part for name, part in self.structure.named.items() if name not in values}
        if self.structure.positional or not all(isinstance(part, Leaf) for part in rest.values()):
            others = CallStructure(positional=self.structure.positional, named=rest)
            dataclasses.replace(self, structure=others).refuse_structure(what)
        return InputShapes(named=self.named), values

    def refuse_structure(self, what: str) -> None:
        """Refuse nested inputs, and arguments that are no tensors, where every input is a tensor of its own.

        Args:
            what: What takes the inputs, such as ``"An ONNX model"``.

        Raises:
            UsageError: ``input.nested``.
        """
        if self.structure is None:
            return
        values = [(name, part.value) for name, part in self.structure.named.items() if isinstance(part, Fixed)]
        got = "the value {1!r} for '{0}'".format(*values[0]) if values else "inputs that are nested or no tensors"
        raise UsageError(
            f"{what} takes tensors side by side. Got {got}.",
            code="input.nested",
            cure="Give one shape for each of its inputs, by its own name, as name=3,224,224 with a single '='.",
        )


def parse_input_shapes(given: object) -> InputShapes:
    """Bring every accepted spelling of inputs to one form.

    Args:
        given: None; ``"3,224,224"`` or ``"384:int64"``; ``(3, 224, 224)``; ``((384,), "int64")``; a list of those, by
            position, or a tuple of tuples; a dict from input name to one of those; texts with the name in front, as
            ``"ids=384:int64"`` and ``"scale==0.5"``. ``"2,90:int64:unbatched"`` and
            ``((2, 90), "unbatched")`` have no batch, and their shape is the whole one. In a list or a dict may also
            stand ``"=0.5"``, an argument that is no tensor (by name also plainly ``0.5``, ``False``, ``None``), and
            dicts, lists, tuples, named tuples and dataclasses of all these, nested.

    Raises:
        UsageError: ``input.invalid`` where the value is none of these, a size is no integer of 0 or more, or all inputs
            by position are empty; ``input.mixed`` where some texts have a name and some have none, ``input.repeated``
            where a name comes twice.
    """
    if given is None:
        return InputShapes()
    texts = [given] if isinstance(given, str) else given
    if isinstance(texts, list | tuple) and all(isinstance(each, str) for each in texts):
        given = _by_name(texts) or given
    if isinstance(given, InputShapes):
        return given
    if isinstance(given, Mapping):
        if not any(_is_structured(value) or _is_plain(value) for value in given.values()):
            return InputShapes(named={str(name): _parse_entry(value) for name, value in given.items()})
        entries: dict[str, InputEntry] = {}
        named = {str(name): _parse_part(value, entries, path=str(name)) for name, value in given.items()}
        return InputShapes(named=entries, structure=CallStructure(named=named))
    if isinstance(given, tuple) and given and all(isinstance(each, tuple | list) for each in given):
        given = list(given)
    if isinstance(given, list) and not all(isinstance(size, int) for size in given):
        if not any(_is_structured(value) for value in given):
            return InputShapes(positional=_filled([_parse_entry(value) for value in given], given=given))
        entries = {}
        parts = tuple(_parse_part(value, entries, path=f"input_{place}") for place, value in enumerate(given))
        return InputShapes(named=entries, structure=CallStructure(positional=parts))
    return InputShapes(positional=_filled([_parse_entry(given)], given=given))


def _filled(entries: Sequence[InputEntry], *, given: object) -> tuple[InputEntry, ...]:
    """The entries, of which one at least must have elements: a cache of earlier steps may be empty, a call may not."""
    if entries and all(0 in entry.shape for entry in entries):
        raise _invalid(given)
    return tuple(entries)


def _by_name(texts: Sequence[str]) -> dict[str, str]:
    """Texts by the names in front of them; empty where none has one.

    Raises:
        UsageError: ``input.mixed``, ``input.repeated``.
    """
    split = [_split_name(text) for text in texts]
    named = {name: rest for name, rest in split if name}
    if named and not all(name for name, _ in split):
        raise UsageError(
            f"Either all inputs have a name or none has. Got {', '.join(texts)} instead.",
            code="input.mixed",
            cure="Name each, as ids=384:int64; what is no tensor as scale==0.5.",
        )
    if named and len(named) < len(split):
        names = [name for name, _ in split]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise UsageError(
            f"The input '{twice}' is given twice.", code="input.repeated", cure="Give one shape for each input."
        )
    return named


def _split_name(text: str) -> tuple[str, str]:
    """Name, which may be empty, and shape or ``=`` with a value that is no tensor."""
    if text.startswith(_VALUE_MARK):
        return "", text
    name, mark, value = text.partition(2 * _VALUE_MARK)
    if mark:
        return name.strip(), _VALUE_MARK + value
    # Names of tensors may hold "=", and shapes do not, so that the last one ends the name.
    name, _, shape = text.rpartition(_VALUE_MARK)
    return name.strip(), shape


def name_position(place: int, count: int) -> str:
    """What a graph, and so an answer, calls an input that was given by position.

    Args:
        place: Its place.
        count: How many were.
    """
    return "input" if count == 1 else f"input_{place}"


def by_position(given: InputShapes, arguments: Sequence[str]) -> InputShapes:
    """Inputs that have the names of :func:`name_position` by position, where the model itself has no such names.

    Args:
        given: Shapes that a caller gave.
        arguments: Names of the model's arguments.
    """
    named = given.named or {}
    names = [name_position(place, len(named)) for place in range(len(named))]
    if not named or given.structure is not None or named.keys() != set(names) or not named.keys().isdisjoint(arguments):
        return given
    return InputShapes(positional=tuple(named[name] for name in names))


def nest_dotted_names(given: InputShapes, arguments: Sequence[str]) -> InputShapes:
    """Inputs named by paths, such as ``batch.ids``, as dicts, where only the path's first part is an argument.

    Args:
        given: Shapes that a caller gave.
        arguments: Names of the model's arguments.
    """
    leaves: Mapping[str, Part] = {name: Leaf(position=place) for place, name in enumerate(given.named or {})}
    parts = leaves if given.structure is None else given.structure.named
    paths = {name for name in parts if name not in arguments and name.partition(".")[0] in arguments}
    if given.positional or not paths:
        return given
    tree: dict[str, Any] = {}
    for name, part in parts.items():
        *outer, last = name.split(".") if name in paths else [name]
        place = tree
        for key in outer:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise _invalid(name)
        place[last] = part
    named = {name: _as_part(branch) for name, branch in tree.items()}
    return dataclasses.replace(given, structure=CallStructure(named=named))


def unknown_input(name: str, known: Sequence[str], *, of: str, why: str = "") -> UsageError:
    """The error of an input that a model does not have, with those that it has and the nearest of them.

    Args:
        name: What the caller named.
        known: Names of the model's inputs.
        of: The model, such as ``"'model.onnx'"``.
        why: What the model itself says of it, a sentence.
    """
    near = nearest_input(name, known)
    names = ", ".join(known[:_MOST_LISTED]) + (", ..." if len(known) > _MOST_LISTED else "")
    return UsageError(
        " ".join(filter(None, (f"{of} has no input '{name}'. Its inputs are: {names or 'none'}.", why))),
        code="input.name_unknown",
        cure="Use one of these names." if near is None else f"The nearest is '{near}'.",
    )


def nearest_input(name: str, known: Sequence[str]) -> str | None:
    """What was probably meant: ids is a part of input_ids, imput_ids is spelled like it; None where nothing is near."""
    if len(known) == 1:
        return known[0]
    part = name.lower()
    holding = [each for each in known if len(part) >= _SHORTEST_PART and part in each.lower()]
    return next(iter(holding or difflib.get_close_matches(name, known, n=1)), None)


def _as_part(branch: Any) -> Part:
    if not isinstance(branch, dict):
        part: Part = branch
        return part
    return Group(kind=dict, names=tuple(branch), parts=tuple(_as_part(item) for item in branch.values()))


def _is_structured(given: object) -> bool:
    """Whether a value is more than one tensor, or none."""
    if isinstance(given, str):
        return given.startswith(_VALUE_MARK)
    if isinstance(given, Mapping) or _fields_of(given):
        return True
    if not isinstance(given, (list, tuple)) or all(isinstance(size, int) for size in given):
        return False
    return not _is_typed(given) and not _is_digits(given)


def _is_plain(given: object) -> bool:
    """Whether a value is no shape but what the model is called with."""
    return given is None or isinstance(given, (bool, int, float))


def _is_typed(given: Sequence[object]) -> bool:
    """Whether this is a shape with words behind it, as ``((384,), "int64")``."""
    shape, words = given[0], given[1:]
    return (
        isinstance(given, tuple)
        and isinstance(shape, Sequence)
        and not isinstance(shape, str)
        and all(isinstance(size, int) for size in shape)
        and bool(words)
        and all(not isinstance(word, (Sequence, Mapping, InputEntry)) or isinstance(word, str) for word in words)
        and not any(isinstance(word, str) and _is_shape_text(word) for word in words)
    )


def _is_shape_text(text: str) -> bool:
    return text.startswith(_VALUE_MARK) or text.strip()[:1].isdigit()


def _is_digits(given: Sequence[object]) -> bool:
    return all(isinstance(size, str) and size.strip().isdigit() for size in given)


def _fields_of(given: object) -> tuple[str, ...]:
    """Field names of a named tuple or a dataclass, else none."""
    if isinstance(given, (InputEntry, type)):
        return ()
    if dataclasses.is_dataclass(given):
        return tuple(item.name for item in dataclasses.fields(given) if item.init)
    return tuple(getattr(given, "_fields", ())) if isinstance(given, tuple) else ()


def _parse_part(given: object, entries: dict[str, InputEntry], *, path: str) -> Part:
    if given is None or isinstance(given, (bool, int, float)):
        return Fixed(value=given)
    if not _is_structured(given):
        entries[path] = _parse_entry(given)
        return Leaf(position=len(entries) - 1)
    if isinstance(given, str):
        return Fixed(value=_parse_value(given))
    if isinstance(given, Mapping):
        kind: type = dict
        names = tuple(str(name) for name in given)
        values: Sequence[object] = list(given.values())
    elif fields := _fields_of(given):
        kind, names = type(given), fields
        values = [getattr(given, name) for name in fields]
    else:
        kind, names = type(given), ()
        values = list(given)  # type: ignore[call-overload]
    labels = names or tuple(map(str, range(len(values))))
    parts = tuple(
        _parse_part(value, entries, path=f"{path}.{label}") for label, value in zip(labels, values, strict=True)
    )
    return Group(kind=kind, names=names, parts=parts)


def _parse_value(given: str) -> bool | int | float | str | None:
    text = given.removeprefix(_VALUE_MARK).strip()
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, (bool, int, float, str)) else text


def _parse_entry(given: object) -> InputEntry:
    if isinstance(given, InputEntry):
        return given
    if isinstance(given, str):
        sizes, *words = given.split(":")
        parts = [part.strip() for part in sizes.replace("x", ",").split(",")]
        # Nothing is the shape of a number per sample, and a comma may stand at the end as in Python's tuples.
        return _make_entry(parts if parts[-1] else parts[:-1], words, given=given)
    if isinstance(given, Sequence):
        if len(given) > 1 and isinstance(given[0], Sequence) and not isinstance(given[0], str):
            return _make_entry(given[0], given[1:], given=given)
        return _make_entry(given, (), given=given)
    raise _invalid(given)


def _make_entry(sizes: Sequence[object], words: Sequence[object], *, given: object) -> InputEntry:
    dtype, is_batched = None, True
    for word in words:
        if isinstance(word, str) and word.strip().lower() == _UNBATCHED:
            is_batched = False
        elif word != "":
            dtype = _parse_dtype(word)
    return InputEntry(shape=_parse_sizes(sizes, given=given), dtype=dtype, is_batched=is_batched)


def _parse_sizes(parts: Sequence[object], *, given: object) -> tuple[int, ...]:
    sizes = []
    for part in parts:
        if isinstance(part, str) and part.isascii() and part.isdigit() and len(part) <= _MOST_DIGITS:
            size = int(part)
        else:
            size = part if isinstance(part, int) and not isinstance(part, bool) else -1
        if not 0 <= size < _TOO_LARGE:
            raise _invalid(given)
        sizes.append(size)
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
            cure="Use one of float32, float64, float16, bfloat16, int64, int32, int8, uint8, bool; an input without a "
            "batch says so behind a colon of its own: 2,90:int64:unbatched.",
        ) from exc


def _invalid(given: object) -> UsageError:
    return UsageError(
        "An input shape must be sizes of one sample without the batch, such as 3,224,224; only beside others may one "
        f"be empty. Got {quote(given)}.",
        code="input.invalid",
        cure="Name inputs as name=3,224,224, add an element type as 384:int64, and write what is no tensor as "
        "name==0.5 (in Python {'name': 0.5}).",
    )
