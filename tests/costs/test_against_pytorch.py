"""MACs beside PyTorch's FLOP counter and live memory beside its memory tracker, on whole models without weights.

The FLOP counter runs on meta tensors, where attention is decomposed into matrix products that it counts, and its FLOPs
are halved. The memory tracker's ``Total`` is the peak of all live tensors: parameters, buffers, inputs, activations
and temporaries, unrounded; ours is the peak of :func:`live_memory` without the scratch memory and layout copies of
CUDA libraries, which no tracker of tensors sees.

Which casts autocast makes, and which copies it keeps, is seen on a processor, where its cache is the same.
"""

from __future__ import annotations

import re
import warnings
import weakref
from contextlib import contextmanager

import numpy as np
import pytest

from dippm.costs import MemoryTimeline, Precision, Purpose, Workload, live_memory
from dippm.costs.polynomial import evaluate
from dippm.costs.software import Software
from dippm.frontends.inputs import parse_input_shapes

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

_BATCH = 4
_NO_LIBRARIES = frozenset(
    {Purpose.SCRATCH, Purpose.LAYOUT_TF32, Purpose.LAYOUT_HALF, Purpose.GROUPED_TF32, Purpose.GROUPED_HALF}
)


@pytest.fixture(scope="module", name="torchvision_ops")
def _torchvision_ops():
    """timm and transformers import torchvision, which may be built for another torch."""
    from dippm.frontends.torch.torchvision_ops import import_torchvision_ops

    try:
        import_torchvision_ops()
    except ImportError:
        pytest.skip("torchvision is not installed")


@pytest.fixture(scope="module")
def timm(torchvision_ops):
    return pytest.importorskip("timm")


def _make(make):
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make().eval()


def _read(module, shape):
    from dippm.frontends.torch import read_module

    return Workload.from_graph(read_module(module, input=parse_input_shapes(shape)))


def _example(shape):
    (entry,) = parse_input_shapes(shape).positional
    dtype = torch.float32 if entry.dtype is None else torch.int64
    return torch.zeros(_BATCH, *entry.shape, dtype=dtype, device="meta")


def _counted_macs(module, shape):
    from torch.utils.flop_counter import FlopCounterMode

    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        module(_example(shape))
    return counter.get_total_flops() / 2


def _tracked_peak(module, shape):
    from torch.distributed._tools.mem_tracker import MemTracker

    example = _example(shape)
    tracker = MemTracker()
    tracker.track_external(module, example)
    with torch.no_grad(), tracker:
        module(example)
    (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    return snapshot["Total"]


def _check(module, shape, *, memory=True):
    work = _read(module, shape)
    assert work.at(_BATCH).macs.sum() == pytest.approx(_counted_macs(module, shape), rel=1e-6)
    assert work.sizes.graph.parameter_count == sum(p.numel() for p in module.parameters())
    if memory:
        live = live_memory(MemoryTimeline.from_workload(work), _BATCH, without=_NO_LIBRARIES)
        assert live.peak_bytes[0] == pytest.approx(_tracked_peak(module, shape), rel=0.02)


@pytest.mark.parametrize(
    "name",
    [
        "efficientnet_b0", "mnasnet_100", "mobilenetv2_100", "mobilenetv3_small_100", "resnet18", "resnet50",
        "vgg11", "swin_tiny_patch4_window7_224", "densenet121", "visformer_tiny", "poolformer_s12", "convnext_atto",
    ],
)  # fmt: skip
def test_image_models(timm, name):
    module = _make(lambda: timm.create_model(name))
    _check(module, tuple(module.pretrained_cfg["input_size"]))


def test_vision_transformer_with_fused_attention(timm):
    # The tracker would see the decomposed attention's scores, which the fused kernel never holds.
    _check(_make(lambda: timm.create_model("vit_tiny_patch16_224")), (3, 224, 224), memory=False)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_language_models(torchvision_ops, kind):
    transformers = pytest.importorskip("transformers")
    make = {
        "bert": lambda: transformers.BertModel(transformers.BertConfig(num_hidden_layers=2)),
        "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2)),
    }[kind]
    _check(_make(make), "128:int64")


class _Call(torch.nn.Module):
    def __init__(self, function, *shapes):
        super().__init__()
        self.function = function
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(shape)) for shape in shapes)

    def forward(self, x):
        return self.function(x, *self.weights)


class _First(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("options", [{}, {"batch_first": True, "bidirectional": True}])
def test_recurrent_models(kind, options):
    # Memory is not compared: the tracker sees every step of the loop that stands in for cuDNN's one kernel.
    options = {"batch_first": True, **options}
    _check(_make(lambda: _First(kind(24, 32, 2, **options))), (16, 24), memory=False)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: torch.nn.ConvTranspose2d(8, 12, 3, stride=2, padding=1, output_padding=1, groups=2), (8, 10, 10)),
        (lambda: torch.nn.Conv1d(8, 12, 3, dilation=2), (8, 40)),
        (lambda: torch.nn.Conv3d(4, 6, (3, 2, 1), stride=(2, 1, 1)), (4, 9, 8, 7)),
        (lambda: torch.nn.Conv2d(12, 24, 3, groups=4, dilation=3, padding=3), (12, 20, 20)),
        (lambda: torch.nn.Linear(8, 3), (5, 6, 8)),
    ],
)
def test_single_layers(layer, shape):
    _check(_make(layer), shape)


class _Casts(TorchDispatchMode):
    """Bytes of the casts that are made, and of those whose copies are alive."""

    _CASTS = frozenset({torch.ops.aten.to.dtype, torch.ops.aten._to_copy.default})

    def __init__(self):
        super().__init__()
        self.made = []
        self.alive = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in self._CASTS:
            storage = result.untyped_storage()
            self.made.append(storage.nbytes())
            self.alive += storage.nbytes()
            weakref.finalize(storage, self._drop, storage.nbytes())
        return result

    def _drop(self, size):
        self.alive -= size


@pytest.mark.parametrize("guard", [torch.inference_mode, torch.no_grad])
def test_casts_of_autocast(guard):
    """A network of which one layer runs twice."""
    tied = torch.nn.Linear(8, 8)
    module = torch.nn.Sequential(torch.nn.Conv1d(4, 4, 1), tied, torch.nn.ReLU(), torch.nn.Linear(8, 8), tied).eval()
    casts = _Casts()
    with guard(), torch.autocast("cpu", torch.bfloat16), casts:
        module(torch.zeros(_BATCH, 4, 8))
        kept = casts.alive
    assert not casts.alive

    major, minor = re.findall(r"\d+", torch.__version__)[:2]
    keeps_casts = guard is torch.no_grad or Software(torch=(int(major), int(minor))).keeps_casts
    graph = _read(module, (4, 8)).sizes.graph
    work = Workload.from_graph(graph, Precision.AMP_BF16, keeps_casts=keeps_casts)
    assert sorted(work.at(_BATCH).casts.bytes_written[0].tolist()) == sorted(casts.made)
    timeline = MemoryTimeline.from_workload(work)
    (pieces,) = evaluate(timeline.bytes_of, np.array([float(_BATCH)]))
    output = 2 * _BATCH * 4 * 8
    assert pieces[timeline.event_piece] @ timeline.event_sign == kept + output
    assert (kept > 0) is keeps_casts


class _Live(TorchDispatchMode):
    """The most bytes of all storages that are alive together, those of some tensors and all that operators make."""

    def __init__(self, *tensors):
        super().__init__()
        self.live = self.highest = 0
        self._known = weakref.WeakKeyDictionary()
        for tensor in tensors:
            self._add(tensor)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self._add(result)
        return result

    def _add(self, tensor):
        storage = tensor.untyped_storage()
        if storage not in self._known:
            self._known[storage] = size = storage.nbytes()
            self.live += size
            self.highest = max(self.highest, self.live)
            weakref.finalize(storage, self._drop, size)

    def _drop(self, size):
        self.live -= size


@contextmanager
def _autocast_of_cuda():
    """Autocast as it is for CUDA, where there is no device as well."""
    before = torch.get_autocast_dtype("cuda"), torch.is_autocast_cache_enabled()
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.float16)
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", before[0])
        torch.set_autocast_cache_enabled(before[1])


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        pytest.param(lambda x, w: w @ x.unsqueeze(1), [(4, 16, 16)], id="a product for each head and sample"),
        pytest.param(lambda x: torch.einsum("bic,bid->bicd", x, x), [], id="an Einstein sum that sums nothing"),
    ],
)
def test_autocast_casts_operands_before_they_are_copied(function, shapes):
    size = _BATCH, 16, 32
    with FakeTensorMode(), torch.no_grad():
        given = [torch.empty(each, device="cuda:0") for each in (size, *shapes)]
        with _autocast_of_cuda(), _Live(*given) as live:
            function(*given)
    graph = _read(_Call(function, *shapes), size[1:]).sizes.graph
    work = Workload.from_graph(graph, Precision.AMP, keeps_casts=False)
    found = live_memory(MemoryTimeline.from_workload(work), _BATCH, without=_NO_LIBRARIES)
    assert found.peak_bytes[0] == pytest.approx(live.highest, rel=0.03)
