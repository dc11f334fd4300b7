"""What runs for fused attention beside its kernel, or in its place, on devices of compute capability 8 and later.

Flash attention, in 16 bits and without a mask, writes its result in the order in which its query lies in memory: where
heads lie one after the other there, as after a concatenation or ``contiguous``, joining the heads copies. Where time
comes first, as in PyTorch's own attention, the copy that puts it first is none. Heads whose
size is no multiple of eight are padded. The memory-efficient kernel of FP32 writes token after token. It wants as many
heads of keys as of queries: where there are fewer, the parts of attention run one by one, and all scores are kept.
Sources: ``attention.cpp`` and ``sdp_utils.cpp``, PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dippm.costs.training_step.step_builder import change_node
from dippm.graph import Dim, DType, Graph, Node, OpKind, Shape
from dippm.graph.expansion import Expansion

__all__ = ["with_attention_as_run"]

_HALF = frozenset({DType.FLOAT16, DType.BFLOAT16})
_ALIGNMENT = 8
_WIDEST_HEAD = 256
_RANK = 4


def with_attention_as_run(graph: Graph) -> Graph:
    """Write down what runs for each attention.

    Args:
        graph: A forward pass whose tensors have the types in which they are stored.

    Returns:
        A new graph; the one that was given where every attention is its kernel alone.
    """
    run = _Run(graph, name="attention")
    run.view_copies()
    for node in run.as_given:
        if node.kind is OpKind.ATTENTION and run.is_flash(node):
            run.append_flash(node)
        elif node.kind is OpKind.ATTENTION and run.is_grouped(node):
            run.append_parts(node)
        else:
            run.nodes.append(node)
    if len(run.nodes) == len(graph.nodes) and not run.in_place:
        return graph
    return replace(graph, tensors=tuple(run.tensors), nodes=tuple(run.nodes))


class _Run(Expansion):
    def __init__(self, graph: Graph, *, name: str) -> None:
        super().__init__(graph, name=name)
        self.as_given: Sequence[Node] = graph.nodes
        #: Results of attention that lie as the model reads them.
        self.in_place: set[int] = set()

    def view_copies(self) -> None:
        """Make views of copies that find what they copy in their own order."""
        viewed = self._copies_of_results()
        if not viewed:
            return
        self.in_place.update(viewed.values())
        for index, tensor in enumerate(self.tensors):
            owner = index if tensor.alias_of is None else tensor.alias_of
            if owner in viewed:
                self.tensors[index] = replace(tensor, alias_of=viewed[owner])
        self.as_given = [self._with_views(node, viewed) for node in self.as_given]

    def _copies_of_results(self) -> dict[int, int]:
        """Of each copy that finds the result of flash attention in its own order: that result."""
        turned: dict[int, Shape] = {}
        result = {}
        for node in self.as_given:
            if node.kind is OpKind.ATTENTION and node.attributes.get("is_time_first") is True and self.is_flash(node):
                batch, heads, time, width = self.tensors[node.outputs[0]].shape
                if width.fixed % _ALIGNMENT == 0:
                    turned[node.outputs[0]] = (time, batch, heads, width)
            elif node.kind is OpKind.COPY and len(node.inputs) == 1:
                read = self.tensors[node.inputs[0]]
                if read.alias_of in turned and read.shape == turned[read.alias_of]:
                    result[node.outputs[0]] = read.alias_of
        return result

    def _with_views(self, node: Node, viewed: Mapping[int, int]) -> Node:
        """A node that gives back the result of an attention where it would have given back its copy."""
        releases = tuple(viewed.get(index, index) for index in node.releases if index not in self.in_place)
        if node.outputs and node.outputs[0] in viewed:
            return replace(node, kind=OpKind.VIEW, attributes={"function": "view"}, releases=releases)
        return node if releases == node.releases else change_node(node, releases=releases)

    def is_flash(self, node: Node) -> bool:
        query, _, value = (self.tensors[index] for index in node.inputs[:3])
        width = query.shape[-1]
        is_same_width = width == value.shape[-1] and width.fixed <= _WIDEST_HEAD
        return query.dtype in _HALF and _mask_of(node) < 0 and is_same_width

    def is_grouped(self, node: Node) -> bool:
        query, key = (self.tensors[index].shape for index in node.inputs[:2])
        return len(query) == len(key) == _RANK and query[1] != key[1] and query[1].fixed % max(key[1].fixed, 1) == 0

    def append_flash(self, node: Node) -> None:
        width = self.tensors[node.inputs[0]].shape[-1].fixed
        padded = -(-width // _ALIGNMENT) * _ALIGNMENT
        lies_as_read = node.attributes.get("is_by_head") is not True or node.outputs[0] in self.in_place
        if padded == width and lies_as_read:
            self.nodes.append(node)
            return
        inputs = node.inputs[:3]
        if padded != width:
            inputs = tuple(
                self.compute(node, OpKind.PAD, (index,), self._widened(index, padded), function="constant_pad_nd")
                for index in inputs
            )
        result, *others = node.outputs
        written = self.add_tensor(self._widened(result, padded), self.tensors[result].dtype)
        self.nodes.append(change_node(node, inputs=inputs, outputs=(written, *others), releases=()))
        self._join_heads(node, written)

    def append_parts(self, node: Node) -> None:
        query, key, value = node.inputs[:3]
        shape, other = self.tensors[query].shape, self.tensors[key].shape
        scaled = self.compute(node, OpKind.MUL, (query,), shape)
        if node.attributes.get("is_by_head") is not True:
            scaled = self.compute(node, OpKind.COPY, (scaled,), shape, function="clone")
        keys, values = (self._repeated(node, index, shape[1].fixed) for index in (key, value))
        turned_shape = (*shape[:2], shape[-1], other[-2])
        turned = self.view(node, keys, turned_shape, "transpose")
        turned = self.compute(node, OpKind.MUL, (turned,), turned_shape)
        scores_shape = (*shape[:-1], other[-2])
        scores = self.compute(node, OpKind.MATMUL, (scaled, turned), scores_shape)
        mask = _mask_of(node)
        if mask < 0 and node.attributes.get("is_causal") is True:
            mask = self.compute(node, OpKind.FILL, (), scores_shape[-2:], function="zeros")
        if mask >= 0:
            scores = self.compute(node, OpKind.ADD, (scores, mask), scores_shape)
        weights = self.compute(node, OpKind.SOFTMAX, (scores,), scores_shape, axes=(_RANK - 1,))
        if node.attributes.get("has_dropout") is True:
            weights = self.drop_out(node, weights)
        written = self.compute(node, OpKind.MATMUL, (weights, values), self.tensors[node.outputs[0]].shape)
        self._join_heads(node, written)

    def _repeated(self, node: Node, index: int, heads: int) -> int:
        """Keys or values, once for each head of queries."""
        batch, groups, *rest = self.tensors[index].shape
        wide = (batch, groups, Dim(0, heads // groups.fixed), *rest)
        expanded = self.view(node, index, wide, "expand")
        copy = self.compute(node, OpKind.COPY, (expanded,), wide, function="clone")
        return self.view(node, copy, (batch, Dim(0, heads), *rest), "view")

    def _join_heads(self, node: Node, written: int) -> None:
        """Put a result that lies head by head where the model reads it, token by token."""
        self.add_node(node, OpKind.COPY, (written,), node.outputs[0], function="clone")
        self.nodes[-1] = change_node(self.nodes[-1], releases=node.releases)

    def _widened(self, index: int, width: int) -> Shape:
        return (*self.tensors[index].shape[:-1], Dim(0, width))


def _mask_of(node: Node) -> int:
    """The attention's mask, -1 where there is none."""
    return node.inputs[3] if len(node.inputs) > 3 else -1
