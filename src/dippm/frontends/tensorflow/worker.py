"""Converts a TensorFlow model to ONNX; run in a process of its own by :mod:`dippm.frontends.tensorflow.conversion`."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from dippm.frontends.conversion.worker import run_worker
from dippm.frontends.tensorflow.formats import ModelFormat

if TYPE_CHECKING:
    from dippm.frontends.conversion.worker import ConversionRequest

__all__ = ["convert"]


def convert(request: ConversionRequest) -> None:
    """Write the ONNX model of a TensorFlow model.

    Args:
        request: Its options are ``format`` and, for Keras files, ``trust``; their hint is ``inputs``, for a model that
            does not know its own.

    Raises:
        ModelReadError: The file is damaged, holds weights alone, or needs Python classes that are not here.
        UnsupportedError: It has several signatures or none, is not frozen, or tf2onnx cannot convert it.
    """
    os.environ["KERAS_BACKEND"] = "tensorflow"
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    from dippm.frontends.tensorflow import graph_to_onnx, loading

    found = ModelFormat(request.options["format"])
    if found is ModelFormat.TFLITE:
        graph_to_onnx.convert_tflite(request.source, request.onnx_path)
        return
    if found is ModelFormat.SAVED_MODEL:
        frozen = loading.load_saved_model(request.source)
    elif found is ModelFormat.GRAPH_DEF:
        frozen = loading.load_graph_def(request.source)
    else:
        frozen = loading.load_keras(
            request.source, trust=bool(request.options["trust"]), inputs=request.hints["inputs"]
        )
    graph_to_onnx.convert_frozen(frozen, request.onnx_path)
    request.notes.warnings.extend(frozen.warnings)
    request.notes.used_hints = frozen.used_given_inputs


if __name__ == "__main__":
    run_worker(convert)
