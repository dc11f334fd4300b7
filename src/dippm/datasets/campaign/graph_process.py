"""The program that reads graphs beside a campaign: a recipe as JSON per line in, a fingerprint per line out."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TextIO

from dippm.errors import DippmError

__all__ = ["main"]

_LOWEST_PRIORITY = 19


def main() -> None:
    """Answer the lines of stdin on stdout until stdin ends."""
    # It shares the host with a device that is being measured: one thread, the lowest priority, no use of a GPU.
    os.nice(_LOWEST_PRIORITY)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # An interrupt from the keyboard reaches the whole group; the campaign decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    # Whatever libraries print must not stand between the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        _answer(line, answers)


def _answer(line: str, answers: TextIO) -> None:
    from dippm.datasets.graph_cache import read_recipe
    from dippm.datasets.recipes.recipe import Recipe
    from dippm.graph.fingerprint import fingerprint

    recipe = Recipe.from_dict(json.loads(line))
    answer = {"model_key": recipe.model_key, "graph_hash": "", "error": ""}
    try:
        answer["graph_hash"] = fingerprint(read_recipe(recipe))
    except DippmError as exc:
        answer["error"] = str(exc)
    except Exception as exc:  # noqa: BLE001 - libraries raise what they like; one model must not end the others
        answer["error"] = f"{type(exc).__name__}: {exc}"
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
