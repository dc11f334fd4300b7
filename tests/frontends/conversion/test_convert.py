from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

import dippm.frontends
from dippm.errors import ModelReadError
from dippm.frontends.conversion.convert import ConvertedModel, convert
from dippm.frontends.onnx import read_onnx

pytestmark = pytest.mark.usefixtures("cache")


HERE = Path(__file__).parent


Run = Callable[..., ConvertedModel]


def test_large_weights_go_and_all_else_stays(run: Run, source: Path) -> None:
    converted = run()
    assert len(converted.model) < 2000 < source.stat().st_size
    assert converted.converter_s > 0
    before, after = onnx.load(source), onnx.load_from_string(converted.model)
    assert list(after.graph.node) == list(before.graph.node)
    weight, *others = after.graph.initializer
    assert (list(weight.dims), weight.data_type, weight.raw_data) == ([128, 128], TensorProto.FLOAT, b"")
    assert others == list(before.graph.initializer)[1:]
    graph, expected = read_onnx(converted.model), read_onnx(source)
    assert (graph.nodes, graph.tensors) == (expected.nodes, expected.tensors)


def test_the_second_time_nothing_runs(run: Run, source: Path, tmp_path: Path) -> None:
    count = tmp_path / "count"
    first, second = (run(count=str(count)) for _ in range(2))
    assert (first.was_cached, second.was_cached) == (False, True)
    assert (second.model, second.converter_s) == (first.model, first.converter_s)
    assert count.read_text() == "x"
    run(count=str(count), other=1)  # what the worker is asked for
    source.write_bytes(source.read_bytes() + b"\x12\x01a")  # and what it is asked of
    run(count=str(count))
    assert count.read_text() == "xxx"


def test_hints_that_were_not_needed_make_no_other_result(run: Run) -> None:
    assert [run(hints={"shape": size}).was_cached for size in (1, 2)] == [False, True]
    assert run().was_cached
    assert [run(task="use hints", hints={"shape": size}).was_cached for size in (1, 2, 1, 2)] == [
        False,
        False,
        True,
        True,
    ]
    assert not run(task="use hints").was_cached


def test_what_the_converter_warns_of_is_kept_with_the_result(run: Run) -> None:
    assert [(run(task="warn").warnings, run(task="warn").was_cached)] == [(("It limps.",), True)]


def test_what_changed_while_it_was_converted_is_not_kept(run: Run, source: Path, cache: Path) -> None:
    before = source.read_bytes()
    changed = run(task="export anew")
    assert onnx.load_from_string(changed.model).producer_name == "a"
    source.write_bytes(before)
    assert not list(cache.glob("*"))


def test_a_damaged_entry_counts_as_absent(run: Run, cache: Path) -> None:
    first = run()
    (damaged,) = cache.iterdir()
    damaged.write_bytes(damaged.read_bytes()[:-10])
    again = run()
    assert (again.was_cached, again.model) == (False, first.model)
    assert run().was_cached


def test_no_result_outlives_the_code_that_made_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes the weights out, and what runs the converter, shape the result as the converter itself does."""
    convert_module = sys.modules[convert.__module__]
    assert [run().was_cached, run().was_cached] == [False, True]
    read, package = Path.read_bytes, Path(dippm.frontends.__file__).parent
    for changed in (
        package / "onnx" / "skeleton.py",
        package / "conversion" / "convert.py",
        HERE / "fake_converter.py",
    ):

        def read_changed(path: Path, changed: Path = changed) -> bytes:
            return read(path) + (b"# another line" if path == changed else b"")

        convert_module._state_of_code.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", read_changed)
            assert [run().was_cached, run().was_cached] == [False, True]
    convert_module._state_of_code.cache_clear()


@pytest.mark.parametrize("folder", ["", "/dev/null/nowhere"])
def test_without_a_cache_nothing_is_left_behind(
    run: Run, monkeypatch: pytest.MonkeyPatch, folder: str, temporary_folders: Callable[[], set[str]]
) -> None:
    before = temporary_folders()
    monkeypatch.setenv("DIPPM_CACHE", folder)
    converted = run()
    assert not converted.was_cached
    assert onnx.load_from_string(converted.model).graph.node
    assert temporary_folders() <= before


def test_two_at_once_get_the_same(run: Run) -> None:
    found: list[ConvertedModel] = []
    threads = [threading.Thread(target=lambda: found.append(run())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({each.model for each in found}) == 1
    assert len(found) == 3


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(ModelReadError) as caught:
        convert(framework="Fake", worker="fake_converter", source=gone, files=[gone])
    assert caught.value.code == "model.unreadable"
