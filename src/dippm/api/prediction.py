"""The public verbs: thin, keyword arguments in, plain objects out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from typing import overload

from dippm.api.arguments import Batches, Devices, parse_batches, parse_mig_policy
from dippm.api.chosen_predictor import choose_predictor, need_physics
from dippm.api.inspection import Inspection
from dippm.api.loading import load
from dippm.devices import DeviceSpec
from dippm.predictors.prediction import Prediction

__all__ = ["inspect", "predict"]


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
    policy = parse_mig_policy(mig_policy)
    batches = parse_batches(batch)
    chosen = choose_predictor(
        predictor,
        device=device,
        precision=precision,
        mode=mode,
        optimizer=optimizer,
        accumulation=accumulation,
        checkpointing=checkpointing,
        layout=layout,
        runtime=runtime,
        software=software,
    )
    graph = load(
        model,
        path=path,
        framework=framework,
        input=input,
        trust=trust,
        mode=chosen.reading_mode,
        batch_hint=batches[0],
    )
    predictions = chosen.predict(graph, batches=batches, mig_policy=policy)
    is_single = not isinstance(batch, Iterable) and (device is None or isinstance(device, str | DeviceSpec))
    return predictions[0] if is_single else predictions


def inspect(
    model: object = None,
    *,
    path: str | PathLike[str] | None = None,
    framework: str | None = None,
    batch: int = 1,
    input: object = None,  # noqa: A002 - the contract's name
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
) -> Inspection:
    """Predict, and say which operators the time and memory go to; arguments as in :func:`predict`.

    The operators' times add up to the predicted latency.

    Raises:
        UnsupportedError: ``predictor.unsuited`` where the predictor is a network that :func:`train` wrote: it predicts
            a model as a whole.
        DippmError: As :func:`predict`.
    """
    policy = parse_mig_policy(mig_policy)
    (size,) = parse_batches(batch, is_single=True)
    chosen = choose_predictor(
        predictor,
        device=device,
        precision=precision,
        mode=mode,
        optimizer=optimizer,
        accumulation=accumulation,
        checkpointing=checkpointing,
        layout=layout,
        runtime=runtime,
        software=software,
        is_single=True,
    )
    asked = need_physics(chosen, because="It predicts a model as a whole, and knows no parts of its operators.")
    graph = load(
        model,
        path=path,
        framework=framework,
        input=input,
        trust=trust,
        mode=asked.conditions.mode,
        batch_hint=size,
    )
    explanation = asked.physics.explain(
        graph,
        batch=size,
        device=asked.devices[0],
        conditions=asked.conditions,
        software=asked.software,
        mig_policy=policy,
    )
    return Inspection.of(explanation)
