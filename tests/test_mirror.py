"""Tests mirror the package path for path: who changes a module finds its tests without a search.

``src/dippm/costs/memory.py`` is tested in ``tests/costs/test_memory.py``. Beside these files stand tests of several
modules at once, under a name that is no module's. What a package's ``__init__.py`` hands on is tested where it is.
"""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src" / "dippm"


def defines_something(path: Path) -> bool:
    """Whether a module has a function, a class or a value of its own."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
    return any(
        isinstance(node, kinds) and not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
    )


MODULES = sorted(
    path.relative_to(PACKAGE).as_posix()
    for path in PACKAGE.rglob("*.py")
    if path.name != "__init__.py" and defines_something(path)
)


def mirrored(module: str) -> Path:
    """Where the tests of a module belong."""
    path = TESTS / module
    return path.with_name(f"test_{path.name}")


def test_the_package_is_found() -> None:
    assert len(MODULES) > 400
    assert mirrored("costs/memory.py") == TESTS / "costs" / "test_memory.py"


def test_every_module_has_tests_at_its_own_path() -> None:
    missing = [module for module in MODULES if not mirrored(module).is_file()]
    assert missing == [], f"No tests at the mirrored path; the first belongs to {mirrored(missing[0])}."


def test_mirrored_files_hold_tests() -> None:
    files = [mirrored(module) for module in MODULES if mirrored(module).is_file()]
    assert [path for path in files if "def test_" not in path.read_text(encoding="utf-8")] == []
