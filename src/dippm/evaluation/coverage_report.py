"""The report on which models of the libraries become a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dippm.evaluation.model_coverage import HF_ARCHITECTURES, ReadingNote
from dippm.evaluation.report_page import Section, Table, render_markdown

__all__ = ["render_coverage"]

_SLOWEST = 10
_SAME = 1e-3
_LIBRARIES = {"timm": "timm", "torchvision": "torchvision", "hf": "transformers"}


def render_coverage(notes: Sequence[ReadingNote], *, environment: str, command: str) -> str:
    """The report as Markdown.

    Args:
        notes: What became of each model.
        environment: Versions and machine, in a sentence.
        command: What writes the report.
    """
    present = [library for library in _LIBRARIES if any(note.library == library for note in notes)]
    sections = [
        Section(
            title="Counts",
            text=[
                f"Written by `{command}`. Every model is built without weights and read at three batch sizes, which "
                "prove that its sizes follow the batch.",
                environment,
            ],
            tables=[_counts(notes, present), _seconds(notes, present)],
        ),
        _failures(notes),
        _fixed(notes),
        _macs(notes),
    ]
    if "hf" in present:
        sections.append(_architectures({note.name: note for note in notes}))
    return render_markdown("Model coverage", sections, {}) + "\n"


def _counts(notes: Sequence[ReadingNote], libraries: Sequence[str]) -> Table:
    rows = []
    for library in libraries:
        own = [note for note in notes if note.library == library]
        read = [note for note in own if note.is_read]
        rows.append(
            [
                _LIBRARIES[library],
                str(len(own)),
                str(len(read)),
                str(sum(bool(note.unsupported_ops) for note in read)),
                str(sum(not note.fixed_batch_reason for note in read)),
                str(len(own) - len(read)),
            ]
        )
    header = ["library", "models", "read", "with unsupported operators", "for every batch size", "named with a reason"]
    return Table(header=header, rows=rows)


def _seconds(notes: Sequence[ReadingNote], libraries: Sequence[str]) -> Table:
    rows = []
    for library in libraries:
        read = [note for note in notes if note.library == library and note.is_read]
        for what, seconds in (
            ("built by the library", [note.build_s for note in read]),
            ("read", [note.read_s for note in read]),
        ):
            quantiles = np.quantile(seconds, [0.5, 0.9, 1.0]) if seconds else np.zeros(3)
            rows.append([f"{_LIBRARIES[library]}, {what}", *(f"{value:.1f}" for value in quantiles)])
    slowest = sorted(notes, key=lambda note: -note.read_s)[:_SLOWEST]
    named = ", ".join(f"{note.name} {note.read_s:.0f}" for note in slowest)
    return Table(header=["", "median", "90 %", "most"], rows=rows, caption=f"Seconds per model (most: {named})")


def _failures(notes: Sequence[ReadingNote]) -> Section:
    rows = [[note.name, f"{note.code}: {note.message.partition('. ')[0]}"] for note in notes if not note.is_read]
    unsupported = [
        [note.name, ", ".join(f"{name} ({count})" for name, count in note.unsupported_ops.items())]
        for note in notes
        if note.unsupported_ops
    ]
    tables = [Table(header=["model", "reason"], rows=[[name, _without_paths(text)] for name, text in rows])]
    if unsupported:
        tables.append(Table(header=["model", "operators"], rows=unsupported, caption="Unsupported operators"))
    return Section(title="Models that are named with a reason", tables=tables)


def _without_paths(text: str) -> str:
    return " ".join(word.rpartition("site-packages/")[2] if "site-packages/" in word else word for word in text.split())


def _fixed(notes: Sequence[ReadingNote]) -> Section:
    rows = [
        [note.name, _without_paths(note.fixed_batch_reason.partition(". ")[0])]
        for note in notes
        if note.is_read and note.fixed_batch_reason
    ]
    return Section(
        title="Models that are read for one batch size at a time",
        text=["They are answered for the batch size that is asked for."],
        tables=[Table(header=["model", "why"], rows=rows)],
    )


def _macs(notes: Sequence[ReadingNote]) -> Section:
    counted = [note for note in notes if note.counted_macs]
    ratios = [(note, note.macs / (note.counted_macs or 1)) for note in counted]
    other = [(note, ratio) for note, ratio in ratios if abs(ratio - 1.0) > _SAME]
    exact = sum(note.macs == note.counted_macs for note in counted)
    return Section(
        title="Multiply-accumulates beside PyTorch's counter",
        text=[
            "One model of each family (the module of its library that defines it), the one with the fewest operators, "
            "where it runs under `torch.utils.flop_counter`. The counter knows convolutions, matrix products and "
            "attention.",
            f"{len(counted)} models: {exact} equal to the last unit, {len(counted) - len(other)} within 0.1 %.",
        ],
        tables=[
            Table(
                header=["model", "ours, millions", "PyTorch's, millions", "ratio"],
                rows=[
                    [note.name, f"{note.macs / 1e6:.1f}", f"{(note.counted_macs or 0) / 1e6:.1f}", f"{ratio:.4f}"]
                    for note, ratio in sorted(other, key=lambda item: -abs(item[1] - 1.0))
                ],
                caption="Those that differ by more",
            )
        ]
        if other
        else [],
    )


def _architectures(notes: Mapping[str, ReadingNote]) -> Section:
    rows = []
    for kind, names in HF_ARCHITECTURES.items():
        for name in names:
            note = notes.get(f"hf:{name}")
            if note is not None and note.is_read:
                rows.append(
                    [name, kind, str(note.nodes), f"{note.parameters / 1e6:,.1f}", f"{note.macs / 1e9:,.1f}",
                     f"{note.read_s:.1f}"]
                )  # fmt: skip
    header = ["architecture", "kind", "operators", "parameters, millions", "MACs, billions", "seconds"]
    return Section(
        title="Architectures of transformers",
        text=["With the sizes that each class has by default. Steps of generation have a prompt, or a cache, of the "
              "number of tokens behind the sign."],
        tables=[Table(header=header, rows=rows)],
    )  # fmt: skip
