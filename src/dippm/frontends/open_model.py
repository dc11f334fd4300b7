"""One door to all frontends: a path, a name or an object in, a graph out."""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dippm.costs.conditions import Mode
from dippm.costs.precision import Precision
from dippm.errors import ModelReadError, UnsupportedError, UsageError
from dippm.frontends.checkpoint_folder import StoredCheckpoint, find_checkpoint
from dippm.frontends.detect import Framework, detect_framework, parse_framework
from dippm.frontends.inputs import InputShapes
from dippm.frontends.named_checkpoints import published_format
from dippm.frontends.python_file import build_from_python, find_python_model, is_python_file, refuse_without_name
from dippm.frontends.quantised_weights import WeightFormat, store_weights, trained_as_before
from dippm.frontends.transformers_inputs import with_plain_text
from dippm.frontends.unread_weights import warn_of_unread_weights
from dippm.graph import Graph

if TYPE_CHECKING:
    from torch import nn

    from dippm.frontends.conversion.convert import ConvertedModel

__all__ = ["open_model"]

_ERRORS_OF_INPUTS = frozenset({"input.dtype_wrong", "input.name_unknown", "input.shape_wrong", "torch.forward_failed"})
_NO_MODEL = "model.invalid"
_TEXT = "input_ids"
_PLAIN_TEXT_WARNING = "The text is taken to have no padding and no other tokens with a meaning of their own."
_ZOOS = ("timm:", "torchvision:", "hf:", "diffusers:")
# Names of these may say behind a "#" what the model takes.
_ZOOS_OF_CHECKPOINTS = ("hf:", "diffusers:")


def open_model(
    model: object,
    *,
    input: InputShapes,  # noqa: A002 - the public verbs call it input
    framework: str | None = None,
    trust: bool = False,
    mode: Mode = Mode.INFERENCE,
    batch_hint: int | None = None,
    precision: Precision | None = Precision.FP32,
    is_dequantised: bool = False,
) -> Graph:
    """Read a model.

    Args:
        model: A path; ``timm:NAME``, ``torchvision:NAME``, ``hf:ARCH`` or ``diffusers:CLASS``; a ``torch.nn.Module``,
            a ``torch.export.ExportedProgram``, an ``onnx.ModelProto``, a checkpoint that was found, or a
            :class:`~dippm.graph.Graph`, which is returned as it is.
        input: Shapes that the caller gave.
        framework: Name of the framework, or None to tell it from the content.
        trust: Allow opening pickles, which runs code from the file.
        mode: Whether to read the forward pass as it runs at inference or in training. A file is read as it is.
        batch_hint: The batch to read a model for that cannot be read for every batch.
        precision: What it will run in, see :func:`dippm.frontends.zoo.build`.
        is_dequantised: Whether a checkpoint that is published quantised is read as it was before that.

    Raises:
        DippmError: Whatever keeps the model from being read; see :mod:`dippm.errors`.
    """
    if isinstance(model, Graph):
        return model
    read = partial(
        _open_checkpoint,
        input=input,
        mode=mode,
        batch_hint=batch_hint,
        precision=precision,
        is_dequantised=is_dequantised,
    )
    if isinstance(model, StoredCheckpoint):
        return read(model)
    if model == "":
        # It would be the folder that the program was started in.
        raise UsageError("The model must be a path or a name. Got an empty one instead.", code="model.no_name")
    if isinstance(model, str) and model.startswith(_ZOOS):
        return _open_zoo(
            model,
            input=input,
            mode=mode,
            batch_hint=batch_hint,
            precision=precision,
            is_dequantised=is_dequantised,
        )
    if isinstance(model, str | Path):
        path = Path(model)
        if (named := find_python_model(path)) is not None:
            return _open_python(*named, input=input, framework=framework, trust=trust, mode=mode, batch_hint=batch_hint)
        checkpoint = find_checkpoint(path)
        if checkpoint is None:
            return _open_file(path, input=input, framework=framework, trust=trust, mode=mode, batch_hint=batch_hint)
        if framework is not None and parse_framework(framework) is not Framework.PYTORCH:
            raise _mismatch(checkpoint.path, found=Framework.PYTORCH, named=parse_framework(framework))
        return read(checkpoint)
    return _open_object(model, input=input, mode=mode, batch_hint=batch_hint)


def _open_zoo(
    name: str,
    *,
    input: InputShapes,  # noqa: A002
    mode: Mode,
    batch_hint: int | None,
    precision: Precision | None,
    is_dequantised: bool,
) -> Graph:
    from dippm.frontends import zoo

    is_checkpoint = name.startswith(_ZOOS_OF_CHECKPOINTS)
    if is_checkpoint and "#" in name:
        _refuse_input_beside_mark(name, input=input)
    module, default_input = zoo.build(name, precision=precision)
    graph = _read_built(module, default_input, input=input, source=name, mode=mode, batch_hint=batch_hint)
    if not is_checkpoint:
        return graph
    graph = warn_of_unread_weights(graph)
    published = published_format(name)
    if published is None or is_dequantised:
        return graph
    return _as_published(graph, published, is_whole=mode is Mode.TRAINING)


def _open_checkpoint(
    checkpoint: StoredCheckpoint,
    *,
    input: InputShapes,  # noqa: A002
    mode: Mode,
    batch_hint: int | None,
    precision: Precision | None,
    is_dequantised: bool,
) -> Graph:
    from dippm.frontends import zoo

    if checkpoint.asked is not None:
        _refuse_input_beside_mark(checkpoint.name, input=input)
    module, default_input = zoo.build_stored(checkpoint, precision=precision)
    graph = _read_built(module, default_input, input=input, source=checkpoint.name, mode=mode, batch_hint=batch_hint)
    graph = warn_of_unread_weights(graph)
    published = checkpoint.weight_format
    if published is not None and not is_dequantised:
        graph = _as_published(graph, published, is_whole=mode is Mode.TRAINING and not published.is_trainable)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    doubts = checkpoint.doubts(parameters, is_dequantised=is_dequantised)
    return replace(graph, warnings=(*zoo.doubts_of_stored(checkpoint, module), *doubts, *graph.warnings))


def _open_python(
    file: Path,
    name: str,
    *,
    input: InputShapes,  # noqa: A002
    framework: str | None,
    trust: bool,
    mode: Mode,
    batch_hint: int | None,
) -> Graph:
    if framework is not None:
        raise UsageError(
            f"What '{file}:{name}' is its code says, but the framework was given.",
            code="framework.mismatch",
            cure="Leave the framework out.",
        )
    model = build_from_python(file, name, trust=trust)
    try:
        graph = _open_object(model, input=input, mode=mode, batch_hint=batch_hint)
    except UsageError as exc:
        if exc.code != _NO_MODEL:
            raise
        raise UsageError(
            f"{name} of '{file}' gives no model of a framework but {type(model).__name__}.",
            code="python.no_model",
            cure="It must be a class of models, a function that gives one, or one itself.",
        ) from exc
    return replace(graph, source=f"{file}:{name}")


def _as_published(graph: Graph, published: WeightFormat, *, is_whole: bool) -> Graph:
    """A graph of whole weights with those stored that are published quantised; with ``is_whole`` that is only told."""
    if is_whole:
        return replace(graph, warnings=(trained_as_before(published), *graph.warnings))
    stored = store_weights(graph, published)
    return replace(stored, warnings=(published.described, *stored.warnings))


def _read_built(
    module: nn.Module,
    default_input: InputShapes,
    *,
    input: InputShapes,  # noqa: A002
    source: str,
    mode: Mode,
    batch_hint: int | None,
) -> Graph:
    """Read what a library built, with the inputs that it takes by default where the caller gave none.

    Raises:
        UnsupportedError: ``zoo.inputs_unknown`` where the model does not take those.
    """
    from dippm.frontends.torch import read_module

    given = default_input if input.is_empty else input
    if given.is_empty:
        raise UnsupportedError(
            f"The inputs that {type(module).__name__} of '{source}' takes are not known.",
            code="zoo.inputs_unknown",
            cure=f"Give them ({', '.join(_inputs_of(module))}).",
        )
    read = partial(read_module, module, source=source, mode=mode, batch_hint=batch_hint)
    try:
        try:
            return _warn_of_positions(read(input=given), module, given)
        except UnsupportedError as exc:
            if exc.code != "torch.data_dependent" or (text := with_plain_text(given)) is None:
                raise
            end = getattr(getattr(module, "config", None), "eos_token_id", None)
            try:
                graph = read(input=text)
            except (UsageError, ModelReadError):
                # A model that summarises a text by its last token may refuse one without an end.
                if not isinstance(end, int) or (text := with_plain_text(given, end=end)) is None:
                    raise
                graph = read(input=text)
            return replace(graph, warnings=(*graph.warnings, _PLAIN_TEXT_WARNING))
    except (UsageError, ModelReadError) as exc:
        if not input.is_empty or exc.code not in _ERRORS_OF_INPUTS:
            raise
        told = str(exc).removesuffix(exc.cure or "").strip()
        raise UnsupportedError(
            f"The inputs that dippm gives '{source}' by default do not fit it, or its parts do not fit each other in "
            f"the sizes that it is built with. {told}",
            code="zoo.inputs_unknown",
            cure=f"Give the inputs ({', '.join(_inputs_of(module))}), or sizes that go together: a checkpoint's folder "
            "or its config.json.",
        ) from exc


def _warn_of_positions(graph: Graph, module: nn.Module, given: InputShapes) -> Graph:
    """The graph with a warning where a text is longer than the model is made for, which rotations let run."""
    config = getattr(module, "config", None)
    text = getattr(config, "text_config", None) or config
    most, asked = getattr(text, "max_position_embeddings", None), (given.named or {}).get(_TEXT)
    if not isinstance(most, int) or asked is None or asked.shape[-1:] <= (most,):
        return graph
    longer = (
        f"The text of {asked.shape[-1]:,} tokens is longer than the {most:,} positions that {type(module).__name__} is "
        "made for."
    )
    return replace(graph, warnings=(longer, *graph.warnings))


def _inputs_of(module: nn.Module) -> list[str]:
    """The names of the tensors that a module's forward takes, as far as its annotations tell."""
    parameters = inspect.signature(module.forward).parameters.values()
    return [item.name for item in parameters if "Tensor" in str(item.annotation)] or [item.name for item in parameters]


def _refuse_input_beside_mark(name: str, *, input: InputShapes) -> None:  # noqa: A002
    if not input.is_empty:
        raise UsageError(
            f"What '{name}' takes stands in its name, behind the #.",
            code="input.unused",
            cure="Leave the input out, or what stands behind the #.",
        )


def _open_file(
    path: Path,
    *,
    input: InputShapes,  # noqa: A002
    framework: str | None,
    trust: bool,
    mode: Mode,
    batch_hint: int | None,
) -> Graph:
    if is_python_file(path):
        raise refuse_without_name(path)
    found = detect_framework(path) if framework is None else parse_framework(framework)
    if framework is not None:
        _refuse_mismatch(path, named=found)
    if found is Framework.DIPPM:
        return _open_graph(path, input=input)
    if found is not Framework.PYTORCH:
        input.split_values(f"'{path}'")  # refuses, before anything is converted, what is neither tensors nor numbers
    if found is Framework.ONNX:
        from dippm.frontends.onnx import read_onnx

        return read_onnx(path, input=input, mode=mode, batch_hint=batch_hint)
    if found is Framework.PYTORCH:
        from dippm.frontends.torch import read_torch_file

        return read_torch_file(path, input=input, trust=trust, mode=mode, batch_hint=batch_hint)
    if found is Framework.TENSORFLOW:
        from dippm.frontends.tensorflow.conversion import convert_tensorflow

        converted = convert_tensorflow(path, input=input, trust=trust)
        return _read_converted(
            converted, source=str(path), framework=found, input=input, mode=mode, batch_hint=batch_hint
        )
    from dippm.frontends.paddle.convert import convert_paddle

    converted = convert_paddle(path, input=input)
    return _read_converted(converted, source=str(path), framework=found, input=input, mode=mode, batch_hint=batch_hint)


def _open_graph(path: Path, *, input: InputShapes) -> Graph:  # noqa: A002
    from dippm.frontends.graph_file import read_graph_file

    if not input.is_empty:
        raise UsageError(
            f"The graph in '{path}' has the input shapes that it was read with.",
            code="input.unused",
            cure="Leave the input out.",
        )
    return read_graph_file(path)


def _read_converted(
    converted: ConvertedModel,
    *,
    source: str,
    framework: Framework,
    input: InputShapes,  # noqa: A002
    mode: Mode,
    batch_hint: int | None,
) -> Graph:
    """Read what a converter made of a model; the graph says where it came from."""
    from dippm.frontends.onnx import read_onnx

    graph = read_onnx(converted.model, input=input, mode=mode, batch_hint=batch_hint, is_converted=True, name=source)
    return replace(graph, framework=framework.value, warnings=(*converted.warnings, *graph.warnings))


def _refuse_mismatch(path: Path, *, named: Framework) -> None:
    """A framework that the content contradicts is a slip of the caller, not a broken file."""
    try:
        found = detect_framework(path)
    except ModelReadError as exc:
        if exc.code != "model.unrecognised" or path.is_dir():
            raise
        return  # the caller knows more than the content tells
    if found is not named:
        raise _mismatch(path, found=found, named=named)


def _mismatch(path: Path, *, found: Framework, named: Framework) -> UsageError:
    return UsageError(
        f"The content of '{path}' is of {found.value}, but the framework was given as {named.value}.",
        code="framework.mismatch",
        cure="Leave the framework out, or give the one that the file has.",
    )


def _open_object(model: object, *, input: InputShapes, mode: Mode, batch_hint: int | None) -> Graph:  # noqa: A002
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from dippm.frontends.torch import read_module

        return read_module(model, input=input, source=type(model).__name__, mode=mode, batch_hint=batch_hint)
    exported = sys.modules.get("torch.export")
    if exported is not None and isinstance(model, exported.ExportedProgram):
        from dippm.frontends.torch import read_exported_object

        return read_exported_object(model, input=input, mode=mode, batch_hint=batch_hint)
    onnx = sys.modules.get("onnx")
    if onnx is not None and isinstance(model, onnx.ModelProto):
        from dippm.frontends.onnx import read_onnx

        return read_onnx(model, input=input, mode=mode, batch_hint=batch_hint)
    paddle = sys.modules.get("paddle")
    if paddle is not None and isinstance(model, paddle.nn.Layer):
        from dippm.frontends.paddle.convert import convert_paddle

        return _read_converted(
            convert_paddle(model, input=input),
            source=type(model).__name__,
            framework=Framework.PADDLE,
            input=input,
            mode=mode,
            batch_hint=batch_hint,
        )
    if "tensorflow" in sys.modules or "keras" in sys.modules:
        from dippm.frontends.tensorflow.conversion import convert_tensorflow
        from dippm.frontends.tensorflow.objects import is_tensorflow_object

        if is_tensorflow_object(model):
            return _read_converted(
                convert_tensorflow(model, input=input),
                source=type(model).__name__,
                framework=Framework.TENSORFLOW,
                input=input,
                mode=mode,
                batch_hint=batch_hint,
            )
    raise UsageError(
        f"A model must be a path, a name such as timm:resnet50, a torch.nn.Module, a torch.export.ExportedProgram, a "
        f"Keras model, a paddle.nn.Layer or an onnx.ModelProto. Got {type(model).__name__} instead.",
        code=_NO_MODEL,
    )
