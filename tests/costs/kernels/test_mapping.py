import numpy as np
import pytest

from dippm.costs.kernels import ConvProblem, Family, GemmProblem, KernelModel, load_kernel_model
from dippm.costs.kernels.mapping import (
    ConvShape,
    conv2d_time_ms,
    resized_traffic_ms,
    tensor_core_rate_tflops,
    tensor_core_time_ms,
)
from dippm.devices import find_device
from dippm.errors import UsageError

A100 = find_device("A100-PCIE-40GB")


@pytest.fixture(scope="module")
def model() -> KernelModel:
    return load_kernel_model()


def _conv(
    *, cin: int, cout: int, kernel: int, size: int, stride: int = 1, groups: int = 1, batch: int = 32, dilation: int = 1
) -> ConvShape:
    return ConvShape.of(
        batch=batch,
        in_channels=cin,
        out_channels=cout,
        kernel_height=kernel,
        kernel_width=kernel,
        in_height=size,
        in_width=size,
        out_height=size // stride,
        out_width=size // stride,
        stride=stride,
        dilation=dilation,
        groups=groups,
    )


def test_a_3x3_convolution_is_the_conv_model(model: KernelModel) -> None:
    mapped = conv2d_time_ms(model, _conv(cin=64, cout=128, kernel=3, size=28), A100)
    own = model.time_ms(Family.CONV, ConvProblem.of(batch=32, in_channels=64, out_channels=128, height=28), A100)
    assert mapped == pytest.approx(own)


def test_a_1x1_convolution_is_a_matrix_product(model: KernelModel) -> None:
    mapped = conv2d_time_ms(model, _conv(cin=256, cout=64, kernel=1, size=56), A100)
    own = model.time_ms(Family.LINEAR, GemmProblem.of(m=32 * 56 * 56, n=64, k=256), A100)
    assert mapped == pytest.approx(own)


def test_only_unit_stride_3x3_gains_from_winograd(model: KernelModel) -> None:
    shape = _conv(cin=256, cout=256, kernel=3, size=28)
    plain = conv2d_time_ms(model, _conv(cin=256, cout=256, kernel=3, size=28, dilation=2), A100)[0]
    assert conv2d_time_ms(model, shape, A100)[0] < plain
    assert plain >= shape.flops[0] / (A100.peak_tflops["fp32"] * 1e9)


def test_depthwise_is_bound_by_traffic_and_cheaper_than_dense(model: KernelModel) -> None:
    shape = _conv(cin=512, cout=512, kernel=3, size=56, groups=512)
    time_ms = conv2d_time_ms(model, shape, A100)[0]
    assert time_ms > shape.bytes[0] / (A100.bandwidth_gb_s * 1e6)
    assert time_ms < conv2d_time_ms(model, _conv(cin=512, cout=512, kernel=3, size=56), A100)[0]


def test_groups_save_work_but_less_than_their_number(model: KernelModel) -> None:
    dense = conv2d_time_ms(model, _conv(cin=512, cout=512, kernel=3, size=28, stride=2), A100)[0]
    grouped = conv2d_time_ms(model, _conv(cin=512, cout=512, kernel=3, size=28, stride=2, groups=32), A100)[0]
    assert dense / 32 < grouped < dense


def test_mixed_shapes_keep_their_order(model: KernelModel) -> None:
    shapes = ConvShape.of(
        batch=8,
        in_channels=[64, 64, 64, 64, 3],
        out_channels=[64, 64, 64, 64, 64],
        kernel_height=[3, 1, 3, 3, 7],
        kernel_width=[3, 1, 3, 3, 7],
        in_height=[56, 56, 56, 56, 224],
        in_width=[56, 56, 56, 56, 224],
        out_height=[56, 56, 56, 56, 112],
        out_width=[56, 56, 56, 56, 112],
        stride=[1, 1, 1, 1, 2],
        groups=[1, 1, 64, 4, 1],
    )
    together = conv2d_time_ms(model, shapes, A100)
    assert np.isfinite(together).all()
    single = [
        conv2d_time_ms(model, _conv(cin=64, cout=64, kernel=k, size=56, groups=g, batch=8), A100)[0]
        for k, g in ((3, 1), (1, 1), (3, 64), (3, 4))
    ]
    np.testing.assert_allclose(together[:4], single, rtol=1e-6)


def test_channels_must_fit_the_groups() -> None:
    with pytest.raises(UsageError, match="multiple of its groups"):
        _conv(cin=10, cout=64, kernel=3, size=8, groups=4)


def test_the_rate_falls_back_where_the_card_lacks_the_format() -> None:
    assert tensor_core_rate_tflops(A100, "tf32") == 156.0
    assert tensor_core_rate_tflops(find_device("V100"), "tf32") == find_device("V100").peak_tflops["fp32"]
    assert tensor_core_rate_tflops(find_device("P100"), "fp16") == find_device("P100").peak_tflops["fp16"]
    with pytest.raises(UsageError, match="fp8"):
        tensor_core_rate_tflops(A100, "fp8")


def test_tensor_cores_never_lose_and_never_beat_their_peak(model: KernelModel) -> None:
    problem = GemmProblem.of(m=[8, 512, 4096, 8192], n=[8, 512, 4096, 8192], k=[8, 512, 4096, 8192])
    fp32_ms = model.time_ms(Family.LINEAR, problem, A100)
    floor_ms = model.launch_floor_ms(Family.LINEAR, A100)
    for precision in ("tf32", "fp16", "bf16"):
        time_ms = tensor_core_time_ms(fp32_ms, problem, A100, precision=precision, floor_ms=floor_ms)
        assert (time_ms <= fp32_ms).all()
        assert (time_ms >= problem.flops / (A100.peak_tflops[f"{precision}_tensor"] * 1e9)).all()
        assert time_ms[-1] < 0.3 * fp32_ms[-1]


def test_unaligned_sizes_are_slower(model: KernelModel) -> None:
    problem = GemmProblem.of(m=4096, n=[4096, 4097], k=4096)
    fp32_ms = model.time_ms(Family.LINEAR, problem, A100)
    time_ms = tensor_core_time_ms(fp32_ms, problem, A100, precision="fp16", floor_ms=0.03)
    assert time_ms[1] > 1.5 * time_ms[0]


def test_a_card_without_tensor_cores_gains_by_traffic_alone(model: KernelModel) -> None:
    device = find_device("P4")
    problem = GemmProblem.of(m=[4096, 4096], n=[4096, 1], k=[4096, 4096])
    fp32_ms = model.time_ms(Family.LINEAR, problem, device)
    time_ms = tensor_core_time_ms(fp32_ms, problem, device, precision="bf16", floor_ms=0.03)
    assert time_ms[0] > 0.9 * fp32_ms[0]
    assert (time_ms <= fp32_ms).all()


def test_half_the_bytes_halve_what_is_above_the_floor() -> None:
    result = resized_traffic_ms(np.array([0.03, 1.03, 0.01]), floor_ms=0.03, ratio=0.5)
    np.testing.assert_allclose(result, [0.03, 0.53, 0.01])
    with pytest.raises(UsageError, match="ratio"):
        resized_traffic_ms(np.ones(1), floor_ms=0.0, ratio=0.0)
