"""What a measuring process may rely on, of every kind of source that there is."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.datasets.recipes.building import RecipeSource  # noqa: E402
from dippm.datasets.recipes.recipe import Recipe  # noqa: E402
from dippm.frontends.inputs import InputShapes, parse_input_shapes  # noqa: E402
from dippm.measuring.model_files import FileSource, ZooSource, find_source  # noqa: E402
from dippm.measuring.model_source import ModelSource  # noqa: E402

IMAGE = parse_input_shapes("1,28,28")
Make = Callable[[Path, InputShapes], ModelSource]


def lenet(inputs: InputShapes, *, batch: int) -> Recipe:
    (image,) = inputs.positional
    channels, height, width = image.shape
    return Recipe(
        collection="made-up", family="lenet", architecture="dnnperf:lenet", inputs=inputs, batch=batch,
        arguments={"in_chans": channels, "height": height, "width": width},
    )  # fmt: skip


def _recipe(folder: Path, inputs: InputShapes) -> ModelSource:
    return RecipeSource(lenet(inputs, batch=2))


def _file(folder: Path, inputs: InputShapes) -> ModelSource:
    path = folder / "model.pt"
    if not path.exists():
        torch.save(nn.Linear(28, 4).eval(), path)
    return FileSource(path, inputs, trust=True)


def _zoo(folder: Path, inputs: InputShapes) -> ModelSource:
    return ZooSource("torchvision:squeezenet1_1", inputs)


def _checkpoint(folder: Path, inputs: InputShapes) -> ModelSource:
    settings = {
        "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 50,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    return find_source(str(folder), inputs)


every_source = pytest.mark.parametrize("make", [_recipe, _file, _zoo, _checkpoint])


@every_source
def test_a_source_is_small_and_is_the_same_in_another_process(tmp_path: Path, make: Make) -> None:
    source = make(tmp_path, IMAGE)
    pickled = pickle.dumps(source)
    # Whatever it weighs when it is built, it must go through a pipe at once: Linux takes 64 KiB.
    assert len(pickled) < 2**16
    copy: ModelSource = pickle.loads(pickled)
    assert (copy.name, copy.model_key) == (source.name, source.model_key)
    assert copy.name


@every_source
def test_the_key_is_that_of_the_model_and_its_input_shapes(tmp_path: Path, make: Make) -> None:
    keys = [make(tmp_path, inputs).model_key for inputs in (IMAGE, IMAGE, parse_input_shapes("1,32,32"))]
    assert keys[0] == keys[1] != keys[2]


def test_a_model_at_another_batch_is_the_same_model() -> None:
    one, other = (RecipeSource(lenet(IMAGE, batch=batch)) for batch in (1, 8))
    assert one.model_key == other.model_key


@pytest.mark.filterwarnings("ignore:.*weights_only.*")
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("make", [_recipe, _file])
def test_what_is_built_is_on_the_device_and_evaluates(tmp_path: Path, make: Make, device: str) -> None:
    module, shapes = make(tmp_path, IMAGE).build(device)
    assert isinstance(module, nn.Module)
    assert {weight.device.type for weight in module.parameters()} == {device}
    assert not any(part.training for part in module.modules())
    assert shapes == IMAGE
