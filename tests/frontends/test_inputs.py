from dataclasses import dataclass
from typing import NamedTuple

import pytest

from dippm.errors import UsageError
from dippm.frontends.call_structure import Fixed
from dippm.frontends.inputs import InputEntry, InputShapes, nest_dotted_names, parse_input_shapes, unknown_input
from dippm.graph import DType


@pytest.mark.parametrize(
    "given", ["3,224,224", "3x224x224", " 3, 224 ,224 ", (3, 224, 224), [3, 224, 224], [(3, 224, 224)], ["3,224,224"]]
)
def test_spellings_of_one_image(given: object) -> None:
    assert parse_input_shapes(given).positional == (InputEntry(shape=(3, 224, 224)),)


@pytest.mark.parametrize("given", ["384:int64", ((384,), "int64"), [((384,), "long")], "384:torch.int64"])
def test_spellings_of_tokens(given: object) -> None:
    assert parse_input_shapes(given).positional == (InputEntry(shape=(384,), dtype=DType.INT64),)


def test_names() -> None:
    shapes = parse_input_shapes({"input_ids": "384:int64", "pixels": (3, 8, 8)})
    assert shapes.named == {
        "input_ids": InputEntry(shape=(384,), dtype=DType.INT64),
        "pixels": InputEntry(shape=(3, 8, 8)),
    }


def test_nothing_given_is_empty() -> None:
    assert parse_input_shapes(None).is_empty


def test_a_comma_may_end_a_shape_and_nothing_is_a_number() -> None:
    assert [parse_input_shapes(text).entries[0].shape for text in ("3,", "3,4,", "", ":int64")] == [
        (3,),
        (3, 4),
        (),
        (),
    ]


def test_several_by_position() -> None:
    assert [entry.shape for entry in parse_input_shapes([(3, 4), "5"]).positional] == [(3, 4), (5,)]
    assert parse_input_shapes(((3, 4), [5])) == parse_input_shapes([(3, 4), "5"])
    assert parse_input_shapes((((3, 4), "int64"),)) == parse_input_shapes(["3,4:int64"])


@pytest.mark.parametrize(
    "given",
    [
        "3,-1",
        "0",
        (3, 0, 224),
        [(0,), "3,0"],
        "a,b",
        "x",
        ",",
        "3,,4",
        "3,4,,",
        7.5,
        (3, True),
        "9" * 30,
        [None],
        {"x": 1.5j},
        [1.5],
    ],
)
def test_what_is_no_shape_is_refused(given: object) -> None:
    with pytest.raises(UsageError) as caught:
        parse_input_shapes(given)
    assert caught.value.code == "input.invalid"


def test_an_input_beside_others_may_be_empty() -> None:
    assert [entry.shape for entry in parse_input_shapes([(3, 4), "0,4"]).positional] == [(3, 4), (0, 4)]
    assert parse_input_shapes({"past": (0, 64)}).named == {"past": InputEntry(shape=(0, 64))}
    assert parse_input_shapes(["x=3", "past=0,64"]) == parse_input_shapes({"x": (3,), "past": (0, 64)})


def test_an_unknown_element_type_is_named() -> None:
    with pytest.raises(UsageError, match="float31"):
        parse_input_shapes("3:float31")


class _Pair(NamedTuple):
    left: object
    right: object


@dataclass
class _Tokens:
    ids: object
    mask: object = None
    scale: float = 1.0


@pytest.mark.parametrize("given", ["2,90:int64:unbatched", "2,90:unbatched:int64", ((2, 90), "int64", "unbatched")])
def test_an_input_without_a_batch(given: object) -> None:
    (entry,) = parse_input_shapes(given).positional
    assert entry == InputEntry(shape=(2, 90), dtype=DType.INT64, is_batched=False)
    assert entry.at(7) == (2, 90)
    assert InputEntry(shape=(2, 90)).at(7) == (7, 2, 90)


def test_nested_arguments_are_filled_in_order() -> None:
    shapes = parse_input_shapes(
        {
            "batch": {"ids": "12:int64", "rest": [(3,), ((4,), "bool")]},
            "pair": _Pair("5", (6,)),
            "tokens": _Tokens("7"),
            "scale": "=0.5",
            "use_cache": False,
        }
    )
    assert list(shapes.named or {}) == [
        "batch.ids", "batch.rest.0", "batch.rest.1", "pair.left", "pair.right", "tokens.ids",
    ]  # fmt: skip
    assert shapes.structure is not None
    assert shapes.structure.fill("abcdef") == (
        (),
        {
            "batch": {"ids": "a", "rest": ["b", "c"]},
            "pair": _Pair("d", "e"),
            "tokens": _Tokens("f"),
            "scale": 0.5,
            "use_cache": False,
        },
    )


@pytest.mark.parametrize(
    ("given", "value"),
    [("=3", 3), ("=-0.5", -0.5), ("=true", True), ("=None", None), ("=mean", "mean"), (None, None), (2, 2)],
)
def test_an_argument_that_is_no_tensor(given: object, value: object) -> None:
    shapes = parse_input_shapes({"x": (3,), "option": given})
    assert shapes.structure is not None
    assert shapes.structure.fill(["x"]) == ((), {"x": "x", "option": value})


def test_nested_by_position() -> None:
    shapes = parse_input_shapes([[(3,), (4,)], "5"])
    assert [entry.shape for entry in shapes.entries] == [(3,), (4,), (5,)]
    assert shapes.structure is not None
    assert shapes.structure.fill("abc") == ((["a", "b"], "c"), {})


def test_dotted_names_are_parts_of_an_argument() -> None:
    shapes = nest_dotted_names(
        parse_input_shapes({"batch.ids": "12:int64", "batch.more.mask": "12:bool", "x.1": "3", "k": "=2"}),
        ["batch", "x.1", "k"],
    )
    assert shapes.structure is not None
    assert shapes.structure.fill("abc") == ((), {"batch": {"ids": "a", "more": {"mask": "b"}}, "x.1": "c", "k": 2})


@pytest.mark.parametrize("arguments", [["input.1"], ["x", "y"]])
def test_dotted_names_that_are_no_part_stay(arguments: list[str]) -> None:
    given = parse_input_shapes({"input.1": "3"})
    assert nest_dotted_names(given, arguments) is given


def test_a_name_cannot_be_a_tensor_and_have_parts() -> None:
    with pytest.raises(UsageError, match="batch"):
        nest_dotted_names(parse_input_shapes({"batch.a": "3", "batch.a.b": "3"}), ["batch"])


def test_where_tensors_stand_side_by_side_nested_ones_are_refused() -> None:
    parse_input_shapes({"x": "3"}).refuse_structure("This model")
    with pytest.raises(UsageError, match="This model takes tensors side by side") as caught:
        parse_input_shapes({"x": {"y": "3"}}).refuse_structure("This model")
    assert caught.value.code == "input.nested"
    with pytest.raises(UsageError, match=r"Got the value '1x64' for 'x'\. .* as name=3,224,224 with a single '='"):
        parse_input_shapes({"x": "=1x64"}).refuse_structure("This model")


def test_numbers_that_inputs_hold_are_told_from_tensors() -> None:
    given = parse_input_shapes(["x=3,8", "rounds==5", "is_fast==true"])
    shapes, values = given.split_values("This model")
    assert shapes == InputShapes(named={"x": InputEntry(shape=(3, 8))})
    assert values == {"rounds": 5, "is_fast": True}
    assert shapes.split_values("This model") == (shapes, {})
    for wrong in ({"x": {"y": "3"}, "rounds": 5}, {"x": None}, {"x": "=wide"}, ["3", "=5"]):
        with pytest.raises(UsageError, match="This model takes tensors side by side"):
            parse_input_shapes(wrong).split_values("This model")


@pytest.mark.parametrize(
    ("name", "known", "cure"),
    [
        ("ids", ("attention_mask", "input_ids"), "The nearest is 'input_ids'."),
        ("mask", ("input_ids", "attention_mask"), "The nearest is 'attention_mask'."),
        ("imput_id", ("input_ids", "attention_mask"), "The nearest is 'input_ids'."),
        ("x", ("pixels",), "The nearest is 'pixels'."),
        ("x", ("pixels", "text"), "Use one of these names."),
    ],
)
def test_an_unknown_input_is_told_with_the_nearest(name: str, known: tuple[str, ...], cure: str) -> None:
    error = unknown_input(name, known, of="'model.onnx'", why="It said no.")
    assert error.code == "input.name_unknown"
    assert error.cure == cure
    assert str(error) == f"'model.onnx' has no input '{name}'. Its inputs are: {', '.join(known)}. It said no. {cure}"


def test_of_many_inputs_some_are_listed() -> None:
    listed = str(unknown_input("y", [f"x{place}" for place in range(30)], of="It"))
    assert "x19, ..." in listed
    assert "x20" not in listed


@pytest.mark.parametrize(
    ("texts", "inputs"),
    [
        (["ids=384:int64", "mask=384"], {"ids": "384:int64", "mask": "384"}),
        ("ids=384:int64", {"ids": "384:int64"}),
        (("ids=384:int64", " mask = 384 "), {"ids": "384:int64", "mask": "384"}),
        (["a=b=3,4"], {"a=b": "3,4"}),
        (["a=b=384:int64", "b=:int64"], {"a=b": "384:int64", "b": ":int64"}),
        (
            ["tokens.ids=128:int64", "positions=128,8:unbatched"],
            {"tokens.ids": "128:int64", "positions": "128,8:unbatched"},
        ),
        (["x=64", "scale==0.5", "mode==a=b"], {"x": "64", "scale": "=0.5", "mode": "=a=b"}),
        (["a=b==5"], {"a=b": "=5"}),
        (["3,224,224"], "3,224,224"),
        (["3,224,224", "=0.5"], [(3, 224, 224), "=0.5"]),
    ],
)
def test_a_text_may_have_the_name_of_its_input_in_front(texts: object, inputs: object) -> None:
    assert parse_input_shapes(texts) == parse_input_shapes(inputs)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (["ids=384", "384"], "input.mixed"),
        (["ids=384", "=0.5"], "input.mixed"),
        (["ids=384", "ids=128"], "input.repeated"),
        (["ids=384", "ids==1"], "input.repeated"),
    ],
)
def test_texts_that_contradict(given: list[str], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_input_shapes(given)
    assert caught.value.code == code
    assert caught.value.cure


def test_a_value_written_as_a_shape_is_told_how_to_write_it() -> None:
    with pytest.raises(UsageError, match=r"Got '0\.5'.*name==0\.5"):
        parse_input_shapes("scale=0.5")
    shapes = parse_input_shapes(["x=64", "scale==0.5"])
    assert shapes.structure is not None
    assert shapes.structure.named["scale"] == Fixed(value=0.5)


@pytest.mark.parametrize(
    "given", [(3, 10**5000), "9" * 5000, [(10**5000,)], {"x": "1" + 20 * "0"}], ids=["tuple", "text", "list", "dict"]
)
def test_a_size_of_any_length_is_refused(given: object) -> None:
    with pytest.raises(UsageError) as caught:
        parse_input_shapes(given)
    assert caught.value.code == "input.invalid"
    assert len(str(caught.value)) < 600
