"""A converter that does what a test asks of it."""

import ctypes
import errno
import os
import subprocess
import sys
import time
from pathlib import Path

from dippm.errors import MissingExtraError, UnsupportedError
from dippm.frontends.conversion.worker import ConversionRequest, run_worker


def convert(request: ConversionRequest) -> None:
    sys.stdout.write("noise\n")
    sys.stderr.write("noise\n")
    task = request.options.get("task")
    if task in ("hang", "hold the lock"):
        # A child of its own, which must not outlive it, and a mark of who it is.
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(request.options["mark"]).write_text(f"{os.getpid()} {child.pid}", encoding="ascii")
        if task == "hang":
            time.sleep(600)
        # Native code that keeps the interpreter's lock: no other thread of this process ever runs again.
        ctypes.PyDLL(None).sleep(600)
    elif task == "fill memory":
        pieces = []
        while True:
            pieces.append(bytearray(50_000_000))
    elif task == "fill disk":
        with (request.output / "large").open("wb") as stream:
            for _ in range(100):
                stream.write(bytes(1_000_000))
    elif task == "chatter":
        for _ in range(100):
            sys.stdout.write("x" * 1_000_000)
        sys.stderr.write("the end\n")
    elif task == "crash":
        ctypes.string_at(0)
    elif task == "leave":
        os._exit(3)
    elif task == "raise":
        raise ValueError("a field\nis missing")
    elif task == "find no room":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    elif task == "find no memory":
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")
    elif task == "refuse":
        raise UnsupportedError("It has five legs.", code="fake.legs", cure="Take one away.")
    elif task == "miss":
        raise MissingExtraError(package="legs", extra="legs", purpose="walk")
    elif task == "write nothing":
        return
    elif task == "write rubbish":
        request.onnx_path.write_bytes(b"\xff" * 100)
        return
    elif task == "export anew":
        request.source.write_bytes(request.source.read_bytes() + b"\x12\x01a")
    elif task == "warn":
        request.notes.warnings.append("It limps.")
    elif task == "use hints":
        request.notes.used_hints = bool(request.hints)
    elif task == "tell":
        environment = {name: os.environ.get(name, "") for name in request.options["names"]}
        Path(request.options["mark"]).write_text(repr((environment, os.getcwd())), encoding="utf-8")
    with Path(request.options.get("count", os.devnull)).open("a", encoding="ascii") as stream:
        stream.write("x")
    request.onnx_path.write_bytes(request.source.read_bytes())


if __name__ == "__main__":
    run_worker(convert)
