from __future__ import annotations

import pytest

from dippm.costs import Arithmetic, Precision, Workload, plan_types
from dippm.costs.precision import stored_half
from dippm.graph import DType, Graph, GraphArrays, OpKind, TensorRole, TensorSpec, fixed_shape

_CONV = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (1, 1), "groups": 1}


def _block(builder):
    """Convolution, batch norm, ReLU, then a sum with the input, as in a residual block."""
    x = builder.input(builder.N, 8, 4, 4)
    y = builder.node(OpKind.CONV, [x, builder.weight(8, 8, 3, 3)], builder.N, 8, 4, 4, **_CONV)
    scales = [builder.weight(8), builder.weight(8), *(builder.weight(8, role=TensorRole.BUFFER) for _ in range(2))]
    y = builder.node(OpKind.BATCH_NORM, [y, *scales], builder.N, 8, 4, 4)
    y = builder.node(OpKind.RELU, [y], builder.N, 8, 4, 4, alias_of=y)
    return builder.node(OpKind.ADD, [y, x], builder.N, 8, 4, 4)


@pytest.mark.parametrize(
    ("precision", "conv", "linear", "norm"),
    [
        (Precision.FP32, Arithmetic.TF32, Arithmetic.FP32, Arithmetic.FP32),
        (Precision.FP32_STRICT, Arithmetic.FP32, Arithmetic.FP32, Arithmetic.FP32),
        (Precision.TF32, Arithmetic.TF32, Arithmetic.TF32, Arithmetic.FP32),
        (Precision.AMP, Arithmetic.FP16, Arithmetic.FP16, Arithmetic.FP32),
        (Precision.AMP_BF16, Arithmetic.BF16, Arithmetic.BF16, Arithmetic.FP32),
        (Precision.FP16, Arithmetic.FP16, Arithmetic.FP16, Arithmetic.FP16),
        (Precision.BF16, Arithmetic.BF16, Arithmetic.BF16, Arithmetic.BF16),
    ],
)
def test_arithmetic_by_precision(builder, precision, conv, linear, norm):
    x = builder.input(builder.N, 8, 4, 4)
    x = builder.node(OpKind.CONV, [x, builder.weight(8, 8, 3, 3)], builder.N, 8, 4, 4, **_CONV)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(4, 4)], builder.N, 8, 4, 4)
    builder.node(OpKind.LAYER_NORM, [x], builder.N, 8, 4, 4, axes_size=4)
    assert plan_types(builder.graph(), precision).arithmetic == (conv, linear, norm)


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize(
    ("dtype", "arithmetic", "element_bytes"),
    [(DType.COMPLEX64, Arithmetic.FP32, 8.0), (DType.COMPLEX128, Arithmetic.FP64, 16.0)],
)
def test_complex_numbers_stay_as_they_are(builder, precision, dtype, arithmetic, element_bytes):
    x, weight = builder.input(builder.N, 8, dtype=dtype), builder.weight(8, 8, dtype=dtype)
    builder.node(OpKind.MATMUL, [x, weight], builder.N, 8, dtype=dtype)
    plan = plan_types(builder.graph(), precision)
    assert plan.arithmetic == (arithmetic,)
    assert plan.tensor_bytes.tolist() == [element_bytes] * 3
    assert plan.read_bytes.tolist() == [element_bytes] * 2
    assert not len(plan.casts)


def test_which_precisions_are_autocast():
    assert {precision for precision in Precision if precision.is_autocast} == {Precision.AMP, Precision.AMP_BF16}


def test_recurrent_layers_may_use_tf32_by_default(builder):
    x = builder.input(builder.N, 10, 8)
    builder.node(OpKind.LSTM, [x], builder.N, 10, 8, hidden_size=8, num_layers=1, num_directions=1)
    assert plan_types(builder.graph()).arithmetic == (Arithmetic.TF32,)


@pytest.mark.parametrize(
    ("dtype", "arithmetic"),
    [
        (DType.FLOAT64, Arithmetic.FP64), (DType.FLOAT16, Arithmetic.FP16), (DType.BFLOAT16, Arithmetic.BF16),
        (DType.FLOAT8, Arithmetic.FP8), (DType.INT8, Arithmetic.INT8), (DType.UINT8, Arithmetic.INT8),
    ],
)  # fmt: skip
def test_the_default_keeps_what_the_model_has(builder, dtype, arithmetic):
    x = builder.input(builder.N, 8, dtype=dtype)
    builder.node(OpKind.LINEAR, [x, builder.weight(8, 8, dtype=dtype)], builder.N, 8, dtype=dtype)
    plan = plan_types(builder.graph())
    assert plan.arithmetic == (arithmetic,)
    assert plan.tensor_bytes.tolist() == [dtype.bits / 8] * 3


def test_whole_model_halves_every_floating_tensor(builder):
    x = builder.input(builder.N, 8)
    index = builder.input(builder.N, dtype=DType.INT64)
    double = builder.weight(8, dtype=DType.FLOAT64)
    builder.node(OpKind.ADD, [x, double], builder.N, 8)
    plan = plan_types(builder.graph(), Precision.FP16)
    assert [plan.tensor_bytes[i] for i in (x, index, double, double + 1)] == [2, 8, 2, 2]
    assert len(plan.casts) == 0


def test_a_model_of_16_bits_computes_in_fp32_where_it_says_so(builder):
    x = builder.input(builder.N, 8, dtype=DType.BFLOAT16)
    y = builder.node(OpKind.CAST, [x], builder.N, 8)
    y = builder.node(OpKind.POW, [y], builder.N, 8)
    builder.node(OpKind.LINEAR, [x, builder.weight(8, 8, dtype=DType.BFLOAT16)], builder.N, 8, dtype=DType.BFLOAT16)
    graph = builder.graph()
    assert plan_types(graph, Precision.BF16).tensor_bytes.tolist() == [2, 4, 4, 2, 2]
    # The other format of 16 bits is as large, and computes otherwise.
    plan = plan_types(graph, Precision.FP16)
    assert plan.tensor_bytes.tolist() == [2, 4, 4, 2, 2]
    assert plan.arithmetic[-1] is Arithmetic.FP16


def test_autocast_through_a_residual_block(builder):
    out = _block(builder)
    graph = builder.graph()
    plan = plan_types(graph, Precision.AMP)
    conv, norm, relu, _ = (node.outputs[0] for node in graph.nodes)
    # The convolution writes fp16, batch norm and ReLU keep it, the sum with the fp32 input is fp32.
    assert [plan.tensor_bytes[i] for i in (conv, norm, relu, out)] == [2, 2, 2, 4]
    # The input is cast before the convolution, the weight too, and only the weight's copy is kept.
    casts = plan.casts
    assert casts.node.tolist() == [0, 0]
    assert casts.tensor.tolist() == [0, 1]
    assert casts.is_cached.tolist() == [False, True]
    assert casts.from_bytes.tolist() == [4, 4]
    assert casts.to_bytes.tolist() == [2, 2]
    # The batch norm reads fp16 activations and fp32 parameters.
    assert plan.read_bytes.tolist() == [2, 2, 2, 4, 4, 4, 4, 2, 2, 4]


def test_autocast_casts_a_shared_weight_once_and_an_activation_every_time(builder):
    x = builder.input(builder.N, 8)
    weight = builder.weight(8, 8)
    view = builder.node(OpKind.VIEW, [weight], 8, 8, alias_of=weight, function="transpose")
    builder.node(OpKind.LINEAR, [x, weight], builder.N, 8)
    builder.node(OpKind.MATMUL, [x, view], builder.N, 8)
    plan = plan_types(builder.graph(), Precision.AMP)
    assert list(zip(plan.casts.node.tolist(), plan.casts.tensor.tolist(), strict=True)) == [(1, x), (1, weight), (2, x)]


def test_autocast_raises_norms_and_powers_to_fp32(builder):
    x = builder.input(builder.N, 8)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(8, 8)], builder.N, 8)
    gelu = builder.node(OpKind.GELU, [x], builder.N, 8)
    norm = builder.node(OpKind.LAYER_NORM, [gelu], builder.N, 8, axes_size=8)
    exp = builder.node(OpKind.UNARY, [gelu], builder.N, 8, function="exp")
    root = builder.node(OpKind.UNARY, [gelu], builder.N, 8, function="sqrt")
    plan = plan_types(builder.graph(), Precision.AMP)
    assert [plan.tensor_bytes[i] for i in (gelu, norm, exp, root)] == [2, 4, 4, 2]
    half, single = Arithmetic.FP16, Arithmetic.FP32
    assert plan.arithmetic == (half, half, single, single, half)
    assert plan.casts.node.tolist()[2:] == [2, 3]
    assert plan.casts.to_bytes.tolist()[2:] == [4, 4]


@pytest.mark.parametrize(
    ("kind", "attributes", "written"),
    [
        (OpKind.SOFTMAX, {"axes": (1,)}, 4),
        (OpKind.REDUCE, {"function": "sum"}, 4),
        (OpKind.REDUCE, {"function": "mean"}, 2),
        (OpKind.CUMULATIVE, {"function": "sum"}, 4),
    ],
)
def test_autocast_sums_and_softmax_read_fp16_and_write_fp32(builder, kind, attributes, written):
    x = builder.input(builder.N, 8)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(8, 8)], builder.N, 8)
    y = builder.node(kind, [x], builder.N, 8, **attributes)
    plan = plan_types(builder.graph(), Precision.AMP)
    assert plan.tensor_bytes[y] == written
    assert plan.read_bytes[-1] == 2
    assert 1 not in plan.casts.node.tolist()


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        (OpKind.REDUCE, {"function": "mse_loss"}),
        (OpKind.REDUCE, {"function": "binary_cross_entropy_with_logits"}),
        (OpKind.GATHER, {"function": "nll_loss"}),
    ],
)
def test_autocast_casts_what_losses_read_to_fp32(builder, kind, attributes):
    x = builder.input(builder.N, 8)
    x, target = (builder.node(OpKind.LINEAR, [x, builder.weight(8, 8)], builder.N, 8) for _ in range(2))
    loss = builder.node(kind, [x, target], **attributes)
    plan = plan_types(builder.graph(), Precision.AMP)
    assert plan.tensor_bytes[loss] == 4
    assert [number for number in plan.casts.node.tolist() if number == 2] == [2, 2]
    in_half = plan_types(builder.graph(), Precision.FP16)
    assert in_half.tensor_bytes[loss] == 2
    assert 2 not in in_half.casts.node.tolist()


@pytest.mark.parametrize("precision", [Precision.AMP, Precision.AMP_BF16])
def test_logarithms_that_are_asked_for_in_the_type_of_their_scores_stay_in_it(builder, precision):
    x = builder.input(builder.N, 8)
    scores = builder.node(OpKind.LINEAR, [x, builder.weight(8, 8)], builder.N, 8)
    kept = builder.node(OpKind.LOG_SOFTMAX, [scores], builder.N, 8, axes=(1,), is_kept=True)
    single = builder.node(OpKind.CAST, [scores], builder.N, 8, dtype=DType.FLOAT32)
    of_single = builder.node(OpKind.LOG_SOFTMAX, [single], builder.N, 8, axes=(1,), is_kept=True)
    plan = plan_types(builder.graph(), precision)
    assert [plan.tensor_bytes[i] for i in (kept, of_single)] == [2, 4]
    assert not {1, 3} & set(plan.casts.node.tolist())


def test_autocast_leaves_in_place_results_and_explicit_casts_alone(builder):
    x = builder.input(builder.N, 8)
    half = builder.node(OpKind.LINEAR, [x, builder.weight(8, 8)], builder.N, 8)
    tanh = builder.node(OpKind.TANH, [x], builder.N, 8)
    into = builder.node(OpKind.ADD, [tanh, half], builder.N, 8, alias_of=tanh)
    cast = builder.node(OpKind.CAST, [half], builder.N, 8, dtype=DType.FLOAT32)
    plan = plan_types(builder.graph(), Precision.AMP)
    assert [plan.tensor_bytes[i] for i in (half, into, cast)] == [2, 4, 4]


def test_a_raised_product_casts_what_it_reads_and_writes_fp32(builder):
    x = builder.input(builder.N, 8, 8)
    y = builder.node(OpKind.LINEAR, [x, builder.weight(8, 8)], builder.N, 8, 8)
    z = builder.node(OpKind.MATMUL, [y, y], builder.N, 8, 8, is_raised=True)
    plan = plan_types(builder.graph(), Precision.AMP)
    assert plan.arithmetic == (Arithmetic.FP16, Arithmetic.FP32)
    assert [plan.tensor_bytes[index] for index in (y, z)] == [2.0, 4.0]
    # One copy of what it reads twice, from 2 bytes to 4.
    casts = plan.casts
    assert casts.node.tolist() == [0, 0, 1]
    assert (casts.from_bytes[2], casts.to_bytes[2]) == (2.0, 4.0)


def test_a_number_does_not_promote_a_tensor(builder):
    x = builder.input(builder.N, 8)
    half = builder.node(OpKind.LINEAR, [x, builder.weight(8, 8)], builder.N, 8)
    scaled = builder.node(OpKind.MUL, [half, builder.weight()], builder.N, 8)
    assert plan_types(builder.graph(), Precision.AMP).tensor_bytes[scaled] == 2


def test_autocast_concatenation_casts_to_the_widest(builder):
    x = builder.input(builder.N, 8)
    half = builder.node(OpKind.LINEAR, [x, builder.weight(8, 8)], builder.N, 8)
    joined = builder.node(OpKind.CONCAT, [half, x], builder.N, 16)
    plan = plan_types(builder.graph(), Precision.AMP)
    assert plan.tensor_bytes[joined] == 4
    assert plan.casts.tensor.tolist()[-1] == half
    assert plan.casts.to_bytes.tolist()[-1] == 4


@pytest.mark.parametrize("are_turned", [False, True])
def test_a_cache_that_begins_empty_has_the_type_of_its_first_keys(builder, are_turned):
    x = builder.input(builder.N, 8)
    keys, values = (builder.node(OpKind.LINEAR, [x, builder.weight(8, 8)], builder.N, 8) for _ in range(2))
    if are_turned:  # as by positions in FP32
        keys = builder.node(OpKind.MUL, [keys, builder.weight(8)], builder.N, 8)
    empty = [builder.weight(0, role=TensorRole.CONSTANT) for _ in range(2)]
    joined = [builder.node(OpKind.CONCAT, list(pair), builder.N, 8) for pair in zip(empty, (keys, values), strict=True)]
    plan = plan_types(builder.graph(), Precision.AMP)
    assert plan.tensor_bytes[joined].tolist() == ([4, 4] if are_turned else [2, 2])
    assert plan.casts.tensor.tolist().count(values) == are_turned


def test_casts_become_work_of_their_own(builder):
    _block(builder)
    work = Workload.from_graph(builder.graph(), Precision.AMP).at([1, 2])
    assert work.casts.bytes_read.tolist() == [[4 * 128, 4 * 576], [4 * 256, 4 * 576]]
    assert work.casts.bytes_written.tolist() == [[2 * 128, 2 * 576], [2 * 256, 2 * 576]]
    # After the casts the convolution itself reads and writes fp16.
    assert work.bytes_read[0, 0] == 2 * (128 + 576)
    assert work.bytes_written[0, 0] == 2 * 128


@pytest.mark.parametrize(
    ("dtypes", "found"),
    [
        ((DType.FLOAT32, DType.FLOAT16), None),
        ((DType.FLOAT16, DType.FLOAT32), DType.FLOAT16),
        ((DType.BFLOAT16, DType.FLOAT32), DType.BFLOAT16),
        ((DType.INT8, DType.FLOAT16), DType.FLOAT16),
        ((), None),
    ],
)
def test_the_format_of_most_weights(dtypes: tuple[DType, ...], found: DType | None) -> None:
    tensors = tuple(
        TensorSpec(name=f"w{i}", shape=fixed_shape(10 - i, 4), dtype=dtype, role=TensorRole.PARAMETER)
        for i, dtype in enumerate(dtypes)
    )
    graph = Graph(source="", framework="onnx", tensors=tensors, nodes=(), inputs=(), outputs=())
    (kept,) = GraphArrays.from_graph(graph).kept()
    assert stored_half(kept) is found


def test_adapters_in_fp32_beside_frozen_weights_of_16_bits_stay_as_they_are(builder):
    frozen = builder.weight(64, 64, dtype=DType.BFLOAT16, role=TensorRole.BUFFER)
    adapter = builder.weight(4, 64)
    x = builder.input(builder.N, 64, dtype=DType.BFLOAT16)
    base = builder.node(OpKind.LINEAR, [x, frozen], builder.N, 64, dtype=DType.BFLOAT16)
    raised = builder.node(OpKind.CAST, [x], builder.N, 64)
    low = builder.node(OpKind.LINEAR, [raised, adapter], builder.N, 4)
    plan = plan_types(builder.graph(), Precision.BF16)
    assert [plan.tensor_bytes[i] for i in (frozen, base, adapter, raised, low)] == [2, 2, 4, 4, 4]


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        (Precision.FP32, (Arithmetic.FP64, 8.0)),
        (Precision.AMP, (Arithmetic.FP64, 8.0)),
        (Precision.FP16, (Arithmetic.FP16, 2.0)),
        (Precision.BF16, (Arithmetic.BF16, 2.0)),
    ],
)
def test_float64_is_converted_with_the_whole_model_alone(builder, precision, expected):
    x, weight = builder.input(builder.N, 8, dtype=DType.FLOAT64), builder.weight(8, 8, dtype=DType.FLOAT64)
    builder.node(OpKind.LINEAR, [x, weight], builder.N, 8, dtype=DType.FLOAT64)
    plan = plan_types(builder.graph(), precision)
    assert (plan.arithmetic, plan.tensor_bytes.tolist()) == ((expected[0],), [expected[1]] * 3)
    assert not len(plan.casts)


def test_a_model_that_makes_float64_itself_keeps_it_in_16_bits(new_builder):
    def layer(builder, *, from_constant):
        x = builder.input(builder.N, 8)
        if from_constant:
            given = builder.tensor(8, dtype=DType.FLOAT64, role=TensorRole.CONSTANT)
            x = builder.node(OpKind.ADD, [x, given], builder.N, 8, dtype=DType.FLOAT64)
        else:
            x = builder.node(OpKind.CAST, [x], builder.N, 8, dtype=DType.FLOAT64)
        weight = builder.weight(8, 8, dtype=DType.FLOAT64)
        builder.node(OpKind.LINEAR, [x, weight], builder.N, 8, dtype=DType.FLOAT64)
        return builder.graph()

    for from_constant in (False, True):
        plan = plan_types(layer(new_builder(), from_constant=from_constant), Precision.FP16)
        assert plan.arithmetic[-1] is Arithmetic.FP64
        assert plan.tensor_bytes[-2:].tolist() == [8.0, 8.0]
        assert plan.tensor_bytes[0] == 2.0


def test_what_a_model_of_float64_alone_makes_follows_it(builder):
    x = builder.input(builder.N, 8, dtype=DType.FLOAT64)
    flags = builder.node(OpKind.BINARY, [x], builder.N, 8, dtype=DType.BOOL)
    made = builder.node(OpKind.CAST, [flags], builder.N, 8, dtype=DType.FLOAT64)
    zeros = builder.node(OpKind.FILL, [], 8, dtype=DType.FLOAT64)
    builder.node(OpKind.ADD, [made, zeros], builder.N, 8, dtype=DType.FLOAT64)
    plan = plan_types(builder.graph(), Precision.FP16)
    assert plan.tensor_bytes.tolist() == [2.0, 1.0, 2.0, 2.0, 2.0]


def test_a_convolution_that_is_kept_from_autocast_takes_what_it_takes_in_fp32(builder):
    x = builder.input(builder.N, 8, 4, 4)
    builder.node(OpKind.CONV, [x, builder.weight(8, 8, 3, 3)], builder.N, 8, 4, 4, **_CONV, is_uncast=True)
    for precision in (Precision.FP32, Precision.AMP, Precision.AMP_BF16):
        assert plan_types(builder.graph(), precision).arithmetic == (Arithmetic.TF32,)


@pytest.mark.parametrize("precision", list(Precision))
def test_a_part_with_an_autocast_of_its_own_has_it_at_every_precision(builder, precision):
    x = builder.input(builder.N, 8)
    builder.node(OpKind.LINEAR, [x, builder.weight(8, 8)], builder.N, 8, lowers_to="bfloat16")
    plan = plan_types(builder.graph(), precision)
    assert plan.arithmetic == (Arithmetic.BF16,)
    assert plan.tensor_bytes[0] == (2.0 if precision in (Precision.FP16, Precision.BF16) else 4.0)
    assert len(plan.casts) == (0 if precision is Precision.BF16 else 2)
