from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dippm.cli import main
from dippm.errors import UnsupportedError

ALL_COMMANDS = ("predict", "inspect", "fits", "max-batch", "devices", "ops", "evaluate", "measure")


def run_dippm(*words: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dippm", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | changes,
    )


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in ALL_COMMANDS)


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_every_command_has_help_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


def test_no_command_shows_help_and_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert "predict" in captured.out
    assert captured.err == ""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dippm {version('dippm')}\n"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["frob"], "dippm --help"),
        (["predict"], "dippm predict --help"),
        (["predict", "model.onnx", "--frob"], "dippm predict --help"),
        (["predict", "model.onnx", "--batch"], "Option '--batch' requires an argument. See dippm predict --help."),
        (["predict", "model.onnx", "-b"], "Option '-b' requires an argument. See dippm predict --help."),
        (["fits", "model.onnx", "--device"], "See dippm fits --help."),
        (["pack", "--models"], "See dippm pack --help."),
        (["dataset", "import", "--store"], "See dippm dataset import --help."),
        (["inspect", "model.onnx", "--top", "-1"], "dippm inspect --help"),
        (["predict", "model.onnx", "other.onnx"], "dippm predict --help"),
    ],
)
def test_wrong_use(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Error: ")
    assert captured.err.endswith("[usage.invalid]\n")
    assert hint in captured.err
    assert main([words[0], "--json", *words[1:]]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["exit_status"]) == ("usage.invalid", 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict", "m.onnx", "--bathc", "1"], "--bathc (Possible options: --batch). See dippm predict --help."),
        (["train", "--data", "STORE", "--lr", "-1"], "The learning rate of a training must be between 0 and 1"),
        (["max-batch", "NET", "--latency-ms", "inf"], "bound must be above 0 ms and finite. Got inf"),
        (["fits", "NET", "--price", "A100=1e400"], "must be from 1e-09 to 1e+12. Got inf"),
        (["pack", "NET", "--latency-ms", "inf"], "must be a finite number of ms above 0. Got inf"),
    ],
)
def test_words_of_an_error(words: list[str], said: str, net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word.replace("NET", net) for word in words]) == 2
    assert said in capsys.readouterr().err


def test_unexpected_error_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> object:
        raise RuntimeError("boom")

    monkeypatch.setattr("dippm.api.list_devices", fail)
    assert main(["devices"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "RuntimeError: boom" in captured.err
    assert "--debug" in captured.err
    assert main(["devices", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err
    assert main(["devices", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "internal"


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("dippm.api.list_devices", interrupt)
    assert main(["devices"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("error", [ImportError("initialization failed"), UnsupportedError("It failed.", code="x.y")])
def test_an_error_that_came_of_an_interrupt_is_one(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> object:
        raise error from KeyboardInterrupt()

    monkeypatch.setattr("dippm.api.list_devices", interrupt)
    assert main(["devices"]) == 130
    assert capsys.readouterr().err == ""


def test_the_end_of_a_file_is_no_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def end() -> object:
        raise EOFError("Ran out of input")

    monkeypatch.setattr("dippm.api.list_devices", end)
    assert main(["devices", "--json"]) == 1
    assert "EOFError: Ran out of input" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_a_program_that_ray_ends_was_terminated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def end() -> object:
        sys.exit(signal.SIGTERM)  # Ray's handler of the signal while a command is connected

    monkeypatch.setattr("dippm.api.list_devices", end)
    assert main(["devices"]) == 143
    assert capsys.readouterr() == ("", "")


def test_closed_pipe_is_quiet() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "dippm", "devices", "--json"],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writing)
    assert result.stderr == ""
    assert result.returncode == 1


@pytest.mark.skipif(sys.platform == "win32", reason="closes descriptors as a shell does")
@pytest.mark.parametrize("words", [("devices", "A100"), ("devices", "A100", "--json"), ("devices", "no such card")])
def test_streams_that_the_caller_closed_are_nowhere(words: tuple[str, ...]) -> None:
    program = f"exec '{sys.executable}' -m dippm \"$@\" <&- >&-"
    command = ["sh", "-c", program, "sh", *words]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert "Traceback" not in result.stderr
    assert result.returncode == (4 if "no such card" in words else 0)
    command[2] += " 2>&-"
    assert subprocess.run(command, timeout=120, check=False).returncode == result.returncode


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", [("devices",), ("devices", "--json"), ("devices", "no such card", "--json")])
def test_a_full_disk_is_one_line_on_the_other_stream(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "dippm", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert result.stderr.splitlines() == ["Error: The output cannot be written: No space left on device. [output.full]"]
    assert result.returncode == 1


def test_a_full_disk_that_holds_a_file_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill() -> object:
        raise OSError(errno.ENOSPC, "No space left on device", "rows.parquet")

    monkeypatch.setattr("dippm.api.list_devices", fill)
    monkeypatch.setattr(sys.modules["dippm.cli.main"], "_leave_closed_pipe", lambda: 1)
    assert main(["devices"]) == 1
    assert (
        capsys.readouterr().err == "Error: 'rows.parquet' cannot be written: No space left on device. [output.full]\n"
    )


def test_another_error_of_the_system_shows_where_it_happened_with_debug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> object:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("dippm.api.list_devices", fail)
    assert main(["devices", "--debug"]) == 1
    captured = capsys.readouterr().err
    assert "Traceback" in captured
    assert captured.endswith("add --debug to see where it happened. [internal]\n")


def test_debug_may_stand_anywhere_but_behind_a_double_dash(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--debug", "devices", "no such card"]) == 4
    assert "Traceback" in capsys.readouterr().err
    assert main(["devices", "--", "--debug"]) == 4
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert "--debug" in captured.err


def test_module_is_the_program(tmp_path: Path) -> None:
    result = run_dippm("predict", str(tmp_path / "missing.onnx"))
    assert result.returncode == 3
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert "[model.missing]" in result.stderr


def test_ascii_terminal_is_enough() -> None:
    result = run_dippm("devices", "A100", TTY_COMPATIBLE="1", PYTHONIOENCODING="ascii", TERM="dumb")
    assert result.returncode == 0
    assert "A100" in result.stdout
    result.stdout.encode("ascii")
