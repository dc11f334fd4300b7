import pytest

from dippm.graph import DType, OpKind
from dippm.graph.codes import encode, mark, tabulate


def test_a_member_is_its_place() -> None:
    assert encode([OpKind.LINEAR, OpKind.CONV, OpKind.LINEAR], OpKind).tolist() == [2, 0, 2]
    assert encode([], OpKind).tolist() == []


def test_tables_are_looked_up_by_the_numbers() -> None:
    numbers = encode([DType.FLOAT16, DType.INT64, DType.FLOAT64], DType)
    assert tabulate(DType, lambda dtype: dtype.bits)[numbers].tolist() == [16, 64, 64]
    assert mark(DType, [DType.INT64, DType.BOOL])[numbers].tolist() == [False, True, False]
    assert not mark(DType, []).any()


def test_a_mark_that_others_share_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        mark(DType, [DType.INT64])[0] = True
