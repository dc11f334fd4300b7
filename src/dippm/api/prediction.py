"""The public verbs: thin, keyword arguments in, plain objects out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from operator import index
from os import PathLike, fspath
from typing import TYPE_CHECKING, overload

from dippm.api.inspection import Inspection
from dippm.costs.conditions import Conditions, Mode, Runtime
from dippm.devices import DeviceSpec, find_device
from dippm.errors import UnsupportedError, UsageError
from dippm.frontends.inputs import parse_input_shapes
from dippm.frontends.open_model import open_model
from dippm.graph import Graph
from dippm.placement.mig import MigPolicy
from dippm.predictors.physics import PhysicsPredictor
from dippm.predictors.prediction import Prediction

if TYPE_CHECKING:
    from dippm.predictors.pmgns import PmgnsPredictor

__all__ = ["LARGEST_BATCH", "inspect", "load", "parse_batches", "parse_conditions", "parse_devices", "predict"]

Batches = int | Sequence[int]
Devices = str | DeviceSpec | Sequence[str | DeviceSpec]

_DEVICE = "A100"

#: More samples in one call are taken for a slip.
LARGEST_BATCH = 2**24


def load(
    model: object = None,
    *,
    path: str | PathLike[str] | None = None,
    framework: str | None = None,
    input: object = None,  # noqa: A002 - the contract's name
    trust: bool = False,
    batch_hint: int | None = None,
) -> Graph:
    """Read a model once, to predict it many times: the graph is accepted wherever a model is.

    Args:
        model: A path, ``timm:NAME``, ``torchvision:NAME``, ``hf:ARCH``, a ``torch.nn.Module``, an
            ``onnx.ModelProto`` or a graph.
        path: The same as a path, as the DIPPM paper's example calls it.
        framework: ``"onnx"``, ``"pytorch"``, or None to tell it from the content.
        input: Shape of one sample, without the batch: ``"3,224,224"``, ``(3, 224, 224)``, a list for several inputs,
            a dict by name; an entry may be ``(shape, dtype)``. May be left out where the file fixes it.
        trust: Allow pickled files, which run code from the file when opened.
            Without it TorchScript runs as well, on shapes alone and without files, but without a limit in time.
        batch_hint: The batch to read a model for that cannot be read for every batch.

    Raises:
        DippmError: Whatever keeps the model from being read; see :mod:`dippm.errors`.
    """
    if (model is None) == (path is None):
        raise UsageError(
            "Give one model: as first argument or as path." if model is None else "Give model or path, not both.",
            code="model.invalid",
        )
    if path is not None:
        model = fspath(path)
    elif isinstance(model, PathLike):
        model = fspath(model)
    return open_model(model, input=parse_input_shapes(input), framework=framework, trust=trust, batch_hint=batch_hint)


@overload
def predict(  # type: ignore[overload-overlap]  # a str is a Sequence of str as well; the first overload wins
    model: object = None,
    *,
    path: str | PathLike[str] | None = None,
    framework: str | None = None,
    batch: int = 1,
    input: object = None,
    device: str | DeviceSpec | None = None,
    precision: str | None = None,
    mode: str | None = None,
    optimizer: str | None = None,
    layout: str | None = None,
    runtime: str | None = None,
    trust: bool = False,
    mig_policy: str = "safe",
    predictor: str | PathLike[str] | None = None,
) -> Prediction: ...


@overload
def predict(
    model: object = None,
    *,
    path: str | PathLike[str] | None = None,
    framework: str | None = None,
    batch: Sequence[int],
    input: object = None,
    device: Devices | None = None,
    precision: str | None = None,
    mode: str | None = None,
    optimizer: str | None = None,
    layout: str | None = None,
    runtime: str | None = None,
    trust: bool = False,
    mig_policy: str = "safe",
    predictor: str | PathLike[str] | None = None,
) -> list[Prediction]: ...


@overload
def predict(
    model: object = None,
    *,
    path: str | PathLike[str] | None = None,
    framework: str | None = None,
    batch: Batches = 1,
    input: object = None,
    device: Sequence[str | DeviceSpec],
    precision: str | None = None,
    mode: str | None = None,
    optimizer: str | None = None,
    layout: str | None = None,
    runtime: str | None = None,
    trust: bool = False,
    mig_policy: str = "safe",
    predictor: str | PathLike[str] | None = None,
) -> list[Prediction]: ...


def predict(
    model: object = None,
    *,
    path: str | PathLike[str] | None = None,
    framework: str | None = None,
    batch: Batches = 1,
    input: object = None,  # noqa: A002 - the contract's name
    device: Devices | None = None,
    precision: str | None = None,
    mode: str | None = None,
    optimizer: str | None = None,
    layout: str | None = None,
    runtime: str | None = None,
    trust: bool = False,
    mig_policy: str = "safe",
    predictor: str | PathLike[str] | None = None,
) -> Prediction | list[Prediction]:
    """Predict latency, energy, memory and the MIG slice of a model, without running it.

    Args:
        model: See :func:`load`.
        path: See :func:`load`.
        framework: See :func:`load`.
        batch: Samples per call, 1 or more, or a list of them.
        input: See :func:`load`.
        device: A device's name, a :class:`~dippm.devices.DeviceSpec`, or a list of them; an A100 when left out.
        precision: ``fp32`` (PyTorch's defaults), ``fp32-strict``, ``tf32``, ``amp``, ``amp-bf16``, ``fp16``, ``bf16``;
            ``fp32`` when left out.
        mode: ``inference``, as when left out; ``training`` is refused by this version.
        optimizer: Optimizer of the training mode.
        layout: ``nchw``, as when left out, or ``nhwc``.
        runtime: ``eager``, as when left out, or ``cuda-graph``; ``compile`` is refused by this version.
        trust: See :func:`load`.
        mig_policy: ``"safe"`` compares the upper end of the memory interval with what a slice really offers,
            ``"paper"`` is Eq. 2 of the DIPPM paper on the predicted value.
        predictor: Folder that :func:`train` wrote, to predict by its network. It holds for the device and the
            conditions of its labels alone, which may be of training, and which stand for all that is left out.

    Returns:
        One prediction for one batch and one device; else a list, all batches of the first device first.

    Raises:
        UsageError: A batch, shape or option is wrong, or the predictor does not hold for it.
        ModelReadError: The file cannot be read.
        UnsupportedError: The device, mode, runtime or batch is not supported.
        MissingExtraError: The framework is not installed.
        DippmError: The predictor cannot be read.
    """
    given = _drop_none(precision=precision, mode=mode, optimizer=optimizer, layout=layout, runtime=runtime)
    policy = parse_mig_policy(mig_policy)
    batches = parse_batches(batch)
    if predictor is not None:
        trained = _load_for(predictor, None if device is None else _as_list(device), given)
        graph = load(model, path=path, framework=framework, input=input, trust=trust, batch_hint=batches[0])
        predictions = trained.predict(graph, batches=batches, mig_policy=policy)
    else:
        conditions = parse_conditions(**given)
        devices = parse_devices(_DEVICE if device is None else device)
        graph = load(model, path=path, framework=framework, input=input, trust=trust, batch_hint=batches[0])
        predictions = PhysicsPredictor.load().predict(
            graph, batches=batches, devices=devices, conditions=conditions, mig_policy=policy
        )
    is_single = not isinstance(batch, Iterable) and (device is None or isinstance(device, str | DeviceSpec))
    return predictions[0] if is_single else predictions


def inspect(
    model: object = None,
    *,
    path: str | PathLike[str] | None = None,
    framework: str | None = None,
    batch: int = 1,
    input: object = None,  # noqa: A002 - the contract's name
    device: str | DeviceSpec = "A100",
    precision: str = "fp32",
    mode: str = "inference",
    optimizer: str | None = None,
    layout: str = "nchw",
    runtime: str = "eager",
    trust: bool = False,
    mig_policy: str = "safe",
) -> Inspection:
    """Predict, and say which operators the time and memory go to; arguments as in :func:`predict`.

    The operators' times add up to the predicted latency.
    """
    conditions = parse_conditions(precision=precision, mode=mode, optimizer=optimizer, layout=layout, runtime=runtime)
    policy = parse_mig_policy(mig_policy)
    (size,) = parse_batches(batch, is_single=True)
    (spec,) = parse_devices(device, is_single=True)
    graph = load(model, path=path, framework=framework, input=input, trust=trust, batch_hint=size)
    return Inspection.of(
        graph,
        explanation=PhysicsPredictor.load().explain(
            graph, batch=size, device=spec, conditions=conditions, mig_policy=policy
        ),
    )


def parse_batches(batch: object, *, is_single: bool = False) -> list[int]:
    """Batch sizes as a list.

    Args:
        batch: What the caller gave: a whole number or, unless ``is_single``, several.
        is_single: Whether exactly one is wanted.

    Raises:
        UsageError: ``batch.invalid`` where one is not a whole number from 1 to 2^24, or there are none or too many.
    """
    given = _as_list(batch)
    if not given or (is_single and len(given) > 1):
        raise UsageError(
            f"Give {'one batch size' if is_single else 'at least one batch size'}. Got {batch!r} instead.",
            code="batch.invalid",
        )
    batches = []
    for size in given:
        try:
            # True counts as 1 in Python, and is a slip here.
            number = 0 if isinstance(size, bool) else index(size)  # type: ignore[arg-type]
        except TypeError:
            number = 0
        if not 1 <= number <= LARGEST_BATCH:
            raise UsageError(
                f"A batch size must be a whole number from 1 to {LARGEST_BATCH}. Got {size!r} instead.",
                code="batch.invalid",
            )
        batches.append(number)
    return batches


def parse_devices(device: object, *, is_single: bool = False) -> list[DeviceSpec]:
    """Devices as a list; names are looked up in the catalogue.

    Raises:
        UsageError: ``device.invalid`` where one is neither a name nor a :class:`~dippm.devices.DeviceSpec`, or there
            are none or too many.
        UnsupportedError: ``device.unknown``.
    """
    given = _as_list(device)
    if not given or (is_single and len(given) > 1):
        raise UsageError(
            f"Give {'one device' if is_single else 'at least one device'}. Got {device!r} instead.",
            code="device.invalid",
        )
    found = []
    for item in given:
        if not isinstance(item, str | DeviceSpec):
            raise UsageError(
                f"A device must be a name such as 'A100', or a DeviceSpec. Got {item!r} instead.", code="device.invalid"
            )
        found.append(find_device(item) if isinstance(item, str) else item)
    return found


def _as_list(given: object) -> list[object]:
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return list(given)
    return [given]


def _drop_none(**options: str | None) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}


def _load_for(folder: str | PathLike[str], devices: list[object] | None, given: dict[str, str]) -> PmgnsPredictor:
    """A trained predictor, if it holds for these devices and conditions.

    Raises:
        UsageError: ``predictor.mismatch`` where it does not, or one of :meth:`Conditions.parse`.
    """
    from dippm.predictors.pmgns import PmgnsPredictor

    trained = PmgnsPredictor.load(folder)
    held = {name: value for name, value in asdict(trained.conditions).items() if value is not None}
    asked = Conditions.parse(**(held | given))
    names = [each.name if isinstance(each, DeviceSpec) else str(each) for each in devices or [trained.device]]
    if devices == [] or asked != trained.conditions or len(names) > 1 or not trained.is_for(names[0]):
        raise UsageError(
            f"The predictor '{fspath(folder)}' holds for {trained.device}, {', '.join(held.values())}. Got "
            f"{', '.join([*(names if devices is not None else []), *given.values()]) or 'no device'} instead.",
            code="predictor.mismatch",
            cure="Leave device and conditions out, or train one on labels of those.",
        )
    return trained


def parse_conditions(
    *,
    precision: str = "fp32",
    mode: str = "inference",
    optimizer: str | None = None,
    layout: str = "nchw",
    runtime: str = "eager",
) -> Conditions:
    """Conditions by the names that users write.

    Raises:
        UsageError: A name is unknown, or an optimizer is given without training.
        UnsupportedError: Training or the compiled runtime is asked for.
    """
    conditions = Conditions.parse(precision=precision, mode=mode, layout=layout, runtime=runtime)
    if conditions.mode is Mode.TRAINING:
        raise UnsupportedError(
            "This version predicts inference; a training step is not supported yet.",
            code="mode.unsupported",
            cure="Use mode inference.",
        )
    if optimizer is not None:
        raise UsageError("An optimizer has a meaning in training mode only.", code="optimizer.unused")
    if conditions.runtime is Runtime.COMPILE:
        raise UnsupportedError(
            "The compiled runtime is not supported yet.", code="runtime.unsupported", cure="Use eager or cuda-graph."
        )
    return conditions


def parse_mig_policy(name: str) -> MigPolicy:
    """A MIG policy by name.

    Raises:
        UsageError: ``placement.policy``.
    """
    try:
        return MigPolicy(name)
    except ValueError as exc:
        raise UsageError(
            f"A MIG policy must be one of {', '.join(MigPolicy)}. Got '{name}' instead.", code="placement.policy"
        ) from exc
