"""``dippm dataset``: campaigns, tables and collections, with a device that answers at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dippm.cli import main
from dippm.cluster import campaign
from dippm.datasets.campaign import run as campaign_run
from dippm.datasets.campaign.fleet import Answer, Member
from dippm.datasets.recipes.collections import load_collection
from dippm.datasets.store.label import PREDICTED_SOURCE
from dippm.datasets.store.parquet import read_parquet

pytestmark = pytest.mark.usefixtures("fake_worker")

_MEASURE = ("measure", "--recipe", "cpu-small", "--store", "s.sqlite", "--limit", "1")
_PREDICT = ("predict", "--recipe", "cpu-small", "--cache", "graphs")


def test_a_campaign_from_start_to_statistics(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    run_json: Callable[..., dict[str, Any]],
    run_noted_columns: Callable[..., tuple[list[dict[str, str]], str]],
) -> None:
    store, out = str(tmp_path / "labels.sqlite"), tmp_path / "out"
    campaign = ("dataset", "measure", "--recipe", "cpu-small", "--store", store, "--limit", "9", "--out", str(out))
    report = run_json(*campaign, "--mode", "inference,training", "--budget", "5m")
    assert report["measured"] >= 18
    assert report["device"] == "Processor"
    saved = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert saved == {key: value for key, value in report.items() if key != "schema"}
    assert "18" in (out / "report.txt").read_text(encoding="utf-8")

    assert main([*campaign, "--mode", "training"]) == 2
    assert "campaign.not_resumed" in capsys.readouterr().err
    again = run_json(*campaign, "--mode", "inference,training", "--resume")
    assert (again["measured"], again["found"]) == (0, report["measured"])
    assert main([*campaign, "--mode", "inference,training", "--resume"]) == 0
    assert "0 measured" in capsys.readouterr().out

    table = str(tmp_path / "labels.parquet")
    assert run_json("dataset", "export", store, table)["rows"] == report["measured"]
    other = str(tmp_path / "other.sqlite")
    assert run_json("dataset", "import", table, "--store", other)["added"] == report["measured"]
    statistics = run_json("dataset", "stats", other, "--plots", str(tmp_path / "plots"))
    assert statistics["rows"] == report["measured"]
    assert all(Path(path).exists() for path in statistics["plots"])
    assert statistics["plots"]
    rows, err = run_noted_columns("dataset", "stats", table)
    assert sum(int(row["rows"]) for row in rows) == report["measured"]
    assert {row["mode"] for row in rows} == {"inference", "training"}
    assert f"{report['measured']} labels" in err


@pytest.mark.parametrize("json_option", [(), ("--json",)])
def test_a_campaign_that_an_error_ends_leaves_its_report(
    json_option: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    run_json: Callable[..., dict[str, Any]],
    fake_worker: Any,
) -> None:
    monkeypatch.setattr(fake_worker, "is_gone", True)
    monkeypatch.setattr(campaign_run, "_START_PAUSES_S", (0.0,))
    words = ("dataset", "measure", "--recipe", "cpu-small", "--store", str(tmp_path / "labels.sqlite"), "--limit", "3")
    assert main([*words, "--no-graphs", "--row-limit", "20s", "--out", str(tmp_path / "out"), *json_option]) == 4
    printed = capsys.readouterr()
    assert "The device is gone." in printed.out + printed.err
    if json_option:
        assert json.loads(printed.out)["error"]["code"] == "device.unavailable"
    else:
        assert "failed after" in printed.out
    saved = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert (saved["stopped"], saved["measured"], saved["remaining"]) == ("failed", 0, 3)
    assert "failed after" in (tmp_path / "out" / "report.txt").read_text(encoding="utf-8")
    # With the device back, the same command and --resume go on.
    monkeypatch.setattr(fake_worker, "is_gone", False)
    assert run_json(*words, "--resume", "--retry", "failed,timed-out")["measured"] >= 3


@pytest.mark.parametrize("json_option", [(), ("--json",)])
@pytest.mark.parametrize(
    ("number", "status", "stopped"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_campaign_that_a_signal_ends_says_so_and_leaves_its_report(
    number: signal.Signals,
    status: int,
    stopped: str,
    json_option: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fake_worker: Any,
) -> None:
    def interrupted(self: Any, source: Any, configurations: Sequence[Any]) -> Iterator[Any]:
        os.kill(os.getpid(), number)
        yield from measure(self, source, configurations)

    measure = fake_worker.measure
    monkeypatch.setattr(fake_worker, "measure", interrupted)
    words = ["dataset", "measure", "--recipe", "cpu-small", "--store", str(tmp_path / "labels.sqlite"), "--limit", "3"]
    words += ["--out", str(tmp_path / "out"), *json_option]
    assert main(words) == status
    printed = capsys.readouterr()
    assert f"{stopped.capitalize()}. The same command with --resume goes on." in printed.err
    assert json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["remaining"] == 3
    if json_option:
        assert json.loads(printed.out)["stopped"] == stopped
    else:
        assert f"{stopped} after" in printed.out
    # A budget that is spent is what was asked for.
    monkeypatch.setattr(fake_worker, "measure", measure)
    assert main([*words, "--resume", "--budget", "0.000001s"]) == 0
    assert "budget spent" in capsys.readouterr().out


def test_what_is_predicted_of_a_collection_becomes_labels(
    tmp_path: Path, run_json: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "predicted.parquet"
    words = ["dataset", "predict", "--recipe", "cpu-small", "--cache", str(tmp_path / "graphs"), "--out", str(out)]
    words += ["--device", "a100", "--precision", "amp", "--software", "torch 2.4+cu121", "--limit", "3", "--jobs", "1"]
    assert run_json(*words) == {"schema": 1, "path": str(out), "rows": 3}
    labels = list(read_parquet(out))
    assert [label.recipe for label in labels] == list(load_collection("cpu-small")[:3])
    assert {label.source for label in labels} == {PREDICTED_SOURCE}
    assert {label.measurement.device for label in labels} == {"A100-SXM4-40GB"}
    assert {str(label.configuration.conditions.precision) for label in labels} == {"amp"}
    # The same question gives the same file, and a terminal is told where it lies.
    before = out.read_bytes()
    assert main(words) == 0
    assert f"3 predicted labels are in {out}." in capsys.readouterr().err
    assert out.read_bytes() == before


def test_collections_are_listed(
    run_json: Callable[..., dict[str, Any]], run_noted_columns: Callable[..., tuple[list[dict[str, str]], str]]
) -> None:
    collections = {each["name"]: each for each in run_json("dataset", "recipes")["collections"]}
    rows, _ = run_noted_columns("dataset", "recipes")
    for name, entry in collections.items():
        assert sum(int(row["recipes"]) for row in rows if row["collection"] == name) == entry["recipes"]


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("measure", "--recipe", "no-such", "--store", "s.sqlite"), 2, "collection.unknown"),
        (("measure", "--recipe", "cpu-small", "--store", "s.sqlite", "--budget", "soon"), 2, "duration.invalid"),
        (("measure", "--recipe", "cpu-small", "--store", "s.sqlite", "--mode", ","), 2, "usage.invalid"),
        (("measure", "--recipe", "cpu-small", "--store", "none/s.sqlite"), 2, "store.unreachable"),
        ((*_MEASURE, "--out", "file/out"), 2, "report.unwritable"),
        ((*_MEASURE, "--out", "file"), 2, "report.unwritable"),
        ((*_MEASURE, "--out", "full"), 2, "report.unwritable"),
        ((*_MEASURE, "--runtime", "cuda-graph"), 4, "runtime.unsupported"),
        (("stats", "none.sqlite"), 2, "labels.missing"),
        ((*_PREDICT, "--out", "p.csv", "--device", "A100"), 2, "labels.name"),
        ((*_PREDICT, "--out", "p.parquet", "--device", "A1000000"), 4, "device.unknown"),
        ((*_PREDICT, "--out", "p.parquet", "--device", "A100", "--optimizer", "sgd"), 2, "optimizer.unused"),
        (
            (*_PREDICT, "--out", "p.parquet", "--device", "B200", "--software", "torch 1.12+cu113"),
            4,
            "software.impossible",
        ),
        (("export", "none.sqlite", "out.parquet"), 2, "labels.missing"),
        (("import", "none.parquet", "--store", "s.sqlite"), 2, "parquet.missing"),
        (("graphs", "--recipe", "no-such", "--cache", "c"), 2, "collection.unknown"),
    ],
)
def test_wrong_use_is_an_error_and_leaves_nothing_behind(
    words: tuple[str, ...],
    status: int,
    code: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "full" / "report.txt").mkdir(parents=True)
    assert main(["dataset", *words, "--json"]) == status
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    assert not list(tmp_path.glob("*.sqlite"))
    assert not list(tmp_path.glob("out.parquet"))
    assert not (tmp_path / "none").exists()


def test_a_model_is_no_store(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dataset", "stats", net]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"Error: There are no labels in '{net}': it is no label store. Give a store that")
    assert error.endswith("[store.not_a_store]\n")


class StillFleet:
    """Two devices that answer at once."""

    device_name = "H200"
    busy_s = 0.0

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._answers: list[Answer] = []

    def members(self) -> Sequence[Member]:
        return [Member(name=name, place=name) for name in ("first", "second")]

    def submit(self, member: Member, source: Any, configuration: Any) -> None:
        with self._make() as worker:
            (measurement,) = worker.measure(source, [configuration])
        self._answers.append(Answer(member=member, measurement=measurement))

    def wait(self, timeout_s: float) -> list[Answer]:
        answers, self._answers = self._answers, []
        return answers

    def set_aside(self, place: str) -> bool:
        return True


def test_a_campaign_on_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[tuple[Any, ...]] = []

    @contextmanager
    def open_fleet(address: str, make: Any, *, device: str, kind: str | None) -> Iterator[StillFleet]:
        opened.append((address, device, kind))
        # As Ray does when a machine is lost.
        sys.stdout.write("A raylet is terminated.\n")
        yield StillFleet(make)

    monkeypatch.setattr(campaign, "ray_fleet", open_fleet)
    words = ["dataset", "measure", "--recipe", "cpu-small", "--store", str(tmp_path / "labels.sqlite"), "--limit", "9"]
    words += ["--device", "cuda", "--cluster", "ray://head:10001", "--kind", "h200", "--json"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert printed.err == "A raylet is terminated.\n"
    report = json.loads(printed.out)
    assert opened == [("ray://head:10001", "cuda", "h200")]
    assert (report["device"], report["stopped"], report["remaining"]) == ("H200", "finished", 0)
    assert (report["measured"], report["fleet"]["devices"]) == (report["planned"], 2)


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("--kind", "h200"), 2, "kind.unused"),
        (("--cluster", "auto", "--device", "cuda:1"), 2, "cluster.device"),
    ],
)
def test_wrong_use_of_a_cluster(
    words: tuple[str, ...], status: int, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "labels.sqlite"
    campaign = ["dataset", "measure", "--recipe", "cpu-small", "--store", str(store), "--json"]
    assert main([*campaign, *words]) == status
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    assert not store.exists()


def test_without_ray_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["dataset", "measure", "--recipe", "cpu-small", "--store", str(tmp_path / "labels.sqlite"), "--json"]
    assert main([*words, "--cluster", "auto"]) == 5
    assert "dippm[ray]" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_one_machine_needs_no_ray(tmp_path: Path) -> None:
    code = f"""
import sys
from dippm.cli import main
words = "dataset measure --recipe cpu-small --limit 1 --row-limit 30s --store {tmp_path / "labels.sqlite"} --no-graphs"
assert main(words.split()) == 0
assert not [name for name in sys.modules if name.partition(".")[0] == "ray" or name.startswith("dippm.cluster")]
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)
