"""Speed of the shipped predictor on graphs that are parsed already; writes ``docs/reports/prediction_speed.md``.

    .venv/bin/python benchmarks/prediction_speed.py --graphs FOLDER

FOLDER is a graph cache, such as ``python -m dippm.training.additive`` fills. Figures of one table come from one run on
one machine: compare the ratios.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path

import dippm
from dippm.costs import MemoryTimeline, Workload, reserved_bytes
from dippm.costs.conditions import Optimizer
from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.datasets.graph_cache import GraphCache
from dippm.graph import Graph

HERE = Path(__file__).resolve().parent
MODELS = (
    "resnet50", "resnet152", "resnext50_32x4d", "regnety_032", "vgg16", "inception_v3", "densenet121", "hrnet_w18",
    "efficientnet_b0", "mobilenetv3_large_100", "vit_base_patch16_224", "mixer_b16_224",
    "swin_tiny_patch4_window7_224", "convnext_base", "coatnet_0_rw_224", "maxvit_tiny_tf_224",
)  # fmt: skip
FIRST_BATCH = 16
LATER_BATCHES = (1, 3, 5, 8, 12, 24, 33, 48, 64, 96, 128)
SWEEP_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
SWEEP_DEVICES = ("A100", "V100", "T4", "A10", "A30", "L4", "H100", "RTX 4090")
PROCESSES = 2
WARM_MS = 5.0
START = """
import time
import dippm
from dippm.predictors.physics import PhysicsPredictor
start = time.process_time()
PhysicsPredictor.load()
print(1e3 * (time.process_time() - start))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is asked about a graph."""

    name: str
    device: str
    precision: str
    mode: str = "inference"
    runtime: str = "eager"

    def ask(self, graph: Graph, batch: int) -> None:
        """Ask at one batch."""
        dippm.predict(graph, batch=batch, **self._options)

    def ask_each(self, graphs: Sequence[Graph], batch: int) -> None:
        """Ask about many graphs in one call."""
        dippm.predict_each(graphs, batch=batch, **self._options)

    @property
    def _options(self) -> dict[str, str]:
        return {"device": self.device, "precision": self.precision, "mode": self.mode, "runtime": self.runtime}


QUESTIONS = (
    Question(name="inference, amp, RTX 3090 (network)", device="RTX 3090", precision="amp"),
    Question(name="inference, amp, A100 (two networks)", device="A100", precision="amp"),
    Question(name="inference, fp32, A100 (plain sum)", device="A100", precision="fp32"),
    Question(name="compiled, amp, RTX 4090 (network)", device="RTX 4090", precision="amp", runtime="compile"),
    Question(name="training, amp, RTX 3090 (network)", device="RTX 3090", precision="amp", mode="training"),
    Question(name="training, fp32, A100 (plain sum)", device="A100", precision="fp32", mode="training"),
)


def main() -> None:
    """Run all measurements, print the report and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=Path, required=True, help="folder of a graph cache")
    parser.add_argument("--report", type=Path, default=HERE.parent / "docs" / "reports" / "prediction_speed.md")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--distinct", type=int, default=1000, help="graphs of the bulk measurement")
    options = parser.parse_args()
    sections = [
        _head(options.rounds),
        _single(options.rounds),
        _allocator(options.rounds),
        _bulk(options.graphs, distinct=options.distinct),
    ]
    report = "\n\n".join(sections) + "\n"
    options.report.write_text(report, encoding="utf-8")
    print(report)


def _head(rounds: int) -> str:
    loads = [float(subprocess.check_output([sys.executable, "-c", START], text=True)) for _ in range(rounds)]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        "# Speed of predictions\n\n"
        "Written by `python benchmarks/prediction_speed.py --graphs FOLDER`. All graphs are parsed already, and the\n"
        "artefacts loaded. Figures of one table come from one run on one machine: compare the ratios.\n\n"
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {platform.machine()}, {platform.system()}; "
        f"dippm {version('dippm')}, numpy {version('numpy')}, onnxruntime {version('onnxruntime')}. Load average of\n"
        f"the machine when the run began: {load} (1, 5 and 15 minutes).\n\n"
        f"Loading the predictor's artefacts, imports apart: {statistics.median(loads):.0f} ms of CPU time (median of "
        f"{rounds} processes)."
    )


def _single(rounds: int) -> str:
    rows, waits = [], []
    medians: dict[str, list[list[float]]] = {question.name: [] for question in QUESTIONS}
    for model in MODELS:
        row = [model]
        for question in QUESTIONS:
            graph = dippm.load(f"timm:{model}", mode=question.mode)
            question.ask(replace(graph), FIRST_BATCH)
            # A graph that is equal and not the same was never seen.
            firsts, laters, agains = [], [], []
            for _ in range(rounds):
                fresh = replace(graph)
                firsts.append(_clock(question, fresh, FIRST_BATCH))
                laters += [_clock(question, fresh, batch) for batch in LATER_BATCHES]
                agains += [_clock(question, fresh, batch) for batch in LATER_BATCHES]
            first, later, again = (statistics.median(cpu for cpu, _ in each) for each in (firsts, laters, agains))
            waits += [wall / cpu for cpu, wall in laters if cpu > 0]
            medians[question.name].append([first, later, again])
            row += [f"{first:.0f}", f"{later:.1f}", f"{again:.1f}"]
        rows.append([row[0], f"{len(graph.nodes):,}", *row[1:]])
        print(*rows[-1], file=sys.stderr, flush=True)
    heads = [f"{question.name}: {when}" for question in QUESTIONS for when in ("first", "later", "again")]
    return (
        "## One prediction, ms of CPU time\n\n"
        "First: nothing is known of the graph. Later: the same graph at a batch that was not asked for. Again: at a\n"
        "batch that was, so that what the allocator holds is known; it is kept for all devices alike. Medians over\n"
        f"{len(LATER_BATCHES)} batches and {rounds} rounds.\n\n"
        + _table(("model", "operators", *heads), rows)
        + "\n\nThe median of these models, the slowest, and how many take at most 5 ms:\n\n"
        + _table(("conditions", *_SUMMARY), [(name, *_summarise(each)) for name, each in medians.items()])
        + f"\n\nWall time over CPU time, median: {statistics.median(waits):.2f}."
    )


_SUMMARY = tuple(f"{when}: {what}" for when in ("later", "again") for what in ("median", "slowest", "within 5 ms"))


def _summarise(medians: Sequence[Sequence[float]]) -> Iterator[str]:
    """Cells of a row below ``_SUMMARY``; of each model the medians of first, later and again."""
    for values in list(zip(*medians, strict=True))[1:]:
        within = sum(value <= WARM_MS for value in values)
        yield from (f"{statistics.median(values):.1f}", f"{max(values):.1f}", f"{within} of {len(values)}")


def _allocator(rounds: int) -> str:
    settings, rows = TrainingSettings(optimizer=Optimizer.MOMENTUM, precision=Precision.AMP), []
    for model in MODELS:
        step = make_training_graph(dippm.load(f"timm:{model}", mode="training"), settings)
        timeline = MemoryTimeline.from_workload(Workload.from_graph(step.graph, step.precision))
        times = []
        for _ in range(rounds):
            # One that is equal and not the same: of this one no answer is kept.
            fresh = replace(timeline)
            reserved_bytes(fresh, [FIRST_BATCH])
            for batch in LATER_BATCHES:
                start = time.process_time()
                reserved_bytes(fresh, [batch])
                times.append(1e3 * (time.process_time() - start))
        rows.append(
            (model, f"{len(timeline.event_piece) - len(timeline.node_start):,}", f"{statistics.median(times):.1f}")
        )
    return (
        "## The caching allocator of a training step, amp, ms of CPU time\n\n"
        "Part of each later prediction: what the step takes and gives back is followed through the allocator, event\n"
        "by event. On a device that the step nearly fills it is followed once or twice more.\n\n"
        + _table(("model", "events", "ms"), rows)
    )


def _bulk(folder: Path, *, distinct: int) -> str:
    keys = list(itertools.islice(GraphCache(folder).keys(), distinct))
    rows = []
    # Spawned, as a program would: a fork shares what this process has loaded.
    with get_context("spawn").Pool(PROCESSES) as pool:
        for place, question in enumerate(QUESTIONS):
            for name, work in (
                ("distinct graphs, one batch each", _ask_distinct),
                ("distinct graphs, one batch and one call each", _ask_distinct_one_by_one),
                (f"{len(MODELS)} known graphs, one new batch at a time", _ask_later),
                (f"{len(MODELS)} known graphs, one known batch at a time", _ask_again),
                ("one graph, 16 batches x 8 devices at a time", _sweep),
            ):
                tasks = [(place, str(folder), part) for part in _split(keys)]
                done, wall, cpu = _in_parallel(pool, work, tasks)
                figures = (f"{done:,}", f"{done / wall:,.0f}", f"{PROCESSES * done / cpu:,.0f}")
                rows.append((question.name.partition(" (")[0], name, *figures))
                print(*rows[-1], file=sys.stderr, flush=True)
    return f"## Predictions per second, {PROCESSES} processes\n\n" + _table(
        ("conditions", "what", "predictions", "per second of wall time", f"per {PROCESSES} seconds of CPU time"), rows
    )


def _split(keys: Sequence[str]) -> list[Sequence[str]]:
    return [keys[part::PROCESSES] for part in range(PROCESSES)]


Task = tuple[int, str, Sequence[str]]
Done = tuple[int, float, float]


def _in_parallel(pool: Pool, work: Callable[[Task], Done], tasks: list[Task]) -> tuple[int, float, float]:
    """Predictions of all processes, the wall time of the slowest, and the CPU time of all, seconds."""
    done, wall, cpu = zip(*pool.map(work, tasks, chunksize=1), strict=True)
    return sum(done), max(wall), sum(cpu)


def _ask_distinct(task: Task) -> Done:
    question, graphs = _distinct(task)
    wall, cpu = time.perf_counter(), time.process_time()
    question.ask_each(graphs, FIRST_BATCH)
    return len(graphs), time.perf_counter() - wall, time.process_time() - cpu


def _ask_distinct_one_by_one(task: Task) -> Done:
    question, graphs = _distinct(task)
    wall, cpu = time.perf_counter(), time.process_time()
    for graph in graphs:
        question.ask(graph, FIRST_BATCH)
    return len(graphs), time.perf_counter() - wall, time.process_time() - cpu


def _distinct(task: Task) -> tuple[Question, list[Graph]]:
    """The question, and graphs that it was not asked about yet."""
    place, folder, keys = task
    question, cache = QUESTIONS[place], GraphCache(folder)
    entries = [cache.load(key, batch=FIRST_BATCH) for key in keys]
    graphs = [entry.graph for entry in entries if entry is not None]
    question.ask(replace(graphs[0]), 1)
    return question, graphs


def _ask_later(task: Task) -> Done:
    return _ask_batches(QUESTIONS[task[0]], rounds=1)


def _ask_again(task: Task) -> Done:
    return _ask_batches(QUESTIONS[task[0]], rounds=2)


def _ask_batches(question: Question, *, rounds: int) -> Done:
    """Ask for the same batches in every round, and clock the last one."""
    seconds = []
    for graph in _named(question):
        fresh = replace(graph)
        question.ask(fresh, FIRST_BATCH)
        for _ in range(rounds):
            clocked = [_clock(question, fresh, batch) for batch in LATER_BATCHES]
        seconds += clocked
    cpu_ms, wall_ms = (sum(each) for each in zip(*seconds, strict=True))
    return len(seconds), wall_ms / 1e3, cpu_ms / 1e3


def _sweep(task: Task) -> Done:
    question = QUESTIONS[task[0]]
    done, wall, cpu = 0, 0.0, 0.0
    for graph in _named(question):
        question.ask(graph, FIRST_BATCH)
        started, used = time.perf_counter(), time.process_time()
        answers = dippm.predict(
            graph,
            batch=SWEEP_BATCHES,
            device=SWEEP_DEVICES,
            precision=question.precision,
            mode=question.mode,
            runtime=question.runtime,
        )
        done += len(answers)
        wall += time.perf_counter() - started
        cpu += time.process_time() - used
    return done, wall, cpu


def _named(question: Question) -> Iterator[Graph]:
    return (dippm.load(f"timm:{model}", mode=question.mode) for model in MODELS)


def _clock(question: Question, graph: Graph, batch: int) -> tuple[float, float]:
    """CPU and wall time, ms."""
    cpu, wall = time.process_time(), time.perf_counter()
    question.ask(graph, batch)
    return 1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
