"""Archives that unpack to more than they weigh."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.errors import ModelReadError  # noqa: E402
from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_torch_file  # noqa: E402
from dippm.frontends.torch.archive import EntryReader, open_archive, read_entry  # noqa: E402

torch = pytest.importorskip("torch")

VECTOR = parse_input_shapes("4")


def test_many_small_bombs_are_one_bomb(tmp_path: Path, save_script: Callable[..., Path]) -> None:
    path = save_script(nn.Linear(4, 4), tmp_path / "m.pt")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        for index in range(10):
            archive.writestr(f"m/code/__torch__/{index}.py", b" " * 2**23)
    start = time.monotonic()
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(path, input=VECTOR)
    assert caught.value.code == "torch.archive_bomb"
    assert time.monotonic() - start < 10


IMAGE = parse_input_shapes("3,16,16")


def test_an_entry_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/models/model.json", b" " * 2**25)
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(path, input=IMAGE)
    assert caught.value.code == "model.too_large"


@pytest.fixture(name="archive_of")
def _archive_of(tmp_path: Path) -> Callable[..., zipfile.ZipFile]:
    def make(compression: int = zipfile.ZIP_DEFLATED, **entries: bytes) -> zipfile.ZipFile:
        path = tmp_path / "m.zip"
        with zipfile.ZipFile(path, "w", compression) as archive:
            for name, content in entries.items():
                archive.writestr(name, content)
        return open_archive(path)

    return make


def test_entries_of_any_compression_are_read_up_to_a_size(archive_of: Callable[..., zipfile.ZipFile]) -> None:
    with archive_of(small=b"\0" * 2**24, large=b"\0" * (2**24 + 1)) as archive:
        assert len(read_entry(archive, "small")) == 2**24
        with pytest.raises(ModelReadError) as caught:
            read_entry(archive, "large")
        assert caught.value.code == "model.too_large"
    # What PyTorch wrote itself is as large as it says.
    with archive_of(zipfile.ZIP_STORED, large=b"\0" * (2**24 + 1)) as archive:
        assert len(read_entry(archive, "large")) == 2**24 + 1


def test_what_was_read_before_is_not_counted_again(
    archive_of: Callable[..., zipfile.ZipFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dippm.frontends.torch.archive._UNPACKED_LIMIT", 2**20)
    with archive_of(a=b"\0" * 2**19, b=b"\0" * 2**19, c=b"\0" * 2**19) as archive:
        reader = EntryReader(archive)
        assert reader.names == ["a", "b", "c"]
        assert reader.size("a") == 2**19
        for _ in range(5):
            reader.read("a")
        reader.read("b")
        with pytest.raises(ModelReadError) as caught:
            reader.read("c")
        assert caught.value.code == "torch.archive_bomb"


def test_a_damaged_archive_says_so(archive_of: Callable[..., zipfile.ZipFile], tmp_path: Path) -> None:
    archive_of(zipfile.ZIP_STORED, entry=b"content" * 100).close()
    path = tmp_path / "m.zip"
    path.write_bytes(path.read_bytes().replace(b"content", b"CONTENT", 1))
    with open_archive(path) as archive, pytest.raises(ModelReadError, match="'entry'") as caught:
        read_entry(archive, "entry")
    assert caught.value.code == "model.truncated"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ModelReadError, match="no readable directory"):
        open_archive(path)


def test_an_entry_that_does_not_unpack_is_told(archive_of: Callable[..., zipfile.ZipFile], tmp_path: Path) -> None:
    archive_of(entry=bytes(range(256)) * 40).close()
    path = tmp_path / "m.zip"
    content = bytearray(path.read_bytes())
    content[zipfile.sizeFileHeader + len("entry")] = 0xFF
    path.write_bytes(content)
    with open_archive(path) as archive, pytest.raises(ModelReadError, match="'entry'") as caught:
        read_entry(archive, "entry")
    assert caught.value.code == "model.truncated"


@pytest.mark.parametrize("compression", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_an_entry_that_pytorch_could_not_unpack_is_not_unpacked(
    archive_of: Callable[..., zipfile.ZipFile], compression: int
) -> None:
    with archive_of(compression, entry=b"content") as archive, pytest.raises(ModelReadError) as caught:
        read_entry(archive, "entry")
    assert caught.value.code == "model.truncated"
