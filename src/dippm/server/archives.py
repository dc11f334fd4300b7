"""Unpacks an uploaded ``.zip``: a folder of TensorFlow or Paddle, or a model beside its weights."""

from __future__ import annotations

import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from dippm.api import ModelReadError
from dippm.server.uploads import refusal_of_moment

__all__ = ["MOST_MEMBERS", "unpack_model"]

MOST_MEMBERS = 4096
_CHUNK_BYTES = 2**20
_LONGEST_NAME = 240
_DEEPEST_NAME = 16
# What archivers of single systems add.
_NOISE = ("__MACOSX",)
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})


def unpack_model(archive: Path, folder: Path, *, name: str, most_bytes: int) -> Path:
    """Unpack an archive and find the model in it.

    Args:
        archive: The archive.
        folder: Where to unpack; made here.
        name: Name of the archive in messages.
        most_bytes: Bytes that all members may have together.

    Returns:
        The one file where there is one, the one ``.onnx`` file beside its weights, else the folder that holds all.

    Raises:
        ModelReadError: ``archive.damaged``, ``archive.unsafe`` where a member would lie outside the folder or is no
            plain file, ``archive.too_large``, ``archive.empty``.
        ServiceError: ``upload.no_space``, ``upload.open_files``.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            members = [each for each in opened.infolist() if not _is_noise(each)]
            _check(members, name=name, most_bytes=most_bytes)
            folder.mkdir()
            left = most_bytes
            for member in members:
                left -= _unpack(opened, member, folder, name=name, most_bytes=left)
    except (
        zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError, OverflowError,
    ) as exc:  # fmt: skip
        if isinstance(exc, OSError) and (refusal := refusal_of_moment(exc)) is not None:
            raise refusal from exc
        raise ModelReadError(
            f"'{name}' is no archive that can be unpacked ({type(exc).__name__}).",
            code="archive.damaged",
            cure="Pack the model again, without a password, as an ordinary zip.",
        ) from exc
    return _find_model(folder, name=name)


def _is_noise(member: zipfile.ZipInfo) -> bool:
    return member.is_dir() or member.filename.split("/")[0] in _NOISE


def _check(members: list[zipfile.ZipInfo], *, name: str, most_bytes: int) -> None:
    """Refuse by the table of contents, before anything is written."""
    if not members:
        raise ModelReadError(f"'{name}' is an empty archive.", code="archive.empty")
    if len(members) > MOST_MEMBERS:
        raise ModelReadError(
            f"'{name}' has {len(members):,} members, more than {MOST_MEMBERS:,}.", code="archive.too_large"
        )
    if sum(member.file_size for member in members) > most_bytes:
        raise _too_large(name, most_bytes)
    seen: set[str] = set()
    for member in members:
        path = PurePosixPath(member.filename)
        kind = stat.S_IFMT(member.external_attr >> 16)
        is_plain = kind in (0, stat.S_IFREG) and not member.flag_bits & 1 and member.compress_type in _METHODS
        is_within = not path.is_absolute() and ".." not in path.parts and "\\" not in member.filename
        is_short = len(member.filename) <= _LONGEST_NAME and len(path.parts) <= _DEEPEST_NAME
        if not (is_plain and is_within and is_short and member.filename.isprintable()) or str(path) in seen:
            raise ModelReadError(
                f"'{name}' has a member that is not unpacked: {member.filename[:_LONGEST_NAME]!r}.",
                code="archive.unsafe",
                cure="Members must be plain files below the archive's root, each once, without a password.",
            )
        seen.add(str(path))


def _unpack(opened: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path, *, name: str, most_bytes: int) -> int:
    """Write one member; what the table of contents says of its size is not to be trusted."""
    target = folder.joinpath(*PurePosixPath(member.filename).parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with opened.open(member) as source, target.open("xb") as stream:
        while chunk := source.read(_CHUNK_BYTES):
            written += len(chunk)
            if written > most_bytes:
                raise _too_large(name, most_bytes)
            stream.write(chunk)
    return written


def _too_large(name: str, most_bytes: int) -> ModelReadError:
    return ModelReadError(
        f"'{name}' unpacks to more than {most_bytes / 2**20:,.0f} MiB.",
        code="archive.too_large",
        cure="Leave the weights out where the format allows it, or ask dippm on your own machine.",
    )


def _find_model(folder: Path, *, name: str) -> Path:
    while True:
        entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
        if len(entries) != 1:
            break
        if entries[0].is_file():
            return entries[0]
        folder = entries[0]
    if not entries:
        raise ModelReadError(f"'{name}' holds hidden files alone.", code="archive.empty")
    models = [entry for entry in entries if entry.suffix.lower() == ".onnx" and entry.is_file()]
    return models[0] if len(models) == 1 else folder
