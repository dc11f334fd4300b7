"""Measure a model on a device of this machine, beside what is predicted for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, overload

from dippm.api.arguments import Batches, check_optimizer, parse_batches, parse_conditions
from dippm.api.loading import load
from dippm.costs.conditions import Conditions, Mode, Optimizer
from dippm.costs.precision import Precision, precision_of_run, stored_half
from dippm.devices import DeviceSpec, find_device
from dippm.errors import UnsupportedError, UsageError
from dippm.frontends.batch_axes import place_batch
from dippm.frontends.inputs import InputShapes, parse_input_shapes
from dippm.graph import Graph, GraphArrays
from dippm.measuring.configuration import Configuration, Engine
from dippm.measuring.measurement import Measurement
from dippm.placement.mig import MigPolicy
from dippm.predictors.cpu import CpuPredictor
from dippm.predictors.physics import PhysicsPredictor
from dippm.predictors.prediction import Prediction
from dippm.processes.machine_share import busy_processors, usable_processors

if TYPE_CHECKING:
    from dippm.measuring.model_source import ModelSource

__all__ = ["Measured", "measure", "parse_engine"]

_CONFIGURATION_LIMIT_S = 600.0
_SEVERAL = 2
# Processors too many that are asked for, from which threads are said to wait for others.
_CROWDED = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One configuration, measured and predicted.

    Args:
        model: The model's path or name.
        configuration: Batch, conditions and engine.
        measurement: What was measured.
        prediction: What is predicted for the same device, or None.
        prediction_note: Why there is no prediction, else ``""``.
    """

    model: str
    configuration: Configuration
    measurement: Measurement
    prediction: Prediction | None
    prediction_note: str = ""

    def to_dict(self) -> dict[str, object]:
        """One entry of ``measurements`` in the JSON answer."""
        conditions = self.configuration.conditions
        return {
            "engine": self.configuration.engine.value,
            "mode": conditions.mode.value,
            "precision": conditions.precision.value,
            "layout": conditions.layout.value,
            "runtime": conditions.runtime.value,
            "optimizer": None if conditions.optimizer is None else conditions.optimizer.value,
            "batch": self.configuration.batch,
            "measured": {**asdict(self.measurement), "fits": self.measurement.fits},
            "predicted": None if self.prediction is None else self.prediction.to_dict(),
            "prediction_note": self.prediction_note,
        }


@overload
def measure(
    model: str | PathLike[str],
    *,
    batch: int = 1,
    input: object = None,
    device: str = "cpu",
    device_spec: DeviceSpec | None = None,
    precision: str | None = None,
    mode: str = "inference",
    optimizer: str | None = None,
    layout: str = "nchw",
    runtime: str = "eager",
    engine: str | None = None,
    trust: bool = False,
) -> Measured: ...


@overload
def measure(
    model: str | PathLike[str],
    *,
    batch: Sequence[int],
    input: object = None,
    device: str = "cpu",
    device_spec: DeviceSpec | None = None,
    precision: str | None = None,
    mode: str = "inference",
    optimizer: str | None = None,
    layout: str = "nchw",
    runtime: str = "eager",
    engine: str | None = None,
    trust: bool = False,
) -> list[Measured]: ...


def measure(
    model: str | PathLike[str],
    *,
    batch: Batches = 1,
    input: object = None,  # noqa: A002 - the contract's name
    device: str = "cpu",
    device_spec: DeviceSpec | None = None,
    precision: str | None = None,
    mode: str = "inference",
    optimizer: str | None = None,
    layout: str = "nchw",
    runtime: str = "eager",
    engine: str | None = None,
    trust: bool = False,
) -> Measured | list[Measured]:
    """Run a model on a device of this machine, in a process of its own, and predict the same run.

    A run that fails is a result: out of memory, a time limit or an error of the framework stand in the outcome of the
    measurement. The weights of a model given by name are random.

    Args:
        model: A path (ONNX, TorchScript, ``torch.export``), or ``timm:NAME``, ``torchvision:NAME``, ``hf:ARCH``,
            ``diffusers:CLASS``.
            Unlike a prediction this runs the model, and with TorchScript the code in it.
        batch: Samples per call, 1 or more, or a list of them.
        input: Shape of one sample; see :func:`dippm.load`. May be left out where the file or the library fixes it.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        device_spec: The device to predict for; left out, the measured GPU is looked up in the catalogue by the name
            that it gives itself. A CPU is predicted from its rates, which are measured after the model, in two seconds.
        precision: See :func:`dippm.predict`. A model whose weights are stored in 16 bits runs in these, whatever of 32
            bits is asked for, and its configuration says so.
        mode: ``inference`` or ``training``.
        optimizer: For training: ``sgd``, ``momentum``, as when left out, ``adam``, ``adamw``, ``adamw-fused``,
            ``adamw-8bit`` (bitsandbytes), ``adafactor``, ``rmsprop`` or ``none``.
        layout: ``nchw`` or ``nhwc``.
        runtime: ``eager``, ``compile`` or ``cuda-graph``.
        engine: ``"torch"`` or ``"onnxruntime"``; left out, what the file is made for.
        trust: Allow files whose loading runs code of their choice: pickles, and some ``torch.export`` archives.

    Returns:
        One result for one batch, else a list in the order of the batches.

    Raises:
        UsageError: A batch, shape or option is wrong.
        ModelReadError: The file cannot be read.
        UnsupportedError: The device is not there, or the engine cannot run the model, or not so;
            ``measure.unsupported`` for a model of TensorFlow, Keras or Paddle.
        MissingExtraError: A package is not installed.
    """
    from dippm.measuring.device_names import describe_device
    from dippm.measuring.model_files import FileSource, find_source
    from dippm.measuring.worker import Worker

    if not isinstance(model, str | PathLike):
        raise UsageError(
            f"A model to be measured must be a path or a name. Got {type(model).__name__} instead.",
            code="model.invalid",
            cure="It is built in a process of its own: write it to a file with torch.export or torch.jit first.",
        )
    name, shapes, batches = fspath(model), parse_input_shapes(input), parse_batches(batch)
    conditions = Conditions.parse(
        precision="fp32" if precision is None else precision,
        mode=mode,
        layout=layout,
        runtime=runtime,
        optimizer=optimizer,
    )
    if optimizer is None and conditions.mode is Mode.TRAINING:
        conditions = replace(conditions, optimizer=Optimizer.MOMENTUM)
    check_optimizer(optimizer, conditions.mode)
    source = find_source(name, shapes, trust=trust)
    chosen = _own_engine(source) if engine is None else parse_engine(engine)
    asked = Configuration(batch=max(batches), conditions=conditions, engine=chosen)
    device_name = describe_device(device)
    is_file = isinstance(source, FileSource) and source.onnx_path is not None
    if chosen is Engine.ONNXRUNTIME:
        _with_any_weights(asked).check_onnxruntime(device, is_file=is_file)
    else:
        asked.check_torch(device)
    busy_before = busy_processors()
    graph, note = _read_graph(name, shapes, batches, mode=conditions.mode, precision=precision, trust=trust)
    stored = None if graph is None else stored_half(*GraphArrays.from_graphs([graph]).kept())
    run = replace(conditions, precision=precision_of_run(conditions.precision, stored))
    configurations = [replace(asked, batch=size, conditions=run) for size in batches]
    if chosen is Engine.ONNXRUNTIME:
        configurations[0].check_onnxruntime(device, is_file=is_file, stored=stored)
    if graph is not None and chosen is Engine.TORCH and (placed := place_batch(shapes, graph)) != shapes:
        source = find_source(name, placed, trust=trust)
    is_cpu = device == "cpu" and device_spec is None
    predictions: list[Prediction] = []
    if graph is not None and not is_cpu:
        predictions, note = _predict(graph, batches, conditions, device_spec or device_name)
    with Worker(device, configuration_limit_s=_CONFIGURATION_LIMIT_S) as worker:
        measurements = list(worker.measure(source, configurations))
    if graph is not None and is_cpu:
        predictions, note = _predict_on_cpu(
            graph,
            configurations,
            measurements[0],
            device_name=device_name,
            imports_library=not isinstance(source, FileSource),
        )
        predictions = _with_doubt_of_neighbours(predictions, measurements[0].software.threads, busy_before)
    found: list[Prediction | None] = [*predictions] or [None] * len(batches)
    results = [
        Measured(
            model=name,
            configuration=configuration,
            measurement=measurement,
            prediction=prediction,
            prediction_note=note,
        )
        for configuration, measurement, prediction in zip(configurations, measurements, found, strict=True)
    ]
    return results if isinstance(batch, Iterable) else results[0]


def parse_engine(name: str) -> Engine:
    """An engine by the name that users write.

    Raises:
        UsageError: ``engine.unknown``.
    """
    try:
        return Engine(name.strip().lower())
    except ValueError as exc:
        raise UsageError(
            f"The engine must be one of {', '.join(Engine)}. Got '{name}' instead.", code="engine.unknown"
        ) from exc


def _own_engine(source: ModelSource) -> Engine:
    """The engine that a model is made for."""
    from dippm.measuring.model_files import FileSource

    is_onnx = isinstance(source, FileSource) and source.onnx_path is not None
    return Engine.ONNXRUNTIME if is_onnx else Engine.TORCH


def _with_any_weights(asked: Configuration) -> Configuration:
    """The same in a precision that onnxruntime has, where the weights, not read yet, decide whether it has this one."""
    if asked.conditions.precision.is_autocast:
        return asked
    return replace(asked, conditions=replace(asked.conditions, precision=Precision.FP32_STRICT))


def _read_graph(
    model: str, shapes: InputShapes, batches: list[int], *, mode: Mode, precision: str | None, trust: bool
) -> tuple[Graph | None, str]:
    """The graph, or why there is none: what cannot be predicted may still be measured.

    Raises:
        DippmError: Where the model is not there or cannot be read, so that it cannot be measured either.
    """
    try:
        graph = load(
            model,
            input=shapes,
            trust=trust,
            mode=mode.value,
            batch_hint=max(batches),
            precision=precision,
        )
        return graph, ""
    except UnsupportedError as exc:
        if exc.code.startswith("zoo."):
            raise
        return None, str(exc)


def _predict(
    graph: Graph, batches: list[int], conditions: Conditions, device: DeviceSpec | str
) -> tuple[list[Prediction], str]:
    """Predictions of all batches; where there are none, why not."""
    try:
        asked = parse_conditions(
            precision=conditions.precision,
            mode=conditions.mode,
            optimizer=conditions.optimizer,
            layout=conditions.layout,
            runtime=conditions.runtime,
        )
        spec = find_device(device) if isinstance(device, str) else device
        predictor = PhysicsPredictor.load()
        return predictor.predict(
            graph, batches=batches, devices=[spec], conditions=asked, mig_policy=MigPolicy.SAFE
        ), ""
    except UnsupportedError as exc:
        return [], str(exc)


def _with_doubt_of_neighbours(predictions: Sequence[Prediction], threads: int, busy: float) -> list[Prediction]:
    """Predictions that say so where several threads had to share their processors with something else."""
    usable = usable_processors()
    if threads < _SEVERAL or busy + threads < usable + _CROWDED:
        return list(predictions)
    warning = (
        f"{busy:.1f} of {usable} processors were busy before this began. The threads of an operator wait for each "
        "other, and may take many times as long: set OMP_NUM_THREADS=1, or measure when nothing else runs."
    )
    return [
        replace(each, predictor=replace(each.predictor, warnings=(warning, *each.predictor.warnings)))
        for each in predictions
    ]


def _predict_on_cpu(
    graph: Graph,
    configurations: Sequence[Configuration],
    measured: Measurement,
    *,
    device_name: str,
    imports_library: bool,
) -> tuple[list[Prediction], str]:
    """Predictions for this machine's CPU as it is now, with the threads and the start of the measuring process."""
    from dippm.measuring.cpu_rates import measure_cpu_rates

    if configurations[0].engine is not Engine.TORCH:
        return [], f"On a CPU ({device_name}) PyTorch is predicted, and not {configurations[0].engine.value}."
    try:
        return CpuPredictor.load().predict(
            graph,
            batches=[configuration.batch for configuration in configurations],
            device=device_name,
            rates=measure_cpu_rates(threads=measured.software.threads or None),
            conditions=configurations[0].conditions,
            context_mb=measured.context_mb,
            imports_library=imports_library,
        ), ""
    except UnsupportedError as exc:
        return [], str(exc)
