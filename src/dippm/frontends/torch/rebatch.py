"""Runs a program that was exported for one batch size at another one.

``torch.export`` writes the batch size of its example into the arguments of views. Where the element counts show which
dimension it went into, the argument is scaled; the reader then checks the whole graph against the exported shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from math import prod
from typing import Any

import torch

__all__ = ["Followed", "Rebatcher"]

_VIEWS = frozenset({"view", "reshape", "_unsafe_view", "_reshape_copy", "view_copy"})
_FACTORIES = frozenset({"zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty"})
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
_REPEATS = {"repeat": "repeats", "tile": "dims"}
_BAGS = frozenset({"embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"})


class Followed(IntEnum):
    """What follows the batch where it is of the exported batch's size; each takes in what stands before it."""

    VIEWS = 0
    """Views, and tensors that are filled with one number."""
    REPEATS = 1
    """Tables that are repeated as often as the batch has samples."""
    RANGES = 2
    """Ranges of as many numbers as the batch has samples."""


class Rebatcher:
    """Adapts the arguments of operators from one batch size to another.

    Args:
        exported: Batch size that is written into the program.
        wanted: Batch size that the program runs at.
        followed: What is taken to follow the batch.
    """

    def __init__(self, *, exported: int, wanted: int, followed: Followed = Followed.VIEWS) -> None:
        self._exported = exported
        self._wanted = wanted
        self._followed = followed

    def adapt(
        self, target: str, arguments: dict[str, Any], *, graph: Mapping[str, Any], node: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Arguments for the wanted batch size.

        Args:
            target: The operator, as ``torch.ops.aten.view.default``.
            arguments: Its arguments by name.
            graph: The program's graph, for the shapes that it was exported with.
            node: The node in it.
        """
        name = target.split(".")[3]
        if name in _VIEWS:
            key = "shape" if "shape" in arguments else "size"
            return {**arguments, key: self._view(arguments, key, graph=graph, node=node)}
        if name == "expand":
            return {**arguments, "size": self._expand(arguments["self"], arguments["size"])}
        if name in _FACTORIES and self._exported > 1:
            return {**arguments, "size": [self._scaled_if_batch(size) for size in arguments["size"]]}
        if name in {"cat", "stack"}:
            return {**arguments, "tensors": self._aligned(arguments["tensors"], arguments.get("dim", 0), name)}
        if name in _RECURRENT and "input" in arguments:
            return self._recurrent(arguments)
        if name == "arange" and self._followed >= Followed.RANGES:
            return self._range(arguments)
        if name in _BAGS and self._followed >= Followed.RANGES:
            return self._bags(arguments, graph=graph, node=node)
        if (name in _REPEATS or name == "repeat_interleave") and self._followed >= Followed.REPEATS:
            return self._repeated(name, arguments, graph=graph, node=node)
        return arguments

    def _repeated(
        self, name: str, arguments: dict[str, Any], *, graph: Mapping[str, Any], node: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What is repeated once for each sample, unless it follows the batch by itself."""
        source = arguments["self"]
        if _exported_shape(graph, node, key="self") != list(source.shape):
            return arguments
        if name in _REPEATS:
            return {**arguments, _REPEATS[name]: self._counts(source.shape, arguments[_REPEATS[name]])}
        if arguments.get("repeats") != self._exported or self._exported == 1:
            return arguments
        size = arguments.get("output_size")
        grown = None if size is None else size // self._exported * self._wanted
        return {**arguments, "repeats": self._wanted, "output_size": grown}

    def _range(self, arguments: dict[str, Any]) -> dict[str, Any]:
        start, step = arguments.get("start", 0), arguments.get("step", 1)
        is_range = self._exported > 1 or step > 1  # a range of one number tells nothing, but where bags begin
        if not is_range or -((start - arguments["end"]) // step) != self._exported:
            return arguments
        return {**arguments, "end": start + self._wanted * step}

    def _counts(self, shape: Sequence[int], counts: Sequence[int]) -> list[int]:
        sizes = [1] * (len(counts) - len(shape)) + list(shape)
        first = len(sizes) - len(counts)
        if self._exported == 1:
            # Code that repeats nothing at all meant the batch.
            is_batch = first == 0 and sizes[0] == 1 and all(count == 1 for count in counts)
            found = [0] if is_batch else []
        else:
            repeated = [position for position, count in enumerate(counts) if count == self._exported]
            single = [position for position in repeated if sizes[first + position] == 1]
            found = [0] if 0 in repeated else single
        if len(found) != 1:
            return list(counts)
        return [self._wanted if position == found[0] else count for position, count in enumerate(counts)]

    def _bags(self, arguments: dict[str, Any], *, graph: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
        """Offsets of bags, as many for each sample as there were when the program was exported."""
        indices, offsets = arguments["indices"], arguments["offsets"]
        before = _exported_shape(graph, node, key="indices")
        last = int(bool(arguments.get("include_last_offset")))
        bags = offsets.numel() - last
        is_held = _exported_shape(graph, node, key="offsets") == list(offsets.shape)
        if not is_held or not before or not before[0] or bags * indices.numel() % prod(before):
            return arguments
        wanted = bags * indices.numel() // prod(before) + last
        return arguments if wanted == bags + last else {**arguments, "offsets": offsets[:1].expand(wanted)}

    def _scaled_if_batch(self, size: Any) -> Any:
        return self._wanted if size == self._exported else size

    def _view(
        self, arguments: Mapping[str, Any], key: str, *, graph: Mapping[str, Any], node: Mapping[str, Any]
    ) -> list[int]:
        source, sizes = arguments["self"], [int(size) for size in arguments[key]]
        known = prod(size for size in sizes if size != -1)
        total = source.numel()
        before = _exported_shape(graph, node, key="self")
        if before is None or (-1 not in sizes and known == total):
            return sizes
        if prod(before) == total:
            return sizes
        after = list(sizes)
        if -1 in sizes:
            after[sizes.index(-1)] = prod(before) // max(known, 1)
        scaled = [i for i, (old, new) in enumerate(zip(before, source.shape, strict=False)) if old != new]
        if len(scaled) != 1:
            return sizes
        position = scaled[0]
        factor_of, factor_to = before[position], int(source.shape[position])
        start = prod(before[:position])
        chosen = _dimension_at(after, start, reach=start * factor_of, batch=self._exported)
        if chosen is None or after[chosen] * factor_to % factor_of:
            return sizes
        after[chosen] = after[chosen] * factor_to // factor_of
        return after

    def _expand(self, source: torch.Tensor, sizes: Sequence[int]) -> list[int]:
        adapted = list(sizes)
        offset = len(adapted) - source.dim()
        for position, size in enumerate(adapted):
            have = source.shape[position - offset] if position >= offset else None
            if size == -1 or have is None:
                if have is None and position == 0:
                    adapted[0] = self._scaled_if_batch(size)
            elif have not in {1, size}:
                adapted[position] = int(have)
            elif have == 1 and position == 0 and self._exported == size:
                adapted[position] = self._wanted
        return adapted

    def _aligned(self, tensors: Sequence[torch.Tensor], dim: int, name: str) -> list[torch.Tensor]:
        """Repeat what was exported with a batch of its own, such as a class token, to the batch of its neighbours."""
        rank = max(tensor.dim() for tensor in tensors)
        joined = dim % rank if name == "cat" else -1
        target = [max(t.shape[i] for t in tensors if t.dim() == rank) for i in range(rank)]
        aligned = []
        for tensor in tensors:
            sizes = list(tensor.shape)
            for position in range(min(len(sizes), rank)):
                if position != joined and sizes[position] == 1 == self._exported and target[position] == self._wanted:
                    sizes[position] = self._wanted
            aligned.append(tensor if sizes == list(tensor.shape) else tensor.expand(sizes))
        return aligned

    def _recurrent(self, arguments: dict[str, Any]) -> dict[str, Any]:
        source = arguments["input"]
        batch = int(source.shape[0 if arguments["batch_first"] else 1])
        states = arguments["hx"]
        single = isinstance(states, torch.Tensor)
        adapted = [
            state if state.shape[1] == batch else state.new_zeros((state.shape[0], batch, *state.shape[2:]))
            for state in ([states] if single else states)
        ]
        return {**arguments, "hx": adapted[0] if single else adapted}


def _exported_shape(graph: Mapping[str, Any], node: Mapping[str, Any], *, key: str) -> list[int] | None:
    for item in node["inputs"]:
        if item.get("name") == key and "as_tensor" in item["arg"]:
            meta = graph["tensor_values"].get(item["arg"]["as_tensor"]["name"])
            if meta is not None and all("as_int" in size for size in meta["sizes"]):
                return [int(size["as_int"]) for size in meta["sizes"]]
    return None


def _dimension_at(sizes: Sequence[int], start: int, *, reach: int, batch: int) -> int | None:
    """The dimension that the batch goes to.

    In memory order the batch begins somewhere between ``start`` and ``reach`` leading elements. A dimension of just the
    exported batch size there is the one. A batch of one leaves no trace where it was folded into another dimension;
    it is then taken to be the outer part of the one that begins at ``start``, as in [length, batch * heads, size],
    unless that is the last one, which holds features.
    """
    before = 1
    covering = None
    for position, size in enumerate(sizes):
        if size == batch and start <= before <= reach:
            return position
        if covering is None and before == start:
            is_features = position == len(sizes) - 1 and position > 0
            covering = position - 1 if is_features else position
        elif covering is None and before < start < before * size:
            covering = position
        before *= size
    return covering
