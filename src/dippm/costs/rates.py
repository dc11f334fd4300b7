"""The few numbers that say how much of a data sheet's peak a kernel reaches in a whole network."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dippm.errors import DippmError

__all__ = ["Rates"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Sustained rates and overheads, the same for every device; fitted on measured whole models.

    Shares are of the device's peak.

    Args:
        tensor_gemm: Share of the tensor-core peak that a large matrix product reaches.
        tensor_conv: The same for a large convolution in NHWC.
        tensor_feed: Time to bring operands to tensor cores over that of the arithmetic, on cards whose tensor cores
            run at the full rate of their architecture, where that is eight operations per byte of shared memory, and
            in proportion elsewhere (:mod:`dippm.costs.device_sheets`). Both shares above are of cards at half of it.
        nchw_shuffle: How often a tensor-core convolution in NCHW moves its input and output through memory once more
            to change their order; 0 for never, 1 for once each.
        attention: Share of the peak that fused attention reaches at full tiles.
        direct_conv: Share of the FP32 peak that cuDNN's depthwise and thinly grouped convolutions reach in NCHW.
        direct_conv_nhwc: The same in NHWC.
        own_depthwise: What PyTorch's own depthwise kernel (:mod:`dippm.costs.depthwise`) reaches of the FP32 peak that
            would be there with FP32 units for every instruction: one in thirty is a product, the others hold it up.
        wide_depthwise_nhwc: The same of depthwise convolutions in NHWC with a filter of more than seven pixels, or with
            several outputs of each input.
        stream: Share of peak bandwidth of a kernel bound by memory, on devices whose element-wise kernels were not
            measured.
        norm: Speed of layer, group and batch norm, and softmax, over that of an element-wise kernel that moves as much.
        move: The same of copies, concatenation, padding, gathering, resizing.
        pool: The same of pooling and reductions.
        gap_us: Least time between the starts of two dependent kernels, microseconds.
        cache_gain: How many times peak bandwidth the L2 cache delivers.
        step_us: Least time of one step of a recurrent layer, microseconds.
        row_cycles: Cycles for which a row of a layer norm, however narrow, keeps a multiprocessor busy; 0 where
            networks learn what narrow rows take.
        host_scale: Host time per operator over that of the measured host.
        convolution_host: Host time of a convolution whose library looks for a kernel at each call over that of one
            whose kernel is known.
        backward_host: Host time of an operator of the backward pass over that of the same operator called from Python.
        weight_gradient: Time of the gradient of a convolution's weight over that of the convolution.
        direct_weight_gradient: The same of depthwise and thinly grouped convolutions.
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
    move: float = 0.7
    pool: float = 0.6
    gap_us: float = 2.0
    cache_gain: float = 2.5
    step_us: float = 8.0
    row_cycles: float = 0.0
    host_scale: float = 1.0
    convolution_host: float = 1.0
    backward_host: float = 0.5
    weight_gradient: float = 1.2
    direct_weight_gradient: float = 2.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0.0 <= value < 1e4:
                raise DippmError(f"The rate {field.name} is {value}, which cannot be.", code="artefact.invalid")
