from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dippm.datasets.store import parquet
from dippm.datasets.store.label import Label
from dippm.datasets.store.label_store import LabelStore
from dippm.datasets.store.parquet import export_parquet, read_parquet
from dippm.errors import DippmError, MissingExtraError, UsageError

Maker = Callable[..., Label]


def test_there_and_back(tmp_path: Path, make_label: Maker, rich_label: Label) -> None:
    labels = [rich_label, make_label(1), make_label(2, latency_ms=None, energy_j=None)]
    path = tmp_path / "a" / "labels.parquet"
    assert export_parquet(iter(labels), path) == 3
    assert list(read_parquet(path)) == labels
    assert [file.name for file in path.parent.iterdir()] == ["labels.parquet"]


@settings(max_examples=30, deadline=None)
@given(
    latency=st.none() | st.floats(min_value=0.0, allow_nan=False, allow_infinity=False),
    message=st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))),
    graph_hash=st.sampled_from(["", "ab" * 16]),
)
def test_any_value_survives(
    tmp_path_factory: pytest.TempPathFactory,
    make_label: Maker,
    latency: float | None,
    message: str,
    graph_hash: str,
) -> None:
    path = tmp_path_factory.mktemp("any") / "labels.parquet"
    label = make_label(latency_ms=latency, message=message, graph_hash=graph_hash)
    export_parquet([label], path)
    assert list(read_parquet(path)) == [label]
    with LabelStore.open(path.with_name("labels.sqlite")) as store:
        store.add(label)
        assert list(store.labels()) == [label]


def test_the_file_says_what_it_is_and_other_programs_read_it(tmp_path: Path, make_label: Maker) -> None:
    path = tmp_path / "labels.parquet"
    export_parquet([make_label(1)], path)
    table = pyarrow.parquet.read_table(path)
    assert table.schema.metadata[b"dippm.labels.schema"] == b"1"
    assert table.column("latency_ms").to_pylist() == [7.25]
    assert table.column("family").to_pylist() == ["resnet"]


def test_many_labels_make_a_small_and_reproducible_file(tmp_path: Path, make_label: Maker) -> None:
    labels = [
        make_label(number, family=f"family {number % 10}", latency_ms=number / 3 + 0.1, energy_j=number / 7)
        for number in range(2000)
    ]
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    export_parquet(labels, first)
    export_parquet(labels, second)
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size < 100 * len(labels)


def test_merging_adds_what_is_new(tmp_path: Path, make_label: Maker) -> None:
    path = tmp_path / "labels.parquet"
    export_parquet([make_label(number) for number in range(5)], path)
    with LabelStore.open(tmp_path / "labels.sqlite") as store:
        store.add(make_label(2, latency_ms=99.0))
        assert store.add_all(read_parquet(path)) == 4
        assert store.add_all(read_parquet(path)) == 0
        assert len(store) == 5
        assert 99.0 in {label.measurement.latency_ms for label in store.labels()}
        copy = tmp_path / "copy.parquet"
        assert export_parquet(store.labels(), copy) == 5
        assert {label.key for label in read_parquet(copy)} == store.keys()


def test_a_failure_leaves_the_old_file(tmp_path: Path, make_label: Maker) -> None:
    path = tmp_path / "labels.parquet"
    export_parquet([make_label(1)], path)

    def failing() -> Iterator[Label]:
        yield make_label(2)
        raise OSError(28, "No space left on device")

    with pytest.raises(DippmError, match="No space left") as caught:
        export_parquet(failing(), path)
    assert caught.value.code == "parquet.unwritable"
    with pytest.raises(UsageError):
        export_parquet([make_label(3, latency_ms=float("nan"))], path)
    assert list(read_parquet(path)) == [make_label(1)]
    assert [file.name for file in tmp_path.iterdir()] == ["labels.parquet"]


def test_files_that_are_refused_at_the_call(tmp_path: Path, make_label: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    def code_of(path: Path) -> str:
        with pytest.raises(UsageError) as caught:
            read_parquet(path)
        return caught.value.code

    path = tmp_path / "file.parquet"
    assert code_of(path) == "parquet.missing"
    path.write_bytes(b"PAR1 and no more")
    assert code_of(path) == "parquet.unreadable"
    pyarrow.parquet.write_table(pyarrow.table({"title": ["a"]}), path)
    assert code_of(path) == "parquet.not_labels"
    with monkeypatch.context() as patch:
        patch.setattr(parquet, "SCHEMA_VERSION", 9)
        export_parquet([make_label(1)], path)
    assert code_of(path) == "parquet.schema"


def test_a_file_damaged_further_in(tmp_path: Path, make_label: Maker) -> None:
    path = tmp_path / "labels.parquet"
    export_parquet([make_label(number, latency_ms=number / 3) for number in range(500)], path)
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 4] = bytes(len(content) // 4 - 4)
    path.write_bytes(content)
    with pytest.raises(UsageError):
        list(islice(read_parquet(path), 500))


def test_no_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pyarrow"):
        export_parquet([], tmp_path / "labels.parquet")


def _saved_again(label: Label, path: Path, change: Callable[[pyarrow.Table], pyarrow.Table]) -> Path:
    """A file as other programs write it, who know the columns alone."""
    export_parquet([label, label], path)
    pyarrow.parquet.write_table(change(pyarrow.parquet.read_table(path)).replace_schema_metadata(None), path)
    return path


def test_a_table_that_was_saved_again_is_read(tmp_path: Path, rich_label: Label) -> None:
    path = _saved_again(rich_label, tmp_path / "labels.parquet", lambda table: table.append_column("x", [["a", "b"]]))
    assert list(read_parquet(path)) == [rich_label, rich_label]


def test_columns_that_are_missing_are_named(tmp_path: Path, rich_label: Label) -> None:
    path = _saved_again(
        rich_label, tmp_path / "labels.parquet", lambda table: table.drop_columns(["batch", "latency_ms"])
    )
    with pytest.raises(UsageError, match=r"lacks the columns batch, latency_ms\. ") as caught:
        read_parquet(path)
    assert caught.value.code == "parquet.not_labels"


def test_text_in_a_column_of_numbers_is_named_with_its_row(tmp_path: Path, rich_label: Label) -> None:
    def as_text(table: pyarrow.Table) -> pyarrow.Table:
        at = table.schema.get_field_index("latency_ms")
        return table.set_column(at, "latency_ms", pyarrow.array([None, "7 ms"]))

    rows = read_parquet(_saved_again(rich_label, tmp_path / "labels.parquet", as_text))
    assert next(rows).measurement.latency_ms is None
    with pytest.raises(UsageError, match=r"^Row 2 of '.*labels.parquet' is no label: latency_ms .*'7 ms'") as caught:
        next(rows)
    assert caught.value.code == "label.invalid"
