"""The published measurements of the repository, and how a row is read."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from dippm.datasets.published import (
    digest_published,
    read_configurations,
    read_deep_learning_examples,
    read_held_out_configurations,
    read_held_out_power,
    read_mig_slices,
    read_published,
    read_published_power,
)
from dippm.errors import UsageError

FOLDER = Path(__file__).parents[2] / "data" / "published"
HEADER = (
    "source,model,model_class,device,device_note,software,weights_dtype,precision,attention,mode,optimizer,batch,"
    "sequence,image_height,image_width,past_tokens,latency_ms,peak_memory_mb,memory_kind,memory_unit,average_power_w,"
    "energy_j,notes\n"
)


def write(folder: Path, *rows: str) -> Path:
    (folder / "transformers_docs.csv").write_text(HEADER + "".join(f"{row}\n" for row in rows), encoding="utf-8")
    for name in ("benchmarks.csv", "adapters.csv", "quantised.csv"):
        (folder / name).write_text(HEADER, encoding="utf-8")
    (folder / "quantised.toml").write_text('["c/d"]\n', encoding="utf-8")
    (folder / "mig.toml").write_text('["e/f"]\n', encoding="utf-8")
    (folder / "models.toml").write_text('["a/b"]\nlayers = 3\n', encoding="utf-8")
    return folder


def test_a_row_keeps_the_words_and_the_numbers(tmp_path: Path) -> None:
    text = "s,a/b,ABForCausalLM,Card,,torch 2.2.0,float16,fp16,sdpa,decode,,4,1,,,178,7.5,2000,{},{},,,careful"
    (row,) = read_published(write(tmp_path, text.format("max_memory_allocated", "MB")))
    assert (row.model, row.device, row.mode, row.batch, row.past_tokens) == ("a/b", "Card", "decode", 4, 178)
    assert row.latency_ms == 7.5
    assert row.allocated_mb == pytest.approx(2e9 / 2**20)  # published in 10^6 bytes
    assert row.image is None
    assert row.notes == "careful"


@pytest.mark.parametrize(("kind", "unit"), [("nvidia-smi", "MiB"), ("max_memory_allocated", "unknown")])
def test_memory_counts_only_where_it_is_the_allocators_in_a_known_unit(tmp_path: Path, kind: str, unit: str) -> None:
    text = f"s,a/b,C,Card,,torch 2.2.0,float16,fp16,,inference,,4,,224,,,7.5,2000,{kind},{unit},,,"
    (row,) = read_published(write(tmp_path, text))
    assert row.allocated_mb is None
    assert row.image == (224, 224)


def test_configurations_and_digest(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert read_configurations(folder) == {"a/b": {"layers": 3}, "c/d": {}, "e/f": {}}
    before = digest_published(folder)
    write(tmp_path, "s,a/b,C,Card,,,float16,fp16,,inference,,4,,224,,,7.5,,,,,,")
    assert digest_published(folder) != before


def test_a_missing_table_says_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"transformers_docs\.csv") as caught:
        read_published(tmp_path)
    assert caught.value.code == "data.missing"


def test_every_row_of_the_repository_is_sound() -> None:
    rows = read_published(FOLDER)
    assert len(rows) > 1000
    assert {row.mode for row in rows} == {"inference", "prefill", "decode", "training"}
    assert all(row.latency_ms is None or 0.5 < row.latency_ms < 1e5 for row in rows)
    assert all(row.allocated_mb is None or 10 < row.allocated_mb < 82_000 for row in rows)
    whole = Counter(
        (row.source, row.model, row.model_class, row.device, row.software, row.precision, row.attention, row.mode,
         row.optimizer, row.batch, row.sequence, row.image, row.past_tokens, row.notes, row.latency_ms)
        for row in rows
    )  # fmt: skip
    assert max(whole.values()) == 1


def test_rows_with_energy_are_those_of_all_tables(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        "s,a/b,C,Card,,,float16,fp16,,inference,,4,,224,,,7.5,,,,200,1.5,",
        "s,a/b,C,Card,,,,,,,,1,,,,,2,,,,,,",
    )
    with pytest.raises(UsageError, match=r"power\.csv"):
        read_published_power(folder)
    (folder / "power.csv").write_text(HEADER + "p,c/d,C,Card,,,,,,inference,,2,8,,,,3,,,,100,0.3,\n", encoding="utf-8")
    assert [(row.source, row.energy_j) for row in read_published_power(folder)] == [("s", 1.5), ("p", 0.3)]


def test_every_power_of_the_repository_is_energy_over_time() -> None:
    with (FOLDER / "power.csv").open(newline="", encoding="utf-8") as stream:
        records = list(csv.DictReader(stream))
    assert len(records) == 63
    for record in records:
        power = 1e3 * float(record["energy_j"]) / float(record["latency_ms"])
        assert power == pytest.approx(float(record["average_power_w"]), rel=2e-4)
        assert 100 < power < 400


def test_held_out_power_is_sound_and_stands_apart() -> None:
    with (FOLDER / "power_held_out.csv").open(newline="", encoding="utf-8") as stream:
        records = list(csv.DictReader(stream))
    assert ",".join(records[0]) == HEADER.strip()
    for record in records:
        power = 1e3 * float(record["energy_j"]) / float(record["latency_ms"])
        assert power == pytest.approx(float(record["average_power_w"]), rel=2e-4)
        assert 30 < power < 400
    rows = read_held_out_power(FOLDER)
    assert len(rows) == 19
    assert {row.source for row in rows} & {row.source for row in read_published_power(FOLDER)} == set()
    named = {row.model for row in rows if row.image is None}
    assert set(read_held_out_configurations(FOLDER)) == named


def test_the_sources_are_told_in_the_readme() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    with_energy = [*read_published_power(FOLDER), *read_held_out_power(FOLDER)]
    assert {row.source for row in with_energy if row.source not in text} == set()
    beginnings = {row.source for row in read_published(FOLDER)}
    missing = {name for name in beginnings if name not in text and name.removesuffix("-compiled") not in text}
    assert {name for name in missing if not name.startswith("transformers-docs-")} == set()
    assert {
        name for name in missing if f"-{name.removeprefix('transformers-docs-').split('-')[0]}" not in text
    } == set()


def test_slices_are_sound_and_stand_apart() -> None:
    with (FOLDER / "mig.csv").open(newline="", encoding="utf-8") as stream:
        records = list(csv.DictReader(stream))
    assert ",".join(records[0]) == HEADER.strip()
    rows = read_mig_slices(FOLDER)
    assert len(rows) == 269
    assert all("g." in row.device.partition("@")[0] for row in rows)
    assert {row.source for row in rows} & {row.source for row in read_published(FOLDER)} == set()
    whole = Counter((row.source, row.model, row.model_class, row.device, row.batch, row.sequence) for row in rows)
    assert max(whole.values()) == 1
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert {row.source for row in rows if f"`{row.source}`" not in text} == set()


def test_examples_are_sound_and_stand_apart() -> None:
    with (FOLDER / "deep_learning_examples.csv").open(newline="", encoding="utf-8") as stream:
        records = list(csv.DictReader(stream))
    assert ",".join(records[0]) == HEADER.strip()
    rows = read_deep_learning_examples(FOLDER)
    assert len(rows) == 179
    assert all(row.model.startswith("dle:") and row.latency_ms for row in rows)
    others = [*read_published(FOLDER), *read_published_power(FOLDER), *read_mig_slices(FOLDER)]
    assert {row.source for row in rows} & {row.source for row in others} == set()
    whole = Counter((row.model, row.device, row.precision, row.mode, row.batch, row.sequence) for row in rows)
    assert max(whole.values()) == 1
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert {row.source for row in rows if f"`{row.source.removesuffix('-training')}`" not in text} == set()


@pytest.mark.parametrize(("kind", "unit", "used"), [("dcgm-fb-used", "MiB", 2000), ("nvidia-smi", "MiB", None)])
def test_memory_in_use_on_a_slice_is_dcgms(tmp_path: Path, kind: str, unit: str, used: float | None) -> None:
    row = f"s,a/b,C,1g.5gb@Card,,,float16,fp16,,inference,,4,,224,,,7.5,2000,{kind},{unit},,,"
    (tmp_path / "mig.csv").write_text(HEADER + row + "\n", encoding="utf-8")
    (read,) = read_mig_slices(tmp_path)
    assert (read.used_mb, read.allocated_mb) == (used, None)
