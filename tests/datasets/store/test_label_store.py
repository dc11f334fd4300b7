"""What a store promises, held to by SQLite and by PostgreSQL alike."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dippm.datasets.store import label_store
from dippm.datasets.store.label import Label
from dippm.datasets.store.label_store import LabelStore
from dippm.errors import DippmError, UsageError
from dippm.measuring.measurement import Outcome

Maker = Callable[..., Label]
PROGRAM = Path(__file__).with_name("adding_program.py")


def run_program(target: str, first: int, last: int) -> "subprocess.Popen[str]":
    words = [sys.executable, str(PROGRAM), target, str(first), str(last)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_what_goes_in_comes_out(target: str, make_label: Maker, rich_label: Label) -> None:
    labels = [rich_label, make_label(1), make_label(2, outcome=Outcome.OUT_OF_MEMORY, latency_ms=None)]
    with LabelStore.open(target) as store:
        assert len(store) == 0
        assert store
        assert [store.add(label) for label in labels] == [True, True, True]
        assert list(store.labels()) == labels
    with LabelStore.open(target) as store:
        assert list(store.labels()) == labels
        assert store.keys() == {label.key for label in labels}
        assert len(store) == 3
        assert rich_label.key in store
        assert "0" * 16 not in store


def test_the_first_label_of_a_key_stays(target: str, make_label: Maker) -> None:
    with LabelStore.open(target) as store:
        assert store.add(make_label(1, latency_ms=1.0))
        assert not store.add(make_label(1, latency_ms=2.0))
        assert store.add(make_label(1, latency_ms=2.0, repeat=1))
        assert [label.measurement.latency_ms for label in store.labels()] == [1.0, 2.0]


def test_labels_are_removed_by_their_keys(target: str, make_label: Maker) -> None:
    with LabelStore.open(target) as store:
        store.add_all(make_label(number, latency_ms=1.0) for number in range(1, 5))
        first, _, third, fourth = [label.key for label in store.labels()]
        store.remove([])
        assert len(store) == 4
        store.remove([first, third, "0" * 16])
        assert [label.key for label in store.labels()][1:] == [fourth]
        # What was removed may come again.
        assert store.add(make_label(1, latency_ms=2.0))
        assert len(store) == 3


def test_many_at_once_keep_their_order_and_count_the_new(
    target: str, make_label: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_store, "_PAGE", 7)
    labels = [make_label(number) for number in range(40)]
    with LabelStore.open(target) as store:
        store.add(labels[11])
        assert store.add_all(labels + labels[:5]) == 39
        assert list(store.labels()) == [labels[11], *labels[:11], *labels[12:]]
        assert store.add_all(iter(labels)) == 0


def test_filters(target: str, make_label: Maker) -> None:
    labels = [make_label(1), make_label(2, device="H200"), make_label(3, source="timm torch 2.4.0")]
    with LabelStore.open(target) as store:
        store.add_all(labels)
        assert list(store.labels()) == labels
        assert list(store.labels(device="H200")) == [labels[1]]
        assert list(store.labels(source="timm torch 2.4.0")) == [labels[2]]
        assert list(store.labels(device="H200", source="timm torch 2.4.0")) == []
        assert list(store.labels(device=labels[0].measurement.device, source=labels[0].source)) == [labels[0]]


def test_a_graph_hash_reaches_all_labels_of_its_model(target: str, make_label: Maker) -> None:
    labels = [make_label(1, batch=1), make_label(1, batch=2), make_label(2)]
    with LabelStore.open(target) as store:
        store.add_all(labels)
        assert store.set_graph_hash(labels[0].recipe.model_key, "ab" * 16) == 2
        assert store.set_graph_hash("unknown", "cd" * 16) == 0
        assert [label.graph_hash for label in store.labels()] == ["ab" * 16, "ab" * 16, ""]
        assert store.keys() == {label.key for label in labels}


def test_labels_may_be_added_while_others_are_read(
    target: str, make_label: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_store, "_PAGE", 2)
    with LabelStore.open(target) as store, LabelStore.open(target) as other:
        store.add_all(make_label(number) for number in range(5))
        reader = store.labels()
        next(reader)
        assert store.add(make_label(10))
        assert other.add(make_label(11))
        assert len(list(reader)) == 6


def test_a_refused_label_leaves_nothing_and_the_store_usable(target: str, make_label: Maker) -> None:
    with LabelStore.open(target) as store:
        with pytest.raises(UsageError):
            store.add_all([make_label(1), make_label(2, latency_ms=float("nan"))])
        assert len(store) == 0
        assert store.add(make_label(1))


def test_a_store_of_another_schema_is_refused(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(label_store, "SCHEMA_VERSION", 2)
        LabelStore.open(target).close()
    with pytest.raises(DippmError, match="schema 2; this dippm reads schema 1") as caught:
        LabelStore.open(target)
    assert caught.value.code == "store.schema"


def test_two_processes_at_once(target: str) -> None:
    programs = [run_program(target, 0, 40), run_program(target, 20, 60)]
    lines = []
    for program in programs:
        output, _ = program.communicate(timeout=100)
        assert program.returncode == 0
        lines += output.splitlines()
    added = [line for line in lines if line.endswith(" 1")]
    assert len(added) == 60
    assert len(set(added)) == 60
    with LabelStore.open(target) as store:
        assert store.keys() == {line.split()[0] for line in added}


def test_kill_at_any_moment_loses_nothing_and_doubles_nothing(target: str) -> None:
    draw = random.Random(7)  # noqa: S311
    committed: set[str] = set()
    for _ in range(3):
        with run_program(target, 0, 10_000) as program:
            assert program.stdout is not None
            program.stdout.readline()
            time.sleep(draw.uniform(0.0, 0.4))
            program.send_signal(signal.SIGKILL)
            output = program.stdout.read()
        whole = [line for line in output.splitlines(keepends=True) if line.endswith("\n")]
        committed |= {line.split()[0] for line in whole}
        with LabelStore.open(target) as store:
            keys = store.keys()
            assert committed <= keys
            # At most the label under way was committed and not yet said.
            assert len(keys) <= len(committed) + 1
            assert len(list(store.labels())) == len(keys)
            committed = keys
    assert committed


def test_kill_while_the_store_is_made(sqlite_target: str) -> None:
    for delay_s in (0.0, 0.2, 0.4):
        with run_program(sqlite_target, 0, 1) as program:
            time.sleep(delay_s)
            program.send_signal(signal.SIGKILL)
    with LabelStore.open(sqlite_target) as store:
        assert len(store) <= 1
