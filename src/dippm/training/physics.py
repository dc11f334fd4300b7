"""Fit predictor 0's few rates and its intervals on published measurements.

``python -m dippm.training.physics --models 260 --seed 0 --cache FOLDER`` rebuilds the shipped artefact from the
measured tables:

1. *Rates*: least squares on ``log(predicted / measured)`` of whole image models in inference (RTX 3090 and RTX 4090,
   amp, both layouts, PyTorch 2.4), robust to outliers. Models are drawn by seed and divided in three: fit, calibration,
   test. All rows of a model are in one part. The rates of depthwise kernels that few models have follow from those.
2. *Intervals*: the 90 % quantile of the absolute log error on the calibration part (split conformal prediction); for
   devices without labels, of a fit that never saw the device it is tested on.
3. *Power*: a start, in the place of which ``python -m dippm.training.published_power`` puts what it fits when all rates
   are known. Until then the labels name none of power.
4. *Memory*: the spreads are given. ``python -m dippm.evaluation.inference_fits`` chooses them on which batches fitted
   24 GB and which did not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions, Layout
from dippm.costs.energy import PowerModel
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.kernels.model import KernelModel, load_kernel_model
from dippm.costs.latency import break_down_latency
from dippm.costs.precision import Precision
from dippm.costs.rates import Rates
from dippm.costs.workload import Workload, WorkloadAt
from dippm.datasets.graph_cache import GraphCache, build_graphs
from dippm.datasets.imports.timm import labels_of_timm_rows
from dippm.datasets.location import data_folder
from dippm.datasets.software_graphs import as_measured, software_of
from dippm.datasets.store.label import Label
from dippm.datasets.timm_tables import TimmRow, read_timm_tables
from dippm.devices import DeviceSpec, find_device
from dippm.errors import MissingExtraError
from dippm.graph import Graph
from dippm.measuring.measurement import Outcome
from dippm.predictors.calibration import ARTEFACT_PATH, Calibration

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "TRACED_EVERYWHERE",
    "Item",
    "conformal_quantile",
    "describe_errors",
    "divide",
    "fit_rates",
    "log_errors",
    "main",
    "read_items",
]

FloatArray = npt.NDArray[np.float64]

_LOG = logging.getLogger(__name__)
_TORCH_VERSION = "240"
_COVERAGE = 0.9
_PARTS = (0.4, 0.7)
# Start, lowest and highest value of every rate that is fitted. The bounds are those of physics: nothing passes a peak
# rate by more than a consumer board's clock passes its data sheet's, and a kernel starts in microseconds.
_BOUNDS: dict[str, tuple[float, float, float]] = {
    "tensor_gemm": (0.8, 0.3, 1.0),
    "tensor_conv": (0.8, 0.3, 1.0),
    "nchw_shuffle": (0.8, 0.05, 2.0),
    # Dao, "FlashAttention-2" (2023): 50 - 73 % of the peak in the forward pass on an A100.
    "attention": (0.6, 0.1, 0.73),
    "direct_conv": (0.3, 0.02, 1.0),
    "direct_conv_nhwc": (0.2, 0.02, 1.0),
    "stream": (0.95, 0.5, 1.2),
    "norm": (1.0, 0.5, 1.3),
    "move": (0.9, 0.3, 1.2),
    "pool": (0.8, 0.3, 1.2),
    "gap_us": (2.0, 1.0, 5.0),
    "cache_gain": (2.5, 1.5, 5.0),
}
#: What these rows do not tell, and what PyTorch's kernels have in common on every card, as traces on an H100 and an
#: H200 say it: see :data:`dippm.training.architecture.TRACED`.
TRACED_EVERYWHERE = {
    "join": 0.95,
    "join_cycles": 1.2,
    "join_block_cycles": 155.0,
    "pool_element_cycles": 2.4,
    "pool_tap_cycles": 0.2,
}
# Fitted afterwards, on the rows in which such kernels take this share of the time or more: elsewhere they would make up
# for the errors of others. The models that were drawn for the shipped rates have one with the slow kernels of cuDNN and
# none with enough of PyTorch's own, whose rate stays where it starts. With all other rates held, and each group of
# models fitted alone, it comes to 0.036 on ConvMixer, MixNet and FastViT, and to 0.028 or 0.029 on MixNet, FastViT and
# GhostNetV2, on MobileNet, MnasNet, FBNet and small EfficientNets, and on InceptionNeXt, EdgeNeXt, Xception, MobileOne.
_DEPTHWISE_BOUNDS: dict[str, tuple[float, float, float]] = {
    "own_depthwise": (0.03, 0.005, 0.2),
    "wide_depthwise_nhwc": (0.01, 0.002, 0.2),
}
_DEPTHWISE_SHARE = 0.1
# Rough figures, until the power is fitted.
_POWER = PowerModel(idle=0.2, running_pj=25.0, flop_pj=4.0, tensor_pj=3.0, byte_pj=35.0)
_POWER_SPREAD = 0.35
# See Calibration.context_margin_high_mb.
_CONTEXT_MARGIN_HIGH_MB = 900.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Item:
    """One measured row with all of its work laid out."""

    row: TimmRow
    device: DeviceSpec
    plan: KernelPlan
    at: WorkloadAt

    @property
    def conditions(self) -> Conditions:
        """Conditions of the measurement."""
        return Conditions(precision=Precision.AMP, layout=Layout(self.row.layout))


def predict_ms(items: Sequence[Item], rates: Rates, kernels: KernelModel) -> FloatArray:
    """Latency of every row, ms."""
    return np.array(
        [
            break_down_latency(
                item.plan, item.at, devices=[item.device], conditions=item.conditions, rates=rates, kernels=kernels
            )[0].latency_ms[0]
            for item in items
        ]
    )


def log_errors(items: Sequence[Item], rates: Rates, kernels: KernelModel) -> FloatArray:
    """``log(predicted / measured)`` of every row."""
    measured = np.array([item.row.step_time_ms for item in items])
    result: FloatArray = np.log(predict_ms(items, rates, kernels) / measured)
    return result


def fit_rates(
    items: Sequence[Item],
    kernels: KernelModel,
    *,
    evaluations: int,
    bounds: Mapping[str, tuple[float, float, float]] | None = None,
    others: Rates | None = None,
) -> Rates:
    """Rates that fit measured rows best, within their physical bounds.

    Args:
        items: Measured rows.
        kernels: Learned kernel times.
        evaluations: Steps of the least-squares solver.
        bounds: Start, lowest and highest value of every rate to fit; None for those of inference.
        others: Where the rates that are not fitted come from; None for those of traces, and the defaults.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError as exc:
        raise MissingExtraError(package="scipy", extra="train", purpose="fit the rates") from exc
    bounds = _BOUNDS if bounds is None else bounds
    fixed = Rates().changed(TRACED_EVERYWHERE) if others is None else others
    names = list(bounds)
    start, low, high = (np.log([bound[place] for bound in bounds.values()]) for place in range(3))

    def rates_of(logarithms: FloatArray) -> Rates:
        values = {name: float(np.exp(value)) for name, value in zip(names, logarithms, strict=True)}
        return fixed.changed(values)

    def residuals(logarithms: FloatArray) -> FloatArray:
        errors = log_errors(items, rates_of(logarithms), kernels)
        _LOG.info("  mean |log error| %.4f", float(np.mean(np.abs(errors))))
        return errors

    solution = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=evaluations, diff_step=0.05
    )
    fitted = rates_of(solution.x)
    return fitted.changed({name: float(f"{getattr(fitted, name):.4g}") for name in names})


def _fit_all(items: Sequence[Item], kernels: KernelModel, *, evaluations: int) -> Rates:
    rates = fit_rates(items, kernels, evaluations=evaluations)
    without = rates.changed(dict.fromkeys(_DEPTHWISE_BOUNDS, 1.0))
    share = 1.0 - predict_ms(items, without, kernels) / predict_ms(items, rates, kernels)
    chosen = [item for item, own in zip(items, share.tolist(), strict=True) if own >= _DEPTHWISE_SHARE]
    if not chosen:
        return rates
    _LOG.info("fitting depthwise kernels on %d rows", len(chosen))
    return fit_rates(chosen, kernels, evaluations=evaluations, bounds=_DEPTHWISE_BOUNDS, others=rates)


def conformal_quantile(scores: FloatArray) -> float:
    """The quantile of held-out scores that covers a new one in 90 % of cases."""
    count = len(scores)
    rank = min(math.ceil((count + 1) * _COVERAGE), count)
    return float(np.sort(scores)[rank - 1])


def read_items(
    rows: Sequence[TimmRow],
    names: Sequence[tuple[str, int]],
    cache: GraphCache,
    *,
    jobs: int,
    lay_out: Callable[[Graph, Label], KernelPlan],
) -> dict[tuple[str, int], list[Item]]:
    """Measured rows of some models, those apart that cannot be read for every batch.

    Args:
        rows: Rows of one mode and release.
        names: Names and image sizes of the models.
        cache: Their graphs; those that it lacks are read.
        jobs: Processes that read models.
        lay_out: Kernels of a graph as it was measured.
    """
    labels = {
        (label.recipe.architecture.removeprefix("zoo:timm:"), label.recipe.inputs.positional[0].shape[-1]): label
        for label in labels_of_timm_rows(rows)
        if label.measurement.outcome is Outcome.OK
    }
    build_graphs([labels[name].recipe for name in names], cache, jobs=jobs)
    by_model: dict[tuple[str, int], list[TimmRow]] = {}
    for row in rows:
        by_model.setdefault((row.model, row.image_size), []).append(row)
    items = {}
    for name in names:
        label = labels[name]
        cached = cache.load(label.recipe.model_key, batch=label.recipe.batch)
        if cached is None or cached.graph.fixed_batch is not None:
            _LOG.warning("left out %s at %d", *name)
            continue
        plan = lay_out(as_measured(cached.graph, label), label)
        items[name] = [
            Item(row=row, device=find_device(row.device), plan=plan, at=plan.work.at([row.batch]))
            for row in by_model[name]
        ]
    return items


def _lay_out(graph: Graph, label: Label) -> KernelPlan:
    software, precision = software_of(label.measurement.software.framework), label.configuration.conditions.precision
    work = Workload.from_graph(graph, precision, keeps_casts=software.keeps_casts)
    return KernelPlan.from_workload(work, software=software)


def describe_errors(errors: FloatArray) -> dict[str, float]:
    """Rows, mean and median absolute percentage error of log errors."""
    relative = np.abs(np.expm1(errors))
    return {
        "rows": len(errors),
        "mape_percent": round(100 * float(relative.mean()), 2),
        "median_ape_percent": round(100 * float(np.median(relative)), 2),
    }


def divide(
    items: Mapping[tuple[str, int], list[Item]],
) -> tuple[tuple[list[Item], list[Item], list[Item]], dict[str, int]]:
    """Rows to fit on, to calibrate with and to test on, by model in the order given, and the models of each part."""
    kept = list(items)
    cuts = [0, *(int(len(kept) * part) for part in _PARTS), len(kept)]
    fit, calibration, test = (
        [item for name in kept[start:stop] for item in items[name]] for start, stop in pairwise(cuts)
    )
    counts = dict(zip(("fit", "calibration", "test"), np.diff(cuts).tolist(), strict=True))
    return (fit, calibration, test), counts


def build(
    *,
    models: int,
    seed: int,
    evaluations: int,
    memory_spread: float,
    memory_spread_low: float,
    context_margin_mb: float,
    cache: Path,
    jobs: int,
) -> Calibration:
    """Run the whole fit.

    Args:
        models: Models drawn from the tables.
        seed: Seed of the draw and of the division.
        evaluations: Steps of the least-squares solver.
        memory_spread: How far the interval of the memory beside context and weights reaches upwards, as a logarithm.
        memory_spread_low: How far it reaches downwards.
        context_margin_mb: Assumed uncertainty of the CUDA context, MiB; the tables have no label for it.
        cache: Folder of graphs; models that it lacks are read.
        jobs: Processes that read models.
    """
    folder = data_folder()
    kernels = load_kernel_model()
    rows = [
        row
        for row in read_timm_tables(folder / "timm")
        if row.mode == "inference" and row.runtime == "eager" and row.torch_version == _TORCH_VERSION
    ]
    names = sorted({(row.model, row.image_size) for row in rows})
    random.Random(seed).shuffle(names)  # noqa: S311 - a draw of models, not a secret
    items = read_items(rows, names[:models], GraphCache(cache), jobs=jobs, lay_out=_lay_out)
    (fit, calibration, test), counts = divide(items)
    _LOG.info("fitting on %d rows", len(fit))
    rates = _fit_all(fit, kernels, evaluations=evaluations)
    held_out = log_errors(calibration, rates, kernels)
    tested = log_errors(test, rates, kernels)
    spread = conformal_quantile(np.abs(held_out))

    elsewhere = []
    devices = sorted({item.device.name for item in fit})
    for device in devices:
        _LOG.info("leaving out %s", device)
        others = _fit_all([item for item in fit if item.device.name != device], kernels, evaluations=evaluations)
        unseen = [item for item in calibration if item.device.name == device]
        elsewhere.append(conformal_quantile(np.abs(log_errors(unseen, others, kernels))))

    coverage = float(np.mean(np.abs(tested) <= spread))
    tables = sorted((folder / "timm").glob("*.csv"))
    return Calibration(
        version="0.1",
        rates=rates,
        power=_POWER,
        measured_devices=tuple(devices),
        measured_precisions=(Precision.AMP.value,),
        latency_spread=round(spread, 4),
        latency_spread_elsewhere=round(max(elsewhere), 4),
        power_spread=_POWER_SPREAD,
        memory_spread=memory_spread,
        memory_spread_low=memory_spread_low,
        context_margin_mb=context_margin_mb,
        context_margin_high_mb=_CONTEXT_MARGIN_HIGH_MB,
        labels=(
            "timm benchmark tables: image models on RTX 3090 and RTX 4090, inference, amp, PyTorch 2.4, CUDA 12.4; "
            "memory by which of their batches fitted 24 GB; "
            "kernels on A100, V100, T4, P100, P4, FP32, PyTorch 2.1, CUDA 12.1"
        ),
        provenance={
            "command": (
                f"python -m dippm.training.physics --models {models} --seed {seed} --evaluations {evaluations} "
                f"--memory-spread {memory_spread} --memory-spread-low {memory_spread_low} --cache FOLDER"
            ),
            "seed": seed,
            "data_sha256": hashlib.sha256(b"".join(path.read_bytes() for path in tables)).hexdigest(),
            "models": counts,
            "fit": describe_errors(log_errors(fit, rates, kernels)),
            "test": describe_errors(tested),
            "test_interval_coverage_percent": round(100 * coverage, 1),
            "spread_device_left_out": dict(zip(devices, [round(value, 4) for value in elsewhere], strict=True)),
            "memory_spread": "by how much more, and less, it may need: python -m dippm.evaluation.inference_fits",
            "context_margin_mb": "assumed, not measured",
        },
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: fit, write the artefact, print its provenance."""
    parser = argparse.ArgumentParser(description="Fit predictor 0 on the measured tables.")
    parser.add_argument("--models", type=int, default=260)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluations", type=int, default=8)
    parser.add_argument("--memory-spread", type=float, default=0.23, help="see dippm.evaluation.inference_fits")
    parser.add_argument("--memory-spread-low", type=float, default=0.0, help="see dippm.evaluation.inference_fits")
    parser.add_argument("--context-margin-mb", type=float, default=160.0)
    parser.add_argument("--cache", type=Path, default=Path("dippm-trained/graphs"), help="folder of graphs")
    parser.add_argument("--jobs", type=int, default=1, help="processes that read models")
    parser.add_argument("--out", type=Path, default=ARTEFACT_PATH)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    calibration = build(
        models=options.models,
        seed=options.seed,
        evaluations=options.evaluations,
        memory_spread=options.memory_spread,
        memory_spread_low=options.memory_spread_low,
        context_margin_mb=options.context_margin_mb,
        cache=options.cache,
        jobs=options.jobs,
    )
    calibration.write(options.out)
    sys.stdout.write(json.dumps(asdict(calibration), indent=1) + "\n")


if __name__ == "__main__":
    main()
