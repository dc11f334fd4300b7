"""A TorchScript archive without its large weights, small enough to load in memory.

The archive's pickles name for every tensor the device that it goes to. Large tensors are sent to the meta device, so
that PyTorch reads no data for them; small ones keep their values, which
TorchScript's arithmetic on constants needs.
"""

from __future__ import annotations

import io
import pickletools
import zipfile

from dippm.frontends.torch.archive import EntryReader

__all__ = ["script_skeleton"]

_KEPT_ELEMENTS = 4096
_KEPT_BYTES = 16 * _KEPT_ELEMENTS
_STORAGES = frozenset({"data", "constants"})
# PyTorch writes the version in the one place or the other, by the newest operator that the program needs.
_KEPT_ENTRIES = frozenset({"version", ".data/version", "byteorder", ".data/serialization_id"})
_DEVICES = {True: b"X\x04\x00\x00\x00meta", False: b"X\x03\x00\x00\x00cpu"}
_SAVED_FROM = frozenset({"cpu", "cuda"})
_STRINGS = frozenset({"BINUNICODE", "SHORT_BINUNICODE"})
_NUMBERS = frozenset({"BININT", "BININT1", "BININT2", "LONG1"})
_GETS = frozenset({"BINGET", "LONG_BINGET"})
_PUTS = frozenset({"BINPUT", "LONG_BINPUT"})


def script_skeleton(reader: EntryReader) -> io.BytesIO:
    """Copy what PyTorch needs of an archive: its code, its pickles and the data of small tensors.

    Args:
        reader: A TorchScript archive.

    Returns:
        An archive that ``torch.jit.load`` takes.

    Raises:
        ModelReadError: where an entry cannot be read.
        ValueError: where a pickle in it cannot be followed.
    """
    kept: set[str] = set()
    rewritten: dict[str, bytes] = {}
    for name in reader.names:
        folder, _, file = name.rpartition("/")
        if file in {"data.pkl", "constants.pkl"}:
            rewritten[name], keys = _send_to_meta(reader.read(name))
            kept.update(f"{folder}/{file.removesuffix('.pkl')}/{key}" for key in keys)
    result = io.BytesIO()
    with zipfile.ZipFile(result, "w", zipfile.ZIP_STORED) as copy:
        for name in reader.names:
            entry = name.partition("/")[2]
            if name in rewritten:
                copy.writestr(name, rewritten[name])
            elif entry.partition("/")[0] in _STORAGES:
                is_kept = name in kept and reader.size(name) <= _KEPT_BYTES
                copy.writestr(name, reader.read(name) if is_kept else b"\0")
            elif entry.startswith("code/") or entry in _KEPT_ENTRIES:
                copy.writestr(name, reader.read(name))
    result.seek(0)
    return result


def _send_to_meta(pickle: bytes) -> tuple[bytes, set[str]]:
    """Change the device of every large tensor in a pickle; returns the new pickle and the keys of the others' data."""
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
            if str(device).partition(":")[0] in _SAVED_FROM and isinstance(count, int) and start >= copied:
                is_large = count > _KEPT_ELEMENTS
                parts += [pickle[copied:start], _DEVICES[is_large]]
                copied = stop
                if not is_large:
                    keys.add(str(key))
        del pushed[:-4]
        previous = name
    return b"".join([*parts, pickle[copied:]]), keys
