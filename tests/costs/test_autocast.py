"""The walk of autocast in C against the one in Python; what the rules say of operators stands in ``test_precision``."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.costs import autocast
from dippm.costs.autocast import DEFAULT_FORMAT, LOWERS_TO, UNCAST, Walk, follow_autocast, own_formats
from dippm.costs.sizes import GraphSizes
from dippm.graph import DType, OpKind

_FP32, _FP16, _INT64 = (tuple(DType).index(dtype) for dtype in (DType.FLOAT32, DType.FLOAT16, DType.INT64))

needs_compiled = pytest.mark.skipif(not autocast._IS_COMPILED, reason="dippm was installed without a C compiler")


@st.composite
def walks(draw):
    """A few nodes with any rules over a few tensors, some of them views of parameters."""
    tensors = draw(st.integers(1, 6))
    index = st.integers(0, tensors - 1)
    reads, writes = (
        draw(st.lists(st.lists(index, max_size=4), min_size=n, max_size=n)) for n in [draw(st.integers(0, 8))] * 2
    )

    def numbers(values):
        return np.array(values, dtype=np.int64)

    def drawn(values, count):
        return numbers(draw(st.lists(st.sampled_from(values), min_size=count, max_size=count)))

    return Walk(
        target=drawn([-1, -2, _FP32, _FP16], len(reads)),
        result=drawn([-1, -2, -3, _FP32, _FP16], len(reads)),
        read_start=np.cumsum([0, *map(len, reads)]),
        read_tensor=numbers([tensor for each in reads for tensor in each]),
        write_start=np.cumsum([0, *map(len, writes)]),
        write_tensor=numbers([tensor for each in writes for tensor in each]),
        owner=drawn(range(tensors), tensors),
        flags=drawn(range(16), tensors),
        held=drawn([_FP32, _FP16, _INT64], tensors),
    )


def copied(walk):
    return replace(walk, **{field.name: getattr(walk, field.name).copy() for field in fields(walk)})


@needs_compiled
@given(walks())
def test_both_walks_are_the_same(walk):
    other, reads = copied(walk), np.empty_like(walk.read_tensor)
    casts = np.empty((len(reads), 5), dtype=np.int64)
    made = autocast._follow(other, reads, casts)
    compiled_reads, compiled_casts = walk.run()
    assert compiled_reads.tolist() == reads.tolist()
    assert compiled_casts.tolist() == casts[:made].tolist()
    assert (walk.held.tolist(), walk.flags.tolist()) == (other.held.tolist(), other.flags.tolist())


@needs_compiled
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target", [0, 0, 0]),
        ("target", [-3, 0]),
        ("result", [-4, 0]),
        ("read_start", [0, 3, 2]),
        ("read_start", [0, 1, 9]),
        ("read_tensor", [0, 7]),
        ("write_tensor", [-1, 2]),
        ("owner", [0, 1, 3]),
        ("held", [0, 0, 63]),
        ("flags", [0, 0]),
    ],
)
def test_arrays_that_are_no_graph_are_refused(name, value):
    good = {
        "target": [-1, -1], "result": [-3, -3], "read_start": [0, 1, 2], "read_tensor": [0, 1],
        "write_start": [0, 1, 2], "write_tensor": [1, 2], "owner": [0, 1, 2], "flags": [0, 2, 2], "held": [0, 0, 0],
    }  # fmt: skip
    arrays = {key: np.array(given, dtype=np.int64) for key, given in good.items()}
    Walk(**arrays).run()
    with pytest.raises(ValueError, match="do not describe one graph"):
        Walk(**{**arrays, name: np.array(value, dtype=np.int64)}).run()
    with pytest.raises(TypeError, match=f"'{name}' must be"):
        Walk(**{**arrays, name: np.array(value, dtype=np.int32)}).run()


@needs_compiled
def test_arrays_that_are_written_are_no_others_and_formats_are_formats():
    index = np.array([0, 0], dtype=np.int64)
    one = [np.zeros(1, dtype=np.int64) for _ in range(8)]
    # A node that reads the one tensor twice and writes nothing; flags, formats, reads and casts are written.
    good = [*one[:2], np.array([0, 2]), index, np.array([0, 0]), index[:0], one[2], *one[3:5]]
    good += [np.zeros(count, dtype=np.int64) for count in (2, 10)]
    compiled = autocast._autocast.follow
    assert compiled(*good, 1, 0) == 0
    for castable, float32 in ((1, 63), (1, -1), (1 << 63, 0)):
        with pytest.raises(ValueError, match="do not describe one graph"):
            compiled(*good, castable, float32)
    reads_are_indices = [*good[:9], index, good[10]]
    with pytest.raises(ValueError, match="do not describe one graph"):
        compiled(*reads_are_indices, 1, 0)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_model_is_followed_in_either_language(builder, monkeypatch, is_compiled):
    if is_compiled and not autocast._IS_COMPILED:
        pytest.skip("dippm was installed without a C compiler")
    monkeypatch.setattr(autocast, "_IS_COMPILED", is_compiled)
    n, weight = builder.N, builder.weight(8, 8)
    x = builder.input(n, 8)
    y = builder.node(OpKind.LINEAR, [x, weight], n, 8)
    z = builder.node(OpKind.ADD, [x, y], n, 8)
    norm = builder.node(OpKind.LAYER_NORM, [y], n, 8)
    again = builder.node(OpKind.LINEAR, [norm, weight], n, 8)
    sizes = GraphSizes.from_graph(builder.graph(z, again))
    held, reads, casts = follow_autocast(sizes, DType.FLOAT16)
    # The sum of both formats, and the norm, are FP32; the weight's copy is made once and kept.
    assert [held[tensor] for tensor in (x, y, z, norm, again)] == [_FP32, _FP16, _FP32, _FP32, _FP16]
    assert reads.tolist() == [_FP16, _FP16, _FP32, _FP16, _FP32, _FP16, _FP16]
    assert casts.node.tolist() == [0, 0, 2, 3]
    assert casts.tensor.tolist() == [x, weight, y, norm]
    assert casts.is_cached.tolist() == [False, True, False, False]
    assert (casts.from_bytes.tolist(), casts.to_bytes.tolist()) == ([4.0, 4.0, 2.0, 4.0], [2.0, 2.0, 4.0, 2.0])
    # Without autocast's cache it is made for each of both, and nothing else changes.
    held_too, reads_too, casts = follow_autocast(sizes, DType.FLOAT16, keeps_casts=False)
    assert (held_too.tolist(), reads_too.tolist()) == (held.tolist(), reads.tolist())
    assert casts.tensor.tolist() == [x, weight, y, norm, weight]
    assert not casts.is_cached.any()


def _with_parts(builder, *parts):
    """Linear layers one after the other, each with a norm behind it and what it wants of autocast."""
    x, of_parts = builder.input(builder.N, 8), []
    for attributes in parts:
        layer = builder.node(OpKind.LINEAR, [x, builder.weight(8, 8)], builder.N, 8, **attributes)
        active = builder.node(OpKind.RELU, [layer], builder.N, 8)
        x = builder.node(OpKind.LAYER_NORM, [active], builder.N, 8, **attributes)
        of_parts.append((layer, active, x))
    return builder.graph(x), of_parts


_ON, _DEFAULT, _KEPT = {LOWERS_TO: "bfloat16"}, {LOWERS_TO: DEFAULT_FORMAT}, {UNCAST: True}
_BF16 = list(DType).index(DType.BFLOAT16)


@pytest.mark.parametrize(
    ("lower", "part", "format_of_part", "format_of_others"),
    [
        (None, _ON, _BF16, _FP32),
        (None, _DEFAULT, _FP16, _FP32),
        (DType.FLOAT16, _ON, _BF16, _FP16),
        (DType.BFLOAT16, _DEFAULT, _BF16, _BF16),
        (DType.FLOAT16, _KEPT, _FP32, _FP16),
    ],
)
def test_a_part_follows_its_own_autocast(builder, lower, part, format_of_part, format_of_others):
    graph, of_parts = _with_parts(builder, {}, part, {})
    held, _, casts = follow_autocast(GraphSizes.from_graph(graph), lower)
    formats = [[int(held[index]) for index in of_part] for of_part in of_parts]
    # A norm is FP32 where autocast is on, and where the model states it.
    assert formats == [[each, each, _FP32] for each in (format_of_others, format_of_part, format_of_others)]
    cast = [set(casts.to_format[casts.node == node].tolist()) for node in range(0, 9, 3)]
    assert cast == [{each} - {_FP32} for each in (format_of_others, format_of_part, format_of_others)]


def test_what_is_outside_of_all_parts_is_read_in_the_type_that_it_states(builder):
    x, weights = builder.input(builder.N, 8), [builder.weight(8, 8) for _ in range(2)]
    inside = builder.node(OpKind.LINEAR, [x, weights[0]], builder.N, 8, **_ON)
    added = builder.node(OpKind.ADD, [inside, x], builder.N, 8)
    active = builder.node(OpKind.RELU, [inside], builder.N, 8)
    outside = builder.node(OpKind.LINEAR, [active, weights[1]], builder.N, 8)
    held, _, casts = follow_autocast(GraphSizes.from_graph(builder.graph(added, outside)), None)
    assert [held[index] for index in (inside, added, active, outside)] == [_BF16, _FP32, _BF16, _FP32]
    assert casts.tensor.tolist() == [x, weights[0], active]
    assert casts.to_format.tolist() == [_BF16, _BF16, _FP32]


@pytest.mark.parametrize(("of_others", "expected"), [({}, _BF16), (_KEPT, _FP32)])
@pytest.mark.parametrize("kind", [OpKind.MATMUL, OpKind.SOFTMAX, OpKind.REDUCE, OpKind.ATTENTION])
def test_what_is_in_one_type_outside_stays_in_it_unless_the_model_wants_another(builder, kind, of_others, expected):
    x = builder.node(OpKind.LINEAR, [builder.input(builder.N, 8), builder.weight(8, 8)], builder.N, 8, **_ON)
    inputs = {OpKind.MATMUL: [x, x], OpKind.ATTENTION: [x, x, x]}.get(kind, [x])
    out = builder.node(kind, inputs, builder.N, 8, **of_others)
    held, reads, casts = follow_autocast(GraphSizes.from_graph(builder.graph(out)), None)
    assert held[out] == expected
    assert set(reads[-len(inputs) :].tolist()) == {expected}
    assert (casts.node == 1).any() == (expected == _FP32)


def test_a_converted_model_holds_what_its_parts_write(builder):
    x, dtype = builder.input(builder.N, 8, dtype=DType.FLOAT64), DType.FLOAT64
    y = builder.node(OpKind.LINEAR, [x, builder.weight(8, 8, dtype=dtype)], builder.N, 8, dtype=dtype, **_ON)
    y = builder.node(OpKind.LAYER_NORM, [y, builder.weight(8, dtype=dtype)], builder.N, 8, dtype=dtype, **_ON)
    held, _, _ = follow_autocast(GraphSizes.from_graph(builder.graph(y)), None, given=np.full(5, _FP16))
    assert held.tolist() == [_FP16, _FP16, _BF16, _FP16, _FP32]


def test_a_model_without_such_parts_stays_as_it_is_beside_one_with_them(new_builder):
    # It states what nothing computes: that is not looked into.
    odd = new_builder()
    x = odd.input(odd.N, 8, dtype=DType.FLOAT16)
    odd.node(OpKind.LINEAR, [x, odd.weight(8, 8)], odd.N, 8)
    other, _ = _with_parts(new_builder(), _ON)
    sizes = GraphSizes.from_graphs([odd.graph(), other])
    held, _, casts = follow_autocast(sizes, None)
    assert held[:3].tolist() == sizes.arrays.dtype[:3].tolist()
    assert casts.node.min() == 1


def test_the_formats_of_parts():
    attributes = [{}, _ON, _KEPT, _DEFAULT]
    assert own_formats(attributes, None) == {DType.BFLOAT16, DType.FLOAT16}
    assert own_formats(attributes, DType.BFLOAT16) == {DType.BFLOAT16}
    assert own_formats([{}, _KEPT], DType.FLOAT16) == set()
