"""Times predictions inside one process and prints JSON: ``sweep.py MODEL``.

A person who compares devices and batch sizes asks for all of them at once, from a model that is parsed already.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

BATCHES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]
DEVICES = ["A100", "V100", "T4", "P100", "A30", "L4", "H100", "RTX 4090"]
ROUNDS = 31


def main() -> None:
    """Print how long reading, the first and a later sweep take, in ms."""
    import dippm

    start = time.perf_counter()
    graph = dippm.load(sys.argv[1])
    load_ms = 1e3 * (time.perf_counter() - start)
    sweeps_ms = []
    answers: object = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        answers = dippm.predict(graph, batch=BATCHES, device=DEVICES)
        sweeps_ms.append(1e3 * (time.perf_counter() - start))
    if not isinstance(answers, list) or len(answers) != len(BATCHES) * len(DEVICES):
        raise SystemExit("The sweep did not answer for every batch and device.")
    first_ms, *later_ms = sweeps_ms
    answer = {"load_ms": load_ms, "first_ms": first_ms, "median_ms": statistics.median(later_ms)}
    print(json.dumps(answer | {"highest_ms": max(later_ms), "predictions": len(answers)}))


if __name__ == "__main__":
    main()
