"""Campaigns on a Ray cluster of two nodes: processes, nodes and the driver itself are killed under way."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dippm.datasets.campaign.plan import Request, make_plan
from dippm.datasets.recipes.collections import load_collection
from dippm.datasets.store.label_store import LabelStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
MODELS = 40
# Long enough to disturb a campaign in the middle; what is left is then done in a hurry.
ROW_S = 0.1
LIMIT_S = 240


def start(two_nodes: Any, store: Path, journal: Path, *, row_s: float = ROW_S) -> subprocess.Popen[str]:
    arguments = [two_nodes.address, str(store), str(journal), str(MODELS), str(row_s)]
    return subprocess.Popen(
        [sys.executable, str(HERE / "clustered_campaign.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=two_nodes.environment,
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, int, int, int, int]:
    """Why it stopped; rows measured and not tried; devices and losses."""
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    *stopped, measured, not_tried, devices, lost = out.splitlines()[-1].split()
    return " ".join(stopped), int(measured), int(not_tried), int(devices), int(lost)


def rows(store: Path) -> list[tuple[Any, ...]]:
    """Key, outcome, repeat and latency of every row, sorted."""
    connection = sqlite3.connect(store)
    try:
        return sorted(connection.execute("SELECT key, outcome, repeat, latency_ms FROM labels"), key=repr)
    finally:
        connection.close()


def hurry(journal: Path) -> None:
    """From now on rows take no time."""
    journal.with_name("hurry").touch()


def measured_by(journal: Path) -> list[int]:
    """Ids of the processes that measured, one for each row."""
    return [int(line) for line in journal.read_text(encoding="utf-8").split()] if journal.exists() else []


def wait_for(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Until a campaign is so far; one that has ended before, or takes too long, fails with what it said."""
    until = time.monotonic() + LIMIT_S
    while not condition():
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            pytest.fail("\n".join(process.communicate()))
        time.sleep(0.02)


@pytest.fixture(name="undisturbed", scope="module")
def _undisturbed(two_nodes: Any, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    process = start(two_nodes, folder / "labels.sqlite", folder / "journal.txt", row_s=0.0)
    stopped, measured, not_tried, devices, lost = finish(process)
    found = rows(folder / "labels.sqlite")
    assert (stopped, measured, devices, lost) == ("finished", len(found), 2, 0)
    assert len(found) + not_tried == 4 * MODELS + sum(repeat for _, _, repeat, _ in found)
    assert {outcome for _, outcome, _, _ in found} == {"ok", "failed", "out-of-memory"}
    return found


def test_a_killed_process_is_replaced_and_its_rows_are_done(
    two_nodes: Any, undisturbed: list[Any], tmp_path: Path
) -> None:
    store, journal = tmp_path / "labels.sqlite", tmp_path / "journal.txt"
    process = start(two_nodes, store, journal)
    wait_for(process, lambda: len(measured_by(journal)) > 30)
    os.kill(measured_by(journal)[-1], signal.SIGKILL)
    wait_for(process, lambda: len(set(measured_by(journal))) == 3)
    hurry(journal)
    stopped, _, _, _, lost = finish(process)
    assert (stopped, lost) == ("finished", 1)
    assert rows(store) == undisturbed
    assert len(set(measured_by(journal))) == 3


def test_a_process_that_hangs_is_found_out_by_its_silence(
    two_nodes: Any, undisturbed: list[Any], tmp_path: Path
) -> None:
    store, journal = tmp_path / "labels.sqlite", tmp_path / "journal.txt"
    process = start(two_nodes, store, journal)
    wait_for(process, lambda: len(measured_by(journal)) > 30)
    os.kill(measured_by(journal)[-1], signal.SIGSTOP)
    hurry(journal)
    stopped, _, _, _, lost = finish(process)
    # Either its silence gave it away, or an idle device had done its rows before.
    assert stopped == "finished"
    assert lost <= 1
    assert rows(store) == undisturbed


def test_a_killed_driver_loses_the_rows_under_way_alone(two_nodes: Any, undisturbed: list[Any], tmp_path: Path) -> None:
    store, journal = tmp_path / "labels.sqlite", tmp_path / "journal.txt"
    process = start(two_nodes, store, journal)
    wait_for(process, lambda: len(measured_by(journal)) > 40)
    process.kill()
    process.communicate(timeout=LIMIT_S)
    before, kept = len(measured_by(journal)), len(rows(store))
    assert 30 < kept < len(undisturbed)
    # Rows that failed are measured twice before they are kept.
    failed = sum(outcome == "failed" for _, outcome, _, _ in undisturbed)
    assert before - kept <= 2 + failed
    hurry(journal)
    stopped, measured, _, devices, _ = finish(start(two_nodes, store, journal))
    assert (stopped, measured, devices) == ("finished", len(undisturbed) - kept, 2)
    assert rows(store) == undisturbed


def test_a_campaign_whose_head_was_killed_goes_on_elsewhere(
    doomed_nodes: Any, two_nodes: Any, undisturbed: list[Any], tmp_path: Path
) -> None:
    store, journal = tmp_path / "labels.sqlite", tmp_path / "journal.txt"
    process = start(doomed_nodes, store, journal)
    wait_for(process, lambda: len(measured_by(journal)) > 40)
    doomed_nodes.tell("behead")
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode not in (None, 0), err
    kept = len(rows(store))
    assert 30 < kept < len(undisturbed)
    hurry(journal)
    stopped, measured, _, devices, _ = finish(start(two_nodes, store, journal))
    assert (stopped, measured, devices) == ("finished", len(undisturbed) - kept, 2)
    assert rows(store) == undisturbed


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_ends_it_with_the_report(number: signal.Signals, reason: str, two_nodes: Any, tmp_path: Path) -> None:
    store, journal = tmp_path / "labels.sqlite", tmp_path / "journal.txt"
    process = start(two_nodes, store, journal, row_s=0.2)
    wait_for(process, lambda: len(measured_by(journal)) > 6)
    process.send_signal(number)
    stopped, measured, _, _, _ = finish(process)
    assert (stopped, measured) == (reason, len(rows(store)))


def test_a_node_may_go_and_another_come(two_nodes: Any, undisturbed: list[Any], tmp_path: Path) -> None:
    store, journal = tmp_path / "labels.sqlite", tmp_path / "journal.txt"
    process = start(two_nodes, store, journal, row_s=0.2)
    wait_for(process, lambda: len(set(measured_by(journal))) == 2)
    two_nodes.tell("remove")
    two_nodes.tell("add")
    # The one that joined takes its share.
    wait_for(process, lambda: [*Counter(measured_by(journal)).values()][2:] > [3])
    hurry(journal)
    stopped, _, _, _, lost = finish(process)
    assert (stopped, lost) == ("finished", 1)
    assert rows(store) == undisturbed
    assert len(set(measured_by(journal))) == 3


def test_a_gpu_that_was_set_aside_stays_so_when_its_holder_dies(gpu_nodes: Any) -> None:
    process = subprocess.run(
        [sys.executable, str(HERE / "clustered_gpus.py"), gpu_nodes.address],
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=gpu_nodes.environment,
    )
    assert process.returncode == 0, process.stderr
    told = json.loads(process.stdout.splitlines()[-1])
    assert len({tuple(where) for where in told["before"]}) == 4
    # The process beside the holder was killed too, so that the one that replaces it might have got the bad GPU.
    assert sorted(told["after"]) == sorted(where for where in told["before"] if where != told["bad"])


def test_the_command_measures_real_models_on_both(two_nodes: Any, tmp_path: Path) -> None:
    store = tmp_path / "labels.sqlite"
    command = ["dataset", "measure", "--recipe", "cpu-small", "--limit", "4", "--mode", "inference,training"]
    process = subprocess.run(
        [sys.executable, "-m", "dippm", *command, "--store", str(store), "--cluster", two_nodes.address, "--json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert report["fleet"]["devices"] == 2
    assert 0 < report["busy_share"] <= 1
    from dippm.costs.conditions import Conditions

    requests = [
        Request(conditions=Conditions()),
        Request(conditions=Conditions.parse(mode="training", optimizer="momentum")),
    ]
    plan = make_plan(load_collection("cpu-small", 0)[:4], requests, device=report["device"])
    with LabelStore.open(store) as labels:
        found = list(labels.labels())
    assert {label.key for label in found} == set(plan.label_keys())
    assert {label.measurement.outcome for label in found} == {"ok"}
    # Ray's own count of threads would have slowed the processor.
    assert {label.measurement.software.threads for label in found} == {threads_of_a_fresh_process()}


def threads_of_a_fresh_process() -> int:
    code = "import torch; print(torch.get_num_threads())"
    return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
