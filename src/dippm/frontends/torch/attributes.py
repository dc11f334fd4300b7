"""Attributes of nodes, built from the arguments of aten operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from dippm.costs.autocast import RAISED
from dippm.costs.decompositions import COUNTED, FLOPS_OF_A_DISTANCE, FLOPS_PER_ELEMENT, count_flops
from dippm.costs.training_step.scatter_gradients import REDUCTION
from dippm.costs.training_step.sparse_gradients import SPARSE
from dippm.frontends.torch.shapes import empty_like
from dippm.graph import Attribute

__all__ = ["ATTRIBUTE_BUILDERS"]

_Arguments = Mapping[str, Any]

_BATCHED_HEADS = 4


def _tuple(value: Any, *, rank: int) -> tuple[int, ...]:
    sizes = (int(value),) if isinstance(value, int) else tuple(int(size) for size in value)
    return sizes * rank if len(sizes) == 1 else sizes


def _convolution(arguments: _Arguments, _outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    kernel = tuple(arguments["weight"].shape[2:])
    rank = len(kernel)
    return {
        "kernel": kernel,
        "stride": _tuple(arguments["stride"], rank=rank),
        "dilation": _tuple(arguments["dilation"], rank=rank),
        "padding": _tuple(arguments["padding"], rank=rank),
        "groups": int(arguments["groups"]),
    }


def _deformed_convolution(arguments: _Arguments, _outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    return {
        "kernel": tuple(arguments["weight"].shape[2:]),
        "stride": (int(arguments["stride_h"]), int(arguments["stride_w"])),
        "dilation": (int(arguments["dilation_h"]), int(arguments["dilation_w"])),
        "padding": (int(arguments["pad_h"]), int(arguments["pad_w"])),
        "groups": int(arguments["groups"]),
    }


def _attention(arguments: _Arguments, _outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    query = arguments["query"]
    # Whether heads lie one after the other, and not the heads of a token.
    is_by_head = query.dim() == _BATCHED_HEADS and not empty_like(query.transpose(1, 2)).is_contiguous()
    by_head = {"is_by_head": True} if is_by_head else {}
    # As PyTorch's own attention lays them out: time first, then samples and their heads.
    if is_by_head and empty_like(query.permute(2, 0, 1, 3)).is_contiguous():
        by_head["is_time_first"] = True
    share = arguments.get("dropout_p", 0.0)
    dropout = {"has_dropout": True} if isinstance(share, float | int) and share > 0 else {}
    return {"is_causal": bool(arguments.get("is_causal", False)), **by_head, **dropout}


def _triangular_solve(arguments: _Arguments, _outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    # Of n unknowns the first takes one operation, the last takes n. Autocast leaves linear algebra in FP32.
    return {"contracted": (int(arguments["self"].shape[-1]) + 1) // 2, RAISED: True}


def _decomposition(name: str, arguments: _Arguments, _outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    matrix, *others = (value for value in arguments.values() if isinstance(value, torch.Tensor))
    if matrix.dim() < 2 or not matrix.numel():
        return {}
    rows, columns = matrix.shape[-2:]
    right = arguments.get("B", arguments.get("b"))
    sides = right.numel() * columns / matrix.numel() if isinstance(right, torch.Tensor) else 0.0
    if name == "solve_factored" and right is None:  # the right-hand sides come first
        (rows, columns), sides = others[0].shape[-2:], float(matrix.shape[-1])
    has_vectors = arguments.get("compute_uv", arguments.get("compute_v", arguments.get("mode") != "r"))
    flops = count_flops(name, rows, columns, sides=sides, has_vectors=bool(has_vectors))
    return {FLOPS_PER_ELEMENT: flops / (matrix.shape[-2] * matrix.shape[-1])}


def _distances(arguments: _Arguments, outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    # Each distance is of as many numbers as a row has: so many for each row of the first input.
    rows = next(value for value in arguments.values() if isinstance(value, torch.Tensor))
    if not rows.numel():
        return {}
    return {FLOPS_PER_ELEMENT: FLOPS_OF_A_DISTANCE * outputs[0].numel() * rows.shape[-1] / rows.numel()}


def _lookup(arguments: _Arguments, _outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    return {SPARSE: True} if arguments.get("sparse") else {}


def _recurrent(arguments: _Arguments, _outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    states = arguments["hx"]
    # An LSTM's cell state keeps the hidden size where a projection makes the hidden state narrower.
    state = states if isinstance(states, torch.Tensor) else states[-1]
    # Between layers, by the kernels themselves.
    drops_out = bool(arguments["train"]) and arguments["dropout"] > 0.0
    return {
        "hidden_size": int(state.shape[-1]),
        "num_layers": int(arguments["num_layers"]),
        "num_directions": 2 if arguments["bidirectional"] else 1,
        "batch_first": bool(arguments.get("batch_first", False)),
        **({"has_dropout": True} if drops_out else {}),
    }


def _per_channel(arguments: _Arguments, _outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    shape = arguments["input"].shape
    return {"axes_size": int(shape[1]) if len(shape) > 1 else 1}


def _batch_norm(arguments: _Arguments, outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    return _batch_norm_of_batch(arguments, outputs) if arguments["training"] else _per_channel(arguments, outputs)


def _batch_norm_of_batch(arguments: _Arguments, outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    return _per_channel(arguments, outputs) | {"is_training": True}


def _normalized_shape(arguments: _Arguments, _outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    size = 1
    for extent in arguments["normalized_shape"]:
        size *= int(extent)
    return {"axes_size": size}


def _group_norm(arguments: _Arguments, _outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    group = int(arguments["group"])
    return {"groups": group, "axes_size": int(arguments["C"]) * int(arguments["HxW"]) // max(group, 1)}


def _pool(arguments: _Arguments, _outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    sizes = arguments["kernel_size"]
    kernel = _tuple(sizes, rank=1)
    rank = max(len(kernel), arguments["self"].dim() - 2) if len(kernel) == 1 else len(kernel)
    kernel = _tuple(sizes, rank=rank)
    return {
        "kernel": kernel,
        "stride": _tuple(arguments["stride"], rank=rank) or kernel,
        "padding": _tuple(arguments["padding"], rank=rank),
    }


def _fractional_pool(arguments: _Arguments, _outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    """Windows at random places, about as far apart as they are wide."""
    kernel = _tuple(arguments["kernel_size"], rank=1)
    return {"kernel": kernel, "stride": kernel, "padding": (0,) * len(kernel)}


def _output_size(arguments: _Arguments, _outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    return {"output_size": _tuple(arguments["output_size"], rank=1)}


def _axes(arguments: _Arguments, _outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    rank = max(arguments["self"].dim(), 1)
    given = arguments.get("dim")
    if given is None or (not isinstance(given, int) and len(given) == 0):
        return {"axes": tuple(range(rank))}
    axes = (given,) if isinstance(given, int) else tuple(given)
    return {"axes": tuple(sorted(int(axis) % rank for axis in axes))}


def _row(arguments: _Arguments, _outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    """Where rows that are sorted or searched lie: along the last dimension unless something else is asked for."""
    rank = max(arguments["self"].dim(), 1)
    return {"axes": (int(arguments.get("dim", -1)) % rank,)}


def _reduction(arguments: _Arguments, _outputs: Sequence[torch.Tensor]) -> dict[str, Attribute]:
    return {REDUCTION: str(arguments["reduce"])}


ATTRIBUTE_BUILDERS: Mapping[str, Callable[[_Arguments, Sequence[torch.Tensor]], dict[str, Attribute]]] = {
    "convolution": _convolution,
    "deformed_convolution": _deformed_convolution,
    "attention": _attention,
    "triangular_solve": _triangular_solve,
    **{f"decomposition_{name}": partial(_decomposition, name) for name in COUNTED},
    "distances": _distances,
    "lookup": _lookup,
    "reduction": _reduction,
    "recurrent": _recurrent,
    "per_channel": _per_channel,
    "batch_norm": _batch_norm,
    "batch_norm_of_batch": _batch_norm_of_batch,
    "normalized_shape": _normalized_shape,
    "group_norm": _group_norm,
    "pool": _pool,
    "fractional_pool": _fractional_pool,
    "output_size": _output_size,
    "axes": _axes,
    "row": _row,
}
