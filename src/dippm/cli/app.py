"""The program's commands. Each module imports what it needs when its command runs, so that help stays quick."""

from __future__ import annotations

from typing import Annotated

import typer

from dippm.cli import (
    catalogue,
    dataset,
    evaluate,
    explore,
    inspect,
    measure,
    pack,
    placement,
    predict,
    serve,
    sweep,
    train,
)

__all__ = ["app"]

app = typer.Typer(
    name="dippm",
    help="Predicts latency, energy, memory and the MIG slice of a deep-learning model from its file, without running "
    "it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"dippm {version('dippm')}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    # Taken out of the words before they are parsed, so that it may stand anywhere; declared here for the help.
    _debug: Annotated[bool, typer.Option("--debug", help="Show where an error happened.")] = False,
) -> None:
    pass


app.command("predict", help=predict.HELP)(predict.predict)
app.command("inspect", help=inspect.HELP)(inspect.inspect)
app.command("fits", help=placement.FITS_HELP)(placement.fits)
app.command("max-batch", help=placement.MAX_BATCH_HELP)(placement.max_batch)
app.command("sweep", help=sweep.HELP)(sweep.sweep)
app.command("explore", help=explore.HELP)(explore.explore)
app.command("pack", help=pack.HELP)(pack.pack)
app.command("devices", help=catalogue.DEVICES_HELP)(catalogue.devices)
app.command("ops", help=catalogue.OPS_HELP)(catalogue.ops)
app.command("measure", help=measure.HELP)(measure.measure)
app.add_typer(dataset.dataset, name="dataset", help=dataset.HELP)
app.command("train", help=train.HELP)(train.train)
app.command("evaluate", help=evaluate.HELP)(evaluate.evaluate)
app.command("serve", help=serve.HELP)(serve.serve)
