"""Spaces as YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

import dippm
from dippm.api.exploration.space import load_space
from dippm.errors import UsageError

TEMPLATE = """
choices:
  layers: {from: 1, to: 3}
  width: [64, 128]
  side: [32, 64]
  is_narrow: [false, true]
  channels: {of: [8, 16], if: {is_narrow: true}}
model:
  architecture: dnnperf:vgg
  arguments: {}
input: [3, $side, $side]
"""


def test_a_known_architecture_with_choices_in_it(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(
        "choices: {layers: [2, 3], width: {from: 64, to: 256, step: 64}, length: [32, 64]}\n"
        "model:\n"
        "  architecture: dnnperf:recurrent\n"
        "  arguments: {cell: lstm, features: 16, hidden: $width, layers: $layers, bidirectional: false, classes: 10}\n"
        "input: [$length, 16]\n"
    )
    space = load_space(path)
    small, large = (
        space.build_model({"layers": layers, "width": width, "length": 32}) for layers, width in ((2, 64), (3, 256))
    )
    assert small.input == (32, 16)
    parameters = [dippm.load(built.model, input=built.input).parameter_count for built in (small, large)]
    assert parameters[1] > 10 * parameters[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("layers: {from: 1, to: 3}", "layers: {from: 1}"), "choices.layers.to"),
        (("architecture: dnnperf:vgg", "name: x"), "model.architecture"),
        (("arguments: {}", "arguments: []"), None),
        (("arguments: {}", "arguments: [1]"), "model.arguments"),
        (("arguments: {}", "arguments: {a: [1, $wide]}"), r"model.arguments.a\[1\]"),
        (("arguments: {}", "argument: {}"), "model.argument must be"),
        (("input:", "inputs:"), "inputs must be"),
        (("[3, $side, $side]", "[3, $sides]"), r"input\[1\]"),
        (("input: [3, $side, $side]", ""), "input must be"),
        (("choices:", "choices: ["), "is no YAML"),
        (("choices:", "!!python/object/apply:os.getcwd []"), "is no YAML"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(tmp_path: Path, change: tuple[str, str], words: str | None) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(TEMPLATE.replace(*change))
    if words is None:
        load_space(path)
        return
    with pytest.raises(UsageError, match=words) as caught:
        load_space(path)
    assert caught.value.code == "space.invalid"


def test_an_architecture_that_does_not_exist_is_a_failed_point(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("choices: {a: [1, 2]}\nmodel: {architecture: timm:nothing}\ninput: [3, 32, 32]\n")
    with pytest.raises(dippm.UnsupportedError) as caught:
        load_space(path).build_model({"a": 1})
    assert caught.value.code == "recipe.architecture_unknown"
