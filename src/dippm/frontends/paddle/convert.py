"""From a saved Paddle model, or a layer in memory, to an ONNX model without weights."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path

from dippm.errors import MissingExtraError, ModelReadError
from dippm.frontends.conversion.convert import ConvertedModel, convert
from dippm.frontends.conversion.limits import ConversionLimits
from dippm.frontends.inputs import InputShapes
from dippm.frontends.paddle.model_files import find_program

__all__ = ["convert_paddle"]

_WORKER = "dippm.frontends.paddle.worker"
_NEEDED = ("paddle", "paddle2onnx", "packaging")
_PACKAGES = ("paddlepaddle", "paddlepaddle-gpu", "paddle2onnx", "onnx")


def convert_paddle(
    source: Path | object,
    *,
    input: InputShapes,  # noqa: A002 - the public verbs call it input
    limits: ConversionLimits = ConversionLimits(),  # noqa: B008 - it is frozen
) -> ConvertedModel:
    """Convert a model of Paddle to ONNX by its structure alone.

    Args:
        source: The ``.json`` or ``.pdmodel`` file of a saved model, the ``.pdiparams`` file beside it, the folder that
            holds them, or a ``paddle.nn.Layer``, which is saved by ``paddle.jit.save`` in this process.
        input: Shapes that the caller gave; a layer needs them, unless it was made static with shapes of its own.
        limits: What the converter may take.

    Raises:
        MissingExtraError: Paddle or its converter is not installed.
        ModelReadError: The files hold no model, or a damaged one.
        UnsupportedError: The converter does not know an operator, or takes more than the limits.
        UsageError: The shapes do not fit the layer.
    """
    for package in _NEEDED:
        if find_spec(package) is None:
            raise MissingExtraError(package=package, extra="paddle", purpose="read models of Paddle")
    if isinstance(source, Path):
        return _convert_file(find_program(source), name=str(source), limits=limits)
    from dippm.frontends.paddle.layer import save_layer

    with tempfile.TemporaryDirectory(prefix="dippm-") as folder:
        return _convert_file(save_layer(source, input, Path(folder)), name=type(source).__name__, limits=limits)


def _convert_file(program: Path, *, name: str, limits: ConversionLimits) -> ConvertedModel:
    try:
        with program.open("rb") as stream:
            is_old = stream.read(64).lstrip()[:1] != b"{"
    except OSError as exc:
        raise ModelReadError(f"'{name}' cannot be read: {exc}.", code="model.unreadable") from exc
    return convert(
        framework="Paddle",
        worker=_WORKER,
        source=program,
        files=[program],
        name=name,
        options={"is_old": is_old},
        packages=_PACKAGES,
        limits=limits,
    )
