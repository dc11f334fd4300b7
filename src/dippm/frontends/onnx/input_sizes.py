"""Which shape each input has at a batch size: the file's word, the caller's word, and where the batch stands."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dippm.errors import UsageError
from dippm.frontends.inputs import InputEntry, InputShapes, unknown_input
from dippm.frontends.onnx.program import InputDeclaration
from dippm.graph import Dim, DType

__all__ = ["InputPlan", "plan_inputs"]

_BATCH_NAMES = frozenset({"n", "b", "bs", "bsz", "batch"})
_EXAMPLE_SIZES = {"height": 224, "width": 224, "h": 224, "w": 224, "channels": 3, "c": 3}
_EXAMPLE_LENGTH = 128
_BATCH = Dim(1, 0)
# "batch", "2*batch", "batch*2 + 1": what a number of samples becomes as PyTorch's exporter derives one size of another.
_GROWTH = re.compile(r"(?:(\d{1,9})\s*\*\s*)?([^\W\d]\w*)(?:\s*\*\s*(\d{1,9}))?(?:\s*\+\s*(\d{1,9}))?")
_ARITHMETIC = re.compile(r"[*+]|\s-\s|[/%]\s*\d|\w\(")


@dataclass(frozen=True, kw_only=True, slots=True)
class InputPlan:
    """Shapes of all inputs as functions of the batch.

    Args:
        sizes: For each input its sizes, a :class:`~dippm.graph.Dim` where the batch stands.
        dtypes: Element type of each input.
        native_batch: The batch that the file fixes, None where it leaves the batch open.
        conflicts: For each input whose shape the caller changed, what was got and what the file says.
        has_batch: Whether any input carries the batch.
        is_batch_named: Whether the file itself calls a dimension the batch.
    """

    sizes: tuple[tuple[int | Dim, ...], ...]
    dtypes: tuple[DType, ...]
    native_batch: int | None
    conflicts: tuple[str, ...]
    has_batch: bool
    is_batch_named: bool

    def at(self, batch: int) -> list[tuple[int, ...]]:
        """Every input's shape at a batch size."""
        return [tuple(size.at(batch) if isinstance(size, Dim) else size for size in sizes) for sizes in self.sizes]


def plan_inputs(
    declarations: Sequence[InputDeclaration], given: InputShapes, *, time_first: Collection[int] = ()
) -> InputPlan:
    """Settle the shape of every input.

    Args:
        declarations: The inputs as the file declares them.
        given: The caller's shapes, per sample.
        time_first: Positions of inputs whose batch stands in the second dimension, where the file names none.

    Raises:
        UsageError: ``input.name_unknown``, ``input.count``, ``input.rank``, ``input.dtype``, ``input.shape_needed``,
            ``input.shape_conflict``, ``input.batch_unclear``.
    """
    entries = _match(declarations, given)
    _refuse_other_kinds(declarations, entries)
    axes = [
        axis if _is_batched(entries.get(declaration.name)) else None
        for declaration, axis in zip(declarations, _batch_axes(declarations, time_first), strict=True)
    ]
    named = _named_sizes(declarations, entries, axes)
    sizes: list[tuple[int | Dim, ...]] = []
    native: int | None = None
    is_open = False
    conflicts: list[str] = []
    for position, (declaration, axis) in enumerate(zip(declarations, axes, strict=True)):
        entry = entries.get(declaration.name)
        if declaration.dims is None:
            sizes.append(_undeclared(declaration, entry, is_time_first=position in time_first))
            is_open = is_open or declaration.is_tensor
            continue
        wanted = _apply(declaration, axis, entry, named)
        if entry is not None and any(
            isinstance(size, int) and dim != size for dim, size in zip(declaration.dims, wanted, strict=True)
        ):
            conflicts.append(
                f"'{declaration.name}' got {','.join(map(str, entry.shape))}, the file says "
                f"{','.join(str(dim or '?') for dim in _sample_dims(declaration, axis))}"
            )
        if axis is not None:
            stated = declaration.dims[axis]
            if isinstance(stated, int):
                native = stated if native is None else native
            else:
                is_open = True
        sizes.append(wanted)
    dtypes = []
    for declaration in declarations:
        entry = entries.get(declaration.name)
        dtypes.append(declaration.dtype if entry is None or entry.dtype is None else entry.dtype)
    return InputPlan(
        sizes=tuple(sizes),
        dtypes=tuple(dtypes),
        native_batch=None if is_open else native,
        conflicts=tuple(conflicts),
        has_batch=any(isinstance(size, Dim) for shape in sizes for size in shape),
        is_batch_named=any(
            isinstance(dim, str) and _is_batch_name(dim) for each in declarations for dim in each.dims or ()
        ),
    )


def _match(declarations: Sequence[InputDeclaration], given: InputShapes) -> dict[str, InputEntry]:
    names = [declaration.name for declaration in declarations]
    if len(given.positional) > len(names):
        raise UsageError(
            f"{len(given.positional)} input shapes are given; the model has {len(names)} inputs: {_listed(names)}.",
            code="input.count",
            cure="Give at most one shape for each input.",
        )
    entries = dict(zip(names, given.positional, strict=False))
    for name, entry in (given.named or {}).items():
        if name not in names:
            raise unknown_input(name, names, of="The model")
        entries[name] = entry
    return entries


def _refuse_other_kinds(declarations: Sequence[InputDeclaration], entries: Mapping[str, InputEntry]) -> None:
    """Another width may be given, but not real numbers for whole ones: what reads them could not run."""
    for declaration in declarations:
        entry, stated = entries.get(declaration.name), declaration.dtype
        if entry is None or entry.dtype is None or stated is DType.OTHER:
            continue
        if entry.dtype.is_floating != stated.is_floating:
            raise UsageError(
                f"The elements of input '{declaration.name}' are {stated.value} in the file. Got {entry.dtype.value}.",
                code="input.dtype",
                cure=f"Leave the element type out, or give {stated.value}.",
            )


def _is_batched(entry: InputEntry | None) -> bool:
    """Whether an input may have the batch, which a caller can deny."""
    return entry is None or entry.is_batched


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")


def _is_batch_name(name: str) -> bool:
    growth = _GROWTH.fullmatch(name.strip())
    symbol = (growth[2] if growth else name).lower()
    return "batch" in symbol or symbol in _BATCH_NAMES


def _growth(declaration: InputDeclaration, axis: int) -> Dim:
    """How the dimension in which the batch stands follows it."""
    stated = (declaration.dims or ())[axis]
    if isinstance(stated, int):
        return _BATCH
    growth = _GROWTH.fullmatch(stated.strip())
    if growth is not None:
        return Dim(int(growth[1] or 1) * int(growth[3] or 1), int(growth[4] or 0))
    if _ARITHMETIC.search(stated):
        raise UsageError(
            f"Dimension {axis + 1} of input '{declaration.name}' is '{stated[:100]}', which does not tell how it "
            "follows the batch.",
            code="input.batch_unclear",
            cure="Name it in the file after the batch alone, as a multiple of it such as '2*batch', or give it a size.",
        )
    return _BATCH


def _batch_axes(declarations: Sequence[InputDeclaration], time_first: Collection[int]) -> list[int | None]:
    """For each input where the batch stands, None where it has none."""
    axes: list[int | None] = []
    for position, declaration in enumerate(declarations):
        dims = declaration.dims or ()
        named = [axis for axis, dim in enumerate(dims) if isinstance(dim, str) and _is_batch_name(dim)]
        if named:
            axes.append(named[0])
        elif position in time_first and len(dims) > 1:
            axes.append(1)
        else:
            axes.append(0 if dims else None)
    shared = {
        dim
        for declaration, axis in zip(declarations, axes, strict=True)
        if axis is not None and declaration.dims
        for dim in [declaration.dims[axis]]
    }
    texts = {dim for dim in shared if isinstance(dim, str)}
    if texts:
        # Where one input leaves the batch open, a fixed first dimension elsewhere is no batch.
        is_named = any(_is_batch_name(text) for text in texts)
        for position, (declaration, axis) in enumerate(zip(declarations, axes, strict=True)):
            stated = declaration.dims[axis] if axis is not None and declaration.dims else None
            is_other = is_named and isinstance(stated, str) and stated != "" and not _is_batch_name(stated)
            if isinstance(stated, int) or is_other:
                axes[position] = None
        return axes
    leading = sorted(time_first) or range(len(declarations))
    placed = [(declarations[position].dims, axes[position]) for position in leading]
    first = next((dims[axis] for dims, axis in placed if axis is not None and dims), None)
    for position, (declaration, axis) in enumerate(zip(declarations, axes, strict=True)):
        dims = declaration.dims or ()
        if axis is not None and dims and dims[axis] != first:
            # Beside inputs that take time first, one of another length does so too.
            axes[position] = 1 if time_first and dims[1:2] == (first,) else None
    return axes


def _sample_dims(declaration: InputDeclaration, axis: int | None) -> list[int | str]:
    dims = list(declaration.dims or ())
    if axis is not None:
        del dims[axis]
    return dims


def _named_sizes(
    declarations: Sequence[InputDeclaration], entries: Mapping[str, InputEntry], axes: Sequence[int | None]
) -> dict[str, int]:
    """Sizes of named dimensions, as far as the caller's shapes tell."""
    named: dict[str, int] = {}
    for declaration, axis in zip(declarations, axes, strict=True):
        entry = entries.get(declaration.name)
        dims = _sample_dims(declaration, axis)
        if entry is None or len(entry.shape) != len(dims):
            continue
        for dim, size in zip(dims, entry.shape, strict=True):
            if isinstance(dim, str) and dim and named.setdefault(dim, size) != size:
                raise UsageError(
                    f"Dimension '{dim}' of the model is given as {named[dim]} and, in input '{declaration.name}', as "
                    f"{size}.",
                    code="input.shape_conflict",
                    cure="Give one size wherever the file uses the same name.",
                )
    return named


def _undeclared(
    declaration: InputDeclaration, entry: InputEntry | None, *, is_time_first: bool
) -> tuple[int | Dim, ...]:
    if not declaration.is_tensor:
        raise UsageError(
            f"Input '{declaration.name}' is no tensor but a sequence, map or optional value.",
            code="input.not_a_tensor",
            cure="Export the model with tensors as inputs.",
        )
    if entry is None:
        raise UsageError(
            f"The file does not say which shape input '{declaration.name}' has.",
            code="input.shape_needed",
            cure=f"Give it, for example: --input {declaration.name}=3,224,224",
        )
    if not entry.is_batched:
        return entry.shape
    front = int(is_time_first and len(entry.shape) > 0)
    return (*entry.shape[:front], _BATCH, *entry.shape[front:])


def _apply(
    declaration: InputDeclaration, axis: int | None, entry: InputEntry | None, named: Mapping[str, int]
) -> tuple[int | Dim, ...]:
    dims = list(declaration.dims or ())
    if entry is not None:
        wanted: list[int | Dim] = list(entry.shape)
        if not entry.is_batched and len(wanted) != len(dims):
            raise UsageError(
                f"Input '{declaration.name}' has {len(dims)} dimensions in all. Got {len(wanted)} of it unbatched: "
                f"{', '.join(map(str, wanted)) or 'none'}.",
                code="input.rank",
                cure="Give the whole shape of an unbatched input, or leave 'unbatched' out.",
            )
        if axis is not None and len(wanted) == len(dims) - 1:
            wanted.insert(axis, _growth(declaration, axis))
        elif axis is None and dims and len(wanted) == len(dims) - 1 and isinstance(dims[0], int):
            wanted.insert(0, dims[0])
        elif len(wanted) != len(dims) or axis is not None:
            shown = [dim or "?" for dim in _sample_dims(declaration, axis)]
            raise UsageError(
                f"Input '{declaration.name}' has {len(shown)} dimensions without the batch "
                f"({', '.join(str(dim) for dim in shown) or 'none'}). Got {len(entry.shape)}: "
                f"{', '.join(map(str, entry.shape)) or 'none'}.",
                code="input.rank",
                cure="Give the shape of one sample, without the batch.",
            )
        return tuple(wanted)
    result: list[int | Dim] = []
    for position, dim in enumerate(dims):
        if position == axis:
            result.append(_growth(declaration, position))
        elif isinstance(dim, int):
            result.append(dim)
        elif dim in named and dim:
            result.append(named[dim])
        else:
            raise _shape_needed(declaration, axis, position)
    return tuple(result)


def _shape_needed(declaration: InputDeclaration, axis: int | None, position: int) -> UsageError:
    example = []
    sample = _sample_dims(declaration, axis)
    for other in sample:
        size = other if isinstance(other, int) else _EXAMPLE_SIZES.get(other.lower(), _EXAMPLE_LENGTH)
        example.append(str(size))
    dim = (declaration.dims or ())[position]
    number = position + 1 if axis is None or position < axis else position
    called = f"dimension '{dim}'" if dim else f"dimension {number} of {len(sample)}, the batch not counted,"
    return UsageError(
        f"The file leaves {called} of input '{declaration.name}' open.",
        code="input.shape_needed",
        cure=f"Give its shape without the batch, for example: --input {declaration.name}={','.join(example)}",
    )
