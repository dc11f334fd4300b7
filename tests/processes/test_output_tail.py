import os
import time
from io import BufferedReader

from dippm.processes.output_tail import OutputTail


def open_pipe() -> tuple[BufferedReader, int]:
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb"), writing


def test_the_end_is_kept() -> None:
    stream, writing = open_pipe()
    tail = OutputTail(stream, most_bytes=100)
    with os.fdopen(writing, "wb") as sink:
        for number in range(50_000):
            sink.write(b"%06d\n" % number)
    said = tail.wait()
    assert (len(said), said[-8:]) == (100, b"\n049999\n")
    assert stream.closed


def test_what_was_said_is_there_though_the_pipe_stays_open() -> None:
    stream, writing = open_pipe()
    tail = OutputTail(stream, most_bytes=100)
    os.write(writing, b"short")
    start = time.monotonic()
    assert tail.wait() == b"short"
    assert time.monotonic() - start < 30
    os.close(writing)
    assert tail.wait() == b"short"
    assert stream.closed
