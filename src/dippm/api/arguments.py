"""The arguments of the public verbs: what users write becomes what the layers below take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import index

from dippm.api.batch_search import LARGEST_BATCH
from dippm.costs.conditions import Conditions, LowRankAdapters, Mode, Optimizer, Runtime
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.costs.software_support import check_driven
from dippm.devices import DeviceSpec, find_device
from dippm.errors import UnsupportedError, UsageError, quote
from dippm.placement.mig import MigPolicy

__all__ = [
    "Batches",
    "Devices",
    "as_list",
    "asks_for_one",
    "check_optimizer",
    "parse_batches",
    "parse_conditions",
    "parse_devices",
    "parse_mig_policy",
    "parse_software",
]

Batches = int | Sequence[int]
Devices = str | DeviceSpec | Sequence[str | DeviceSpec]

_OPTIMIZER = Optimizer.MOMENTUM
_MOST_PASSES = 2**16


def parse_batches(batch: object, *, is_single: bool = False) -> list[int]:
    """Batch sizes as a list.

    Args:
        batch: What the caller gave: a whole number or, unless ``is_single``, several.
        is_single: Whether exactly one is wanted.

    Raises:
        UsageError: ``batch.invalid`` where one is not a whole number from 1 to 2^24, or there are none or too many.
    """
    given = as_list(batch)
    if not given or (is_single and len(given) > 1):
        raise UsageError(
            f"Give {'one batch size' if is_single else 'at least one batch size'}. Got {quote(batch)} instead.",
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
                f"A batch size must be a whole number from 1 to {LARGEST_BATCH}. Got {quote(size)} instead.",
                code="batch.invalid",
            )
        batches.append(number)
    return batches


def parse_devices(device: object, *, is_single: bool = False) -> list[DeviceSpec]:
    """Devices as a list; names are looked up among the devices that are given by their figures, then in the catalogue.

    Raises:
        UsageError: ``device.invalid`` where one is neither a name nor a :class:`~dippm.devices.DeviceSpec`, or there
            are none or too many.
        UnsupportedError: ``device.unknown``.
    """
    given = as_list(device)
    if not given or (is_single and len(given) > 1):
        raise UsageError(
            f"Give {'one device' if is_single else 'at least one device'}. Got {quote(device)} instead.",
            code="device.invalid",
        )
    own = [item for item in given if isinstance(item, DeviceSpec)]
    found = []
    for item in given:
        if not isinstance(item, str | DeviceSpec):
            raise UsageError(
                f"A device must be a name such as 'A100', or a DeviceSpec. Got {quote(item)} instead.",
                code="device.invalid",
            )
        found.append(find_device(item, own=own) if isinstance(item, str) else item)
    return found


def as_list(given: object) -> list[object]:
    """One thing or several as a list; a text is one."""
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return list(given)
    return [given]


def asks_for_one(device: Devices | None, batch: Batches = 1) -> bool:
    """Whether one answer is asked for, of one device at one batch, and not a list."""
    return (device is None or isinstance(device, str | DeviceSpec)) and not isinstance(batch, Iterable)


def parse_conditions(
    *,
    precision: str = "fp32",
    mode: str = "inference",
    optimizer: str | None = None,
    accumulation: int = 1,
    checkpointing: bool = False,
    lora: int | str | None = None,
    layout: str = "nchw",
    runtime: str = "eager",
) -> Conditions:
    """Conditions by the names that users write; training without an optimizer is by SGD with momentum.

    Raises:
        UsageError: A name is unknown, or an optimizer is given without training.
        UnsupportedError: ``runtime.unsupported`` for a training step that is captured as a CUDA graph.
    """
    conditions = Conditions.parse(precision=precision, mode=mode, layout=layout, runtime=runtime, optimizer=optimizer)
    if conditions.mode is Mode.TRAINING:
        if conditions.runtime is Runtime.CUDA_GRAPH:
            raise UnsupportedError(
                f"A training step by the runtime {conditions.runtime.value} is not predicted.",
                code="runtime.unsupported",
                cure="Use eager or compile.",
            )
        if isinstance(accumulation, bool) or not isinstance(accumulation, int) or not 1 <= accumulation <= _MOST_PASSES:
            raise UsageError(
                f"The accumulation must be a whole number from 1 to {_MOST_PASSES}. Got {quote(accumulation)} instead.",
                code="accumulation.invalid",
            )
        conditions = replace(
            conditions,
            optimizer=conditions.optimizer or _OPTIMIZER,
            accumulation=accumulation,
            is_checkpointed=checkpointing,
            adapters=None if lora is None else LowRankAdapters.parse(lora),
        )
    elif accumulation != 1 or checkpointing or lora is not None:
        raise UsageError(
            "Accumulation, checkpointing and adapters have a meaning in training mode only.",
            code="training.unused",
            cure="Ask for training mode, or leave them out.",
        )
    else:
        check_optimizer(optimizer, conditions.mode)
    return conditions


def check_optimizer(optimizer: object, mode: str) -> None:
    """Refuse an optimizer outside of training.

    Raises:
        UsageError: ``optimizer.unused``.
    """
    if optimizer is not None and mode != Mode.TRAINING:
        raise UsageError(
            "An optimizer has a meaning in training mode only.",
            code="optimizer.unused",
            cure="Ask for training mode, or leave it out.",
        )


def parse_software(name: str | None, *, devices: Iterable[DeviceSpec] = ()) -> Software:
    """The software by what users write; today's where they write nothing, which need not drive every device.

    Args:
        name: What the caller gave.
        devices: What it must drive where it is named.

    Raises:
        UsageError: ``software.unknown``.
        UnsupportedError: ``software.impossible``.
    """
    if name is None:
        return DEFAULT_SOFTWARE
    software = Software.parse(name)
    for device in devices:
        check_driven(device, software)
    return software


def parse_mig_policy(name: str) -> MigPolicy:
    """A MIG policy by name.

    Raises:
        UsageError: ``placement.policy``.
    """
    try:
        return MigPolicy(name)
    except ValueError as exc:
        raise UsageError(
            f"A MIG policy must be one of {', '.join(MigPolicy)}. Got {quote(name)} instead.", code="placement.policy"
        ) from exc
