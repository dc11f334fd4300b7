"""Files of models to pack."""

from __future__ import annotations

from pathlib import Path

import pytest

import dippm
from dippm.errors import UsageError


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "models.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_every_field_is_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        [[model]]
        model = "net.onnx"
        name = "ranker"
        batch = 8
        latency_ms = 12.5
        replicas = 3
        input = { image = "3,64,64" }
        framework = "onnx"
        precision = "amp"
        mode = "training"
        optimizer = "adam"
        accumulation = 4
        checkpointing = true
        weights = "nf4"
        lora = 8
        layout = "nhwc"
        runtime = "compile"
        software = "torch 2.4"

        [[model]]
        model = "timm:resnet50"
        """,
    )
    first, second = dippm.load_models_file(path)
    assert first == dippm.ModelToPack(
        model=str(tmp_path / "net.onnx"), name="ranker", batch=8, latency_ms=12.5, replicas=3,
        input={"image": "3,64,64"}, framework="onnx", precision="amp", mode="training", optimizer="adam",
        accumulation=4, checkpointing=True, weights="nf4", lora=8, layout="nhwc", runtime="compile",
        software="torch 2.4",
    )  # fmt: skip
    assert second == dippm.ModelToPack(model="timm:resnet50")


def test_the_mark_that_editors_on_windows_begin_files_with_is_no_part_of_it(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbf[[model]]\r\nmodel = 'timm:resnet50'\r\n")
    assert dippm.load_models_file(path) == [dippm.ModelToPack(model="timm:resnet50")]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[[model]", "models_file.syntax"),
        (b"\xff\xfe", "models_file.syntax"),
        ("", "models_file.key"),
        ("model = 'a'", "models_file.key"),
        ("[model]\nmodel = 'a'", "models_file.key"),
        ("[[model]]\nmodel = 'a'\n[other]\na = 1", "models_file.key"),
        ("[[model]]\nname = 'a'", "models_file.key"),
        ("[[model]]\nmodel = 'a'\nbatches = 1", "models_file.key"),
        ("[[model]]\nmodel = 1", "models_file.value"),
        ("[[model]]\nmodel = 'a'\nname = 1", "models_file.value"),
        ("[[model]]\nmodel = 'a'\nlayout = 1", "models_file.value"),
        ("[[model]]\nmodel = 'a'\ncheckpointing = 'yes'", "models_file.value"),
        (b"#" * 4_000_001, "models_file.unreadable"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str | bytes, code: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        dippm.load_models_file(path)
    assert caught.value.code == code
    assert str(path) in str(caught.value)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        dippm.load_models_file(tmp_path / "none.toml")
    assert caught.value.code == "models_file.unreadable"
