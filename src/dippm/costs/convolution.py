"""Convolutions: their sizes and multiply-accumulates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.polynomial import FloatArray, multiply
from dippm.costs.sizes import GraphSizes, SizeTable
from dippm.graph import Attribute, OpKind

__all__ = ["ConvolutionSizes", "ConvolutionTable"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ConvolutionSizes:
    """Convolutions, all brought to two dimensions.

    A one-dimensional convolution has height 1. A three-dimensional one is that many two-dimensional ones as it has
    output slices, each over as many times more input channels as its kernel is deep: multiply-accumulates and the
    equivalent matrix product stay what they are. The kernels that run it are others: ``kernel_depth`` tells.

    Args:
        node: Node of each column.
        batch: Samples.
        in_channels: Input channels over all groups.
        out_channels: Output channels over all groups.
        in_height: Input rows.
        in_width: Input columns.
        out_height: Output rows.
        out_width: Output columns.
        kernel_height: Kernel rows.
        kernel_width: Kernel columns.
        kernel_depth: Kernel slices, by which the input channels are multiplied; 1 where there are none.
        stride_height: Step between rows.
        stride_width: Step between columns.
        dilation_height: Spacing of kernel rows.
        dilation_width: Spacing of kernel columns.
        groups: Groups.
        is_transposed: Whether the convolution is transposed.
        is_weight_gradient: Whether it computes the gradient of its weight; sizes are those of the convolution itself.
        has_bias: Whether a bias is added.

    Shapes:
        batch to out_width: [B, n_convolution]; node and the others: [n_convolution].
    """

    node: IndexArray
    batch: FloatArray
    in_channels: FloatArray
    out_channels: FloatArray
    in_height: FloatArray
    in_width: FloatArray
    out_height: FloatArray
    out_width: FloatArray
    kernel_height: FloatArray
    kernel_width: FloatArray
    kernel_depth: FloatArray
    stride_height: FloatArray
    stride_width: FloatArray
    dilation_height: FloatArray
    dilation_width: FloatArray
    groups: FloatArray
    is_transposed: npt.NDArray[np.bool_]
    is_weight_gradient: npt.NDArray[np.bool_]
    has_bias: npt.NDArray[np.bool_]

    def take(self, columns: IndexArray) -> ConvolutionSizes:
        """Some of them."""
        return ConvolutionSizes(**{name: getattr(self, name)[..., columns] for name in _NAMES})


_NAMES = tuple(each.name for each in fields(ConvolutionSizes))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ConvolutionTable:
    """Convolutions with the batch left open."""

    table: SizeTable
    macs: FloatArray
    constants: FloatArray
    is_transposed: npt.NDArray[np.bool_]
    is_weight_gradient: npt.NDArray[np.bool_]
    has_bias: npt.NDArray[np.bool_]

    @classmethod
    def build(cls, sizes: GraphSizes, node: IndexArray) -> ConvolutionTable:
        """Read images from the tensors, the kernel from the weight, the rest from the attributes."""
        source, weight, out = sizes.inputs(node, 0), sizes.inputs(node, 1), sizes.outputs(node)
        stated = sizes.read_attributes(node, _stated, numbers=6).T
        is_weight_gradient = sizes.is_kind(OpKind.CONV_WEIGHT_GRAD)[node]
        if is_weight_gradient.any():
            # It reads the gradient of the output and the input, and writes what is the weight elsewhere.
            source, weight, out = (
                np.where(is_weight_gradient, of_gradient, own)
                for of_gradient, own in ((weight, source), (out, weight), (source, out))
            )
        is_transposed = sizes.is_kind(OpKind.CONV_TRANSPOSE)[node] | (stated[0] > 0.0)
        spatial = np.where(weight >= 0, sizes.rank(weight) - 2, sizes.rank(source) - 2)
        kernel = [sizes.dimension(weight, np.where(spatial > axis, 1 + spatial - axis, 99))[:, 0] for axis in range(3)]
        width, height, depth = kernel
        is_batched = sizes.rank(source) > spatial + 1
        channel_axis = np.where(is_batched, 1, 0)

        def extent(tensors: IndexArray, axis: int) -> FloatArray:
            """A spatial dimension counted from the last, 1 where there are fewer."""
            return sizes.dimension(tensors, np.where(spatial > axis, -1 - axis, 99))

        batch = sizes.dimension(source, np.where(is_batched, 0, 99))
        sliced = np.where(is_transposed, source, out)
        in_channels = sizes.dimension(source, channel_axis) * depth[:, None]
        out_channels = sizes.dimension(out, channel_axis)
        # A weight [Co, Ci / g, *k] meets every output element, [Ci, Co / g, *k] every input element.
        per_element = multiply(*(sizes.dimension(weight, axis) for axis in range(1, 5)))
        macs = multiply(sizes.elements_of(np.where(is_transposed, source, out)), per_element)
        return cls(
            table=SizeTable.of(
                node,
                [
                    multiply(batch, extent(sliced, 2)),
                    in_channels,
                    out_channels,
                    extent(source, 1),
                    extent(source, 0),
                    extent(out, 1),
                    extent(out, 0),
                ],
            ),
            macs=macs,
            constants=np.stack([height, width, depth, *stated[1:]]),
            is_transposed=is_transposed,
            is_weight_gradient=is_weight_gradient,
            has_bias=sizes.inputs(node, 2) >= 0,
        )

    def at(self, batches: FloatArray) -> ConvolutionSizes:
        """Sizes at each batch."""
        batch, in_channels, out_channels, in_height, in_width, out_height, out_width = self.table.at(batches)
        height, width, depth, stride_height, stride_width, dilation_height, dilation_width, groups = self.constants
        return ConvolutionSizes(
            node=self.table.node,
            batch=batch,
            in_channels=in_channels,
            out_channels=out_channels,
            in_height=in_height,
            in_width=in_width,
            out_height=out_height,
            out_width=out_width,
            kernel_height=height,
            kernel_width=width,
            kernel_depth=depth,
            stride_height=stride_height,
            stride_width=stride_width,
            dilation_height=dilation_height,
            dilation_width=dilation_width,
            groups=groups,
            is_transposed=self.is_transposed,
            is_weight_gradient=self.is_weight_gradient,
            has_bias=self.has_bias,
        )


def _stated(attributes: Mapping[str, Attribute]) -> tuple[float, ...]:
    """What the attributes say: whether it is transposed, stride and dilation for rows and columns, groups."""
    groups = attributes.get("groups")
    return (
        attributes.get("is_transposed") is True,
        *_pair(attributes.get("stride")),
        *_pair(attributes.get("dilation")),
        groups if isinstance(groups, int | float) else 1,
    )


def _pair(value: Attribute | None) -> tuple[float, float]:
    """The last two of some values, 1 for each that is missing."""
    values: tuple[float, ...] = value if isinstance(value, tuple) else ()
    if isinstance(value, int | float):
        values = (value,)
    return values[-2] if len(values) > 1 else 1, values[-1] if values else 1
