"""MACs, parameters and live memory against PyTorch's own counters, on the zoo's models."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from importlib.util import find_spec  # noqa: E402

if find_spec("timm") is None:
    pytest.skip("timm is not installed", allow_module_level=True)

from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from dippm.costs import MemoryTimeline, Workload, live_memory  # noqa: E402
from dippm.frontends import zoo  # noqa: E402
from dippm.frontends.inputs import InputShapes, parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_module  # noqa: E402
from dippm.frontends.torch.dtypes import to_torch_dtype  # noqa: E402

BATCH = 4
FAST = [
    "timm:resnet50",
    "timm:mobilenetv3_large_100",
    "timm:vgg16",
    "timm:swin_tiny_patch4_window7_224",
    "timm:vit_tiny_patch16_224",
    "hf:bert",
    "lstm",
    "gru",
]
SLOW = [
    "timm:efficientnet_b0",
    "timm:tf_efficientnetv2_s",
    "timm:efficientnet_lite0",
    "timm:mnasnet_100",
    "timm:semnasnet_100",
    "timm:mobilenetv4_conv_small",
    "timm:mobilenet_edgetpu_v2_xs",
    "timm:resnet18",
    "timm:resnext50_32x4d",
    "timm:seresnet50",
    "timm:vgg16_bn",
    "timm:swinv2_tiny_window8_256",
    "timm:vit_base_patch32_224",
    "timm:densenet121",
    "timm:visformer_tiny",
    "timm:poolformer_s12",
    "timm:poolformerv2_s12",
    "hf:gpt2",
]
# Others of the same families.
MORE = [
    "timm:efficientnet_b3",
    "timm:mnasnet_small",
    "timm:mobilenetv2_100",
    "timm:mobilenetv3_small_100",
    "timm:resnet101",
    "timm:wide_resnet50_2",
    "timm:vgg11",
    "timm:vgg19",
    "timm:swin_base_patch4_window7_224",
    "timm:swin_s3_tiny_224",
    "timm:vit_base_patch16_224",
    "timm:vit_small_patch16_224",
    "timm:deit_small_patch16_224",
    "timm:densenet161",
    "timm:densenet169",
    "timm:densenet201",
    "timm:visformer_small",
    "timm:poolformer_s24",
    "timm:poolformer_m36",
    "timm:poolformerv2_m48",
]
MEMORY_FAST = ["timm:resnet50", "timm:vit_tiny_patch16_224"]
MEMORY_SLOW = [
    "timm:vgg16",
    "timm:efficientnet_b0",
    "timm:mobilenetv3_large_100",
    "timm:mnasnet_100",
    "timm:densenet121",
    "timm:swin_tiny_patch4_window7_224",
    "timm:visformer_small",
    "timm:poolformer_s12",
    "hf:bert",
    "hf:gpt2",
]


def build(name: str) -> tuple[nn.Module, InputShapes]:
    if name == "lstm":
        return nn.LSTM(64, 128, 2, batch_first=True, device="meta").eval(), parse_input_shapes("50,64")
    if name == "gru":
        layer = nn.GRU(64, 128, 2, batch_first=True, bidirectional=True, device="meta")
        return layer.eval(), parse_input_shapes("50,64")
    return zoo.build(name)


def call(module: nn.Module, given: InputShapes, *, device: str) -> None:
    def tensor(entry: Any) -> torch.Tensor:
        dtype = torch.float32 if entry.dtype is None else to_torch_dtype(entry.dtype)
        return torch.empty((BATCH, *entry.shape), dtype=dtype, device=device)

    named = {name: tensor(entry) for name, entry in (given.named or {}).items()}
    had_fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            module(*(tensor(entry) for entry in given.positional), **named)
    finally:
        torch.backends.mha.set_fastpath_enabled(had_fastpath)


@pytest.mark.parametrize(
    "name",
    [
        *FAST,
        *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
        *(pytest.param(name, marks=[pytest.mark.slow, pytest.mark.exhaustive]) for name in MORE),
    ],
)
def test_macs_and_parameters(name: str) -> None:
    module, given = build(name)
    graph = read_module(module, input=given, source=name)
    with FlopCounterMode(display=False) as counter:
        call(module, given, device="meta")
    macs = float(np.sum(Workload.from_graph(graph).at([BATCH]).macs))
    assert macs == pytest.approx(counter.get_total_flops() / 2, rel=1e-2)
    assert graph.parameter_count == sum(parameter.numel() for parameter in module.parameters())
    assert not graph.unsupported_ops
    assert graph.fixed_batch is None


@pytest.mark.parametrize("name", [*MEMORY_FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in MEMORY_SLOW)])
def test_peak_of_live_tensors(name: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    module, given = build(name)
    graph = read_module(module, input=given, source=name)
    ours = float(live_memory(MemoryTimeline.from_workload(Workload.from_graph(graph)), [BATCH]).peak_bytes[0])
    mode = FakeTensorMode()
    fakes: dict[int, Any] = {}  # weights that are shared stay so
    for child in module.modules():
        for table in (child._parameters, child._buffers):
            for key, value in table.items():
                if value is not None:
                    if id(value) not in fakes:
                        fake = mode.from_tensor(torch.empty_like(value.detach(), device="cpu"))
                        fakes[id(value)] = nn.Parameter(fake) if table is child._parameters else fake
                    table[key] = fakes[id(value)]
    with warnings.catch_warnings(), mode:
        warnings.simplefilter("ignore")
        tracker = MemTracker()
        tracker.track_external(module)
        with tracker:
            call(module, given, device="cpu")
    theirs = sum(parts["Total"] for parts in tracker.get_tracker_snapshot("peak").values())
    assert ours == pytest.approx(theirs, rel=2e-2)
