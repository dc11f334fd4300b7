"""Which file of a saved Paddle model holds its program, and what Paddle's files look like inside."""

from __future__ import annotations

import re
from pathlib import Path

from dippm.errors import ModelReadError

__all__ = ["find_by_prefix", "find_program", "holds_program", "is_paddle"]

_HEAD_BYTES = 4096
_WEIGHTS_SUFFIX = ".pdiparams"
_PICKLE_SUFFIXES = (".pdparams", ".pdopt")
_PROGRAM_SUFFIXES = (".json", ".pdmodel")
_PIR_HEAD = re.compile(rb'\s*\{\s*"base_code"\s*:\s*\{[^{}]{0,200}"magic"\s*:\s*"pir"')
# ProgramDesc, its first field: blocks; BlockDesc: idx = 0, parent_idx = -1, which protobuf writes in ten bytes.
_FIRST_BLOCK = b"\x08\x00\x10" + b"\xff" * 9 + b"\x01"
_LONGEST_LENGTH = 5  # bytes of a protobuf length
# A tensor of a file of weights: version 0, no levels of detail, version 0, then the length of its TensorDesc.
_FIRST_WEIGHT = b"\0" * 16
_LONGEST_DESCRIPTION = 64


def is_paddle(path: Path, head: bytes) -> bool:
    """Whether a file belongs to a saved model of Paddle.

    Args:
        path: The file.
        head: Its first 4096 bytes.

    Raises:
        ModelReadError: ``model.weights_only`` where it holds weights and no program lies beside it.
    """
    if _is_program(head):
        return True
    if path.suffix in _PICKLE_SUFFIXES or _is_weights(head) or path.suffix == _WEIGHTS_SUFFIX:
        if path.suffix == _WEIGHTS_SUFFIX and _beside(path) is not None:
            return True
        raise ModelReadError(
            f"'{path}' holds weights alone, without the model that uses them.",
            code="model.weights_only",
            cure="Give the .json or .pdmodel file that paddle.jit.save writes; the weights are not needed.",
        )
    return False


def holds_program(folder: Path) -> bool:
    """Whether a folder holds a saved model of Paddle, or several."""
    return bool(_programs_in(folder))


def find_program(path: Path) -> Path:
    """The file that holds the program of a saved model.

    Args:
        path: That file itself, the file of weights beside it, or the folder that holds one model.

    Raises:
        ModelReadError: ``model.unrecognised`` for a folder without a model, ``model.ambiguous`` for one with several.
    """
    if not path.is_dir():
        return (_beside(path) if path.suffix == _WEIGHTS_SUFFIX else None) or path
    found = _programs_in(path)
    stems = {program.stem for program in found}
    if len(stems) == 1:
        return found[0]  # .json comes before .pdmodel: the newer form of the same model
    if stems:
        raise ModelReadError(
            f"'{path}' holds {len(stems)} models of Paddle: {', '.join(sorted(stems)[:5])}.",
            code="model.ambiguous",
            cure="Give the .json or .pdmodel file of one of them.",
        )
    raise ModelReadError(
        f"'{path}' holds no model of Paddle: no .json or .pdmodel file in it is one.",
        code="model.unrecognised",
        cure="Give the folder that paddle.jit.save wrote to, or the .json or .pdmodel file in it.",
    )


def find_by_prefix(prefix: Path) -> Path | None:
    """The program of a model that Paddle saved or loads by such a prefix: a path without an ending."""
    found = (Path(f"{prefix}{suffix}") for suffix in _PROGRAM_SUFFIXES)
    return next((path for path in found if _holds_program(path)), None)


def _is_program(head: bytes) -> bool:
    """Whether a file is a program of Paddle: the JSON of Paddle 3 or the ``ProgramDesc`` of Paddle 2."""
    if _PIR_HEAD.match(head):
        return True
    return head[:1] == b"\x0a" and _FIRST_BLOCK in head[2 : 2 + _LONGEST_LENGTH + len(_FIRST_BLOCK)]


def _is_weights(head: bytes) -> bool:
    """Whether a file is what Paddle writes as ``.pdiparams``."""
    length = int.from_bytes(head[16:20], "little")
    # A TensorDesc begins with its element type.
    return head.startswith(_FIRST_WEIGHT) and 0 < length < _LONGEST_DESCRIPTION and head[20:21] == b"\x08"


def _beside(weights: Path) -> Path | None:
    found = (weights.with_suffix(suffix) for suffix in _PROGRAM_SUFFIXES)
    return next((path for path in found if path.is_file()), None)


def _programs_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.suffix in _PROGRAM_SUFFIXES and _holds_program(path)]


def _holds_program(path: Path) -> bool:
    try:
        if not path.is_file():  # opening a pipe waits for its writer
            return False
        with path.open("rb") as stream:
            return _is_program(stream.read(_HEAD_BYTES))
    except OSError:  # nobody may read it
        return False
