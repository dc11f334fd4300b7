"""Reading a model once. It imports nothing that only predicting needs: a converter's start waits for it."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path

from dippm.api.arguments import parse_batches
from dippm.costs.conditions import Conditions
from dippm.costs.precision import whole_model_type
from dippm.errors import UsageError
from dippm.frontends.checkpoint_folder import StoredCheckpoint, find_checkpoint
from dippm.frontends.inputs import parse_input_shapes
from dippm.frontends.named_checkpoints import published_format
from dippm.frontends.open_model import open_model
from dippm.frontends.quantised_weights import (
    find_weight_format,
    quantise_layers,
    quantised_anew,
    refuse_quantised,
)
from dippm.frontends.zoo import is_zoo_name
from dippm.graph import Graph

__all__ = ["load", "precision_to_read", "read_format"]


def read_format(precision: str | None) -> str | None:
    """What of a precision a graph is read for: ``"float16"``, ``"bfloat16"``, or ``""`` for all others; None for None.

    Raises:
        UsageError: ``precision.unknown``.
    """
    if precision is None:
        return None
    dtype = whole_model_type(Conditions.parse(precision=precision).precision)
    return "" if dtype is None else dtype.value


def precision_to_read(precision: str | None, lora: object) -> str | None:
    """The precision that a model is read for, where adapters may be trained in it.

    Autocast over weights in FP32 is for weights that are trained. Frozen ones keep the type that they are published in.
    """
    if precision is None or lora is None:
        return precision
    return None if Conditions.parse(precision=precision).precision.is_autocast else precision


def load(
    model: object = None,
    *,
    path: str | PathLike[str] | None = None,
    framework: str | None = None,
    input: object = None,  # noqa: A002 - the contract's name
    trust: bool = False,
    mode: str = "inference",
    batch_hint: int | None = None,
    precision: str | None = None,
    weights: str | None = None,
) -> Graph:
    """Read a model once, to predict it many times: the graph is accepted wherever a model is.

    Args:
        model: A path, also of a checkpoint's folder; ``net.py:Net``, what a Python file has under a name;
            ``timm:NAME``, ``torchvision:NAME``, ``hf:ARCH``, ``diffusers:CLASS``, a ``torch.nn.Module``, a
            ``torch.export.ExportedProgram``, an ``onnx.ModelProto`` or a graph.
        path: The same as a path, as the DIPPM paper's example calls it.
        framework: ``"onnx"``, ``"pytorch"``, or None to tell it from the content.
        input: Shape of one sample, without the batch: ``"3,224,224"``, ``(3, 224, 224)``, a list for several inputs,
            a dict by name; an entry may be ``(shape, dtype)``. May be left out where the file fixes it.
        trust: Allow pickled and Python files, which run code from the file when opened.
            Without it TorchScript runs as well, on shapes alone and without files, but without a limit in time.
        mode: ``inference``, or ``training``: the forward pass as it runs in a training step, with dropout, batch
            statistics and the heads that only training has. A graph holds for one of the two.
        batch_hint: The batch to read a model for that cannot be read for every batch, and up to which it is proved,
            where it is more than 64, that the model grows with its batch as it does at small ones.
        precision: What it will be predicted in. ``fp16`` and ``bf16`` build a model of transformers or diffusers in
            that format, so that what its own code makes FP32 is seen, and any other precision in FP32. Left out, a
            checkpoint that is known by name has the type that it is published in, as ``from_pretrained`` loads it. All
            other graphs hold for every precision.
        weights: How the weights of linear layers are stored, the last layer's apart, as quantising them leaves them:
            ``nf4`` (4 bits of bitsandbytes), ``nf4-double`` (with scales in 8 bits), ``int8``, ``int4`` (GPTQ and AWQ,
            groups of 128), ``fp8`` or ``mxfp4``. A checkpoint that is published quantised is read so where nothing is
            given, in training only a folder beside whose weights adapters can be trained; ``dequantised`` reads it as
            it was before that.

    Raises:
        DippmError: Whatever keeps the model from being read; see :mod:`dippm.errors`.
    """
    if (model is None) == (path is None):
        raise UsageError(
            "Give one model: as first argument or as path." if model is None else "Give model or path, not both.",
            code="model.invalid",
        )
    if path is not None:
        model = fspath(path)
    elif isinstance(model, PathLike):
        model = fspath(model)
    if batch_hint is not None:
        (batch_hint,) = parse_batches(batch_hint, is_single=True)
    shapes, conditions = parse_input_shapes(input), Conditions.parse(mode=mode, precision=precision or "fp32")
    read_for = None if precision is None else conditions.precision
    stored, is_dequantised = None if weights is None else find_weight_format(weights), weights is not None

    source: object = model
    name = model if isinstance(model, str) and is_zoo_name(model) else None
    if name is None and isinstance(model, str) and framework is None:
        checkpoint = find_checkpoint(Path(model))
        if checkpoint is not None:
            source, name = checkpoint, checkpoint.content_name

    def read() -> Graph:
        return open_model(
            source,
            input=shapes,
            framework=framework,
            trust=trust,
            mode=conditions.mode,
            batch_hint=batch_hint,
            precision=read_for,
            is_dequantised=is_dequantised,
        )

    if name is None:
        graph = read()
    else:
        from dippm.api.named_models import read_kept

        graph = read_kept(
            name,
            read,
            shapes=shapes,
            mode=conditions.mode,
            batch_hint=batch_hint,
            precision=read_for,
            is_dequantised=is_dequantised,
        )
        graph = replace(graph, source=str(model))
    if not is_dequantised:
        return graph
    if stored is None:
        refuse_quantised(graph)
        return graph
    published = source.weight_format if isinstance(source, StoredCheckpoint) else published_format(name or "")
    if published is not None:
        graph = replace(graph, warnings=(quantised_anew(published), *graph.warnings))
    return quantise_layers(graph, stored)
