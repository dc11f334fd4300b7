"""Spaces as YAML."""

from __future__ import annotations

import hashlib
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
  architecture: zoo:torchvision:vgg11
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
        (("architecture: zoo:torchvision:vgg11", "name: x"), "model.architecture"),
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


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"choices: {a: [1, 2]}\nmodel: {architecture: x\ninput: [1]\n", "line 3, column 6"),
        (b"choices:\n  a: [1, 2\nb: 1\n", "line 3, column 2"),
        (b"a: \x01", ""),
        (b"\xff\xfe\xff", ""),
    ],
)
def test_what_is_no_yaml_is_told_in_one_line(tmp_path: Path, content: bytes, place: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"is no YAML: .*\.$") as caught:
        load_space(path)
    assert caught.value.code == "space.invalid"
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_point_that_cannot_be_built_names_its_choices(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(
        "choices: {hidden: [128, 130]}\nmodel:\n  architecture: zoo:hf:bert\n"
        "  arguments: {num_hidden_layers: 1, hidden_size: $hidden, num_attention_heads: 4}\ninput: [16]\n"
    )
    space = load_space(path)
    assert space.build_model({"hidden": 128}).input == (16,)
    with pytest.raises(dippm.UnsupportedError, match=r'failed for {"hidden": 130}: The library cannot') as caught:
        space.build_model({"hidden": 130})
    assert caught.value.code == "zoo.build_failed"


def test_names_are_looked_at_once(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("choices: {a: [1, 2]}\nmodel: {architecture: timm:nothing}\ninput: [3, 32, 32]\n")
    with pytest.raises(UsageError) as caught:
        load_space(path)
    assert (caught.value.code, caught.value.exit_status) == ("space.invalid", 2)
    # Of content that is known there is nothing to find out.
    load_space(path, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
