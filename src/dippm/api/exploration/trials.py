"""One trial of an exploration: a point of the space, built and predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dippm.api.exploration.choices import Choices, key_of
from dippm.api.exploration.objectives import Limit, Objective
from dippm.api.exploration.space import Space
from dippm.devices import DeviceSpec
from dippm.errors import DippmError, MissingExtraError
from dippm.predictors.prediction import Interval, NoSlice

__all__ = ["Outcome", "Terms", "Trial", "evaluate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What every trial of an exploration is predicted for.

    Args:
        device: The device.
        batch: Samples per call.
        options: The other conditions, by the names that :func:`dippm.predict` takes.
    """

    device: DeviceSpec
    batch: int
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a point.

    Args:
        values: Metric to value; empty where it failed.
        intervals: Metric to the ends of its 90 % interval, for those that have one.
        mig: Smallest MIG slice that holds it, ``""`` for none.
        no_slice: Why there is none, as a person reads it.
        warnings: What the prediction cannot vouch for.
        error_code: Code of the error, ``""`` where there was none.
        error: What went wrong, ``""`` where nothing did.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    mig: str = ""
    no_slice: str = NoSlice.UNKNOWN.value
    warnings: tuple[str, ...] = ()
    error_code: str = ""
    error: str = ""

    @property
    def mig_name(self) -> str:
        """The slice, or why there is none."""
        return self.mig or self.no_slice

    def ends(self, metric: str) -> Interval:
        """The interval of a metric; its value twice where it has none."""
        value = self.values[metric]
        return self.intervals.get(metric, (value, value))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; :meth:`from_dict` reads them back."""
        if self.error_code:
            return {"error_code": self.error_code, "error": self.error}
        return {
            "values": dict(self.values),
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "mig": self.mig,
            "no_slice": self.no_slice,
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Outcome:
        """Read what :meth:`to_dict` wrote; raises KeyError, TypeError or ValueError on anything else."""
        if "error_code" in given:
            return cls(error_code=str(given["error_code"]), error=str(given["error"]))
        return cls(
            values={str(name): _check_number(value) for name, value in given["values"].items()},
            intervals={str(name): (float(low), float(high)) for name, (low, high) in given["intervals"].items()},
            mig=str(given["mig"]),
            no_slice=str(given.get("no_slice", NoSlice.UNKNOWN)),  # journals of before it was kept lack it
            warnings=tuple(given["warnings"]),
        )


def _check_number(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A point and what became of it.

    Args:
        number: Its place in the order of the search, from 0.
        choices: What was chosen.
        outcome: What became of it.
        excess: How far each limit is passed, see :meth:`Limit.excess`; empty where it failed.
    """

    number: int
    choices: Choices
    outcome: Outcome
    excess: tuple[float, ...] = ()

    @classmethod
    def of(cls, number: int, choices: Choices, outcome: Outcome, limits: Sequence[Limit]) -> Trial:
        """A trial judged by its limits."""
        excess = () if outcome.error_code else tuple(limit.excess(outcome.ends(limit.metric)) for limit in limits)
        return cls(number=number, choices=choices, outcome=outcome, excess=excess)

    @property
    def has_failed(self) -> bool:
        """Whether the model could not be built, read or predicted."""
        return bool(self.outcome.error_code)

    @property
    def is_feasible(self) -> bool:
        """Whether it was predicted and keeps to all limits."""
        return not self.has_failed and all(each <= 0 for each in self.excess)

    @property
    def key(self) -> str:
        """Equal for equal choices."""
        return key_of(self.choices)

    def costs(self, objectives: Sequence[Objective]) -> tuple[float, ...]:
        """Values of the objectives, with a sign that makes less better; only of a trial that has not failed."""
        return tuple(
            -self.outcome.values[each.metric] if each.is_maximised else self.outcome.values[each.metric]
            for each in objectives
        )


def evaluate(space: Space, choices: Choices, terms: Terms) -> Outcome:
    """Build the model of a point and predict it; whatever is wrong with it is its outcome.

    Raises:
        MissingExtraError: A package is not installed, which no point can help.
    """
    from dippm.api.prediction import predict

    try:
        built = space.build_model(choices)
        prediction = predict(built.model, input=built.input, batch=terms.batch, device=terms.device, **terms.options)
        score = space.score_of(choices, prediction)
    except MissingExtraError:
        raise
    except DippmError as exc:
        return Outcome(error_code=exc.code, error=str(exc))
    except MemoryError:
        return Outcome(error_code="worker.memory", error="There is not enough memory for it.")
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - whatever is raised, one point must not end the others
        return Outcome(error_code="internal", error=f"{type(exc).__name__}: {exc}")
    measured = {
        "latency_ms": prediction.latency_ms,
        "step_time_ms": prediction.step_time_ms,
        "energy_j": prediction.energy_j,
        "memory_mb": prediction.memory_mb,
        "params": prediction.model.parameters,
        "macs": prediction.macs,
        "score": score,
    }
    intervals = dict(prediction.intervals)
    if prediction.step_time_ms is not None:
        intervals["step_time_ms"] = intervals["latency_ms"]
    return Outcome(
        values={name: value for name, value in measured.items() if value is not None},
        intervals=intervals,
        mig=prediction.mig or "",
        no_slice=prediction.no_slice.value,
        warnings=prediction.warnings,
    )
