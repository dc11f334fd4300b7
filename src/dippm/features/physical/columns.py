"""Names and places of the columns that the additive network reads."""

from __future__ import annotations

from dippm.costs.precision import Arithmetic
from dippm.costs.training_step.training_graph import Phase
from dippm.graph import OpKind

__all__ = [
    "ALIGNMENTS",
    "AT",
    "COLUMNS",
    "FORMATS",
    "FUNCTIONS",
    "LARGEST_CORRECTION",
    "LAUNCH_MS",
    "PIXEL_ALIGNMENTS",
    "SIZES",
    "STATIC",
]

LAUNCH_MS = 0.002
"""Overhead of a kernel that the network corrects, ms: the least time between two dependent kernels."""

LARGEST_CORRECTION = 3.0
"""Bound of the logarithm of a correction: no operator is off by more than a factor of 20."""

FORMATS = {
    "fp32": (Arithmetic.FP32,),
    "tf32": (Arithmetic.TF32,),
    "half": (Arithmetic.FP16, Arithmetic.BF16),
}
"""Formats with a column of their own; both halves run the same kernels at the same rates."""

FUNCTIONS = ("clone", "roll", "im2col", "mean", "sum", "norm", "addcmul", "max")
"""Functions whose kernels differ most from the plainest of their kind."""

ALIGNMENTS = (2, 4, 8, 16, 32, 64, 128)
"""Divisors that channels are tested for."""

PIXEL_ALIGNMENTS = (2, 4, 8)
"""Divisors that the pixels of a convolution's image are tested for: a product over NCHW loads so many at a time."""

STATIC: tuple[str, ...] = (
    *(f"is_{kind.value}" for kind in OpKind),
    *(f"in_{phase.name.lower()}" for phase in Phase),
    *(f"in_{name}" for name in FORMATS),
    *(f"function_{name}" for name in FUNCTIONS),
    "input_bytes",
    "output_bytes",
    "inputs",
    "input_rank",
    "output_rank",
    "is_in_place",
    "reads_reordered",
    "reads_part",
    "is_read_reordered",
    "kernel",
    "is_pointwise",
    "is_long",
    "stride",
    "dilation",
    "groups",
    "in_channels",
    "out_channels",
    "group_inputs",
    "group_outputs",
    "is_depthwise",
    "is_grouped",
    *(f"in_channels_by_{size}" for size in ALIGNMENTS),
    *(f"out_channels_by_{size}" for size in ALIGNMENTS),
    *(f"pixels_by_{size}" for size in PIXEL_ALIGNMENTS),
    "has_bias",
    "has_mask",
    "is_last",
    "width",
    "in_height",
    "out_height",
)
"""Columns that depend on neither batch nor device."""

SIZES = ("products", "rows", "columns", "depth")
"""Sizes of a contraction: independent products, rows, columns and depth."""

_DYNAMIC = (
    "kernel_ms",
    "share",
    "compute_use",
    "memory_use",
    "balance",
    "over_cache",
    "write_share",
    "weight_share",
    "cast_share",
    "first_share",
    "shrink",
    *SIZES,
    *(f"{name}_by_8" for name in SIZES[1:]),
    "waves",
    "last_wave",
    "row_width",
    "window",
    "is_split",
)
_CONDITIONS = ("nhwc", "channels_last", "channels_last_convolution", "training")

COLUMNS: tuple[str, ...] = (*STATIC, *_DYNAMIC, *_CONDITIONS)
"""Columns of the node features."""

AT: dict[str, int] = {name: position for position, name in enumerate(COLUMNS)}
"""Position of each column."""
