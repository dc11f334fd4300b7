"""Live bytes of a training step beside those of PyTorch's own autograd on fake tensors; which weights it reaches."""

from __future__ import annotations

import weakref

import pytest

from dippm.costs.conditions import Mode, Optimizer
from dippm.costs.live_tensors import live_memory
from dippm.costs.timeline import MemoryTimeline, Purpose
from dippm.costs.training_step.training_graph import Phase, TrainingSettings, make_training_graph
from dippm.costs.workload import Workload
from dippm.errors import UnsupportedError
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.graph import DType

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from dippm.frontends.torch import read_module  # noqa: E402
from dippm.measuring.training import Loss  # noqa: E402

_BATCH = 4
_IMAGE = (8, 16, 16)
_TOKENS = (32, 64)
# Bytes of scalars: the loss and its gradient, and what PyTorch keeps of constants.
_SCALARS = 64


class _Tracker(TorchDispatchMode):
    """Live bytes of all storages that operators make, from one operator to the next."""

    def __init__(self):
        super().__init__()
        self.live = 0
        self.highest = 0
        self._known = weakref.WeakKeyDictionary()

    def add(self, tensor):
        storage = tensor.untyped_storage()
        if storage not in self._known:
            size = storage.nbytes()
            self._known[storage] = size
            self.live += size
            weakref.finalize(storage, self._drop, size)

    def restart(self):
        """Forget the highest; return what is alive."""
        self.highest = self.live
        return self.live

    def _drop(self, size):
        self.live -= size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.namespace == "aten":
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    self.add(leaf)
            self.highest = max(self.highest, self.live)
        return result


class _Between(nn.Module):
    """A layer whose input and output have gradients: after an element-wise product, before the mean of each sample."""

    def __init__(self, layer, shape):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(shape))
        self.layer = layer

    def forward(self, x):
        y = self.layer(x * self.scale)
        y = y[0] if isinstance(y, tuple) else y
        return y.mean(tuple(range(1, y.dim())))


class _Call(nn.Module):
    def __init__(self, function, *shapes):
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(shape)) for shape in shapes)

    def forward(self, x):
        return self.function(x, *self.weights)


class _Spectral(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width, dtype=torch.complex64))

    def forward(self, x):
        return (torch.fft.fft(x) @ self.weight).real


def _track(make, shape, dtype, optimizer):
    """Bytes alive after the forward pass, and the highest in the backward pass and in the update."""
    with FakeTensorMode():
        module = make().train()
        x = torch.zeros((_BATCH, *shape), dtype=dtype)
        updater = optimizer(list(module.parameters()))
        loss_of = Loss()
        tracker = _Tracker()
        for tensor in (*module.parameters(), *module.buffers(), x):
            tracker.add(tensor)
        with tracker:
            for _ in range(2):
                loss = loss_of(module(x))
                kept = tracker.restart()
                loss.backward()
                backward = tracker.highest
                del loss
                tracker.restart()
                updater.step()
                update = tracker.highest
                updater.zero_grad(set_to_none=True)
    return kept, backward, update


# What operators take while they run on CUDA, and not here.
_OF_CUDA = frozenset(Purpose) - {
    Purpose.WEIGHT, Purpose.INPUT, Purpose.ACTIVATION, Purpose.GRADIENT, Purpose.OPTIMIZER_STATE,
}  # fmt: skip


def _predict(make, shape, dtype, optimizer):
    with torch.device("meta"):
        module = make()
    graph = read_module(
        module, input=InputShapes(positional=(InputEntry(shape=shape, dtype=dtype),)), mode=Mode.TRAINING
    )
    training = make_training_graph(graph, TrainingSettings(optimizer=optimizer))
    timeline = MemoryTimeline.from_workload(Workload.from_graph(training.graph, training.precision))
    live = live_memory(timeline, [_BATCH], without=_OF_CUDA).live_bytes[0]
    backward = live[training.phase == Phase.BACKWARD]
    return int(backward[0]), int(backward.max()), int(live[training.phase == Phase.OPTIMIZER].max())


def _assert_alike(make, shape, optimizer=Optimizer.SGD, dtype=DType.FLOAT32):
    tracked = _track(make, shape, getattr(torch, dtype.value), _OPTIMIZERS[optimizer])
    predicted = _predict(make, shape, dtype, optimizer)
    assert predicted == pytest.approx(tracked, abs=_SCALARS, rel=0)


_OPTIMIZERS = {
    # As PyTorch picks them on CUDA.
    Optimizer.SGD: lambda weights: torch.optim.SGD(weights, lr=0.1, foreach=True),
    Optimizer.MOMENTUM: lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, foreach=True),
    Optimizer.ADAM: lambda weights: torch.optim.Adam(weights, foreach=True),
    Optimizer.ADAMW: lambda weights: torch.optim.AdamW(weights, foreach=True),
    Optimizer.ADAMW_FUSED: lambda weights: torch.optim.AdamW(weights, fused=True),
    Optimizer.RMSPROP: lambda weights: torch.optim.RMSprop(weights, foreach=True),
}


def _attend(x, weight, attend):
    query, key, value = functional.linear(x, weight).reshape(-1, 32, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
    return attend(query, key, value).transpose(1, 2).reshape(x.shape)


def _attend_by_hand(query, key, value):
    return ((query @ key.transpose(-2, -1)) * 0.25).softmax(-1) @ value


def _filled(x, *parts):
    """A tensor of zeros whose slices are written one after the other."""
    result = torch.zeros_like(x)
    for where, part in parts:
        result[:, where] = part(x[:, where])
    return result


def _overwritten(x):
    result = x * 2
    result[:, :4] = x[:, 4:8]
    return result


def _changed_through_a_view(x):
    result = x * 2
    result.view(-1, 64).relu_()
    return result


def _as_complex(x):
    return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))


_LAYERS = {
    "convolution": lambda: nn.Conv2d(8, 12, 3, padding=1),
    "ReLU in place after instance norm": lambda: nn.Sequential(nn.InstanceNorm2d(8), nn.ReLU(inplace=True)),
    "convolution without bias": lambda: nn.Conv2d(8, 12, 3, padding=1, bias=False),
    "depthwise convolution": lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8),
    "transposed convolution": lambda: nn.ConvTranspose2d(8, 12, 2, 2),
    "batch norm": lambda: nn.BatchNorm2d(8),
    "group norm": lambda: nn.GroupNorm(2, 8),
    "batch norm, ReLU in place": lambda: nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(inplace=True)),
    "bottleneck": lambda: nn.Sequential(
        nn.Conv2d(8, 8, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
    ),
    "max pooling": lambda: nn.MaxPool2d(2),
    "average pooling": lambda: nn.AvgPool2d(2),
    "global pooling": lambda: nn.AdaptiveAvgPool2d(1),
    "adaptive pooling": lambda: nn.AdaptiveAvgPool2d(3),
    "squeeze and excitation": lambda: _Call(lambda x: x * x.mean((2, 3), keepdim=True)),
    "concatenation": lambda: _Call(lambda x: torch.cat([x.relu(), x.sigmoid()], 1)),
    "split and concatenation": lambda: _Call(lambda x: torch.cat([part.relu() for part in x.split(4, 1)], 1)),
    "bilinear": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "nearest": lambda: nn.Upsample(scale_factor=2),
    "zero padding": lambda: nn.ZeroPad2d(1),
    "reflection padding": lambda: nn.ReflectionPad2d(1),
    "pixel shuffle": lambda: nn.PixelShuffle(2),
    "local response norm": lambda: nn.LocalResponseNorm(3),
    "unfold": lambda: nn.Unfold(3, padding=1),
    "standardised weight": lambda: _Call(
        lambda x, w: functional.conv2d(
            x, functional.batch_norm(w.reshape(1, 12, -1), None, None, training=True).reshape_as(w), padding=1
        ),
        (12, 8, 3, 3),
    ),
}

_TOKEN_LAYERS = {
    "linear": lambda: nn.Linear(64, 96),
    "linear without bias": lambda: nn.Linear(64, 96, bias=False),
    "layer norm": lambda: nn.LayerNorm(64),
    "layer norm without weights": lambda: nn.LayerNorm(64, elementwise_affine=False),
    "attention": lambda: _Call(lambda x, w: _attend(x, w, functional.scaled_dot_product_attention), (192, 64)),
    "attention by hand": lambda: _Call(lambda x, w: _attend(x, w, _attend_by_hand), (192, 64)),
    "ReLU": nn.ReLU,
    "ReLU in place": lambda: nn.ReLU(inplace=True),
    "ReLU6 in place": lambda: nn.ReLU6(inplace=True),
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "SiLU in place": lambda: nn.SiLU(inplace=True),
    "hard-swish": nn.Hardswish,
    "hard-swish in place": lambda: nn.Hardswish(inplace=True),
    "hard-sigmoid": nn.Hardsigmoid,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "leaky ReLU": nn.LeakyReLU,
    "leaky ReLU in place": lambda: nn.LeakyReLU(inplace=True),
    "ELU": nn.ELU,
    "Mish": nn.Mish,
    "PReLU": nn.PReLU,
    "softplus": nn.Softplus,
    "GLU": nn.GLU,
    "softmax": lambda: nn.Softmax(-1),
    "log-softmax": lambda: nn.LogSoftmax(-1),
    # What nn.Dropout runs on CUDA; on a CPU it keeps its noise as numbers and not as a mask.
    "dropout": lambda: _Call(lambda x: torch.native_dropout(x, 0.1, True)[0]),
    "mean": lambda: _Call(lambda x: x.mean(1)),
    "sum": lambda: _Call(lambda x: x.sum(1)),
    "maximum of a dimension": lambda: _Call(lambda x: x.max(1)[0]),
    "square of itself": lambda: _Call(lambda x: x * x),
    "product of two": lambda: _Call(lambda x: x * x.sigmoid()),
    "scale": lambda: _Call(lambda x, w: x * w, (64,)),
    "position": lambda: _Call(lambda x, w: x + w, (1, 32, 64)),
    "quotient": lambda: _Call(lambda x, w: x / w, (32, 64)),
    "quotient by a number": lambda: _Call(lambda x: x / 2),
    "product with a number": lambda: _Call(lambda x: x * 2),
    "difference": lambda: _Call(lambda x, w: x - w, (32, 64)),
    "one minus": lambda: _Call(lambda x: 1 - x),
    "power": lambda: _Call(lambda x: x**3),
    "exponential": lambda: _Call(torch.exp),
    "logarithm": lambda: _Call(torch.log),
    "square root": lambda: _Call(torch.sqrt),
    "reciprocal root": lambda: _Call(torch.rsqrt),
    "absolute value": lambda: _Call(torch.abs),
    "clamp": lambda: _Call(lambda x: x.clamp(-1, 1)),
    "where": lambda: _Call(lambda x, w: torch.where(x > 0, x, w), (32, 64)),
    "masked fill": lambda: _Call(lambda x: x.masked_fill(x > 0, 0.0)),
    "unit length": lambda: _Call(lambda x: functional.normalize(x, dim=-1)),
    "cumulative sum": lambda: _Call(lambda x: x.cumsum(1)),
    "residual": lambda: _Call(lambda x, w: x + functional.linear(x, w), (64, 64)),
    "tied weight": lambda: _Call(lambda x, w: functional.linear(functional.linear(x, w), w.t()), (96, 64)),
    "product with a matrix": lambda: _Call(lambda x, w: x @ w, (64, 32)),
    "product with itself": lambda: _Call(lambda x: x @ x.transpose(1, 2)),
    "chunks": lambda: _Call(lambda x: torch.mul(*x.chunk(2, -1))),
    "stack": lambda: _Call(lambda x: torch.stack([x.relu(), x.sigmoid()], 1)),
    "slice": lambda: _Call(lambda x: x[:, 1:]),
    "class token": lambda: _Call(lambda x: x[:, 0]),
    "roll": lambda: _Call(lambda x: torch.roll(x, 1, 1)),
    "flip": lambda: _Call(lambda x: torch.flip(x, (1,))),
    "transposed copy": lambda: _Call(lambda x: x.permute(0, 2, 1).contiguous()),
    "transposed and flattened": lambda: _Call(lambda x: x.permute(0, 2, 1).flatten(1)),
    "slice written": lambda: _Call(lambda x: _filled(x, (slice(4), torch.sin))),
    "slice written from less": lambda: _Call(lambda x: _filled(x, (slice(4), lambda part: part[:, :1]))),
    "slices written": lambda: _Call(
        lambda x: _filled(x, (slice(0, None, 2), torch.sin), (slice(1, None, 2), torch.cos))
    ),
    "slice overwritten": lambda: _Call(_overwritten),
    "ReLU in place through a view": lambda: _Call(_changed_through_a_view),
    "ReLU in place of tokens": lambda: nn.Sequential(nn.Linear(64, 48), nn.ReLU(inplace=True)),
    "ReLU in place of tokens without bias": lambda: nn.Sequential(nn.Linear(64, 48, bias=False), nn.ReLU(inplace=True)),
    **{
        name: lambda name=name: _Call(getattr(torch, name))
        for name in (
            "acos",
            "acosh",
            "asin",
            "asinh",
            "atan",
            "atanh",
            "cosh",
            "sinh",
            "tan",
            "erfc",
            "exp2",
            "expm1",
            "log10",
            "log1p",
            "log2",
            "lgamma",
        )
    },
    **{
        f"{name} of two": lambda name=name: _Call(getattr(torch, name), (32, 64))
        for name in ("maximum", "minimum", "hypot", "logaddexp", "remainder", "pow", "xlogy", "copysign")
    },
    **{
        f"{name} by a tensor": lambda name=name: _Call(lambda x: getattr(torch, name)(x, x.detach()))
        for name in ("maximum", "minimum", "hypot", "logaddexp", "pow", "atan2", "remainder")
    },
    "loss of logits": lambda: _Call(
        lambda x: functional.binary_cross_entropy_with_logits(x, x.detach()).expand(x.shape[0], 1)
    ),
    "variance and mean": lambda: _Call(lambda x: sum(torch.var_mean(x, -1))),
    "mean beside a variance": lambda: _Call(lambda x: torch.var_mean(x, -1)[1]),
    "smallest and largest": lambda: _Call(lambda x: sum(torch.aminmax(x, dim=-1))),
    "product with the logarithm of a number": lambda: _Call(lambda x: torch.xlogy(x, 2.0)),
    "rows added": lambda: _Call(lambda x: x.index_add(1, torch.zeros(32, dtype=torch.long), x * 2)),
    "rows copied": lambda: _Call(lambda x: x.index_copy(1, torch.arange(32), x * 2)),
    "product added": lambda: _Call(torch.addcmul, (32, 64), (32, 64)),
    "product with a row added": lambda: _Call(lambda x, w: torch.addcmul(x.detach(), w, x), (32, 64)),
    "quotient by a row added": lambda: _Call(lambda x, w: torch.addcdiv(x.detach(), x, w + 1), (32, 64)),
    "quotient added": lambda: _Call(torch.addcdiv, (32, 64), (32, 64)),
    "cumulative logarithm of sums": lambda: _Call(lambda x: x.logcumsumexp(1)),
    "error function": lambda: _Call(torch.erf),
    "inverse error function": lambda: _Call(lambda x: torch.erfinv(x) * 2),
    "logarithm of sums": lambda: _Call(lambda x: x.logsumexp(-1)),
    "remainder": lambda: _Call(lambda x: x.remainder(2.0)),
    "fraction": lambda: _Call(torch.frac),
    "mixture by a number": lambda: _Call(lambda x, w: torch.lerp(x, w.expand_as(x), 0.5), (32, 64)),
    "largest four": lambda: _Call(lambda x: x.topk(4)[0]),
    "third smallest": lambda: _Call(lambda x: x.kthvalue(3, 1)[0]),
    "median": lambda: _Call(lambda x: x.median(1)[0]),
    "mode": lambda: _Call(lambda x: x.mode(1)[0]),
    "floor": lambda: _Call(torch.floor),
    "sign": lambda: _Call(torch.sign),
    "real part of a transform": lambda: _Call(lambda x: torch.fft.fft(torch.fft.fft(x), dim=1).real),
    "imaginary part": lambda: _Call(lambda x: torch.fft.fft(x).imag),
    "modulus": lambda: _Call(lambda x: torch.fft.fft2(x).abs()),
    "half a spectrum": lambda: _Call(lambda x: torch.fft.rfft(x).real),
    "half a spectrum and back": lambda: _Call(lambda x: torch.fft.irfft(torch.fft.rfft(x))),
    "filter": lambda: _Call(
        lambda x, w: torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(w), n=64), (32, 33, 2)
    ),
    "real factor of a complex number": lambda: _Call(lambda x, w: (torch.fft.fft(x) * w).real, (64,)),
    "complex product": lambda: _Call(lambda x: (torch.fft.fft(x) * torch.fft.fft(x.relu())).real),
    "product with a complex matrix": lambda: _Call(
        lambda x, w: (torch.fft.fft(x) @ torch.view_as_complex(w)).real, (64, 32, 2)
    ),
    "rotation": lambda: _Call(
        lambda x: torch.view_as_real(_as_complex(x) * torch.polar(*torch.ones(2, 32, 32))).flatten(-2)
    ),
    "conjugate": lambda: _Call(lambda x: torch.view_as_real(_as_complex(x).conj() * 2).flatten(-2)),
    "complex of two": lambda: _Call(lambda x: torch.view_as_real(torch.complex(x.relu(), x.sigmoid()) * 2).flatten(-2)),
    **{
        f"scattered {how}": lambda how=how: _Call(
            lambda x: (x.detach() * 2).scatter_reduce(1, torch.zeros(x.shape, dtype=torch.long), x * 2, how)
        )
        for how in ("sum", "mean")
    },
    "mean of rows": lambda: _Call(
        lambda x: (x.detach() * 2).index_reduce(1, torch.zeros(32, dtype=torch.long), x * 2, "mean")
    ),
    **{
        f"{name} of {who}": lambda loss=loss, pick=pick: _Call(lambda x: loss(*pick(x), reduction="none"))
        for name, loss in {
            "squares": functional.mse_loss,
            "smooth loss": functional.smooth_l1_loss,
            "Huber": functional.huber_loss,
        }.items()
        for who, pick in {
            "both": lambda x: (x * 2, x * 3),
            "the second": lambda x: (x.detach() * 2, x * 3),
            "the first": lambda x: (x * 2, x.detach() * 3),
        }.items()
    },
    "blocks of a diagonal": lambda: _Call(lambda x, w, v: x @ torch.block_diag(w * 2, v.relu()), (24, 24), (40, 40)),
    "clamp by two that are trained": lambda: _Call(lambda x, w: torch.clamp(x * 2, w * 2, w * 3), (32, 64)),
    "clamp by two": lambda: _Call(lambda x: torch.clamp(x * 2, x.detach() * 2, x.detach() * 3)),
    "clamp by a least one": lambda: _Call(lambda x, w: torch.clamp(x * 2, min=w * 2), (32, 64)),
    "clamp by a largest of each channel": lambda: _Call(lambda x, w: (x * 2).clamp_max(w), (64,)),
    "clamp of what is not trained": lambda: _Call(lambda x, w: torch.clamp(x.detach(), max=w * 2), (32, 64)),
    "complex of parts that nothing else keeps": lambda: _Call(
        lambda x: torch.view_as_real(torch.complex(x * 2, x * 3)).flatten(-2)
    ),
    "complex of one part with a gradient": lambda: _Call(
        lambda x: torch.view_as_real(torch.complex(x * 2, torch.ones_like(x) * 3)).flatten(-2)
    ),
}


@pytest.mark.parametrize("name", _LAYERS)
def test_layers_of_images(name):
    _assert_alike(lambda: _Between(_LAYERS[name](), _IMAGE), _IMAGE)


@pytest.mark.parametrize("name", _TOKEN_LAYERS)
def test_layers_of_tokens(name):
    _assert_alike(lambda: _Between(_TOKEN_LAYERS[name](), _TOKENS), _TOKENS)


@pytest.mark.parametrize("function", [torch.std, torch.var])
def test_variances_but_for_what_has_the_size_of_a_row(function):
    layer = lambda: _Between(_Call(lambda x: function(x, -1)), _TOKENS)  # noqa: E731 - a parameter
    tracked = _track(layer, _TOKENS, torch.float32, _OPTIMIZERS[Optimizer.SGD])
    predicted = _predict(layer, _TOKENS, DType.FLOAT32, Optimizer.SGD)
    assert predicted == pytest.approx(tracked, rel=0.02)
    assert predicted[0] == pytest.approx(tracked[0], abs=_SCALARS, rel=0)


@pytest.mark.parametrize("function", [
    lambda x: x.gather(1, torch.zeros(x.shape[0], 2, 64, dtype=torch.long)),
    lambda x: x.cumprod(1),
    lambda x: x.index_select(1, torch.arange(2)),
])  # fmt: skip
def test_what_is_kept_where_the_way_back_depends_on_values(function):
    layer = lambda: _Between(_Call(lambda x: function(x.mean(-1, keepdim=True) + x * 2) + 1), _TOKENS)  # noqa: E731
    tracked, *_ = _track(layer, _TOKENS, torch.float32, _OPTIMIZERS[Optimizer.SGD])
    predicted, *_ = _predict(layer, _TOKENS, DType.FLOAT32, Optimizer.SGD)
    assert predicted == pytest.approx(tracked, abs=_SCALARS, rel=0)


class _Bilinear(nn.Module):
    """A bilinear layer, whose products of single features autograd never sees."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.both = nn.Linear(64, 64), nn.Linear(64, 48), nn.Bilinear(64, 48, 20)

    def forward(self, x):
        return self.both(self.first(x), self.second(x))


def test_a_bilinear_layer_keeps_what_it_reads():
    tracked, *_ = _track(_Bilinear, _TOKENS, torch.float32, _OPTIMIZERS[Optimizer.SGD])
    predicted, *_ = _predict(_Bilinear, _TOKENS, DType.FLOAT32, Optimizer.SGD)
    assert predicted == pytest.approx(tracked, abs=_SCALARS, rel=0)


class _LossInParts(nn.Module):
    """Scores of a part of the tokens at a time, which the backward pass computes again."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(100, 64), nn.Linear(64, 1000)

    def forward(self, x):
        parts = zip(self.embedding(x).chunk(4, 1), x.chunk(4, 1), strict=True)
        return torch.stack([checkpoint(self._loss_of, *part, use_reentrant=False) for part in parts]).sum()

    def _loss_of(self, words, classes):
        return functional.cross_entropy(self.head(words).flatten(0, 1), classes.flatten(), reduction="sum")


def test_a_loss_that_is_computed_again_keeps_no_scores():
    tracked = _track(_LossInParts, (32,), torch.int64, _OPTIMIZERS[Optimizer.SGD])
    predicted = _predict(_LossInParts, (32,), DType.INT64, Optimizer.SGD)
    assert predicted[0] == pytest.approx(tracked[0], abs=_SCALARS, rel=0)
    # In the backward pass it is another sum of biases that is alive beside the scores.
    assert predicted == pytest.approx(tracked, rel=0.01)


@pytest.mark.parametrize("optimizer", _OPTIMIZERS)
def test_optimizers(optimizer):
    _assert_alike(lambda: nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10)), (64,), optimizer)


class _Heads(nn.Module):
    """Scores, two more heads, and a hidden state beside them."""

    def __init__(self):
        super().__init__()
        self.body, self.scores, self.words = nn.Linear(64, 96), nn.Linear(96, 10), nn.Linear(96, 128)
        self.image = nn.Linear(96, 512)

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        image = self.image(hidden).view(-1, 8, 8, 8)
        return {"logits": self.scores(hidden), "hidden": hidden, "words": self.words(hidden), "image": image}


class _Padded(nn.Module):
    """Two heads, one of which is written into zeros."""

    def __init__(self):
        super().__init__()
        self.body, self.scores, self.part = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 8)

    def forward(self, x):
        hidden = self.body(x)
        padded = torch.zeros(x.shape[0], 16)
        padded[:, :8] = self.part(hidden)
        return self.scores(hidden), padded


def test_a_head_that_is_written_into_zeros():
    _assert_alike(_Padded, (8,), Optimizer.SGD)


def test_heads_beside_scores():
    _assert_alike(_Heads, (64,), Optimizer.ADAM)
    module = _Heads()
    Loss()(module(torch.ones(_BATCH, 64))).backward()
    assert all(weight.grad is not None for weight in module.parameters())
    graph = read_module(module, input=InputShapes(positional=(InputEntry(shape=(64,)),)), mode=Mode.TRAINING)
    training = make_training_graph(graph, TrainingSettings())
    assert {graph.tensors[index].name for index in training.trained} == {name for name, _ in module.named_parameters()}


class _Names(TorchDispatchMode):
    """Names of the operators that run, but for those of step counters and those that hand the host a number."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function.overloadpacket).rstrip("_")
        is_of_counter = name == "aten.add" and args[0].ndim == 0
        if name.startswith("aten.") and name != "aten._local_scalar_dense" and not is_of_counter:
            self.names.append(name.replace("aten.mm", "aten.matmul"))
        return function(*args, **(kwargs or {}))


def test_adafactor_runs_the_operators_that_pytorch_runs():
    module = nn.Linear(64, 96)
    optimizer = torch.optim.Adafactor(module.parameters())
    for weight in module.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()  # makes its state
    with _Names() as run:
        optimizer.step()
    graph = read_module(module, input=InputShapes(positional=(InputEntry(shape=(64,)),)), mode=Mode.TRAINING)
    training = make_training_graph(graph, TrainingSettings(optimizer=Optimizer.ADAFACTOR))
    phases = zip(training.graph.nodes, training.phase, strict=True)
    assert [node.source_op for node, phase in phases if phase == Phase.OPTIMIZER] == run.names


def test_embedding_of_tokens():
    _assert_alike(
        lambda: nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 1000)), (32,), Optimizer.ADAMW, DType.INT64
    )


class _Of(nn.Module):
    """A function of some values that depend on a weight, and of a layer."""

    def __init__(self, function):
        super().__init__()
        self.scale, self.layer, self._function = nn.Parameter(torch.ones(64)), nn.Linear(64, 64), function

    def forward(self, x):
        return self._function(torch.tanh(x * self.scale), self.layer)


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.scores = nn.Embedding(50, 64), nn.Linear(64, 50, bias=False)
        self.scores.weight = self.words.weight

    def forward(self, x):
        return self.scores(torch.tanh(self.words(x)))


_SUMS = {
    "of kernels": (lambda h, layer: torch.sigmoid(h) * torch.tanh(h), _TOKENS),
    "of three kernels": (lambda h, layer: torch.sigmoid(h) * torch.tanh(h) * torch.exp(h), _TOKENS),
    "linear layer of vectors": (lambda h, layer: torch.tanh(h) * layer(h), (64,)),
    "linear layer of tokens": (lambda h, layer: torch.tanh(h) * layer(h), _TOKENS),
    "linear layer of tokens first": (lambda h, layer: layer(h) * torch.tanh(h), _TOKENS),
    "product of tokens": (lambda h, layer: h @ h.transpose(1, 2), _TOKENS),
    "other order": (lambda h, layer: torch.tanh(h) * torch.sigmoid(h.transpose(0, 1)).transpose(0, 1), _TOKENS),
    "norm": (lambda h, layer: torch.tanh(h) * functional.layer_norm(h, (64,)), _TOKENS),
}


@pytest.mark.parametrize("name", [*_SUMS, "tied weight"])
def test_gradients_are_added_in_place_where_autograd_does(name):
    """By what runs without anything in between: to a dispatch mode PyTorch shows sums out of place alone."""
    function, shape = _SUMS.get(name, (None, (8,)))
    make, dtype = (_Tied, DType.INT64) if function is None else (lambda: _Of(function), DType.FLOAT32)
    module = make()
    values = torch.ones((_BATCH, *shape), dtype=getattr(torch, dtype.value))
    loss = module(values).square().mean()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        loss.backward()
    sums = [event.name == "aten::add_" for event in profiled.events() if event.name in ("aten::add", "aten::add_")]
    graph = read_module(
        module, input=InputShapes(positional=(InputEntry(shape=shape, dtype=dtype),)), mode=Mode.TRAINING
    )
    step = make_training_graph(graph, TrainingSettings(optimizer=Optimizer.SGD)).graph
    added = [node for node in step.nodes if node.source_op == "accumulate"]
    assert [step.tensors[node.outputs[0]].alias_of is not None for node in added] == sums


@pytest.mark.parametrize("optimizer", [Optimizer.MOMENTUM, Optimizer.ADAM])
def test_complex_weights(optimizer):
    _assert_alike(lambda: _Spectral(64), (32, 64), optimizer)


@pytest.mark.parametrize("optimizer", [*_OPTIMIZERS, Optimizer.ADAFACTOR])
def test_complex_weights_are_refused_where_pytorch_refuses_them(optimizer):
    weights = [nn.Parameter(torch.ones(4, 4, dtype=torch.complex64))]
    weights[0].grad = torch.ones_like(weights[0])
    refusal = None
    try:
        {**_OPTIMIZERS, Optimizer.ADAFACTOR: torch.optim.Adafactor}[optimizer](weights).step()
    except RuntimeError as exc:
        refusal = exc
    if refusal is None:
        _predict(lambda: _Spectral(64), (32, 64), DType.FLOAT32, optimizer)
    else:
        assert "floating point" in str(refusal) or "complex" in str(refusal)
        with pytest.raises(UnsupportedError, match="trains no complex parameters"):
            _predict(lambda: _Spectral(64), (32, 64), DType.FLOAT32, optimizer)


def test_images_need_no_gradient():
    _assert_alike(lambda: nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 3)), _IMAGE)


_WIDTH = 16


def _zeros(x, *shape):
    return torch.zeros(x.shape[0], *shape, dtype=torch.long)


def _image(x):
    return x.view(-1, 4, 2, 2)


def _square(x):
    return x.view(-1, 4, 4)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class _Binarised(torch.autograd.Function):
    """A mask of the signs, whose gradient is that of what the mask lets through."""

    @staticmethod
    def forward(ctx, x):
        ctx.mask = x > 0
        return ctx.mask.float()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.mask


class _ComputedAgain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return gradient * (gate * (1 + x * (1 - gate)))


class _Wave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        sine, cosine = x.sin(), x.cos()
        ctx.save_for_backward(sine, cosine)
        return sine, cosine

    @staticmethod
    def backward(ctx, of_sine, of_cosine):
        sine, cosine = ctx.saved_tensors
        return of_sine * cosine - of_cosine * sine


class _NormOfChannels(torch.autograd.Function):
    """As NAFNet has it: what is normed is kept, and neither the differences nor their squares."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        y = (x - mean) / (variance + 1e-6).sqrt()
        ctx.save_for_backward(y, variance, weight)
        return weight * y + bias

    @staticmethod
    def backward(ctx, gradient):
        y, variance, weight = ctx.saved_tensors
        g = gradient * weight
        mean = g.mean(-1, keepdim=True)
        mean_y = (g * y).mean(-1, keepdim=True)
        of_x = 1.0 / torch.sqrt(variance + 1e-6) * (g - y * mean_y - mean)
        return of_x, (gradient * y).sum((0, 1)), gradient.sum((0, 1))


class _Scan(torch.autograd.Function):
    """Sums from the left in place, as selective scans have them; only the last of its results is kept."""

    @staticmethod
    def forward(ctx, a, x):
        a_copy, result = a.clone(), x.clone()
        half = result.view(*result.shape[:-1], -1, 2)
        half[..., 1].add_(a_copy.view(half.shape)[..., 1].mul(half[..., 0]))
        ctx.save_for_backward(a, result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        a, result = ctx.saved_tensors
        own = gradient.clone()
        half = own.view(*own.shape[:-1], -1, 2)
        half[..., 0].add_(a.view(half.shape)[..., 1].mul(half[..., 1]))
        of_a = torch.zeros_like(result)
        of_a[..., 1:].add_(result[..., :-1] * own[..., 1:])
        return of_a, own


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(x, weight, bias):
        return x @ weight.t() + bias

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        of_x = gradient @ weight if ctx.needs_input_grad[0] else None
        return of_x, rows.t() @ x.flatten(0, -2), rows.sum(0)


_OWN_GRADIENTS = {
    "mask": _Binarised.apply,
    "computed again": _ComputedAgain.apply,
    "computed again in what is checkpointed": lambda x: checkpoint(
        lambda y: _ComputedAgain.apply(y) * 2, x, use_reentrant=False
    ),
    "two results": lambda x: sum(_Wave.apply(x)),
    "one of two results": lambda x: _Wave.apply(x)[0],
    "the gradient itself": _StraightThrough.apply,
    "scan": lambda x: _Scan.apply(x * 2, x),
}


@pytest.mark.parametrize("name", _OWN_GRADIENTS)
def test_gradients_that_a_function_defines(name):
    function = _OWN_GRADIENTS[name]
    _assert_alike(lambda: nn.Sequential(nn.Linear(64, 64), _Call(function), nn.Linear(64, 64)), _TOKENS)


@pytest.mark.parametrize(("function", "shapes"), [(_NormOfChannels, [(64,), (64,)]), (_Product, [(64, 64), (64,)])])
def test_gradients_of_weights_that_a_function_defines(function, shapes):
    _assert_alike(lambda: nn.Sequential(_Call(function.apply, *shapes), _Call(function.apply, *shapes)), _TOKENS)


# Those that are among the layers above are left out.
_FUNCTIONS = {
    "mask of its own": _Binarised.apply,
    "slice": lambda x: _filled(x, (slice(4), torch.relu)),
    "function of its own": _StraightThrough.apply,
    "sort": lambda x: x.sort(-1)[0],
    "msort": torch.msort,
    "running product": lambda x: x.cumprod(-1),
    "running maximum": lambda x: x.cummax(-1)[0],
    "running log-sum-exp": lambda x: x.logcumsumexp(-1),
    "phase": lambda x: _as_complex(x).angle(),
    "polar": lambda x: torch.polar(x, x).abs(),
    "ceiling": torch.ceil,
    "rounding": torch.round,
    "truncation": torch.trunc,
    "remainder": lambda x: x.remainder(2.0),
    "remainder of division": lambda x: x.fmod(2.0),
    "ReLU6": functional.relu6,
    "CELU in place": functional.celu_,
    "linear mixture": lambda x: torch.lerp(x, x * 2, 0.5),
    "smaller of two": lambda x: torch.minimum(x, x * 2),
    "angle of two": lambda x: torch.atan2(x, x + 1),
    "finite numbers": torch.nan_to_num,
    "squared error": lambda x: functional.mse_loss(x, torch.zeros_like(x)),
    "gather": lambda x: x.gather(1, _zeros(x, 3)),
    "index": lambda x: x.index_select(1, torch.tensor([0, 1])),
    "sorted by index": lambda x: torch.take_along_dim(x, x.argsort(-1), -1),
    "drawn": lambda x: x.gather(1, torch.multinomial(x.softmax(-1), 2)),
    "hard choice": lambda x: functional.gumbel_softmax(x, hard=True),
    "scatter": lambda x: torch.zeros_like(x).scatter(1, _zeros(x, _WIDTH), x),
    "scattered sum": lambda x: torch.zeros_like(x).scatter_add(1, _zeros(x, _WIDTH), x),
    "scattered maximum": lambda x: torch.zeros_like(x).scatter_reduce(1, _zeros(x, _WIDTH), x, "amax"),
    "sum by index": lambda x: torch.zeros(4, _WIDTH).index_add(0, _zeros(x), x),
    "rows by index": lambda x: torch.zeros(4, _WIDTH).index_put((_zeros(x),), x),
    "columns by index": lambda x: torch.zeros(x.shape[0], 32).index_copy(1, torch.arange(_WIDTH), x),
    "masked scatter": lambda x: x.masked_scatter(x > 0, x * 2),
    "triangle": lambda x: _square(x).tril(),
    "repetition": lambda x: x.repeat(1, 2),
    "repetition of each": lambda x: x.repeat_interleave(2, 1),
    "windows": lambda x: x.unfold(1, 4, 2),
    "strides": lambda x: x.as_strided((x.shape[0], 4), (_WIDTH, 1)),
    "diagonal": lambda x: _square(x).diagonal(dim1=1, dim2=2),
    "matrix of a diagonal": torch.diag_embed,
    "fold": lambda x: functional.fold(_square(x), (3, 3), 2),
    "channel shuffle": lambda x: functional.channel_shuffle(_image(x), 2),
    "squeeze in place": lambda x: x.unsqueeze(1).squeeze_(1),
    "transposition in place": lambda x: x.clone().t_(),
    "outer product": lambda x: x[:, :, None] * x[:, None],
    "Kronecker product": lambda x: torch.kron(x, torch.ones(2, 2)),
    "Einstein sum": lambda x: torch.einsum("bi,bi->b", x, x),
    "inverse": lambda x: torch.linalg.inv(_square(x)),
    "distances": lambda x: torch.cdist(x, x + 1),
    "deviation": lambda x: x.std(-1),
    "variance and mean": lambda x: torch.var_mean(x, -1)[0],
    "norm": lambda x: x.norm(dim=-1),
    "maximum": lambda x: x.amax(-1),
    "log-sum-exp": lambda x: x.logsumexp(-1),
    "product of a row": lambda x: x.prod(-1),
    "maximum of windows": lambda x: functional.max_pool1d(x[:, None], 2),
    "adaptive maximum": lambda x: functional.adaptive_max_pool1d(x[:, None], 3),
    "linear interpolation": lambda x: functional.interpolate(x[:, None], scale_factor=2, mode="linear"),
    "grid": lambda x: functional.grid_sample(
        x.view(-1, 1, 4, 4), torch.zeros(x.shape[0], 2, 2, 2), align_corners=False
    ),
    "RMS norm": lambda x: functional.rms_norm(x, (_WIDTH,)),
    "Huber loss": lambda x: functional.huber_loss(x, x * 2, reduction="none"),
    "smooth L1": lambda x: functional.smooth_l1_loss(x, x * 2, reduction="none"),
    "binary cross entropy": lambda x: functional.binary_cross_entropy_with_logits(x, 0 * x, reduction="none"),
    "cross entropy": lambda x: functional.cross_entropy(x, _zeros(x), reduction="none"),
    "half and back": lambda x: x.half().float(),
    "double": lambda x: x.double().sum(-1),
    "place of the maximum": lambda x: x.argmax(-1),
    "order": lambda x: x.argsort(-1),
    "comparison": lambda x: x > 0,
    "buckets": lambda x: torch.bucketize(x, torch.tensor([0.0])),
}


class _Amid(nn.Module):
    """A function of the first layer's result, whose elements the last layer reads one by one."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.first = nn.Linear(_WIDTH, _WIDTH)
        self.last = nn.Linear(1, 1)

    def forward(self, x):
        return self.last(self.function(self.first(x)).float().reshape(-1, 1))


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_weights_that_get_a_gradient(name):
    module = _Amid(_FUNCTIONS[name])
    module(torch.rand(2, _WIDTH)).sum().backward()
    reached = {key for key, weight in module.named_parameters() if weight.grad is not None}
    graph = read_module(module, input=InputShapes(positional=(InputEntry(shape=(_WIDTH,)),)), mode=Mode.TRAINING)
    training = make_training_graph(graph, TrainingSettings())
    assert {graph.tensors[index].name for index in training.trained} == reached
