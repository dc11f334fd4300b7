"""Importing libraries of models without PyTorch's compiler."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from threading import Thread
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.frontends.torch.late_compiler import compiler_off  # noqa: E402

_SETUP = """
import sys, torch, types
from dippm.frontends.torch.late_compiler import compiler_postponed
is_there = lambda: "torch._dynamo" in sys.modules
assert not is_there()
"""


def _run(script: str) -> None:
    subprocess.run([sys.executable, "-c", _SETUP + script], check=True)


def test_functions_work_and_import_it_when_they_are_called():
    _run("""
disable = torch.compiler.disable
with compiler_postponed():
    from torch._dynamo.utils import is_compile_supported

    @torch.compiler.disable
    def double(x):
        "Twice."
        return 2 * x
assert torch.compiler.disable is disable and "torch._dynamo.utils" not in sys.modules
assert double.__name__ == "double" and double.__doc__ == "Twice." and not is_there()
assert double(4) == 8 and is_there()
assert is_compile_supported("cpu") in (True, False)
""")


def test_anything_else_imports_it_and_then_nothing_is_changed():
    _run("""
with compiler_postponed():
    from torch._dynamo.utils import istype
    assert is_there()
import torch._dynamo.utils
assert istype is torch._dynamo.utils.istype
disable = torch.compiler.disable
with compiler_postponed():
    assert torch.compiler.disable is disable
    assert sys.modules["torch._dynamo.utils"] is torch._dynamo.utils
""")


@pytest.mark.skipif(find_spec("timm") is None or find_spec("torchvision") is None, reason="timm is not installed")
def test_models_by_name_are_built_without_it():
    _run("""
from dippm.frontends import zoo
for name in ("torchvision:resnet18", "timm:vit_base_patch16_224"):
    module, _ = zoo.build(name)
    assert all(parameter.is_meta for parameter in module.parameters()) and not is_there()
""")


def test_what_a_model_compiles_runs_as_it_was_written_and_is_compiled_later() -> None:
    seen: list[str] = []

    def backend(program: Any, _: Any) -> Any:
        seen.append("compiled")
        return program.forward

    def double(x: Any) -> Any:
        return x * 2

    earlier, x = torch.compile(double, backend=backend), torch.ones(2)
    original = torch.compile
    with compiler_off():
        assert torch.compile is not original
        direct, named = torch.compile(double, backend=backend), torch.compile(backend=backend)(double)
        for function in (earlier, direct, named):
            assert torch.equal(function(x), x * 2)
    assert seen == []
    assert torch.compile is original
    assert torch.equal(direct(x), x * 2)
    assert seen == ["compiled"]


def test_what_another_thread_compiles_meanwhile_is_its_own() -> None:
    made: list[Any] = []
    double = nn.Linear(2, 2)
    with compiler_off():
        thread = Thread(target=lambda: made.append(torch.compile(double, backend="eager")))
        thread.start()
        thread.join()
    assert made[0]._orig_mod is double
