from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import dippm
from dippm.api import sweep_plan
from dippm.api.sweeping import sweep
from dippm.cluster.connection import ClusterResources
from dippm.cluster.sweep import RaySweep
from dippm.errors import MissingExtraError, UsageError
from dippm.graph import OpKind

# Ray warns of its own defaults.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

LIMIT_S = 120
ASKED: dict[str, Any] = {"batch": range(1, 60), "device": ["A100", "T4"]}


@pytest.fixture(name="models")
def _models(tmp_path: Path, new_builder: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Twenty small graphs and a file that is none; ten tasks to a part."""
    monkeypatch.setattr(sweep_plan, "_TASKS_PER_PART", 2)
    models = []
    for number in range(20):
        builder = new_builder()
        value = builder.input(builder.N, 64)
        for _ in range(number % 5 + 1):
            value = builder.node(OpKind.LINEAR, [value, builder.weight(64, 64)], builder.N, 64)
        models.append(str(tmp_path / f"{number:02d}.json.gz"))
        dippm.save_graph(builder.graph(), models[-1])
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    return [*models[:10], str(tmp_path / "bad.onnx"), *models[10:]]


@pytest.fixture(name="many_models")
def _many_models(models: list[str]) -> list[str]:
    """The same again and again: work for a quarter of a minute."""
    return models * 8


@pytest.fixture(name="undisturbed")
def _undisturbed(models: list[str], tmp_path: Path) -> Path:
    """The table that one process writes."""
    sweep(models, out=tmp_path / "undisturbed.parquet", jobs=1, **ASKED)
    return tmp_path / "undisturbed.parquet"


@pytest.mark.timeout(300)
def test_a_client_of_the_cluster_gets_the_same_table(
    two_nodes: Any, models: list[str], undisturbed: Path, tmp_path: Path
) -> None:
    """From outside the cluster, with its token."""
    words = ["sweep", *models, "--out", str(tmp_path / "t.parquet"), "--batch", ",".join(map(str, ASKED["batch"]))]
    words += ["--device", ",".join(ASKED["device"]), "--cluster", two_nodes.client_address, "--jobs", "1", "--json"]
    process = subprocess.run(
        [sys.executable, "-m", "dippm", *words], check=False, capture_output=True, text=True, timeout=200
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert json.loads(process.stdout)["sweep"]["workers"] == 1
    assert (tmp_path / "t.parquet").read_bytes() == undisturbed.read_bytes()


@pytest.mark.usefixtures("ray_cluster")
def test_a_cluster_writes_the_same_table_and_nothing_else(
    models: list[str], undisturbed: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "t.parquet"
    report = sweep(models, out=out, open_runner=RaySweep("auto"), jobs=2, **ASKED)
    assert (report.workers, report.errors, report.rows) == (2, 1, 20 * 59 * 2 + 1)
    assert out.read_bytes() == undisturbed.read_bytes()
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("ray_cluster")
def test_a_killed_ray_worker_costs_nothing(models: list[str], undisturbed: Path, tmp_path: Path) -> None:
    out, killed = tmp_path / "t.parquet", set[int]()

    def kill(progress: dippm.api.SweepProgress) -> None:
        if progress.models >= 4 and not killed:
            workers = _predictors()
            assert workers
            killed.add(workers[0])
            os.kill(workers[0], signal.SIGKILL)

    report = sweep(models, out=out, open_runner=RaySweep("auto"), jobs=2, on_progress=kill, **ASKED)
    assert killed
    assert report.errors == 1
    assert out.read_bytes() == undisturbed.read_bytes()


SCRIPT = """
import os, sys
os.environ["RAY_BACKEND_LOG_LEVEL"] = "fatal"
import ray
address, out, *models = sys.argv[1:]
if address == "auto":
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=128 * 2**20, log_to_driver=False,
             logging_level="ERROR")
from dippm.api import sweep_plan
from dippm.api.sweeping import sweep
from dippm.cluster.sweep import RaySweep
sweep_plan._TASKS_PER_PART = 2
sweep(models, out=out, batch=range(1, 60), device=["A100", "T4"], open_runner=RaySweep(address), jobs=2,
      on_progress=lambda progress: print(progress.models, flush=True))
"""


def start_and_wait_for_a_part(
    address: str, models: list[str], out: Path, environment: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[str], Path]:
    """A sweep in a process of its own, and its first finished part."""
    words = [sys.executable, "-c", SCRIPT, address, str(out), *models]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    assert process.stdout is not None
    # Parts are ready in any order, because the workers are.
    while not (parts := sorted(out.with_name(f"{out.name}.parts").glob("*.parquet"))):
        assert int(process.stdout.readline()) < len(models)
    return process, parts[0]


def test_a_sweep_whose_driver_was_killed_is_resumed(models: list[str], undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    process, part = start_and_wait_for_a_part("auto", models, out)
    process.kill()
    process.communicate(timeout=LIMIT_S)
    # Of two models, at 59 batches on 2 devices; the one that cannot be read has a single row.
    assert pyarrow.parquet.read_table(part).num_rows in (2 * 59 * 2, 59 * 2 + 1)
    report = sweep(models, out=out, jobs=1, resume=True, **ASKED)
    assert 0 < report.resumed_models < len(models)
    assert out.read_bytes() == undisturbed.read_bytes()


def test_a_sweep_whose_head_was_killed_goes_on_elsewhere(
    doomed_nodes: Any, many_models: list[str], tmp_path: Path
) -> None:
    out, undisturbed = tmp_path / "t.parquet", tmp_path / "undisturbed.parquet"
    sweep(many_models, out=undisturbed, jobs=1, **ASKED)
    process, _ = start_and_wait_for_a_part(doomed_nodes.address, many_models, out, doomed_nodes.environment)
    doomed_nodes.tell("behead")
    process.communicate(timeout=LIMIT_S)
    assert process.returncode != 0
    assert not out.exists()
    report = sweep(many_models, out=out, jobs=1, resume=True, **ASKED)
    assert 0 < report.resumed_models < len(many_models)
    assert out.read_bytes() == undisturbed.read_bytes()


@pytest.mark.parametrize(("jobs", "workers"), [(None, 6), (3, 3), (100, 6)])
def test_there_are_no_more_workers_than_cores(monkeypatch: pytest.MonkeyPatch, jobs: int | None, workers: int) -> None:
    resources = ClusterResources(nodes=2, cpus=6, gpus=0, is_own=False)
    monkeypatch.setattr("dippm.cluster.sweep.connected_cluster", lambda *_, **__: nullcontext(resources))
    settings: Any = None
    with RaySweep("auto")(settings, jobs=jobs, limit_s=1.0) as runner:
        assert runner.workers == workers


def test_a_cluster_that_is_not_there_leaves_nothing(
    models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(UsageError) as caught:
        sweep(models, out=tmp_path / "t.parquet", open_runner=RaySweep("127.0.0.1:1"), **ASKED)
    assert caught.value.code == "cluster.unreachable"
    assert not list(tmp_path.glob("t.parquet*"))


def _predictors() -> list[int]:
    """Ray workers of this process's cluster that predict."""
    found = []
    for pid in _descendants(os.getpid()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if words.startswith(b"ray::") and b"_Predictor" in words:
            found.append(pid)
    return found


def _descendants(pid: int) -> list[int]:
    children: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += map(int, listed.read_text().split())
        except OSError:
            continue
    return [each for child in children for each in (child, *_descendants(child))]


def test_without_ray_the_extra_is_named_before_anything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError) as caught:
        RaySweep("auto")
    assert caught.value.extra == "ray"
