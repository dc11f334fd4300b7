"""What kernels reach of the peaks on a device's data sheet."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dippm.costs.polynomial import FloatArray
from dippm.costs.precision import Arithmetic
from dippm.costs.tensor_rates import OF_FP16, tensor_format, tensor_tflops
from dippm.devices import DeviceSpec, latest_figure
from dippm.units import BYTES_PER_MIB, GIGA, MEGA, TERA

__all__ = ["FED_WELL_FROM", "DeviceSheets", "formats_on_tensor_cores", "reached_tflops"]

_ARITHMETICS = tuple(Arithmetic)
# The rate of a format without tensor cores. One that is not listed computes in FP32: PyTorch asks the library to
# accumulate half-precision products in FP32, so that a fast plain FP16 rate (P100) goes unused.
_PLAIN_PEAK = {Arithmetic.FP64: "fp64"}
# FP16 operations per multiprocessor and clock of an architecture's tensor cores at full rate, by the first compute
# capability that has it (NVIDIA's whitepapers of Volta to Blackwell); other formats in proportion.
_FULL_RATE = {(7, 0): 1024.0, (8, 0): 2048.0, (8, 6): 1024.0, (9, 0): 4096.0, (10, 0): 8192.0, (12, 0): 1024.0}
# Bytes that a multiprocessor's shared memory delivers in a clock, by the first compute capability (NVIDIA's
# whitepapers, that of GA102 for Turing), and the operations for each of them on Volta and on Ada, which the rate
# ``tensor_feed`` is of.
_SHARED_BYTES = {(7, 0): 128.0, (7, 5): 64.0, (8, 0): 128.0}
_OF_A_BYTE = 8.0
# Formats that libraries before CUDA 11.8 feed slowly.
_FED_SLOWLY = frozenset({Arithmetic.FP16, Arithmetic.BF16})
#: The first compute capability that those do not drive.
FED_WELL_FROM = (9, 0)
# Instructions that a multiprocessor's schedulers start in a clock over its FP32 units, by the first compute capability:
# from Volta to the A100 four schedulers share 64 units (NVIDIA's whitepapers).
_ISSUED = {(3, 0): 1.0, (7, 0): 2.0, (8, 6): 1.0}
# GeForce cards accumulate in FP32 at half of the rate.
_HALF_RATE = 0.5
# Where fused attention in half precision is FlashAttention.
_FLASH_FROM = (8, 0)
# Part of its peak that a board with power to spare sustains in large products, in FP32; the measured: 0.84 and 0.89.
_SUSTAINED = 0.85
# Board power for each TFLOP/s of FP16 that tensor cores reach, over the share that is sustained, by the first compute
# capability made in a process: 12 nm from the T4, 7 and 8 nm from the A100-PCIE-40GB, 4 nm from the RTX 6000 Ada and,
# with large tiles and HBM, from the H100 PCIe, and of Blackwell's workstation cards from the RTX PRO 6000 Max-Q, all
# five by hand from the rows of data/published.
_W_PER_TFLOP = {(7, 0): 3.0, (8, 0): 1.4, (8, 9): 1.65, (9, 0): 1.0, (12, 0): 1.45}
# The same for each TFLOP/s of FP32 outside of tensor cores, by the compute capabilities of which a card was seen to be
# held back: the fastest products of 3 to 10 ms reach 3.65 TFLOP/s on a T4 of 70 W and 3.4 on a P4 of 75 W, those of
# less than 1 ms, over before clocks are lowered, 4.7 and 3.9 (tables of single operators; of 30 ms and more 3.4 and
# 3.3). In a model they follow each other. Convolutions were measured with zeros, which draw less power.
_W_PER_FP32_TFLOP = {(6, 1): 22.0, (7, 5): 19.2}
# Fused attention of FP32 multiplies on tensor cores from Ampere on, each operand as the sum of two of TF32, of whose
# four products three are taken (PyTorch's ``mem_eff_attention/gemm_kernel_utils.h``, ``OpMultiplyAddFastF32``),
# whatever ``allow_tf32`` says. To split them takes FP32 units. Share of the TF32 peak, and operations of those units
# for one of the attention, by hand from 24 TFLOP/s of whole tiles on an A100 (xformers' pull request 587) and 6.4 on an
# RTX 5060 Ti (the notes of candle-fused-attn).
_SPLIT_PRODUCTS = 3.0
_SPLIT_SHARE = 0.83
_SPLITTING = 0.36
_SPLIT_FROM = (8, 0)
# Data-centre cards from Hopper on have networks that learned what is left of the time at the rate of FP32 units.
_LEARNED_IN_FP32 = frozenset({9, 10})
# From this part of the FP32 peak on tensor cores are the faster ones, as in TF32 on GeForce cards: of their own peak
# they sustain more than FP32 units, which have everything else to do as well.
_AS_FAST = 0.9
# A library that may round to TF32 may as well not: FP32 saves up to 2.25 times the products by Winograd's algorithm,
# and does not move an image to another order first. From this ratio of the rates on tensor cores always win.
_CLOSE = 4.0
# Share of the L2 cache that a chain of kernels finds warm.
_WARM_CACHE = 0.5


def formats_on_tensor_cores(device: DeviceSpec, formats: Iterable[Arithmetic]) -> frozenset[Arithmetic]:
    """The formats that run on tensor cores."""
    least = _AS_FAST * device.peak_tflops["fp32"]
    return frozenset(value for value in formats if tensor_tflops(device, value) > least)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DeviceSheets:
    """Figures of devices that have tensor cores for the same formats.

    Args:
        devices: The devices.
        is_tensor: Whether each arithmetic runs on tensor cores.
        peaks: Rate of each arithmetic, FLOP/s.
        fp32: FP32 peak, FLOP/s.
        sustained_fp32: What FP32 units sustain of it where the board's power holds them back, FLOP/s; without end where
            that was not seen.
        issued: What the FP32 peak would be if every instruction that can be started in a clock were one, FLOP/s.
        bandwidth: Bytes per second.
        warm_bytes: Part of the L2 cache that a chain of kernels finds warm.
        sms: Streaming multiprocessors.
        sm_cycles: Clock cycles of all multiprocessors at boost clock, per second.
        has_flash: Whether fused attention in half precision is FlashAttention.
        split_attention: Rate of fused attention in FP32 and TF32 at whole tiles where it multiplies in three products
            of TF32, FLOP/s; 0 where it does not.
        is_tf32_close: Whether the TF32 rate is so near that of FP32 that an algorithm of FP32 may win.
        has_learned_fp32: Whether networks learned what is left of times in FP32, whose inputs stay as they were.

    Shapes:
        is_tensor: [len(Arithmetic)]; peaks: [D, len(Arithmetic)]; is_tf32_close and has_learned_fp32: [D]; the others:
        [D, 1, 1].
    """

    devices: tuple[DeviceSpec, ...]
    is_tensor: npt.NDArray[np.bool_]
    peaks: FloatArray
    fp32: FloatArray
    sustained_fp32: FloatArray
    issued: FloatArray
    bandwidth: FloatArray
    warm_bytes: FloatArray
    sms: FloatArray
    sm_cycles: FloatArray
    has_flash: npt.NDArray[np.bool_]
    split_attention: FloatArray
    is_tf32_close: npt.NDArray[np.bool_]
    has_learned_fp32: npt.NDArray[np.bool_]

    @staticmethod
    @lru_cache(maxsize=256)
    def of(
        devices: tuple[DeviceSpec, ...],
        on_tensor: frozenset[Arithmetic],
        tensor_feeds: tuple[float, ...],
        *,
        feeds_slowly: bool = False,
    ) -> DeviceSheets:
        """Read the data sheets, once for all graphs.

        Args:
            devices: The devices.
            on_tensor: Formats that run on tensor cores.
            tensor_feeds: Of each device, see :class:`~dippm.costs.rates.Rates`.
            feeds_slowly: See :attr:`~dippm.costs.software.Software.feeds_slowly`.
        """

        def column(values: Iterable[float]) -> FloatArray:
            return np.array(list(values), dtype=np.float64)[:, None, None]

        return DeviceSheets(
            devices=devices,
            is_tensor=np.array([value in on_tensor for value in _ARITHMETICS]),
            peaks=np.array(
                [
                    _peaks(device, on_tensor, tensor_feed, feeds_slowly=feeds_slowly)
                    for device, tensor_feed in zip(devices, tensor_feeds, strict=True)
                ]
            ),
            fp32=column(device.peak_tflops["fp32"] * TERA for device in devices),
            sustained_fp32=column(_sustained_fp32_tflops(device) * TERA for device in devices),
            issued=column(latest_figure(_ISSUED, device) * device.peak_tflops["fp32"] * TERA for device in devices),
            bandwidth=column(device.bandwidth_gb_s * GIGA for device in devices),
            warm_bytes=column(_WARM_CACHE * device.l2_mb * BYTES_PER_MIB for device in devices),
            sms=column(device.sm_count for device in devices),
            sm_cycles=column(device.sm_count * device.boost_clock_mhz * MEGA for device in devices),
            has_flash=column(device.compute_capability >= _FLASH_FROM for device in devices) > 0,
            split_attention=column(_split_tflops(device) * TERA for device in devices),
            is_tf32_close=np.array([_is_tf32_close(device) for device in devices]),
            has_learned_fp32=np.array([device.compute_capability[0] in _LEARNED_IN_FP32 for device in devices]),
        )


def _is_tf32_close(device: DeviceSpec) -> bool:
    return tensor_tflops(device, Arithmetic.TF32) < _CLOSE * device.peak_tflops["fp32"]


def _sustained_fp32_tflops(device: DeviceSpec) -> float:
    w_per_tflop = _W_PER_FP32_TFLOP.get(device.compute_capability)
    return math.inf if w_per_tflop is None else device.board_power_w / w_per_tflop


def _split_tflops(device: DeviceSpec) -> float:
    major, _ = device.compute_capability
    if device.compute_capability < _SPLIT_FROM or major in _LEARNED_IN_FP32 or "tf32_tensor" not in device.peak_tflops:
        return 0.0
    products = _SPLIT_PRODUCTS / (_SPLIT_SHARE * device.peak_tflops["tf32_tensor"])
    return 1.0 / (products + _SPLITTING / device.peak_tflops["fp32"])


def _peaks(
    device: DeviceSpec, on_tensor: frozenset[Arithmetic], tensor_feed: float, *, feeds_slowly: bool
) -> list[float]:
    """Rate of each arithmetic on a device, FLOP/s."""
    available = device.peak_tflops
    return [
        TERA
        * (
            _sustained_tflops(device, value, tensor_feed, feeds_slowly=feeds_slowly)
            if value in on_tensor
            else available.get(_PLAIN_PEAK.get(value, "fp32"), available["fp32"])
        )
        for value in _ARITHMETICS
    ]


def _sustained_tflops(device: DeviceSpec, arithmetic: Arithmetic, tensor_feed: float, *, feeds_slowly: bool) -> float:
    """What tensor cores sustain in a large product, TFLOP/s."""
    return _SUSTAINED * reached_tflops(device, arithmetic, tensor_feed, feeds_slowly=feeds_slowly)


def reached_tflops(device: DeviceSpec, arithmetic: Arithmetic, tensor_feed: float, *, feeds_slowly: bool) -> float:
    """What tensor cores reach at the boost clock: what feeds them, or the board's power, holds them back, TFLOP/s.

    Args:
        device: The device.
        arithmetic: A format that its tensor cores compute in, or in which they compute something else instead.
        tensor_feed: See :class:`~dippm.costs.rates.Rates`.
        feeds_slowly: See :attr:`~dippm.costs.software.Software.feeds_slowly`.
    """
    arithmetic = tensor_format(device, arithmetic)
    fed = tensor_tflops(device, arithmetic) / _feeding(device, arithmetic, tensor_feed, feeds_slowly=feeds_slowly)
    return min(fed, device.board_power_w / latest_figure(_W_PER_TFLOP, device) * OF_FP16[arithmetic])


def _feeding(device: DeviceSpec, arithmetic: Arithmetic, tensor_feed: float, *, feeds_slowly: bool) -> float:
    """Time of a large product on tensor cores over that of a card at half rate, both measured in their peaks' time.

    The faster the arithmetic, the more shared memory holds it up, and the more so, the more operations its
    architecture does at the full rate for each byte that shared memory delivers. With libraries that feed slowly it is
    all that counts in FP16 and BF16, so that the full rate is no faster than half of it; published times say so, and
    that it is not so in TF32. Libraries that know Hopper are none of these.
    """
    full_rate = latest_figure(_FULL_RATE, device)
    full = full_rate * OF_FP16[arithmetic] * device.sm_count * device.boost_clock_mhz * MEGA
    # Below half of the full rate nothing waits.
    share = min(max(tensor_tflops(device, arithmetic) * TERA / full, _HALF_RATE), 1.0)
    feed = tensor_feed * full_rate / latest_figure(_SHARED_BYTES, device) / _OF_A_BYTE
    is_slow = feeds_slowly and arithmetic in _FED_SLOWLY and device.compute_capability < FED_WELL_FROM
    weight = 1.0 if is_slow else feed / (1.0 + feed)
    return (1.0 - weight + weight * share) / (1.0 - weight + weight * _HALF_RATE)
