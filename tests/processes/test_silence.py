from __future__ import annotations

import subprocess
import sys

_CODE = """
import os, sys
from dippm.processes.silence import fall_silent

os.write(1, b"before")
fall_silent()
os.write(1, b"after")
os.write(2, b"after")
sys.exit(len(sys.stdin.read()))
"""


def test_nothing_is_said_or_heard() -> None:
    ended = subprocess.run([sys.executable, "-c", _CODE], input=b"question", capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"before", b"")
