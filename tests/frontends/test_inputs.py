import pytest

from dippm.errors import UsageError
from dippm.frontends.inputs import InputEntry, parse_input_shapes
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


def test_several_by_position() -> None:
    assert [entry.shape for entry in parse_input_shapes([(3, 4), "5"]).positional] == [(3, 4), (5,)]


@pytest.mark.parametrize("given", ["3,-1", "0", "a,b", 7.5, (3, True), "9" * 30, [None], {"x": 1.5}])
def test_what_is_no_shape_is_refused(given: object) -> None:
    with pytest.raises(UsageError) as caught:
        parse_input_shapes(given)
    assert caught.value.code == "input.invalid"


def test_an_unknown_element_type_is_named() -> None:
    with pytest.raises(UsageError, match="float31"):
        parse_input_shapes("3:float31")
