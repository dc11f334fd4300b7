from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dippm.cli import main
from dippm.cli.output import is_terminal, kept_stdout, make_printable, print_columns, print_error, print_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("features.0 · ×", "features.0 · ×"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb", "a\nb"),
        ("\r\x00\u202e", "\\r\\x00\\u202e"),
        ("\ud800", "\\ud800"),
    ],
)
def test_nothing_steers_the_terminal(text: str, shown: str) -> None:
    assert make_printable(text) == shown


def test_columns_stay_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_columns(("name", "value"), [("a\tb", 1), ("c\nd", None)])
    assert capsys.readouterr().out == "name\tvalue\na\\tb\t1\nc d\t\n"


def test_json_is_one_object_and_strict(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": "é\x1b", "value": 1.5})
    assert json.loads(capsys.readouterr().out) == {"name": "é\x1b", "value": 1.5}
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json({"value": float("nan")})


def test_error_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("There is no file \x1b.", code="model.missing", exit_status=3, as_json=False)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "Error: There is no file \\x1b. [model.missing]\n"


def test_error_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("No.", code="model.missing", exit_status=3, as_json=True)
    captured = capsys.readouterr()
    error = {"code": "model.missing", "message": "No.", "exit_status": 3}
    assert json.loads(captured.out) == {"schema": 1, "error": error}
    assert captured.err == ""


@pytest.mark.parametrize(("value", "answer"), [("1", True), ("0", False)])
def test_a_log_can_ask_for_tables(monkeypatch: pytest.MonkeyPatch, value: str, answer: bool) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", value)
    assert is_terminal() is answer


@pytest.mark.parametrize(("value", "has_escapes"), [("1", False), ("", True)])
def test_without_colours_a_table_has_no_escapes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str, has_escapes: bool
) -> None:
    for name, setting in (("TTY_COMPATIBLE", "1"), ("TERM", "xterm-256color"), ("NO_COLOR", value)):
        monkeypatch.setenv(name, setting)
    assert main(["devices", "A100"]) == 0
    text = capsys.readouterr().out
    assert "A100" in text
    assert ("\x1b" in text) == has_escapes


def test_a_table_of_no_columns_has_the_usual_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "0")
    assert main(["devices", "A100"]) == 0
    assert "A100-SXM4-40GB" in capsys.readouterr().out


def test_stdout_is_kept_for_the_result_while_a_cluster_works(capsys: pytest.CaptureFixture[str]) -> None:
    for cluster in (None, "auto"):
        with kept_stdout(cluster):
            print(f"notice with {cluster}")  # noqa: T201
        print("result")  # noqa: T201
    captured = capsys.readouterr()
    assert captured.out == "notice with None\nresult\nresult\n"
    assert captured.err == "notice with auto\n"


def test_stdout_is_kept_from_processes_and_c_libraries_too() -> None:
    code = (
        "import ctypes, os, subprocess, sys; from dippm.cli.output import kept_stdout\n"
        "print('before')\n"
        "with kept_stdout('space.py'):\n"
        "    print('python'); print('python itself', file=sys.__stdout__); os.write(1, b'descriptor\\n')\n"
        "    subprocess.run([sys.executable, '-c', 'print(\"process\")'])\n"
        "    ctypes.CDLL(None).puts(b'library') if os.name == 'posix' else print('library')\n"
        "print('result')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "before\nresult\n"
    words = {"python", "python itself", "descriptor", "process", "library"}
    assert set(done.stderr.splitlines()) == words
