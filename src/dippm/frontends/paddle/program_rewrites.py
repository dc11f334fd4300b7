"""Programs of Paddle in the form that paddle2onnx reads, of the same shapes and work. Runs in the converter's process.

What is written for Paddle 3.3 and paddle2onnx 2.1:

- Scales of interpolations have 32 bits, where Paddle writes 64.
- A softplus has the values that the converter asks for, as its work does not depend on them.
- A deformable convolution without a mask, for which the converter ends, has its offsets in the mask's place, and
  :func:`drop_stand_ins` takes them out again.
- A mean of a whole tensor names all of its axes, where Paddle names none; the norm of one is that of a vector.
- Operators that the converter does not know, or not in every form, become others that do as much to the same shapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from types import MappingProxyType
from typing import Any

__all__ = ["drop_stand_ins", "rewrite_program"]

# Operators that reduce the axes that another operator names.
_REDUCTIONS = frozenset({"all", "any", "max", "mean", "min", "prod", "sum"})
_SOFTPLUS = {"beta": 1.0, "threshold": 20.0}
# Inputs of a deformable convolution in a program, of which an absent one has the number of no value; and in ONNX.
_OFFSETS, _MASK, _NO_VALUE = 1, 3, 0
_ONNX_OFFSETS, _ONNX_MASK = 2, 4
# Operators of one tensor, and those that do as much to each of its elements; with the attributes that they share.
_READ_AS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {"celu": ("elu", ("alpha",)), "expm1": ("exp", ()), "stanh": ("tanh", ()), "trunc": ("floor", ())}
)


class _Program:
    """The operators of a program, with what each of its tensors is made by and the numbers that are free."""

    def __init__(self, described: Any) -> None:
        self.blocks = list(_blocks(described["program"]))
        operators = [item for block in self.blocks for item in block]
        # Parameters are written apart, with one result that is in no list.
        results = [
            (item, result)
            for item in operators
            for result in ([item["O"]] if isinstance(item.get("O"), dict) else item.get("O", ()))
        ]
        self.made = {result["%"]: (item, result["TT"]) for item, result in results if "TT" in result}
        numbers = [each["%"] for block in self.blocks for item in block for each in _values(item)]
        self._free = count(max(numbers, default=0) + 1)

    def shape(self, value: Any) -> list[int] | None:
        """The shape of a tensor that an operator reads, as far as it is known; -1 is an open dimension."""
        made = self.made.get(value["%"])
        return None if made is None else made[1]["D"][1]

    def operator(self, name: str, inputs: list[Any], shape: list[int], like: Any, **attributes: Any) -> Any:
        """A new operator whose result has the type of another's."""
        kind = json.loads(json.dumps(like["O"][0]["TT"]))
        kind["D"][1] = shape
        written = [{"N": key, "AT": value} for key, value in attributes.items()]
        result = {"%": next(self._free), "TT": kind}
        return {"#": name, "A": written, "I": inputs, "O": [result], "OA": like.get("OA", [])}

    def numbers(self, values: list[int], like: Any) -> Any:
        """A new operator that makes a list of whole numbers."""
        attributes = {
            "value": {"#": "0.a_array", "D": [{"#": "0.a_i64", "D": value} for value in values]},
            "dtype": {"#": "1.a_dtype", "D": "int64"},
            "place": {"#": "1.a_place", "D": [1, 0, ""]},
        }
        made = self.operator("1.full_int_array", [], [len(values)], like, **attributes)
        made["O"][0]["TT"]["D"][0] = {"#": "0.t_i64"}
        return made


def rewrite_program(program: bytes) -> bytes:
    """A program, or the same bytes where there is nothing to rewrite in it."""
    if not _REWRITTEN.search(program):
        return program
    described = json.loads(program)
    known = _Program(described)
    for block in known.blocks:
        for item in list(block):
            rewrite = _rewrite_of(str(item.get("#", "")).rpartition(".")[2])
            if rewrite is not None:
                place = next(place for place, other in enumerate(block) if other is item)
                block[place:place] = rewrite(item, known) or []
    return json.dumps(described).encode()


def _rewrite_of(name: str) -> Callable[[Any, _Program], list[Any] | None] | None:
    return _scale_in_32_bits if name.endswith("_interp") else _REWRITES.get(name)


def _scale_in_32_bits(item: Any, _program: _Program) -> None:
    for number in _attribute(item, "scale").get("D", ()):
        number["#"] = number["#"].replace("a_f64", "a_f32")


def _plain_softplus(item: Any, _program: _Program) -> None:
    for attribute, value in _SOFTPLUS.items():
        _attribute(item, attribute).update({"#": "0.a_f32", "D": value})


def _mask_by_offsets(item: Any, _program: _Program) -> None:
    if item["I"][_MASK]["%"] == _NO_VALUE:
        item["I"][_MASK] = dict(item["I"][_OFFSETS])


def _name_all_axes(item: Any, program: _Program) -> None:
    """Let an empty list of axes name all of a tensor's."""
    data, axes = ([program.made.get(read["%"]) for read in item["I"][:2]] + [None])[:2]
    if data is None or axes is None or not axes[0]["#"].endswith("full_int_array"):
        return
    named, shape = _attribute(axes[0], "value"), data[1]["D"][1]
    if not named["D"]:
        named["D"] = [{"#": "0.a_i64", "D": axis} for axis in range(len(shape))]
        axes[1]["D"][1] = [len(shape)]


def _reduce_named_axes(item: Any, program: _Program) -> list[Any] | None:
    """``amax`` and ``amin``, which have as an attribute what ``max`` and ``min`` read."""
    shape = program.shape(item["I"][0])
    if shape is None:
        return None
    axes = [each["D"] for each in _attribute(item, "axis").get("D", ())] or list(range(len(shape)))
    made = program.numbers(axes, item)
    _become(item, item["#"].rpartition(".")[2].removeprefix("a"), [item["I"][0], _result(made)], keep=("keepdim",))
    return [made]


def _reduce_squares(item: Any, program: _Program) -> None:
    """``frobenius_norm``: a reduction of the axes that another operator names."""
    keepdim = _attribute(item, "keep_dim")
    _become(item, "mean", item["I"])
    item["A"] = [{"N": "keepdim", "AT": keepdim}]
    _name_all_axes(item, program)


def _flatten_vector(item: Any, program: _Program) -> list[Any] | None:
    """``p_norm`` of a whole tensor as if it were a vector."""
    shape = program.shape(item["I"][0])
    if shape is None or len(shape) < 2 or not _attribute(item, "asvector").get("D"):
        return None
    size = -1 if min(shape) < 0 else _product(shape)
    ends = {"start_axis": {"#": "0.a_i32", "D": 0}, "stop_axis": {"#": "0.a_i32", "D": len(shape) - 1}}
    made = program.operator("1.flatten", item["I"], [size], item, **ends)
    item["I"] = [_result(made)]
    return [made]


def _tile(item: Any, program: _Program) -> list[Any] | None:
    """``repeat_interleave``: as many copies, in another order."""
    shape = program.shape(item["I"][0])
    if shape is None:
        return None
    copies = [1] * len(shape)
    copies[_attribute(item, "axis")["D"]] = _attribute(item, "repeats")["D"]
    made = program.numbers(copies, item)
    _become(item, "tile", [item["I"][0], _result(made)])
    return [made]


def _choose(item: Any, _program: _Program) -> None:
    """``masked_fill``."""
    data, mask, value = item["I"]
    _become(item, "where", [mask, value, data])


def _multiply_and_add(item: Any, program: _Program) -> list[Any]:
    """``addmm``; its factors are part of the product."""
    added, first, second = item["I"]
    flags = {name: {"#": "0.a_bool", "D": False} for name in ("transpose_x", "transpose_y")}
    made = program.operator("1.matmul", [first, second], item["O"][0]["TT"]["D"][1], item, **flags)
    _become(item, "add", [_result(made), added])
    return [made]


def _mix(item: Any, _program: _Program) -> None:
    """``lerp``: an operator of three tensors."""
    start, end, weight = item["I"]
    _become(item, "where", [weight, start, end])


def _shuffle_channels(item: Any, program: _Program) -> list[Any] | None:
    """``channel_shuffle``: its images in groups, of which two axes change places."""
    shape = program.shape(item["I"][0])
    if shape is None or min(shape[1:]) < 0:
        return None
    batch, channels, *image = shape
    groups = _attribute(item, "groups")["D"]
    grouped = program.numbers([0, groups, channels // groups, *image], item)
    apart = [batch, groups, channels // groups, *image]
    swapped = [batch, channels // groups, groups, *image]
    opened = program.operator("1.reshape", [item["I"][0], _result(grouped)], apart, item)
    order = {"#": "0.a_array", "D": [{"#": "0.a_i32", "D": axis} for axis in (0, 2, 1, 3, 4)]}
    turned = program.operator("1.transpose", [_result(opened)], swapped, item, perm=order)
    whole = program.numbers([0, channels, *image], item)
    _become(item, "reshape", [_result(turned), _result(whole)])
    return [grouped, opened, turned, whole]


def _reduce_groups(item: Any, program: _Program) -> list[Any] | None:
    """``maxout``: the largest along an axis that is made for it."""
    shape = program.shape(item["I"][0])
    groups, axis = (_attribute(item, name)["D"] for name in ("groups", "axis"))
    if shape is None or min(shape[1:]) < 0:
        return None
    axis %= len(shape)
    parts = [*shape[:axis], shape[axis] // groups, groups, *shape[axis + 1 :]]
    grouped = program.numbers([0, *parts[1:]], item)
    opened = program.operator("1.reshape", [item["I"][0], _result(grouped)], parts, item)
    reduced = program.numbers([axis + 1], item)
    _become(item, "max", [_result(opened), _result(reduced)])
    item["A"] = [{"N": "keepdim", "AT": {"#": "0.a_bool", "D": False}}]
    return [grouped, opened, reduced]


def _shuffle_back(item: Any, _program: _Program) -> None:
    """``pixel_unshuffle`` as a shuffle of a factor below zero, for :func:`drop_stand_ins` to know it by."""
    factor = {"#": "0.a_i32", "D": -_attribute(item, "downscale_factor")["D"]}
    _become(item, "pixel_shuffle", item["I"], keep=("data_format",))
    item["A"].insert(0, {"N": "upscale_factor", "AT": factor})


def _read_as(name: str, shared: tuple[str, ...]) -> Callable[[Any, _Program], None]:
    return lambda item, _program: _become(item, name, item["I"], keep=shared)


def _become(item: Any, name: str, inputs: list[Any], *, keep: tuple[str, ...] = ()) -> None:
    """Make an operator another one, with those attributes that are kept."""
    prefix = item["#"].rpartition(".")[0]
    attributes = [attribute for attribute in item["A"] if attribute["N"] in keep]
    item.update({"#": f"{prefix}.{name}", "I": inputs, "A": attributes})


def drop_stand_ins(graph: Any) -> None:
    """Take out masks of deformable convolutions that are the offsets, and turn back shuffles of pixels that are marked.

    Args:
        graph: The converted graph, of ONNX.
    """
    for node in graph.node:
        inputs = node.input if node.op_type == "DeformConv" else ()
        if len(inputs) > _ONNX_MASK and inputs[_ONNX_MASK] == inputs[_ONNX_OFFSETS]:
            del node.input[_ONNX_MASK:]
        if node.op_type == "DepthToSpace":
            _turn_back(node)


def _turn_back(node: Any) -> None:
    """Let a shuffle of a factor below zero be the opposite one."""
    size = next(attribute for attribute in node.attribute if attribute.name == "blocksize")
    if size.i < 0:
        size.i = -size.i
        node.op_type = "SpaceToDepth"
        del node.attribute[:]
        node.attribute.append(size)


def _blocks(program: Any) -> Iterator[list[Any]]:
    """The lists of operators of a program and of the operators in it."""
    pending = [program]
    while pending:
        item = pending.pop()
        for part in ("regions", "blocks", "ops"):
            pending.extend(item.get(part, ()))
        if item.get("ops"):
            yield item["ops"]


def _values(item: Any) -> Iterator[Any]:
    """What an operator reads and makes, and what the blocks in it are handed."""
    pending = [item]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            if isinstance(each.get("%"), int):
                yield each
            pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)


def _result(operator: Any) -> dict[str, int]:
    return {"%": operator["O"][0]["%"]}


def _product(sizes: list[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _attribute(operator: Any, name: str) -> Any:
    """What an operator of a program has under a name, to be changed in its place."""
    return next((attribute["AT"] for attribute in operator["A"] if attribute["N"] == name), {})


_REWRITES: Mapping[str, Callable[[Any, _Program], list[Any] | None]] = MappingProxyType(
    {
        **dict.fromkeys(_REDUCTIONS, _name_all_axes),
        **{name: _read_as(other, shared) for name, (other, shared) in _READ_AS.items()},
        "addmm": _multiply_and_add,
        "amax": _reduce_named_axes,
        "amin": _reduce_named_axes,
        "channel_shuffle": _shuffle_channels,
        "deformable_conv": _mask_by_offsets,
        "frobenius_norm": _reduce_squares,
        "lerp": _mix,
        "masked_fill": _choose,
        "maxout": _reduce_groups,
        "p_norm": _flatten_vector,
        "pixel_unshuffle": _shuffle_back,
        "repeat_interleave": _tile,
        "softplus": _plain_softplus,
    }
)
_REWRITTEN = re.compile(rb'_interp"|full_int_array|\.(?:%s)"' % b"|".join(name.encode() for name in sorted(_REWRITES)))
