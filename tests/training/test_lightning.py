from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
from dippm.training.lightning import pl
board = pl.loggers.TensorBoardLogger(sys.argv[1])
board.log_metrics({"loss": 1.0}, step=0)
board.finalize("success")
print("tensorflow" in sys.modules)
"""


def test_logs_are_written_without_tensorflow(tmp_path) -> None:
    pytest.importorskip("tensorflow")
    words = [sys.executable, "-c", CODE, str(tmp_path)]
    process = subprocess.run(words, check=True, capture_output=True, text=True, timeout=200)
    assert (process.stdout.strip(), process.stderr) == ("False", "")
    assert list(tmp_path.rglob("events.out.tfevents.*"))
