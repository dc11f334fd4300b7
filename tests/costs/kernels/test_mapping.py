from collections.abc import Sequence

import numpy as np
import pytest

from dippm.costs.kernels import ConvProblem, Family, GemmProblem, KernelModel, load_kernel_model
from dippm.costs.kernels.mapping import ConvShape, conv2d_busy_ms
from dippm.devices import find_device

A100 = find_device("A100-PCIE-40GB")


@pytest.fixture(scope="module")
def model() -> KernelModel:
    return load_kernel_model()


def _shape(**sizes: float | Sequence[float]) -> ConvShape:
    """Shapes from numbers and lists of one length."""
    columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(size, dtype=np.float64)) for size in sizes.values()))
    return ConvShape(**dict(zip(sizes, columns, strict=True)))


def _conv(
    *,
    cin: int,
    cout: int,
    kernel: int,
    size: int,
    stride: int = 1,
    groups: int = 1,
    batch: int = 32,
    dilation: int = 1,
    depth: int = 1,
) -> ConvShape:
    return _shape(
        batch=batch,
        in_channels=cin,
        out_channels=cout,
        kernel_height=kernel,
        kernel_width=kernel,
        kernel_depth=depth,
        stride=stride,
        dilation=dilation,
        groups=groups,
        in_height=size,
        in_width=size,
        out_height=size // stride,
        out_width=size // stride,
    )


def test_a_3x3_convolution_is_the_conv_model(model: KernelModel) -> None:
    mapped = conv2d_busy_ms(model, _conv(cin=64, cout=128, kernel=3, size=28), [A100])[0]
    problem = ConvProblem.of(batch=32, in_channels=64, out_channels=128, height=28)
    own = model.busy_ms(Family.CONV, problem, [A100])[0]
    assert mapped == pytest.approx(own)


def test_a_1x1_convolution_is_a_matrix_product(model: KernelModel) -> None:
    mapped = conv2d_busy_ms(model, _conv(cin=256, cout=64, kernel=1, size=56), [A100])[0]
    own = model.busy_ms(Family.LINEAR, GemmProblem.of(m=32 * 56 * 56, n=64, k=256), [A100])[0]
    assert mapped == pytest.approx(own)


def test_only_unit_stride_3x3_gains_from_winograd(model: KernelModel) -> None:
    shape = _conv(cin=256, cout=256, kernel=3, size=28)
    plain = conv2d_busy_ms(model, _conv(cin=256, cout=256, kernel=3, size=28, dilation=2), [A100])[0, 0]
    assert conv2d_busy_ms(model, shape, [A100])[0, 0] < plain
    assert plain >= shape.gemm.flops[0] / (A100.peak_tflops["fp32"] * 1e9)


def test_groups_save_work_but_less_than_their_number(model: KernelModel) -> None:
    dense = conv2d_busy_ms(model, _conv(cin=512, cout=512, kernel=3, size=28, stride=2), [A100])[0, 0]
    grouped = conv2d_busy_ms(model, _conv(cin=512, cout=512, kernel=3, size=28, stride=2, groups=32), [A100])[0, 0]
    assert dense / 32 < grouped < dense


def test_mixed_shapes_keep_their_order(model: KernelModel) -> None:
    shapes = _shape(
        batch=8,
        in_channels=[64, 64, 64, 64, 3],
        out_channels=[64, 64, 64, 64, 64],
        kernel_height=[3, 1, 3, 3, 7],
        kernel_depth=1.0,
        kernel_width=[3, 1, 3, 3, 7],
        stride=[1, 1, 1, 1, 2],
        dilation=1,
        groups=[1, 1, 8, 4, 1],
        in_height=[56, 56, 56, 56, 224],
        in_width=[56, 56, 56, 56, 224],
        out_height=[56, 56, 56, 56, 112],
        out_width=[56, 56, 56, 56, 112],
    )
    together = conv2d_busy_ms(model, shapes, [A100])[0]
    assert np.isfinite(together).all()
    single = [
        conv2d_busy_ms(model, _conv(cin=64, cout=64, kernel=k, size=56, groups=g, batch=8), [A100])[0, 0]
        for k, g in ((3, 1), (1, 1), (3, 8), (3, 4))
    ]
    np.testing.assert_allclose(together[:4], single, rtol=1e-6)


def test_a_slice_of_three_dimensions_is_no_3x3(model: KernelModel) -> None:
    """It is the product that it amounts to: cuDNN has no algorithm for it that does with less."""
    flat, deep = (_conv(cin=192, cout=64, kernel=3, size=56, batch=128, depth=depth) for depth in (1, 3))
    device = find_device("V100")
    slow = conv2d_busy_ms(model, deep, [device])
    assert slow == pytest.approx(model.busy_ms(Family.LINEAR, deep.gemm, [device]))
    assert slow > 1.3 * conv2d_busy_ms(model, flat, [device])
    # Of the images that the channels of a slice come from each is there once.
    assert flat.bytes - deep.bytes == pytest.approx(4 * 128 * 128 * 56 * 56)
