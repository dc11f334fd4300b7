"""The public verbs: thin, keyword arguments in, plain objects out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Unpack, overload

from dippm.api.arguments import Batches, Devices, asks_for_one, parse_batches, parse_mig_policy
from dippm.api.batched_reading import predict_as_read, predict_each_as_read, with_way_told
from dippm.api.chosen_predictor import choose_predictor, need_physics
from dippm.api.inspection import Inspection
from dippm.api.question import Options, Question, spelled_out
from dippm.devices import DeviceSpec
from dippm.predictors.prediction import Prediction

__all__ = ["inspect", "predict", "predict_each"]


@overload
def predict(  # type: ignore[overload-overlap]  # a str is a Sequence of str as well; the first overload wins
    model: object = None,
    *,
    path: str | PathLike[str] | None = None,
    batch: int = 1,
    device: str | DeviceSpec | None = None,
    mig_policy: str = "safe",
    predictor: str | PathLike[str] | None = None,
    **options: Unpack[Options],
) -> Prediction: ...


@overload
def predict(
    model: object = None,
    *,
    path: str | PathLike[str] | None = None,
    batch: Sequence[int],
    device: Devices | None = None,
    mig_policy: str = "safe",
    predictor: str | PathLike[str] | None = None,
    **options: Unpack[Options],
) -> list[Prediction]: ...


@overload
def predict(
    model: object = None,
    *,
    path: str | PathLike[str] | None = None,
    batch: Batches = 1,
    device: Sequence[str | DeviceSpec],
    mig_policy: str = "safe",
    predictor: str | PathLike[str] | None = None,
    **options: Unpack[Options],
) -> list[Prediction]: ...


@spelled_out
def predict(
    model: object = None,
    *,
    path: str | PathLike[str] | None = None,
    batch: Batches = 1,
    device: Devices | None = None,
    mig_policy: str = "safe",
    predictor: str | PathLike[str] | None = None,
    **options: Unpack[Options],
) -> Prediction | list[Prediction]:
    """Predict latency, energy, memory and the MIG slice of a model, without running it.

    Args:
        model: See :func:`dippm.load`.
        path: See :func:`dippm.load`.
        batch: Samples per call, 1 or more, or a list of them.
        device: A device's name, a :class:`~dippm.devices.DeviceSpec`, or a list of them; an A100 when left out.
            Names may be those of slices of a DeviceSpec in the list: ``"1g.5gb@NAME"``.
        mig_policy: ``"safe"`` compares the upper end of what is needed with what a slice really offers,
            ``"paper"`` is Eq. 2 of the DIPPM paper on the predicted value.
        predictor: Folder that :func:`train` wrote, to predict by its network. It holds for the device and the
            conditions of its labels alone, which may be of training, and which stand for all that is left out. Or
            folder that :func:`adapt` wrote: it holds for the device of its labels, under any conditions.
        **options: The others, each by its name:

            - framework: See :func:`dippm.load`.
            - input: See :func:`dippm.load`.
            - weights: See :func:`dippm.load`.
            - precision: ``fp32`` (PyTorch's defaults), ``fp32-strict``, ``tf32``, ``amp``, ``amp-bf16``, ``fp16``,
              ``bf16``. Left out, that of the model's weights: ``fp32``, or ``fp16`` or ``bf16`` where most of them
              are stored so, as those of many checkpoints are.
            - mode: ``inference``, as when left out, or ``training``: one whole step, forward, loss, backward and
              optimizer.
            - optimizer: What updates the weights in training: ``sgd``, ``momentum`` (SGD with momentum 0.9, as when
              left out), ``adam``, ``adamw``, ``adamw-fused``, ``adamw-8bit`` (bitsandbytes), ``adafactor``,
              ``rmsprop``, or ``none`` for forward and backward pass alone.
            - accumulation: Batches whose gradients are added up before one update, in training; a step is all of them.
            - checkpointing: Whether the blocks of the model drop their activations and compute them again in the
              backward pass, in training.
            - lora: Low-rank adapters that alone are trained: their rank, as ``16``, with the names of the layers that
              get one where it is not all linear layers but the last, ``"16:q_proj,v_proj"``, and ``"16+dropout"`` where
              they drop some of their input. As PEFT runs them under autocast.
            - layout: ``nchw``, as when left out, or ``nhwc``.
            - runtime: ``eager``, as when left out, or ``compile``, and at inference ``cuda-graph``.
            - software: Releases of PyTorch and CUDA, as ``"torch 1.12+cu113"``; those of today when left out. They
              decide what a process holds beside tensors, whether attention is fused, whether gradients are given back
              between steps, and of old releases the time of convolutions and of 16 bits.
            - trust: See :func:`dippm.load`.

    Returns:
        One prediction for one batch and one device; else a list, all batches of the first device first.
        Devices that cannot run what is asked are left out of a list, and a warning of all its predictions names them
        and says why.

    Raises:
        UsageError: A batch, shape or option is wrong, or the predictor does not hold for it.
        ModelReadError: The file cannot be read.
        UnsupportedError: The mode, runtime or batch is not supported, or none of the devices can run it.
        MissingExtraError: The framework is not installed.
        DippmError: The predictor cannot be read.
    """
    question = Question(**options)
    policy = parse_mig_policy(mig_policy)
    batches = parse_batches(batch)
    chosen = choose_predictor(predictor, question, device=device)
    predictions = predict_as_read(
        chosen,
        lambda size: question.read(model, path=path, mode=chosen.reading_mode, batch_hint=size),
        batches,
        mig_policy=policy,
    )
    return predictions[0] if asks_for_one(device, batch) else predictions


@overload
def predict_each(  # type: ignore[overload-overlap]  # as above
    models: Iterable[object],
    *,
    batch: int = 1,
    device: str | DeviceSpec | None = None,
    mig_policy: str = "safe",
    predictor: str | PathLike[str] | None = None,
    **options: Unpack[Options],
) -> list[Prediction]: ...


@overload
def predict_each(
    models: Iterable[object],
    *,
    batch: Sequence[int],
    device: Devices | None = None,
    mig_policy: str = "safe",
    predictor: str | PathLike[str] | None = None,
    **options: Unpack[Options],
) -> list[list[Prediction]]: ...


@overload
def predict_each(
    models: Iterable[object],
    *,
    batch: Batches = 1,
    device: Sequence[str | DeviceSpec],
    mig_policy: str = "safe",
    predictor: str | PathLike[str] | None = None,
    **options: Unpack[Options],
) -> list[list[Prediction]]: ...


@spelled_out
def predict_each(
    models: Iterable[object],
    *,
    batch: Batches = 1,
    device: Devices | None = None,
    mig_policy: str = "safe",
    predictor: str | PathLike[str] | None = None,
    **options: Unpack[Options],
) -> list[Prediction] | list[list[Prediction]]:
    """Predict many models in one call; arguments as in :func:`predict`, the same for all models.

    What is alike is worked out for many models at once, which takes a fifth of the time of a call for each, or less, at
    inference, where they are graphs already, and three quarters in training. All are read before the first is
    predicted; one that holds for one batch at a time is read for each and worked out by itself. One that
    cannot be read or is refused ends it all: a :func:`sweep` goes on.

    Args:
        models: Models as :func:`load` takes them, or graphs that it gave.
        batch: As in :func:`predict`.
        device: As there.
        mig_policy: As there.
        predictor: As there.
        **options: As there.

    Returns:
        For each model, in their order, what :func:`predict` gives for it.

    Raises:
        DippmError: As :func:`predict`.
    """
    question = Question(**options)
    policy = parse_mig_policy(mig_policy)
    batches = parse_batches(batch)
    chosen = choose_predictor(predictor, question, device=device)
    readers = [
        lambda size, model=model: question.read(model, mode=chosen.reading_mode, batch_hint=size) for model in models
    ]
    answers = predict_each_as_read(chosen, readers, batches, mig_policy=policy)
    return [predictions[0] for predictions in answers] if asks_for_one(device, batch) else answers


@spelled_out
def inspect(
    model: object = None,
    *,
    path: str | PathLike[str] | None = None,
    batch: int = 1,
    device: str | DeviceSpec | None = None,
    mig_policy: str = "safe",
    predictor: str | PathLike[str] | None = None,
    **options: Unpack[Options],
) -> Inspection:
    """Predict, and say which operators the time and memory go to; arguments as in :func:`predict`.

    The operators' times add up to the predicted latency.

    Raises:
        UnsupportedError: ``predictor.unsuited`` where the predictor is a network that :func:`train` wrote: it predicts
            a model as a whole.
        DippmError: As :func:`predict`.
    """
    question = Question(**options)
    policy = parse_mig_policy(mig_policy)
    (size,) = parse_batches(batch, is_single=True)
    chosen = choose_predictor(predictor, question, device=device, is_single=True)
    asked = need_physics(chosen, because="It predicts a model as a whole, and knows no parts of its operators.")
    graph = with_way_told(question.read(model, path=path, mode=asked.reading_mode, batch_hint=size), size)
    explanation = asked.physics.explain(
        graph,
        batch=size,
        device=asked.devices[0],
        conditions=asked.conditions,
        software=asked.software,
        mig_policy=policy,
    )
    return Inspection.of(explanation)
