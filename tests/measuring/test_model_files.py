"""Models by name and by file."""

from __future__ import annotations

import json
import pickle
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.api import save_graph  # noqa: E402
from dippm.errors import DippmError, ModelReadError, UnsupportedError  # noqa: E402
from dippm.frontends.inputs import InputShapes, parse_input_shapes  # noqa: E402
from dippm.graph import OpKind  # noqa: E402
from dippm.measuring.bench import Bench  # noqa: E402
from dippm.measuring.configuration import Configuration, Engine  # noqa: E402
from dippm.measuring.measurement import Outcome  # noqa: E402
from dippm.measuring.model_files import CheckpointSource, FileSource, ZooSource, find_source  # noqa: E402
from dippm.measuring.protocol import Plan  # noqa: E402

SHAPES = parse_input_shapes("8")


def measure(source: Any, engine: Engine = Engine.TORCH) -> Any:
    bench = Bench("cpu", Plan(warmup_runs=2, timed_runs=3))
    return next(bench.measure(source, [Configuration(batch=2, engine=engine)]))


@pytest.fixture(name="exported")
def _exported(tmp_path: Path, models: Any) -> Path:
    path = tmp_path / "tiny.pt2"
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(models.Tiny().eval(), (torch.randn(4, 8),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    return path


def test_names_and_paths() -> None:
    assert find_source("timm:resnet18", SHAPES) == ZooSource("timm:resnet18", SHAPES)
    found = find_source("some/model.onnx", SHAPES, trust=True)
    assert found == FileSource("some/model.onnx", SHAPES, trust=True)
    assert pickle.loads(pickle.dumps(found)) == found
    assert found.model_key != find_source("some/model.onnx", InputShapes()).model_key


def test_a_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    settings = {
        "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 50,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(settings))
    source = find_source(str(tmp_path), InputShapes())
    assert isinstance(source, CheckpointSource)
    assert pickle.loads(pickle.dumps(source)) == source
    assert source.model_key != find_source(str(tmp_path), parse_input_shapes({"input_ids": "9:int64"})).model_key
    assert measure(source).outcome is Outcome.OK
    (tmp_path / "config.json").write_text(json.dumps({**settings, "quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(UnsupportedError) as caught:
        find_source(str(tmp_path), InputShapes())
    assert caught.value.code == "measure.quantised"
    with pytest.raises(UnsupportedError, match="'hf:gpt-oss-20b'") as caught:
        find_source("hf:gpt-oss-20b", InputShapes())
    assert caught.value.code == "measure.quantised"


def test_a_library_model() -> None:
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    measured = measure(ZooSource("timm:test_resnet", parse_input_shapes("3,64,64")))
    assert measured.outcome is Outcome.OK, measured.message


def test_an_unknown_library_model() -> None:
    measured = measure(ZooSource("keras:resnet"))
    assert measured.outcome is Outcome.FAILED
    assert "names no model" in measured.message


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_torchscript(tmp_path: Path, models: Any) -> None:
    path = tmp_path / "tiny.pt"
    torch.jit.save(torch.jit.trace(models.Tiny().eval(), torch.randn(1, 8), check_trace=False), str(path))
    assert measure(FileSource(path, SHAPES)).outcome is Outcome.OK
    with pytest.raises(DippmError) as caught:
        FileSource(path).build("cpu")
    assert caught.value.code == "input.shape_needed"


def test_an_exported_program(exported: Path) -> None:
    module, shapes = FileSource(exported).build("cpu")
    assert [entry.shape for entry in shapes.positional] == [(8,)]
    assert not module.training
    assert measure(FileSource(str(exported))).outcome is Outcome.OK


@pytest.mark.parametrize("way", ["pickled weight", "pickled sample", "old format", "damaged table"])
def test_an_exported_program_that_would_run_code(exported: Path, way: str, tmp_path: Path) -> None:
    evil = tmp_path / "evil.pt2"
    with zipfile.ZipFile(exported) as source, zipfile.ZipFile(evil, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name.endswith("model_weights_config.json"):
                if way == "pickled weight":
                    data = data.replace(b'"use_pickle": false', b'"use_pickle": true')
                elif way == "damaged table":
                    data = data[:-10]
            if name.endswith("_config.json") and way == "old format":
                continue
            if "/sample_inputs/" in name and way == "pickled sample":
                inner = tmp_path / "sample.pt"
                torch.save({"x": nn.Linear(1, 1)}, inner)
                data = inner.read_bytes()
            target.writestr(name, data)
    with pytest.raises(ModelReadError) as caught:
        FileSource(evil).build("cpu")
    assert caught.value.code == "torch.pickle_refused"


def test_a_pickled_module_that_is_trusted(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(nn.Linear(8, 2).train(), path)
    module, shapes = FileSource(path, SHAPES, trust=True).build("cpu")
    assert isinstance(module, nn.Linear)
    assert not module.training
    assert shapes == SHAPES
    assert measure(FileSource(path, SHAPES, trust=True)).outcome is Outcome.OK
    with pytest.raises(DippmError) as caught:
        FileSource(path, trust=True).build("cpu")
    assert caught.value.code == "input.shape_needed"


def test_other_files_are_refused(tmp_path: Path) -> None:
    pickled, text = tmp_path / "model.pt", tmp_path / "text.pt"
    torch.save(nn.Linear(2, 2), pickled)
    text.write_text("no model")
    for path, code in [
        (pickled, "torch.pickle_refused"),
        (text, "torch.not_recognised"),
        (tmp_path / "absent.pt", "model.not_found"),
    ]:
        with pytest.raises(ModelReadError) as caught:
            FileSource(path, SHAPES).build("cpu")
        assert caught.value.code == code


def test_onnx_runs_in_onnxruntime_alone(tmp_path: Path) -> None:
    with pytest.raises(DippmError) as caught:
        FileSource(tmp_path / "model.onnx").build("cpu")
    assert caught.value.code == "engine.unsupported"


@pytest.mark.parametrize(
    ("name", "kind"), [("m.keras", "TensorFlow or Keras"), ("m.h5", "TensorFlow or Keras"), ("m.json", "a graph")]
)
def test_files_that_are_predicted_alone_are_refused(tmp_path: Path, builder: Any, name: str, kind: str) -> None:
    path = tmp_path / name
    if name == "m.keras":
        with zipfile.ZipFile(path, "w") as archive:
            for member in ("metadata.json", "config.json"):
                archive.writestr(member, "{}")
            archive.writestr("model.weights.h5", b"")
    elif name == "m.h5":
        path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    else:
        builder.node(OpKind.RELU, [builder.input(builder.N, 8)], builder.N, 8)
        save_graph(builder.graph(), path)
    with pytest.raises(UnsupportedError, match=f"is .*{kind}.* cannot be measured") as caught:
        find_source(str(path), InputShapes())
    assert caught.value.code == "measure.unsupported"
