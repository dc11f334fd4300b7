"""The public verbs: thin, keyword arguments in, plain objects out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, overload

from dippm.api.arguments import (
    Batches,
    Devices,
    as_list,
    parse_batches,
    parse_conditions,
    parse_devices,
    parse_mig_policy,
    parse_software,
)
from dippm.api.inspection import Inspection
from dippm.api.loading import load
from dippm.costs.conditions import Conditions
from dippm.devices import DeviceSpec
from dippm.errors import UsageError
from dippm.predictors.adapted import is_adapted
from dippm.predictors.physics import PhysicsPredictor
from dippm.predictors.prediction import Prediction

if TYPE_CHECKING:
    from dippm.predictors.adapted import AdaptedPredictor
    from dippm.predictors.pmgns import PmgnsPredictor

__all__ = ["inspect", "predict"]

_DEVICE = "A100"


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
    accumulation: int = 1,
    checkpointing: bool = False,
    layout: str | None = None,
    runtime: str | None = None,
    software: str | None = None,
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
    accumulation: int = 1,
    checkpointing: bool = False,
    layout: str | None = None,
    runtime: str | None = None,
    software: str | None = None,
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
    accumulation: int = 1,
    checkpointing: bool = False,
    layout: str | None = None,
    runtime: str | None = None,
    software: str | None = None,
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
    accumulation: int = 1,
    checkpointing: bool = False,
    layout: str | None = None,
    runtime: str | None = None,
    software: str | None = None,
    trust: bool = False,
    mig_policy: str = "safe",
    predictor: str | PathLike[str] | None = None,
) -> Prediction | list[Prediction]:
    """Predict latency, energy, memory and the MIG slice of a model, without running it.

    Args:
        model: See :func:`dippm.load`.
        path: See :func:`dippm.load`.
        framework: See :func:`dippm.load`.
        batch: Samples per call, 1 or more, or a list of them.
        input: See :func:`dippm.load`.
        device: A device's name, a :class:`~dippm.devices.DeviceSpec`, or a list of them; an A100 when left out.
        precision: ``fp32`` (PyTorch's defaults), ``fp32-strict``, ``tf32``, ``amp``, ``amp-bf16``, ``fp16``, ``bf16``;
            ``fp32`` when left out.
        mode: ``inference``, as when left out, or ``training``: one whole step, forward, loss, backward and optimizer.
        optimizer: What updates the weights in training: ``sgd``, ``momentum`` (SGD with momentum 0.9, as when left
            out), ``adam`` or ``adamw``.
        accumulation: Batches whose gradients are added up before one update, in training; a step is all of them.
        checkpointing: Whether the blocks of the model drop their activations and compute them again in the backward
            pass, in training.
        layout: ``nchw``, as when left out, or ``nhwc``.
        runtime: ``eager``, as when left out, or at inference ``cuda-graph``, and ``compile`` in amp, NCHW.
        software: Releases of PyTorch and CUDA, as ``"torch 1.12+cu113"``; those of today when left out. They decide
            what a process holds beside tensors, whether attention is fused, and whether gradients are given back
            between steps. No factor on the time between releases is known.
        trust: See :func:`dippm.load`.
        mig_policy: ``"safe"`` compares the upper end of the memory interval with what a slice really offers,
            ``"paper"`` is Eq. 2 of the DIPPM paper on the predicted value.
        predictor: Folder that :func:`train` wrote, to predict by its network. It holds for the device and the
            conditions of its labels alone, which may be of training, and which stand for all that is left out. Or
            folder that :func:`adapt` wrote: it holds for the device of its labels, under any conditions.

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
    names = None if device is None else as_list(device)
    if predictor is not None and not is_adapted(predictor):
        trained = _load_for(predictor, names, given)
        _refuse_unlearned(accumulation=accumulation, checkpointing=checkpointing, software=software)
        graph = load(model, path=path, framework=framework, input=input, trust=trust, batch_hint=batches[0])
        predictions = trained.predict(graph, batches=batches, mig_policy=policy)
    else:
        if predictor is None:
            devices, physics = parse_devices(_DEVICE if device is None else device), PhysicsPredictor.load()
        else:
            adapted = _load_adapted(predictor, names)
            devices, physics, given = [adapted.manifest.device], adapted.physics, adapted.conditions_for(given)
        conditions = parse_conditions(accumulation=accumulation, checkpointing=checkpointing, **given)
        stack = parse_software(software)
        graph = load(
            model,
            path=path,
            framework=framework,
            input=input,
            trust=trust,
            mode=conditions.mode,
            batch_hint=batches[0],
        )
        predictions = physics.predict(
            graph, batches=batches, devices=devices, conditions=conditions, software=stack, mig_policy=policy
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
    accumulation: int = 1,
    checkpointing: bool = False,
    layout: str = "nchw",
    runtime: str = "eager",
    software: str | None = None,
    trust: bool = False,
    mig_policy: str = "safe",
) -> Inspection:
    """Predict, and say which operators the time and memory go to; arguments as in :func:`predict`.

    The operators' times add up to the predicted latency.
    """
    conditions = parse_conditions(
        precision=precision,
        mode=mode,
        optimizer=optimizer,
        accumulation=accumulation,
        checkpointing=checkpointing,
        layout=layout,
        runtime=runtime,
    )
    policy, stack = parse_mig_policy(mig_policy), parse_software(software)
    (size,) = parse_batches(batch, is_single=True)
    (spec,) = parse_devices(device, is_single=True)
    graph = load(model, path=path, framework=framework, input=input, trust=trust, mode=conditions.mode, batch_hint=size)
    explanation = PhysicsPredictor.load().explain(
        graph, batch=size, device=spec, conditions=conditions, software=stack, mig_policy=policy
    )
    return Inspection.of(explanation)


def _drop_none(**options: str | None) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}


def _load_for(folder: str | PathLike[str], devices: list[object] | None, given: dict[str, str]) -> PmgnsPredictor:
    """A trained predictor, if it holds for these devices and conditions.

    Raises:
        UsageError: ``predictor.mismatch`` where it does not, or one of :meth:`Conditions.parse`.
    """
    from dippm.predictors.pmgns import PmgnsPredictor

    trained = PmgnsPredictor.load(folder)
    held: dict[str, Any] = {k: value for k, value in asdict(trained.conditions).items() if isinstance(value, str)}
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


def _load_adapted(folder: str | PathLike[str], devices: list[object] | None) -> AdaptedPredictor:
    """An adapted predictor, if it holds for these devices.

    Raises:
        UsageError: ``predictor.mismatch`` where it does not.
    """
    from dippm.predictors.adapted import AdaptedPredictor

    adapted = AdaptedPredictor.load(folder)
    own = adapted.manifest.device.name
    names = [
        each.name if isinstance(each, DeviceSpec) else str(each) for each in ([own] if devices is None else devices)
    ]
    if len(names) != 1 or not adapted.is_for(names[0]):
        raise UsageError(
            f"The predictor '{fspath(folder)}' was adapted to {own}. Got {', '.join(names) or 'no device'} instead.",
            code="predictor.mismatch",
            cure="Leave the device out, or leave the predictor out.",
        )
    return adapted


def _refuse_unlearned(*, accumulation: int, checkpointing: bool, software: str | None) -> None:
    if accumulation != 1 or checkpointing or software is not None:
        raise UsageError(
            "No trained predictor has learned accumulation, checkpointing or other software than that of its labels.",
            code="predictor.mismatch",
            cure="Leave them out, or leave the predictor out.",
        )
