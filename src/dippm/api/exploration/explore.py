"""The verb: search a space of models for the best trade-offs between what they cost and what they are worth."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dippm.api.arguments import parse_batches, parse_conditions, parse_devices
from dippm.api.deciding_versions import find_versions
from dippm.api.exploration.exploration import Exploration
from dippm.api.exploration.journal import Journal
from dippm.api.exploration.objectives import Limit, Objective, parse_limits, parse_objectives
from dippm.api.exploration.run import Run
from dippm.api.exploration.search import Sampler, make_search, parse_sampler
from dippm.api.exploration.space import Space, load_space
from dippm.api.exploration.trials import Terms
from dippm.api.exploration.workers import Workers
from dippm.costs.conditions import Mode
from dippm.devices import DeviceSpec
from dippm.errors import DippmError, MissingExtraError, UsageError

__all__ = ["explore"]

_MOST_TRIALS = 100_000
# What builds and reads the models decides their figures, numpy the way of the search.
_PACKAGES = (
    "numpy", "onnx", "torch", "torchvision", "timm", "transformers", "tensorflow", "keras", "paddlepaddle",
)  # fmt: skip


def explore(
    space: str | os.PathLike[str] | Space,
    *,
    objectives: str | Sequence[str],
    device: str | DeviceSpec = "A100",
    trials: int = 300,
    batch: int = 1,
    precision: str = "fp32",
    mode: str = "inference",
    optimizer: str | None = None,
    layout: str = "nchw",
    runtime: str = "eager",
    sampler: str = "surrogate",
    seed: int = 0,
    limits: Mapping[str, float] | Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    resume: bool = False,
    on_trial: Callable[[int, int, str], None] | None = None,
) -> Exploration:
    """Search a space of models for its Pareto front.

    The same seed gives the same trials with any number of jobs. A trial is a point that was not tried before: one that
    the sampler repeats is answered from what is known and does not count. A model that cannot be built, read or
    predicted is a trial with an error, and never on the front.

    Args:
        space: A file, see :func:`~dippm.api.exploration.space.load_space`, whose code is run where it is Python; or a
            :class:`~dippm.api.exploration.space.Space`.
        objectives: What to weigh against each other: ``"latency,memory,params:max"`` or a list of such, of
            ``latency_ms``, ``step_time_ms``, ``energy_j``, ``memory_mb``, ``params``, ``macs`` and ``score``, the
            space's own. Less is better, unless it ends in ``:max``.
        device: The device's name or specification.
        trials: How many points to build and predict, 1 to 100,000.
        batch: Samples per call.
        precision: See :func:`dippm.predict`.
        mode: See :func:`dippm.predict`.
        optimizer: See :func:`dippm.predict`.
        layout: See :func:`dippm.predict`.
        runtime: See :func:`dippm.predict`.
        sampler: ``"surrogate"``, which learns the space's figures as it goes, or Optuna's ``"nsga2"``, ``"tpe"`` or
            ``"random"``.
        seed: Where chance starts, 0 or more.
        limits: What to keep to: ``["memory_mb=4864", "params>=1e6"]`` or a mapping of metrics to the most allowed.
            They are compared with the bad end of the interval: breaking one after all is the costly mistake.
        out: Folder for the trials, the front, a plot and a page, new, empty or of an exploration; None writes nothing.
        jobs: Processes that build and predict.
        resume: Go on with what lies in the folder, unfinished or with more trials; what is known there is not
            predicted again, and the table is that of an undisturbed run. The space must be a file, which is found out
            to be unchanged, as are device, versions and artefacts; that what its code reads besides is unchanged is for
            you to vouch.
        on_trial: Called after each trial with their number, their total and a remark.

    Returns:
        The trials and their front.

    Raises:
        UsageError: An argument or the space is wrong, or the folder holds another exploration.
        UnsupportedError: The device is unknown, or the runtime does not go with the mode.
        MissingExtraError: A package for the sampler, the space or the plot is not installed.
        DippmError: ``explore.all_failed`` where no model at all could be predicted.
    """
    if not _is_whole(trials, 1, _MOST_TRIALS) or not _is_whole(seed, 0, 2**32 - 1):
        raise UsageError(
            f"The trials must be a whole number from 1 to {_MOST_TRIALS:,} and the seed one from 0 to 2^32 - 1. Got "
            f"{trials!r} and {seed!r} instead.",
            code="explore.settings",
        )
    if resume and out is None:
        raise UsageError("There is nothing to go on with, for no folder is given.", code="explore.settings")
    found = space if isinstance(space, Space) else load_space(space)
    if resume and found.path is None:
        raise UsageError(
            "An exploration of a space made in Python cannot be gone on with: nothing tells that its functions are "
            "what they were.",
            code="explore.settings",
            cure="Write the space to a file.",
        )
    (size,), (spec,), chosen = (
        parse_batches(batch, is_single=True),
        parse_devices(device, is_single=True),
        parse_sampler(sampler),
    )
    conditions = parse_conditions(precision=precision, mode=mode, optimizer=optimizer, layout=layout, runtime=runtime)
    options = {"precision": precision, "mode": mode, "layout": layout, "runtime": runtime}
    if optimizer is not None:
        options["optimizer"] = optimizer
    terms = Terms(device=spec, batch=size, options=options)
    has_score, is_training = found.score is not None, conditions.mode is Mode.TRAINING
    weighed = parse_objectives(objectives, is_training=is_training, has_score=has_score)
    kept_to = parse_limits(limits, is_training=is_training, has_score=has_score)
    search = make_search(chosen, found.choices, weighed, kept_to, seed=seed)
    plan = _plan(found, terms, weighed, kept_to, sampler=chosen, seed=seed, trials=trials)
    folder = None if out is None else Path(out)
    if folder is not None:
        _need_matplotlib()
    with ExitStack() as stack:
        journal = (
            None if folder is None else stack.enter_context(Journal(folder, plan, resume=resume, space_file=found.path))
        )
        workers = stack.enter_context(Workers(found, terms, jobs=jobs))
        run = Run(search, workers, journal, kept_to, total=trials, on_trial=on_trial)
        run.go()
        if all(trial.has_failed for trial in run.trials):
            example = run.trials[0].outcome
            raise DippmError(
                f"None of the {len(run.trials)} models could be predicted. The first: {example.error}",
                code="explore.all_failed",
            )
        exploration = Exploration.of(
            run.trials,
            space=found,
            objectives=weighed,
            limits=kept_to,
            plan=plan,
            is_exhausted=run.is_exhausted,
            notes=() if journal is None else journal.notes,
        )
        if folder is None:
            return exploration
        from dippm.api.exploration.files import write_files

        return write_files(exploration, folder)


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _need_matplotlib() -> None:
    """Find out that the plot cannot be drawn before the search rather than after."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError(package="matplotlib", extra="explore", purpose="draw the trade-offs")


def _plan(
    space: Space,
    terms: Terms,
    objectives: Sequence[Objective],
    limits: Sequence[Limit],
    *,
    sampler: Sampler,
    seed: int,
    trials: int,
) -> dict[str, Any]:
    """All that decides the table of trials, as plain values."""
    device = hashlib.sha256(repr(asdict(terms.device)).encode()).hexdigest()
    return {
        "schema": 2,
        "space": space.sha256 or hashlib.sha256(repr(space.choices).encode()).hexdigest(),
        "objectives": [str(each) for each in objectives],
        "limits": [str(each) for each in limits],
        "device": terms.device.name,
        "device_sha256": device,
        "batch": terms.batch,
        "conditions": dict(terms.options),
        "trials": trials,
        "sampler": sampler.value,
        "seed": seed,
        "versions": find_versions([*_PACKAGES, *(() if sampler is Sampler.SURROGATE else ("optuna",))]),
    }
