"""Low-rank adapters beside the linear layers of a forward pass, as PEFT runs them (``tuners/lora``, release 0.21).

A layer's result is ``base(x) + B(A(dropout(x))) * scale``. All weights of the model are frozen. Where the layer
computes in 16 bits, the adapter's weights are in FP32, and autocast casts them once per forward pass. PEFT makes the
layer's input FP32, and autocast 16 bits again, for every adapter anew. Beside a quantised layer PEFT does not, but
copies the layer's result.
"""

from __future__ import annotations

from dataclasses import replace

from dippm.costs.conditions import LowRankAdapters
from dippm.costs.training_step.step_builder import change_node, change_tensor
from dippm.errors import UnsupportedError
from dippm.graph import Dim, DType, Graph, Node, OpKind, Shape, TensorRole, TensorSpec
from dippm.graph.expansion import Expansion
from dippm.graph.linear_layers import find_output_layers, find_weight, is_of_layer, is_quantised, layer_of

__all__ = ["find_adapted_weights", "with_adapters", "with_frozen_weights"]

_HALF = frozenset({DType.FLOAT16, DType.BFLOAT16})
_MOST_NAMED = 12


def find_adapted_weights(graph: Graph, adapters: LowRankAdapters) -> frozenset[int]:
    """The weights of the linear layers that get an adapter.

    Args:
        graph: A forward pass.
        adapters: What is asked for.

    Raises:
        UnsupportedError: ``lora.no_layers`` where no linear layer is chosen, or none by one of the names.
    """
    tensors = graph.tensors
    found = {weight for node in graph.nodes if (weight := find_weight(tensors, node)) >= 0}
    # A last layer that shares the embedding's weight goes by the embedding's name.
    found -= {node.inputs[0] for node in graph.nodes if node.kind is OpKind.EMBEDDING}
    weights = {weight: layer_of(tensors[weight]) for weight in sorted(found) if _takes_adapter(tensors[weight])}
    if adapters.targets:
        chosen = {weight for weight, name in weights.items() if _is_named(name, adapters.targets)}
    else:
        chosen = weights.keys() - find_output_layers(graph)
    unmet = [target for target in adapters.targets if not any(_is_named(name, (target,)) for name in weights.values())]
    if unmet or not chosen:
        last = dict.fromkeys(name.rpartition(".")[2] for name in weights.values())
        names = list(last)[:_MOST_NAMED]
        cure = f"Name some of them, as in {adapters.rank}:{names[0]}." if names else "Leave the adapters out."
        raise UnsupportedError(
            f"{_what_is_missing(graph, unmet)} Its linear layers: {', '.join(names) or 'none'}.",
            code="lora.no_layers",
            cure=cure,
        )
    return frozenset(chosen)


def _what_is_missing(graph: Graph, unmet: list[str]) -> str:
    if unmet:
        return f"No linear layer of '{graph.source}' is called {' or '.join(unmet)}."
    return f"No linear layer of '{graph.source}' gets an adapter."


def with_frozen_weights(graph: Graph) -> Graph:
    """The graph with buffers in place of its parameters: nothing of it is trained, nor cast once by autocast."""
    tensors = tuple(
        change_tensor(tensor, role=TensorRole.BUFFER) if tensor.role is TensorRole.PARAMETER else tensor
        for tensor in graph.tensors
    )
    return replace(graph, tensors=tensors)


def with_adapters(graph: Graph, adapters: LowRankAdapters, weights: frozenset[int]) -> tuple[Graph, frozenset[int]]:
    """Put adapters beside the layers of these weights.

    Args:
        graph: A forward pass with frozen weights, whose tensors have the types in which they are stored.
        adapters: The adapters.
        weights: The weights of the layers that get one, see :func:`find_adapted_weights`.

    Returns:
        The graph, and the copies of the adapters' weights that autocast keeps until the forward pass ends.
    """
    run = _Run(graph, adapters)
    for node in graph.nodes:
        weight = run.weight_of(node)
        if weight in weights:
            run.append_adapted(node, weight)
        else:
            run.append(node)
    return replace(graph, tensors=tuple(run.tensors), nodes=tuple(run.nodes)), frozenset(run.kept)


class _Run(Expansion):
    """The nodes so far.

    Attributes:
        kept: Copies of weights that autocast keeps.
    """

    def __init__(self, graph: Graph, adapters: LowRankAdapters) -> None:
        super().__init__(graph, name="adapter")
        self.kept: set[int] = set()
        self._rank = Dim(0, adapters.rank)
        self._has_dropout = adapters.has_dropout
        self._graph = graph
        self._cast_from: dict[int, int] = {}
        self._weights: dict[tuple[int, str], int] = {}

    def append(self, node: Node) -> None:
        if node.kind is OpKind.CAST and node.source_op == "autocast":
            self._cast_from[node.outputs[0]] = node.inputs[0]
        self.nodes.append(node)

    def weight_of(self, node: Node) -> int:
        """The weight that a node multiplies with, before autocast; -1 where it is no linear layer."""
        return find_weight(self.tensors, node, cast_from=self._cast_from)

    def append_adapted(self, node: Node, weight: int) -> None:
        result = self.tensors[node.outputs[0]]
        base = self.add_tensor(result.shape, result.dtype)
        self.nodes.append(change_node(node, outputs=(base, *node.outputs[1:]), releases=()))
        if is_quantised(self.tensors[weight]):
            base = self._copied(node, base)
        x = self._input_of(node, self._cast_from.get(node.inputs[0], node.inputs[0]), result.dtype, weight)
        shape, width = self.tensors[x].shape, result.shape[-1]
        down = self._weight(node, weight, "lora_A", (self._rank, shape[-1]), result.dtype)
        thin = self._computed(node, OpKind.LINEAR, (x, down), (*shape[:-1], self._rank))
        up = self._weight(node, weight, "lora_B", (width, self._rank), result.dtype)
        wide = self._computed(node, OpKind.LINEAR, (thin, up), result.shape)
        scaled = self._computed(node, OpKind.MUL, (wide,), result.shape)
        self.add_node(node, OpKind.ADD, (base, scaled), node.outputs[0], releases=node.releases)

    def _input_of(self, node: Node, x: int, dtype: DType, weight: int) -> int:
        """What the adapter multiplies: in FP32 first where its own weights are, and then as autocast makes it."""
        if dtype in _HALF and self.tensors[x].dtype in _HALF and not is_quantised(self.tensors[weight]):
            x = self._cast(node, x, DType.FLOAT32)
        if self._has_dropout:
            x = self.drop_out(node, x)
        return x if self.tensors[x].dtype is dtype else self._cast(node, x, dtype)

    def _weight(self, node: Node, beside: int, part: str, shape: Shape, dtype: DType) -> int:
        """A weight of an adapter in the type of the product; a layer that runs twice has one adapter."""
        if (beside, part) not in self._weights:
            stored, name = DType.FLOAT32 if dtype in _HALF else dtype, layer_of(self.tensors[beside])
            own = TensorSpec(name=f"{name}.{part}.weight", shape=shape, dtype=stored, role=TensorRole.PARAMETER)
            self.tensors.append(own)
            index = len(self.tensors) - 1
            if stored is not dtype:
                index = self._cast(node, index, dtype)
                self.kept.add(index)
            self._weights[beside, part] = index
        return self._weights[beside, part]

    def _cast(self, node: Node, index: int, dtype: DType) -> int:
        result = self.add_tensor(self.tensors[index].shape, dtype)
        self.add_node(node, OpKind.CAST, (index,), result)
        return result

    def _copied(self, node: Node, index: int) -> int:
        result = self.add_tensor(self.tensors[index].shape, self.tensors[index].dtype)
        self.add_node(node, OpKind.COPY, (index,), result, function="clone")
        return result

    def _computed(self, node: Node, kind: OpKind, inputs: tuple[int, ...], shape: Shape) -> int:
        result = self.add_tensor(shape, self.tensors[inputs[0]].dtype)
        self.add_node(node, kind, inputs, result)
        return result


def _takes_adapter(weight: TensorSpec) -> bool:
    return is_of_layer(weight) or is_quantised(weight)


def _is_named(name: str, targets: tuple[str, ...]) -> bool:
    return any(name == target or name.endswith(f".{target}") for target in targets)
