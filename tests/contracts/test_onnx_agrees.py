"""The five architectures as PyTorch's two exporters write them: what the modules give; VGG16 among exhaustive tests."""

import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import dippm

pytest.importorskip("torch")

CASES = (
    # VGG16's file has half a gigabyte.
    pytest.param("vgg16", "legacy", marks=pytest.mark.exhaustive),
    *((name, "legacy") for name in ("resnet50", "mobilenet_v2", "lstm", "bert")),
    *((name, "dynamo") for name in ("mobilenet_v2", "lstm", "bert")),
)


def _sample(given: Any) -> Any:
    import torch

    shape, dtype = given if given[-1] == "int64" else (given, "float32")
    return torch.zeros(2, *shape, dtype=getattr(torch, dtype))


def _export_by_dynamo(module: Any, sample: Any, path: Path) -> None:
    import torch

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (sample,),
            path,
            dynamo=True,
            optimize=False,
            verbose=False,
            dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=4096)},),
        )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "exporter"), CASES)
def test_onnx_and_pytorch_agree(
    name: str,
    exporter: str,
    tmp_path: Path,
    reference_models: Mapping[str, Any],
    export_onnx: Callable[[Any, Any], Any],
) -> None:
    import torch

    reference = reference_models[name]
    module = reference.build()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_()  # exporters merge weights of equal values, which trained ones do not have
    path = tmp_path / "model.onnx"
    if exporter == "legacy":
        path.write_bytes(export_onnx(module, _sample(reference.input)).SerializeToString())
    else:
        pytest.importorskip("onnxscript")
        _export_by_dynamo(module, _sample(reference.input), path)
    from_torch = dippm.load(module, input=reference.input)
    from_onnx = dippm.load(path)
    assert from_onnx.unsupported_ops == {}
    assert from_onnx.parameter_count == from_torch.parameter_count == sum(p.numel() for p in module.parameters())
    for precision in ("fp32", "amp"):
        for batch in (1, 32):
            ours, theirs = (
                dippm.predict(graph, batch=batch, device="A100", precision=precision)
                for graph in (from_torch, from_onnx)
            )
            assert theirs.macs == ours.macs
            assert theirs.latency_ms == pytest.approx(ours.latency_ms, rel=0.05), (precision, batch)
            # No file says which activations worked in place.
            assert theirs.memory_mb == pytest.approx(ours.memory_mb, rel=0.1), (precision, batch)
