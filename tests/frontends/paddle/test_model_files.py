"""Paddle's files told apart, without Paddle."""

from __future__ import annotations

from pathlib import Path

import pytest

from dippm.errors import ModelReadError
from dippm.frontends.detect import Framework, detect_framework
from dippm.frontends.paddle.model_files import find_program

PIR = b'{"base_code":{"magic":"pir","trainable":true,"version":4},"program":{"regions":[]}}'
PROGRAM_DESC = b"\x0a\xe2\x05\x08\x00\x10" + b"\xff" * 9 + b'\x01\x1a"\n"\n\x12batch_norm2d_0.b_0'
WEIGHTS = b"\0" * 16 + b"\x04\0\0\0" + b"\x08\x05\x10\x10" + b"\0" * 64
PICKLE = b"\x80\x04\x95\x10\0\0\0\0\0\0\0"


def write(folder: Path, **contents: bytes) -> None:
    for name, content in contents.items():
        (folder / name.replace("_", ".")).write_bytes(content)


@pytest.mark.parametrize("name", ["m.json", "m.pdmodel", "m.bin", "inference"])
@pytest.mark.parametrize(
    "content", [PIR, b"  " + PIR.replace(b":", b" : "), PROGRAM_DESC], ids=["pir", "spaced", "old"]
)
def test_a_program_is_known_by_its_content(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert detect_framework(tmp_path / name) is Framework.PADDLE


@pytest.mark.parametrize("content", [b'{"a": {"magic": "pir"}}', b'{"architectures": []}', b"[]"])
def test_other_json_is_no_program(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, m_json=content)
    with pytest.raises(ModelReadError) as caught:
        detect_framework(tmp_path / "m.json")
    assert caught.value.code == "model.unrecognised"


def test_an_onnx_model_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(b"\x08\x08\x12\x07pytorch" + PROGRAM_DESC)
    assert detect_framework(tmp_path / "m.bin") is Framework.ONNX


@pytest.mark.parametrize("program", ["m_json", "m_pdmodel"])
def test_weights_lead_to_the_program_beside_them(tmp_path: Path, program: str) -> None:
    write(tmp_path, m_pdiparams=WEIGHTS, **{program: PIR})
    path = tmp_path / "m.pdiparams"
    assert detect_framework(path) is Framework.PADDLE
    assert find_program(path) == tmp_path / program.replace("_", ".")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("m.pdiparams", WEIGHTS),
        ("m.bin", WEIGHTS),
        ("m.pdiparams", b"\x01garbage"),
        ("m.pdparams", PICKLE),
        ("m.pdopt", PICKLE),
    ],
)
def test_weights_alone_are_no_model(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelReadError, match=r"paddle\.jit\.save") as caught:
        detect_framework(tmp_path / name)
    assert caught.value.code == "model.weights_only"


def test_a_checkpoint_is_no_model_even_beside_one(tmp_path: Path) -> None:
    write(tmp_path, m_pdparams=PICKLE, m_json=PIR)
    with pytest.raises(ModelReadError) as caught:
        detect_framework(tmp_path / "m.pdparams")
    assert caught.value.code == "model.weights_only"


@pytest.mark.parametrize("program", ["m_json", "m_pdmodel"])
def test_the_prefix_of_a_model_leads_to_its_program(tmp_path: Path, program: str) -> None:
    write(tmp_path, m_pdiparams=WEIGHTS, **{program: PIR})
    with pytest.raises(ModelReadError) as caught:
        detect_framework(tmp_path / "m")
    assert caught.value.code == "model.missing"
    assert caught.value.cure == f"Give '{tmp_path / program.replace('_', '.')}'."


def test_json_of_another_kind_is_not_pointed_to(tmp_path: Path) -> None:
    write(tmp_path, m_json=b"{}")
    with pytest.raises(ModelReadError, match="Check the path"):
        detect_framework(tmp_path / "m")


def test_a_folder_with_one_model(tmp_path: Path) -> None:
    write(tmp_path, m_json=PIR, m_pdmodel=PROGRAM_DESC, m_pdiparams=WEIGHTS, config_json=b"{}")
    (tmp_path / "more.json").mkdir()
    assert detect_framework(tmp_path) is Framework.PADDLE
    assert find_program(tmp_path) == tmp_path / "m.json"


def test_a_folder_with_several_models_names_them(tmp_path: Path) -> None:
    write(tmp_path, a_json=PIR, b_pdmodel=PROGRAM_DESC)
    assert detect_framework(tmp_path) is Framework.PADDLE
    with pytest.raises(ModelReadError, match="a, b") as caught:
        find_program(tmp_path)
    assert caught.value.code == "model.ambiguous"


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    write(tmp_path, m_json=b"{}", m_pdiparams=WEIGHTS)
    for look in (detect_framework, find_program):
        with pytest.raises(ModelReadError) as caught:
            look(tmp_path)
        assert caught.value.code == "model.unrecognised"
