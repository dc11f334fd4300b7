import pytest

from dippm.costs.conditions import Conditions, Layout, Mode, Runtime
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
