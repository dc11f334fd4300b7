"""What needs no TensorFlow."""

import os
import sys
import zipfile
from pathlib import Path

import pytest

from dippm.errors import MissingExtraError, ModelReadError, UnsupportedError
from dippm.frontends.inputs import InputShapes
from dippm.frontends.tensorflow import conversion, formats
from dippm.frontends.tensorflow.formats import (
    ModelFormat,
    check_archive,
    check_graph,
    check_lite,
    find_format,
    list_files,
)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("m.bin", b"PK\x03\x04rest", ModelFormat.KERAS),
        ("m.bin", b"\x89HDF\r\n\x1a\nrest", ModelFormat.HDF5),
        ("m.bin", b"\x1c\0\0\0TFL3rest", ModelFormat.TFLITE),
        ("m.bin", b"\x0a\x10rest", ModelFormat.GRAPH_DEF),
        ("saved_model.pb", b"\x08\x01\x12", ModelFormat.SAVED_MODEL),
    ],
)
def test_content_tells_the_kind(tmp_path: Path, name: str, content: bytes, expected: ModelFormat) -> None:
    (tmp_path / name).write_bytes(content)
    assert find_format(tmp_path / name) is expected


def test_a_folder_is_a_saved_model_with_all_its_files(tmp_path: Path) -> None:
    for name in ("saved_model.pb", "variables/variables.index", "assets/words/a.txt", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert find_format(tmp_path) is ModelFormat.SAVED_MODEL
    names = [path.relative_to(tmp_path).as_posix() for path in list_files(tmp_path)]
    assert names == ["assets/words/a.txt", "saved_model.pb", "variables/variables.index"]


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelReadError) as caught:
        find_format(tmp_path / "none")
    assert caught.value.code == "model.unreadable"


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", bytes(3 * 2**20))
    check_archive(path, most_mb=4)
    with pytest.raises(ModelReadError) as caught:
        check_archive(path, most_mb=2)
    assert caught.value.code == "model.too_large"
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", b" " * (65 * 2**20))
    with pytest.raises(ModelReadError, match="description"):
        check_archive(path, most_mb=1000)
    assert path.stat().st_size < 2**18


@pytest.mark.parametrize("name", ["frozen.pb", "saved_model.pb"])
def test_a_graph_larger_than_any_message_is_refused_unread(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with path.open("wb") as stream:
        stream.truncate(2**31 - 1)  # sparse: it takes no room
    given = tmp_path if name == "saved_model.pb" else path
    check_graph(given)
    os.truncate(path, 2**31)
    with pytest.raises(ModelReadError) as caught:
        check_graph(given)
    assert caught.value.code == "model.too_large"


def test_an_archive_that_is_cut_off_is_told(tmp_path: Path) -> None:
    (tmp_path / "m.keras").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(ModelReadError) as caught:
        check_archive(tmp_path / "m.keras", most_mb=10)
    assert caught.value.code == "model.truncated"


def test_without_the_extra_the_way_to_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(conversion, "find_spec", lambda _: None)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    with pytest.raises(MissingExtraError, match=r'pip install "dippm\[tensorflow\]"'):
        conversion.convert_tensorflow(tmp_path, input=InputShapes())


@pytest.mark.parametrize(
    ("signatures", "named"),
    [
        ({}, None),
        ({"encode": 0}, None),
        ({"serving_default": 0, "serve": 0}, None),
        ({"serving_default": 0, "train": 1}, None),
        ({"encode": 0, "decode": 1}, "decode"),
        ({"encode": 0, "serving_default": 1}, "serving_default"),
    ],
)
def test_one_of_several_signatures_is_not_read_for_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, signatures: dict[str, int], named: str | None
) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(b"x")
    monkeypatch.setattr(formats, "is_cut_short", lambda _: False)
    monkeypatch.setattr(formats, "find_signatures", lambda _: signatures)
    if named is None:
        check_lite(path)
        return
    with pytest.raises(UnsupportedError, match=", ".join(sorted(signatures))) as caught:
        check_lite(path)
    assert caught.value.code == "tensorflow.signatures"
    assert f"signature_keys=['{named}']" in str(caught.value.cure)
