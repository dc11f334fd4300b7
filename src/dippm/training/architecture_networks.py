"""Train networks of one architecture on captured and traced calls.

``python -m dippm.training.architecture_networks --labels data/labels/h200/labels.parquet
--traces data/labels/h200/traces.parquet --layers data/labels/h200/layers.parquet
--layer-traces data/labels/h200/layer-traces.parquet --cache graphs`` fits the additive networks on calls of its GPUs,
or with ``--mode training`` on their training steps, in all precisions and layouts that were traced:

1. *Rows*: every traced call. Learned of captured ones is the least that was seen of them but for the launch of the
   graph, between CUDA events in the mean or in the fastest run, as a host only adds; tested is the mean. Of eager ones,
   which wait for the host, the time of their kernels counts, as a captured graph runs them (see
   :mod:`dippm.costs.captured_time`). It does too of captured calls of a device that other processes hold as well
   (source ``dippm-shared``), and of those that scatter by more than a tenth; groups of split convolutions are side by
   side there as the plain sum has them. Training steps are all eager, and have the least gap between two kernels.
2. *Rates*: those of the plain sum at inference, of training steps that of batch norms too, from their traces; but the
   architecture's own for small kernels, memory and its cache, and of calls also for windows of pooling, blocks of group
   norms, planes of resized images and groups of split depthwise convolutions, of which few labels tell, and blocks and
   elements of concatenations: DenseNets that were left out were met within 14 % without the latter, and within 8 with
   them. Steps of families that were left out were met better without any of these, 11.3 % off for 12.4, and calls with
   its own for convolutions too worse, 11.3 % off for 10.7.
3. *Loss*: the error of the call, and those of its operators by their share of it, which together take what it takes.
4. *Convolutions*, of calls: a network of their own corrects the plain sum first (see
   :mod:`dippm.models.convolution`). It learns from each of them that was traced, and from layers that were measured by
   themselves, of which there are more than traces have different ones. The others learn on top of it, from calls alone.
5. *Parts, networks*: as in :mod:`dippm.training.additive`, but that they see sizes as ramps too, since cuDNN takes
   other kernels from some sizes on, and that some things are kept from them. No kernel asks whether the rows of a
   product are a multiple of 8, and as a mark of the batch that made steps of nine samples faster than those of eight.
   None asks for the rank of a tensor, and a layer norm alone took four times as long on two dimensions as it takes.
   One operator in ten hears nothing of others in a step of the training: each has a time of its own, and what stands
   beside it tells little more. Families that were left out were met within 9.1 % for it, where they had been within
   9.4, half of them within 5.4 and 6.0; and within 7.7 since the plain sum knows what the heads of VGG and small
   recurrent layers take, which was read off all traces, those of the families that are left out among them.
6. *Interval*: the same, on families that were left out in turn, and on models, by as many networks as are shipped;
   those of training steps were last made when it was by one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from dippm.costs.captured_time import UNTRACED
from dippm.costs.conditions import Mode, Runtime
from dippm.costs.host import GRAPH_LAUNCH_MS
from dippm.costs.rates import architecture_of
from dippm.costs.split_convolutions import share_side_by_side
from dippm.datasets.captured_operators import captured_ms
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.label_graphs import build_label_graphs, load_label_graph
from dippm.datasets.selection import is_disturbed
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import read_parquet
from dippm.datasets.store.traces import read_traces
from dippm.devices import find_device
from dippm.features.physical import PhysicalPlan
from dippm.measuring.operator_run import OperatorRun
from dippm.predictors.additive import MORE_THAN_LEAST
from dippm.predictors.additive_artefact import ARTEFACT_FOLDER, manifest_path, write_tensors
from dippm.predictors.calibration import Calibration
from dippm.training.additive import FOLDS, describe_errors, train_additive
from dippm.training.additive_fit import AdditiveSettings
from dippm.training.additive_protocol import HeldOut, predict_families, predict_models
from dippm.training.additive_samples import AdditiveSamples, build_additive_samples, graph_that_ran, shared_rates
from dippm.training.architecture import HEIRS
from dippm.training.layer_samples import add_layers
from dippm.training.traced_operators import TracedOperators, match_operators

__all__ = [
    "SHARED_SOURCE",
    "add_traced_arguments",
    "architecture_settings",
    "captured_wall_ms",
    "is_captured_alone",
    "load_traced_samples",
    "main",
    "measured_errors",
    "read_traced_samples",
    "traced_operators",
]

FloatArray = npt.NDArray[np.float64]

_LOG = logging.getLogger(__name__)

SHARED_SOURCE = "dippm-shared"
"""Source of labels that were taken while other processes held the device too."""

_EAGER_GAP_MS = 1e-3
# What lies between two CUDA events beside the kernels of a captured graph and their gaps: the median of 57 calls of up
# to a millisecond.
_EVENTS_MS = 0.007
# Split convolutions have two groups at least, with four kernels for each in NCHW.
_FEWEST_KERNELS = 8
# What kernels take side by side at least of what they take one after the other.
_LEAST_SIDE_BY_SIDE = 0.15
# Steps are few, and each has three times the operators of a call.
_EPOCHS = {Mode.INFERENCE: 40, Mode.TRAINING: 90}
# Layers were measured as they run in calls, and none on the way back.
_CONVOLUTION_EPOCHS = {Mode.INFERENCE: 40, Mode.TRAINING: 0}

# Rates that are those of the plain sum on the architecture.
_LAWS = {
    Mode.INFERENCE: (
        "gap_us",
        "stream",
        "cache_bytes_per_cycle",
        "element_cycles",
        "join_cycles",
        "join_block_cycles",
        "pool_element_cycles",
        "pool_tap_cycles",
        "group_norm_cycles",
        "plane_cycles",
        "group_kernel_us",
        "side_by_side",
        "head_cycles",
    ),
    Mode.TRAINING: ("gap_us", "stream", "cache_bytes_per_cycle", "plane_cycles", "head_cycles"),
}
_PASSED_OVER = ("rows_by_8", "input_rank", "output_rank")
_RAMPS = 6
_DEAF = 0.1


def load_traced_samples(
    labels: Sequence[Label],
    traces: Mapping[str, Sequence[OperatorRun]],
    *,
    mode: Mode,
    cache: Path,
    folder: Path,
    jobs: int = 1,
    layers: Sequence[Label] = (),
    layer_traces: Mapping[str, Sequence[OperatorRun]] = MappingProxyType({}),
) -> AdditiveSamples:
    """Traced calls as samples, and layers behind them.

    Args:
        labels: All labels.
        traces: The operators of each traced label, by its key.
        mode: Inference or training.
        cache: Folder of the graph cache; graphs that it lacks are read.
        folder: Where the arrays are kept.
        jobs: Processes that read graphs.
        layers: Models whose layers were measured by themselves.
        layer_traces: The operators of these layers.
    """
    chosen = [
        _as_busy(label, traces[label.key])
        for label in labels
        if traces.get(label.key)
        and label.measurement.latency_ms is not None
        and label.configuration.conditions.mode is mode
    ]
    for failure in build_label_graphs([*chosen, *layers], GraphCache(cache), jobs=jobs):
        _LOG.warning("left out %s: %s", failure.recipe.architecture, failure.reason)
    rates = shared_rates()
    for device in {label.measurement.device for label in chosen}:  # of one architecture
        own = Calibration.read().rates.on(find_device(device))
        rates = rates.changed({name: getattr(own, name) for name in _LAWS[mode]})
    samples = build_additive_samples(chosen, cache=cache, folder=folder, parameters_m={}, rates=rates)
    graphs = GraphCache(cache)
    as_timed = {label.key: label for label in labels}
    learned_ms = np.array(
        [
            _least_ms(as_timed[label.key], busy_ms)
            for label, busy_ms in zip(samples.labels, samples.measured_ms.tolist(), strict=True)
        ]
    )
    operators = [
        traced_operators(label, traces[label.key], graphs, call_ms=call_ms)
        for label, call_ms in zip(samples.labels, learned_ms.tolist(), strict=True)
    ]
    traced = _join(operators)
    made_of = [samples.key.encode(), *(getattr(traced, each.name).tobytes() for each in fields(traced))]
    key = hashlib.sha256(b"".join([*made_of, learned_ms.tobytes()])).hexdigest()[:16]
    samples = replace(samples, traced=traced, learned_ms=learned_ms, key=key)
    if not layers:
        return samples
    return add_layers(samples, layers, layer_traces, cache=cache, folder=folder)


def add_traced_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of a command line that :func:`read_traced_samples` reads."""
    parser.add_argument("--labels", type=Path, nargs="+", required=True, help="labels of an architecture's GPUs")
    parser.add_argument("--traces", type=Path, nargs="+", required=True, help="Parquet files of their traces")
    parser.add_argument(
        "--layers", type=Path, nargs="*", default=[], help="labels of models whose layers were measured"
    )
    parser.add_argument("--layer-traces", type=Path, nargs="*", default=[], help="Parquet files of these layers")
    parser.add_argument("--cache", type=Path, default=Path("dippm-trained/graphs"), help="folder of graphs")
    parser.add_argument("--folder", type=Path, default=Path("dippm-trained/additive"), help="folder of arrays and fits")


def read_traced_samples(options: argparse.Namespace, *, mode: Mode, jobs: int = 1) -> AdditiveSamples:
    """The samples of the files that are named on a command line."""
    return load_traced_samples(
        [label for path in options.labels for label in read_parquet(path)],
        {key: runs for path in options.traces for key, runs in read_traces(path).items()},
        mode=mode,
        cache=options.cache,
        folder=options.folder,
        jobs=jobs,
        layers=[label for path in options.layers for label in read_parquet(path)],
        layer_traces={key: runs for path in options.layer_traces for key, runs in read_traces(path).items()},
    )


def traced_operators(
    label: Label, runs: Sequence[OperatorRun], graphs: GraphCache, *, call_ms: float | None = None
) -> dict[tuple[int, ...], tuple[float, int]]:
    """Of each group of operators, by their classes: the mean time, ms, and how many groups are like it.

    Args:
        label: The call.
        runs: Its trace.
        graphs: Cache that holds its graph.
        call_ms: What the call takes; that of the label where None is given.
    """
    cached = load_label_graph(label, graphs)
    if cached is None:
        return {}
    conditions = label.configuration.conditions
    graph = graph_that_ran(cached.graph, label)
    plan = PhysicalPlan.from_graph(graph, conditions.precision, conditions.runtime)
    matches = list(match_operators(graph, label.recipe.batch, runs))
    run_ms = _run_ms(label, runs)
    call_ms = call_ms or label.measurement.latency_ms or float(run_ms.sum())
    if _is_captured(label):
        _run_side_by_side(run_ms, list(_split_runs(runs)), call_ms)
    run_ms *= call_ms / float(run_ms.sum())
    total_ms: dict[tuple[int, ...], float] = defaultdict(float)
    count: dict[tuple[int, ...], int] = defaultdict(int)
    for matched in matches:
        classes = tuple(sorted(own for node in matched.nodes if (own := int(plan.class_of[node])) >= 0))
        total_ms[classes] += sum(run_ms[place] for place in matched.runs)
        count[classes] += 1
    return {classes: (total_ms[classes] / count[classes], count[classes]) for classes in total_ms if classes}


def _split_runs(runs: Sequence[OperatorRun]) -> dict[int, int]:
    """Places of convolutions in a trace that have kernels for each of several groups, and how many groups these are."""
    found = {}
    for place, run in enumerate(runs):
        if len(run.kernels) > _FEWEST_KERNELS and run.name == "aten::conv2d" and len(run.input_shapes) > 1:
            (_, channels, *_), (_, read, *_), *_ = run.input_shapes
            groups = channels // read
            if 1 < groups < len(run.kernels):
                found[place] = groups
    return found


def _run_side_by_side(run_ms: FloatArray, split: list[int], call_ms: float) -> None:
    """Give kernels that run side by side what is left of a captured call when all others have run.

    A trace, in which they run one after the other, does not tell what they take; see
    :mod:`dippm.costs.split_convolutions`.

    Args:
        run_ms: Time of each operator's kernels; changed in place.
        split: Which operators have such kernels.
        call_ms: Time of the call.

    Shapes:
        run_ms: [n].
    """
    split_ms = float(run_ms[split].sum())
    if split_ms > 0.0:
        others_ms = float(run_ms.sum()) - split_ms
        run_ms[split] *= np.clip((call_ms - others_ms) / split_ms, _LEAST_SIDE_BY_SIDE, 1.0)


def architecture_settings(mode: Mode) -> AdditiveSettings:
    """Settings of the networks of calls or of training steps."""
    return AdditiveSettings(
        epochs=_EPOCHS[mode],
        passed_over=_PASSED_OVER,
        ramps=_RAMPS,
        deaf=_DEAF,
        convolution_epochs=_CONVOLUTION_EPOCHS[mode],
    )


def _as_busy(label: Label, runs: Sequence[OperatorRun]) -> Label:
    """The label with the time for which the device is busy, which scatters as much as it did."""
    measurement = label.measurement
    busy_ms = _unlaunched_ms(label) / MORE_THAN_LEAST if is_captured_alone(label) else _kernels_ms(label, runs)
    std_ms, wall_ms = measurement.latency_std_ms, measurement.latency_ms or math.nan
    scaled_ms = None if std_ms is None else std_ms * busy_ms / wall_ms
    return replace(label, measurement=replace(measurement, latency_ms=busy_ms, latency_std_ms=scaled_ms))


def _unlaunched_ms(label: Label) -> float:
    """Time of a captured call but for the launch of its graph."""
    wall_ms = label.measurement.latency_ms or math.nan
    return max(wall_ms - GRAPH_LAUNCH_MS, wall_ms / 2.0)


def _least_ms(label: Label, busy_ms: float) -> float:
    """The least time for which a captured call was seen to keep the device busy, of others the one that they have.

    Args:
        label: The call as it was timed.
        busy_ms: The time that :func:`_as_busy` gave it.
    """
    if not is_captured_alone(label):
        return busy_ms
    unlaunched_ms, measurement = _unlaunched_ms(label), label.measurement
    events_ms = (measurement.device_time_ms or math.nan) - _EVENTS_MS
    fastest_ms = (measurement.latency_min_ms or math.nan) - GRAPH_LAUNCH_MS
    return max(float(np.nanmin([unlaunched_ms, events_ms, fastest_ms])), unlaunched_ms / 2.0)


def _kernels_ms(label: Label, runs: Sequence[OperatorRun]) -> float:
    """What the kernels of a trace take, and the gaps between them."""
    run_ms = _run_ms(label, runs)
    if _is_captured(label) and (split := _split_runs(runs)):
        most = Calibration.read().rates.on(find_device(label.measurement.device)).side_by_side
        place, groups = list(split), np.array(list(split.values()), dtype=float)
        run_ms[place] *= share_side_by_side(run_ms[place], groups, most=most)
    return float(run_ms.sum())


def _run_ms(label: Label, runs: Sequence[OperatorRun]) -> FloatArray:
    """Time of each operator's kernels in a captured graph, of a training step in an eager one, gaps included, [n]."""
    if label.configuration.conditions.mode is Mode.TRAINING:
        return np.array([run.duration_us / 1e3 + len(run.kernels) * _EAGER_GAP_MS for run in runs])
    result = np.array([captured_ms(run) for run in runs])
    # No kernel of these waits for the one before.
    split = list(_split_runs(runs)) if _is_captured(label) else []
    result[split] = [UNTRACED * runs[place].duration_us / 1e3 for place in split]
    return result


def is_captured_alone(label: Label) -> bool:
    """Whether the call was measured as a whole, on a device and a host that nothing else held."""
    return _is_captured(label) and label.source != SHARED_SOURCE and not is_disturbed(label.measurement)


def captured_wall_ms(busy_ms: FloatArray) -> FloatArray:
    """Wall time in the mean of captured calls that keep the device busy for so long at least; [...] as is given."""
    return MORE_THAN_LEAST * busy_ms + GRAPH_LAUNCH_MS


def _is_captured(label: Label) -> bool:
    return label.configuration.conditions.runtime is Runtime.CUDA_GRAPH


def _join(samples: Sequence[Mapping[tuple[int, ...], tuple[float, int]]]) -> TracedOperators:
    operator: list[int] = []
    group: list[int] = []
    log_ms: list[float] = []
    share: list[float] = []
    members, groups = [0], [0]
    for sample in samples:
        call_ms = sum(mean_ms * count for mean_ms, count in sample.values())
        known = {classes: own for classes, own in sample.items() if own[0] > 0.0}
        for number, (classes, (mean_ms, count)) in enumerate(known.items()):
            operator += classes
            group += [number] * len(classes)
            log_ms.append(np.log(mean_ms))
            share.append(mean_ms * count / call_ms)
        members.append(len(operator))
        groups.append(len(log_ms))
    return TracedOperators(
        operator=np.array(operator, dtype=np.int64),
        group=np.array(group, dtype=np.int64),
        member_offsets=np.array(members, dtype=np.int64),
        log_ms=np.array(log_ms, dtype=np.float32),
        share=np.array(share, dtype=np.float32),
        group_offsets=np.array(groups, dtype=np.int64),
    )


def measured_errors(samples: AdditiveSamples, held: Sequence[HeldOut]) -> dict[str, float]:
    """Errors over the rows of all parts; of calls those of captured ones, whose wall time was measured.

    Args:
        samples: All samples.
        held: Predictions of their parts.
    """
    test = np.concatenate([part.test for part in held])
    predicted_ms, measured_ms = np.concatenate([part.test_ms for part in held]), samples.measured_ms[test]
    is_captured = np.array([is_captured_alone(samples.labels[row]) for row in test])
    if not is_captured.any():
        return describe_errors(predicted_ms, measured_ms)
    return describe_errors(captured_wall_ms(predicted_ms[is_captured]), captured_wall_ms(measured_ms[is_captured]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: fit, write the artefact, print its errors."""
    defaults = AdditiveSettings()
    parser = argparse.ArgumentParser(description="Train networks of one architecture on traced calls.")
    parser.add_argument("--mode", type=Mode, choices=list(Mode), default=Mode.INFERENCE)
    add_traced_arguments(parser)
    parser.add_argument("--jobs", type=int, default=1, help="processes that read models which the cache lacks")
    parser.add_argument("--members", type=int, default=defaults.members)
    parser.add_argument("--epochs", type=int, default=None, help="40 for calls, 90 for steps")
    parser.add_argument("--out", type=Path, default=ARTEFACT_FOLDER, help="folder of the artefact")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    samples = read_traced_samples(options, mode=options.mode, jobs=options.jobs)
    files = [*options.labels, *options.traces, *options.layers, *options.layer_traces]
    settings = architecture_settings(options.mode)
    settings = replace(settings, members=options.members, epochs=options.epochs or settings.epochs)
    families = predict_families(samples, settings, folds=FOLDS, folder=options.folder)
    models = predict_models(samples, settings, folds=FOLDS, folder=options.folder)
    artefact, tensors = train_additive(
        samples,
        settings,
        [*families, *models],
        data_sha256=hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest(),
        command=(
            f"python -m dippm.training.architecture_networks --mode {options.mode} "
            f"--labels {' '.join(map(str, options.labels))} --traces {' '.join(map(str, options.traces))} "
            f"--layers {' '.join(map(str, options.layers))} --layer-traces {' '.join(map(str, options.layer_traces))} "
            f"--members {options.members} --epochs {settings.epochs}"
        ),
    )
    own = architecture_of(find_device(samples.labels[0].measurement.device))
    runtimes = sorted({label.configuration.conditions.runtime.value for label in samples.labels})
    artefact = replace(
        artefact,
        runtime=Runtime.EAGER,  # whose kernels a captured graph runs
        architectures=(own, *HEIRS.get(own, ())),
        measured={**artefact.measured, "runtimes": runtimes},
        test={
            **artefact.test,
            "models_left_out": measured_errors(samples, models),
            "families_left_out": measured_errors(samples, families),
        },
    )
    path = manifest_path(artefact.regime, options.out)
    artefact.write(path)
    write_tensors(path, tensors)
    sys.stdout.write(json.dumps({"test": artefact.test, "half_widths": artefact.half_widths}, indent=1) + "\n")


if __name__ == "__main__":
    main()
