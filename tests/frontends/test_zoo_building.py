from __future__ import annotations

import re

import pytest

from dippm.errors import UnsupportedError
from dippm.frontends.zoo_building import META, build_failed, make_on, unknown


def test_the_nearest_names_are_told_as_they_are_written() -> None:
    error = unknown("timm", "ResNet5O", ["resnet50", "resnet50d", "vgg16", "ResNeXt50"])
    assert isinstance(error, UnsupportedError)
    assert error.code == "zoo.unknown"
    assert "4 names are known" in str(error)
    assert error.cure is not None
    assert "timm:resnet50" in error.cure
    assert "vgg16" not in error.cure
    assert unknown("timm", "zzzzzz", ["resnet50"]).cure is None


def test_an_unknown_checkpoint_is_told_of_its_configuration() -> None:
    assert "config.json" in str(unknown("hf", "owner/own-model", ["bert"]).cure)


def test_the_first_line_of_a_failure_is_told() -> None:
    error = build_failed("hf:Bert", ValueError("no config\nand a long trace"))
    assert error.code == "zoo.build_failed"
    assert "no config" in str(error)
    assert "long trace" not in str(error)
    assert "KeyError" in str(build_failed("hf:Bert", KeyError()))
    assert "there is no 'rellu'." in str(build_failed("hf:Bert", KeyError("rellu")))


@pytest.mark.parametrize("cause", ["5 is too odd", "5 is too odd.", "5 is too odd.\nand more", "5 is\n\ttoo odd"])
def test_a_cause_ends_with_one_stop(cause: str) -> None:
    assert ": 5 is" in str(build_failed("hf:Bert", ValueError(cause)))
    assert "from its defaults" in str(build_failed("hf:Bert", ValueError(cause)))
    assert ".." not in str(build_failed("hf:Bert", ValueError(cause)))
    assert re.search(r"(odd|is)\. Build the module", str(build_failed("hf:Bert", ValueError(cause))))


def test_where_options_were_given_they_are_what_to_change() -> None:
    error = build_failed("hf:Bert", ValueError("At 'width':\n  5 is too odd."), {"width": 5, "act": "relu"})
    assert str(error).startswith(
        "The library cannot build hf:Bert with width=5, act='relu': At 'width': 5 is too odd. "
    )
    assert error.cure is not None
    assert "options" in error.cure


def test_a_module_is_made_without_memory_in_evaluation_mode() -> None:
    torch = pytest.importorskip("torch")
    before = torch.random.get_rng_state()
    module = make_on(META, lambda: torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Dropout()), name="mine")
    assert {tensor.device.type for tensor in module.parameters()} == {"meta"}
    assert not module.training
    # A seed that the caller set holds on a real device too.
    module = make_on("cpu", lambda: torch.nn.Linear(4, 5), name="mine")
    assert module.weight.abs().sum() > 0
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_constructor_that_needs_values_is_given_them() -> None:
    torch = pytest.importorskip("torch")

    def make() -> object:
        layer = torch.nn.Linear(4, 4)
        if torch.zeros(1).sum().item() != 0:  # has no value on the meta device
            raise AssertionError
        return layer

    module = make_on(META, make, name="mine")
    assert tuple(module.weight.shape) == (4, 4)


@pytest.mark.parametrize("error", [ValueError, TypeError, KeyError, ImportError, RuntimeError])
def test_what_a_constructor_raises_is_wrapped(error: type[Exception]) -> None:
    pytest.importorskip("torch")

    def make() -> object:
        raise error("not like this")

    with pytest.raises(UnsupportedError, match="mine with width=5"):
        make_on(META, make, name="mine", options={"width": 5})
    with pytest.raises(UnsupportedError, match="mine from its defaults") as caught:
        make_on(META, make, name="mine")
    assert caught.value.code == "zoo.build_failed"
    assert isinstance(caught.value.__cause__, error)
