"""Device memory that a process holds at the peak of an inference or of training, in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Layout
from dippm.costs.context import blas_workspace_bytes, context_mb, lt_workspace_bytes
from dippm.costs.edges import IndexArray
from dippm.costs.polynomial import FloatArray, as_batches
from dippm.costs.replay import Replay, Workspaces
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.costs.timeline import MemoryTimeline, Purpose
from dippm.devices.spec import DeviceSpec
from dippm.errors import UnsupportedError
from dippm.units import BYTES_PER_MIB

__all__ = [
    "Headroom", "LiveMemory", "MemoryEstimate", "absent_copies", "estimate_memory", "live_memory", "reserved_bytes",
]  # fmt: skip

_COPIES = {
    "tf32_tensor": frozenset({Purpose.LAYOUT_TF32, Purpose.GROUPED_TF32}),
    "fp16_tensor": frozenset({Purpose.LAYOUT_HALF, Purpose.GROUPED_HALF}),
}
_CHANNELS_FIRST_COPIES = frozenset({Purpose.LAYOUT_TF32, Purpose.LAYOUT_HALF})
_ALL_COPIES = frozenset().union(*_COPIES.values())
# How far what a device lacks is looked for.
_CLOSE = 1.0 / 256.0
# So many times its memory is far from what a device has.
_FAR = 4.0
_WORKSPACES = [Purpose.SCRATCH, *sorted(_ALL_COPIES)]
# A petabyte of live tensors fits no device and is more likely a slip.
_LARGEST_BYTES = 2.0**50
_KEPT_TIMELINES = 16


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LiveMemory:
    """Bytes of live tensors over a forward pass or a training step, without rounding, context or cuBLAS workspace.

    Args:
        batches: Batch sizes.
        live_bytes: Most bytes alive while each node runs, in any step.
        peak_bytes: The highest of them, at least what is there from the start.
        peak_node: The node that reaches it, -1 for a graph without nodes.
        weight_bytes: Weights and buffers, of the peak.
        gradient_bytes: Gradients of weights, of the peak.
        state_bytes: State of the optimizer, of the peak.
        cache_bytes: What a decoder keeps from token to token, of the peak.
        workspace_bytes: Scratch memory of operators, of the peak.
        activation_bytes: Inputs, results and everything else, of the peak.

    Shapes:
        batches and the others: [B]; live_bytes: [B, n_nodes].
    """

    batches: FloatArray
    live_bytes: FloatArray
    peak_bytes: FloatArray
    peak_node: IndexArray
    weight_bytes: FloatArray
    gradient_bytes: FloatArray
    state_bytes: FloatArray
    cache_bytes: FloatArray
    workspace_bytes: FloatArray
    activation_bytes: FloatArray


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


def live_memory(
    timeline: MemoryTimeline, batches: npt.ArrayLike, *, without: frozenset[Purpose] = _ALL_COPIES
) -> LiveMemory:
    """Follow the bytes of live tensors through a forward pass.

    Args:
        timeline: The model's memory events.
        batches: Batch sizes.
        without: Kinds of memory to leave out; by default the copies that only some devices make.
    """
    sizes = as_batches(batches)
    return _live(timeline, sizes, timeline.piece_bytes(sizes, without=without))


def reserved_bytes(
    timeline: MemoryTimeline,
    batches: npt.ArrayLike,
    *,
    without: frozenset[Purpose] = _ALL_COPIES,
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


def estimate_memory(
    timeline: MemoryTimeline,
    batches: npt.ArrayLike,
    devices: Sequence[DeviceSpec],
    *,
    layout: Layout = Layout.NCHW,
    software: Software = DEFAULT_SOFTWARE,
    headrooms: Sequence[Headroom] | None = None,
    is_captured: bool = False,
) -> list[MemoryEstimate]:
    """Estimate the memory of an inference, or of training, on each device.

    Devices differ in their context, their cuBLAS workspace and in whether convolutions run on tensor cores; the
    allocator is replayed once for all devices that agree in both. Where a device has no room for the copies that
    convolutions make, PyTorch takes kernels of cuDNN that make none (``try_configs`` in ``native/cudnn/Conv_v8.cpp``).

    Args:
        timeline: The model's memory events.
        batches: Batch sizes.
        devices: The devices.
        layout: Memory order of images.
        software: What the process loads beside the model.
        headrooms: What is to stay free on each device; None for nothing.
        is_captured: Whether the pass is a captured CUDA graph: it has a pool of memory of its own, and a stream with
            another workspace of cuBLAS.

    Returns:
        One estimate per device.

    Raises:
        UsageError: ``batch.invalid`` where a batch is not a positive whole number.
        UnsupportedError: ``graph.too_large`` where the live tensors pass a petabyte.
    """
    sizes = as_batches(batches)
    lives: dict[frozenset[Purpose], LiveMemory] = {}

    def live_without(purposes: frozenset[Purpose]) -> LiveMemory:
        if purposes not in lives:
            lives[purposes] = _live(timeline, sizes, timeline.piece_bytes(sizes, without=purposes))
            _refuse_beyond_any_device(lives[purposes])
        return lives[purposes]

    result = []
    for place, device in enumerate(devices):
        without = absent_copies(device, layout) & timeline.purposes
        workspaces = Workspaces(
            blas_bytes=blas_workspace_bytes(device, software), lt_bytes=lt_workspace_bytes(software)
        )
        context = context_mb(device, software, trains=timeline.has_gradients, is_captured=is_captured)
        capacity = int((device.capacity_mb - context) * BYTES_PER_MIB)
        headroom = Headroom(share=0.0, fixed_mb=0.0) if headrooms is None else headrooms[place]
        found = []
        for left_out in dict.fromkeys((without, _ALL_COPIES & timeline.purposes)):
            live, replay = live_without(left_out), _replay_of(timeline, left_out, is_captured, workspaces)
            found.append(_squeeze(replay, replay.reserve(sizes, None), capacity, live=live, headroom=headroom))
            if (found[0].needed <= found[0].room).all():
                break
        library_bytes = _workspace_bytes(timeline, workspaces, is_captured=is_captured)
        least = found[0] if len(found) == 1 else found[0].or_less(found[1])
        result.append(_assemble(timeline, least, context=context, library_bytes=library_bytes))
    return result


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


def _live(timeline: MemoryTimeline, batches: FloatArray, pieces: FloatArray) -> LiveMemory:
    purpose = timeline.purpose
    weights = pieces.take(timeline.weights, axis=1).sum(axis=1)
    inputs = pieces.take(timeline.inputs, axis=1).sum(axis=1)
    cache = none = np.zeros(len(batches))
    if Purpose.CACHE in timeline.purposes:
        cache = pieces[:, timeline.inputs[purpose[timeline.inputs] == Purpose.CACHE]].sum(axis=1)
    start = weights + inputs
    if not len(timeline.event_piece):
        return LiveMemory(
            batches=batches,
            live_bytes=np.zeros((len(batches), 0)),
            peak_bytes=start,
            peak_node=np.full(len(batches), -1),
            weight_bytes=weights,
            gradient_bytes=none,
            state_bytes=none,
            cache_bytes=cache,
            workspace_bytes=none,
            activation_bytes=inputs - cache,
        )
    change = pieces.take(timeline.event_piece, axis=1) * timeline.event_sign
    live = start[:, None] + np.cumsum(change, axis=1)
    peak_event = live.argmax(axis=1)
    rows = np.arange(len(batches))
    peak = live[rows, peak_event]
    purpose_of_event = purpose.take(timeline.event_piece)
    # Bytes are whole numbers: they add up to the same in any order.
    held = np.array(
        [
            np.bincount(purpose_of_event[: stop + 1], weights=row[: stop + 1], minlength=len(Purpose))
            for stop, row in zip(peak_event.tolist(), change, strict=True)
        ],
        dtype=np.float64,
    )
    workspace = held[:, _WORKSPACES].sum(axis=1)
    gradients, state = held[:, Purpose.GRADIENT], held[:, Purpose.OPTIMIZER_STATE]
    cache = cache + held[:, Purpose.CACHE]
    of_nodes = np.maximum.reduceat(live, timeline.node_start, axis=1)
    return LiveMemory(
        batches=batches,
        live_bytes=of_nodes.reshape(len(batches), timeline.steps, -1).max(axis=1),
        peak_bytes=peak,
        peak_node=timeline.event_node[peak_event],
        weight_bytes=weights,
        gradient_bytes=gradients,
        state_bytes=state,
        cache_bytes=cache,
        workspace_bytes=workspace,
        activation_bytes=peak - weights - gradients - state - cache - workspace,
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
