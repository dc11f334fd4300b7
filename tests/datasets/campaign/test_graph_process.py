from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from dippm.datasets.recipes.recipe import Recipe
from dippm.frontends.inputs import InputEntry, InputShapes


def _recipe(architecture: str = "dnnperf:chain", **arguments: Any) -> Recipe:
    given = {"layers": ("conv:4:3:1",), "dense": (), "in_chans": 3, "height": 8, "width": 8, "classes": 2}
    return Recipe(
        collection="test",
        family="chain",
        architecture=architecture,
        arguments=given | arguments,
        inputs=InputShapes(positional=(InputEntry(shape=(3, 8, 8)),)),
        batch=1,
    )


def test_a_line_is_answered_by_a_line_whatever_the_recipe() -> None:
    pytest.importorskip("torch")
    recipes = [_recipe(), _recipe("no:such"), _recipe(layers=("dense:3",)), _recipe(), _recipe(classes=3)]
    process = subprocess.Popen(
        [sys.executable, "-m", "dippm.datasets.campaign.graph_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    answers = []
    for number, recipe in enumerate(recipes):
        process.stdin.write(json.dumps(recipe.to_dict()) + "\n")
        process.stdin.flush()
        answers.append(json.loads(process.stdout.readline()))
        if number == 0:
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
            process.send_signal(signal.SIGINT)  # as the whole group gets it from the keyboard
    rest, _ = process.communicate()
    assert (process.returncode, rest) == (0, "")
    assert [answer["model_key"] for answer in answers] == [recipe.model_key for recipe in recipes]
    hashes = [answer["graph_hash"] for answer in answers]
    assert hashes[0] == hashes[3] != hashes[4]
    assert hashes[1] == hashes[2] == ""
    assert "no:such" in answers[1]["error"]
    assert "dense:3" in answers[2]["error"]
    assert [answers[place]["error"] for place in (0, 3, 4)] == ["", "", ""]
