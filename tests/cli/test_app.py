"""The commands as a whole: names, words for help, and that options of one name are one option."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.text import Text

from dippm.cli.app import make_app

COMMANDS: Any = typer.main.get_command(make_app())


def commands() -> dict[str, Any]:
    return dict(COMMANDS.commands)


def test_the_commands_are_those_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert set(commands()) >= {"predict", "inspect", "fits", "max-batch", "pack", "devices", "ops", "measure", "serve"}
    assert [name for name in commands() if f"dippm {name}" not in page] == []


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_and_option_says_what_it_is(name: str) -> None:
    command = commands()[name]
    assert command.help
    assert [each.name for each in command.params if not getattr(each, "help", None)] == []


def test_a_short_name_means_the_same_everywhere() -> None:
    """``-b`` is the batch of every command that has one."""
    meanings: dict[str, set[str]] = defaultdict(set)
    for command in commands().values():
        for parameter in command.params:
            short = [each for each in parameter.opts if len(each) == 2 and each != "-h"]
            for each in short:
                meanings[each].add(next(other for other in parameter.opts if other.startswith("--")))
    assert {short: names for short, names in meanings.items() if len(names) > 1} == {}


def test_help_has_a_short_name() -> None:
    assert COMMANDS.context_settings["help_option_names"] == ["-h", "--help"]


def _below(command: Any) -> list[Any]:
    return [command, *(below for child in getattr(command, "commands", {}).values() for below in _below(child))]


def test_no_help_text_is_taken_for_markup() -> None:
    texts = [getattr(each, "help", None) for command in _below(COMMANDS) for each in (command, *command.params)]
    lost = [text for text in texts if text and Text.from_markup(text).plain != text.replace("\\[", "[")]
    assert lost == []


@pytest.mark.parametrize("name", sorted(commands()))
def test_a_command_alone_is_the_same_as_among_all(name: str) -> None:
    alone: Any = typer.main.get_command(make_app([name, "--help"]))
    assert list(alone.commands) == [name]
    assert alone.help == COMMANDS.help
    found, whole = alone.commands[name], commands()[name]
    assert found.help == whole.help
    assert [each.opts for each in found.params] == [each.opts for each in whole.params]
    assert list(getattr(found, "commands", {})) == list(getattr(whole, "commands", {}))


@pytest.mark.parametrize("words", [[], ["--help"], ["prdict"], ["--version", "predict"]])
def test_where_no_command_is_asked_for_all_are_there(words: list[str]) -> None:
    assert list(getattr(typer.main.get_command(make_app(words)), "commands", {})) == list(commands())


def test_a_command_imports_no_other() -> None:
    program = (
        "import sys; from dippm.cli.main import main; status = main(['devices', 'A100']); "
        "print([name for name in ('predict', 'explore', 'serve') if f'dippm.cli.{name}' in sys.modules], status)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.splitlines()[-1] == "[] 0"
