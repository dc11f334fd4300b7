import ast
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import dippm.frontends
from dippm.errors import DippmError, MissingExtraError, ModelReadError, UnsupportedError, UsageError
from dippm.frontends.conversion.convert import ConvertedModel, convert
from dippm.frontends.conversion.limits import ConversionLimits
from dippm.frontends.onnx import read_onnx

HERE = Path(__file__).parent
Run = Callable[..., ConvertedModel]


@pytest.fixture(name="cache", autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIPPM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return tmp_path / "cache" / "conversions"


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Path:
    """A linear layer of 64 KiB after a reshape by a small constant."""
    weight = numpy_helper.from_array(np.ones((128, 128), np.float32), "w")
    shape = numpy_helper.from_array(np.array([-1, 128], np.int64), "shape")
    scale = numpy_helper.from_array(np.array(0.5, np.float32), "scale")
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["product"]),
        helper.make_node("Mul", ["product", "scale"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 128])
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], [weight, shape, scale]))
    path = tmp_path / "model.fake"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture(name="run")
def _run(source: Path) -> Run:
    def run(limits: ConversionLimits | None = None, **options: Any) -> ConvertedModel:
        return convert(
            framework="Fake",
            worker="fake_converter",
            source=source,
            files=[source],
            options=options,
            limits=limits or ConversionLimits(seconds=60, memory_mb=2000),
        )

    return run


def temporary_folders() -> set[str]:
    return {entry for entry in os.listdir(tempfile.gettempdir()) if entry.startswith("dippm-")}


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


@pytest.mark.parametrize(
    ("task", "kind", "code", "said"),
    [
        ("crash", ModelReadError, "conversion.crashed", "SIGSEGV"),
        ("leave", ModelReadError, "conversion.crashed", "exit status 3"),
        ("raise", ModelReadError, "conversion.failed", "ValueError: a field is missing"),
        ("refuse", UnsupportedError, "fake.legs", "It has five legs. Take one away."),
        ("miss", MissingExtraError, "extra.missing", 'pip install "dippm[legs]"'),
        ("write nothing", ModelReadError, "conversion.failed", "wrote no model"),
        ("write rubbish", ModelReadError, "onnx.damaged", ""),
        ("find no room", UnsupportedError, "conversion.no_space", "Make room"),
        ("find no memory", UnsupportedError, "conversion.memory", "300 MiB"),
        ("fill memory", UnsupportedError, "conversion.memory", "300 MiB"),
        ("fill disk", ModelReadError, "conversion.failed", "File too large"),
    ],
)
def test_whatever_the_converter_does_is_a_clear_error(
    run: Run, task: str, kind: type[DippmError], code: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = temporary_folders()
    with pytest.raises(kind) as caught:
        run(ConversionLimits(seconds=60, memory_mb=300, output_mb=20), task=task)
    assert (caught.value.code, said in str(caught.value)) == (code, True)
    assert temporary_folders() <= before
    assert capfd.readouterr() == ("", "")


def test_what_a_converter_says_takes_no_disk(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="dippm.frontends.conversion"):
        converted = run(ConversionLimits(seconds=60, memory_mb=2000, output_mb=20), task="chatter")
    assert converted.model
    (said,) = (record.getMessage() for record in caplog.records if "and said" in record.getMessage())
    assert said.endswith("the end\n")
    assert len(said) < 70_000


def assert_gone(process_ids: str) -> None:
    deadline = time.monotonic() + 5
    for process_id in map(int, process_ids.split()):
        while time.monotonic() < deadline and is_running(process_id):
            time.sleep(0.05)
        assert not is_running(process_id)


def is_running(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_converter_that_hangs_is_ended_with_its_children(run: Run, tmp_path: Path) -> None:
    before, mark = temporary_folders(), tmp_path / "mark"
    with pytest.raises(UnsupportedError) as caught:
        run(ConversionLimits(seconds=5), task="hang", mark=str(mark))
    assert caught.value.code == "conversion.timeout"
    assert_gone(mark.read_text())
    assert temporary_folders() <= before


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    ("ending", "task"), [(signal.SIGINT, "hang"), (signal.SIGKILL, "hang"), (signal.SIGKILL, "hold the lock")]
)
def test_nothing_outlives_the_caller(source: Path, tmp_path: Path, ending: signal.Signals, task: str) -> None:
    mark = tmp_path / "mark"
    # A background job of a shell ignores interrupts, and hands that on.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from pathlib import Path; from dippm.frontends.conversion.convert import convert; "
        f"source = Path({str(source)!r}); convert(framework='Fake', worker='fake_converter', source=source, "
        f"files=[source], options={{'task': {task!r}, 'mark': {str(mark)!r}}})"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "TMPDIR": str(tmp_path)}
    caller = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (mark.exists() and mark.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    caller.send_signal(ending)
    caller.wait(30)
    converter, child = mark.read_text().split()
    assert_gone(f"{converter} {child}")
    if ending is signal.SIGINT:  # a caller that is killed cannot tidy up
        assert not list(tmp_path.glob("dippm-*"))


def test_the_process_has_a_home_of_its_own_and_no_way_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    names = ("HOME", "TMPDIR", "PIP_NO_INDEX", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
    run(task="tell", names=[*names, "SECRET_TOKEN"], mark=str(tmp_path / "mark"))
    environment, folder = ast.literal_eval((tmp_path / "mark").read_text(encoding="utf-8"))
    assert environment["SECRET_TOKEN"] == ""
    assert [environment[name] for name in names[2:]] == ["1", "1", "", "1"]
    assert environment["HOME"] == environment["TMPDIR"] == folder != str(Path.home())
    assert not Path(folder).exists()


@pytest.mark.parametrize("folder", ["", "/dev/null/nowhere"])
def test_without_a_cache_nothing_is_left_behind(run: Run, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
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


def test_limits_must_be_positive() -> None:
    with pytest.raises(UsageError) as caught:
        ConversionLimits(seconds=0)
    assert caught.value.code == "conversion.limit_invalid"


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(ModelReadError) as caught:
        convert(framework="Fake", worker="fake_converter", source=gone, files=[gone])
    assert caught.value.code == "model.unreadable"
