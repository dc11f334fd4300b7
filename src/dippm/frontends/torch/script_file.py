"""Reads TorchScript archives."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.jit._recursive import wrap_cpp_module
from torch.utils._python_dispatch import TorchDispatchMode

from dippm.costs.conditions import Mode
from dippm.errors import ModelReadError
from dippm.frontends.inputs import InputShapes
from dippm.frontends.torch.archive import EntryReader
from dippm.frontends.torch.plans import no_quantised, plan_for, refusal
from dippm.frontends.torch.reader import read_module
from dippm.frontends.torch.script_skeleton import script_skeleton
from dippm.graph import Graph

__all__ = ["is_script_archive", "read_script_file"]

# TorchScript code can only call operators, but these ones reach the file system. PyTorch dispatches some of them past
# every guard, so that they are refused by the text: the name after a dot however the line is laid out, and getattr of
# anything but a plain name in the module itself, as PyTorch writes it for names that are no identifiers ("0").
_NAMES = rb"(?:from_file|save|read_file|write_file|load_tensor)"
_FILE_OPERATORS = re.compile(rb"\.(?:[\s\\]|#[^\n]*\n)*" + _NAMES + rb"\b")
_GETATTR = re.compile(rb"\bgetattr\b")
_PLAIN_GETATTR = re.compile(rb"\bgetattr\([\w.]+, \"(?!" + _NAMES + rb"\")[^\"\\\n]*\"\)")
# Operators that compute with quantised weights, and not those that pack these.
_QUANTISED = re.compile(rb"\b(?:ops\.(quantized\.(?!\w*pack)\w+)|torch\.(quantized_\w+))")


def is_script_archive(names: list[str]) -> bool:
    """Whether an archive with these entries was written by ``torch.jit.save``."""
    return any(name.endswith("/constants.pkl") for name in names) and any("/code/" in name for name in names)


def read_script_file(
    archive: zipfile.ZipFile,
    *,
    path: Path,
    input: InputShapes,  # noqa: A002
    mode: Mode = Mode.INFERENCE,
    batch_hint: int | None = None,
) -> Graph:
    """Read a TorchScript archive; its weights stay on disk.

    Args:
        archive: The open archive.
        path: Where it lies.
        input: Shapes of one sample.
        mode: See :func:`dippm.frontends.torch.reader.read_module`.
        batch_hint: See :func:`dippm.frontends.torch.reader.read_module`.

    Raises:
        ModelReadError: ``torch.script_invalid`` where PyTorch cannot load it; ``torch.script_refused`` where its code
            reads or writes files; ``torch.file_operator`` where it runs an operator that does;
            ``torch.archive_bomb`` where it unpacks to far more than it weighs.
        UnsupportedError: ``torch.quantised`` where PyTorch quantised it; else as
            :func:`dippm.frontends.torch.reader.read_module`.
        UsageError: where the inputs do not fit.
    """
    reader = EntryReader(archive)
    for name in reader.names:
        if "/code/" in name and not name.endswith(".debug_pkl") and _opens_files(reader.read(name)):
            raise ModelReadError(
                f"The TorchScript code '{name}' in '{path}' reads or writes files.",
                code="torch.script_refused",
                cure="Remove that from the model before scripting it.",
            )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=".*torch.jit.*", category=FutureWarning)
        guard = _LoadGuard()
        try:
            with guard:
                module = _load(script_skeleton(reader).getvalue())
        except (RuntimeError, ValueError, NotImplementedError) as exc:
            if guard.refused is not None:
                raise guard.refused from exc
            quantised = _quantised_operators(reader)
            if quantised:
                # Their weights are packed on loading, which takes the values.
                raise no_quantised(f"has code that runs {', '.join(quantised)}") from exc
            lines = str(exc).strip().splitlines() or [type(exc).__name__]
            raise ModelReadError(
                f"PyTorch cannot load the TorchScript archive '{path}': {lines[0][:300]}",
                code="torch.script_invalid",
                cure="Save it again with this version of PyTorch, or export it with torch.export or to ONNX.",
            ) from exc
        if not hasattr(module, "forward"):
            raise ModelReadError(
                f"The TorchScript archive '{path}' has no forward method.",
                code="torch.script_invalid",
                cure="Script a module whose forward takes one fixed set of inputs.",
            )
        return read_module(module, input=input, source=str(path), mode=mode, batch_hint=batch_hint)


def _opens_files(code: bytes) -> bool:
    """Whether code names an operator that opens files, or hides which operator it names."""
    if _FILE_OPERATORS.search(code):
        return True
    count = 1
    while count:  # from the innermost outwards
        code, count = _PLAIN_GETATTR.subn(b"_", code)
    return _GETATTR.search(code) is not None


def _load(program: bytes) -> torch.jit.ScriptModule:
    """Load a program and make its constants numbers where it computes with them, as PyTorch's optimiser does.

    A trace keeps a number as a tensor of 64 bits without dimensions. As such it would make float64 of the integers that
    it is multiplied with, and of all that is computed from these; as a number it makes float32 of them.
    """
    native: Any = torch._C  # PyTorch's stubs of it are wrong
    unit = native.CompilationUnit()
    module = native.import_ir_module_from_buffer(unit, program, None, {}, False)
    for function in unit.get_functions():
        with suppress(RuntimeError):  # a constant that is an element of a large tensor has no value here
            native._jit_pass_canonicalize_graph_fuser_ops(function.graph)
    loaded: torch.jit.ScriptModule = wrap_cpp_module(module)  # type: ignore[no-untyped-call]
    return loaded


def _quantised_operators(reader: EntryReader) -> list[str]:
    code = [reader.read(name) for name in reader.names if "/code/" in name and name.endswith(".py")]
    found = {(first or second).decode() for text in code for first, second in _QUANTISED.findall(text)}
    return sorted(found)


class _LoadGuard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stands between PyTorch's loader and the operators that the program runs while it is loaded.

    It refuses those that reach files, and answers whether two constants are equal: without data no two are known to be.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refused: ModelReadError | None = None  # the loader passes an error of its own on instead

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.equal.default:
            return args[0] is args[1]
        plan = plan_for(func)
        if plan.is_refused:
            self.refused = refusal(plan)
            raise self.refused
        if plan.is_skipped:
            return None
        return func(*args, **(kwargs or {}))
