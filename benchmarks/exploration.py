"""Explorations of the example spaces against random samples; writes ``docs/reports/exploration.md``.

    .venv/bin/python benchmarks/exploration.py --known FOLDER [--seeds 3] [--other-seeds 1]

FOLDER keeps every prediction, so that a run that was cut goes on, and equal points are predicted once for all searches:
they are deterministic. What a search proposes does not depend on it.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dippm.api.exploration.choices import Choices, count_points, draw, key_of
from dippm.api.exploration.front import costs_of, is_not_dominated
from dippm.api.exploration.journal import Journal
from dippm.api.exploration.objectives import Objective, parse_objectives
from dippm.api.exploration.run import Run
from dippm.api.exploration.search import Sampler, make_search
from dippm.api.exploration.space import Space, load_space
from dippm.api.exploration.trials import Outcome, Terms, Trial, evaluate
from dippm.devices import find_device

HERE = Path(__file__).resolve().parent
REPORT = HERE.parent / "docs" / "reports" / "exploration.md"
SPACES = HERE.parent / "examples" / "spaces"
SAMPLES, SAMPLES_SEED = 1000, 1000
EVALUATIONS = 300
VOLUME_SAMPLES = 200_000
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A space, what its models are predicted for, and what is weighed."""

    name: str
    device: str
    batch: int
    precision: str
    objectives: tuple[str, ...]


TASKS = (
    Task(
        name="mobilenet_cells", device="T4", batch=8, precision="fp32",
        objectives=("latency,score:max", "latency,memory,score:max"),
    ),
    Task(
        name="transformer", device="A100", batch=1, precision="bf16",
        objectives=("latency,score:max", "latency,memory,score:max"),
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Score:
    """How one search did."""

    sampler: str
    seed: int
    front: int
    dominated: int
    needed: int | None
    volume: float
    cpu_s: float


class Known:
    """Predicts points, each once."""

    def __init__(self, space: Space, terms: Terms, journal: Journal) -> None:
        self._space, self._terms, self._journal = space, terms, journal
        self.predicted, self.cpu_s = 0, 0.0

    def predict(self, points: Sequence[Choices], keep: Callable[[int, Outcome], None]) -> None:
        """Predict points that are not known."""
        for at, point in enumerate(points):
            key = key_of(point)
            if key not in self._journal.known:
                start = time.process_time()
                self._journal.keep(key, evaluate(self._space, point, self._terms))
                self.cpu_s += time.process_time() - start
                self.predicted += 1
            keep(at, self._journal.known[key])


def sample(space: Space, known: Known) -> list[Trial]:
    """Points at random, none twice."""
    generator = np.random.default_rng(SAMPLES_SEED)
    points = {}
    while len(points) < SAMPLES:
        point = draw(space.choices, generator)
        points[key_of(point)] = point
    outcomes: dict[int, Outcome] = {}
    known.predict(list(points.values()), outcomes.__setitem__)
    return [Trial.of(at, point, outcomes[at], ()) for at, point in enumerate(points.values())]


def is_dominated(costs: FloatArray, front: FloatArray) -> npt.NDArray[np.bool_]:
    """Which rows some row of the front equals or dominates."""
    reached = np.zeros(len(costs), dtype=bool)
    for row in front:
        reached |= (costs >= row).all(axis=1)
    return reached


def volume_of(front: FloatArray, box: tuple[FloatArray, FloatArray]) -> float:
    """Share of a box that the front dominates, by samples at even odds: two digits after the comma are sure."""
    samples = np.random.default_rng(0).uniform(*box, size=(VOLUME_SAMPLES, front.shape[1]))
    return float(is_dominated(samples, front).mean())


def front_of(costs: FloatArray) -> FloatArray:
    """Rows that no other dominates."""
    return costs[is_not_dominated(costs)]


def logarithmic(costs: FloatArray, objectives: Sequence[Objective]) -> FloatArray:
    """Costs with logarithms of what is never negative, so that ratios count."""
    return np.stack(
        [
            column if each.is_maximised else np.log(column)
            for each, column in zip(objectives, costs.T, strict=True)
        ],
        axis=1,
    )  # fmt: skip


def explore(
    known: Known, space: Space, objectives: Sequence[Objective], sampler: Sampler, seed: int, samples: Sequence[Trial]
) -> Score:
    """Search, and compare with the random samples."""
    search = make_search(sampler, space.choices, objectives, (), seed=seed)
    run = Run(search, known, None, (), total=EVALUATIONS, on_trial=None)
    start, predicting = time.process_time(), known.cpu_s
    run.go()
    own_s = time.process_time() - start - (known.cpu_s - predicting)
    costs = costs_of([trial for trial in run.trials if not trial.has_failed], objectives)
    pool = costs_of(samples, objectives)
    front = front_of(costs)
    needed = next((at for at in range(10, len(costs) + 1, 10) if is_dominated(pool, front_of(costs[:at])).all()), None)
    scaled = logarithmic(pool, objectives)
    ends = np.concatenate([scaled, logarithmic(costs, objectives)])
    box = (ends.min(axis=0), scaled.max(axis=0))
    return Score(
        sampler=sampler.value,
        seed=seed,
        front=len(front),
        dominated=int(is_dominated(pool, front).sum()),
        needed=needed,
        # Beside the volume that the samples themselves dominate, in the same box.
        volume=volume_of(logarithmic(front, objectives), box) / max(volume_of(front_of(scaled), box), 1e-9),
        cpu_s=own_s,
    )


def report(task: Task, folder: Path, *, seeds: int, other_seeds: int) -> Iterator[str]:
    """The section of one space."""
    space = load_space(SPACES / f"{task.name}.py")
    device = find_device(task.device)
    terms = Terms(device=device, batch=task.batch, options={"precision": task.precision})
    plan = {"space": space.sha256, "device": device.name, "batch": task.batch, "precision": task.precision}
    place = folder / f"{task.name}-{hashlib.sha256(repr(sorted(plan.items())).encode()).hexdigest()[:8]}"
    with Journal(place, plan, resume=place.exists()) as journal:
        known = Known(space, terms, journal)
        samples = sample(space, known)
        yield f"## {task.name}\n"
        yield (
            f"{count_points(space.choices):.2g} points; {device.name}, batch {task.batch}, {task.precision}. "
            f"Random samples: seed {SAMPLES_SEED}, {sum(trial.has_failed for trial in samples)} of {SAMPLES} failed.\n"
        )
        for named in task.objectives:
            objectives = parse_objectives(named, is_training=False, has_score=True)
            fine = [trial for trial in samples if not trial.has_failed]
            own_front = len(front_of(costs_of(fine, objectives)))
            yield f"Objectives `{named}`: {own_front} of the random samples are on the samples' own front.\n"
            yield (
                "| sampler | seed | points on the front | samples dominated | left | evaluations needed | volume | "
                "search, s |"
            )
            yield "|---|---:|---:|---:|---:|---:|---:|---:|"
            for sampler in Sampler:
                for seed in range(seeds if sampler is Sampler.SURROGATE else other_seeds):
                    score = explore(known, space, objectives, sampler, seed, fine)
                    print(task.name, named, score, flush=True)
                    yield (
                        f"| {score.sampler} | {score.seed} | {score.front} | {score.dominated / len(fine):.1%} | "
                        f"{len(fine) - score.dominated} | {score.needed or 'more'} | {score.volume:.2f} | "
                        f"{score.cpu_s:.1f} |"
                    )
            yield ""
        if known.predicted:
            each_s = known.cpu_s / known.predicted
            yield (
                f"Building and predicting a model took {1e3 * each_s:.0f} ms of CPU time, the mean of "
                f"{known.predicted:,}: {EVALUATIONS} of them {EVALUATIONS * each_s:.0f} s beside the search's own.\n"
            )


def main() -> None:
    """Write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--known", type=Path, required=True, help="folder of predictions")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of the default sampler")
    parser.add_argument("--other-seeds", type=int, default=1, help="seeds of the others")
    given = parser.parse_args()
    lines = [
        "# Exploration against random samples\n",
        "Written by `python benchmarks/exploration.py --known FOLDER`. Every figure is of `dippm`'s own predictions.\n",
        f"dippm {version('dippm')}, numpy {version('numpy')}, optuna {version('optuna')}, torch {version('torch')}.\n",
        f"Each search has {EVALUATIONS} evaluations; its front is compared with {SAMPLES:,} random samples of the "
        "space. A sample is dominated where a point of the front is at least as good in every objective. *Evaluations "
        "needed*: how many it took until all samples were dominated. *Volume*: what the front dominates of the box "
        "between the best of all and the worst of the samples, latency and memory as logarithms, over what the samples "
        "dominate of it: above 1 the search is ahead. *Search*: CPU time of the search itself for all its evaluations, "
        "on one core; building and predicting come on top, and both tell what equal time buys.\n",
    ]
    for task in TASKS:
        lines += report(task, given.known, seeds=given.seeds, other_seeds=given.other_seeds)
    REPORT.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
