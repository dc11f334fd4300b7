"""Decisions by what is in a model's input: those by masks and overflows are taken, all others refused."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import dippm  # noqa: E402
from dippm.costs.conditions import Mode  # noqa: E402
from dippm.errors import UnsupportedError  # noqa: E402
from dippm.frontends import zoo  # noqa: E402
from dippm.frontends.torch import read_module  # noqa: E402
from dippm.frontends.torch.asked_values import FINITENESS  # noqa: E402
from dippm.frontends.torch.torchvision_ops import import_torchvision_ops  # noqa: E402
from dippm.graph import Graph, OpKind  # noqa: E402


class _Masked(nn.Module):
    """Leaves out what it does about a mask where the mask leaves nothing out."""

    def __init__(self, decide: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.layer, self.decide = nn.Linear(8, 8), decide

    def forward(self, x: Any, mask: Any) -> Any:
        y = self.layer(x)
        return y if self.decide(y, mask) else y.relu()


_BY_THE_MASK = {
    "booleans": ("5:bool", lambda _, mask: mask.all()),
    "made booleans": ("5:int64", lambda _, mask: mask.bool().all()),
    "made booleans beside others": (
        "5:int64",
        lambda y, mask: torch.cat([torch.ones(len(y), 3, dtype=torch.int64), mask], 1).to(torch.bool).all(),
    ),
    "made booleans as a view": ("5:int64", lambda _, mask: mask.view(-1).to(torch.bool).all()),
    "counted": ("5:int64", lambda _, mask: mask.bool().sum() == mask.numel()),
    "as numbers": ("5:bool", lambda _, mask: mask.sum(1).tolist()[0] == 5),
}


@pytest.mark.parametrize("name", _BY_THE_MASK)
def test_a_mask_leaves_nothing_out_where_the_model_asks_and_a_warning_says_so(
    name: str, read: Callable[..., Graph]
) -> None:
    shape, decide = _BY_THE_MASK[name]
    graph = read(_Masked(decide), {"x": "5,8", "mask": shape})
    assert graph.fixed_batch is None
    assert OpKind.RELU not in {node.kind for node in graph.nodes}
    (warning,) = graph.warnings
    assert "'mask'" in warning


_BY_MORE = {
    "a number": ("5:int64", lambda _, mask: (mask == 1).all()),
    "a weight": ("5:bool", lambda y, mask: (mask & (y[..., 0] > 0)).all()),
    "another input": ("5", lambda y, mask: (y.detach() * mask[..., None]).bool().all()),
    "chance": ("5:bool", lambda _, mask: (mask & torch.bernoulli(torch.full((2,), 0.5)).bool()[:1]).all()),
}


@pytest.mark.parametrize("name", _BY_MORE)
def test_nothing_is_assumed_of_anything_else(name: str, read: Callable[..., Graph]) -> None:
    shape, decide = _BY_MORE[name]
    with pytest.raises(UnsupportedError) as caught:
        read(_Masked(decide), {"x": "5,8", "mask": shape})
    assert caught.value.code == "torch.data_dependent"


def test_a_mask_that_nothing_asks_for_stays_as_unknown_as_it_is(read: Callable[..., Graph]) -> None:
    class Multiplies(nn.Module):
        def forward(self, x: Any, mask: Any) -> Any:
            return x * mask.bool()[..., None]

    assert read(Multiplies(), {"x": "5,8", "mask": "5:int64"}).warnings == ()


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("kind", ["Bert", "Llama", "GPT2"])
def test_models_of_transformers_take_their_attention_mask(kind: str, mode: str) -> None:
    import_torchvision_ops()
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=50, bos_token_id=None, eos_token_id=None, **({} if kind == "GPT2" else sizes)
    )
    if kind == "GPT2":
        config.n_embd, config.n_layer, config.n_head = 32, 1, 2
    graph = dippm.load(
        getattr(transformers, f"{kind}Model")(config),
        input={"input_ids": "16:int64", "attention_mask": "16:int64"},
        mode=mode,
    )
    assert graph.fixed_batch is None
    assert any("attention_mask" in warning for warning in graph.warnings)


_FOR_PADDING = {
    "looked for": lambda ids: not ids.eq(1).any(),
    "left out": lambda ids: torch.all(ids != 1),
    "after the first": lambda ids: not (ids[:, 1:] == 1).any(),
}


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("name", _FOR_PADDING)
def test_no_padding_is_in_the_input_where_the_model_asks_and_a_warning_says_so(
    name: str, mode: Mode, read: Callable[..., Graph]
) -> None:
    class Pads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 8)

        def forward(self, ids: Any) -> Any:
            x = self.words(ids)
            return x if _FOR_PADDING[name](ids) else x * ids.ne(1)[..., None]

    graph = read(Pads(), "6:int64", mode=mode)
    assert graph.fixed_batch is None
    assert OpKind.MUL not in {node.kind for node in graph.nodes}
    (warning,) = graph.warnings
    assert "'input'" in warning
    assert "not to contain 1" in warning


_NO_PADDING = {
    "all are": lambda ids: (ids == 1).all(),
    "any is not": lambda ids: (ids != 1).any(),
    "an activation": lambda ids: not ((ids * 2) == 1).any(),
    "sizes": lambda ids: len((ids == 1).nonzero()) == 0,
}


@pytest.mark.parametrize("name", _NO_PADDING)
def test_nothing_else_is_assumed_of_numbers_that_are_compared(name: str, read: Callable[..., Graph]) -> None:
    class Compares(nn.Module):
        def forward(self, ids: Any) -> Any:
            return ids + 1 if _NO_PADDING[name](ids) else ids * 2

    with pytest.raises(UnsupportedError) as caught:
        read(Compares(), "6:int64")
    assert caught.value.code == "torch.data_dependent"


class _MaskedByLengths(nn.Module):
    """A mask of as many steps as the longest sample has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(int(lengths.max()))
        return self.layer(x) * (steps < lengths.unsqueeze(1)).unsqueeze(-1)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("is_scripted", [False, True])
@pytest.mark.parametrize("steps", [12, 40])
def test_samples_are_as_long_as_they_are_padded_to_where_the_model_asks_for_the_longest(
    steps: int, is_scripted: bool, mode: Mode, read: Callable[..., Graph]
) -> None:
    module = torch.jit.script(_MaskedByLengths()) if is_scripted else _MaskedByLengths()
    graph = read(module, {"x": f"{steps},16", "lengths": ":int64"}, mode=mode)
    assert graph.fixed_batch is None
    (masked,) = (node for node in graph.nodes if node.kind is OpKind.MUL)
    assert graph.tensors[masked.outputs[0]].shape[1].fixed == steps
    (warning,) = graph.warnings
    assert f"'lengths' are taken to be {steps}" in warning


def test_each_input_of_lengths_has_its_own(read: Callable[..., Graph]) -> None:
    class Speaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.masked, self.words = _MaskedByLengths(), nn.Embedding(9, 16)

        def forward(self, ids: Any, ids_lengths: Any, sound: Any, sound_lengths: Any) -> Any:
            keys = self.masked(self.words(ids), ids_lengths)
            return self.masked(sound.transpose(1, 2), sound_lengths) @ keys.transpose(1, 2)

    given = {"ids": "7:int64", "ids_lengths": ":int32", "sound": "16,30", "sound_lengths": ":int64"}
    graph = read(Speaks(), given)
    assert [dim.fixed for dim in graph.tensors[graph.outputs[0]].shape[1:]] == [30, 7]
    assert len(graph.warnings) == 2


_NO_LENGTHS = {
    "a step in time": ((), lambda x, t: x + 1 if int(t[0]) else x),
    "no size fits": ((), lambda x, t: x * torch.ones(int(t.max()) + 1)),
    "several": ((3,), lambda x, t: x + torch.ones(int(t.max()))),
}


@pytest.mark.parametrize("name", _NO_LENGTHS)
def test_lengths_that_are_none_are_not_guessed(name: str, read: Callable[..., Graph]) -> None:
    shape, decide = _NO_LENGTHS[name]

    class Decides(nn.Module):
        def forward(self, x: Any, t: Any) -> Any:
            return decide(x, t)

    with pytest.raises(UnsupportedError) as caught:
        read(Decides(), {"x": "5,8", "t": ",".join(map(str, shape)) + ":int64"})
    assert caught.value.code == "torch.data_dependent"


def test_what_a_model_fills_a_border_with_passes_its_check_of_what_is_inside(read: Callable[..., Graph]) -> None:
    class Pads(nn.Module):
        def forward(self, x: Any) -> Any:
            y = nn.functional.pad(x, (2, 2), "reflect")
            assert (y[..., 2:-2] == x).all()
            return y

    graph = read(Pads(), "3,16")
    assert graph.fixed_batch is None
    (warning,) = graph.warnings
    assert "checks" in warning


_DRAWS = {
    "a share": lambda: torch.rand(1).item() == 0.5,
    "a share in place": lambda: torch.empty(1).uniform_(2, 6).item() == 4,
    "a place": lambda: torch.randint(0, 9, (1,)).item() == 4,
    "a place in a tensor": lambda: int(torch.randint(5, (1,))) == 2,
}


@pytest.mark.parametrize("name", _DRAWS)
def test_a_random_number_is_its_mean_where_the_model_asks_and_a_warning_says_so(
    name: str, read: Callable[..., Graph]
) -> None:
    class Draws(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.tanh() if _DRAWS[name]() else x.relu()

    graph = read(Draws(), "8")
    kinds = {node.kind for node in graph.nodes}
    assert OpKind.TANH in kinds
    assert OpKind.RELU not in kinds
    assert any("its mean" in warning for warning in graph.warnings)


def test_several_random_numbers_are_not_guessed(read: Callable[..., Graph]) -> None:
    class Draws(nn.Module):
        def forward(self, x: Any) -> Any:
            drawn = torch.empty(2)
            drawn[:1].uniform_()
            return x.tanh() if drawn[:1].item() > 0 else x.relu()

    with pytest.raises(UnsupportedError) as caught:
        read(Draws(), "8")
    assert caught.value.code == "torch.data_dependent"


class _Asks(nn.Module):
    """Adds one where what a function finds of its input is true."""

    def __init__(self, ask: Callable[[Any], Any]) -> None:
        super().__init__()
        self._ask = ask

    def forward(self, x: Any) -> Any:
        return x + 1 if self._ask(x * 2) else x


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: torch.isfinite(x).all(),
        lambda x: not torch.isinf(x).any(),
        lambda x: not (x.isnan().any() or x.isinf().any()),
        lambda x: torch.isfinite(x).all().tolist(),
        lambda x: len(x[torch.isfinite(x)]),
    ],
)
@pytest.mark.parametrize("mode", Mode)
def test_numbers_are_finite_where_a_model_asks_whether_they_are(
    ask: Callable[[Any], Any], mode: Mode, read: Callable[..., Graph]
) -> None:
    graph = read(_Asks(ask), "4", mode=mode)
    assert graph.nodes[-1].kind is OpKind.ADD
    assert (graph.fixed_batch, [text.split(",")[0] for text in graph.warnings]) == (
        None,
        ["Numbers are taken to be finite"],
    )


def test_what_only_computes_with_the_answer_is_not_warned_of(read: Callable[..., Graph]) -> None:
    class Replaces(nn.Module):
        def forward(self, x: Any) -> Any:
            limit = torch.where(torch.isinf(x).any(), 1.0, 2.0)
            return torch.where(torch.isnan(x), 0.0, x).clamp(max=limit)

    assert not read(Replaces(), "4").warnings


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: (torch.isfinite(x) & (x > 0)).all(),
        lambda x: (x == x).all(),
        lambda x: torch.isneginf(x).any(),  # which masks are made of
    ],
)
def test_other_questions_are_refused(ask: Callable[[Any], Any], read: Callable[..., Graph]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        read(_Asks(ask), "4")
    assert caught.value.code == "torch.data_dependent"


def test_infinities_that_the_program_makes_are_found(read: Callable[..., Graph]) -> None:
    graph = read(_Asks(lambda x: torch.isinf(torch.full((4, 4), float("inf"))).all()), "4")
    assert (graph.nodes[-1].kind, graph.warnings) == (OpKind.ADD, ())


def test_the_questions_answer_as_of_a_finite_number() -> None:
    assert all(bool(func(torch.tensor(1.0))) is answer for func, answer in FINITENESS.items())


_DETR = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2,
}  # fmt: skip


@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("transformers", "timm")), reason="transformers or timm is not installed"
)
@pytest.mark.parametrize("mode", Mode)
def test_detectors_of_transformers_look_for_overflows_where_they_are_trained(mode: Mode) -> None:
    module, inputs = zoo.build("hf:DetrForObjectDetection", options=_DETR)
    graph = read_module(module, input=inputs, mode=mode)
    assert graph.fixed_batch is None
    assert [text for text in graph.warnings if "finite" in text] == list(graph.warnings)
    assert len(graph.warnings) == (mode is Mode.TRAINING)
