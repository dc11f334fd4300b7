"""The program's commands. Each module imports what it needs when its command runs, so that help stays quick."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, NamedTuple

import typer

__all__ = ["make_app"]


class _Command(NamedTuple):
    """Where a command is: its module here, and what its function and its help are called there."""

    module: str
    function: str
    text: str = "HELP"


# In the order in which the help shows them. Some are groups of commands themselves.
_COMMANDS = {
    "predict": _Command("predict", "predict"),
    "inspect": _Command("inspect", "inspect"),
    "fits": _Command("placement", "fits", "FITS_HELP"),
    "max-batch": _Command("placement", "max_batch", "MAX_BATCH_HELP"),
    "sweep": _Command("sweep", "sweep"),
    "explore": _Command("explore", "explore"),
    "pack": _Command("pack", "pack"),
    "devices": _Command("catalogue", "devices", "DEVICES_HELP"),
    "ops": _Command("catalogue", "ops", "OPS_HELP"),
    "measure": _Command("measure", "measure"),
    "dataset": _Command("dataset", "dataset"),
    "train": _Command("train", "train"),
    "evaluate": _Command("evaluate", "evaluate"),
    "serve": _Command("serve", "serve"),
}


def make_app(words: Sequence[str] = ()) -> typer.Typer:
    """The program with the command that some words begin with; with all of them where they begin with none.

    A command alone starts sooner: nothing is imported, and no option looked at, of the others.

    Args:
        words: Words after the program's name.
    """
    app = typer.Typer(
        name="dippm",
        help="Predicts latency, energy, memory and the MIG slice of a deep-learning model from its file, without "
        "running it.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    asked = words[0] if words and words[0] in _COMMANDS else None
    for name, command in _COMMANDS.items() if asked is None else [(asked, _COMMANDS[asked])]:
        module = import_module(f"dippm.cli.{command.module}")
        found, text = getattr(module, command.function), getattr(module, command.text)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name, help=text)
        else:
            app.command(name, help=text)(found)
    return app


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"dippm {version('dippm')}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    # Taken out of the words before they are parsed, so that it may stand anywhere; declared here for the help.
    _debug: Annotated[bool, typer.Option("--debug", help="Show where an error happened.")] = False,
) -> None:
    pass
