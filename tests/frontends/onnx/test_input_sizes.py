from __future__ import annotations

import pytest

from dippm.errors import UsageError
from dippm.frontends.inputs import parse_input_shapes
from dippm.frontends.onnx.input_sizes import plan_inputs
from dippm.frontends.onnx.program import InputDeclaration
from dippm.graph import DType


def declare(name: str, *dims: int | str, dtype: DType = DType.FLOAT32) -> InputDeclaration:
    return InputDeclaration(value=0, name=name, dtype=dtype, dims=dims)


def at_batch_five(declarations: list[InputDeclaration], given: object = None) -> list[tuple[int, ...]]:
    return plan_inputs(declarations, parse_input_shapes(given)).at(5)


def test_first_dimension_is_the_batch() -> None:
    assert at_batch_five([declare("x", "N", 3, 8)]) == [(5, 3, 8)]
    assert at_batch_five([declare("x", 1, 3, 8)]) == [(5, 3, 8)]
    assert at_batch_five([declare("x", "", 3, 8)]) == [(5, 3, 8)]


def test_batch_elsewhere_is_known_by_its_name() -> None:
    assert at_batch_five([declare("x", "seq", "batch_size", 8)], [(7, 8)]) == [(7, 5, 8)]


def test_native_batch_is_the_fixed_first_dimension() -> None:
    assert plan_inputs([declare("x", 4, 3)], parse_input_shapes(None)).native_batch == 4
    assert plan_inputs([declare("x", "N", 3)], parse_input_shapes(None)).native_batch is None


def test_inputs_of_another_first_size_carry_no_batch() -> None:
    assert at_batch_five([declare("x", 1, 8), declare("mask", 8, 8)]) == [(5, 8), (8, 8)]
    assert at_batch_five([declare("x", "batch", 8), declare("mask", 1, 8)]) == [(5, 8), (1, 8)]


def test_scalar_input_carries_no_batch() -> None:
    plan = plan_inputs([declare("x", "N", 8), declare("step")], parse_input_shapes(None))
    assert plan.at(5) == [(5, 8), ()]
    assert plan.has_batch


def test_given_shapes_override_by_position_and_by_name() -> None:
    inputs = [declare("a", "N", "h", "w"), declare("b", "N", "t", dtype=DType.INT64)]
    assert at_batch_five(inputs, [(4, 6), (9,)]) == [(5, 4, 6), (5, 9)]
    assert at_batch_five(inputs, {"b": (9,), "a": (4, 6)}) == [(5, 4, 6), (5, 9)]


def test_size_of_a_named_dimension_is_given_once() -> None:
    inputs = [declare("input_ids", "batch", "seq"), declare("attention_mask", "batch", "seq")]
    assert at_batch_five(inputs, {"input_ids": (384,)}) == [(5, 384), (5, 384)]


def test_given_element_type_wins() -> None:
    plan = plan_inputs([declare("x", "N", 4)], parse_input_shapes("4:float16"))
    assert plan.dtypes == (DType.FLOAT16,)


def test_another_kind_of_element_is_refused() -> None:
    for given, stated in (("4:float32", DType.INT64), ("4:int32", DType.FLOAT32), ("4:float16", DType.BOOL)):
        with pytest.raises(UsageError, match=f"'x' are {stated.value} in the file. Got {given[2:]}") as caught:
            plan_inputs([declare("x", "N", 4, dtype=stated)], parse_input_shapes(given))
        assert caught.value.code == "input.dtype"
    plan = plan_inputs([declare("x", "N", 4, dtype=DType.INT64)], parse_input_shapes("4:int32"))
    assert plan.dtypes == (DType.INT32,)


def test_open_dimension_without_a_name_is_told_by_its_place() -> None:
    with pytest.raises(UsageError, match=r"dimension 2 of 3, the batch not counted, of input 'image'"):
        at_batch_five([declare("image", "", 64, "", 3)])


def test_open_dimension_is_named_with_an_example() -> None:
    with pytest.raises(UsageError, match=r"'height' of input 'image'.*--input image=3,224,224") as caught:
        at_batch_five([declare("image", "N", 3, "height", "width")])
    assert caught.value.code == "input.shape_needed"


def test_undeclared_shape_is_needed() -> None:
    unknown = InputDeclaration(value=0, name="x", dtype=DType.FLOAT32, dims=None)
    with pytest.raises(UsageError) as caught:
        at_batch_five([unknown])
    assert caught.value.code == "input.shape_needed"
    assert at_batch_five([unknown], (3, 4)) == [(5, 3, 4)]


def test_sequences_are_refused() -> None:
    sequence = InputDeclaration(value=0, name="x", dtype=DType.OTHER, dims=None, is_tensor=False)
    with pytest.raises(UsageError) as caught:
        at_batch_five([sequence])
    assert caught.value.code == "input.not_a_tensor"


@pytest.mark.parametrize(
    ("given", "code"),
    [((3, 8, 8, 8), "input.rank"), ({"y": (3,)}, "input.name_unknown"), ([(3, 8, 8), (4,)], "input.count")],
)
def test_given_shapes_that_do_not_fit(given: object, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        at_batch_five([declare("x", "N", 3, 8, 8)], given)
    assert caught.value.code == code


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(
        UsageError, match=r"no input 'ids'\. Its inputs are: input_ids, mask\. The nearest is 'input_ids'"
    ):
        at_batch_five([declare("input_ids", "N", 128), declare("mask", "N", 128)], {"ids": (128,)})


def test_rank_error_says_got_and_expected() -> None:
    with pytest.raises(UsageError, match=r"3 dimensions without the batch \(3, 8, 8\).* Got 2: 8, 8"):
        at_batch_five([declare("x", "N", 3, 8, 8)], (8, 8))


def test_changed_sizes_are_remembered() -> None:
    plan = plan_inputs([declare("x", "N", 3, 8, 8)], parse_input_shapes("3,16,16"))
    assert plan.conflicts == ("'x' got 3,16,16, the file says 3,8,8",)
    assert plan_inputs([declare("x", "N", 3)], parse_input_shapes("3")).conflicts == ()


def test_one_name_is_one_size_everywhere() -> None:
    declared = [declare("ids", "N", "length"), declare("mask", "N", "length"), declare("past", "N", 4, "length", 8)]
    assert at_batch_five(declared, {"mask": (12,)}) == [(5, 12), (5, 12), (5, 4, 12, 8)]
    with pytest.raises(UsageError, match=r"'length' of the model is given as 12 and, in input 'mask', as 10") as caught:
        at_batch_five(declared, [(12,), (10,)])
    assert caught.value.code == "input.shape_conflict"


@pytest.mark.parametrize(
    ("dim", "size"),
    [
        ("2*batch", 10),
        ("batch*2", 10),
        ("batch + 1", 6),
        ("3 * batch_size + 2", 17),
        ("2*N", 10),
        ("batch-size", 5),
        ("unk__7", 5),
    ],
)
def test_the_first_size_may_be_worked_out_from_the_batch(dim: str, size: int) -> None:
    assert at_batch_five([declare("x", dim, 8)]) == [(size, 8)]


@pytest.mark.parametrize("dim", ["batch*seq", "batch - 1", "batch//2", "Max(1, batch)"])
@pytest.mark.parametrize("given", [None, [(8,)]])
def test_a_size_that_does_not_say_how_it_follows_the_batch_is_refused(dim: str, given: object) -> None:
    with pytest.raises(UsageError) as caught:
        at_batch_five([declare("x", dim, 8)], given)
    assert caught.value.code == "input.batch_unclear"
    assert dim in str(caught.value)


def test_samples_may_take_two_rows_of_one_input_each() -> None:
    assert at_batch_five([declare("x", "N", 8), declare("pair", "2*N", 8)]) == [(5, 8), (10, 8)]


def test_an_unbatched_input_has_its_whole_shape() -> None:
    inputs = [declare("x", "N", 8), declare("table", "N", 8)]
    assert at_batch_five(inputs, {"table": "7,8:unbatched"}) == [(5, 8), (7, 8)]
    assert at_batch_five([declare("x", 1, 3, 8)], "1,3,8:unbatched") == [(1, 3, 8)]
    undeclared = InputDeclaration(value=0, name="x", dtype=DType.FLOAT32, dims=None)
    assert at_batch_five([undeclared], "3,8:unbatched") == [(3, 8)]
    plan = plan_inputs([declare("x", 4, 3)], parse_input_shapes("4,3:unbatched"))
    assert (plan.native_batch, plan.has_batch) == (None, False)


@pytest.mark.parametrize("first", ["N", 1])
def test_an_unbatched_input_without_its_first_dimension_is_refused(first: int | str) -> None:
    with pytest.raises(UsageError, match=r"has 4 dimensions in all\. Got 3 of it unbatched: 3, 8, 8") as caught:
        at_batch_five([declare("x", first, 3, 8, 8)], "3,8,8:unbatched")
    assert caught.value.code == "input.rank"
