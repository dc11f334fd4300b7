"""Reads each kind of TensorFlow file into one frozen graph. Runs in the converter's process, which has TensorFlow."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from dippm.errors import ModelReadError, UnsupportedError, UsageError
from dippm.frontends.tensorflow.composite_inputs import check_signature
from dippm.frontends.tensorflow.graph_rewrites import drop_assignments, node_name
from dippm.frontends.tensorflow.keras_call import call_at_inference
from dippm.frontends.tensorflow.keras_errors import explain_keras_error
from dippm.frontends.tensorflow.recurrent_layers import layers_kept_whole

__all__ = ["FrozenGraph", "load_graph_def", "load_keras", "load_saved_model"]

_DEFAULT_SIGNATURE = "serving_default"
_VARIABLES = frozenset({"VarHandleOp", "Variable", "VariableV2"})
_INPUTS = frozenset({"Placeholder", "PlaceholderWithDefault"})
_SINKLESS = frozenset({"Assert", "Const", "NoOp", "Placeholder", "PlaceholderWithDefault", "Switch"})


@dataclass(frozen=True, kw_only=True)
class FrozenGraph:
    """A graph whose weights are constants.

    Args:
        graph_def: A ``GraphDef``.
        inputs: Its input tensors, such as ``"x:0"``.
        outputs: Its output tensors.
        names: What its user calls them, where that is not their name in the graph.
        warnings: What it leaves out of the model, in words for the user.
        used_given_inputs: Whether its inputs are those that the caller gave, not the model's own.
    """

    graph_def: Any
    inputs: Sequence[str]
    outputs: Sequence[str]
    names: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    used_given_inputs: bool = False


def load_saved_model(folder: Path) -> FrozenGraph:
    """Read a SavedModel by its ``serving_default`` signature, or its only one.

    Raises:
        UnsupportedError: ``tensorflow.no_signature``, ``tensorflow.signatures``, ``tensorflow.sparse_input``,
            ``tensorflow.ragged_input``.
    """
    tf = import_module("tensorflow")
    loaded = tf.saved_model.load(str(folder))
    signatures = {name: each for name, each in loaded.signatures.items() if not name.startswith("_")}
    if not signatures:
        raise UnsupportedError(
            "The SavedModel has no signature, so nothing says what it takes and gives.",
            code="tensorflow.no_signature",
            cure="Save it with one: model.export(folder), or tf.saved_model.save(model, folder, signatures=function).",
        )
    if _DEFAULT_SIGNATURE not in signatures and len(signatures) > 1:
        raise UnsupportedError(
            f"The SavedModel has {len(signatures)} signatures and none is {_DEFAULT_SIGNATURE}: "
            f"{', '.join(sorted(signatures))[:300]}.",
            code="tensorflow.signatures",
            cure=f"Save it again with the one that counts as {_DEFAULT_SIGNATURE}.",
        )
    name = _DEFAULT_SIGNATURE if _DEFAULT_SIGNATURE in signatures else next(iter(signatures))
    check_signature(signatures[name])
    # The function does not keep alive what it belongs to.
    return _freeze(signatures[name], owner=loaded)


def load_keras(path: Path, *, trust: bool, inputs: Sequence[Mapping[str, Any]]) -> FrozenGraph:
    """Read a whole model that Keras saved.

    Args:
        path: A ``.keras`` or HDF5 file.
        trust: Whether Python code in the file may run.
        inputs: Name, shape of a sample and element type of each input, for a model that does not know them.

    Raises:
        ModelReadError: ``model.truncated``, ``model.weights_only``, ``keras.lambda_refused``, ``keras.not_restorable``,
            ``keras.custom_object``.
        UsageError: ``input.missing``.
    """
    settings = _read_settings(path)
    keras = import_module("keras")
    try:
        model = keras.models.load_model(str(path), compile=False, safe_mode=not trust)
    except (ValueError, TypeError, ImportError, AttributeError) as exc:
        known = explain_keras_error(exc, settings, path, trust=trust)
        if known is None:
            raise
        raise known from exc
    tf = import_module("tensorflow")
    if model.inputs:
        specs = [tf.TensorSpec(each.shape, each.dtype, name=each.name) for each in model.inputs]
    elif inputs:
        specs = [
            tf.TensorSpec((None, *each["shape"]), each["dtype"] or "float32", name=each["name"] or f"input_{place}")
            for place, each in enumerate(inputs)
        ]
    else:
        raise UsageError(
            f"The Keras model in '{path.name}' does not say what it takes.",
            code="input.missing",
            cure="Give the shape of one sample, such as --input 224,224,3.",
        )

    with layers_kept_whole(model) as masks:
        function = tf.function(call_at_inference(model)).get_concrete_function(*specs)
    return replace(_freeze(function, owner=model), warnings=masks.warnings, used_given_inputs=not model.inputs)


def load_graph_def(path: Path) -> FrozenGraph:
    """Read a frozen graph: its inputs are its placeholders, its outputs what follows from them and nothing reads.

    Raises:
        ModelReadError: ``tensorflow.damaged``.
        UnsupportedError: ``tensorflow.not_frozen``, ``tensorflow.no_inputs``.
    """
    tf = import_module("tensorflow")
    message = import_module("google.protobuf.message")
    graph_def = tf.compat.v1.GraphDef()
    try:
        graph_def.ParseFromString(path.read_bytes())
    except message.DecodeError as exc:
        raise ModelReadError(
            f"'{path.name}' is damaged or no frozen TensorFlow graph: protobuf cannot read it.",
            code="tensorflow.damaged",
            cure="Copy or export the file again.",
        ) from exc
    if any(node.op in _VARIABLES for node in graph_def.node):
        raise UnsupportedError(
            f"The graph in '{path.name}' is not frozen: it reads variables that are kept elsewhere.",
            code="tensorflow.not_frozen",
            cure="Give the SavedModel folder, or freeze the graph first.",
        )
    found = _find_inputs(graph_def.node)
    for node in found:
        # Without its default, which would be taken for a constant.
        node.op = "Placeholder"
        del node.input[:]
    inputs = [f"{node.name}:0" for node in found]
    outputs = _find_outputs(graph_def.node)
    if not inputs or not outputs:
        raise UnsupportedError(
            f"The graph in '{path.name}' has {len(inputs)} inputs (placeholders) and {len(outputs)} outputs.",
            code="tensorflow.no_inputs",
            cure="Give the SavedModel folder that it was made from.",
        )
    names = {tensor: tensor.partition(":")[0] for tensor in inputs}
    return FrozenGraph(graph_def=graph_def, inputs=inputs, outputs=[f"{name}:0" for name in outputs], names=names)


def _find_inputs(nodes: Sequence[Any]) -> list[Any]:
    """The placeholders; where there are none, those that have a default, and of these rather the ones with dimensions.

    Beside a placeholder, one with a default is a switch that is left as it is.
    """
    plain = [node for node in nodes if node.op == "Placeholder"]
    defaults = [node for node in nodes if node.op == "PlaceholderWithDefault"]
    return plain or [node for node in defaults if node.attr["shape"].shape.dim] or defaults


def _find_outputs(nodes: Sequence[Any]) -> list[str]:
    """The nodes that follow from an input and that no other node reads.

    A node is not read by one that merely waits for it without making anything, as the end of a training step does. What
    follows from constants alone, such as a switch left from training, is computed whatever the input is. The sides of a
    branch hang on copies of its condition, which are no results.
    """
    switches = {node.name for node in nodes if node.op == "Switch"}
    identities = [node for node in nodes if node.op == "Identity"]
    pivots = {node.name for node in identities if any(node_name(name) in switches for name in node.input)}
    read: set[str] = set()
    readers: dict[str, list[str]] = {}
    for node in nodes:
        for name in node.input:
            if not name.startswith("^"):
                readers.setdefault(node_name(name), []).append(node.name)
            elif node.op in _SINKLESS:
                continue
            read.add(node_name(name))
    pending = [node.name for node in nodes if node.op in _INPUTS]
    following: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in following:
            following.add(name)
            pending.extend(readers.get(name, ()))
    found = [node for node in nodes if node.name in following and node.name not in read]
    return [node.name for node in found if node.op not in _SINKLESS and node.name not in pivots]


def _freeze(function: Any, *, owner: Any) -> FrozenGraph:
    """Put a concrete function's variables into its graph as constants."""
    loader = import_module("tf2onnx.tf_loader")
    inputs = [tensor.name for tensor in function.inputs[: len(function.inputs) - len(function.captured_inputs)]]
    outputs = [tensor.name for tensor in function.outputs]
    names: dict[str, str] = {}
    flatten = import_module("tensorflow").nest.flatten
    called = [each.name for each in flatten(function.structured_input_signature) if hasattr(each, "name")]
    if len(called) == len(inputs):
        names.update(zip(inputs, called, strict=True))
    if isinstance(function.structured_outputs, dict) and len(function.structured_outputs) == len(outputs):
        names.update(zip(outputs, sorted(function.structured_outputs), strict=True))
    # The other way of freezing writes the weights through a protobuf message, which cannot hold more than 2 GiB.
    graph_def = loader.convert_variables_to_constants_large_model(function)
    drop_assignments(graph_def)
    del owner
    return FrozenGraph(graph_def=graph_def, inputs=inputs, outputs=outputs, names=names)


def _read_settings(path: Path) -> object:
    """The description of the layers, as JSON has it."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read("config.json"))
    h5py = import_module("h5py")
    try:
        with h5py.File(path, "r") as file:
            text = file.attrs.get("model_config")
    except (OSError, RuntimeError, KeyError) as exc:
        raise ModelReadError(
            f"'{path.name}' is cut short or damaged: it begins like an HDF5 file, but its contents cannot be found.",
            code="model.truncated",
            cure="Save or copy it again.",
        ) from exc
    if text is None:
        raise ModelReadError(
            f"'{path.name}' holds weights alone, without the model that uses them.",
            code="model.weights_only",
            cure="Save the whole model: model.save('model.keras').",
        )
    return json.loads(text)
