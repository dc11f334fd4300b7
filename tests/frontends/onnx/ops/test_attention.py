from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.costs.workload import Workload
from dippm.frontends.onnx import read_onnx
from dippm.frontends.onnx.ops.registry import MICROSOFT
from dippm.graph import OpKind, TensorRole


@pytest.mark.parametrize("changed", [(), ("score_mod",), ("score_mod", "prob_mod")])
def test_flex_attention_is_one_kernel_until_its_scores_are_changed(build, kinds, changed: tuple[str, ...]) -> None:
    def change(name: str) -> object:
        ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, None) for end in (f"{name}_in", f"{name}_out")]
        return helper.make_graph([helper.make_node("Tanh", [ends[0].name], [ends[1].name])], name, ends[:1], ends[1:])

    attributes = {name: change(name) for name in changed}
    node = helper.make_node("FlexAttention", ["q", "k", "k"], ["y"], domain="ai.onnx.preview", **attributes)
    inputs = {"q": ["N", 4, 6, 8], "k": ["N", 2, 5, 8]}
    graph = read_onnx(build([node], inputs=inputs, domains=["ai.onnx.preview"]))
    if not changed:
        assert kinds(graph) == ["attention"]
    else:
        steps = ["copy", "copy", "matmul", "tanh", "softmax", *(["tanh"] if len(changed) > 1 else []), "matmul"]
        assert [kind for kind in kinds(graph) if kind != "view"] == steps
    assert graph.unsupported_ops == {}
    assert [str(dim) for dim in graph.tensors[graph.outputs[0]].shape] == ["N", "4", "6", "8"]
    assert Workload.from_graph(graph).at([3]).macs.sum() == 3 * 4 * 2 * 6 * 5 * 8


@pytest.mark.parametrize(("kv_heads", "is_causal"), [(4, 0), (2, 1)])
def test_flat_queries_are_split_into_heads_and_joined_again(one, shapes, kv_heads: int, is_causal: int) -> None:
    graph = one(
        "Attention",
        "q k k",
        inputs={"q": ["N", 6, 32], "k": ["N", 5, 8 * kv_heads]},
        opset=23,
        q_num_heads=4,
        kv_num_heads=kv_heads,
        is_causal=is_causal,
    )
    (attention,) = (node for node in graph.nodes if node.kind is OpKind.ATTENTION)
    assert [str(dim) for dim in graph.tensors[attention.inputs[1]].shape] == ["N", str(kv_heads), "5", "8"]
    assert attention.attributes["is_causal"] is bool(is_causal)
    assert shapes(graph) == [["N", "6", "32"]]
    # Two products of 4 heads, 6 queries, 5 keys and 8 features, however few heads the keys have.
    assert Workload.from_graph(graph).at([1]).macs.sum() == 2 * 4 * 6 * 5 * 8


@pytest.mark.parametrize(("mode", "maker"), list(enumerate(["matmul", "add", "mul", "softmax"])))
@pytest.mark.parametrize("cap", [0.0, 30.0])
def test_scores_that_are_given_out_are_made(one, kinds, mode: int, maker: str, cap: float) -> None:
    graph = one(
        "Attention",
        "q k v m",
        inputs={"q": ["N", 4, 6, 8], "k": ["N", 2, 5, 8], "v": ["N", 2, 5, 3], "m": [6, 5]},
        outputs=["y", "keys", "values", "scores"],
        opset=23,
        qk_matmul_output_mode=mode,
        softcap=cap,
    )
    capped = ["div", "tanh", "mul"] if cap else []
    steps = ["copy", "copy", "mul", "matmul", "add", *capped, "softmax", "matmul"]
    assert [kind for kind in kinds(graph) if kind != "view"] == steps
    assert Workload.from_graph(graph).at([3]).macs.sum() == 3 * 4 * 6 * 5 * (8 + 3)
    result, _, _, scores = graph.outputs
    assert [str(dim) for dim in graph.tensors[result].shape] == ["N", "4", "6", "3"]
    assert [str(dim) for dim in graph.tensors[scores].shape] == ["N", "4", "6", "5"]
    made = {output: node for node in graph.nodes for output in node.outputs}
    node = made[scores]
    node = made[node.inputs[0]] if node.kind is OpKind.VIEW else node
    assert node.kind.value == ("add" if maker == "mul" and not cap else maker)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_cap_on_the_scores_takes_attention_apart(one, kinds, is_causal: bool) -> None:
    steps = ["mul", "matmul", *(["add"] if is_causal else []), "div", "tanh", "mul", "softmax", "matmul"]
    given = {"inputs": {"q": ["N", 4, 6, 8]}, "softcap": 50.0, "is_causal": int(is_causal)}
    assert [kind for kind in kinds(one("Attention", "q q q", opset=23, **given)) if kind != "view"] == steps
    assert kinds(one("Attention", "q q q", opset=23, inputs=given["inputs"], softcap=0.0)) == ["attention"]
    if is_causal:
        shared = {"inputs": {"x": ["N", 6, 48]}, "domain": MICROSOFT, "num_heads": 4, "kv_num_heads": 1}
        graph = one("GroupQueryAttention", "x", softcap=50.0, **shared)
        assert [kind for kind in kinds(graph) if kind not in {"view", "copy"}] == steps


def test_scores_of_an_unknown_step_are_refused(refused) -> None:
    inputs = {"q": ["N", 4, 6, 8]}
    said = refused("Attention", "q q q", inputs=inputs, outputs=["y", "k", "v", "s"], opset=23, qk_matmul_output_mode=4)
    assert "qk_matmul_output_mode must be 0 to 3, not 4" in said


def test_keys_of_earlier_steps_are_put_before_those_of_this_one(one, shapes) -> None:
    graph = one(
        "Attention",
        "q q q - p p",
        inputs={"q": ["N", 4, 1, 8], "p": ["N", 4, 9, 8]},
        outputs=["y", "keys", "values"],
        opset=23,
    )
    assert [node.kind.value for node in graph.nodes] == ["concat", "concat", "attention"]
    assert shapes(graph) == [["N", "4", "1", "8"], ["N", "4", "10", "8"], ["N", "4", "10", "8"]]


def test_one_tensor_may_hold_queries_keys_and_values(one, shapes) -> None:
    graph = one("GroupQueryAttention", "x", inputs={"x": ["N", 6, 48]}, domain=MICROSOFT, num_heads=4, kv_num_heads=1)
    assert shapes(graph) == [["N", "6", "32"]]
    packed = one("MultiHeadAttention", "x", inputs={"x": ["N", 6, 4, 3, 8]}, domain=MICROSOFT, num_heads=4)
    assert shapes(packed) == [["N", "6", "32"]]


def test_the_past_of_a_packed_attention_is_put_before_its_keys_and_values(one, shapes) -> None:
    # GPT-2 as onnxruntime's optimizer writes it: 12 heads of 64 features, 1000 steps behind.
    graph = one(
        "Attention",
        "x w b - past",
        inputs={"x": ["N", 1, 768], "past": [2, "N", 12, 1000, 64]},
        weights={"w": np.zeros((768, 2304), np.float32), "b": np.zeros(2304, np.float32)},
        outputs=["y", "present"],
        domain=MICROSOFT,
        num_heads=12,
        unidirectional=1,
    )
    assert shapes(graph) == [["N", "1", "768"], ["2", "N", "12", "1001", "64"]]
    (attention,) = (node for node in graph.nodes if node.kind is OpKind.ATTENTION)
    assert attention.attributes["is_causal"] is False  # the one query sees every key
    # The projection, then one query with 1001 keys and their values.
    assert Workload.from_graph(graph).at([3]).macs.sum() == 3 * (768 * 2304 + 2 * 1001 * 768)


def test_the_past_of_a_quantised_attention(one, shapes) -> None:
    graph = one(
        "QAttention",
        "x w b s s - z z past",
        inputs={"x": ["N", 3, 16], "past": [2, "N", 2, 5, 8]},
        weights={
            "w": np.zeros((16, 48), np.uint8),
            "b": np.zeros(48, np.float32),
            "s": np.float32(0.1),
            "z": np.uint8(0),
        },
        dtypes={"x": TensorProto.UINT8},
        outputs=["y", "present"],
        domain=MICROSOFT,
        num_heads=2,
    )
    assert shapes(graph) == [["N", "3", "16"], ["2", "N", "2", "8", "8"]]
    assert Workload.from_graph(graph).at([1]).macs.sum() == 3 * 16 * 48 + 2 * 3 * 8 * 16


def test_a_past_that_is_no_pair_is_refused(refused) -> None:
    inputs = {"x": ["N", 1, 16], "past": ["N", 2, 5, 8]}
    weights = {"w": np.zeros((16, 48), np.float32)}
    said = refused("Attention", "x w - - past", inputs=inputs, weights=weights, domain=MICROSOFT, num_heads=2)
    assert "[2, batch, heads, length, size]" in said


@pytest.mark.parametrize(("is_shared", "keys"), [(0, 49), (1, 48)])
def test_a_step_of_a_decoder_looks_back_on_its_past(one, shapes, is_shared: int, keys: int) -> None:
    graph = one(
        "DecoderMaskedMultiHeadAttention",
        "x x x - - past past - - - b",
        inputs={"x": ["N", 1, 128], "past": ["N", 4, 48, 32]},
        weights={"b": np.zeros(384, np.float32)},
        outputs=["y", "keys", "values"],
        domain=MICROSOFT,
        num_heads=4,
        past_present_share_buffer=is_shared,
    )
    # In a buffer of 48 steps, this one has its place already.
    assert shapes(graph) == [["N", "1", "128"], *[["N", "4", str(keys), "32"]] * 2]
    assert Workload.from_graph(graph).at([1]).macs.sum() == 2 * keys * 128
    assert [node.kind for node in graph.nodes].count(OpKind.ADD) == 3


@pytest.mark.parametrize("op_type", ["MultiHeadAttention", "DecoderMaskedMultiHeadAttention"])
def test_the_bias_of_the_scores_is_read_not_the_lengths(one, op_type: str) -> None:
    lengths, bias = ("-", "l m") if op_type == "MultiHeadAttention" else ("l", "m")
    inputs = {"x": ["N", 1, 32], "l": ["N"], "m": ["N", 1, 1, 1]}
    graph = one(
        op_type,
        f"x x x {lengths} {bias}",
        inputs=inputs,
        dtypes={"l": TensorProto.INT32},
        domain=MICROSOFT,
        num_heads=4,
    )
    (attention,) = (node for node in graph.nodes if node.kind is OpKind.ATTENTION)
    assert [graph.tensors[index].name for index in attention.inputs[3:]] == ["m"]


@pytest.mark.parametrize(("bias", "added"), [(None, 0), (96, 3)])
def test_the_bias_is_added_to_queries_keys_and_values(one, bias: int | None, added: int) -> None:
    weights = {} if bias is None else {"b": np.zeros(bias, np.float32)}
    names = "q k k" if bias is None else "q k k b"
    inputs = {"q": ["N", 6, 32], "k": ["N", 5, 32]}
    graph = one("MultiHeadAttention", names, inputs=inputs, weights=weights, domain=MICROSOFT, num_heads=4)
    sums = [graph.tensors[node.outputs[0]].shape for node in graph.nodes if node.kind is OpKind.ADD]
    assert [[str(dim) for dim in shape] for shape in sums] == [["N", str(6 - bool(i)), "32"] for i in range(added)]


def test_keys_and_values_may_share_a_tensor(one, shapes, refused) -> None:
    inputs = {"q": ["N", 6, 32], "kv": ["N", 5, 4, 2, 8]}
    graph = one("MultiHeadAttention", "q kv", inputs=inputs, domain=MICROSOFT, num_heads=4)
    assert shapes(graph) == [["N", "6", "32"]]
    assert Workload.from_graph(graph).at([1]).macs.sum() == 2 * 6 * 5 * 32
    inputs["kv"][3] = 3
    said = refused("MultiHeadAttention", "q kv", inputs=inputs, domain=MICROSOFT, num_heads=4)
    assert "[batch, length, heads, 2, size]" in said


@pytest.mark.parametrize(
    ("op_type", "names"),
    [("GroupQueryAttention", "q k k p p l - cos sin"), ("SparseAttention", "q k k p p b b - l cos sin")],
)
def test_the_tables_of_rotations_are_no_weights(one, op_type: str, names: str) -> None:
    table = np.zeros((4096, 4), np.float32)
    inputs = {"q": ["N", 1, 32], "k": ["N", 1, 16], "p": ["N", 2, 9, 8], "l": ["N"], "b": [2, 4]}
    inputs = {name: shape for name, shape in inputs.items() if name in names.split()}
    graph = one(
        op_type,
        names,
        inputs=inputs,
        weights={"cos": table, "sin": table},
        dtypes={"l": TensorProto.INT32, "b": TensorProto.INT32},
        domain=MICROSOFT,
        num_heads=4,
        kv_num_heads=2,
        do_rotary=1,
    )
    assert graph.parameter_count == 0
    assert [tensor.name for tensor in graph.tensors if tensor.role is TensorRole.BUFFER] == ["cos", "sin"]
    turned = [position for position, node in enumerate(graph.nodes) if node.attributes.get("function") == "rotary"]
    moved = Workload.from_graph(graph).at([1]).bytes_read[0, turned]
    # The queries' 32 features, the keys' 16, and 4 cosines and 4 sines of one position.
    assert moved.tolist() == [(32 + 8) * 4, (16 + 8) * 4]


def test_linear_attention_gathers_a_state(one, shapes) -> None:
    graph = one("LinearAttention", "q q v", inputs={"q": ["N", 4, 60, 8], "v": ["N", 4, 60, 5]}, opset=26)
    assert shapes(graph) == [["N", "4", "60", "5"]]
    assert Workload.from_graph(graph).at([1]).macs.sum() == 2 * 4 * 60 * 8 * 5


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"q": ["N", 6, 30], "k": ["N", 5, 32]}, "does not split into 4 heads"),
        ({"q": ["N", 6, 32], "k": ["N", 5, 48]}, "do not fit"),
    ],
)
def test_heads_that_do_not_fit(refused, sizes: dict[str, list[object]], said: str) -> None:
    assert said in refused("Attention", "q k k", inputs=sizes, opset=23, q_num_heads=4, kv_num_heads=4)
