import dippm
from dippm.graph import OpKind


def test_every_kind_says_how_its_time_is_predicted() -> None:
    rows = dippm.operators()
    assert [row[0] for row in rows[:-1]] == [kind.value for kind in OpKind]
    assert all(method for _, _, method in rows)


def test_operators_of_both_frameworks_are_listed() -> None:
    rows = {kind: names for kind, names, _ in dippm.operators()}
    assert "aten.convolution" in rows["conv"]
    assert {"Conv", "LSTM", "com.microsoft.FusedConv"} <= set(rows["(onnx)"])
