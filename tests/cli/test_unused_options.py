"""Options that would change nothing."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from dippm.cli.unused_options import refuse_unused
from dippm.errors import UsageError


def _command(context: typer.Context, lasting: int = 1, idle: int = 2) -> None:
    refuse_unused(context, lambda name: name == "idle", what="--lasting", cure="Leave it out.")


@pytest.fixture(name="run")
def _run() -> typer.Typer:
    app = typer.Typer()
    app.command()(_command)
    return app


@pytest.mark.parametrize("words", [[], ["--lasting", "3"]])
def test_what_was_not_given_or_counts_is_left(run: typer.Typer, words: list[str]) -> None:
    assert CliRunner().invoke(run, words).exit_code == 0


def test_what_was_given_and_means_nothing_is_named_even_at_its_default(run: typer.Typer) -> None:
    error = CliRunner().invoke(run, ["--idle", "2"]).exception
    assert isinstance(error, UsageError)
    assert error.code == "option.unused"
    assert str(error) == "With --lasting there is nothing that --idle could change. Leave it out."
