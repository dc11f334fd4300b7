"""A converter may crash, hang, fill memory or disk: the caller gets an error that says so, and nothing stays."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from dippm.errors import DippmError, MissingExtraError, ModelReadError, UnsupportedError
from dippm.frontends.conversion.convert import ConvertedModel
from dippm.frontends.conversion.limits import ConversionLimits

pytestmark = pytest.mark.usefixtures("cache")


Run = Callable[..., ConvertedModel]


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
    run: Run,
    task: str,
    kind: type[DippmError],
    code: str,
    said: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    temporary_folders: Callable[[], set[str]],
) -> None:
    # On a busy machine it takes long enough to be told of.
    monkeypatch.setattr("dippm.frontends.conversion.converter_process._QUIET_S", 60.0)
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


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_converter_that_hangs_is_ended_with_its_children(
    run: Run, tmp_path: Path, temporary_folders: Callable[[], set[str]], assert_gone: Callable[[Iterable[int]], None]
) -> None:
    before, mark = temporary_folders(), tmp_path / "mark"
    with pytest.raises(UnsupportedError) as caught:
        run(ConversionLimits(seconds=5), task="hang", mark=str(mark))
    assert caught.value.code == "conversion.timeout"
    assert_gone(map(int, mark.read_text().split()))
    assert temporary_folders() <= before


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(
    ("ending", "task"), [(signal.SIGINT, "hang"), (signal.SIGKILL, "hang"), (signal.SIGKILL, "hold the lock")]
)
def test_nothing_outlives_the_caller(
    source: Path, tmp_path: Path, ending: signal.Signals, task: str, assert_gone: Callable[[Iterable[int]], None]
) -> None:
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
    converter, child = map(int, mark.read_text().split())
    assert_gone([converter, child])
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
