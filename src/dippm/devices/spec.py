"""What dippm knows of a device: the figures of its data sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from dippm.errors import UsageError

__all__ = ["ARCHITECTURES", "PEAK_RATES", "DeviceSpec", "MigProfile", "latest_figure"]

_Figure = TypeVar("_Figure")

ARCHITECTURES = ("pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell")
"""Architectures that a spec may name, oldest first."""

PEAK_RATES = ("fp64", "fp32", "fp16", "tf32_tensor", "fp16_tensor", "bf16_tensor", "fp8_tensor", "int8_tensor")
"""Keys of ``DeviceSpec.peak_tflops``."""

# First and last compute capability of each, as NVIDIA lists them.
_CAPABILITIES: Mapping[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "pascal": ((6, 0), (6, 2)),
    "volta": ((7, 0), (7, 2)),
    "turing": ((7, 5), (7, 5)),
    "ampere": ((8, 0), (8, 8)),
    "ada": ((8, 9), (8, 9)),
    "hopper": ((9, 0), (9, 9)),
    "blackwell": ((10, 0), (12, 9)),
}

# Wide enough for any real card, narrow enough that a figure in the wrong unit (GHz for MHz, GB for MiB, TB/s for
# GB/s) falls outside.
_RANGES: Mapping[str, tuple[float, float, str]] = {
    "sm_count": (1, 1024, ""),
    "fp32_lanes_per_sm": (8, 512, ""),
    "base_clock_mhz": (100, 10_000, " MHz"),
    "boost_clock_mhz": (100, 10_000, " MHz"),
    "memory_mb": (256, 4_194_304, " MiB"),
    "bandwidth_gb_s": (5, 100_000, " GB/s"),
    "l2_mb": (0.03, 4096, " MiB"),
    "board_power_w": (1, 10_000, " W"),
}
_PEAK_RANGE_TFLOPS = (1e-3, 1e6)
# A data sheet may round, or take another clock than the boost clock; it is never out by more than this factor.
_FP32_SLACK = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class MigProfile:
    """One MIG slice of a GPU, as the driver lists it.

    Args:
        name: The profile's name, such as ``"1g.5gb"``.
        compute_slices: Compute slices of the profile, 1 to 7.
        memory_slices: Memory slices that it occupies, 1 to 8.
        sm_count: Streaming multiprocessors that it offers.
        memory_mb: Device memory that it really offers, MiB (a 1g.5gb slice has 4864). Where driver versions differ,
            the smallest figure seen.
        max_instances: How many of it fit on one GPU, 1 to 7.
        placements: Memory slices at which an instance may start, ascending, 0 to 7; it then occupies ``memory_slices``
            of them (``nvidia-smi mig -lgipp``). Empty where they are not known.
        l2_slices: Memory slices whose part of the L2 cache it has, 1 to ``memory_slices``; None for all of its own.

    Raises:
        UsageError: A value is out of its range; code ``"device.value"``.
    """

    name: str
    compute_slices: int
    memory_slices: int
    sm_count: int
    memory_mb: float
    max_instances: int
    placements: tuple[int, ...] = ()
    l2_slices: int | None = None

    def __post_init__(self) -> None:
        where = f"MIG profile '{self.name}'"
        if not self.name.strip() or not self.name.isprintable():
            raise _bad_value("A MIG profile", "name", self.name, "a non-empty name on one line, such as '1g.5gb'")
        for key, low, high in (("compute_slices", 1, 7), ("memory_slices", 1, 8), ("max_instances", 1, 7)):
            _check_number(where, key, getattr(self, key), low, high, unit="", whole=True)
        _check_number(where, "sm_count", self.sm_count, 1, 1024, unit="", whole=True)
        _check_number(where, "memory_mb", self.memory_mb, 64, 4_194_304, unit=" MiB")
        if self.l2_slices is not None:
            _check_number(where, "l2_slices", self.l2_slices, 1, self.memory_slices, unit="", whole=True)
        if list(self.placements) != sorted(set(self.placements)):
            raise _bad_value(where, "placements", self.placements, "ascending without repeats")
        for start in self.placements:
            _check_number(where, "placements", start, 0, 7, unit="", whole=True)
        if self.placements and len(self.placements) < self.max_instances:
            raise _bad_value(where, "placements", self.placements, f"at least {self.max_instances} (max_instances)")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceSpec:
    """A device by its data sheet; never by its identity.

    Args:
        name: Canonical name, as NVML says it without the vendor, such as ``"A100-SXM4-40GB"``; a MIG slice is
            ``"1g.5gb@A100-SXM4-40GB"``.
        architecture: ``"pascal"``, ``"volta"``, ``"turing"``, ``"ampere"``, ``"ada"``, ``"hopper"``, ``"blackwell"``.
        compute_capability: Major and minor, such as ``(8, 0)``; one that the architecture has.
        sm_count: Streaming multiprocessors, 1 to 1024.
        fp32_lanes_per_sm: FP32 lanes (CUDA cores) per SM, 8 to 512.
        base_clock_mhz: Guaranteed clock under load, 100 to 10,000 MHz.
        boost_clock_mhz: Boost clock, MHz, not below the base clock.
        memory_mb: Total device memory as NVML reports it, 256 MiB to 4 TiB.
        bandwidth_gb_s: Peak device memory bandwidth, 5 to 100,000 GB/s (10^9 bytes).
        l2_mb: L2 cache, MiB.
        board_power_w: Default board power limit, 1 to 10,000 W.
        peak_tflops: Peak dense rate by arithmetic, TFLOP/s at boost clock. Keys: ``fp64``, ``fp32``, ``fp16`` (not on
            tensor cores), and where the card has them ``tf32_tensor``, ``fp16_tensor`` (FP32 accumulate),
            ``bf16_tensor``, ``fp8_tensor`` (FP32 accumulate), ``int8_tensor`` (TOP/s). A missing key means that the
            card lacks it; ``fp32`` is required and must be within a factor of two of SMs x lanes x 2 x boost clock.
        usable_memory_mb: Device memory that CUDA offers to processes, MiB: NVML's total less what the driver keeps
            for itself. None where it is not known.
        context_mb: Device memory that a process holds beside its tensors (CUDA context and loaded kernels), MiB, where
            that was measured on this device; None for an estimate.
        aliases: Other names that mean this device.
        mig_profiles: MIG slices by memory, then compute slices, smallest first; empty where the card has none, or
            where the memory that they really offer is not known.
        has_unlisted_slices: Whether the card has MIG slices of which it is not known what memory they really offer.
        parent: For a MIG slice, the name of the whole card; otherwise None.
        sources: Where each figure comes from: field name (for peak rates ``"peak_tflops.fp32"``) to citation.

    Raises:
        UsageError: A value is missing, of the wrong kind, or out of its range; code ``"device.value"``.
    """

    name: str
    architecture: str
    compute_capability: tuple[int, int]
    sm_count: int
    fp32_lanes_per_sm: int
    base_clock_mhz: float
    boost_clock_mhz: float
    memory_mb: float
    bandwidth_gb_s: float
    l2_mb: float
    board_power_w: float
    # Plain dicts rather than read-only views, so that a spec can be pickled to worker processes.
    peak_tflops: Mapping[str, float]
    usable_memory_mb: float | None = None
    context_mb: float | None = None
    aliases: tuple[str, ...] = ()
    mig_profiles: tuple[MigProfile, ...] = ()
    has_unlisted_slices: bool = False
    parent: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        # Mappings have none, and whatever is kept for a device is looked up often.
        return hash(self.name)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise _bad_value("A device", "name", self.name, "a non-empty name")
        for name in (self.name, *self.aliases):
            if not isinstance(name, str) or not name.isprintable():
                raise _bad_value("A device", "name", name, "one line without control characters")
        where = f"Device '{self.name}'"
        if self.architecture not in ARCHITECTURES:
            raise _bad_value(where, "architecture", self.architecture, "one of " + ", ".join(ARCHITECTURES))
        if len(self.compute_capability) != 2:
            raise _bad_value(where, "compute_capability", self.compute_capability, "major and minor, such as [8, 0]")
        for part in self.compute_capability:
            _check_number(where, "compute_capability", part, 0, 99, unit="", whole=True)
        first, last = _CAPABILITIES[self.architecture]
        if not first <= tuple(self.compute_capability) <= last:
            must = f"from {list(first)} to {list(last)}" if first != last else f"{list(first)}"
            got = list(self.compute_capability)
            raise _bad_value(where, "compute_capability", got, f"{must} where the architecture is {self.architecture}")
        for key, (low, high, unit) in _RANGES.items():
            _check_number(where, key, getattr(self, key), low, high, unit=unit, whole=key in _WHOLE_FIELDS)
        if self.boost_clock_mhz < self.base_clock_mhz:
            raise _bad_value(where, "boost_clock_mhz", self.boost_clock_mhz, f"at least base {self.base_clock_mhz:g}")
        if self.usable_memory_mb is not None:
            _check_number(where, "usable_memory_mb", self.usable_memory_mb, 64, self.memory_mb, unit=" MiB")
        if self.context_mb is not None:
            _check_number(where, "context_mb", self.context_mb, 0, self.memory_mb, unit=" MiB")
        self._check_peaks(where)
        self._check_mig(where)

    def _check_peaks(self, where: str) -> None:
        low, high = _PEAK_RANGE_TFLOPS
        for key, rate in self.peak_tflops.items():
            if key not in PEAK_RATES:
                raise _bad_value(where, "peak_tflops key", key, "one of " + ", ".join(PEAK_RATES))
            _check_number(where, f"peak_tflops.{key}", rate, low, high, unit=" TFLOP/s")
        if "fp32" not in self.peak_tflops:
            raise _bad_value(where, "peak_tflops", sorted(self.peak_tflops), "a table with at least fp32")
        lowest, highest = self.fp32_arithmetic_tflops / _FP32_SLACK, self.fp32_arithmetic_tflops * _FP32_SLACK
        if not lowest <= self.peak_tflops["fp32"] <= highest:
            must = f"{lowest:.3g} to {highest:.3g} TFLOP/s (SMs x lanes x 2 x boost clock, within a factor of two)"
            raise _bad_value(where, "peak_tflops.fp32", self.peak_tflops["fp32"], must)

    @property
    def memory_slices(self) -> int:
        """Memory slices of the card, which its largest MIG profile takes; 0 where it has none."""
        return max((profile.memory_slices for profile in self.mig_profiles), default=0)

    def _check_mig(self, where: str) -> None:
        order = [(profile.memory_mb, profile.compute_slices) for profile in self.mig_profiles]
        if order != sorted(order):
            must = "ordered by memory, then compute slices, smallest first"
            raise _bad_value(where, "mig_profiles", [profile.name for profile in self.mig_profiles], must)
        names = [profile.name for profile in self.mig_profiles]
        if len(set(names)) != len(names):
            raise _bad_value(where, "mig_profiles", names, "without repeats")
        of_card = {key: max((getattr(each, key) for each in self.mig_profiles), default=0) for key in _SLICES}
        for profile in self.mig_profiles:
            if profile.sm_count > self.sm_count or profile.memory_mb > self.memory_mb:
                got = f"{profile.sm_count} SMs and {profile.memory_mb:g} MiB"
                must = f"within the card's {self.sm_count} SMs and {self.memory_mb:g} MiB"
                raise _bad_value(where, f"mig_profiles '{profile.name}'", got, must)
            for key, total in of_card.items():
                if profile.max_instances * getattr(profile, key) > total:
                    kind = key.replace("_", " ")
                    got = f"{profile.max_instances} instances of {getattr(profile, key)} {kind}"
                    must = f"within the {total} {kind} of the largest profile; name one that takes the whole card too"
                    raise _bad_value(where, f"mig_profiles '{profile.name}'", got, must)
            if profile.placements and profile.placements[-1] + profile.memory_slices > of_card["memory_slices"]:
                must = f"places where {profile.memory_slices} of {of_card['memory_slices']} memory slices still follow"
                raise _bad_value(where, f"mig_profiles '{profile.name}', placements", profile.placements, must)

    @property
    def capacity_mb(self) -> float:
        """Memory that one process can have, MiB: what CUDA offers where it is known, else NVML's total."""
        return self.memory_mb if self.usable_memory_mb is None else self.usable_memory_mb

    @property
    def fp32_arithmetic_tflops(self) -> float:
        """SMs x FP32 lanes x 2 (multiply and add) x boost clock, TFLOP/s."""
        return self.sm_count * self.fp32_lanes_per_sm * 2 * self.boost_clock_mhz * 1e6 / 1e12

    @property
    def is_mig_slice(self) -> bool:
        """Whether this is a MIG slice rather than a whole card."""
        return self.parent is not None


def latest_figure(figures: Mapping[tuple[int, int], _Figure], device: DeviceSpec) -> _Figure:
    """What holds from the last compute capability on that is not after the device's.

    Args:
        figures: By the first compute capability that each holds of; at least one. Older devices have the first of them.
        device: The device.
    """
    known = [first for first in figures if first <= device.compute_capability]
    return figures[max(known, default=min(figures))]


_WHOLE_FIELDS = frozenset({"sm_count", "fp32_lanes_per_sm"})
# What a card has of which its MIG profiles each take some.
_SLICES = ("memory_slices", "compute_slices")


def _check_number(
    where: str, key: str, value: object, low: float, high: float, *, unit: str, whole: bool = False
) -> None:
    kind = "a whole number" if whole else "a number"
    # bool is an int in Python, and `true` in a TOML file is no count of anything.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (whole and not isinstance(value, int)):
        raise _bad_value(where, key, value, kind)
    if not math.isfinite(float(value)) or not low <= float(value) <= high:  # type: ignore[arg-type]
        raise _bad_value(where, key, value, f"{kind}, {low:g} to {high:g}{unit}")


def _bad_value(where: str, key: str, got: object, must: str) -> UsageError:
    return UsageError(f"{where}: {key} must be {must}. Got {got!r} instead.", code="device.value")
