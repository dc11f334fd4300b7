from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_process_does_not_run_its_parents_script(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(
        "import builtins, sys\n"
        "from dippm.processes.fresh_spawn import FreshSpawnContext\n"
        "print('once', flush=True)\n"
        "process = FreshSpawnContext().Process(target=builtins.print, args=('within',))\n"
        "process.start()\n"
        "process.join()\n"
        "print(process.exitcode, sys.modules['__main__'].__file__ == __file__)\n"
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["once", "within", "0", "True"]
    assert run.stderr == ""
