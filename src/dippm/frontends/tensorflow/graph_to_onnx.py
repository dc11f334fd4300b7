"""From a frozen TensorFlow graph to ONNX. Runs in the converter's process, which has TensorFlow and tf2onnx.

tf2onnx would make a graph faster, which changes the architecture that the file describes. What is left out, and why:

- TensorFlow's own graph optimizer (grappler) multiplies constants into the weights of convolutions.
- ``back_to_back`` folds batch normalizations into convolutions: their parameters and kernels would be gone.
- ``merge_duplication`` keeps one of several weights of equal value, such as biases that are all zero; only readers of
  one variable share it, see :mod:`dippm.frontends.tensorflow.shared_weights`.
- ``global_pool`` calls every mean over the last dimensions a pooling, those of layer normalizations too.
- ``fold_constants`` is left to the reader, which knows shapes without values.

The rest moves and drops the transpositions between TensorFlow's order of images and that of ONNX, and identities.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Set
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dippm.errors import UnsupportedError
from dippm.frontends.tensorflow.composite_inputs import check_operators
from dippm.frontends.tensorflow.counting import COUNTING_HANDLERS
from dippm.frontends.tensorflow.fourier import FOURIER_HANDLERS
from dippm.frontends.tensorflow.function_calls import inline_calls
from dippm.frontends.tensorflow.graph_rewrites import find_cast_weights, node_name, rewrite_graph
from dippm.frontends.tensorflow.host_operators import find_host_operators, find_left_over, host_operators_error
from dippm.frontends.tensorflow.lite_operators import LITE_HANDLERS, widen_stored
from dippm.frontends.tensorflow.loading import FrozenGraph
from dippm.frontends.tensorflow.shared_weights import find_variables, merge_shared

__all__ = ["convert_frozen", "convert_tflite"]

_OPSET = 17
_OPTIMIZERS = ("optimize_transpose", "remove_redundant_upsample", "loop_optimizer", "reshape_optimizer",
               "remove_identity")  # fmt: skip
_HANDLERS = {**COUNTING_HANDLERS, **FOURIER_HANDLERS, **LITE_HANDLERS}
_BRANCHING = frozenset({"If", "StatelessIf"})
_WRITTEN_SHAPES = "_output_shapes"
_EXTERNAL = 1
_COUNTED_SIZE = "unk__"
_SIGNATURE_PREFIX = "serving_default_"


def convert_frozen(frozen: FrozenGraph, path: Path) -> None:
    """Write a graph as ONNX, without its large weights.

    Raises:
        UnsupportedError: ``tensorflow.unconvertible``, ``tensorflow.host_operators``, ``tensorflow.sparse_input``,
            ``tensorflow.ragged_input``.
    """
    tf = import_module("tensorflow")
    values = import_module("tf2onnx.tf_utils").compress_graph_def(frozen.graph_def)
    graph_def = inline_calls(frozen.graph_def, inputs=frozen.inputs, outputs=frozen.outputs)
    check_operators(graph_def)
    rewrite_graph(graph_def)
    left = find_cast_weights(graph_def)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        _convert(
            graph,
            path,
            left=left,
            variables=find_variables(graph_def),
            input_names=list(frozen.inputs),
            output_names=list(frozen.outputs),
            tensors_to_rename=dict(frozen.names),
            const_node_values=values,
        )


def convert_tflite(source: Path, path: Path) -> None:
    """Write a TensorFlow Lite model as ONNX, without its large weights.

    Raises:
        UnsupportedError: ``tensorflow.unconvertible``.
    """
    tf = import_module("tensorflow")
    with tf.Graph().as_default() as graph:
        _convert(graph, path, tflite_path=str(source))


def _convert(
    graph: Any,
    path: Path,
    *,
    left: Set[str] = frozenset(),
    variables: Mapping[str, str] = MappingProxyType({}),
    **settings: Any,
) -> None:
    tfonnx: Any = import_module("tf2onnx.tfonnx")
    optimizer: Any = import_module("tf2onnx.optimizer")
    graph_module: Any = import_module("tf2onnx.graph")
    storage = graph_module.ExternalTensorStorage()
    numpy: Any = import_module("numpy")
    if not hasattr(numpy, "product"):
        # tf2onnx 1.17 calls it by the name that numpy 2 has taken away.
        numpy.product = numpy.prod
    _allow_empty_shapes(numpy)
    _take_bfloat16_for_float16(graph_module.Graph, import_module("tf2onnx.tf_utils"))
    _leave_constants(graph_module.Node)
    _shape_branches(graph)
    # A tf2onnx pattern turns layer normalizations into instance normalizations over another number of elements.
    tfonnx.rewrite_layer_normalization = lambda _, nodes: nodes
    _leave_unfolded(tfonnx, left)
    try:
        converted = tfonnx.process_tf_graph(
            graph, opset=_OPSET, continue_on_error=False, custom_op_handlers=_HANDLERS, **settings
        )
    except Exception as exc:
        on_host = find_host_operators(graph)
        if on_host:
            raise host_operators_error(graph, on_host) from exc
        raise UnsupportedError(
            f"tf2onnx cannot convert the model: {type(exc).__name__}: {' '.join(str(exc).split())[:400]}",
            code="tensorflow.unconvertible",
            cure="Leave out what is named there, or convert the model to ONNX in another way and give the .onnx file.",
        ) from exc
    left_over = find_left_over(graph, converted)
    if left_over:
        raise host_operators_error(graph, left_over)
    if "tflite_path" in settings:
        widen_stored(converted)
    known = optimizer._get_optimizers()
    wanted = OrderedDict((name, known[name]) for name in _OPTIMIZERS if name in known)
    converted = optimizer.optimize_graph(converted, False, optimizers=wanted)
    merge_shared(converted, variables)
    _drop_values(converted, storage)
    model = converted.make_model("model", external_tensor_storage=storage)
    if "tflite_path" in settings:
        _name_inputs(model.graph)
        _name_numbers(model.graph)
    _unname_sizes(model.graph)
    for tensor in _tensors(model.graph):
        if tensor.data_location == _EXTERNAL:
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")
    path.write_bytes(model.SerializeToString())


def _shape_branches(graph: Any) -> None:
    """Have what branches are handed known by its shapes, weights of convolutions among it.

    tf2onnx takes the condition for the first of it, and does without any where these shapes do not fit.
    """
    loader: Any = import_module("tf2onnx.tf_loader")
    make = loader.function_def_to_graph
    shapes: dict[str, list[Any]] = {}

    def find_branches(searched: Any) -> None:
        for operator in searched.get_operations():
            if operator.type in _BRANCHING:
                handed = [each.shape for each in operator.inputs[1:]]
                shapes.update({operator.get_attr(branch).name: handed for branch in ("then_branch", "else_branch")})

    def function_def_to_graph(function: Any, input_shapes: Any = None) -> Any:
        handed = shapes.get(function.signature.name)
        for place in range(len(handed or ())):
            # What is written here goes before what is handed, and may say less.
            function.arg_attr[place].attr.pop(_WRITTEN_SHAPES, None)
        made = make(function, input_shapes=handed or input_shapes)
        find_branches(made)
        return made

    find_branches(graph)
    loader.function_def_to_graph = function_def_to_graph


def _allow_empty_shapes(numpy: Any) -> None:
    """Have shapes without dimensions, such as those of single numbers, worked out like others.

    tf2onnx hands them to ``numpy.vectorize`` without the type of the result, which it cannot tell from no element.
    """
    element = import_module("tf2onnx.symbolic_executor").SymbolicTensorElement
    element.np_array = staticmethod(numpy.vectorize(element.from_value, otypes=[object]))


def _take_bfloat16_for_float16(graph_class: Any, tf_utils: Any) -> None:
    """Have constants of bfloat16 taken for those of float16, as tf2onnx takes all other tensors of it."""
    read, make = tf_utils.get_tf_tensor_data, graph_class.make_const

    def known(array: Any) -> Any:
        return array.astype("float16") if array.dtype.name == "bfloat16" else array

    def make_const(graph: Any, name: str, np_val: Any, *words: Any, **named: Any) -> Any:
        return make(graph, name, known(np_val), *words, **named)

    tf_utils.get_tf_tensor_data = lambda tensor: known(read(tensor))
    graph_class.make_const = make_const


def _leave_constants(node_class: Any) -> None:
    """Have constants put into protobuf's form once, at the end.

    tf2onnx does it before every step over the graph, and so copies all weights a dozen times.
    """
    update = node_class.update_proto

    def update_proto(node: Any, external_tensor_storage: Any = None) -> None:
        if external_tensor_storage is not None or not node.is_const():
            update(node, external_tensor_storage)

    node_class.update_proto = update_proto


def _leave_unfolded(tfonnx: Any, left: Set[str]) -> None:
    """Have nodes of these names stay operators though they follow from constants alone."""
    fold_values, fold_nodes = tfonnx.fold_constants_using_tf, tfonnx.rewrite_constant_fold

    def fold_constants_using_tf(graph: Any, values: Mapping[str, Any]) -> Any:
        return fold_values(graph, {name: value for name, value in values.items() if node_name(name) not in left})

    def rewrite_constant_fold(graph: Any, nodes: Any) -> Any:
        nodes = list(nodes)
        kept = [node for node in nodes if node.name in left]
        return [*fold_nodes(graph, [node for node in nodes if node.name not in left]), *kept]

    tfonnx.fold_constants_using_tf, tfonnx.rewrite_constant_fold = fold_constants_using_tf, rewrite_constant_fold


def _drop_values(graph: Any, storage: Any) -> None:
    """Take the values of large constants away, as the storage would, which copies them first."""
    for node in graph.get_nodes():
        for inner in (node.get_body_graphs() or {}).values():
            _drop_values(inner, storage)
        if not node.is_const():
            continue
        value = node.attr["value"]
        if value.HasField("t") and math.prod(value.t.dims) > storage.external_tensor_size_threshold:
            value.t.ClearField("raw_data")
            storage.node_to_modified_value_attr[node] = value


def _name_inputs(graph: Any) -> None:
    """Call inputs as the signature does that a TensorFlow Lite file was made from."""
    names = {each.name: each.name.removeprefix(_SIGNATURE_PREFIX).removesuffix(":0") for each in graph.input}
    names = {old: new for old, new in names.items() if old != new}
    if len(set(names.values())) < len(names) or not _values(graph).isdisjoint(names.values()):
        return
    for each in graph.input:
        each.name = names.get(each.name, each.name)
    _rename(graph, names)


def _name_numbers(graph: Any) -> None:
    """Give stored numbers names that no module has: those of TensorFlow Lite, such as ``arith.constant2``, look so."""
    names = {each.name: f"number/{each.name}" for each in graph.initializer if math.prod(each.dims) == 1}
    for each in graph.initializer:
        each.name = names.get(each.name, each.name)
    _rename(graph, names)


def _unname_sizes(graph: Any) -> None:
    """Take the names away that tf2onnx counts up for open sizes of inputs: they say nothing to the model's user."""
    for each in graph.input:
        for dim in each.type.tensor_type.shape.dim:
            if dim.dim_param.startswith(_COUNTED_SIZE):
                dim.ClearField("dim_param")


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    """Change what a graph reads of these names, and what the graphs in it read of it."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        for inner in _inner_graphs(node):
            own = {each.name for each in inner.input}
            _rename(inner, {old: new for old, new in names.items() if old not in own})
    for each in graph.output:
        each.name = names.get(each.name, each.name)


def _values(graph: Any) -> set[str]:
    """The names of all that a graph and the graphs in it take, store and make."""
    found = {each.name for each in (*graph.input, *graph.initializer)}
    for node in graph.node:
        found.update(node.output)
        for inner in _inner_graphs(node):
            found |= _values(inner)
    return found


def _tensors(graph: Any) -> list[Any]:
    """Stored tensors of a graph and of the graphs in it."""
    found = list(graph.initializer)
    for node in graph.node:
        found += [attribute.t for attribute in node.attribute if attribute.HasField("t")]
        for inner in _inner_graphs(node):
            found += _tensors(inner)
    return found


def _inner_graphs(node: Any) -> list[Any]:
    """The graphs that an operator of control flow runs."""
    found: list[Any] = []
    for attribute in node.attribute:
        found += [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs
    return found
