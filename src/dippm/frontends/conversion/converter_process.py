"""Runs a converter in a process of its own, which a hostile or broken file may hang, fill or crash."""

from __future__ import annotations

import json
import logging
import os
import signal
import site
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from threading import Thread
from typing import Any, cast

import dippm.errors
from dippm.errors import DippmError, MissingExtraError, ModelReadError, UnsupportedError
from dippm.frontends.conversion.limits import ConversionLimits
from dippm.processes.guarded_process import ProcessLimits, end_guarded, start_guarded
from dippm.processes.output_tail import OutputTail

__all__ = ["ConverterResult", "run_converter"]

_logger = logging.getLogger(__name__)

_QUIET_S = 2.0
_LONGEST_REPLY = 64 * 1024
_MOST_WARNINGS = 100
_OUTPUT_TAIL = 64 * 1024
_SPARE_CPU_S = 10
_KEPT_VARIABLES = (
    "PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR",
    "VIRTUAL_ENV", "CONDA_PREFIX",
)  # fmt: skip
# No converter needs a network, a card or a package that is not installed: what asks for one the usual way gets none.
_FIXED_VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INDEX": "1",
    "PIP_NO_INPUT": "1",
    "PIP_REQUIRE_VIRTUALENV": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONIOENCODING": "utf-8",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TRANSFORMERS_OFFLINE": "1",
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
}
_OUT_OF_MEMORY_SIGNS = (
    b"bad_alloc",
    b"MemoryError",
    b"Cannot allocate memory",
    b"can't allocate memory",
    b"out of memory",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConverterResult:
    """What a converter left.

    Args:
        path: The ONNX file that it wrote.
        converter_s: Seconds that the converter itself took.
        warnings: What it says of the result, in words for the user.
        used_hints: Whether the result depends on the hints.
    """

    path: Path
    converter_s: float
    warnings: tuple[str, ...]
    used_hints: bool


def run_converter(
    *,
    framework: str,
    worker: str,
    source: Path,
    name: str,
    folder: Path,
    options: Mapping[str, Any],
    hints: Mapping[str, Any],
    limits: ConversionLimits,
) -> ConverterResult:
    """Run a converter on a model.

    Args:
        framework: The model's framework, for messages.
        worker: Module that converts; see :mod:`dippm.frontends.conversion.worker`.
        source: The model.
        name: The model's name in messages.
        folder: An empty folder that is the process's own and that the caller removes afterwards.
        options: What the worker is to know.
        hints: What it may use where the model does not say it itself.
        limits: What it may take.

    Returns:
        The ONNX file that it wrote, somewhere in the folder, and what belongs to it.

    Raises:
        ModelReadError: ``conversion.failed``, ``conversion.crashed``.
        UnsupportedError: ``conversion.timeout``, ``conversion.memory``, ``conversion.no_space``,
            ``conversion.too_large``.
        DippmError: Whatever the worker raised.
    """
    output, home = folder / "output", folder / "home"
    for made in (output, home):
        made.mkdir()
    request, reply = folder / "request.json", folder / "reply.json"
    content = {
        "source": str(source.absolute()),
        "name": name,
        "output": str(output),
        "reply": str(reply),
        "options": dict(options),
        "hints": dict(hints),
    }
    request.write_text(json.dumps(content), encoding="utf-8")
    start = time.monotonic()
    process = start_guarded(
        [sys.executable, "-P", "-m", worker, str(request)],
        limits=_process_limits(limits),
        environment=_environment(home),
        folder=home,
        output=subprocess.PIPE,
        errors=subprocess.STDOUT,
    )
    said = OutputTail(cast("BufferedReader", process.stdout), most_bytes=_OUTPUT_TAIL)
    # What reads the result is imported while the converter works.
    Thread(target=import_module, args=("dippm.frontends.onnx",), daemon=True).start()
    try:
        status = _wait(process, framework=framework, name=name, seconds=limits.seconds)
    finally:
        end_guarded(process)
    tail = said.wait()
    _logger.debug(
        "converter of '%s' took %.1f s and said: %s", name, time.monotonic() - start, tail.decode(errors="replace")
    )
    if status is None:
        raise UnsupportedError(
            f"'{name}' took the converter of {framework} longer than {limits.seconds:g} s.",
            code="conversion.timeout",
            cure="Convert it to ONNX yourself and give the .onnx file.",
        )
    return _result(
        output / "model.onnx", _read_reply(reply), status, tail, framework=framework, name=name, limits=limits
    )


def _wait(process: subprocess.Popen[bytes], *, framework: str, name: str, seconds: float) -> int | None:
    """The exit status, None where it did not end in time."""
    try:
        return process.wait(min(_QUIET_S, seconds))
    except subprocess.TimeoutExpired:
        if seconds <= _QUIET_S:
            return None
    _logger.info("Converting '%s' from %s; the result is kept for the next time.", name, framework)
    try:
        return process.wait(seconds - _QUIET_S)
    except subprocess.TimeoutExpired:
        return None


def _process_limits(limits: ConversionLimits) -> ProcessLimits:
    # The wall time is kept here; processor time is the last resort should the guardian be ended from outside. Threads
    # add up: none that keeps to its wall time comes near.
    cpu_s = int(limits.seconds * (os.cpu_count() or 1)) + _SPARE_CPU_S
    return ProcessLimits(memory_mb=limits.memory_mb, file_mb=limits.output_mb, cpu_s=cpu_s)


def _environment(home: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    user_base = site.getuserbase() if site.ENABLE_USER_SITE else None
    # What this process can import the other one must find, however it came onto the path.
    path = os.pathsep.join(entry for entry in sys.path if entry and os.path.isabs(entry))
    return {
        **kept,
        **_FIXED_VARIABLES,
        **({"PYTHONUSERBASE": user_base} if user_base else {}),
        "PYTHONPATH": path,
        **dict.fromkeys(("HOME", "USERPROFILE", "TMPDIR", "TMP", "TEMP", "XDG_CACHE_HOME"), str(home)),
    }


def _result(
    path: Path,
    reply: Mapping[str, Any],
    status: int,
    tail: bytes,
    *,
    framework: str,
    name: str,
    limits: ConversionLimits,
) -> ConverterResult:
    is_short_of_memory = _has_memory_sign(str(reply.get("failure", "")).encode())
    if "memory" in reply or is_short_of_memory or (reply.keys() <= {"crash"} and _is_out_of_memory(status, tail)):
        raise UnsupportedError(
            f"The converter of {framework} ran out of memory on '{name}'; it may take {limits.memory_mb:,} MiB.",
            code="conversion.memory",
            cure="Convert it to ONNX on a larger machine and give the .onnx file.",
        )
    if "space" in reply:
        raise UnsupportedError(
            f"The converter of {framework} found no room on the disk for its work on '{name}'.",
            code="conversion.no_space",
            cure="Make room where temporary files lie, or convert it to ONNX yourself and give the .onnx file.",
        )
    error = _error_of(reply, framework=framework, name=name)
    if error is not None:
        raise error
    seconds = reply.get("converter_s")
    if status != 0 or not isinstance(seconds, int | float):
        raise ModelReadError(
            f"The converter of {framework} crashed on '{name}' ({_ending(status)}){_said(tail)}.",
            code="conversion.crashed",
            cure="The file may be damaged: export it again, or convert it to ONNX yourself and give the .onnx file.",
        )
    if not path.is_file() or path.is_symlink():
        raise ModelReadError(
            f"The converter of {framework} wrote no model for '{name}'{_said(tail)}.", code="conversion.failed"
        )
    if path.stat().st_size > limits.output_mb * 2**20:
        raise UnsupportedError(
            f"'{name}' becomes an ONNX file of more than {limits.output_mb:,} MiB.", code="conversion.too_large"
        )
    return ConverterResult(
        path=path,
        converter_s=float(seconds),
        warnings=_warnings_of(reply),
        used_hints=reply.get("used_hints") is not False,
    )


def _warnings_of(reply: Mapping[str, Any]) -> tuple[str, ...]:
    said = reply.get("warnings")
    return tuple(str(each) for each in said[:_MOST_WARNINGS]) if isinstance(said, list) else ()


def _error_of(reply: Mapping[str, Any], *, framework: str, name: str) -> DippmError | None:
    missing, failure = reply.get("missing"), reply.get("failure")
    given = reply.get("error", reply.get("crash"))
    if isinstance(missing, dict):
        purpose = f"read models of {framework}"
        return MissingExtraError(package=str(missing.get("package")), extra=str(missing.get("extra")), purpose=purpose)
    if isinstance(given, dict):
        kind = getattr(dippm.errors, str(given.get("kind")), None)
        is_known = isinstance(kind, type) and issubclass(kind, DippmError) and kind is not MissingExtraError
        raised: type[DippmError] = kind if is_known else ModelReadError  # type: ignore[assignment]
        cure = str(given.get("cure") or "") or None
        return raised(str(given.get("message")), code=str(given.get("code")), cure=cure)
    if failure is not None:
        return ModelReadError(
            f"The converter of {framework} cannot convert '{name}': {_one_line(str(failure))}.",
            code="conversion.failed",
            cure="The file may be damaged or hold what the converter does not know: export it again, or convert it "
            "to ONNX yourself and give the .onnx file.",
        )
    return None


def _is_out_of_memory(status: int, tail: bytes) -> bool:
    # A process that nobody here killed was killed by the system, which does so where memory runs out.
    is_killed = sys.platform != "win32" and status == -signal.SIGKILL
    return is_killed or (status != 0 and _has_memory_sign(tail))


def _has_memory_sign(said: bytes) -> bool:
    return any(sign in said for sign in _OUT_OF_MEMORY_SIGNS)


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _read_reply(path: Path) -> dict[str, Any]:
    """What the worker said; nothing where it did not get to it. Its process is not to be trusted."""
    try:
        # What lies there is the other process's doing: a link is not followed, and a pipe would be waited for.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
        with os.fdopen(os.open(path, flags), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return {}
            reply = json.loads(stream.read(_LONGEST_REPLY))
    except (OSError, ValueError, RecursionError):
        return {}
    return reply if isinstance(reply, dict) else {}


def _said(tail: bytes) -> str:
    lines = [line.strip() for line in tail.decode("utf-8", errors="replace").splitlines() if line.strip()]
    # What a converter calls an error says more than where its process ended.
    said = [line for line in lines if "[ERROR]" in line] or lines[-1:]
    return f": {_one_line(said[0])}" if said else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())[:400].rstrip(".")
