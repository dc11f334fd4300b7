"""What a call or a training step costs in money, where the user says what a device costs by the hour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dippm.devices import DeviceSpec, find_device
from dippm.errors import DippmError, UsageError, quote
from dippm.predictors.prediction import Prediction, format_figure, round_figures

__all__ = ["Price", "parse_prices", "price_entry", "price_per_sample"]

_MS_PER_HOUR = 3.6e6
_MILLION = 1e6
# Of any currency; what a call costs stays a number then.
_LEAST, _MOST = 1e-9, 1e12


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """A price in the user's own currency.

    Args:
        per_hour: Of the device, as the user gave it.
        per_call: Of one call, in training of one step.
        per_sample: Of one sample; a step of several accumulated batches has the samples of all of them.
    """

    per_hour: float
    per_call: float
    per_sample: float

    @classmethod
    def of(cls, prediction: Prediction, per_hour: float) -> Price:
        """The price of what a prediction is about, on a device that does nothing else and never waits for data."""
        per_call = per_hour * prediction.latency_ms / _MS_PER_HOUR
        samples = prediction.batch * prediction.conditions.accumulation
        return cls(per_hour=per_hour, per_call=per_call, per_sample=per_call / samples)

    def __str__(self) -> str:
        per_million = format_figure(self.per_sample * _MILLION)
        return f"{per_million} for a million samples, {format_figure(self.per_hour)} for an hour"

    def to_dict(self) -> dict[str, float]:
        """The price for JSON."""
        return {
            "per_hour": self.per_hour,
            "per_call": round_figures(self.per_call),
            "per_sample": round_figures(self.per_sample),
        }


def parse_prices(prices: Mapping[str, float] | None, devices: Sequence[DeviceSpec]) -> dict[str, float]:
    """Prices by the canonical names of the devices that they are for.

    Args:
        prices: Price per hour by the name of a device, as forgiving as any name of a device; None for none.
        devices: The devices asked about; one may go without a price.

    Raises:
        UsageError: ``price.invalid`` where one is no number from 1e-9 to 1e12, ``price.unused`` where one is for a
            device that is not asked about, ``price.repeated`` where a device has two.
    """
    found: dict[str, float] = {}
    names = {device.name for device in devices}
    for given, price in (prices or {}).items():
        if isinstance(price, bool) or not isinstance(price, int | float) or not _LEAST <= price <= _MOST:
            raise UsageError(
                f"A price per hour must be from {_LEAST:g} to {_MOST:g}. Got {quote(price)} for '{given}'.",
                code="price.invalid",
            )
        name = _canonical(given, devices)
        if name not in names:
            raise UsageError(
                f"There is a price for '{given}', but the devices are {', '.join(sorted(names))}.",
                code="price.unused",
                cure="Give prices for the devices that are asked about.",
            )
        if name in found:
            raise UsageError(f"There are two prices for '{name}'.", code="price.repeated")
        found[name] = float(price)
    return found


def price_entry(price: Price | None) -> dict[str, object]:
    """The ``price`` of an answer's JSON; nothing where there is none."""
    return {} if price is None else {"price": price.to_dict()}


def price_per_sample(price: Price | None) -> float:
    """What answers are sorted by, the cheapest first: one without a price comes last."""
    return math.inf if price is None else price.per_sample


def _canonical(name: str, devices: Sequence[DeviceSpec]) -> str | None:
    try:
        return find_device(name, own=devices).name
    except DippmError:
        return None
