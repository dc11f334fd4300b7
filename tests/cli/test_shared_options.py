"""The options that the commands share: the same words everywhere, and all of them reach the verb."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import typer
from typer.main import get_command

from dippm.api.question import Options, Question
from dippm.cli import options
from dippm.cli.app import make_app
from dippm.cli.shared_options import with_shared_options


def run(*words: str) -> dict[str, Any]:
    """What a command of one own option, which stands behind the shared ones, is given."""
    given: dict[str, Any] = {}

    @with_shared_options
    def command(model: options.ModelArgument, *, asked: Options, batch: options.OneBatchOption = "1") -> None:
        given.update(asked, model=model, batch=batch)

    own = typer.Typer()
    own.command()(command)
    get_command(own)(["net.onnx", *words], standalone_mode=False)
    return given


def test_what_is_left_out_is_left_to_the_verb() -> None:
    assert run() == {**asdict(Question()), "model": "net.onnx", "batch": "1"}


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (("-f", "onnx"), "framework", "onnx"),
        (("-i", "x=3,8,8", "-i", "y=4:int64"), "input", ["x=3,8,8", "y=4:int64"]),
        (("-p", "amp"), "precision", "amp"),
        (("-m", "training"), "mode", "training"),
        (("--optimizer", "adam"), "optimizer", "adam"),
        (("--accumulation", "4"), "accumulation", 4),
        (("--checkpointing",), "checkpointing", True),
        (("--lora", "16:q_proj"), "lora", "16:q_proj"),
        (("--weights", "nf4"), "weights", "nf4"),
        (("--layout", "nhwc"), "layout", "nhwc"),
        (("--runtime", "cuda-graph"), "runtime", "cuda-graph"),
        (("--software", "torch 2.4"), "software", "torch 2.4"),
        (("--trust-pickle",), "trust", True),
    ],
)
def test_every_option_reaches_the_verb(words: tuple[str, ...], name: str, value: object) -> None:
    assert run(*words) == run() | {name: value}


def test_they_stand_where_the_command_asks_for_them() -> None:
    @with_shared_options
    def command(model: options.ModelArgument, *, asked: Options, batch: options.OneBatchOption = "1") -> None:
        """Nothing."""

    own = typer.Typer()
    own.command()(command)
    names = [each.name for each in get_command(own).params]
    place = names.index("framework")
    assert (names[place - 1], names[place + len(Options.__annotations__)]) == ("model", "batch")


@pytest.mark.parametrize("command", ["predict", "inspect", "fits", "max-batch", "sweep", "pack"])
def test_every_command_that_asks_a_predictor_takes_them(command: str) -> None:
    found: Any = get_command(make_app())
    taken = {each.name for each in found.commands[command].params}
    assert {"trust_pickle" if name == "trust" else name for name in Options.__annotations__} <= taken
    assert "asked" not in taken
