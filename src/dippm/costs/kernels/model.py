"""Kernel times from the shipped artefact: `KernelModel.times_ms` as measured, `KernelModel.busy_ms` without the host.

Each family has two networks (see ``dippm.costs.kernels.network``): one for devices that were measured or nearly so, one
for all others; between them, the logarithms of their times are mixed by how alike the device is to a measured one. For
batched products a law takes the place of the second network (see ``dippm.costs.kernels.tile_law``); where the reduced
dimension is much deeper than any measured one it takes that of the first as well.

What an answer means: fp32 without TF32, one eager call with warm caches, launch included, mean of the fastest few
calls. Inside the tables' ranges (``dippm.costs.kernels.problems``) the report's errors apply. Outside them the
efficiency of the nearest edge of the tables is kept and the roofline does the rest; no answer is below what the
device's peak rates allow.

**The shadow.** A call was timed from an event before it to one after it, and the host records the second when it has
launched everything and has come back. A kernel that has ended by then takes as long as an empty one; of a longer one
that much is hidden in the floor:

    time = max(floor, floor - shadow + kernel)

The element-wise tables show the shadow, because their times are straight lines in the bytes: 10 to 22 microseconds by
host, of floors of 25 to 100. `busy_ms` turns this round. Where nothing shows, or no more than noise, the shadow is as
full as peak rates ask for; the more shows beyond that, the fuller it is. Where a law answers, it knows the kernel's
time by itself.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph, InvalidProtobuf

from dippm.costs.kernels.features import (
    DEVICE_FEATURES,
    Features,
    compute_features,
    device_features,
    lower_bound_ms,
)
from dippm.costs.kernels.network import MEASURED, TRANSFER, Float32Array, nearest_support, support_weight
from dippm.costs.kernels.problems import (
    ELEMENTWISE_OPERATORS,
    ConvProblem,
    ElementwiseProblem,
    Family,
    FloatArray,
    GemmProblem,
    Problem,
    RowProblem,
)
from dippm.costs.kernels.tile_law import SPLIT_DEPTH, TileLaw, tile_terms
from dippm.devices.spec import DeviceSpec
from dippm.errors import DippmError

__all__ = ["ARTEFACT_DIRECTORY", "ARTEFACT_VERSION", "KernelModel", "KernelSupport", "load_kernel_model"]

ARTEFACT_DIRECTORY = Path(__file__).with_name("artefact")

#: Version of the artefact's form and of the feature definitions; an artefact of another version is refused.
ARTEFACT_VERSION = 4


# Reduced dimension from which on nothing is left of what the network says: 64 times the deepest measured one.
_UNKNOWN_DEPTH = 16.0 * SPLIT_DEPTH
# A network's layers are as wide for every row: many rows at once take memory and save no time.
_ROWS_PER_RUN = 2048

# Questions of which the answers are kept, the last that were asked, and the most problems of one: what a linear layer
# takes at some rows is asked at every batch (see ``dippm.costs.kernels.growing``).
_KEPT_QUESTIONS = 64
_KEPT_PROBLEMS = 4096

# Learned times of next to no work scatter around the floor by this share of it: so much is hidden as the shadow is.
_NOISE = 0.1
# From so many times the noise on what shows is no noise.
_SURE = 4.0

# Problems of each family that are over long before they show; of each element-wise operator one.
_HIDDEN: dict[Family, Problem] = {
    Family.LINEAR: GemmProblem.of(m=32, n=32, k=32),
    Family.BMM: GemmProblem.of(b=8, m=32, n=32, k=32),
    Family.CONV: ConvProblem.of(batch=1, in_channels=8, out_channels=8, height=5),
    Family.ELEMENTWISE: ElementwiseProblem.of(
        elements=[65536.0] * len(ELEMENTWISE_OPERATORS), operator=tuple(ELEMENTWISE_OPERATORS)
    ),
    Family.SOFTMAX: RowProblem.of(rows=64, width=256),
    Family.LAYER_NORM: RowProblem.of(rows=64, width=272),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelSupport:
    """How well a device is covered by the measurements of a family.

    Args:
        nearest_device: The measured device that is most alike.
        weight: 1 where the device counts as measured, 0 where it is unlike all of them.
    """

    nearest_device: str
    weight: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Question:
    """What :meth:`KernelModel.busy_ms` is asked; two of the same sizes and devices are one."""

    family: Family
    devices: tuple[DeviceSpec, ...]
    sizes: tuple[bytes, ...]
    problem: Problem = field(compare=False)

    @classmethod
    def of(cls, family: Family, problem: Problem, devices: Sequence[DeviceSpec]) -> _Question:
        sizes = tuple(getattr(problem, size.name).tobytes() for size in fields(problem))
        return cls(family=family, devices=tuple(devices), sizes=sizes, problem=problem)


class KernelModel:
    """Learned kernel times; sessions are created when a family is first asked for.

    Args:
        directory: Folder of the artefact: ``artefact.json``, laws included, and one ONNX file per family and network.

    Raises:
        DippmError: The folder holds no artefact, or one of another version.
    """

    def __init__(self, directory: Path = ARTEFACT_DIRECTORY) -> None:
        path = directory / "artefact.json"
        try:
            manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as exc:
            raise DippmError(
                f"The kernel-time artefact '{path}' cannot be read: {exc}.",
                code="artefact.unreadable",
                cure="Reinstall dippm, or rebuild it with: python -m dippm.training.kernels",
            ) from exc
        if manifest.get("version") != ARTEFACT_VERSION or manifest.get("device_features") != list(DEVICE_FEATURES):
            raise DippmError(
                f"The kernel-time artefact '{path}' has version {manifest.get('version')!r}; this program"
                f" needs {ARTEFACT_VERSION}.",
                code="artefact.version",
                cure="Rebuild it with: python -m dippm.training.kernels",
            )
        self._directory = directory
        self._manifest = manifest
        self._sessions: dict[tuple[Family, str], onnxruntime.InferenceSession] = {}
        self._floors: dict[tuple[Family, str, DeviceSpec], FloatArray] = {}
        self._shadows: dict[str, float] = manifest["shadow_ms"]
        self._median_shadow_ms = float(np.median(list(self._shadows.values())))
        self._measured = {
            family: np.array(list(manifest["families"][family.value]["measured_devices"].values()), dtype=np.float64)
            for family in Family
        }
        entries = {family: manifest["families"][family.value].get("tile_law") for family in Family}
        self._laws = {family: TileLaw.from_dict(entry) for family, entry in entries.items() if entry is not None}
        self._supports: dict[tuple[Family, DeviceSpec], tuple[KernelSupport, FloatArray]] = {}
        self._kept_busy_ms = functools.lru_cache(maxsize=_KEPT_QUESTIONS)(self._busy_ms)

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What the artefact says of itself: versions, seed, data hashes, metrics, training command."""
        return self._manifest

    def support(self, family: Family, device: DeviceSpec) -> KernelSupport:
        """How well a device is covered by the measurements of a family."""
        return self._support(family, device)[0]

    def _support(self, family: Family, device: DeviceSpec) -> tuple[KernelSupport, FloatArray]:
        """The cover of a device, and the device features of the measured device that is most alike."""
        known = self._supports.get((family, device))
        if known is None:
            own, measured = device_features(device), self._measured[family]
            nearest = nearest_support(own, measured)
            name = list(self._manifest["families"][family.value]["measured_devices"])[nearest]
            known = KernelSupport(nearest_device=name, weight=support_weight(own, measured)), measured[nearest]
            self._supports[family, device] = known
        return known

    def time_ms(self, family: Family, problem: Problem, device: DeviceSpec) -> FloatArray:
        """Time of each problem on one device, ms; see :meth:`times_ms`.

        Shapes:
            Result: [n].
        """
        times: FloatArray = self.times_ms(family, problem, [device])[0]
        return times

    def times_ms(self, family: Family, problem: Problem, devices: Sequence[DeviceSpec]) -> FloatArray:
        """Time of each problem on each device, ms, fp32 without TF32, launch included.

        Args:
            family: The kernel family.
            problem: Its problems.
            devices: The devices, one or more; only their numbers count.

        Returns:
            One time per device and problem, finite and positive.

        Raises:
            UsageError: The problem's type does not belong to the family.

        Shapes:
            Result: [D, n].
        """
        return self._mixed(family, problem, devices, self._time_by)

    def busy_ms(self, family: Family, problem: Problem, devices: Sequence[DeviceSpec]) -> FloatArray:
        """Time for which each problem keeps each device busy, ms: without the host, and with what the shadow hides.

        Args:
            family: The kernel family.
            problem: Its problems.
            devices: The devices, one or more; only their numbers count.

        Returns:
            The times, which cannot be written to: answers to what was asked lately are kept.

        Raises:
            UsageError: The problem's type does not belong to the family.

        Shapes:
            Result: [D, n].
        """
        question = _Question.of(family, problem, devices)
        return self._busy_ms(question) if len(problem) > _KEPT_PROBLEMS else self._kept_busy_ms(question)

    def _busy_ms(self, question: _Question) -> FloatArray:
        result = self._mixed(question.family, question.problem, question.devices, self._busy_by)
        result.flags.writeable = False
        return result

    def _mixed(
        self,
        family: Family,
        problem: Problem,
        devices: Sequence[DeviceSpec],
        answer: Callable[[Family, str, Problem, Sequence[DeviceSpec], Features], FloatArray],
    ) -> FloatArray:
        """What either network answers, the logarithms mixed by how far a device counts as measured, [D, n]."""
        if len(problem) == 0:
            return np.empty((len(devices), 0), dtype=np.float64)
        features = compute_features(family, problem, devices)
        weight = np.array([[self.support(family, device).weight] for device in devices])
        if family in self._laws and isinstance(problem, GemmProblem):
            weight = weight * _known_depth(problem)
        log_ms = np.zeros_like(features.baseline_ms)
        for kind, share in ((MEASURED, weight), (TRANSFER, 1.0 - weight)):
            chosen = np.flatnonzero((share > 0.0).any(axis=1)).tolist()
            if chosen:
                own = answer(family, kind, problem, [devices[i] for i in chosen], features.take(chosen))
                log_ms[chosen] += share[chosen] * np.log(own)
        return np.maximum(np.exp(log_ms), lower_bound_ms(family, problem, devices))

    def _time_by(
        self, family: Family, kind: str, problem: Problem, devices: Sequence[DeviceSpec], features: Features
    ) -> FloatArray:
        """Shapes: result [D, n]."""
        law = self._laws.get(family)
        if kind == TRANSFER and law is not None and isinstance(problem, GemmProblem):
            return np.stack([law.time_ms(problem, device) for device in devices])
        matrix = features.matrix
        if kind == MEASURED:
            # A relative of a measured device is answered as that device, with its own rates in the ratios: its power
            # limit or clocks alone must not push the network to where it never was.
            matrix = matrix.copy()
            own = np.stack([self._support(family, device)[1] for device in devices])
            matrix[..., -len(DEVICE_FEATURES) :] = own[:, None, :]
        return np.asarray(features.baseline_ms * np.exp(self._run(family, kind, matrix)))

    def _busy_by(
        self, family: Family, kind: str, problem: Problem, devices: Sequence[DeviceSpec], features: Features
    ) -> FloatArray:
        """Shapes: result [D, n]."""
        law = self._laws.get(family)
        if kind == TRANSFER and law is not None and isinstance(problem, GemmProblem):
            return np.stack([law.kernel_ms(tile_terms(problem, device)) for device in devices])
        floor_ms = np.stack([self._floors_of(family, kind, device) for device in devices])
        if isinstance(problem, ElementwiseProblem):
            floor_ms = floor_ms[:, problem.operator]
        shadow_ms = np.array([[self._shadow_of(kind, device)] for device in devices])
        above_ms = np.maximum(self._time_by(family, kind, problem, devices, features) - floor_ms, 0.0)
        noise_ms = _NOISE * floor_ms
        # What shows beyond the noise says that the shadow is full, by degrees so that noise does not count twice.
        most_ms = shadow_ms + noise_ms
        shown = np.clip((above_ms / noise_ms - 1.0) / _SURE, 0.0, 1.0)
        hidden_ms = np.minimum(np.maximum(features.peak_rate_ms, most_ms * shown), most_ms)
        return np.asarray(np.maximum(above_ms - noise_ms, 0.0) + hidden_ms)

    def _shadow_of(self, kind: str, device: DeviceSpec) -> float:
        """How long a kernel may run before a measured time shows it, ms; by the median of all hosts off the tables."""
        if kind == MEASURED:
            return self._shadows[self.support(Family.ELEMENTWISE, device).nearest_device]
        return self._median_shadow_ms

    def _floors_of(self, family: Family, kind: str, device: DeviceSpec) -> FloatArray:
        """What a call took before its size showed, ms, [1] or one of each element-wise operator."""
        floors = self._floors.get((family, kind, device))
        if floors is None:
            problem = _HIDDEN[family]
            (floors,) = self._time_by(family, kind, problem, [device], compute_features(family, problem, [device]))
            self._floors[family, kind, device] = floors
        return floors

    def _run(self, family: Family, kind: str, matrix: Float32Array) -> FloatArray:
        """Shapes: matrix [D, n, F]; result [D, n]."""
        session, rows = self._session(family, kind), matrix.reshape(-1, matrix.shape[-1])
        log_ratio = np.empty(len(rows))
        for start in range(0, len(rows), _ROWS_PER_RUN):
            stop = start + _ROWS_PER_RUN
            (log_ratio[start:stop],) = session.run(None, {"features": rows[start:stop]})
        return log_ratio.reshape(matrix.shape[:-1])

    def _session(self, family: Family, kind: str) -> onnxruntime.InferenceSession:
        session = self._sessions.get((family, kind))
        if session is None:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            options.inter_op_num_threads = 1
            options.log_severity_level = 3
            # An arena doubles as it grows and keeps what it had: a long sweep would hold the largest model's share.
            options.enable_cpu_mem_arena = False
            path = self._directory / f"{family.value}-{kind}.onnx"
            try:
                session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
            except (OSError, RuntimeError, Fail, InvalidArgument, InvalidGraph, InvalidProtobuf) as exc:
                raise DippmError(
                    f"The kernel-time network '{path}' cannot be read: {exc}.", code="artefact.unreadable"
                ) from exc
            self._sessions[family, kind] = session
        return session


def _known_depth(problem: GemmProblem) -> FloatArray:
    """How far a product's reduced dimension is like the measured ones, 1 to 0; result [n]."""
    beyond = np.log(np.maximum(problem.k, 1.0) / SPLIT_DEPTH) / np.log(_UNKNOWN_DEPTH / SPLIT_DEPTH)
    return np.asarray(1.0 - np.clip(beyond, 0.0, 1.0))


@functools.cache
def load_kernel_model() -> KernelModel:
    """The shipped model, loaded once per process."""
    return KernelModel()
