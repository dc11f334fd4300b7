"""Programs of Paddle rewritten, without Paddle; ``test_convert.py`` converts such."""

from __future__ import annotations

import json
from typing import Any

import pytest
from onnx import GraphProto, helper

from dippm.frontends.paddle.program_rewrites import drop_stand_ins, rewrite_program


def test_scales_of_interpolations_have_32_bits_and_all_else_is_as_it_was() -> None:
    def program(bits: int) -> dict[str, Any]:
        def operator(name: str, attribute: str, own_bits: int, **more: Any) -> dict[str, Any]:
            numbers = [{"#": f"0.a_f{own_bits}", "D": 2.0}]
            return {"#": name, "A": [{"N": attribute, "AT": {"#": "0.a_array", "D": numbers}}], **more}

        scaled = operator("1.bilinear_interp", "scale", bits)
        nearest = operator("1.nearest_interp", "scale", bits)
        inner = {"#": "1.if", "A": [], "regions": [{"blocks": [{"ops": [nearest]}]}]}
        others = [operator("1.scale", "scale", 64), operator("1.nearest_interp", "align", 64)]
        return {"program": {"regions": [{"#": "r", "blocks": [{"#": "b", "ops": [scaled, inner, *others]}]}]}}

    assert json.loads(rewrite_program(json.dumps(program(64)).encode())) == program(32)


def test_a_softplus_has_the_values_that_the_converter_asks_for() -> None:
    def program(form: str, beta: float) -> dict[str, Any]:
        attributes = [{"N": "beta", "AT": {"#": form, "D": beta}}, {"N": "threshold", "AT": {"#": form, "D": 20.0}}]
        return {"program": {"regions": [{"blocks": [{"ops": [{"#": "1.softplus", "A": attributes}]}]}]}}

    changed = rewrite_program(json.dumps(program("0.a_f64", 2.0)).encode())
    assert json.loads(changed) == program("0.a_f32", 1.0)


def _program_of_a_reduction(name: str, axes: list[int], *, rank: int = 3) -> dict[str, Any]:
    def made(number: int, *shape: int) -> dict[str, Any]:
        return {"%": number, "TT": {"#": "0.t_dtensor", "D": [{"#": "0.t_f32"}, list(shape), "NCHW", [], 0]}}

    values = [{"#": "0.a_i64", "D": axis} for axis in axes]
    maker = {
        "#": "1.full_int_array",
        "A": [{"N": "value", "AT": {"#": "0.a_array", "D": values}}],
        "I": [],
        "O": [made(2, len(axes))],
    }
    weight = {"#": "p", "A": [0, 1, 1, "w"], "O": made(1, *range(rank))}
    reduction = {"#": f"1.{name}", "A": [], "I": [{"%": 1}, {"%": 2}], "O": [made(3)]}
    return {"program": {"regions": [{"blocks": [{"ops": [weight, maker, reduction]}]}]}}


@pytest.mark.parametrize("name", ["mean", "max"])
def test_a_reduction_of_all_axes_names_them(name: str) -> None:
    def read(program: dict[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = json.loads(rewrite_program(json.dumps(program).encode()))
        return changed

    assert read(_program_of_a_reduction(name, [])) == _program_of_a_reduction(name, [0, 1, 2])
    assert read(_program_of_a_reduction(name, [1])) == _program_of_a_reduction(name, [1])
    # Of other operators an empty list is what it says: a shape without dimensions.
    assert read(_program_of_a_reduction("reshape", [])) == _program_of_a_reduction("reshape", [])


@pytest.mark.parametrize(("mask", "becomes"), [(0, 7), (8, 8)], ids=["none", "given"])
def test_a_deformable_convolution_without_a_mask_gets_its_offsets_for_one(mask: int, becomes: int) -> None:
    def program(last: int) -> dict[str, Any]:
        operator = {"#": "1.deformable_conv", "A": [], "I": [{"%": number} for number in (6, 7, 2, last)]}
        return {"program": {"regions": [{"blocks": [{"ops": [operator]}]}]}}

    assert json.loads(rewrite_program(json.dumps(program(mask)).encode())) == program(becomes)


@pytest.mark.parametrize(("mask", "kept"), [("offsets", 4), ("mask", 5)])
def test_offsets_in_a_mask_s_place_are_taken_out(mask: str, kept: int) -> None:
    graph = GraphProto()
    graph.node.append(helper.make_node("DeformConv", ["x", "w", "offsets", "", mask], ["z"]))
    drop_stand_ins(graph)
    assert [len(node.input) for node in graph.node] == [kept]


def test_a_program_without_such_operators_is_not_even_read() -> None:
    assert rewrite_program(b"no JSON") == b"no JSON"


def _tensor(number: int, *shape: int) -> dict[str, Any]:
    return {"%": number, "TT": {"#": "0.t_dtensor", "D": [{"#": "0.t_f32"}, list(shape), "NCHW", [], 0]}}


def _rewritten(name: str, attributes: dict[str, Any], *shapes: tuple[int, ...], made: tuple[int, ...]) -> list[Any]:
    """What an operator becomes that reads tensors of these shapes, with the operators before it."""
    inputs = [
        {"#": "1.data", "A": [], "I": [], "O": [_tensor(place + 1, *shape)]} for place, shape in enumerate(shapes)
    ]
    given = [{"N": key, "AT": value} for key, value in attributes.items()]
    reads = [{"%": place + 1} for place in range(len(shapes))]
    item = {"#": f"1.{name}", "A": given, "I": reads, "O": [_tensor(50, *made)], "OA": []}
    inner = {"#": "1.while", "A": [], "I": [], "O": [], "regions": [{"blocks": [{"ops": [*inputs, item]}]}]}
    program = {"program": {"regions": [{"blocks": [{"ops": [inner]}]}]}}
    changed = json.loads(rewrite_program(json.dumps(program).encode()))
    (outer,) = changed["program"]["regions"][0]["blocks"][0]["ops"]
    found: list[Any] = outer["regions"][0]["blocks"][0]["ops"][len(shapes) :]
    # What is made has numbers of its own, and the result the one that it had.
    assert [each["O"][0]["%"] for each in found] == [*range(51, 50 + len(found)), 50]
    assert found[-1]["O"] == [_tensor(50, *made)]
    return found


def _number(kind: str, value: Any) -> dict[str, Any]:
    return {"#": f"0.a_{kind}", "D": value}


def _named(item: Any) -> dict[str, Any]:
    """An operator's attributes by their names."""
    return {each["N"]: each["AT"] for each in item["A"]}


def _listed(item: Any) -> list[int]:
    """The numbers that an operator makes."""
    assert item["#"] == "1.full_int_array"
    values = [each["D"] for each in _named(item)["value"]["D"]]
    assert item["O"][0]["TT"]["D"][:2] == [{"#": "0.t_i64"}, [len(values)]]
    return values


@pytest.mark.parametrize(
    ("name", "becomes", "given", "kept"),
    [
        ("expm1", "exp", {}, {}),
        ("trunc", "floor", {}, {}),
        ("stanh", "tanh", {"scale_a": _number("f32", 0.67)}, {}),
        ("celu", "elu", {"alpha": _number("f32", 1.0)}, {"alpha": _number("f32", 1.0)}),
    ],
)
def test_an_operator_of_each_element_becomes_another(
    name: str, becomes: str, given: dict[str, Any], kept: dict[str, Any]
) -> None:
    (item,) = _rewritten(name, given, (-1, 8), made=(-1, 8))
    assert (item["#"], item["I"], _named(item)) == (f"1.{becomes}", [{"%": 1}], kept)


@pytest.mark.parametrize(("axis", "named"), [([], [0, 1, 2]), ([-1], [-1]), ([1, 2], [1, 2])])
def test_axes_of_an_extreme_are_read(axis: list[int], named: list[int]) -> None:
    axes = {"#": "0.a_array", "D": [_number("i64", each) for each in axis]}
    given = {"axis": axes, "keepdim": _number("bool", True)}
    axes_made, item = _rewritten("amax", given, (-1, 8, 16), made=(-1, 8, 1))
    assert _listed(axes_made) == named
    assert (item["#"], item["I"]) == ("1.max", [{"%": 1}, {"%": 51}])
    assert _named(item) == {"keepdim": _number("bool", True)}


def test_a_norm_of_several_axes_is_a_reduction() -> None:
    given = {"keep_dim": _number("bool", True), "reduce_all": _number("bool", False)}
    (item,) = _rewritten("frobenius_norm", given, (-1, 8, 16), (2,), made=(-1, 1, 1))
    assert (item["#"], item["I"]) == ("1.mean", [{"%": 1}, {"%": 2}])
    assert _named(item) == {"keepdim": _number("bool", True)}


def test_a_norm_of_a_whole_tensor_is_that_of_a_vector() -> None:
    def given(as_vector: bool) -> dict[str, Any]:
        return {"porder": _number("f32", 2.0), "axis": _number("i32", -1), "asvector": _number("bool", as_vector)}

    flat, item = _rewritten("p_norm", given(True), (-1, 8, 16), made=())
    assert (flat["#"], flat["I"], flat["O"][0]["TT"]["D"][1]) == ("1.flatten", [{"%": 1}], [-1])
    assert {key: each["D"] for key, each in _named(flat).items()} == {"start_axis": 0, "stop_axis": 2}
    assert (item["#"], item["I"], _named(item)) == ("1.p_norm", [{"%": 51}], given(True))
    (fixed, _) = _rewritten("p_norm", given(True), (2, 8), made=())
    assert fixed["O"][0]["TT"]["D"][1] == [16]
    for is_vector, shape in ((False, (-1, 8, 16)), (True, (5,))):
        (left,) = _rewritten("p_norm", given(is_vector), shape, made=())
        assert left["I"] == [{"%": 1}]


@pytest.mark.parametrize(("axis", "copies"), [(1, [1, 3, 1]), (-1, [1, 1, 3])])
def test_repeated_elements_are_copies(axis: int, copies: list[int]) -> None:
    given = {"repeats": _number("i32", 3), "axis": _number("i32", axis)}
    times, item = _rewritten("repeat_interleave", given, (-1, 8, 16), made=(-1, 24, 16))
    assert _listed(times) == copies
    assert (item["#"], item["I"], item["A"]) == ("1.tile", [{"%": 1}, {"%": 51}], [])


@pytest.mark.parametrize(("name", "order"), [("masked_fill", [2, 3, 1]), ("lerp", [3, 1, 2])])
def test_operators_of_three_tensors_are_a_choice(name: str, order: list[int]) -> None:
    (item,) = _rewritten(name, {}, (-1, 8), (-1, 8), (-1, 8), made=(-1, 8))
    assert (item["#"], [each["%"] for each in item["I"]]) == ("1.where", order)


def test_a_product_with_a_sum_is_two_operators() -> None:
    product, total = _rewritten("addmm", {"beta": _number("f32", 1.0)}, (16,), (-1, 4), (4, 16), made=(-1, 16))
    assert (product["#"], [each["%"] for each in product["I"]]) == ("1.matmul", [2, 3])
    assert product["O"][0]["TT"]["D"][1] == [-1, 16]
    assert (total["#"], total["I"], total["A"]) == ("1.add", [{"%": 51}, {"%": 1}], [])


def test_channels_are_shuffled_by_views_and_a_copy() -> None:
    groups = {"groups": _number("i32", 4)}
    apart, opened, turned, whole, item = _rewritten("channel_shuffle", groups, (-1, 8, 6, 6), made=(-1, 8, 6, 6))
    assert _listed(apart) == [0, 4, 2, 6, 6]
    assert _listed(whole) == [0, 8, 6, 6]
    assert [each["#"] for each in (opened, turned, item)] == ["1.reshape", "1.transpose", "1.reshape"]
    assert turned["O"][0]["TT"]["D"][1] == [-1, 2, 4, 6, 6]
    (left,) = _rewritten("channel_shuffle", groups, (-1, 8, -1, -1), made=(-1, 8, -1, -1))
    assert left["#"] == "1.channel_shuffle"


@pytest.mark.parametrize("axis", [1, -3])
def test_the_largest_of_groups_is_that_along_an_axis(axis: int) -> None:
    given = {"groups": _number("i32", 2), "axis": _number("i32", axis)}
    apart, opened, axes, item = _rewritten("maxout", given, (-1, 8, 6, 6), made=(-1, 4, 6, 6))
    assert (_listed(apart), _listed(axes)) == ([0, 4, 2, 6, 6], [2])
    assert (opened["#"], item["#"], item["I"]) == ("1.reshape", "1.max", [{"%": 52}, {"%": 53}])


def test_pixels_are_shuffled_back() -> None:
    given = {"downscale_factor": _number("i32", 2), "data_format": _number("str", "NCHW")}
    (item,) = _rewritten("pixel_unshuffle", given, (-1, 8, 6, 6), made=(-1, 32, 3, 3))
    assert item["#"] == "1.pixel_shuffle"
    assert _named(item) == {"upscale_factor": _number("i32", -2), "data_format": _number("str", "NCHW")}
    graph = GraphProto()
    for size in (-2, 2):
        graph.node.append(helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=size, mode="CRD"))
    drop_stand_ins(graph)
    back, forth = graph.node
    assert back == helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2)
    assert forth.op_type == "DepthToSpace"
