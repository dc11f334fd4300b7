from __future__ import annotations

from collections import Counter
from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")
# Not imported here: beside another build of torch, torchvision needs help to be imported.
if any(find_spec(package) is None for package in ("timm", "torchvision", "transformers")):
    pytest.skip("needs timm, torchvision and transformers", allow_module_level=True)

from dippm.datasets.recipes import small  # noqa: E402
from dippm.datasets.recipes.building import build  # noqa: E402
from dippm.datasets.recipes.collections import load_collection  # noqa: E402


def tensors_in(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    return [tensor for part in parts for tensor in tensors_in(part)]


def test_small_models_run_and_train_on_the_cpu_with_one_sample() -> None:
    first = {recipe.family: recipe for recipe in reversed(load_collection("cpu-small"))}
    for family, recipe in first.items():
        module, inputs = build(recipe, "cpu")
        named = {
            name: torch.zeros((1, *entry.shape), dtype=torch.int64) for name, entry in (inputs.named or {}).items()
        }
        given = [torch.randn(1, *entry.shape) for entry in inputs.positional]
        outputs = tensors_in(module.train()(*given, **named))
        assert all(bool(output.isfinite().all()) for output in outputs), family
        sum(output.square().mean() for output in outputs).backward()
        assert all(tensor.grad is not None for tensor in module.parameters()), family


def test_every_family_has_its_share_at_batches_of_one_to_eight() -> None:
    recipes = small.recipes()
    assert Counter(recipe.family for recipe in recipes) == dict.fromkeys(small.FAMILIES, 20)
    assert len({recipe.model_key for recipe in recipes}) == 6 * len(small.FAMILIES)
    assert {recipe.batch for recipe in recipes} == {1, 2, 3, 4, 6, 8}
    assert small.REACH.is_small
