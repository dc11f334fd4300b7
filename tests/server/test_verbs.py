from __future__ import annotations

import contextlib
import json
import shutil
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from dippm import cli
from dippm.errors import UnsupportedError
from dippm.server import verbs
from dippm.server.jobs import Job, Verb
from dippm.server.verbs import GraphReader, answer


def job(path: Path, verb: Verb = Verb.PREDICT, *, content: str = "hash", **options: object) -> Job:
    return Job(verb=verb, name="named.onnx", path=str(path), content=content, options={"device": "A100", **options})


@pytest.mark.parametrize(
    ("verb", "options", "words"),
    [
        (Verb.PREDICT, {"batch": [1, 8], "device": ["A100", "T4"]}, ["--batch", "1,8", "--device", "A100,T4"]),
        (Verb.PREDICT, {"batch": 4, "mode": "training"}, ["--batch", "4", "--mode", "training"]),
        (Verb.FITS, {"batch": 4, "prices": {"A100": 2.0}}, ["--batch", "4", "--price", "A100=2"]),
        (Verb.MAX_BATCH, {"latency_ms": 0.001}, ["--latency-ms", "0.001"]),
        (Verb.INSPECT, {"batch": 2, "top": 1}, ["--batch", "2", "--top", "1"]),
        *(
            (
                verb,
                {"device": ["A100", "P100"], "runtime": "compile"},
                ["--device", "A100,P100", "--runtime", "compile"],
            )
            for verb in (Verb.PREDICT, Verb.FITS, Verb.MAX_BATCH)
        ),
    ],
)
def test_answers_are_those_of_the_command_line(
    onnx_file: Path, capsys: pytest.CaptureFixture[str], verb: Verb, options: dict[str, object], words: list[str]
) -> None:
    if verb is not Verb.MAX_BATCH:
        options = {"batch": 1} | options
    found = answer(job(onnx_file, verb, **options), GraphReader(unpacked_mb=1))
    assert cli.main([verb.value, str(onnx_file), *words, "--json"]) == 0
    expected = json.loads(capsys.readouterr().out.replace(str(onnx_file), "named.onnx"))
    if "model" in expected:
        expected["model"]["source"] = "named.onnx"
    assert json.loads(json.dumps(found)) == expected


def test_a_configuration_of_a_checkpoint_is_enough(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    settings = {"model_type": "bert", "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.write(tmp_path / "config.json", "bert/config.json")
    reader = GraphReader(unpacked_mb=1)
    alone, packed = (answer(job(tmp_path / name, batch=2, content=name), reader) for name in ("config.json", "m.zip"))
    assert alone == packed


def test_warnings_name_the_file_as_the_client_does(onnx_file: Path) -> None:
    found = answer(job(onnx_file, batch=1, mode="training"), GraphReader(unpacked_mb=1))
    text = json.dumps(found)
    assert "named.onnx" in text
    assert str(onnx_file.parent) not in text


def test_a_graph_is_read_once(onnx_file: Path) -> None:
    reader = GraphReader(unpacked_mb=1)
    first = answer(job(onnx_file, batch=1), reader)
    onnx_file.unlink()
    assert answer(job(onnx_file, batch=1), reader) == first
    with pytest.raises(Exception, match="no file"):
        answer(job(onnx_file, batch=1, content="other"), reader)
    with pytest.raises(Exception, match="no file"):
        answer(job(onnx_file, batch=1, mode="training"), reader)


def test_old_graphs_make_room(onnx_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "_MOST_NODES", 5)
    reader = GraphReader(unpacked_mb=1)
    for content in ("a", "b", "c"):
        answer(job(onnx_file, batch=1, content=content), reader)
    onnx_file.unlink()
    answer(job(onnx_file, batch=1, content="c"), reader)
    with pytest.raises(Exception, match="no file"):
        answer(job(onnx_file, batch=1, content="a"), reader)


def test_a_wrong_device_is_refused_before_the_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        answer(job(tmp_path / "absent.onnx", batch=1, device="Z9"), GraphReader(unpacked_mb=1))
    assert caught.value.code == "device.unknown"


def test_an_archive_is_unpacked(onnx_file: Path, onnx_bytes: Callable[..., bytes]) -> None:
    archive = onnx_file.with_name("upload.zip")
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("folder/model.onnx", onnx_bytes(nodes=3))
    found = answer(job(archive, batch=1), GraphReader(unpacked_mb=1))
    assert found["model"]["nodes"] == 3  # type: ignore[index]
    assert found["model"]["source"] == "named.onnx"  # type: ignore[index]
    shutil.rmtree(archive.with_name("unpacked"))


@pytest.mark.parametrize("form", ["json", "pdmodel"])
def test_an_archive_of_paddle_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("paddle2onnx", reason="paddle2onnx is not installed: pip install 'dippm[paddle]'")
        paddle = pytest.importorskip("paddle", reason="Paddle is not installed: pip install 'dippm[paddle]'")
        layer = paddle.nn.Sequential(paddle.nn.Linear(8, 4), paddle.nn.ReLU())
        spec = paddle.static.InputSpec([None, 8], "float32", "x")
        with paddle.pir_utils.DygraphOldIrGuard() if form == "pdmodel" else contextlib.nullcontext():
            paddle.jit.save(layer, str(tmp_path / "net" / "net"), input_spec=[spec])
    archive = tmp_path / "upload.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for name in (f"net.{form}", "net.pdiparams"):
            packed.write(tmp_path / "net" / name, f"net/{name}")
    monkeypatch.setenv("DIPPM_CACHE", str(tmp_path / "cache"))
    found = answer(job(archive, batch=[1, 8]), GraphReader(unpacked_mb=1))
    assert found["model"]["framework"] == "paddle"  # type: ignore[index]
    assert [each["inputs"] for each in found["predictions"]] == [{"x": [1, 8]}, {"x": [8, 8]}]  # type: ignore[attr-defined]


def test_a_graph_that_holds_for_every_batch_is_read_once_for_all(onnx_file: Path) -> None:
    reader = GraphReader(unpacked_mb=1)
    answer(job(onnx_file, batch=1000), reader)
    onnx_file.unlink()
    answer(job(onnx_file, batch=2000), reader)
    answer(job(onnx_file, Verb.FITS, batch=[3, 4]), reader)


def test_a_graph_that_holds_for_one_batch_is_read_for_the_batch_asked(
    onnx_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, true_load = [], verbs.api.load

    def load(model: object, *, batch_hint: int | None, **options: object) -> object:
        asked.append(batch_hint)
        graph = true_load(model, batch_hint=batch_hint, **options)  # type: ignore[arg-type]
        return replace(graph, fixed_batch=batch_hint, fixed_batch_reason="of a test")

    monkeypatch.setattr(verbs.api, "load", load)
    reader = GraphReader(unpacked_mb=1)
    for batch in (100, 100, 8):
        found = answer(job(onnx_file, batch=batch), reader)
        assert found["predictions"][0]["batch"] == batch  # type: ignore[index]
    assert asked == [4096, 100, 8]


@pytest.mark.parametrize("verb", [Verb.PREDICT, Verb.FITS])
def test_several_batches_are_read_one_by_one_where_no_graph_holds_for_all(
    onnx_file: Path, monkeypatch: pytest.MonkeyPatch, verb: Verb
) -> None:
    true_load = verbs.api.load

    def load(model: object, *, batch_hint: int | None, **options: object) -> object:
        return replace(true_load(model, batch_hint=batch_hint, **options), fixed_batch=batch_hint)  # type: ignore[arg-type]

    monkeypatch.setattr(verbs.api, "load", load)
    found = answer(job(onnx_file, verb, batch=[1, 100, 8], device=["A100", "T4"]), GraphReader(unpacked_mb=1))
    answers = found["predictions" if verb is Verb.PREDICT else "fits"]
    assert [(each["device"], each["batch"]) for each in answers] == [  # type: ignore[attr-defined]
        (device, batch) for device in ("A100-SXM4-40GB", "Tesla T4") for batch in (1, 100, 8)
    ]


def test_a_batch_below_those_that_a_graph_holds_for_is_read_by_itself(
    onnx_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_load = verbs.api.load

    def load(model: object, *, batch_hint: int | None, **options: object) -> object:
        graph = true_load(model, batch_hint=batch_hint, **options)  # type: ignore[arg-type]
        return replace(graph, fixed_batch=1) if batch_hint == 1 else replace(graph, smallest_batch=2)

    monkeypatch.setattr(verbs.api, "load", load)
    reader = GraphReader(unpacked_mb=1)
    for batches in ([8], [8, 1], [1], [2]):
        found = answer(job(onnx_file, batch=batches), reader)
        assert [each["batch"] for each in found["predictions"]] == batches  # type: ignore[attr-defined]


def test_a_batch_at_which_a_model_goes_another_way_is_read_by_itself(
    onnx_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, true_load = [], verbs.api.load

    def load(model: object, *, batch_hint: int | None, **options: object) -> object:
        asked.append(batch_hint)
        if batch_hint == 4096:
            raise UnsupportedError("no", code="test")
        graph = true_load(model, batch_hint=batch_hint, **options)  # type: ignore[arg-type]
        return replace(graph, fixed_batch=1) if batch_hint == 1 else replace(graph, other_batches=(1,))

    monkeypatch.setattr(verbs.api, "load", load)
    reader = GraphReader(unpacked_mb=1)
    for batch in (8, 2, 1, 1, 100):
        answer(job(onnx_file, batch=batch), reader)
    assert asked == [8, 1, 4096, 100]
    answer(job(onnx_file, Verb.MAX_BATCH), reader)
    assert asked[4] is None


@pytest.fixture
def first_samples(tmp_path: Path) -> Path:
    """A model that takes the first 4500 samples alone."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], end=1),
        helper.make_node("Min", ["shape", "most"], ["stop"]),
        helper.make_node("Slice", ["x", "start", "stop"], ["some"]),
        helper.make_node("MatMul", ["some", "w"], ["y"]),
    ]
    constants = [
        helper.make_tensor("most", TensorProto.INT64, [1], [4500]),
        helper.make_tensor("start", TensorProto.INT64, [1], [0]),
        helper.make_tensor("w", TensorProto.FLOAT, [8, 4], bytes(4 * 8 * 4), raw=True),
    ]
    x, y = (helper.make_tensor_value_info(*each) for each in (("x", 1, ["n", 8]), ("y", 1, [None, 4])))
    model = helper.make_model(
        helper.make_graph(nodes, "first", [x], [y], constants), opset_imports=[helper.make_opsetid("", 17)]
    )
    path = tmp_path / "first.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("batches", [(5000,), (8, 5000), (8, 100, 5000)])
def test_a_graph_is_not_reused_beyond_the_batch_that_it_was_proved_at(
    first_samples: Path, batches: tuple[int, ...]
) -> None:
    reader = GraphReader(unpacked_mb=1)
    for batch in batches:
        found = answer(job(first_samples, batch=batch), reader)
    assert found["predictions"][0]["macs"] == 4500 * 8 * 4  # type: ignore[index]


def test_the_largest_batch_is_one_that_the_model_was_read_at(first_samples: Path) -> None:
    with pytest.raises(UnsupportedError, match="does not grow up to batch"):
        answer(job(first_samples, Verb.MAX_BATCH), GraphReader(unpacked_mb=1))


@pytest.mark.parametrize("kind", ["saved model", "keras", "h5"])
def test_what_tensorflow_runs_while_it_loads_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / {"saved model": "saved.zip", "keras": "model.keras", "h5": "model.h5"}[kind]
    if kind == "h5":
        path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(1000))
    else:
        names = ["saved_model.pb"] if kind == "saved model" else ["config.json", "metadata.json"]
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, b"{}")
    with pytest.raises(UnsupportedError) as caught:
        answer(job(path, batch=1), GraphReader(unpacked_mb=1))
    assert caught.value.code == "service.program_refused"
