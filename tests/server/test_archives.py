from __future__ import annotations

import errno
import os
import stat
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from dippm.errors import ModelReadError
from dippm.server import archives
from dippm.server.archives import MOST_MEMBERS, unpack_model
from dippm.server.errors import ServiceError

MIB = 2**20


def pack(path: Path, members: Iterable[tuple[str | zipfile.ZipInfo, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def unpack(archive: Path, *, most_bytes: int = MIB) -> Path:
    return unpack_model(archive, archive.with_name("unpacked"), name="given.zip", most_bytes=most_bytes)


def refused(archive: Path, *, most_bytes: int = MIB) -> str:
    with pytest.raises(ModelReadError) as caught:
        unpack(archive, most_bytes=most_bytes)
    assert "given.zip" in str(caught.value)
    assert str(archive.parent) not in str(caught.value)
    return caught.value.code


def test_a_folder_within_folders_is_found(tmp_path: Path) -> None:
    archive = pack(
        tmp_path / "a.zip",
        [("top/saved/saved_model.pb", b"x"), ("top/saved/variables/v.index", b"y"), ("__MACOSX/top/._x", b"z")],
    )
    found = unpack(archive)
    assert found == tmp_path / "unpacked" / "top" / "saved"
    assert (found / "variables" / "v.index").read_bytes() == b"y"
    assert not (tmp_path / "unpacked" / "__MACOSX").exists()


def test_a_single_file_is_the_model(tmp_path: Path) -> None:
    assert unpack(pack(tmp_path / "a.zip", [("m/model.onnx", b"x")])).name == "model.onnx"


def test_an_onnx_file_beside_its_weights_is_the_model(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.zip", [("model.onnx", b"x"), ("model.onnx.data", b"y")])
    assert unpack(archive).name == "model.onnx"


@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/etc/evil", "a\\..\\..\\evil", "a\nb", "x" * 300, "a/" * 20 + "b"]
)
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    info = zipfile.ZipInfo("placeholder")
    info.filename = name
    assert refused(pack(tmp_path / "a.zip", [("good", b"x"), (info, b"evil")])) in {"archive.unsafe", "archive.damaged"}
    assert not (tmp_path / "unpacked").exists()
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_what_is_no_plain_file_is_refused(tmp_path: Path, kind: int) -> None:
    info = zipfile.ZipInfo("link")
    info.external_attr = (kind | 0o777) << 16
    assert refused(pack(tmp_path / "a.zip", [(info, b"/etc/passwd")])) == "archive.unsafe"


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.zip", [("bomb", bytes(4 * MIB))])
    assert archive.stat().st_size < 10_000
    assert refused(archive) == "archive.too_large"
    assert not (tmp_path / "unpacked").exists()


def test_a_bomb_that_hides_its_size_is_refused(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.zip", [("bomb", bytes(4 * MIB))])
    content = archive.read_bytes()
    # The true size stands in the member's head and in the table of contents.
    lying = content.replace((4 * MIB).to_bytes(4, "little"), (1000).to_bytes(4, "little"))
    assert lying != content
    archive.write_bytes(lying)
    assert refused(archive) == "archive.damaged"
    assert sum(path.stat().st_size for path in tmp_path.rglob("bomb")) <= MIB


def test_too_many_members_are_refused(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.zip", ((f"f{number}", b"") for number in range(MOST_MEMBERS + 1)))
    assert refused(archive) == "archive.too_large"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    assert refused(pack(tmp_path / "a.zip", [("a", b"1"), ("./a", b"2")])) == "archive.unsafe"


def test_an_empty_archive_is_refused(tmp_path: Path) -> None:
    assert refused(pack(tmp_path / "a.zip", [])) == "archive.empty"
    (tmp_path / "b").mkdir()
    assert refused(pack(tmp_path / "b" / "b.zip", [(".hidden", b"")])) == "archive.empty"


@pytest.mark.parametrize("cut", [0, 10, 60])
def test_a_damaged_archive_is_refused(tmp_path: Path, cut: int) -> None:
    archive = pack(tmp_path / "a.zip", [("model.onnx", b"x" * 100)])
    archive.write_bytes(archive.read_bytes()[:cut])
    assert refused(archive) == "archive.damaged"


def test_an_archive_with_a_password_is_refused(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.zip", [("m", b"x")])
    content = bytearray(archive.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(content)
    assert refused(archive) == "archive.unsafe"


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, "upload.no_space"), (errno.EMFILE, "upload.open_files")])
def test_a_full_disk_is_not_the_archives_fault(
    number: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(archives, "_unpack", fail)
    with pytest.raises(ServiceError) as caught:
        unpack(pack(tmp_path / "a.zip", [("model.onnx", b"x")]))
    assert (caught.value.code, caught.value.status) == (code, 503)
