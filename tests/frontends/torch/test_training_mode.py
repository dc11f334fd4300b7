"""The forward pass of a training step."""

from __future__ import annotations

import random
from collections import Counter
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from dippm.costs.conditions import Mode  # noqa: E402
from dippm.errors import UsageError  # noqa: E402
from dippm.frontends.inputs import InputShapes, parse_input_shapes  # noqa: E402
from dippm.frontends.open_model import open_model  # noqa: E402
from dippm.frontends.torch import read_module  # noqa: E402
from dippm.graph import Dim, DType, Graph, Node, OpKind, TensorRole  # noqa: E402
from dippm.graph.fingerprint import fingerprint  # noqa: E402


def _train(module: nn.Module, shapes: object = "8") -> Graph:
    return read_module(module, input=parse_input_shapes(shapes), mode=Mode.TRAINING)


def _kinds(graph: Graph) -> Counter[OpKind]:
    return Counter(node.kind for node in graph.nodes)


def _only(graph: Graph, kind: OpKind) -> Node:
    (node,) = (node for node in graph.nodes if node.kind is kind)
    return node


def test_dropout_writes_its_result_and_a_mask() -> None:
    graph = _train(nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.3)))
    node = _only(graph, OpKind.DROPOUT)
    result, mask = (graph.tensors[index] for index in node.outputs)
    assert (len(node.inputs), node.source_op, node.scope) == (1, "aten.native_dropout", "1")
    assert result.shape == mask.shape == (Dim(1, 0), Dim(0, 4))
    assert (result.dtype, mask.dtype) == (DType.FLOAT32, DType.BOOL)
    # Without a gradient the mask is given back at once; it is the training step's affair to keep it.
    assert node.outputs[1] in node.releases
    assert graph.fixed_batch is None


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_dropout_of_nothing_or_everything_has_no_mask(share: float) -> None:
    kinds = _kinds(_train(nn.Sequential(nn.ReLU(), nn.Dropout(share))))
    assert OpKind.DROPOUT not in kinds
    assert (OpKind.MUL in kinds) == (share == 1.0)


@pytest.mark.parametrize(
    ("layer", "sizes"), [(nn.Dropout(0.5, inplace=True), [4, 6, 6]), (nn.Dropout2d(0.5), [4, 1, 1])]
)
def test_dropout_in_place_and_of_channels_multiplies_by_noise(layer: nn.Module, sizes: list[int]) -> None:
    graph = _train(nn.Sequential(nn.ReLU(), layer), "4,6,6")
    assert _kinds(graph)[OpKind.RANDOM] == _kinds(graph)[OpKind.MUL] == 1
    noise = graph.tensors[_only(graph, OpKind.RANDOM).outputs[0]]
    assert [dim.fixed for dim in noise.shape[1:]] == sizes


def test_batch_norm_takes_the_statistics_of_the_batch() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    trained, evaluated = _train(module, "3,8,8"), read_module(module, input=parse_input_shapes("3,8,8"))
    assert _only(trained, OpKind.BATCH_NORM).attributes["is_training"] is True
    assert "is_training" not in _only(evaluated, OpKind.BATCH_NORM).attributes
    # PyTorch counts the batches that it has seen, in a kernel of its own.
    assert _kinds(trained) - _kinds(evaluated) == {OpKind.ADD: 1}
    assert fingerprint(trained) != fingerprint(evaluated)


def test_a_module_may_keep_layers_out_of_training() -> None:
    class FrozenNorm(nn.Sequential):
        def train(self, mode: bool = True) -> FrozenNorm:
            super().train(mode)
            self[1].eval()
            return self

    graph = _train(FrozenNorm(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.1)), "3,8,8")
    assert "is_training" not in _only(graph, OpKind.BATCH_NORM).attributes
    assert _only(graph, OpKind.DROPOUT)


def test_the_module_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)).eval()
    module[2].train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    random.seed(7)
    np.random.seed(7)
    states = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    _train(module, "3,8,8")
    assert [child.training for child in module.modules()] == [False, False, False, True]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module[1].num_batches_tracked.item() == 0
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]


def test_a_module_in_training_is_still_read_for_inference() -> None:
    module = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5)).train()
    assert OpKind.DROPOUT not in _kinds(read_module(module, input=parse_input_shapes("8")))
    assert all(child.training for child in module.modules())


def test_frozen_weights_are_buffers_in_training_alone() -> None:
    module = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    trained, evaluated = _train(module), read_module(module, input=parse_input_shapes("8"))
    assert (trained.parameter_count, evaluated.parameter_count) == (10, 46)
    roles = {tensor.name: tensor.role for tensor in trained.tensors}
    assert roles["0.weight"] is roles["0.bias"] is TensorRole.BUFFER
    assert roles["1.weight"] is TensorRole.PARAMETER
    assert _kinds(trained)[OpKind.LINEAR] == 2


def test_a_product_with_a_frozen_matrix_is_a_linear_layer_still() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8, 4), requires_grad=False)
            self.bias = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mm(x, self.weight) + self.bias

    assert _kinds(_train(Product()))[OpKind.LINEAR] == 1


def test_heads_that_only_training_has_are_outputs() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.aux = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> Any:
            x = self.body(x)
            return (self.head(x), self.aux(x)) if self.training else self.head(x)

    assert len(_train(TwoHeads()).outputs) == 2
    assert len(read_module(TwoHeads(), input=parse_input_shapes("8")).outputs) == 1


@pytest.mark.parametrize("draw", ["torch", "item", "random", "numpy"])
def test_layers_left_out_at_random_stay(draw: str) -> None:
    class LayerDrop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                number = {
                    "torch": lambda: torch.rand([]),
                    "item": lambda: torch.rand(1).item(),
                    "random": random.random,
                    "numpy": np.random.rand,
                }[draw]()
                if not self.training or number >= 0.1:
                    x = layer(x)
            return x

    graphs = [_train(LayerDrop()) for _ in range(2)]
    assert fingerprint(graphs[0]) == fingerprint(graphs[1])
    if draw in ("torch", "item"):
        assert _kinds(graphs[0])[OpKind.LINEAR] == 6
        assert any("its mean" in warning for warning in graphs[0].warnings)


def test_random_numbers_of_the_host_are_the_same_at_every_batch() -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, : random.randrange(1, 8)] * np.random.rand()  # noqa: S311

    assert _train(Masked()).fixed_batch is None


def test_attention_keeps_its_dropout_inside() -> None:
    class Attention(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(x, x, x, dropout_p=0.1 if self.training else 0.0)

    graph = _train(Attention(), "2,16,8")
    assert _kinds(graph) == {OpKind.ATTENTION: 1}


def test_a_train_that_fails_is_told() -> None:
    class Inference(nn.Module):
        def train(self, mode: bool = True) -> Inference:
            if mode:
                raise RuntimeError("not for training")
            return self

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    with pytest.raises(UsageError, match="not for training") as caught:
        _train(Inference())
    assert caught.value.code == "torch.train_failed"


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_a_script_is_read_in_training_mode(tmp_path: Any) -> None:
    path = tmp_path / "net.pt"
    torch.jit.script(nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5)).eval()).save(str(path))
    shapes = parse_input_shapes("8")
    assert _kinds(open_model(path, input=shapes, mode=Mode.TRAINING))[OpKind.DROPOUT] == 1
    assert OpKind.DROPOUT not in _kinds(open_model(path, input=shapes))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_a_traced_program_warns_that_it_was_made_for_inference(tmp_path: Any) -> None:
    path = tmp_path / "net.pt"
    module = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5)).eval()
    torch.jit.trace(module, torch.ones(2, 8)).save(str(path))
    shapes = parse_input_shapes("8")
    assert any("exported" in text for text in open_model(path, input=shapes, mode=Mode.TRAINING).warnings)
    assert not any("exported" in text for text in open_model(path, input=shapes).warnings)


@pytest.mark.parametrize("is_training", [False, True])
def test_an_exported_program_is_read_as_it_is(tmp_path: Any, is_training: bool) -> None:
    module = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).train(is_training)
    module[0].weight.requires_grad_(False)
    program = torch.export.export(module, (torch.ones(4, 8),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    path = tmp_path / "net.pt2"
    torch.export.save(program, path)
    graph = open_model(path, input=InputShapes(), mode=Mode.TRAINING)
    assert _kinds(graph)[OpKind.DROPOUT] == is_training
    assert bool(_only(graph, OpKind.BATCH_NORM).attributes.get("is_training")) == is_training
    assert any("exported" in warning for warning in graph.warnings) != is_training
    assert graph.parameter_count == 4 + 8 + 8 + 2
    assert open_model(path, input=InputShapes()).parameter_count == 32 + 4 + 8 + 8 + 2


@pytest.mark.parametrize(
    ("name", "outputs", "expected"),
    [
        ("torchvision:googlenet", 3, {OpKind.DROPOUT: 3}),
        ("torchvision:efficientnet_b0", 1, {OpKind.RANDOM: 10}),
        ("timm:swin_tiny_patch4_window7_224", 1, {OpKind.RANDOM: 22}),
        ("hf:bert", 2, {OpKind.DROPOUT: 25}),
    ],
)
def test_models_by_name(name: str, outputs: int, expected: dict[OpKind, int]) -> None:
    package = {"hf": "transformers"}.get(name.partition(":")[0], name.partition(":")[0])
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    trained = open_model(name, input=InputShapes(), mode=Mode.TRAINING)
    evaluated = open_model(name, input=InputShapes())
    assert len(trained.outputs) == outputs
    added = _kinds(trained) - _kinds(evaluated)
    assert {kind: added[kind] for kind in expected} == expected
    assert trained.fixed_batch is None
    assert trained.parameter_count == evaluated.parameter_count
