from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from dippm.errors import UnsupportedError
from dippm.frontends.zoo_building import (
    META,
    build_failed,
    harmless_settings,
    make_on,
    unknown,
    unknown_stored,
)


def test_the_nearest_names_are_told_as_they_are_written() -> None:
    error = unknown("timm", "ResNet5O", ["resnet50", "resnet50d", "vgg16", "ResNeXt50"])
    assert isinstance(error, UnsupportedError)
    assert error.code == "zoo.unknown"
    assert "4 names are known" in str(error)
    assert error.cure is not None
    assert "timm:resnet50" in error.cure
    assert "vgg16" not in error.cure
    assert unknown("timm", "zzzzzz", ["resnet50"]).cure is None


def test_an_abbreviation_has_near_names() -> None:
    names = ["stabilityai/stable-diffusion-xl-base-1.0/unet", "stable-diffusion-xl-base-1.0/unet", "UNet2DModel"]
    cure = unknown("diffusers", "sdxl", names).cure
    assert cure == f"The nearest are diffusers:{names[1]}, diffusers:{names[0]}."


def test_an_unknown_checkpoint_is_told_of_its_configuration() -> None:
    assert "config.json" in str(unknown("hf", "owner/own-model", ["bert"]).cure)


def test_a_configuration_of_a_newer_library_is_told_of_the_one_that_is_installed() -> None:
    library = ModuleType("transformers")
    library.__version__ = "4.2"  # type: ignore[attr-defined]
    error = unknown_stored(Path("own/config.json"), "model_type", "foo'bar", library)
    assert error.code == "zoo.unknown"
    assert 'names model_type "foo\'bar", which transformers 4.2 does not have. Update transformers' in str(error)


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
    assert re.search(r"(odd|is)\. Some classes", str(build_failed("hf:Bert", ValueError(cause))))


def test_where_options_were_given_they_are_what_to_change() -> None:
    error = build_failed("hf:Bert", ValueError("At 'width':\n  5 is too odd."), {"width": 5, "act": "relu"})
    assert str(error).startswith(
        "The library cannot build hf:Bert with width=5, act='relu': At 'width': 5 is too odd. "
    )
    assert error.cure is not None
    assert "options" in error.cure


def test_an_interrupt_is_no_failure() -> None:
    pytest.importorskip("torch")

    def make() -> object:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_on(META, make, name="mine")


def test_the_advice_to_let_a_library_ask_a_hub_is_not_passed_on() -> None:
    errors = pytest.importorskip("huggingface_hub.errors")
    error = RuntimeError("no backbone: unset HF_HUB_OFFLINE")
    error.__cause__ = errors.OfflineModeIsEnabled("unset HF_HUB_OFFLINE")
    assert "OFFLINE" not in str(build_failed("m", error, None))
    assert "asks a hub" in str(build_failed("m", error, None))
    assert "OFFLINE" in str(build_failed("m", RuntimeError("no backbone: unset HF_HUB_OFFLINE"), None))


def test_settings_are_harmless_at_every_depth() -> None:
    from_elsewhere = {"auto_map": {"A": "b"}, "_name_or_path": "/x", "name_or_path": "/x", "custom_pipelines": {}}
    weights = {"pretrained": True, "checkpoint_path": "/x", "cache_dir": "/x", "pretrained_cfg": {"file": "/x"}}
    kernels = {"attn_implementation": "kernels/x", "_experts_implementation": {"": "sdpa"}}
    own = {"attn_implementation": "eager", "pretrained_cfg": {"input_size": [3, 4, 4]}, "depths": [1, [2]]}
    inner = {**from_elsewhere, **own}
    settings = {
        **kernels, **from_elsewhere, "text_config": inner, "parts": [inner, 5], "use_pretrained_backbone": True,
        "model_args": {**weights, "in_chans": 1, "deeper": {**weights, "depth": 2}},
        "vision": {"backbone": "resnet18", "backbone_kwargs": weights},
    }  # fmt: skip
    assert harmless_settings(settings, name="m") == {
        "text_config": own, "parts": [own, 5], "use_pretrained_backbone": False,
        "model_args": {"in_chans": 1, "deeper": {"depth": 2}},
        "vision": {"backbone": "resnet18", "backbone_kwargs": {}, "use_pretrained_backbone": False},
    }  # fmt: skip
    with pytest.raises(UnsupportedError) as caught:
        harmless_settings({"a": [{"backbone": "hf-hub:x/y"}]}, name="m")
    assert caught.value.code == "zoo.unknown"


def test_settings_too_deep_to_be_read_are_refused() -> None:
    settings: dict[str, object] = {}
    for _ in range(10_000):
        settings = {"a": settings}
    with pytest.raises(UnsupportedError) as caught:
        harmless_settings(settings, name="m")
    assert caught.value.code == "zoo.build_failed"


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
    # What a file describes may be too large to be made.
    with pytest.raises(UnsupportedError) as caught:
        make_on(META, make, name="mine", options=None)
    assert caught.value.code == "zoo.build_failed"


@pytest.mark.parametrize(
    "error", [ValueError, TypeError, KeyError, ImportError, RuntimeError, IndexError, ZeroDivisionError]
)
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
