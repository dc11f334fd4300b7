from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")
# Not imported here: beside another build of torch, torchvision needs help to be imported.
if any(find_spec(package) is None for package in ("timm", "torchvision", "transformers")):
    pytest.skip("needs timm, torchvision and transformers", allow_module_level=True)

from dippm.costs.workload import Workload  # noqa: E402
from dippm.datasets.recipes import dippm_zoo, dnnperf_hpo, dnnperf_nas, transformers  # noqa: E402
from dippm.datasets.recipes.building import RecipeSource, build  # noqa: E402
from dippm.datasets.recipes.collections import list_collections, load_collection  # noqa: E402
from dippm.datasets.recipes.recipe import Recipe  # noqa: E402
from dippm.datasets.recipes.sampling import seeded  # noqa: E402
from dippm.errors import UnsupportedError  # noqa: E402
from dippm.frontends.inputs import InputEntry, InputShapes  # noqa: E402
from dippm.frontends.torch import read_module  # noqa: E402
from dippm.graph import DType, Graph  # noqa: E402


def models() -> list[Recipe]:
    """One recipe of each model of all collections."""
    return list({recipe.model_key: recipe for name in list_collections() for recipe in load_collection(name)}.values())


def read(recipe: Recipe) -> Graph:
    module, inputs = build(recipe)
    assert not module.training
    assert {tensor.device.type for tensor in module.parameters()} == {"meta"}
    graph = read_module(module, input=inputs, source=RecipeSource(recipe).name)
    assert graph.unsupported_ops == {}
    assert graph.fixed_batch is None, graph.fixed_batch_reason
    assert graph.parameter_count == sum(tensor.numel() for tensor in module.parameters())
    assert len(graph.inputs) == 1
    return graph


def test_a_random_fifteen_build_and_read_to_a_graph() -> None:
    for recipe in seeded(30).sample(models(), 15):
        assert len(read(recipe).nodes) >= 4


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_random_two_hundred_build_and_read_to_a_graph() -> None:
    for recipe in seeded(200).sample(models(), 200):
        assert len(read(recipe).nodes) >= 4


def test_arguments_change_the_model() -> None:
    for recipes in (load_collection("dippm-zoo"), load_collection("dnnperf-nas")):
        by_family: dict[str, dict[str, Recipe]] = {}
        for recipe in recipes:
            by_family.setdefault(recipe.family, {}).setdefault(recipe.model_key, recipe)
        for family, members in by_family.items():
            chosen = list(members.values())[:5]
            shapes = {
                (tuple(tuple(tensor.shape) for tensor in build(recipe)[0].parameters()), repr(recipe.inputs))
                for recipe in chosen
            }
            assert len(shapes) >= 4, family


def draws() -> Iterator[tuple[str, Recipe, float]]:
    modules = {"zoo": dippm_zoo, "hpo": dnnperf_hpo, "nas": dnnperf_nas, "transformers": transformers}
    for name, module in modules.items():
        for family, plan in {**module.FAMILIES, **getattr(module, "UNSEEN", {})}.items():
            draw = plan.sampler(seeded(family), module.REACH)
            recipe = Recipe(
                collection="test",
                family=f"{name}/{family}",
                architecture=draw.architecture,
                arguments=draw.arguments,
                inputs=draw.inputs,
                batch=1,
            )
            yield recipe.family, recipe, draw.cost.gmacs


def test_the_cost_that_orders_models_is_near_the_graphs() -> None:
    for family, recipe, gmacs in draws():
        counted = float(Workload.from_graph(read(recipe)).at([1]).macs.sum()) / 1e9
        assert 0.66 < gmacs / counted < 1.5, family


def test_a_source_travels_to_another_process() -> None:
    recipe = load_collection("cpu-small")[0]
    source = pickle.loads(pickle.dumps(RecipeSource(recipe)))
    assert source == RecipeSource(recipe)
    assert source.name == f"cpu-small/{recipe.family}/{recipe.key}"
    assert source.model_key == recipe.model_key == dataclasses.replace(recipe, batch=77).model_key
    module, inputs = source.build("meta")
    assert isinstance(module, torch.nn.Module)
    assert inputs == recipe.inputs


def test_unknown_architectures_and_wrong_arguments_are_refused() -> None:
    recipe = load_collection("cpu-small")[0]
    with pytest.raises(UnsupportedError, match="timm:nothing") as caught:
        build(dataclasses.replace(recipe, architecture="timm:nothing"))
    assert caught.value.code == "recipe.architecture_unknown"
    with pytest.raises(UnsupportedError, match="wheels") as caught:
        build(dataclasses.replace(recipe, arguments={"wheels": 4}))
    assert caught.value.code == "recipe.build_failed"


def test_importing_the_registry_imports_no_framework() -> None:
    code = "import sys, dippm.datasets.recipes.building; sys.exit('torch' in sys.modules or 'timm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("architecture", "arguments", "size"),
    [("zoo:timm:resnet18", {}, 160), ("zoo:timm:vit_tiny_patch16_224", {}, 192), ("zoo:torchvision:resnet18", {}, 64)],
)
def test_published_models_are_built_for_the_image_size_of_the_recipe(architecture, arguments, size) -> None:
    inputs = InputShapes(positional=(InputEntry(shape=(3, size, size)),))
    recipe = Recipe(
        collection="published", family="any", architecture=architecture, arguments=arguments, inputs=inputs, batch=2
    )
    module, shapes = build(recipe)
    assert shapes == inputs
    graph = read_module(module, input=shapes, source=architecture)
    assert [dim.at(2) for dim in graph.tensors[graph.outputs[0]].shape] == [2, 1000]


def test_published_transformers_take_their_configuration_from_the_recipe() -> None:
    inputs = InputShapes(named={"input_ids": InputEntry(shape=(16,), dtype=DType.INT64)})
    arguments = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}
    recipe = Recipe(
        collection="published", family="bert", architecture="zoo:hf:BertModel", arguments=arguments, inputs=inputs,
        batch=1,
    )  # fmt: skip
    module, _ = build(recipe)
    assert len(module.encoder.layer) == 2
    with pytest.raises(UnsupportedError) as caught:
        build(dataclasses.replace(recipe, architecture="zoo:timm:nothing"))
    assert caught.value.code == "zoo.unknown"
