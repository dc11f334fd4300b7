"""A campaign that also asks where the time goes: every row is measured, and its kernels are traced.

``python -m dippm.datasets.campaign.traced --out FOLDER --budget 500`` measures on the first CUDA device. Inference of
images runs as captured CUDA graphs, so that no row waits for the host; labels of the others are of a source of their
own, ``dippm-traced``. Models come in the stratified order of their collections and each in amp; every few of them in
other conditions too, so that whatever is reached is balanced.

Rows are appended to ``FOLDER/rows.jsonl``, one line each, and a line before each says that it was begun: started
again, the command goes on behind the row in which it ended, however that was.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

from dippm.costs.conditions import Conditions, Layout, Mode, Optimizer, Runtime
from dippm.costs.precision import Precision
from dippm.datasets.campaign.passed_over import add_first_option
from dippm.datasets.recipes.building import RecipeSource
from dippm.datasets.recipes.collections import load_collection
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import Label
from dippm.datasets.store.row import label_to_row
from dippm.measuring.bench import Bench
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Outcome
from dippm.measuring.operator_run import OperatorRun
from dippm.measuring.protocol import Plan

__all__ = ["TRACED_SOURCE", "list_tasks", "main"]

_LOG = logging.getLogger(__name__)

TRACED_SOURCE = "dippm-traced"
"""Source of labels that wait for the host of a process which traces, which tell nothing of other processes' hosts."""

_CAPTURED = Conditions(precision=Precision.AMP, runtime=Runtime.CUDA_GRAPH)
_STEP = Conditions(precision=Precision.AMP, mode=Mode.TRAINING, optimizer=Optimizer.MOMENTUM)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Share:
    """Conditions for every so many models.

    Args:
        conditions: How they are run.
        every: One in so many.
        offset: Which of them, so that shares do not fall on the same models.
    """

    conditions: Conditions
    every: int = 1
    offset: int = 0


_NHWC = Layout.NHWC
_SHARES = (
    _Share(conditions=_CAPTURED),
    _Share(conditions=replace(_CAPTURED, precision=Precision.FP32), every=6, offset=1),
    _Share(conditions=replace(_CAPTURED, layout=_NHWC), every=6, offset=3),
    _Share(conditions=replace(_CAPTURED, precision=Precision.FP16), every=10, offset=0),
    _Share(conditions=replace(_CAPTURED, precision=Precision.TF32), every=10, offset=5),
    _Share(conditions=replace(_CAPTURED, precision=Precision.AMP_BF16), every=10, offset=8),
    _Share(conditions=replace(_CAPTURED, precision=Precision.BF16), every=15, offset=7),
    _Share(conditions=_STEP, every=4, offset=2),
    _Share(conditions=replace(_STEP, precision=Precision.FP32), every=15, offset=4),
    _Share(conditions=replace(_STEP, layout=_NHWC), every=15, offset=9),
    _Share(conditions=replace(_STEP, precision=Precision.AMP_BF16), every=15, offset=14),
)
_IMAGES = ("timm-named", "dippm-zoo")
_TEXTS = "transformers"
_TEXTS_EVERY = 12
_TEXT_CONDITIONS = (
    Conditions(precision=Precision.AMP_BF16),
    replace(_STEP, precision=Precision.AMP_BF16, optimizer=Optimizer.ADAMW),
)


def list_tasks(first: Mapping[str, int] = MappingProxyType({})) -> Iterator[tuple[Recipe, Conditions]]:
    """What to measure, in order.

    Images of both collections alternate until the shorter one ends; after every few of them comes a text.

    Args:
        first: Recipes to pass over, by collection.
    """
    named, drawn, texts = (
        islice(enumerate(load_collection(name)), first.get(name, 0), None) for name in (*_IMAGES, _TEXTS)
    )
    images = chain.from_iterable(zip_longest(named, drawn))
    for place, (number, recipe) in enumerate(filter(None, images)):
        for share in _SHARES:
            if number % share.every == share.offset:
                yield recipe, share.conditions
        if place % _TEXTS_EVERY == 0 and (text := next(texts, None)) is not None:
            yield from ((text[1], conditions) for conditions in _TEXT_CONDITIONS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: measure and trace until the budget ends."""
    parser = argparse.ArgumentParser(description="Measure and trace models on a CUDA device.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the rows")
    parser.add_argument("--budget", type=float, required=True, help="time to end within, s")
    add_first_option(parser, (*_IMAGES, _TEXTS))
    parser.add_argument("--energy-share", type=float, default=0.3, help="share of the rows whose energy is taken")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    deadline_s = time.monotonic() + options.budget
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "rows.jsonl"
    done, uncapturable = _read_begun(path), _read_uncapturable(path)
    plan = Plan(warmup_runs=3, timed_runs=12, budget_s=1.0, energy_window_s=0.4, energy_share=options.energy_share)
    bench = Bench(options.device, plan, owns_process=True)
    with path.open("a", encoding="utf-8") as stream:
        if _is_cut(path):
            stream.write("\n")  # or the next line would be a part of it, and lost too
        for number, (recipe, conditions) in enumerate(list_tasks(dict(options.first))):
            if number in done:
                continue
            if recipe.architecture in uncapturable:
                conditions = replace(conditions, runtime=Runtime.EAGER)
            if time.monotonic() > deadline_s:
                return
            _write(stream, {"begun": number})
            _write(stream, {"row": number, **_measure(bench, recipe, conditions)})
            if number % 50 == 0:
                _LOG.info("%d rows, %.0f s left", number, deadline_s - time.monotonic())
            if not bench.is_usable:
                raise SystemExit("The device takes no more work from this process: start again.")


def _measure(bench: Bench, recipe: Recipe, conditions: Conditions) -> dict[str, Any]:
    source = RecipeSource(recipe)
    configuration = Configuration(batch=recipe.batch, conditions=conditions)
    (measurement,) = bench.measure(source, (configuration,))
    # PyTorch's tracer stays with a process that used it once: from then on its host launches up to 3.6 times slower.
    label = Label(recipe=recipe, configuration=configuration, measurement=measurement)
    if conditions.runtime is not Runtime.CUDA_GRAPH:
        label = replace(label, source=TRACED_SOURCE)
    row: dict[str, Any] = label_to_row(label)
    if not measurement.fits:
        return row
    began_s = time.perf_counter()
    try:
        row["trace"] = [_to_list(run) for run in bench.trace(source, configuration) if run.kernels]
    except Exception as exc:  # noqa: BLE001 - a row without a trace is a row
        row["trace_error"] = repr(exc)
    row["trace_s"] = time.perf_counter() - began_s
    return row


def _to_list(run: OperatorRun) -> list[Any]:
    kernels = [[k.name, k.launched_by, round(k.start_us, 3), round(k.duration_us, 3)] for k in run.kernels]
    return [run.name, run.input_shapes, run.scalars, run.is_backward, kernels]


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with path.open(encoding="utf-8") as stream:
            for line in stream:
                with suppress(ValueError):  # the line in which it ended
                    yield json.loads(line)


def _is_cut(path: Path) -> bool:
    """Whether the last line has no end."""
    with path.open("rb") as stream:
        stream.seek(max(path.stat().st_size - 1, 0))
        return stream.read() not in (b"", b"\n")


def _read_begun(path: Path) -> set[int]:
    """Numbers of the rows that were begun, whether or not they ended."""
    return {line["begun"] for line in _read_lines(path) if "begun" in line}


def _read_uncapturable(path: Path) -> set[str]:
    """Architectures that could not be captured; each attempt costs the process."""
    rows = (line for line in _read_lines(path) if line.get("runtime") == Runtime.CUDA_GRAPH)
    return {row["architecture"] for row in rows if row["outcome"] == Outcome.FAILED}


def _write(stream: TextIO, values: dict[str, Any]) -> None:
    stream.write(json.dumps(values, separators=(",", ":")) + "\n")
    stream.flush()


if __name__ == "__main__":
    main()
