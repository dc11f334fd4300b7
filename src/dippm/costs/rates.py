"""The few numbers that say how much of a data sheet's peak a kernel reaches in a whole network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

from dippm.devices import DeviceSpec
from dippm.errors import DippmError

__all__ = ["Rates", "architecture_of", "rates_on_each"]


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Sustained rates and overheads, the same for every device that is not named; fitted on measured whole models.

    Shares are of the device's peak.

    Args:
        tensor_gemm: Share of the tensor-core peak that a large matrix product reaches.
        tensor_conv: The same for a large convolution in NHWC.
        tensor_feed: Time to bring operands to tensor cores over that of the arithmetic, on cards whose tensor cores
            run at the full rate of their architecture, where that is eight operations per byte of shared memory, and
            in proportion elsewhere (:mod:`dippm.costs.device_sheets`). Both shares above are of cards at half of it.
        nchw_shuffle: How often a tensor-core convolution in NCHW moves its input and output through memory once more
            to change their order; 0 for never, 1 for once each.
        attention: Share of the peak that fused attention reaches at full tiles, but for that of 32 bits on tensor
            cores (:class:`~dippm.costs.device_sheets.DeviceSheets`).
        direct_conv: Share of the FP32 peak that cuDNN's depthwise and thinly grouped convolutions reach in NCHW.
        direct_conv_nhwc: The same in NHWC.
        own_depthwise: What PyTorch's own depthwise kernel (:mod:`dippm.costs.depthwise`) reaches of the FP32 peak that
            would be there with FP32 units for every instruction: one in thirty is a product, the others hold it up.
        wide_depthwise_nhwc: The same of depthwise convolutions in NHWC with a filter of more than seven pixels, or with
            several outputs of each input.
        stream: Share of peak bandwidth of a kernel bound by memory, on devices whose element-wise kernels were not
            measured.
        norm: Speed of layer, group and batch norm, and softmax, over that of an element-wise kernel that moves as much.
        join: The same of concatenation and padding, which copy rows as they are.
        join_cycles: Cycles of a multiprocessor for each element of a concatenation that goes element by element
            (:func:`dippm.costs.extra_work.joined_one_by_one`). 0 where bytes alone count.
        join_block_cycles: Cycles for which a block of threads of a concatenation keeps a multiprocessor busy, whether
            it finds anything to do or not (:func:`dippm.costs.extra_work.joins_ms`). 0 where bytes alone count.
        move: The same of copies that change an order, gathering, resizing.
        pool: The same of pooling and reductions.
        gap_us: Least time between the starts of two dependent kernels, microseconds.
        cache_gain: How many times peak bandwidth the L2 cache delivers.
        cache_bytes_per_cycle: Bytes that the L2 cache delivers to a multiprocessor in a clock cycle, at least what
            memory does; 0 where ``cache_gain`` is all that is known.
        element_cycles: Cycles of a multiprocessor that each element takes, beside its bytes, in kernels that find the
            place of every element by itself: batch norms of inference, and arithmetic whose operands differ in shape or
            format. 0 where bytes alone count.
        pool_element_cycles: Cycles for each element that pooling by windows writes; 0 where bytes alone count.
        pool_tap_cycles: Cycles for each element that a pooling window reads to find its largest; 0 where bytes alone
            count.
        group_norm_cycles: Cycles for each element of a group in the block that takes a group norm's statistics; a
            multiprocessor runs two blocks at a time. 0 where bytes alone count.
        group_norm_reads: How often a group norm reads its input: twice where its statistics, which a kernel of their
            own takes first, are counted; once where they have cycles, or networks learn what they take.
        plane_cycles: Cycles for each plane of an image (a channel of a sample) in a thread of PyTorch's interpolating
            kernels, which have one for each pixel of a plane (:mod:`dippm.costs.resizing`); up to twice as many as what
            it moves grows to the L2 cache. 0 where bytes alone count.
        group_kernel_us: Least time of a group of a depthwise convolution in 16 bits with several outputs of each
            channel where channels lie side by side, microseconds, and as much again for every 50 taps of its filter:
            cuDNN runs a kernel for each; 0 where it does not.
        side_by_side: How many times faster the kernels of a convolution that cuDNN splits by its groups run at most in
            a captured graph, where they run side by side (:mod:`dippm.costs.split_convolutions`); 0 where none was
            measured.
        head_cycles: Cycles for each term of a sum in convolutions over nearly a whole image that cuDNN runs outside of
            tensor cores (:mod:`dippm.costs.head_convolutions`). 0 where it is taken to run none so.
        batch_norm_cycles: Cycles for each element of a channel in the block that takes a batch norm's statistics while
            training in NCHW; a channel has one block. 0 where bytes alone count.
        step_us: Least time of one step of a recurrent layer, microseconds.
        held_step_us: The same where one block of threads holds all weights of a step, a hidden state of up to 96, and
            asks no other block. In 336 directions of LSTMs of two networks on an H100 and an H200 0.5 and 1.8 in FP32
            for states of up to 64 and of up to 96, 1.0 and 1.5 in FP16; taken for what it is of GRUs and on other
            cards, of which none was traced.
        row_cycles: Cycles for which a row of a layer norm, however narrow, keeps a multiprocessor busy; 0 where
            networks learn what narrow rows take.
        host_scale: Host time per operator over that of the measured host.
        convolution_host: Host time of a convolution whose library looks for a kernel at each call over that of one
            whose kernel is known.
        backward_host: Host time of an operator of the backward pass over that of the same operator called from Python.
        weight_gradient: Time of the gradient of a convolution's weight over that of the convolution.
        direct_weight_gradient: The same of depthwise and thinly grouped convolutions.
        measured: By compute capability, such as ``"9.0"``, rates that were measured on cards of that architecture and
            stand for those above there.
        hosts: By compute capability, by how much the hosts of such cards take another time per operator than those of
            all others, over ``host_scale``.
    """

    tensor_gemm: float = 0.75
    tensor_conv: float = 0.6
    tensor_feed: float = 0.0
    nchw_shuffle: float = 1.0
    attention: float = 0.5
    direct_conv: float = 0.1
    direct_conv_nhwc: float = 0.1
    own_depthwise: float = 0.03
    wide_depthwise_nhwc: float = 0.01
    stream: float = 0.85
    norm: float = 0.75
    join: float = 0.95
    move: float = 0.7
    pool: float = 0.6
    gap_us: float = 2.0
    cache_gain: float = 2.5
    cache_bytes_per_cycle: float = 0.0
    element_cycles: float = 0.0
    join_cycles: float = 0.0
    join_block_cycles: float = 0.0
    pool_element_cycles: float = 0.0
    pool_tap_cycles: float = 0.0
    group_norm_cycles: float = 0.0
    group_norm_reads: float = 1.0
    plane_cycles: float = 0.0
    group_kernel_us: float = 0.0
    side_by_side: float = 0.0
    head_cycles: float = 0.0
    batch_norm_cycles: float = 0.0
    step_us: float = 8.0
    held_step_us: float = 1.2
    row_cycles: float = 0.0
    host_scale: float = 1.0
    convolution_host: float = 1.0
    backward_host: float = 0.5
    weight_gradient: float = 1.2
    direct_weight_gradient: float = 2.0
    measured: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    hosts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _NAMES:
            value = getattr(self, name)
            if not 0.0 <= value < 1e4:
                raise DippmError(f"The rate {name} is {value}, which cannot be.", code="artefact.invalid")
        for architecture, factor in self.hosts.items():
            if not 0.0 < factor < 1e2:
                raise DippmError(
                    f"Hosts of {architecture} cannot take {factor} times as long.", code="artefact.invalid"
                )
        # What was measured is looked at now.
        _ = self._of_architectures

    def on(self, device: DeviceSpec) -> Rates:
        """The rates that hold on a device, none of them by architecture any more."""
        return self.of(architecture_of(device))

    def of(self, architecture: str) -> Rates:
        """The same on all devices of a compute capability."""
        return self._of_architectures.get(architecture, self._elsewhere)

    def host_on(self, device: DeviceSpec) -> Rates:
        """These with the host of such a device."""
        factor = self.hosts.get(architecture_of(device), 1.0)
        return self if factor == 1.0 else self.changed({"host_scale": factor * self.host_scale})

    @cached_property
    def _elsewhere(self) -> Rates:
        """The rates that hold where none were measured."""
        return replace(self, measured={}) if self.measured else self

    @cached_property
    def _of_architectures(self) -> dict[str, Rates]:
        return {name: self._elsewhere.changed(own) for name, own in self.measured.items()}

    def changed(self, values: Mapping[str, float]) -> Rates:
        """These with other values of some rates.

        Raises:
            DippmError: ``artefact.invalid`` where a value cannot be, or names no rate.
        """
        unknown = values.keys() - set(_NAMES)
        if unknown:
            raise DippmError(f"There is no rate named {min(unknown)}.", code="artefact.invalid")
        return replace(self, **dict(values))  # type: ignore[arg-type]


def rates_on_each(
    devices: Sequence[DeviceSpec], rates: Rates | Sequence[Rates], *, by_architecture: bool
) -> tuple[Rates, ...]:
    """The rates that hold on each of some devices.

    Args:
        devices: The devices.
        rates: Rates of all of them, or those of each.
        by_architecture: Whether those that were measured on a device's architecture stand for the others there.
    """
    of_devices = [rates] * len(devices) if isinstance(rates, Rates) else rates
    return tuple(own.on(device) if by_architecture else own for own, device in zip(of_devices, devices, strict=True))


def architecture_of(device: DeviceSpec) -> str:
    """Compute capability as text, such as ``"9.0"``."""
    return "{}.{}".format(*device.compute_capability)


_NAMES = tuple(each.name for each in fields(Rates) if each.name not in {"measured", "hosts"})
