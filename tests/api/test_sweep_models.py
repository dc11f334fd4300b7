from pathlib import Path

import pytest

from dippm.api.sweep_models import list_models
from dippm.errors import UsageError


def test_paths_and_names_stay_as_they_are() -> None:
    assert list_models("none.onnx") == ["none.onnx"]
    assert list_models(["timm:resnet18", Path("a.pt"), "hf:bert"]) == ["timm:resnet18", "a.pt", "hf:bert"]


def test_a_folder_stands_for_the_models_below_it(tmp_path: Path) -> None:
    for name in ("b.onnx", "a.pt", "deep/er/c.tflite", "readme.txt", "weights.data", "config.json", ".hidden.onnx"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")
    (tmp_path / "paddle.json").write_bytes(b'{"base_code": {"magic": "pir"}}')
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"x")
    expected = ["a.pt", "b.onnx", "deep/er/c.tflite", "paddle.json", "saved"]
    assert list_models(tmp_path) == [str(tmp_path / name) for name in expected]
    assert list_models([tmp_path / "saved"]) == [str(tmp_path / "saved")]


def test_a_folder_of_one_paddle_model_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_bytes(b'{"base_code": {"magic": "pir"}}')
    (tmp_path / "m.pdiparams").write_bytes(b"x")
    assert list_models(tmp_path) == [str(tmp_path)]
    (tmp_path / "n.json").write_bytes(b'{"base_code": {"magic": "pir"}}')
    assert list_models(tmp_path) == [str(tmp_path / "m.json"), str(tmp_path / "n.json")]


def test_a_checkpoint_is_one_model_and_a_configuration_beside_a_file_is_none(tmp_path: Path) -> None:
    for folder, beside in (("llama", "model.safetensors"), ("exported", "model.onnx"), ("bin", "pytorch_model.bin")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text('{"model_type": "llama"}')
        (tmp_path / folder / beside).write_bytes(b"x")
    assert list_models(tmp_path) == [str(tmp_path / name) for name in ("bin", "exported/model.onnx", "llama")]
    step = f"{tmp_path / 'llama'}#decode=8"
    assert list_models([step]) == [step]


def test_a_list_holds_one_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.onnx").write_bytes(b"x")
    (tmp_path / "list.txt").write_text("# some\n\n  timm:resnet18 \nmodels\nb c.onnx\n")
    assert list_models(["@list.txt", "z.pt"]) == ["timm:resnet18", "models/a.onnx", "b c.onnx", "z.pt"]
    # As editors on Windows write it.
    (tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbftimm:resnet18\r\nb c.onnx\r\n")
    assert list_models("@list.txt") == ["timm:resnet18", "b c.onnx"]


@pytest.mark.parametrize(
    ("given", "code"),
    [([], "sweep.models"), ([3], "sweep.models"), (b"x", "sweep.models"), (None, "sweep.models"), ("@n", "sweep.list")],
)
def test_what_is_no_model_is_refused(given: object, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        list_models(given)
    assert caught.value.code == code


def test_an_empty_folder_and_a_list_that_is_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        list_models(tmp_path)
    assert caught.value.code == "sweep.models"
    (tmp_path / "list").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError) as caught:
        list_models(f"@{tmp_path / 'list'}")
    assert caught.value.code == "sweep.list"
    with pytest.raises(UsageError, match=r"'none' cannot be read: No such file or directory\. After @ stands a text"):
        list_models("@none")
