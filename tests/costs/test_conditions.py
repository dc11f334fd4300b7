import pytest

from dippm.costs.conditions import Conditions, Layout, LowRankAdapters, Mode, Runtime
from dippm.costs.precision import Precision
from dippm.errors import UsageError


def test_names_are_read_whatever_their_case() -> None:
    conditions = Conditions.parse(precision="AMP", mode=" training", layout="NHWC", runtime="cuda-graph")
    assert conditions == Conditions(
        precision=Precision.AMP, mode=Mode.TRAINING, layout=Layout.NHWC, runtime=Runtime.CUDA_GRAPH
    )


@pytest.mark.parametrize("what", ["precision", "mode", "layout", "runtime"])
def test_an_unknown_name_lists_the_known_ones(what: str) -> None:
    names = {"precision": "fp32", "mode": "inference", "layout": "nchw", "runtime": "eager"}
    known = names[what]
    with pytest.raises(UsageError, match=known) as caught:
        Conditions.parse(**(names | {what: "fp33"}))
    assert caught.value.code == f"{what}.unknown"


@pytest.mark.parametrize(
    ("given", "rank", "targets", "written"),
    [
        (16, 16, (), "16"),
        (" 8 ", 8, (), "8"),
        ("4:q_proj", 4, ("q_proj",), "4:q_proj"),
        ("4+dropout:q_proj", 4, ("q_proj",), "4+dropout:q_proj"),
        ("16 + Dropout", 16, (), "16+dropout"),
        ("4: q_proj , v_proj,q_proj", 4, ("q_proj", "v_proj"), "4:q_proj,v_proj"),
    ],
)
def test_adapters_are_a_rank_and_names(given: object, rank: int, targets: tuple[str, ...], written: str) -> None:
    adapters = LowRankAdapters.parse(given)
    assert adapters == LowRankAdapters(rank=rank, targets=targets, has_dropout="+" in written)
    assert str(adapters) == written
    assert LowRankAdapters.parse(written) == adapters


@pytest.mark.parametrize(
    "given",
    [
        0,
        -1,
        True,
        1.5,
        "",
        "x",
        "16:",
        "16:,",
        ":q_proj",
        "16:q,,v",
        "16+",
        "16+drop",
        65_537,
        pytest.param(10**5_000, id="huge"),
        pytest.param(-(10**5_000), id="huge and negative"),
        "9" * 5_000,
        "\u00b2",
        None,
        [16],
    ],
)
def test_other_adapters_are_refused(given: object) -> None:
    with pytest.raises(UsageError) as caught:
        LowRankAdapters.parse(given)
    assert caught.value.code == "lora.invalid"
