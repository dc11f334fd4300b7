"""Device memory that a process holds at the peak of an inference or of training, in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Layout
from dippm.costs.context import blas_workspace_bytes, context_mb, lt_workspace_bytes
from dippm.costs.live_tensors import ALL_COPIES, LiveMemory, live_memory_each
from dippm.costs.polynomial import FloatArray, as_batches
from dippm.costs.replay import Replay, Workspaces
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.costs.timeline import MemoryTimeline, Purpose
from dippm.devices.spec import DeviceSpec
from dippm.errors import UnsupportedError
from dippm.units import BYTES_PER_MIB

__all__ = [
    "Headroom", "MemoryEstimate", "absent_copies", "estimate_memory_each", "reserved_bytes",
]  # fmt: skip

_COPIES = {
    "tf32_tensor": frozenset({Purpose.LAYOUT_TF32, Purpose.GROUPED_TF32}),
    "fp16_tensor": frozenset({Purpose.LAYOUT_HALF, Purpose.GROUPED_HALF}),
}
_CHANNELS_FIRST_COPIES = frozenset({Purpose.LAYOUT_TF32, Purpose.LAYOUT_HALF})
# How far what a device lacks is looked for.
_CLOSE = 1.0 / 256.0
# So many times its memory is far from what a device has.
_FAR = 4.0
# A petabyte of live tensors fits no device and is more likely a slip.
_LARGEST_BYTES = 2.0**50
_KEPT_TIMELINES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Headroom:
    """What is to stay free for a fit to be certain.

    Args:
        share: Of what is uncertain, everything beside weights, gradients and state.
        fixed_mb: In any case, MiB.
    """

    share: float
    fixed_mb: float

    def room_bytes(self, capacity_bytes: float, certain_bytes: FloatArray) -> FloatArray:
        """What the allocator may hold of a capacity."""
        room: FloatArray = (capacity_bytes - self.fixed_mb * BYTES_PER_MIB + self.share * certain_bytes) / (
            1.0 + self.share
        )
        return room


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemoryEstimate:
    """Device memory at the peak, MiB.

    Args:
        batches: Batch sizes.
        memory_mb: What the process holds: the CUDA context and what the caching allocator reserves. On a device that
            is too small for the allocator's cache, what it holds after giving cached memory back; on one that is too
            small for the model, about the least that a larger device would have to have.
        needed_mb: With how much of it the pass gets through as well, where it holds more than is to be held for a fit
            to be certain; else all of it.
        fits: Whether the device has enough memory, when nothing else runs on it.
        parts_mb: Its parts, which add up to it: ``context``, ``weights``, ``activations`` (inputs and outputs among
            them), ``gradients`` and ``optimizer`` where the graph trains, ``kv_cache`` where it is a decoder's step,
            ``workspace`` (cuBLAS, cuDNN and scratch memory), ``slack`` (reserved and not in use at the peak).
        live: The live tensors of the pass on this device.

    Shapes:
        All arrays: [B].
    """

    batches: FloatArray
    memory_mb: FloatArray
    needed_mb: FloatArray
    fits: npt.NDArray[np.bool_]
    parts_mb: dict[str, FloatArray]
    live: LiveMemory


def reserved_bytes(
    timeline: MemoryTimeline,
    batches: npt.ArrayLike,
    *,
    without: frozenset[Purpose] = ALL_COPIES,
    capacity_bytes: int | None = None,
) -> npt.NDArray[np.int64]:
    """Most bytes that the caching allocator holds in one forward pass, without the cuBLAS workspace.

    Args:
        timeline: The model's memory events.
        batches: Batch sizes.
        without: Kinds of memory to leave out; by default the copies that only some devices make.
        capacity_bytes: Bytes that it may hold; None for as many as it asks for.

    Shapes:
        batches: [B]; result: [B], -1 where the capacity does not suffice.
    """
    return _replay_of(timeline, without).reserve(as_batches(batches), capacity_bytes)


def estimate_memory_each(
    timelines: Sequence[MemoryTimeline],
    batches: npt.ArrayLike,
    devices: Sequence[DeviceSpec],
    *,
    layout: Layout = Layout.NCHW,
    software: Software = DEFAULT_SOFTWARE,
    headrooms: Sequence[Headroom] | None = None,
    is_captured: bool = False,
) -> list[list[MemoryEstimate]]:
    """Estimate the memory of an inference, or of training, of each of several models, on each device.

    Devices differ in their context, their cuBLAS workspace and in whether convolutions run on tensor cores; the
    allocator is replayed once for all devices that agree in both. Where a device has no room for the copies that
    convolutions make, PyTorch takes kernels of cuDNN that make none (``try_configs`` in ``native/cudnn/Conv_v8.cpp``).

    Args:
        timelines: Memory events of the models.
        batches: Batch sizes.
        devices: The devices.
        layout: Memory order of images.
        software: What the process loads beside the model.
        headrooms: What is to stay free on each device; None for nothing.
        is_captured: Whether the pass is a captured CUDA graph: it has a pool of memory of its own, and a stream with
            another workspace of cuBLAS.

    Returns:
        Of each model one estimate per device.

    Raises:
        UsageError: ``batch.invalid`` where a batch is not a positive whole number.
        UnsupportedError: ``graph.too_large`` where the live tensors pass a petabyte.
    """
    sizes = as_batches(batches)
    lives = _Lives(timelines=timelines, batches=batches)
    result: list[list[MemoryEstimate]] = [[] for _ in timelines]
    for number, device in enumerate(devices):
        absent = absent_copies(device, layout)
        lives.follow(absent)
        workspaces = Workspaces(
            blas_bytes=blas_workspace_bytes(device, software), lt_bytes=lt_workspace_bytes(software)
        )
        contexts = {
            trains: context_mb(device, software, trains=trains, is_captured=is_captured) for trains in (False, True)
        }
        headroom = Headroom(share=0.0, fixed_mb=0.0) if headrooms is None else headrooms[number]
        for place, (timeline, estimates) in enumerate(zip(timelines, result, strict=True)):
            context = contexts[timeline.has_gradients]
            capacity = int((device.capacity_mb - context) * BYTES_PER_MIB)
            found = []
            for left_out in dict.fromkeys((absent & timeline.purposes, ALL_COPIES & timeline.purposes)):
                live, replay = lives.of(place, left_out), _replay_of(timeline, left_out, is_captured, workspaces)
                found.append(_squeeze(replay, replay.reserve(sizes, None), capacity, live=live, headroom=headroom))
                if (found[0].needed <= found[0].room).all():
                    break
            library_bytes = _workspace_bytes(timeline, workspaces, is_captured=is_captured)
            least = found[0] if len(found) == 1 else found[0].or_less(found[1])
            estimates.append(_assemble(timeline, least, context=context, library_bytes=library_bytes))
    return result


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Lives:
    """The live memory of several models, worked out once for all devices that make the same copies.

    Args:
        timelines: The models' memory events.
        batches: Batch sizes.
    """

    timelines: Sequence[MemoryTimeline]
    batches: npt.ArrayLike
    _known: dict[tuple[int, frozenset[Purpose]], LiveMemory] = field(default_factory=dict)

    def follow(self, without: frozenset[Purpose]) -> None:
        """Work it out for all models together, some kinds of memory left out."""
        keys = [(place, without & timeline.purposes) for place, timeline in enumerate(self.timelines)]
        self._add([key for key in keys if key not in self._known], without)

    def of(self, place: int, without: frozenset[Purpose]) -> LiveMemory:
        """That of one model."""
        if (place, without) not in self._known:
            self._add([(place, without)], without)
        return self._known[place, without]

    def _add(self, keys: Sequence[tuple[int, frozenset[Purpose]]], without: frozenset[Purpose]) -> None:
        found = live_memory_each([self.timelines[place] for place, _ in keys], self.batches, without=without)
        for key, live in zip(keys, found, strict=True):
            _refuse_beyond_any_device(live)
            self._known[key] = live


def _refuse_beyond_any_device(live: LiveMemory) -> None:
    most = float(live.peak_bytes.max(initial=0.0))
    if most > _LARGEST_BYTES:
        raise UnsupportedError(
            f"The model needs {most:.3g} bytes of tensors at batch {live.batches[live.peak_bytes.argmax()]:.0f}.",
            code="graph.too_large",
            cure="Give a smaller batch or smaller inputs.",
        )


def absent_copies(device: DeviceSpec, layout: Layout) -> frozenset[Purpose]:
    """The copies of convolutions that a device does not make."""
    absent = frozenset() if layout is Layout.NCHW else _CHANNELS_FIRST_COPIES
    return absent.union(*(copies for unit, copies in _COPIES.items() if unit not in device.peak_tflops))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Held:
    """What the allocator holds on a device of limited memory.

    Args:
        live: What is alive.
        held: Bytes in segments.
        needed: With how many it gets through.
        fits: Whether the device has as many.
        room: Bytes that may be held where a fit is to be certain.
        capacity: Bytes that the device has.

    Shapes:
        held, needed, fits, room: [B].
    """

    live: LiveMemory
    held: npt.NDArray[np.int64]
    needed: npt.NDArray[np.int64]
    fits: npt.NDArray[np.bool_]
    room: FloatArray
    capacity: int

    def or_less(self, other: _Held) -> _Held:
        """What another holds at the batches at which this passes its room, or the device, and the other needs less.

        Whoever would take more than there is takes all of that.
        """
        needs_less = other.needed < self.needed
        is_other = needs_less & ~self.fits
        is_other_needed = needs_less & (self.needed > self.room)

        def chosen(own: npt.NDArray[Any], others: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.where(is_other.reshape(-1, *[1] * (own.ndim - 1)), others, own)

        names = [each.name for each in fields(LiveMemory)]
        return _Held(
            live=LiveMemory(**{name: chosen(getattr(self.live, name), getattr(other.live, name)) for name in names}),
            held=chosen(self.held, np.maximum(other.held, self.capacity)),
            needed=np.where(is_other_needed, other.needed, self.needed),
            fits=chosen(self.fits, other.fits),
            room=self.room,
            capacity=self.capacity,
        )


def _squeeze(
    replay: Replay, reserved: npt.NDArray[np.int64], capacity: int, *, live: LiveMemory, headroom: Headroom
) -> _Held:
    """What the allocator holds on a device of limited memory, with how much it gets through, and whether that suffices.

    PyTorch gives segments that are wholly free back to the device before it fails. What it gets through with while
    there is room left is needed, and not more: cached memory that can be given back is no reason to doubt a fit. Where
    that room does not do, about the least that does is needed, or where the device is far from enough, what is taken
    where nothing is ever given back.
    """
    held, needed, fits = reserved.copy(), reserved.copy(), reserved <= capacity
    certain = live.weight_bytes + live.gradient_bytes + live.state_bytes + live.cache_bytes
    rooms = headroom.room_bytes(capacity, certain)
    for place in np.flatnonzero((reserved > rooms) & (live.peak_bytes <= _FAR * capacity)).tolist():
        # What is alive at the peak is the least that any allocator holds.
        alive = int(live.peak_bytes[place])
        batch, room = live.batches[[place]], max(int(rooms[place]), alive)
        needed[place] = _least_held(replay, batch, room, int(reserved[place]))
        if fits[place]:
            continue
        squeezed = int(replay.reserve(batch, capacity)[0]) if alive <= capacity else -1
        if squeezed >= 0:
            held[place], fits[place] = squeezed, True
            needed[place] = min(int(needed[place]), squeezed)
        else:
            # It may get through with less and not with more, by how free blocks are cut: no reason to call it certain.
            held[place] = needed[place] = max(int(needed[place]), capacity + 1)
    return _Held(live=live, held=held, needed=needed, fits=fits, room=rooms, capacity=capacity)


def _least_held(replay: Replay, batch: FloatArray, too_few: int, enough: int) -> int:
    """What the allocator holds with so few bytes, or about the least with which it gets through.

    Args:
        replay: What it is asked for.
        batch: The batch size, [1].
        too_few: Bytes that may not suffice.
        enough: Bytes that do.
    """
    held = int(replay.reserve(batch, too_few)[0])
    if held >= 0:
        return held
    while enough - too_few > enough * _CLOSE:
        middle = (too_few + enough) // 2
        held = int(replay.reserve(batch, middle)[0])
        if held < 0:
            too_few = middle
        else:
            enough = held
    return enough


def _workspace_bytes(timeline: MemoryTimeline, workspaces: Workspaces, *, is_captured: bool) -> int:
    """Bytes of the workspaces that libraries keep: on a second stream as well, before a capture."""
    calls, streams = timeline.first_calls, 2 if is_captured else 1
    blas = workspaces.blas_bytes * ((calls.blas >= 0) + (calls.backward >= 0))
    return streams * (blas + workspaces.lt_bytes * (calls.lt >= 0))


def _assemble(timeline: MemoryTimeline, found: _Held, *, context: float, library_bytes: int) -> MemoryEstimate:
    live, held = found.live, found.held
    workspace = live.workspace_bytes + library_bytes
    contexts = np.full(len(live.batches), context)
    kept = {}
    if timeline.has_gradients:
        kept = {"gradients": live.gradient_bytes / BYTES_PER_MIB, "optimizer": live.state_bytes / BYTES_PER_MIB}
    if Purpose.CACHE in timeline.purposes:
        kept["kv_cache"] = live.cache_bytes / BYTES_PER_MIB
    parts = {
        "context": contexts,
        "weights": live.weight_bytes / BYTES_PER_MIB,
        **kept,
        "activations": live.activation_bytes / BYTES_PER_MIB,
        "workspace": workspace / BYTES_PER_MIB,
        "slack": (held - live.peak_bytes - library_bytes) / BYTES_PER_MIB,
    }
    return MemoryEstimate(
        batches=live.batches,
        memory_mb=contexts + held / BYTES_PER_MIB,
        needed_mb=contexts + found.needed / BYTES_PER_MIB,
        fits=found.fits,
        parts_mb=parts,
        live=live,
    )


@lru_cache(maxsize=_KEPT_TIMELINES)
def _replay_of(
    timeline: MemoryTimeline,
    without: frozenset[Purpose],
    is_captured: bool = False,
    workspaces: Workspaces | None = None,
) -> Replay:
    """Made once for all batch sizes and devices of a graph, as the timeline itself is."""
    return Replay(timeline, without, is_captured=is_captured, workspaces=workspaces)
