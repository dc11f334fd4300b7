"""Running a user's Python, and telling what failed in it."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

from dippm.errors import MissingExtraError
from dippm.frontends.python_code import missing_extra, place_of_error, run_python, tell_error


def test_what_was_read_is_run_under_its_own_name(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("class Net:\n    size = 3\n", encoding="utf-8")
    content = file.read_bytes()
    module = run_python(content, file, name="dippm_test_of_python_code")
    assert module.Net.size == 3
    assert module.__name__ == "dippm_test_of_python_code"
    # Its source is found, as what reads decorators needs.
    assert inspect.getsource(module.Net).startswith("class Net")
    file.write_text("class Net:\n    size = 4\n", encoding="utf-8")
    assert run_python(content, file, name="dippm_test_of_python_code").Net.size == 3
    del sys.modules["dippm_test_of_python_code"]


def test_what_has_no_name_of_a_python_file_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no Python file"):
        run_python(b"raise SystemExit", tmp_path / "net.txt", name="dippm_test_of_text")


def test_an_error_is_told_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    with pytest.raises(ZeroDivisionError) as caught:
        run_python(b"def fail():\n    1 / 0\n\nfail()\n", file, name="dippm_test_of_errors")
    assert tell_error(caught.value) == "ZeroDivisionError: division by zero"
    assert place_of_error(caught.value, {str(file)}) == " (net.py, line 2)"
    assert place_of_error(caught.value, set()) == ""
    assert tell_error(SystemExit()) == "SystemExit"


def test_a_framework_that_is_not_there_is_named() -> None:
    found = missing_extra(ModuleNotFoundError("No module named 'timm'", name="timm"), "run the file")
    assert isinstance(found, MissingExtraError)
    assert "dippm[zoo]" in str(found)
    assert missing_extra(ModuleNotFoundError("No module named 'mine'", name="mine"), "run the file") is None
    assert missing_extra(ValueError("timm"), "run the file") is None
