"""The evaluation of the DIPPM paper on measured labels: train, compare, write the report."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dippm.api.datasets import open_labels
from dippm.api.kept_trainings import KeptTrainings
from dippm.api.report_files import describe_file, write_report
from dippm.api.training import PRETRAIN_EPOCHS, TRAINED_FOLDER
from dippm.costs.conditions import Conditions
from dippm.errors import UsageError
from dippm.training.versions import find_versions

if TYPE_CHECKING:
    from dippm.datasets.graph_samples import GraphSamples
    from dippm.evaluation.dippm_report import DippmReport

__all__ = ["DippmEvaluation", "evaluate_dippm"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DippmEvaluation:
    """A report and its files.

    Args:
        report: The figures.
        files: The Markdown page, the HTML page, the figures as JSON, and the plots of the Markdown page.
    """

    report: DippmReport
    files: tuple[Path, ...]


def evaluate_dippm(
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    cache: str | os.PathLike[str] | None = None,
    device: str | None = None,
    source: str | None = None,
    mode: str = "inference",
    precision: str = "fp32",
    layout: str = "nchw",
    runtime: str = "eager",
    optimizer: str | None = None,
    pretrain: str | os.PathLike[str] | None = None,
    pretrain_epochs: int = PRETRAIN_EPOCHS,
    epochs: int = 10,
    long_epochs: int = 200,
    seeds: int = 1,
    seed: int = 0,
    leave_families_out: int = 0,
    hidden: int = 512,
    learning_rate: float | str = 0.003,
    mixed_precision: bool = False,
    jobs: int = 1,
    command: str = "",
    on_graph: Callable[[int, int], None] | None = None,
    on_run: Callable[[int, int, str], None] | None = None,
) -> DippmEvaluation:
    """Compare networks on one data set as the DIPPM paper does, and write the report.

    Every training is kept in ``out``, so that a run that was cut goes on where it was, and one that is repeated with
    the same data and settings reads its predictions back.

    Args:
        data: A label store or a Parquet file of labels.
        out: Folder of the report and the trainings.
        cache: Folder of graphs; ``dippm-trained/graphs`` when left out.
        device: Device of the labels, or a part of its name; needed where they are of several.
        source: Who measured; needed where the labels come from several.
        mode: ``"inference"`` or ``"training"``.
        precision: Precision of the labels.
        layout: Layout of the labels.
        runtime: Runtime of the labels.
        optimizer: Optimizer of labels of training; needed where they are of several.
        pretrain: Labels that every network learns from first, see :func:`dippm.train`; what a training is tested on is
            not among them, nor are families that it leaves out.
        pretrain_epochs: Passes over them.
        epochs: Epochs of the comparison of networks; the paper's are 10.
        long_epochs: Epochs of the long runs at most.
        seeds: Seeds of the comparison.
        seed: The first of them.
        leave_families_out: In how many groups all families are left out in turn, at least 2; as many as there are
            families for one at a time. Each is a long run. 0 for none.
        hidden: Width of the networks.
        learning_rate: Adam's, or ``"auto"``, the highest of a one-cycle schedule. The paper's 2.754e-5 belongs to its
            own data and its many steps.
        mixed_precision: Train the networks in fp16 on a GPU, in bf16 on a CPU.
        jobs: Processes that read models of which there is no graph yet.
        command: The command that this call comes from, for the report.
        on_graph: Called with the number of models read and their total.
        on_run: Called before each training with the number done, their total and what comes.

    Returns:
        The figures and the files.

    Raises:
        UsageError: A setting is out of its range, no label or labels of several kinds are chosen, the labels are too
            few to split, or the folder cannot be written to.
        MissingExtraError: A package for training or plots is not installed.
        DippmError: The labels cannot be read, or a training diverged.
    """
    from dippm.datasets.selection import LabelSelection
    from dippm.evaluation.dippm_protocol import evaluate_dippm as run_protocol
    from dippm.evaluation.dippm_report import ProtocolSettings
    from dippm.evaluation.label_noise import find_noise
    from dippm.training import train_model
    from dippm.training.settings import ONE_CYCLE, TREES, TrainingSettings

    if seeds < 1 or leave_families_out < 0 or leave_families_out == 1:
        raise UsageError(
            f"The seeds must be 1 or more, the groups of families 0 or 2 or more. Got {seeds} and {leave_families_out} "
            "instead.",
            code="evaluation.settings",
        )
    base = TrainingSettings(
        epochs=epochs, hidden=hidden, learning_rate=learning_rate, schedule=ONE_CYCLE, patience=long_epochs, seed=seed
    )
    replace(base, epochs=long_epochs)  # refused now rather than after the comparison
    conditions = Conditions.parse(precision=precision, mode=mode, layout=layout, runtime=runtime, optimizer=optimizer)
    selection = LabelSelection(conditions=conditions, device=device, source=source)
    folder = Path(out)
    graphs = Path(TRAINED_FOLDER) / "graphs" if cache is None else Path(cache)
    with open_labels(data) as rows:
        labels = list(rows)
    samples = train_model.load_samples(labels, selection, graphs, jobs=jobs, on_progress=on_graph)
    pretraining = None
    if pretrain is not None:
        with open_labels(pretrain) as rows:
            pretraining = train_model.load_pretraining(
                rows, conditions, graphs, epochs=pretrain_epochs, jobs=jobs, on_progress=on_graph
            )
    trainings = KeptTrainings(
        folder / ("trainings" if pretraining is None else f"trainings-after-{pretraining.key}"),
        partial(train_model.predict_with, pretraining=pretraining),
    )

    def predict(
        samples: GraphSamples, parts: npt.NDArray[np.int8], *, model: str, epochs: int, seed: int
    ) -> npt.NDArray[np.float64]:
        settings = replace(
            base, model=model, epochs=epochs, seed=seed, mixed_precision=mixed_precision and model != TREES
        )
        return trainings.predict(samples, parts, settings)

    report = run_protocol(
        samples,
        predict,
        ProtocolSettings(
            epochs=epochs, long_epochs=long_epochs, seed=seed, seeds=seeds, family_groups=leave_families_out
        ),
        noise=find_noise(selection.choose(labels), labels),
        provenance={
            "command": command or "dippm.evaluate_dippm",
            "labels": describe_file(data),
            **({} if pretraining is None else {"learned first": pretraining.describe()}),
            "width": hidden,
            "learning rate": learning_rate,
            "schedule of the learning rate": ONE_CYCLE,
            "graphs in a step": base.batch_size,
            "dropout": base.dropout,
            "mixed precision": mixed_precision,
            "software": find_versions(),
        },
        on_run=on_run,
    )
    return DippmEvaluation(report=report, files=_write(report, folder, is_pretrained=pretraining is not None))


def _write(report: DippmReport, folder: Path, *, is_pretrained: bool) -> tuple[Path, ...]:
    from dippm.evaluation.dippm_plots import draw_plots
    from dippm.evaluation.dippm_sections import describe_report, title_of_report

    return write_report(
        folder,
        f"dippm_{report.dataset.device} {report.dataset.conditions}{' pretrained' if is_pretrained else ''}",
        title=title_of_report(report),
        sections=describe_report(report),
        plots=draw_plots(report),
        figures=report.to_dict(),
    )
