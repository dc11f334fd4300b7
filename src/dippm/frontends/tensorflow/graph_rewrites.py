"""Operators that TensorFlow takes apart, put together again in its own graph. Runs in the converter's process."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["drop_assignments", "find_cast_weights", "node_name", "rewrite_graph"]

_IMAGE_RANK = 4
_CHOICES = frozenset({"Select", "SelectV2"})
# Random numbers that follow from a given seed, as those that do not; their first input is the shape.
_DRAWS = {
    "StatelessRandomNormalV2": "RandomStandardNormal",
    "StatelessRandomUniformV2": "RandomUniform",
    "StatelessTruncatedNormalV2": "RandomStandardNormal",
}
_ASSIGNMENTS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})
_ADDITIONS = frozenset({"Add", "AddV2"})
# What operators that are put into functions call their result, by which functions know it.
_RESULTS = {"Const": "output", "Erf": "y", "Mul": "z"}


def drop_assignments(graph_def: Any) -> None:
    """Take out of a frozen ``GraphDef`` what writes variables, as random layers count up their seed, in place.

    There are no variables any more, and what is written serves the next call.
    """
    for nodes in (graph_def.node, *(function.node_def for function in graph_def.library.function)):
        written = {f"^{node.name}" for node in nodes if node.op in _ASSIGNMENTS}
        if not written:
            continue
        kept = [node for node in nodes if node.op not in _ASSIGNMENTS]
        for node in kept:
            left = [name for name in node.input if name not in written]
            if len(left) < len(node.input):
                node.input[:] = left
        kept = [type(node).FromString(node.SerializeToString()) for node in kept]
        del nodes[:]
        nodes.extend(kept)


def rewrite_graph(graph_def: Any) -> None:
    """Change a ``GraphDef`` in place.

    - ``erfc``, which ONNX lacks and Keras's exact GELU is written with, becomes ``1 - erf(x)``, in branches too.
    - Random numbers from a seed, which ONNX lacks and ``keras.random`` draws, become those without one.
    - An index that counts from the end where it is negative, as ``keras.ops.take`` and with it Keras's embedding allow,
      is taken as it is: PyTorch's embedding knows no negative ones.
    - Batch normalization of images, which ``tf.nn.batch_normalization`` and with it Keras 3 writes as
      ``x * s + (beta - mean * s)`` with ``s = gamma / sqrt(var + eps)``, becomes one operator again. As arithmetic on
      constants it would be multiplied into whatever convolution is near.
    """
    graph = _Nodes(graph_def)
    for node in list(graph_def.node):
        if node.op == "Erfc":
            graph.replace_erfc(node)
        elif node.op in _CHOICES:
            graph.drop_wrapping(node)
    for nodes in (graph_def.node, *(function.node_def for function in graph_def.library.function)):
        for node in nodes:
            if node.op in _DRAWS:
                _draw_unseeded(node)
    for function in graph_def.library.function:
        body = _Nodes(function)
        for node in list(function.node_def):
            if node.op == "Erfc":
                body.replace_erfc(node)
                # A sum or a difference calls its result otherwise.
                body.rename_result(node, "y", "z")
    matches = [match for match in (graph.match_batch_norm(node) for node in graph_def.node) if match is not None]
    if not matches:
        return
    tf = import_module("tensorflow")
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph_def, name="")
    for match in matches:
        if imported.get_tensor_by_name(_tensor_name(match["x"])).shape.rank == _IMAGE_RANK:
            graph.replace_batch_norm(**match)


def _draw_unseeded(node: Any) -> None:
    shape_type = node.attr["Tshape"].type
    node.op = _DRAWS[node.op]
    del node.input[1:]
    del node.attr["Tshape"]
    node.attr["T"].type = shape_type


def find_cast_weights(graph_def: Any) -> set[str]:
    """Names of the nodes that cast a weight to half precision, and of those that follow from such casts and constants.

    Keras's mixed precision stores its variables in float32 and casts them in every call. With the casts folded, the
    weights would be half as wide as they are.
    """
    nodes = _Nodes(graph_def)
    casts = {node.name for node in graph_def.node if nodes.is_cast_weight(node)}
    return nodes.find_constant_followers(casts)


class _Nodes:
    """The nodes of a graph or of a function."""

    def __init__(self, holder: Any) -> None:
        self._holder = holder
        self._is_function = hasattr(holder, "node_def")
        self._all = holder.node_def if self._is_function else holder.node
        self._by_name = {node.name: node for node in self._all}

    def rename_result(self, node: Any, old: str, new: str) -> None:
        """Let all in a function that reads a node's result know it by another name."""
        before, after = f"{node.name}:{old}:", f"{node.name}:{new}:"
        for other in self._all:
            for place, name in enumerate(other.input):
                if name.startswith(before):
                    other.input[place] = after + name.removeprefix(before)
        for key, name in self._holder.ret.items():
            if name.startswith(before):
                self._holder.ret[key] = after + name.removeprefix(before)

    def is_cast_weight(self, node: Any) -> bool:
        """Whether a node makes a stored tensor, no single number, half as wide."""
        if node.op != "Cast" or not node.input:
            return False
        types = import_module("tensorflow")
        stored = self._writer(node.input[0], "Const")
        return (
            stored is not None
            and types.as_dtype(node.attr["SrcT"].type) == types.float32
            and types.as_dtype(node.attr["DstT"].type) in (types.float16, types.bfloat16)
            and any(dim.size != 1 for dim in stored.attr["value"].tensor.tensor_shape.dim)
        )

    def find_constant_followers(self, names: set[str]) -> set[str]:
        """Nodes of these names, and those that read one of them and beside it only what is stored."""
        found = set(names)
        is_growing = bool(found)
        while is_growing:
            is_growing = False
            for node in self._all:
                inputs = {node_name(name) for name in node.input if not name.startswith("^")}
                if node.name in found or inputs.isdisjoint(found):
                    continue
                if all(name in found or self._writer(name, "Const") is not None for name in inputs):
                    found.add(node.name)
                    is_growing = True
        return found

    def replace_erfc(self, node: Any) -> None:
        """``erfc(-y) = 1 + erf(y)``, ``erfc(y) = 1 - erf(y)``."""
        x, is_negated = self._without_sign(node)
        erf = self._add(f"{node.name}/erf", "Erf", [x], T=node.attr["T"].type)
        one = self._add_constant(f"{node.name}/one", 1.0, node.attr["T"].type)
        node.op = "AddV2" if is_negated else "Sub"
        del node.input[:]
        node.input.extend([one, erf])

    def _without_sign(self, node: Any) -> tuple[str, bool]:
        """The argument of an operator without its negation, which may stand before a factor."""
        argument = self._writer(node.input[0])
        if argument is None:
            return node.input[0], False
        if argument.op == "Neg":
            return argument.input[0], True
        if argument.op != "Mul":
            return node.input[0], False
        for place, name in enumerate(argument.input):
            factor = self._writer(name)
            if factor is not None and factor.op == "Neg":
                inputs = list(argument.input)
                inputs[place] = factor.input[0]
                return self._add(f"{node.name}/scaled", "Mul", inputs, T=argument.attr["T"].type), True
        return node.input[0], False

    def drop_wrapping(self, node: Any) -> None:
        """``where(i < 0, i + n, i)`` is ``i``."""
        test, wrapped = self._writer(node.input[0], "Less"), self._writer(node.input[1])
        if test is None or wrapped is None or wrapped.op not in _ADDITIONS or self._number(test.input[1]) != 0:
            return
        index = self._writer(node.input[2])
        if index is None or self._writer(test.input[0]) is not index or index not in map(self._writer, wrapped.input):
            return
        if not self._is_integer(wrapped):  # in anything else than places, both sides are work that is done
            return
        node.op = "Identity"
        kept = node.input[2]
        del node.input[:]
        node.input.append(kept)

    def match_batch_norm(self, node: Any) -> dict[str, Any] | None:
        """What belongs to a normalization whose last operator a node is."""
        if node.op not in _ADDITIONS:
            return None
        for first, second in (tuple(node.input), tuple(node.input)[::-1]):
            scaled, shift = self._writer(first, "Mul"), self._writer(second, "Sub")
            moved = None if shift is None else self._writer(shift.input[1], "Mul")
            beta = None if shift is None else self._vector(shift.input[0])
            if scaled is None or moved is None or beta is None:
                continue
            for x, factor in (tuple(scaled.input), tuple(scaled.input)[::-1]):
                other = self._other_input(moved, factor)
                mean = None if other is None else self._vector(other)
                statistics = self._match_factor(factor)
                if mean is None or statistics is None:
                    continue
                variance, epsilon, gamma = statistics
                return {
                    "node": node, "x": x, "mean": mean, "variance": variance, "epsilon": epsilon, "gamma": gamma,
                    "beta": beta,
                }  # fmt: skip
        return None

    def _match_factor(self, name: str) -> tuple[str, float, str | None] | None:
        """Variance, epsilon and scale of ``scale / sqrt(variance + epsilon)``."""
        root, gamma = self._writer(name, "Rsqrt"), None
        if root is None:
            product = self._writer(name, "Mul")
            if product is None:
                return None
            for first, second in (tuple(product.input), tuple(product.input)[::-1]):
                root, gamma = self._writer(first, "Rsqrt"), self._vector(second)
                if root is not None and gamma is not None:
                    break
            else:
                return None
        if root is None:
            return None
        total = self._writer(root.input[0])
        if total is None or total.op not in _ADDITIONS:
            return None
        for first, offset in (tuple(total.input), tuple(total.input)[::-1]):
            epsilon, variance = self._number(offset), self._vector(first)
            if epsilon is not None and variance is not None:
                return variance, epsilon, gamma
        return None

    def replace_batch_norm(
        self, *, node: Any, x: str, mean: str, variance: str, epsilon: float, gamma: str | None, beta: str
    ) -> None:
        """Let one operator write what a node wrote."""
        kind = node.attr["T"].type
        if gamma is None:
            one = self._add_constant(f"{node.name}/one", 1.0, kind)
            gamma = self._add(f"{node.name}/gamma", "Add", [one, self._zeros_like(node, beta, kind)], T=kind)
        name = self._add(
            f"{node.name}/batch_norm", "FusedBatchNormV3", [x, gamma, beta, mean, variance], T=kind, U=kind
        )
        norm = self._by_name[name]
        norm.attr["epsilon"].f = epsilon
        norm.attr["is_training"].b = False
        norm.attr["data_format"].s = b"NHWC"
        node.op = "Identity"
        del node.input[:]
        node.input.append(name)

    def _zeros_like(self, node: Any, name: str, kind: int) -> str:
        return self._add(f"{node.name}/zeros", "ZerosLike", [name], T=kind)

    def _writer(self, name: str, op: str | None = None) -> Any:
        """The node that makes a tensor, past identities; None where it is of another kind."""
        node = self._by_name.get(node_name(name))
        while node is not None and node.op == "Identity":
            node = self._by_name.get(node_name(node.input[0]))
        return node if node is not None and (op is None or node.op == op) else None

    def _vector(self, name: str) -> str | None:
        """The stored vector that a tensor is, or is shaped from to lie along one dimension of images."""
        node = self._writer(name)
        if node is not None and node.op == "Reshape":
            if not self._ends_in_channels(node.input[1]):
                return None
            node = self._writer(node.input[0])
        is_vector = node is not None and node.op == "Const" and len(node.attr["value"].tensor.tensor_shape.dim) == 1
        return str(node.name) if is_vector else None

    def _ends_in_channels(self, name: str) -> bool:
        """Whether a stored shape has one dimension that is not 1, the last: the operator has channels last."""
        node = self._writer(name, "Const")
        if node is None:
            return False
        sizes = import_module("tensorflow").make_ndarray(node.attr["value"].tensor).reshape(-1).tolist()
        return all(size == 1 for size in sizes[:-1])

    def _is_integer(self, node: Any) -> bool:
        types = import_module("tensorflow")
        return node.attr["T"].type in (types.int32.as_datatype_enum, types.int64.as_datatype_enum)

    def _other_input(self, node: Any, name: str) -> str | None:
        """The factor of a product beside the one that is known."""
        known = self._writer(name)
        for first, second in (tuple(node.input), tuple(node.input)[::-1]):
            if known is not None and self._writer(first) is known:
                return str(second)
        return None

    def _number(self, name: str) -> float | None:
        node = self._writer(name, "Const")
        if node is None:
            return None
        tensor = node.attr["value"].tensor
        if any(dim.size != 1 for dim in tensor.tensor_shape.dim):
            return None
        return float(import_module("tensorflow").make_ndarray(tensor).reshape(-1)[0])

    def _add(self, name: str, op: str, inputs: list[str], **types: int) -> str:
        node = self._all.add()
        node.name, node.op = name, op
        node.input.extend(inputs)
        for key, value in types.items():
            node.attr[key].type = value
        self._by_name[name] = node
        return f"{name}:{_RESULTS[op]}:0" if self._is_function else name

    def _add_constant(self, name: str, value: float, kind: int) -> str:
        tf = import_module("tensorflow")
        reference = self._add(name, "Const", [], dtype=kind)
        self._by_name[name].attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype=tf.as_dtype(kind)))
        return reference


def node_name(reference: str) -> str:
    """The node behind a reference to one of its outputs, or to its end."""
    return reference.removeprefix("^").partition(":")[0]


def _tensor_name(reference: str) -> str:
    return reference if ":" in reference else f"{reference}:0"
