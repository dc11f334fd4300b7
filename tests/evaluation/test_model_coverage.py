from __future__ import annotations

import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import pytest

from dippm.evaluation.model_coverage import (
    HF_ARCHITECTURES,
    ReadingNote,
    add_counted_macs,
    choose_one_of_each_family,
    library_models,
    load_notes,
    read_models,
)

_needs_zoo = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("torch", "timm", "torchvision", "transformers")),
    reason="a library of models is not installed",
)


def test_notes_are_kept_and_the_last_counts(tmp_path: Path, reading_notes: list[ReadingNote]) -> None:
    path = tmp_path / "notes.jsonl"
    later = ReadingNote(name="timm:a", nodes=31)
    text = "\n".join(json.dumps(asdict(note)) for note in (*reading_notes, later)) + '\n{"name": "timm:cut'
    path.write_text(text, encoding="utf-8")
    notes = load_notes(path)
    assert notes["timm:a"] == later
    assert list(notes) == [note.name for note in reading_notes]
    assert load_notes(tmp_path / "absent.jsonl") == {}


def test_one_of_each_family_is_the_smallest_that_was_read(reading_notes: list[ReadingNote]) -> None:
    assert choose_one_of_each_family(reading_notes) == ["hf:MambaForCausalLM", "timm:b", "timm:c"]


def test_architectures_are_named_once() -> None:
    names = [name for of_kind in HF_ARCHITECTURES.values() for name in of_kind]
    assert len(set(names)) == len(names)
    assert len({name.partition("#")[0] for name in names}) >= 30


@_needs_zoo
def test_what_was_read_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    seen: list[str] = []
    names = ["timm:resnet10t", "timm:no_such_model"]
    for _ in range(2):
        notes = read_models(names, path, is_wanted=lambda _: False, progress=lambda note: seen.append(note.name))
    assert seen == names
    assert notes["timm:no_such_model"].code == "zoo.unknown"
    assert notes["timm:resnet10t"].family == "timm.models.resnet"
    counted = add_counted_macs(["timm:resnet10t"], path, progress=lambda note: seen.append(note.name))
    assert counted["timm:resnet10t"].counted_macs == counted["timm:resnet10t"].macs > 1e8
    again = read_models(names, path, is_wanted=lambda note: not note.is_read, progress=lambda _: None)
    assert again["timm:resnet10t"].counted_macs is not None


@pytest.mark.slow
@_needs_zoo
def test_a_sample_of_all_libraries_is_read(tmp_path: Path) -> None:
    timm = library_models("timm")
    assert len(timm) > 1300
    sample = [
        *timm[:: len(timm) // 14],
        "torchvision:r2plus1d_18", "torchvision:lraspp_mobilenet_v3_large", "torchvision:mobilenet_v3_small",
        "hf:AlbertModel", "hf:ModernBertForMaskedLM", "hf:OPTForCausalLM", "hf:MarianMTModel",
        "hf:ResNetForImageClassification", "hf:Wav2Vec2ForCTC", "hf:SiglipModel", "hf:OlmoeForCausalLM",
    ]  # fmt: skip
    notes = read_models(sample, tmp_path / "notes.jsonl", is_wanted=lambda _: False, progress=lambda _: None)
    assert [note.message for note in notes.values() if not note.is_read or note.unsupported_ops] == []
