"""Training of the kernel-time networks; rebuilds the shipped artefact from the measured tables.

    python -m dippm.training.kernels --seed 0 --out src/dippm/costs/kernels/artefact --report docs/reports/kernels.md

The loss is the mean absolute error of log time, close to the mean absolute percentage error that is reported. The test
part of the shapes is never used; the validation part chose the settings in `SETTINGS` and then joined the training.
For convolutions the sweep's drift is fitted along with the network, as time added to the kernel's own.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dippm.costs.kernels.features import COLUMN_GROUPS, DEVICE_FEATURES, Features, device_features
from dippm.costs.kernels.model import ARTEFACT_DIRECTORY, ARTEFACT_VERSION
from dippm.costs.kernels.network import MEASURED, TRANSFER, Network, Perceptron, kept_columns
from dippm.costs.kernels.problems import Family, FloatArray
from dippm.costs.kernels.tile_law import TileLaw
from dippm.datasets.kernels import KernelRows, Part, SweepDrift, load_family, split_by_shape
from dippm.devices import find_device
from dippm.errors import MissingExtraError
from dippm.evaluation.kernels import KernelReport, TrainedKernels, evaluate_kernels, features_of_rows, render_markdown
from dippm.training.launch_shadow import fit_shadows
from dippm.training.one_cycle import one_cycle
from dippm.training.sweep_drift import TrainableDrift
from dippm.training.tile_law import fit_tile_law

if TYPE_CHECKING:
    import onnx
    import torch

__all__ = ["SETTINGS", "Settings", "build_artefact", "main", "to_onnx", "train_network"]

_LOG = logging.getLogger(__name__)

#: Families whose sweep drifts (see ``dippm.datasets.kernels``).
_DRIFTING = (Family.CONV,)

#: Families that a law carries to unmeasured devices, in place of a network.
_LAWFUL = (Family.BMM,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How one perceptron is trained.

    Args:
        hidden: Widths of the hidden layers.
        epochs: Passes over the training rows.
        batch: Rows per step.
        learning_rate: Peak of the one-cycle schedule.
        weight_decay: AdamW's decay.
        device_features: Device features that it sees.
        device_noise: Standard deviation of the noise on them, in standard deviations, so that unlike devices blur into
            each other.
        noise: The same for all other features.
        blind_to: Groups of columns that it does not see, from `COLUMN_GROUPS`.
    """

    hidden: tuple[int, ...] = (96, 96, 96)
    epochs: int = 40
    batch: int = 512
    learning_rate: float = 4e-3
    weight_decay: float = 1e-3
    device_features: tuple[str, ...] = DEVICE_FEATURES
    device_noise: float = 0.0
    noise: float = 0.0
    blind_to: tuple[str, ...] = ()


_blind = partial(Settings, hidden=(80, 80))
_TWO = ("log_power_headroom", "has_unified_l1")

#: Settings of every perceptron, by family and network; a network is their mean.
SETTINGS: dict[tuple[Family, str], tuple[Settings, ...]] = {
    (Family.LINEAR, MEASURED): (Settings(epochs=150), Settings(epochs=150)),
    (Family.BMM, MEASURED): (Settings(epochs=40),),
    (Family.CONV, MEASURED): (Settings(epochs=80),),
    (Family.ELEMENTWISE, MEASURED): (Settings(epochs=20, batch=1024, hidden=(64, 64)),),
    (Family.SOFTMAX, MEASURED): (Settings(epochs=120, batch=256, hidden=(64, 64)),),
    (Family.LAYER_NORM, MEASURED): (Settings(epochs=120, batch=256, hidden=(64, 64)),),
    (Family.ELEMENTWISE, TRANSFER): (Settings(epochs=6, batch=1024, hidden=(64, 64), device_features=(), noise=0.1),),
    (Family.SOFTMAX, TRANSFER): (Settings(epochs=40, batch=256, hidden=(64, 64), device_features=(), noise=0.1),),
    (Family.LAYER_NORM, TRANSFER): (Settings(epochs=40, batch=256, hidden=(64, 64), device_features=(), noise=0.1),),
    (Family.LINEAR, TRANSFER): (
        _blind(epochs=3, noise=0.3, device_features=_TWO, blind_to=("sizes",)),
        _blind(epochs=6, noise=0.3, device_features=("log_power_headroom",), blind_to=("sizes", "cache")),
    ),
    (Family.CONV, TRANSFER): (
        _blind(epochs=20, device_features=("log_shared_memory",), device_noise=0.3),
        _blind(epochs=20, noise=0.1, device_features=("log_base_over_boost",), device_noise=0.3, blind_to=("cache",)),
    ),
}


def train_network(
    rows: KernelRows,
    features: Features,
    chosen: npt.NDArray[np.bool_],
    *,
    kind: str,
    seed: int,
    settings: Sequence[Settings] | None = None,
) -> TrainedKernels:
    """Train one network.

    Args:
        rows: Measured rows of a family.
        features: Their features and baselines.
        chosen: Rows to train on.
        kind: ``"measured"`` or ``"transfer"``; decides the settings.
        seed: Seed of initial weights, order and noise.
        settings: One entry per perceptron; by default those of `SETTINGS`.

    Returns:
        The network, and the drift that was fitted beside its first perceptron; for batched products on unmeasured
        devices a law (see `dippm.training.tile_law`), which has no settings and no seed.

    Raises:
        MissingExtraError: torch or, for a law, SciPy is not installed.
    """
    if kind == TRANSFER and rows.family in _LAWFUL:
        return TrainedKernels(network=fit_tile_law(rows, chosen), drift=SweepDrift.none())
    every = SETTINGS[rows.family, kind] if settings is None else settings
    trained = [
        _train_perceptron(rows, features, chosen, seed=seed + position, options=options)
        for position, options in enumerate(every)
    ]
    return TrainedKernels(network=Network(members=tuple(each for each, _ in trained)), drift=trained[0][1])


def _train_perceptron(
    rows: KernelRows, features: Features, chosen: npt.NDArray[np.bool_], *, seed: int, options: Settings
) -> tuple[Perceptron, SweepDrift]:
    try:
        import torch
    except ImportError as exc:
        raise MissingExtraError(package="torch", extra="train", purpose="train kernel-time networks") from exc
    torch.manual_seed(seed)
    without = {each for group in options.blind_to for each in COLUMN_GROUPS[rows.family][group]}
    columns = kept_columns(features.matrix.shape[1], without=without, device_features=options.device_features)
    matrix = features.matrix[chosen][:, columns]
    mean, scale = matrix.mean(axis=0), matrix.std(axis=0) + 1e-6
    scale[scale < 1e-4] = 1.0  # a column that never varies; dividing by its rounding noise would amplify it
    inputs = torch.from_numpy((matrix - mean) / scale)
    log_ratio = np.log(rows.time_ms / features.baseline_ms)[chosen]
    targets = torch.from_numpy(log_ratio.astype(np.float32))
    noise = torch.full((len(columns),), options.noise)
    noise[len(columns) - len(options.device_features) :] = options.device_noise
    net = _perceptron(len(columns), options.hidden, start=float(np.median(log_ratio)))
    drift = TrainableDrift(rows, features, chosen) if rows.family in _DRIFTING else None
    parameters: list[dict[str, Any]] = [{"params": list(net.parameters()), "weight_decay": options.weight_decay}]
    if drift is not None:
        parameters.append({"params": [drift.steps], "weight_decay": 0.0})
    optimiser = torch.optim.AdamW(parameters, lr=options.learning_rate)
    per_epoch = max(1, len(inputs) // options.batch)
    schedule = one_cycle(optimiser, peak=options.learning_rate, steps=options.epochs * per_epoch, rising_share=0.1)
    for _ in range(options.epochs):
        order = torch.randperm(len(inputs))
        for step in range(per_epoch):
            index = order[step * options.batch : (step + 1) * options.batch]
            batch = inputs[index]
            if options.noise > 0.0 or options.device_noise > 0.0:
                batch = batch + noise * torch.randn_like(batch)
            output = net(batch)[:, 0]
            if drift is not None:
                output = torch.log(torch.exp(output) + drift.relative(index))
            loss = (output - targets[index]).abs().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    fitted = SweepDrift.none() if drift is None else drift.result()
    own = np.maximum(rows.time_ms - fitted.time_ms(rows), 0.5 * rows.time_ms)[chosen]
    labels = np.log(own / features.baseline_ms[chosen])
    return _freeze(net, columns, matrix, mean=mean, scale=scale, labels=labels), fitted


def _perceptron(inputs: int, hidden: tuple[int, ...], *, start: float) -> torch.nn.Sequential:
    import torch

    layers: list[torch.nn.Module] = []
    for width in hidden:
        layers += [torch.nn.Linear(inputs, width), torch.nn.SiLU()]
        inputs = width
    last = torch.nn.Linear(inputs, 1)
    torch.nn.init.constant_(last.bias, start)
    return torch.nn.Sequential(*layers, last)


def _freeze(
    net: torch.nn.Sequential,
    columns: npt.NDArray[np.int64],
    matrix: npt.NDArray[np.float32],
    *,
    mean: npt.NDArray[np.float32],
    scale: npt.NDArray[np.float32],
    labels: FloatArray,
) -> Perceptron:
    import torch

    linear = [layer for layer in net if isinstance(layer, torch.nn.Linear)]
    lowest, highest = np.quantile(labels, [0.0005, 0.9995])
    return Perceptron(
        columns=columns,
        low=matrix.min(axis=0),
        high=matrix.max(axis=0),
        mean=mean,
        scale=scale,
        weights=tuple(layer.weight.detach().numpy().T.copy() for layer in linear),
        biases=tuple(layer.bias.detach().numpy().copy() for layer in linear),
        lowest=float(lowest),
        highest=float(highest),
    )


def to_onnx(network: Network, *, features: int) -> bytes:
    """Serialise a network: input ``features`` (problems, features), output ``log_ratio`` (problems,), both float32.

    Choosing columns and standardising are folded into the first layer; clipping stays.

    Raises:
        MissingExtraError: onnx is not installed.
    """
    try:
        import onnx
        from onnx import helper, numpy_helper
    except ImportError as exc:
        raise MissingExtraError(package="onnx", extra="train", purpose="write the artefact") from exc
    nodes: list[onnx.NodeProto] = []
    tensors: dict[str, npt.NDArray[Any]] = {"axes": np.array([1], dtype=np.int64)}
    for position, member in enumerate(network.members):
        own_nodes, own_tensors = _onnx_branch(member, features=features, name=f"p{position}")
        nodes += own_nodes
        tensors |= own_tensors
    nodes.append(helper.make_node("Mean", [f"p{each}" for each in range(len(network.members))], ["log_ratio"]))
    graph = helper.make_graph(
        nodes,
        "kernel_time",
        [helper.make_tensor_value_info("features", onnx.TensorProto.FLOAT, ["problems", features])],
        [helper.make_tensor_value_info("log_ratio", onnx.TensorProto.FLOAT, ["problems"])],
        [numpy_helper.from_array(tensor, name) for name, tensor in tensors.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _onnx_branch(
    member: Perceptron, *, features: int, name: str
) -> tuple[list[onnx.NodeProto], dict[str, npt.NDArray[Any]]]:
    """Nodes and tensors of one perceptron, its result called ``name``."""
    from onnx import helper

    # Unused columns are clipped to zero and have zero weights.
    low, high = np.zeros((2, features), dtype=np.float32)
    low[member.columns], high[member.columns] = member.low, member.high
    first = np.zeros((features, member.weights[0].shape[1]), dtype=np.float32)
    first[member.columns] = member.weights[0] / member.scale[:, None]
    shift = member.biases[0] - (member.mean / member.scale) @ member.weights[0]
    weights = [first, *member.weights[1:]]
    biases = [shift.astype(np.float32), *member.biases[1:]]
    bounds = np.array([member.lowest, member.highest], dtype=np.float32)
    tensors: dict[str, npt.NDArray[Any]] = {
        f"{name}.low": low,
        f"{name}.high": high,
        f"{name}.lowest": np.asarray(bounds[0]),
        f"{name}.highest": np.asarray(bounds[1]),
    }
    nodes = [
        helper.make_node("Max", ["features", f"{name}.low"], [f"{name}.raised"]),
        helper.make_node("Min", [f"{name}.raised", f"{name}.high"], [f"{name}.h0"]),
    ]
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        tensors |= {f"{name}.w{layer}": weight, f"{name}.b{layer}": bias}
        inputs = [f"{name}.h{layer}", f"{name}.w{layer}", f"{name}.b{layer}"]
        nodes.append(helper.make_node("Gemm", inputs, [f"{name}.z{layer}"]))
        if layer < len(weights) - 1:
            nodes.append(helper.make_node("Sigmoid", [f"{name}.z{layer}"], [f"{name}.s{layer}"]))
            nodes.append(helper.make_node("Mul", [f"{name}.z{layer}", f"{name}.s{layer}"], [f"{name}.h{layer + 1}"]))
    nodes.append(helper.make_node("Squeeze", [f"{name}.z{len(weights) - 1}", "axes"], [f"{name}.flat"]))
    nodes.append(helper.make_node("Clip", [f"{name}.flat", f"{name}.lowest", f"{name}.highest"], [name]))
    return nodes, tensors


def build_artefact(
    out: Path, *, seed: int = 0, data: Path | None = None, families: Sequence[Family] = tuple(Family)
) -> dict[str, Any]:
    """Train both networks of each family on all shapes outside the test part, and write them.

    Args:
        out: Folder to write to; created if needed.
        seed: Seed of the split and of the training.
        data: Folder with the measured tables.
        families: Families to train; the others keep the entries that the folder has.

    Returns:
        The manifest, as written to ``artefact.json``.
    """
    import torch

    out.mkdir(parents=True, exist_ok=True)
    path = out / "artefact.json"
    before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    entries: dict[str, Any] = before.get("families", {})
    for family in families:
        rows = load_family(family, data=data)
        features = features_of_rows(rows)
        chosen = split_by_shape(rows, seed=seed) != Part.TEST
        for kind in (MEASURED, TRANSFER):
            trained = train_network(rows, features, chosen, kind=kind, seed=seed)
            file = out / f"{family.value}-{kind}.onnx"
            if isinstance(trained.network, TileLaw):
                entries[family.value]["tile_law"] = trained.network.to_dict()
                file.unlink(missing_ok=True)  # left by a version that had a network here
                continue
            serialised = to_onnx(trained.network, features=features.matrix.shape[1])
            file.write_bytes(serialised)
            _LOG.info("%s, %s: %d bytes", family.value, kind, len(serialised))
            if kind == MEASURED:
                entries[family.value] = {
                    "rows": int(chosen.sum()),
                    "data_sha256": rows.data_hash,
                    "measured_devices": {
                        str(name): device_features(find_device(str(name))).tolist() for name in np.unique(rows.device)
                    },
                    "sweep_drift": {
                        "knots": trained.drift.knots.tolist(),
                        "added_ms": {name: each.round(5).tolist() for name, each in trained.drift.added_ms.items()},
                    },
                }
    manifest = {
        "version": ARTEFACT_VERSION,
        "command": f"python -m dippm.training.kernels --seed {seed}",
        "seed": seed,
        "device_features": list(DEVICE_FEATURES),
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": str(torch.__version__),
            "onnx": version("onnx"),
        },
        "shadow_ms": fit_shadows(load_family(Family.ELEMENTWISE, data=data)),
        "families": entries,
    }
    if "metrics" in before:
        manifest["metrics"] = before["metrics"]
    path.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def main(arguments: Sequence[str] | None = None) -> None:
    """Rebuild the artefact, evaluate it with every device left out in turn, and write the report."""
    parser = argparse.ArgumentParser(prog="python -m dippm.training.kernels", description=main.__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of split and training")
    parser.add_argument("--data", type=Path, default=None, help="folder that holds kernels/")
    parser.add_argument("--out", type=Path, default=ARTEFACT_DIRECTORY, help="folder of the artefact")
    parser.add_argument("--report", type=Path, default=None, help="Markdown report to write")
    parser.add_argument("--no-train", action="store_true", help="evaluate the artefact that is there")
    parser.add_argument(
        "--family",
        action="append",
        choices=[family.value for family in Family],
        help="train and evaluate only this family, and keep the others as they are; may be repeated",
    )
    given = parser.parse_args(arguments)
    families = [family for family in Family if given.family is None or family.value in given.family]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if not given.no_train:
        build_artefact(given.out, seed=given.seed, data=given.data, families=families)
    path = given.out / "artefact.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    report = evaluate_kernels(given.data, seed=given.seed, train=train_network, artefact=given.out, families=families)
    if "metrics" in manifest:
        report = report.merged_into(KernelReport.from_dict(manifest["metrics"]))
    manifest["metrics"] = report.to_dict()
    path.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    if given.report is not None:
        given.report.parent.mkdir(parents=True, exist_ok=True)
        given.report.write_text(render_markdown(report), encoding="utf-8")


if __name__ == "__main__":
    main()
