"""A TorchScript archive without its large weights, small enough to load in memory.

The archive's pickles name for every tensor the device that it goes to. Large tensors are sent to the meta device, so
that PyTorch reads no data for them; small ones keep their values, which
TorchScript's arithmetic on constants needs.
"""

from __future__ import annotations

import io
import pickletools
import zipfile

from dippm.frontends.torch.archive import read_entry

__all__ = ["script_skeleton"]

_KEPT_ELEMENTS = 4096
_DEVICES = {True: b"X\x04\x00\x00\x00meta", False: b"X\x03\x00\x00\x00cpu"}
_STRINGS = frozenset({"BINUNICODE", "SHORT_BINUNICODE"})
_NUMBERS = frozenset({"BININT", "BININT1", "BININT2", "LONG1"})
_GETS = frozenset({"BINGET", "LONG_BINGET"})
_PUTS = frozenset({"BINPUT", "LONG_BINPUT"})


def script_skeleton(archive: zipfile.ZipFile) -> io.BytesIO:
    """Copy an archive, leaving out the data of large tensors.

    Args:
        archive: A TorchScript archive.

    Returns:
        An archive that ``torch.jit.load`` takes.

    Raises:
        ModelReadError: where an entry cannot be read.
        ValueError: where a pickle in it cannot be followed.
    """
    dropped: set[str] = set()
    rewritten: dict[str, bytes] = {}
    for name in archive.namelist():
        folder, _, file = name.rpartition("/")
        if file in {"data.pkl", "constants.pkl"}:
            content, keys = _send_to_meta(read_entry(archive, name))
            rewritten[name] = content
            dropped.update(f"{folder}/{file.removesuffix('.pkl')}/{key}" for key in keys)
    result = io.BytesIO()
    with zipfile.ZipFile(result, "w", zipfile.ZIP_STORED) as copy:
        for name in archive.namelist():
            if name in dropped:
                copy.writestr(name, b"\0")
            else:
                copy.writestr(name, rewritten[name] if name in rewritten else read_entry(archive, name))
    result.seek(0)
    return result


def _send_to_meta(pickle: bytes) -> tuple[bytes, set[str]]:
    """Change the device of every large tensor in a pickle; returns the new pickle and the keys of their data."""
    operations = [(code.name, argument, position or 0) for code, argument, position in pickletools.genops(pickle)]
    memo: dict[int, object] = {}
    # The last strings and numbers pushed, each with the bytes that push it.
    pushed: list[tuple[object, int, int]] = []
    parts: list[bytes] = []
    copied = 0
    keys: set[str] = set()
    previous = ""
    for index, (name, argument, position) in enumerate(operations):
        end = operations[index + 1][2] if index + 1 < len(operations) else len(pickle)
        if name in _GETS:
            pushed.append((memo.get(int(str(argument))), position, end))
        elif name in _PUTS and previous in _STRINGS:
            memo[int(str(argument))] = pushed[-1][0]
        elif name in _STRINGS or name in _NUMBERS:
            pushed.append((argument, position, end))
        elif name == "BINPERSID" and len(pushed) >= 3:
            # ('storage', type, key, device, number of elements). The device is written out for small tensors too,
            # because the first of them may have been what the others refer to.
            (key, *_), (device, start, stop), (count, *_) = pushed[-3:]
            if device == "cpu" and isinstance(count, int) and start >= copied:
                is_large = count > _KEPT_ELEMENTS
                parts += [pickle[copied:start], _DEVICES[is_large]]
                copied = stop
                if is_large:
                    keys.add(str(key))
        del pushed[:-4]
        previous = name
    return b"".join([*parts, pickle[copied:]]), keys
