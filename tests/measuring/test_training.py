"""A training step as one call."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.costs.conditions import Conditions  # noqa: E402
from dippm.errors import UnsupportedError  # noqa: E402
from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.measuring import training  # noqa: E402
from dippm.measuring.configuration import Configuration  # noqa: E402
from dippm.measuring.sample_inputs import make_inputs  # noqa: E402
from dippm.measuring.training import Loss, training_call  # noqa: E402


def configuration(**conditions: str) -> Configuration:
    return Configuration(batch=4, conditions=Conditions.parse(mode="training", **conditions))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw", "adamw-fused", "rmsprop", "adafactor"])
@pytest.mark.parametrize("precision", ["fp32", "amp", "amp-bf16", "bf16"])
def test_a_step_trains(optimizer: str, precision: str, models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_LEARNING_RATE", 0.05)
    torch.manual_seed(0)
    module, shapes = models.Example().build("cpu")
    inputs = make_inputs(module, shapes, batch=4, device="cpu")
    asked = configuration(optimizer=optimizer, precision=precision)
    with training_call(module, inputs, asked, device="cpu") as step:
        assert module.training
        losses = [float(step()) for _ in range(40)]  # type: ignore[arg-type]
        assert all(weight.grad is None for weight in module.parameters())
    assert losses[-1] < losses[0]
    assert not module.training


def test_a_step_without_an_optimizer_leaves_the_weights_as_they_are(models: Any) -> None:
    module, shapes = models.Example().build("cpu")
    before = module.first.weight.detach().clone()
    inputs = make_inputs(module, shapes, batch=4, device="cpu")
    gradients = []
    module.first.weight.register_hook(gradients.append)
    with training_call(module, inputs, configuration(optimizer="none"), device="cpu") as step:
        step()
        assert module.first.weight.grad is None
    assert gradients[0].abs().sum() > 0
    assert torch.equal(module.first.weight, before)


def test_the_measured_rate_leaves_the_weights_alone(models: Any) -> None:
    module, shapes = models.Example().build("cpu")
    before = module.first.weight.detach().clone()
    inputs = make_inputs(module, shapes, batch=4, device="cpu")
    with training_call(module, inputs, configuration(optimizer="adam"), device="cpu") as step:
        for _ in range(35):
            step()
    assert not torch.equal(module.first.weight, before)
    assert torch.allclose(module.first.weight, before, atol=1e-4)


def test_cross_entropy_of_logits() -> None:
    loss = Loss()
    logits = torch.randn(2, 3, 5, requires_grad=True)
    first = loss({"logits": logits})
    classes = loss._classes[0]
    expected = nn.functional.cross_entropy(logits.reshape(6, 5), classes)
    assert first.item() == pytest.approx(expected.item())
    assert loss({"logits": logits}).item() == first.item()


def test_heads_beside_logits_are_trained_and_hidden_states_have_no_loss() -> None:
    torch.manual_seed(0)
    body, scores, boxes, mask = nn.Linear(8, 8), nn.Linear(8, 5), nn.Linear(8, 4), nn.Conv2d(1, 2, 1)
    hidden = body(torch.randn(2, 8))
    output = {"hidden": hidden, "logits": scores(hidden), "boxes": boxes(hidden), "mask": mask(hidden[:, None, None])}
    loss = Loss()
    total = loss(output)
    expected = (
        nn.functional.cross_entropy(output["logits"], loss._classes[0])
        + nn.functional.cross_entropy(output["boxes"], loss._classes[2])
        + output["mask"].square().mean()
    )
    assert total.item() == pytest.approx(expected.item())
    assert loss(output).item() == total.item()


def test_scores_in_fp32_where_the_model_takes_them_so() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True).bfloat16()
    assert Loss()(logits).dtype is torch.bfloat16
    assert Loss(is_in_fp32=True)(logits).dtype is torch.float32


def test_squares_of_everything_else() -> None:
    image = torch.full((1, 2, 3, 3), 2.0, requires_grad=True)
    other = torch.full((4,), 3.0, requires_grad=True)
    assert Loss()({"image": image, "more": [other, torch.ones(3)]}).item() == pytest.approx(4 + 9)


@pytest.mark.parametrize(
    ("module", "conditions", "code"),
    [
        (nn.ReLU(), {"optimizer": "sgd"}, "training.nothing_to_train"),
        (nn.Linear(8, 2), {"optimizer": "sgd", "runtime": "cuda-graph"}, "runtime.unsupported"),
    ],
)
def test_refusals(module: nn.Module, conditions: dict[str, str], code: str) -> None:
    inputs = make_inputs(module, parse_input_shapes("8"), batch=4, device="cpu")
    asked = configuration(**conditions)
    with pytest.raises(UnsupportedError) as caught, training_call(module, inputs, asked, device="cpu"):
        pytest.fail("it must not get here")
    assert caught.value.code == code


def test_averages_of_8_bits_are_those_of_bitsandbytes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Linear(8, 2)
    inputs = make_inputs(module, parse_input_shapes("8"), batch=4, device="cpu")
    asked = configuration(optimizer="adamw-8bit")
    made: list[str] = []

    class AdamW8bit(torch.optim.AdamW):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append("AdamW8bit")

    package, optim = ModuleType("bitsandbytes"), ModuleType("bitsandbytes.optim")
    optim.AdamW8bit = AdamW8bit  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bitsandbytes", package)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", optim)
    with training_call(module, inputs, asked, device="cpu") as step:
        step()
    assert made == ["AdamW8bit"]
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.delitem(sys.modules, "bitsandbytes.optim")
    with pytest.raises(UnsupportedError) as caught, training_call(module, inputs, asked, device="cpu"):
        pytest.fail("it must not get here")
    assert caught.value.code == "optimizer.not_installed"


def test_an_output_without_gradient() -> None:
    with pytest.raises(UnsupportedError) as caught:
        Loss()(torch.ones(2, 3))
    assert caught.value.code == "training.no_loss"
