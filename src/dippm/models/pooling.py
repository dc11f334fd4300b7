"""The readout of a graph: the mean of its nodes' embeddings, and their soft maximum."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dippm.models.message_rounds import Members

__all__ = ["SHARPNESS", "pool_nodes"]

#: Of the soft maximum in :func:`pool_nodes`. Chosen on a validation split among 4, 8 and ``ln(1 + sum)`` in its place.
SHARPNESS = 8.0

# Members that a CPU pools at once, for their float32 numbers to stay in its cache.
_MEMBERS_AT_ONCE = 1024


def pool_nodes(embeddings: Tensor, members: Members, *, graphs: int) -> Tensor:
    """Read a graph out of its nodes: their mean, and the logarithm of the sum of their exponentials.

    The paper says that node embeddings are pooled, not how. Time and energy are sums over operators whose costs span
    decades, and a network learns their logarithms: where a value follows the logarithm of what a node costs,
    ``ln(1 + sum(exp(s h))) / s`` follows that of what the graph costs, which neither a mean nor a sum of logarithms
    does. The sharpness ``s`` brings embeddings, which are near 1, to such a span.

    Pooling is in float32 under mixed precision too, since float16 ends at 65,504.

    Args:
        embeddings: Embeddings of rows, none negative.
        members: The rows of each graph.
        graphs: Number of graphs; one without nodes gets zeros.

    Shapes:
        embeddings: [N, F]; result: [G, 2 F].
    """
    result: Tensor = _Pool.apply(embeddings, members, graphs)  # type: ignore[no-untyped-call]
    return result


class _Pool(torch.autograd.Function):
    """With a gradient by hand, and in parts of whole graphs: a third of the passes over memory."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, members: Members, graphs: int) -> Tensor:
        graph_ids, rows, counts = members
        totals = counts.new_zeros(graphs).index_add_(0, graph_ids, counts)
        shares = (counts / totals.index_select(0, graph_ids))[:, None]
        means, maxima, parts, kept = [], [], _parts(graph_ids, graphs), []
        for first, last, start, stop in parts:
            graph_of, weight = graph_ids[start:stop] - first, counts[start:stop, None]
            values = embeddings.index_select(0, rows[start:stop]).float()
            zeros, places = values.new_zeros(last - first, values.shape[1]), graph_of[:, None].expand_as(values)
            means.append(zeros.scatter_add(0, places, shares[start:stop] * values))
            # The largest is taken out before and put back after, so that no exponential overflows.
            sharp = values.mul_(SHARPNESS)
            top = zeros.scatter_reduce(0, places, sharp, "amax")
            exponentials = sharp.sub_(top.index_select(0, graph_of)).exp_().mul_(weight)
            total = torch.exp(-top).scatter_add_(0, places, exponentials)
            maxima.append((top + torch.log(total)) / SHARPNESS)
            kept += [exponentials, total]
        ctx.save_for_backward(graph_ids, rows, shares, *kept)
        ctx.parts, ctx.count, ctx.dtype = parts, len(embeddings), embeddings.dtype
        return torch.cat([torch.cat(means), torch.cat(maxima)], dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        graph_ids, rows, shares, *kept = ctx.saved_tensors
        of_mean, of_maximum = gradient.chunk(2, dim=1)
        # A float16 ends at 65,504; a bfloat16 loses no more here than in the products around it.
        dtype = torch.float32 if ctx.dtype == torch.float16 else ctx.dtype
        result = gradient.new_zeros(ctx.count, of_mean.shape[1], dtype=dtype)
        pairs = zip(kept[::2], kept[1::2], strict=True)
        for (first, last, start, stop), (exponentials, total) in zip(ctx.parts, pairs, strict=True):
            graph_of = graph_ids[start:stop] - first
            own = (of_maximum[first:last] / total).index_select(0, graph_of) * exponentials
            own += of_mean[first:last].index_select(0, graph_of) * shares[start:stop]
            result.scatter_add_(0, rows[start:stop, None].expand_as(own), own.to(result.dtype))
        return result.to(ctx.dtype), None, None


def _parts(graph_ids: Tensor, graphs: int) -> list[tuple[int, int, int, int]]:
    """Stretches of whole graphs: first graph, the one behind the last, first member, the one behind the last."""
    if graph_ids.device.type != "cpu" or not graphs:
        return [(0, graphs, 0, len(graph_ids))]
    bounds = torch.searchsorted(graph_ids, torch.arange(graphs + 1)).tolist()
    parts, first = [], 0
    for last in range(1, graphs + 1):
        if last == graphs or bounds[last + 1] - bounds[first] > _MEMBERS_AT_ONCE:
            parts.append((first, last, bounds[first], bounds[last]))
            first = last
    return parts
