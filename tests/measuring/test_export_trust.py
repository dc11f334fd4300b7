"""Which exported archives could run code of their own when they are loaded."""

from __future__ import annotations

import io
import json
import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dippm.measuring.export_trust import loading_runs_code


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("true",)


def config(*, use_pickle: bool = False, path_name: str = "weight_0") -> bytes:
    return json.dumps({"config": {"w": {"use_pickle": use_pickle, "path_name": path_name}}}).encode()


def samples(content: object) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps(content))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("entries", "runs_code"),
    [
        ({"m/data/weights/model_weights_config.json": config()}, False),
        ({"m/data/weights/model_weights_config.json": config(use_pickle=True)}, True),
        ({"m/data/constants/model_constants_config.json": config(path_name="custom_obj_0")}, True),
        ({"m/data/weights/model_weights_config.json": b"{"}, True),
        ({"m/data/weights/model_weights_config.json": b'{"config": {"w": {}}}'}, True),
        ({"m/data/weights/model_weights_config.json": b'{"config": []}'}, True),
        ({"m/models/model.json": b"{}"}, True),  # the format before
        (
            {"m/data/weights/model_weights_config.json": config(), "m/data/sample_inputs/model.pt": samples([1, 2])},
            False,
        ),
        (
            {"m/data/weights/model_weights_config.json": config(), "m/data/sample_inputs/model.pt": samples(Evil())},
            True,
        ),
        ({"m/data/weights/model_weights_config.json": config(), "m/data/sample_inputs/model.pt": b"PK"}, True),
    ],
)
def test_what_an_archive_says_of_itself(entries: dict[str, bytes], runs_code: bool) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with zipfile.ZipFile(stream) as archive:
        assert loading_runs_code(archive) is runs_code


def test_what_pytorch_writes_runs_nothing(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "m.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(torch.nn.Linear(4, 4).eval(), (torch.zeros(2, 4),)), path)
    with zipfile.ZipFile(path) as archive:
        assert not loading_runs_code(archive)


def test_a_table_that_does_not_unpack_is_answered_with_yes(tmp_path: Path) -> None:
    path, name = tmp_path / "m.pt2", "m/data/weights/model_weights_config.json"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, config())
    content = bytearray(path.read_bytes())
    content[zipfile.sizeFileHeader + len(name)] = 0xFF
    path.write_bytes(content)
    with zipfile.ZipFile(path) as archive:
        assert loading_runs_code(archive)
