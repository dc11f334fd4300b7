"""Does a model fit?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Unpack, overload

from dippm.api.arguments import Batches, Devices, asks_for_one, parse_batches
from dippm.api.batched_reading import predict_as_read
from dippm.api.chosen_predictor import choose_predictor
from dippm.api.needed_memory import needed_of, rows_of_need
from dippm.api.prices import Price, parse_prices, price_entry, price_per_sample
from dippm.api.question import Options, Question, spelled_out
from dippm.devices import DeviceSpec
from dippm.placement.fit import Fit, FitVerdict
from dippm.placement.fit import fits as judge
from dippm.predictors.prediction import Prediction, round_figures, text_row

__all__ = ["DeviceFit", "fits"]

_ORDER = {FitVerdict.YES: 0, FitVerdict.UNSURE: 1, FitVerdict.NO: 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFit:
    """Whether a model fits one device at one batch.

    Args:
        device: Canonical name of the device.
        batch: Samples per call.
        fit: The verdict and the figures behind it.
        prediction: The prediction that it follows from.
        price: What the run costs, where a price of the device was given.
    """

    device: str
    batch: int
    fit: Fit
    prediction: Prediction
    price: Price | None = None

    @property
    def verdict(self) -> FitVerdict:
        """Yes, no, or unsure."""
        return self.fit.verdict

    @property
    def margin_mb(self) -> float:
        """Capacity less the upper end of what is needed, MiB."""
        return self.fit.margin_mb

    @property
    def needed_mb(self) -> tuple[float, float]:
        """Lower and upper end of the memory that is needed, MiB."""
        return self.fit.needed_mb

    @property
    def capacity_mb(self) -> float:
        """Memory that the device offers to one process, MiB."""
        return self.fit.capacity_mb

    @property
    def largest_part(self) -> str:
        """The part of the memory that decides: the largest one at the peak, such as ``"activations"``."""
        return self.prediction.largest_part

    def to_dict(self) -> dict[str, object]:
        """The answer for JSON; its prediction says under which conditions it holds, and what nobody vouches for."""
        answer: dict[str, object] = {
            "device": self.device,
            "batch": self.batch,
            "software": None if self.prediction.software is None else str(self.prediction.software),
            "fits": self.verdict.value,
            "needed_mb": [round(end, 1) for end in self.needed_mb],
            "capacity_mb": round(self.capacity_mb, 1),
            "margin_mb": round(self.margin_mb, 1),
            "largest_part": self.largest_part,
            "memory_parts_mb": {name: round_figures(value) for name, value in self.prediction.memory_parts_mb.items()},
        }
        return answer | price_entry(self.price) | {"prediction": self.prediction.to_dict()}

    def __str__(self) -> str:
        rows = [
            text_row("fits", self.verdict.value),
            *(row for row in self.prediction.figure_rows() if row.split()[0] == "memory"),
            *rows_of_need(self.prediction),
            text_row("has", f"{self.capacity_mb:,.0f}", "MiB"),
            text_row("margin", f"{self.margin_mb:+,.0f}", "MiB"),
        ]
        if self.price is not None:
            rows.append(f"  price: {self.price}")
        return "\n".join([self.prediction.title(), *rows, *self.prediction.warning_rows()])


@overload
def fits(
    model: object,
    *,
    device: str | DeviceSpec | None = None,
    batch: int = 1,
    prices: Mapping[str, float] | None = None,
    predictor: str | PathLike[str] | None = None,
    **options: Unpack[Options],
) -> DeviceFit: ...


@overload
def fits(
    model: object,
    *,
    device: Devices | None = None,
    batch: Batches = 1,
    prices: Mapping[str, float] | None = None,
    predictor: str | PathLike[str] | None = None,
    **options: Unpack[Options],
) -> list[DeviceFit]: ...


@spelled_out
def fits(
    model: object,
    *,
    device: Devices | None = None,
    batch: Batches = 1,
    prices: Mapping[str, float] | None = None,
    predictor: str | PathLike[str] | None = None,
    **options: Unpack[Options],
) -> DeviceFit | list[DeviceFit]:
    """Say whether a model fits devices or MIG slices (``"1g.5gb@A100-SXM4-40GB"``): yes, no or unsure.

    Args:
        model: As in :func:`dippm.predict`.
        device: A device, a MIG slice, or a list of them; an A100, or the device of the predictor, when left out.
        batch: Samples per call, or a list.
        prices: Price of a device per hour by its name, in any currency; some may be left out.
        predictor: As in :func:`dippm.predict`: the folder's own device and conditions stand for what is left out. A
            network that :func:`dippm.train` wrote has intervals for models and batches like those of its labels.
        **options: ``framework``, ``input``, ``precision``, ``mode``, ``optimizer``, ``accumulation``,
            ``checkpointing``, ``layout``, ``runtime``, ``software`` and ``trust``, as in :func:`dippm.predict`.

    Returns:
        One answer for one device and one batch; else a list, all batches of the first device first, without devices
        that cannot run what is asked, which a warning of all predictions names. With prices the list is in the order in
        which to try: what fits first, then what may, then what does not; the cheapest per sample first among those,
        devices without a price last.

    Raises:
        UsageError: As :func:`dippm.predict`, or a price is wrong.
        UnsupportedError: As :func:`dippm.predict`; ``prediction.no_interval`` where the predictor gives no interval of
            the memory, ``device.unknown`` where the catalogue does not list its device.
        DippmError: As :func:`dippm.predict`.
    """
    question = Question(**options)
    batches = parse_batches(batch)
    chosen = choose_predictor(predictor, question, device=device)
    specs = chosen.devices
    per_hour = parse_prices(prices, chosen.asked_devices)
    predictions = predict_as_read(
        chosen, lambda size: question.read(model, mode=chosen.reading_mode, batch_hint=size), batches
    )
    owners = [spec for spec in specs for _ in batches]
    answers = [
        DeviceFit(
            device=spec.name,
            batch=prediction.batch,
            fit=judge(needed_of(prediction), spec.capacity_mb),
            prediction=prediction,
            price=Price.of(prediction, per_hour[spec.name]) if spec.name in per_hour else None,
        )
        for spec, prediction in zip(owners, predictions, strict=True)
    ]
    if asks_for_one(device, batch):
        return answers[0]
    if per_hour:
        answers.sort(key=lambda answer: (_ORDER[answer.verdict], price_per_sample(answer.price)))
    return answers
