"""The same model as a PyTorch module and as an ONNX file gives the same answer."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dippm

pytest.importorskip("torch")

MODELS = (
    "resnet18",
    "resnet50",
    "vgg11_bn",
    "mobilenetv2_100",
    "mobilenetv3_small_100",
    "densenet121",
    "efficientnet_b0",
    "mnasnet_100",
    "vit_tiny_patch16_224",
    "convnext_atto",
    "swin_tiny_patch4_window7_224",
    "visformer_tiny",
    "poolformer_s12",
    "regnety_002",
    "ghostnet_100",
)

# Networks answer in amp: they read what runs in place and what is copied first, and a file says neither of a module.
_SLACK = {"fp32": 0.05, "amp": 0.06}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_onnx_and_pytorch_agree(name: str, export_onnx: Callable[[Any, Any], Any]) -> None:
    import torch

    from dippm.frontends.torch.torchvision_ops import import_torchvision_ops

    import_torchvision_ops()
    pytest.importorskip("timm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import timm

        module = timm.create_model(name).eval()
    size = module.default_cfg["input_size"]
    from_torch = dippm.load(module, input=size)
    from_onnx = dippm.load(export_onnx(module, torch.randn(2, *size)))
    assert from_onnx.parameter_count == from_torch.parameter_count == sum(p.numel() for p in module.parameters())
    for precision in _SLACK:
        for batch in (1, 32):
            ours, theirs = (
                dippm.predict(graph, batch=batch, device="A100", precision=precision)
                for graph in (from_torch, from_onnx)
            )
            assert theirs.macs == ours.macs
            assert theirs.latency_ms == pytest.approx(ours.latency_ms, rel=_SLACK[precision]), (precision, batch)


@pytest.mark.parametrize("kind", ["torchscript", "pt2", "pickle", "onnx"])
def test_every_file_of_one_network_gives_one_answer(
    tmp_path: Path, kind: str, export_onnx: Callable[[Any, Any], Any]
) -> None:
    import torch
    from torch import nn

    module = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 16 * 16, 10)
    ).eval()
    sample = torch.zeros(2, 3, 32, 32)
    path = tmp_path / {"torchscript": "m.pt", "pt2": "m.pt2", "pickle": "m.pt", "onnx": "m.onnx"}[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "torchscript":
            torch.jit.save(torch.jit.trace(module, sample), str(path))
        elif kind == "pt2":
            torch.export.save(torch.export.export(module, (sample,)), path)
        elif kind == "pickle":
            torch.save(module, path)
        else:
            path.write_bytes(export_onnx(module, sample).SerializeToString())
    expected = dippm.predict(module, input=(3, 32, 32), batch=16)
    answer = dippm.predict(path, input=(3, 32, 32), batch=16, trust=kind == "pickle")
    assert (answer.macs, answer.model.parameters) == (expected.macs, expected.model.parameters)
    assert answer.latency_ms == pytest.approx(expected.latency_ms, rel=0.01)
    if kind == "pickle":
        with pytest.raises(dippm.ModelReadError, match="trust") as caught:
            dippm.predict(path, input=(3, 32, 32))
        assert caught.value.code == "torch.pickle_refused"
