"""``dippm train``: train a predictor on measured labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dippm.cli import options
from dippm.cli.output import SCHEMA, is_terminal, kept_stdout, make_console, print_columns, print_json, print_note
from dippm.cli.progress import CountBar
from dippm.cli.train_adapt import run_adapt
from dippm.cli.unused_options import refuse_unused
from dippm.errors import UsageError

if TYPE_CHECKING:
    from dippm.api import EpochReport, TrainingReport
    from dippm.training.epochs import RunEpochs

__all__ = ["HELP", "train"]

HELP = "Train a predictor on measured labels."

_OF_ADAPT = frozenset({"adapt", "data", "out", "cache", "device", "device_file", "seed", "jobs", "as_json"})
_OF_NETWORKS = frozenset(
    {
        "edges",
        "pretrain",
        "pretrain_epochs",
        "epochs",
        "hidden",
        "dropout",
        "learning_rate",
        "schedule",
        "batch_size",
        "patience",
        "accelerator",
        "devices",
    }
)
_COLUMNS = ("split", "metric", "mape_percent", "samples", "models")


def train(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Option(
            "--data", metavar="STORE|PARQUET", help="Labels: a label store or a Parquet file.", show_default=False
        ),
    ],
    adapt: Annotated[
        bool,
        typer.Option(
            "--adapt",
            help="Adapt the shipped predictor to the device of the labels. Of the other options --out, --cache, "
            "--device, --device-file, --seed, --jobs and --json have a meaning then.",
        ),
    ] = False,
    model: Annotated[
        str, typer.Option("--model", help="pmgns (GraphSAGE); gat, gcn, gin, mlp or boosted trees, gbdt, to compare.")
    ] = "pmgns",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Folder of the predictor, its checkpoints and logs; dippm-trained/MODEL when left out.",
            show_default=False,
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            "--cache",
            metavar="FOLDER",
            help="Folder of graphs; dippm-trained/graphs when left out.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            "-d",
            help="Device of the labels, where they are of several.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    device_file: options.DeviceFileOption = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source", help="Who measured, where the labels have several sources.", metavar="NAME", show_default=False
        ),
    ] = None,
    mode: Annotated[str, typer.Option("--mode", "-m", help="Labels of inference or of training.")] = "inference",
    precision: Annotated[str, typer.Option("--precision", "-p", help="Precision of the labels.")] = "fp32",
    layout: options.LayoutOption = "nchw",
    runtime: Annotated[str, typer.Option("--runtime", help="Runtime of the labels.")] = "eager",
    optimizer: Annotated[
        str | None,
        typer.Option(
            "--optimizer", help="Optimizer of labels of training, where there are several.", show_default=False
        ),
    ] = None,
    edges: Annotated[
        str, typer.Option("--edges", help="data: along tensors; chain: a line, to compare with.")
    ] = "data",
    pretrain: options.PretrainOption = None,
    pretrain_epochs: options.PretrainEpochsOption = 20,
    epochs: Annotated[int, typer.Option("--epochs", help="Passes over the training split.")] = 10,
    hidden: Annotated[int, typer.Option("--hidden", help="Width of the network.")] = 512,
    dropout: Annotated[float, typer.Option("--dropout", help="Share of activations dropped.")] = 0.05,
    learning_rate: Annotated[
        str, typer.Option("--lr", metavar="RATE|auto", help="Learning rate; auto finds one.")
    ] = "2.754e-5",
    schedule: Annotated[
        str, typer.Option("--schedule", help="constant; one-cycle: up to the rate, then down, over all epochs.")
    ] = "constant",
    batch_size: Annotated[int, typer.Option("--batch-size", help="Graphs in a step.")] = 32,
    patience: Annotated[int, typer.Option("--patience", help="Epochs without a gain before it stops.")] = 50,
    seed: Annotated[int, typer.Option("--seed", help="Seed of split, weights, dropout and order.")] = 0,
    accelerator: Annotated[str, typer.Option("--accelerator", help="auto, cpu or gpu.")] = "auto",
    devices: Annotated[int, typer.Option("--devices", help="Devices to train on side by side.")] = 1,
    cluster: options.ClusterOption = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            help="With --cluster: processes that share every epoch, each with a GPU, or a core of a processor.",
            min=1,
            show_default=False,
        ),
    ] = None,
    mixed_precision: Annotated[
        bool, typer.Option("--mixed-precision", help="Train a network in fp16 on a GPU, in bf16 on a CPU.")
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", metavar="N", help="Processes that read new models.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the training that the folder holds.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Run ``dippm train``."""
    from dippm import api

    if adapt:
        refuse_unused(
            context,
            lambda name: name not in _OF_ADAPT,
            what="--adapt",
            cure="Leave it out: every label that the shipped networks cover is learned from.",
        )
        run_adapt(
            data,
            out=out,
            cache=cache,
            device=device,
            device_file=device_file,
            seed=seed,
            jobs=jobs,
            as_json=as_json,
        )
        return
    if device_file is not None:
        raise UsageError(
            "A network of its own learns a device from its labels alone.",
            code="device.unused",
            cure="Leave --device-file out, or add --adapt.",
        )
    if (cluster is None) != (workers is None) or (workers is not None and devices != 1):
        raise UsageError(
            "--cluster and --workers go together, and --devices is for this machine.",
            code="train.workers",
            cure="Name a cluster and how many workers of it, or devices of this machine.",
        )
    if model == "gbdt":
        refuse_unused(
            context,
            _OF_NETWORKS.__contains__,
            what="--model gbdt",
            cure="Leave it out, or train a network: trees have no epochs, and their number is chosen on the validation "
            "split.",
        )
    progress = _Progress()
    try:
        with kept_stdout(cluster):
            report = api.train(
                model,
                data=data,
                out=out,
                cache=cache,
                device=device,
                source=source,
                mode=mode,
                precision=precision,
                layout=layout,
                runtime=runtime,
                optimizer=optimizer,
                edges=edges,
                pretrain=pretrain,
                pretrain_epochs=pretrain_epochs,
                epochs=epochs,
                hidden=hidden,
                dropout=dropout,
                learning_rate=options.parse_rate(learning_rate),
                schedule=schedule,
                batch_size=batch_size,
                patience=patience,
                seed=seed,
                accelerator=accelerator,
                devices=devices if workers is None else workers,
                mixed_precision=mixed_precision,
                jobs=jobs,
                resume=resume,
                on_graph=progress.show_graphs,
                on_epoch=progress.show_epoch,
                run_epochs=None if cluster is None or workers is None else _open_cluster(cluster, workers),
            )
    except KeyboardInterrupt:
        progress.close()
        if model != "gbdt":
            print_note(f"Interrupted. The same command{'' if resume else ' with --resume'} goes on.")
        raise
    finally:
        progress.close()
    if as_json:
        print_json({"schema": SCHEMA, **report.to_dict()})
        return
    if is_terminal():
        _print_table(report)
    else:
        print_columns(_COLUMNS, _rows(report))
    for note in _notes(report, epochs=epochs, schedule=schedule):
        print_note(note)


def _open_cluster(cluster: str, workers: int) -> RunEpochs:
    from dippm.cluster.training import RayEpochs

    return RayEpochs(address=cluster, workers=workers)


class _Progress:
    """A bar of models, then one of epochs."""

    def __init__(self) -> None:
        self._graphs = CountBar("models", "reading labels, then training")
        self._epochs = CountBar("epochs")

    def show_graphs(self, done: int, total: int) -> None:
        self._graphs.show(done, total, "training" if done == total else "reading graphs")

    def show_epoch(self, report: EpochReport) -> None:
        self._epochs.show(report.epoch, report.epochs, f"validation MAPE {report.val_mape_percent:.1f} %")

    def close(self) -> None:
        self._graphs.close()
        self._epochs.close()


def _rows(report: TrainingReport) -> list[list[object]]:
    return [
        [split, metric, f"{error:.4g}", report.samples[split], report.models[split]]
        for split, errors in report.mape_percent.items()
        for metric, error in errors.items()
    ]


def _print_table(report: TrainingReport) -> None:
    from dippm.cli.fitting_table import FittingTable

    splits = list(report.mape_percent)
    table = FittingTable(f"{report.model}: mean absolute error, %", gap=3)
    table.add_column("")
    for split in splits:
        table.add_column(split, justify="right")
    for metric in dict.fromkeys(name for errors in report.mape_percent.values() for name in errors):
        cells = (report.mape_percent[split].get(metric) for split in splits)
        table.add_row(metric, *("" if cell is None else f"{cell:.2f}" for cell in cells))
    for name, counts in (("samples", report.samples), ("models", report.models)):
        table.add_row(name, *(f"{counts[split]:,}" for split in splits), style="dim")
    make_console().print(table)


def _notes(report: TrainingReport, *, epochs: int, schedule: str) -> list[str]:
    notes = []
    if 0 < report.epochs == report.epochs_before:
        notes.append(
            f"This training had ended already, after {report.epochs} epochs: nothing was trained. "
            + _say_how_to_go_on(report.epochs, asked=epochs, schedule=schedule)
        )
    if report.learning_rate is not None:
        notes.append(
            f"{report.epochs} epochs at a learning rate of {report.learning_rate:.3g}, the best was epoch "
            f"{report.best_epoch}; {report.duration_s:.0f} s on {report.device}."
        )
    if report.unread:
        model_key, reason = next(iter(report.unread.items()))
        notes.append(f"{len(report.unread)} models cannot be read and are left out; {model_key}: {reason}")
    if report.model != "pmgns":
        return [*notes, f"{report.model} is in {report.folder}; predictions come from pmgns alone, this is to compare."]
    return [*notes, f"The predictor is in {report.folder}: dippm predict MODEL --predictor {report.folder}"]


def _say_how_to_go_on(epochs: int, *, asked: int, schedule: str) -> str:
    if epochs < asked:
        return "None of the last ones was better; a larger --patience goes on."
    if schedule == "constant":
        return f"More --epochs than {epochs} go on."
    return f"The schedule '{schedule}' is laid out over all epochs: for more of them train in another folder."
