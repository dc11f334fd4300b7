"""``dippm dataset``: measure collections of models, and keep, exchange and describe the labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dippm.cli import options
from dippm.cli.dataset_statistics import show_statistics
from dippm.cli.main import STATUS_INTERRUPTED, STATUS_TERMINATED
from dippm.cli.measure import MeasuredDeviceOption
from dippm.cli.output import (
    SCHEMA,
    is_terminal,
    kept_stdout,
    make_console,
    make_printable,
    print_columns,
    print_json,
    print_note,
)
from dippm.cli.progress import CampaignLines, CountBar
from dippm.errors import DippmError, UsageError

if TYPE_CHECKING:
    from dippm.api import CampaignReport, CampaignStoppedError, CollectionInfo
    from dippm.datasets.campaign.fleet import OpenFleet

__all__ = ["HELP", "dataset"]

HELP = "Measure many models, and keep, exchange and describe the labels."

_REPORTS = ("report.json", "report.txt")

dataset = typer.Typer(help=HELP, no_args_is_help=True)

StoreOption = Annotated[
    str,
    typer.Option("--store", metavar="FILE|URL", help="Labels: an SQLite file, or postgresql://user@host/database."),
]
RecipeOption = Annotated[
    str, typer.Option("--recipe", metavar="NAME", help="A collection; see dippm dataset recipes.", show_default=False)
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", help="At most N recipes; any prefix is balanced.", show_default=False),
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs", "-j", metavar="N", help="Processes; one per processor when left out.", min=1, show_default=False
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the recipes.")]
LabelsArgument = Annotated[
    str, typer.Argument(metavar="STORE|PARQUET", help="A label store or a Parquet file.", show_default=False)
]


@dataset.command("recipes")
def recipes(seed: SeedOption = 0, as_json: options.JsonOption = False) -> None:
    """List the collections of models, with their counts."""
    from dippm import api

    infos = api.list_recipes(seed=seed)
    if as_json:
        print_json({"schema": SCHEMA, "collections": [info.to_dict() for info in infos]})
    elif is_terminal():
        _print_collections(infos)
    else:
        rows = ((info.name, family, count) for info in infos for family, count in info.families.items())
        print_columns(("collection", "family", "recipes"), rows)


@dataset.command("measure")
def measure(
    recipe: RecipeOption,
    store: StoreOption,
    device: MeasuredDeviceOption = "cpu",
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="TIME", help="Time to end within: 30s, 9m or 2h.", show_default=False),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a campaign that the store holds rows of.")
    ] = False,
    retry: Annotated[
        str | None,
        typer.Option(
            "--retry",
            metavar="OUTCOMES",
            help="Measure rows again that ended so: failed, timed-out.",
            show_default=False,
        ),
    ] = None,
    row_limit: Annotated[
        str, typer.Option("--row-limit", metavar="TIME", help="Time after which a row is given up.")
    ] = "120s",
    mode: Annotated[
        str, typer.Option("--mode", "-m", help="inference, training, or both joined by a comma.")
    ] = "inference",
    precision: Annotated[
        str, typer.Option("--precision", "-p", help="fp32, fp32-strict, tf32, amp, amp-bf16, fp16, bf16.")
    ] = "fp32",
    layout: Annotated[str, typer.Option("--layout", help="nchw, nhwc.")] = "nchw",
    runtime: Annotated[
        str, typer.Option("--runtime", help="eager, compile, cuda-graph (inference alone, launched as a whole).")
    ] = "eager",
    engine: Annotated[str, typer.Option("--engine", help="torch, onnxruntime (inference alone).")] = "torch",
    optimizer: Annotated[
        str,
        typer.Option(
            "--optimizer",
            help="For training: sgd, momentum, adam, adamw, adamw-fused, adamw-8bit, adafactor, rmsprop, none.",
        ),
    ] = "momentum",
    limit: LimitOption = None,
    pass_number: Annotated[
        int,
        typer.Option(
            "--pass", metavar="N", help="Measure every configuration for the N-th time; training takes medians."
        ),
    ] = 1,
    energy_share: Annotated[
        float,
        typer.Option("--energy-share", metavar="SHARE", help="Take the energy of this share of the rows, 0 to 1."),
    ] = 1.0,
    seed: SeedOption = 0,
    cluster: options.ClusterOption = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="NAME",
            help="With --cluster: the kind of GPU to measure on, or a part of its name, where there are several.",
            show_default=False,
        ),
    ] = None,
    no_graphs: Annotated[
        bool, typer.Option("--no-graphs", help="Read no graphs: the device has the machine to itself.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Write report.json and report.txt here.", show_default=False),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Measure a collection on a device of this machine, or on a cluster's, until it is done or the budget is spent."""
    from dippm import api
    from dippm.datasets.campaign.stopping import StopReason

    if kind is not None and cluster is None:
        raise UsageError("--kind chooses among the devices of a cluster.", code="kind.unused", cure="Add --cluster.")
    if out is not None:
        _check_report(out)
    lines = CampaignLines("starting" if cluster is None else "waiting for devices")
    error: CampaignStoppedError | None = None
    try:
        with kept_stdout(cluster):
            report = api.measure_collection(
                recipe,
                store=store,
                device=device,
                budget_s=None if budget is None else api.parse_duration(budget),
                row_limit_s=api.parse_duration(row_limit),
                resume=resume,
                retry=() if retry is None else _split(retry),
                modes=_split(mode),
                precisions=_split(precision),
                layouts=_split(layout),
                runtimes=_split(runtime),
                engines=_split(engine),
                optimizers=_split(optimizer),
                limit=limit,
                pass_number=pass_number,
                energy_share=energy_share,
                seed=seed,
                graphs=not no_graphs,
                fleet=None if cluster is None else _open_fleet(cluster, device=device, kind=kind),
                on_progress=lines.show,
            )
    except api.CampaignStoppedError as exc:
        report, error = exc.report, exc
    finally:
        lines.close()
    if out is not None:
        _write_report(report, out)
    if error is not None and as_json:
        raise error  # stdout has one object: the error
    if as_json:
        print_json({"schema": SCHEMA, **report.to_dict()})
    else:
        make_console().print(make_printable(str(report)), soft_wrap=True)
    if error is not None:
        raise error
    # A shell must not go on with a part of the labels; a budget that is spent is what was asked for.
    status = {StopReason.INTERRUPTED: STATUS_INTERRUPTED, StopReason.TERMINATED: STATUS_TERMINATED}.get(report.stopped)
    if status is not None:
        if report.remaining:
            print_note(f"{report.stopped.capitalize()}. The same command with --resume goes on.")
        raise typer.Exit(status)


@dataset.command("graphs")
def graphs(
    recipe: RecipeOption,
    cache: Annotated[Path, typer.Option("--cache", metavar="FOLDER", help="Folder of the graphs.", show_default=False)],
    limit: LimitOption = None,
    jobs: JobsOption = None,
    seed: SeedOption = 0,
    as_json: options.JsonOption = False,
) -> None:
    """Read the graphs of a collection's models into a folder; what is there already is left alone."""
    from dippm import api

    bar = CountBar("graphs", "reading models")
    try:
        failures = api.cache_graphs(recipe, cache, limit=limit, jobs=jobs, seed=seed, on_progress=bar.show)
    finally:
        bar.close()
    failed = [(failure.recipe.family, failure.recipe.model_key, failure.reason) for failure in failures]
    if as_json:
        keys = ("family", "model_key", "reason")
        entries = [dict(zip(keys, row, strict=True)) for row in failed]
        print_json({"schema": SCHEMA, "recipe": recipe, "models": bar.total, "failures": entries})
        return
    print_note(f"{bar.total - len(failed)} of {bar.total} graphs are in {cache}.")
    if failed:
        print_columns(("family", "model_key", "reason"), failed)


@dataset.command("predict")
def predict(
    recipe: RecipeOption,
    cache: Annotated[
        Path,
        typer.Option(
            "--cache", metavar="FOLDER", help="Folder of the graphs, filled where it lacks some.", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="OUT.parquet", help="The file to write.", show_default=False)],
    device: Annotated[str, typer.Option("--device", "-d", metavar="NAME", help="The device.", show_default=False)],
    mode: Annotated[str, typer.Option("--mode", "-m", help="inference or training.")] = "inference",
    precision: Annotated[
        str, typer.Option("--precision", "-p", help="fp32, fp32-strict, tf32, amp, amp-bf16, fp16 or bf16.")
    ] = "fp32",
    layout: options.LayoutOption = "nchw",
    runtime: options.RuntimeOption = "eager",
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", help="For training: as dippm predict has it.", show_default=False)
    ] = None,
    software: options.SoftwareOption = None,
    limit: LimitOption = None,
    jobs: JobsOption = None,
    seed: SeedOption = 0,
    as_json: options.JsonOption = False,
) -> None:
    """Write what dippm predicts of a collection as labels, for dippm train --pretrain."""
    from dippm import api

    graphs, models = CountBar("graphs", "reading models"), CountBar("models", "predicting")

    try:
        rows = api.predict_collection(
            recipe,
            out,
            cache=cache,
            device=device,
            mode=mode,
            precision=precision,
            layout=layout,
            runtime=runtime,
            optimizer=optimizer,
            software=software,
            limit=limit,
            jobs=jobs,
            seed=seed,
            on_graph=graphs.show,
            on_model=models.show,
        )
    finally:
        graphs.close()
        models.close()
    if as_json:
        print_json({"schema": SCHEMA, "path": str(out), "rows": rows})
    else:
        print_note(f"{rows} predicted labels are in {out}.")


@dataset.command("stats")
def stats(
    labels: LabelsArgument,
    plots: Annotated[
        Path | None,
        typer.Option("--plots", metavar="FOLDER", help="Draw the distributions here.", show_default=False),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Describe labels: rows, failures, quantiles of every metric, and the machine's own noise."""
    from dippm import api

    statistics = api.label_statistics(labels)
    drawn = [] if plots is None else api.plot_labels(labels, plots)
    show_statistics(statistics, plots=drawn, as_json=as_json)


@dataset.command("export")
def export(
    store: Annotated[str, typer.Argument(metavar="STORE", help="A label store.", show_default=False)],
    path: Annotated[Path, typer.Argument(metavar="OUT.parquet", help="The file to write.", show_default=False)],
    as_json: options.JsonOption = False,
) -> None:
    """Write all labels of a store to a Parquet file."""
    from dippm import api

    rows = api.export_labels(store, path)
    if as_json:
        print_json({"schema": SCHEMA, "path": str(path), "rows": rows})
    else:
        print_note(f"{rows} labels are in {path}.")


@dataset.command("import")
def import_labels(
    labels: Annotated[
        str,
        typer.Argument(
            metavar="FILE|timm|whole-models",
            help="A Parquet file of labels, or the published tables in the folder that DIPPM_DATA names.",
            show_default=False,
        ),
    ],
    store: StoreOption,
    as_json: options.JsonOption = False,
) -> None:
    """Add labels of a file, or of published tables, to a store."""
    from dippm import api

    read, added = api.import_labels(labels, store)
    if as_json:
        print_json({"schema": SCHEMA, "read": read, "added": added})
    else:
        print_note(f"{added} of {read} labels were new to {store}.")


def _open_fleet(cluster: str, *, device: str, kind: str | None) -> OpenFleet:
    from dippm.cluster.campaign import ray_fleet

    return partial(ray_fleet, cluster, device=device, kind=kind)


def _split(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise UsageError(f"Names joined by commas are needed. Got '{text}' instead.", code="usage.invalid")
    return list(dict.fromkeys(names))


def _check_report(folder: Path) -> None:
    """Refuse what the report cannot be written to before anything is measured."""
    from dippm.api.report_files import find_obstacle

    obstacle = find_obstacle(folder)
    for path in () if obstacle else (folder / name for name in _REPORTS):
        if path.is_dir() or (path.exists() and not os.access(path, os.W_OK)):
            obstacle = f"'{path}' may not be written to"
    if obstacle:
        raise UsageError(
            f"The report cannot be written to '{folder}': {obstacle}.",
            code="report.unwritable",
            cure="Name another folder with --out.",
        )


def _write_report(report: CampaignReport, folder: Path) -> None:
    import json

    try:
        folder.mkdir(parents=True, exist_ok=True)
        contents = json.dumps(report.to_dict(), indent=1) + "\n", f"{report}\n"
        for name, content in zip(_REPORTS, contents, strict=True):
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as exc:
        raise DippmError(
            f"The report cannot be written to '{folder}': {exc.strerror or exc}.",
            code="report.unwritable",
            cure="The labels are in the store; run with --resume for another report.",
        ) from exc


def _print_collections(infos: Sequence[CollectionInfo]) -> None:
    from dippm.cli.fitting_table import FittingTable

    table = FittingTable(gap=3)
    table.add_column("collection", no_wrap=True)
    table.add_column("recipes", justify="right")
    table.add_column("models", justify="right")
    table.add_column("families", overflow="fold")
    for info in infos:
        families = ", ".join(f"{family} {count:,}" for family, count in info.families.items())
        table.add_row(info.name, f"{info.recipes:,}", f"{info.models:,}", families)
    make_console().print(table)
