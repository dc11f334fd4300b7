"""The service under load; writes ``docs/reports/serving.md``.

    .venv/bin/python benchmarks/serving.py

Starts ``dippm serve`` on a free port, and asks it from this process over 200 connections that stay open. Service,
workers and clients share the processors of one machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from onnx import TensorProto, helper

HERE = Path(__file__).resolve().parent
CLIENTS = 200
MODEL = "timm:resnet50"
_BOUNDARY = "dippm-benchmark"


@dataclass(kw_only=True)
class Service:
    """A running service."""

    process: subprocess.Popen[str]
    port: int
    started: float

    def _processes(self) -> list[Path]:
        """The service first, then the guardians of its workers and the workers."""
        found = [str(self.process.pid)]
        for pid in found:
            found += Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [Path(f"/proc/{pid}") for pid in found]

    def cpu_s(self) -> tuple[float, float]:
        """Processor time of the service and of its workers so far, s."""
        ticks = [
            sum(map(int, (path / "stat").read_text().rpartition(")")[2].split()[11:13])) for path in self._processes()
        ]
        return ticks[0] / os.sysconf("SC_CLK_TCK"), sum(ticks[1:]) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """Resident memory of the service and its workers, MiB, shared pages counted once for each."""
        total = 0.0
        for path in self._processes():
            for line in (path / "status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    total += int(line.split()[1]) / 1024
        return total


@contextmanager
def running(*words: str) -> Iterator[Service]:
    """The service with two workers; its log is dropped once it says where it listens."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "dippm", "serve", "--port", "0", "--workers", "2", *words],
        stderr=subprocess.PIPE,
        text=True,
    )
    if process.stderr is None:
        raise SystemExit("the service has no log")
    try:
        line = json.loads(process.stderr.readline())
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        yield Service(process=process, port=int(line["url"].rpartition(":")[2]), started=start)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()
        drain.wait()
        process.stderr.close()


@dataclass(kw_only=True)
class Outcome:
    """What became of the requests of one load."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    wall_s: float = 0.0

    def row(self, name: str) -> list[str]:
        """A row of the report."""
        cuts = statistics.quantiles(self.seconds, n=100)
        others = ", ".join(f"{count} x {status}" for status, count in self.statuses.items() if status != "200")
        return [
            name, f"{len(self.seconds):,}", f"{len(self.seconds) / self.wall_s:,.0f}",
            f"{1e3 * statistics.median(self.seconds):,.0f}", f"{1e3 * cuts[98]:,.0f}", others or "none",
        ]  # fmt: skip


def question(batch: int) -> bytes:
    """A request about a model by name."""
    return _request(json.dumps({"model": MODEL, "batch": batch}).encode(), "application/json")


def upload(file: bytes, batch: int) -> bytes:
    """A request about a file."""
    mark = f"--{_BOUNDARY}\r\nContent-Disposition: form-data; name="
    body = (
        f'{mark}"options"\r\n\r\n{{"batch": {batch}}}\r\n{mark}"file"; filename="model.onnx"\r\n\r\n'.encode()
        + file
        + f"\r\n--{_BOUNDARY}--\r\n".encode()
    )
    return _request(body, f"multipart/form-data; boundary={_BOUNDARY}")


def _request(body: bytes, content_type: str) -> bytes:
    return (
        f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[str, bool]:
    """One request on a connection: its status, and whether the connection stays open."""
    writer.write(request)
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    if "content-length:" not in head:
        raise ConnectionError("the service gave up")
    length = int(head.split("content-length:")[1].split("\r\n")[0])
    await reader.readexactly(length)
    return head.split(" ", 2)[1], "connection: close" not in head


async def load(port: int, requests: Iterator[bytes], *, clients: int = CLIENTS) -> Outcome:
    """Ask by so many clients until there are no more requests."""
    outcome = Outcome()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for request in requests:
                start = time.perf_counter()
                status, is_open = await ask(reader, writer, request)
                outcome.seconds.append(time.perf_counter() - start)
                outcome.statuses[status] += 1
                if not is_open:
                    return
        finally:
            writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    outcome.wall_s = time.perf_counter() - start
    return outcome


async def stop_under_load(service: Service, requests: Iterator[bytes]) -> Counter[str]:
    """Ask without pause, let the service be stopped, and count what became of every request."""
    found: Counter[str] = Counter()

    async def client() -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            except ConnectionError:
                found["not connected, after the end"] += 1
                return
            try:
                is_open = True
                while is_open:
                    status, is_open = await ask(reader, writer, next(requests))
                    found[f"answered, status {status}"] += 1
            except (ConnectionError, asyncio.IncompleteReadError):
                found["lost: connected, and not answered"] += 1
            finally:
                writer.close()

    asking = [asyncio.create_task(client()) for _ in range(CLIENTS)]
    await asyncio.sleep(3.0)
    service.process.send_signal(signal.SIGTERM)
    await asyncio.gather(*asking)
    return found


def make_file(number: int, *, layers: int = 60) -> bytes:
    """A model of convolutions, unlike that of any other number."""
    shape = ["N", 8, 32, 32]
    names = [f"v{number}_{place}" for place in range(layers + 1)]
    nodes = [
        helper.make_node("Conv", [names[place], "w"], [names[place + 1]], pads=[1, 1, 1, 1]) for place in range(layers)
    ]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [8, 8, 3, 3], bytes(4 * 8 * 8 * 9), raw=True)
    ends = [helper.make_tensor_value_info(names[place], TensorProto.FLOAT, shape) for place in (0, layers)]
    graph = helper.make_graph(nodes, "convolutions", ends[:1], ends[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


def first_answers(rounds: int) -> list[float]:
    """Seconds from the start of the process to the end of the first answer."""
    seconds = []
    for _ in range(rounds):
        with running("--drain-s", "0") as service:
            outcome = asyncio.run(load(service.port, iter([question(8)]), clients=1))
            seconds.append(time.perf_counter() - service.started)
            if set(outcome.statuses) != {"200"}:
                raise SystemExit(f"the first answer was {outcome.statuses}")
    return seconds


def loads(service: Service, *, cached: int, uncached: int) -> list[list[str]]:
    """Rows of the report."""
    files = [upload(make_file(number), 8) for number in range(uncached)]
    kinds: dict[str, Callable[[], Iterator[bytes]]] = {
        "by name, answer kept": lambda: itertools.repeat(question(8), cached),
        "file, answer kept": lambda: itertools.repeat(files[0], cached),
        "by name, another batch each time": lambda: (question(16 + number) for number in range(uncached)),
        "file, another model each time": lambda: iter(files),
    }
    rows = []
    for name, make in kinds.items():
        asyncio.run(load(service.port, itertools.repeat(next(make()), 2), clients=1))
        before = service.cpu_s()
        outcome = asyncio.run(load(service.port, make()))
        cpu = [1e3 * (now - then) / len(outcome.seconds) for now, then in zip(service.cpu_s(), before, strict=True)]
        rows.append([*outcome.row(name), *(f"{each:.2f}" for each in cpu)])
        print(*rows[-1], file=sys.stderr, flush=True)
    return rows


def memory(service: Service, *, total: int, steps: int) -> list[list[str]]:
    """Resident memory while requests of all kinds are answered: kept, another batch, another file."""
    numbers = itertools.count()
    rows = [["0", f"{service.memory_mb():,.0f}"]]

    def mixed(count: int) -> Iterator[bytes]:
        for _ in range(count):
            number = next(numbers)
            kind = number % 10
            yield (
                upload(make_file(10**6 + number), 4) if kind == 0
                else question(5000 + number) if kind == 1
                else question(8)
            )  # fmt: skip

    for step in range(1, steps + 1):
        outcome = asyncio.run(load(service.port, mixed(total // steps)))
        if set(outcome.statuses) != {"200"}:
            raise SystemExit(f"answers under load were {outcome.statuses}")
        rows.append([f"{step * total // steps:,}", f"{service.memory_mb():,.0f}"])
        print(*rows[-1], file=sys.stderr, flush=True)
    return rows


def table(header: tuple[str, ...], rows: list[list[str]]) -> str:
    """A table in Markdown, figures to the right."""
    marks = ["---", *("---:" for _ in header[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in [list(header), marks, *rows])


def main() -> None:
    """Run all measurements, print the report and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, default=HERE.parent / "docs" / "reports" / "serving.md")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cached", type=int, default=10_000, help="requests whose answer is kept, of each kind")
    parser.add_argument("--uncached", type=int, default=1_000, help="requests whose answer is not, of each kind")
    parser.add_argument("--memory", type=int, default=10_000, help="requests over which memory is watched")
    options = parser.parse_args()
    average = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TMPDIR": folder, "DIPPM_CACHE": ""}
        firsts = first_answers(options.rounds)
        with running() as service:
            rows = loads(service, cached=options.cached, uncached=options.uncached)
        with running() as service:
            asyncio.run(load(service.port, iter([question(8)]), clients=1))
            held = memory(service, total=options.memory, steps=10)
        with running() as service:
            asyncio.run(load(service.port, iter([question(8)]), clients=1))
            mixed = (question(8 if number % 4 else 100 + number) for number in itertools.count())
            ends = asyncio.run(stop_under_load(service, mixed))
            status = service.process.wait()
    report = "\n\n".join(
        [
            "# The service under load",
            "Written by `python benchmarks/serving.py`. The service with two workers, and 200 clients that ask as "
            "fast as they are\nanswered, share one machine.\n\n"
            f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {platform.machine()}, {platform.system()}; "
            f"dippm {version('dippm')}, fastapi {version('fastapi')}, uvicorn {version('uvicorn')}.\nLoad average of "
            f"the machine when the run began: {average} (1, 5 and 15 minutes).",
            "## From the start of the process to the first answer",
            f"Of {MODEL}, whose graph comes with the package: median {statistics.median(firsts):.2f} s, least "
            f"{min(firsts):.2f} s, most {max(firsts):.2f} s ({len(firsts)} processes).",
            f"## {CLIENTS} clients at once",
            table(
                (
                    "question",
                    "requests",
                    "per second",
                    "p50, ms",
                    "p99, ms",
                    "answers but 200",
                    "processor time of the service each, ms",
                    "of its workers, ms",
                ),
                rows,
            ),
            "## Memory",
            "Service and workers together, pages that they share counted for each. Of ten requests eight ask for a "
            "kept answer, one\nfor another batch, and one brings another file.",
            table(("requests", "resident, MiB"), held),
            "## SIGTERM",
            f"Sent while {CLIENTS} clients ask without pause. The process ended with status {status}.",
            table(("request", "number"), [[name, f"{count:,}"] for name, count in sorted(ends.items())]),
        ]
    )
    options.report.write_text(report + "\n", encoding="utf-8")
    print(report)


if __name__ == "__main__":
    main()
