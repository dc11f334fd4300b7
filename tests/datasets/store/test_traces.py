from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from dippm.datasets.store.traces import read_traces, write_traces
from dippm.errors import UsageError
from dippm.measuring.operator_run import KernelRun, OperatorRun


def make_run(name: str, *kernels: tuple[str, str, float, float], is_backward: bool = False) -> OperatorRun:
    return OperatorRun(
        name=name,
        input_shapes=((2, 3, 8, 8), (), (4,)),
        scalars=("", "[1, 1]", 'a "quoted" text; 値'),
        is_backward=is_backward,
        kernels=tuple(
            KernelRun(name=kernel, launched_by=by, start_us=start_us, duration_us=duration_us)
            for kernel, by, start_us, duration_us in kernels
        ),
    )


CONV = make_run("aten::conv2d", ("cast", "aten::copy_", 0.0, 1.5), ("conv", "aten::cudnn_convolution", 2.5, 10.25))
RELU = make_run("aten::relu", ("relu", "aten::relu", 13.0, 0.5))
BACK = make_run("aten::relu", ("relu", "aten::relu", 14.0, 0.75), is_backward=True)
VIEW = make_run("aten::view")


def test_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "a" / "traces.parquet"
    # Two equal operators one after the other stay two, and the keys keep their order.
    traces = {"b" * 16: (CONV, RELU, RELU, BACK), "a" * 16: (RELU,)}
    assert write_traces(path, iter(traces.items())) == 6
    found = read_traces(path)
    assert dict(found) == traces
    assert list(found) == list(traces)


def test_operators_without_kernels_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "traces.parquet"
    assert write_traces(path, [("k1", (VIEW, RELU, VIEW, RELU, VIEW)), ("k2", (VIEW,)), ("k3", ())]) == 2
    assert dict(read_traces(path)) == {"k1": (RELU, RELU)}


def test_no_traces(tmp_path: Path) -> None:
    path = tmp_path / "traces.parquet"
    assert write_traces(path, ()) == 0
    assert dict(read_traces(path)) == {}


def test_what_repeats_takes_little_room(tmp_path: Path) -> None:
    path = tmp_path / "traces.parquet"
    kernels = write_traces(path, ((f"{number:016x}", (CONV, RELU) * 20) for number in range(200)))
    assert path.stat().st_size < 4 * kernels


def test_files_that_hold_no_traces(tmp_path: Path) -> None:
    def code_of(path: Path) -> str:
        with pytest.raises(UsageError) as caught:
            read_traces(path)
        assert str(path) in str(caught.value)
        return caught.value.code

    path = tmp_path / "traces.parquet"
    assert code_of(path) == "traces.unreadable"  # there is none
    path.write_bytes(b"PAR1 and no more")
    assert code_of(path) == "traces.unreadable"
    pyarrow.parquet.write_table(pyarrow.table({"key": ["a"]}), path)
    assert code_of(path) == "traces.unreadable"
    write_traces(path, [("k", (CONV,))])
    table = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(table.replace_schema_metadata({b"dippm.traces.schema": b"2"}), path)
    assert code_of(path) == "traces.unreadable"


def test_a_file_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "traces.parquet"
    write_traces(path, [("k", (CONV,))])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UsageError) as caught:
        read_traces(path)
    assert caught.value.code == "traces.unreadable"
