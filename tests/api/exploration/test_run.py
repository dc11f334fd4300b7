"""The loop of an exploration, with a search and workers made up for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dippm.api.exploration.choices import Choices, key_of
from dippm.api.exploration.journal import Journal
from dippm.api.exploration.objectives import Limit
from dippm.api.exploration.run import Run
from dippm.api.exploration.trials import Outcome, Trial


def figures(width: int) -> Outcome:
    return Outcome(values={"latency_ms": width / 1024, "memory_mb": width + 0.6})


class Counting:
    """Proposes the widths 0, 1, 2 and so on, as many as there are."""

    def __init__(self, widths: int) -> None:
        self.widths = widths
        self.asked: list[int] = []
        self.known: list[set[str]] = []
        self.learned: list[Trial] = []

    def propose(self, count: int, known: set[str]) -> list[Choices]:
        first = sum(self.asked)
        self.asked.append(count)
        self.known.append(set(known))
        return [{"width": width} for width in range(first, min(first + count, self.widths))]

    def learn(self, trials: Sequence[Trial]) -> None:
        self.learned += trials


class Backwards:
    """Predicts the last point first, and may lose its way at one."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.predicted: list[Choices] = []

    def predict(self, points: Sequence[Choices], keep: Callable[[int, Outcome], None]) -> None:
        for place in reversed(range(len(points))):
            width = int(points[place]["width"])
            if width == self.fails_at:
                raise KeyboardInterrupt
            self.predicted.append(points[place])
            keep(place, figures(width))


def run_of(
    search: Counting,
    workers: Backwards,
    journal: Journal | None = None,
    *,
    total: int,
    limits: Sequence[Limit] = (),
    on_trial: Callable[[int, int, str], None] | None = None,
) -> Run:
    return Run(search, workers, journal, limits, total=total, on_trial=on_trial)


def test_trials_are_in_the_order_of_the_search_whichever_is_predicted_first() -> None:
    search, workers = Counting(1000), Backwards()
    run = run_of(search, workers, total=23)
    run.go()
    assert [trial.number for trial in run.trials] == list(range(23))
    assert [trial.choices for trial in run.trials] == [{"width": width} for width in range(23)]
    assert [trial.outcome for trial in run.trials] == [figures(width) for width in range(23)]
    assert search.learned == run.trials
    assert not run.is_exhausted
    # No more are asked for than are left, and the search is told of all that it proposed before.
    assert sum(search.asked) == 23
    assert len(search.asked) > 1
    for at, known in enumerate(search.known):
        assert known == {key_of({"width": width}) for width in range(sum(search.asked[:at]))}


def test_it_ends_where_no_new_point_is_found() -> None:
    run = run_of(Counting(12), Backwards(), total=50)
    run.go()
    assert run.is_exhausted
    assert len(run.trials) == 12


def test_limits_judge_the_trials() -> None:
    run = run_of(Counting(4), Backwards(), total=4, limits=[Limit(metric="memory_mb", bound=2.0)])
    run.go()
    assert [trial.is_feasible for trial in run.trials] == [True, True, False, False]


def test_what_is_written_down_is_not_predicted_again(tmp_path: Path) -> None:
    with Journal(tmp_path, {}, resume=False) as journal:
        for width in (0, 2):
            journal.keep(key_of({"width": width}), Outcome(error_code="internal", error="written down"))
        workers = Backwards()
        run = run_of(Counting(4), workers, journal, total=4)
        run.go()
    assert workers.predicted == [{"width": 3}, {"width": 1}]
    assert [trial.outcome.error for trial in run.trials] == ["written down", "", "written down", ""]
    assert [trial.outcome for trial in run.trials[1::2]] == [figures(1), figures(3)]


def test_every_outcome_is_written_down_at_once(tmp_path: Path) -> None:
    with Journal(tmp_path, {}, resume=False) as journal:
        run = run_of(Counting(4), Backwards(fails_at=1), journal, total=4)
        with pytest.raises(KeyboardInterrupt):
            run.go()
    with Journal(tmp_path, {}, resume=True) as again:
        assert again.known == {key_of({"width": width}): figures(width) for width in (2, 3)}


def test_progress_counts_what_is_known_and_says_what_came_out(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    with Journal(tmp_path, {}, resume=False) as journal:
        journal.keep(key_of({"width": 0}), figures(0))
        run_of(Counting(3), Backwards(), journal, total=3, on_trial=lambda *words: told.append(words)).go()
    assert told == [(2, 3, "0.00195 ms, 3 MiB"), (3, 3, "0.000977 ms, 2 MiB")]


def test_progress_names_the_error_of_a_trial_that_failed() -> None:
    class Failing(Backwards):
        def predict(self, points: Sequence[Choices], keep: Callable[[int, Outcome], None]) -> None:
            keep(0, Outcome(error_code="space.build_failed", error="too wide"))

    told: list[tuple[int, int, str]] = []
    run = run_of(Counting(1), Failing(), total=1, on_trial=lambda *words: told.append(words))
    run.go()
    assert told == [(1, 1, "space.build_failed")]
    assert run.trials[0].has_failed
