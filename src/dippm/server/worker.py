"""A worker's process: reads and predicts models under limits, one job after the other.

Run as ``python -P -m dippm.server.worker SOCKET MEMORY_MB UNPACKED_MB`` by a guardian, which limits it and ends it when
the service ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

from dippm.api import DippmError, UnsupportedError
from dippm.processes.silence import fall_silent
from dippm.server.client_cures import client_cure
from dippm.server.errors import ServiceError, error_body, http_status
from dippm.server.jobs import FRAME_HEAD, LARGEST_BODY, Job, Reply
from dippm.server.verbs import GraphReader, answer

__all__ = ["main"]

_MIB = 2**20
_READY = 200
# A worker that keeps more than this part of its memory between jobs makes room for a fresh one.
_FULL = 0.5
_OF_THE_MOMENT = frozenset({
    "archive.damaged", "conversion.crashed", "conversion.failed", "conversion.memory", "conversion.no_space",
    "conversion.timeout", "model.missing", "model.unreadable",
})  # fmt: skip


def main() -> None:
    """Answer jobs until the service closes the socket."""
    descriptor, memory_mb, unpacked_mb = map(int, sys.argv[1:])
    for kind in (signal.SIGINT, signal.SIGTERM):
        # Whoever stops the service may stop all its processes; what runs is still to be answered.
        signal.signal(kind, signal.SIG_IGN)
    connection = socket.socket(fileno=descriptor)
    reader = GraphReader(unpacked_mb=unpacked_mb)
    _warm_up()
    connection.sendall(Reply(status=_READY, body=str(os.getpid()).encode()).to_frame())
    # From here on, libraries have nothing to say to the service's log: it may be of a client's file.
    fall_silent()
    with connection, connection.makefile("rb") as stream:
        while len(lengths := stream.read(FRAME_HEAD.size)) == FRAME_HEAD.size:
            reply = _reply_to(Job.from_head(stream.read(FRAME_HEAD.unpack(lengths)[0])), reader, memory_mb=memory_mb)
            connection.sendall(reply.to_frame())
            if reply.is_last:
                return


def _reply_to(job: Job, reader: GraphReader, *, memory_mb: int) -> Reply:
    try:
        body = json.dumps(answer(job, reader), allow_nan=False, separators=(",", ":")).encode()
        if len(body) > LARGEST_BODY:
            raise UnsupportedError(
                f"The answer is larger than {LARGEST_BODY // _MIB} MiB.",
                code="answer.too_large",
                cure="Ask for fewer operators, devices or batches.",
            )
        is_full = _private_mb() > _FULL * memory_mb
        return Reply(status=200, body=body, is_lasting=True, is_last=is_full)
    except MemoryError:
        refused = ServiceError(
            f"'{job.name}' takes more than the {memory_mb:,} MiB of memory that the service gives to one request.",
            code="service.memory",
            status=422,
            cure="Ask dippm on your own machine.",
        )
        return Reply(status=422, body=error_body(refused), is_last=True)
    except DippmError as exc:
        # What an extra would change is not to be kept: it may be installed.
        return Reply(status=http_status(exc), body=_body(exc, job), is_lasting=_is_lasting(exc))
    except Exception as exc:  # noqa: BLE001 - the worker goes on, whatever a file does
        return _report(exc, job)


def _is_lasting(exc: DippmError) -> bool:
    """Whether the same question would be refused again: not where the machine, a limit of time or a crash did it."""
    return exc.exit_status in (2, 3, 4) and exc.code not in _OF_THE_MOMENT


def _report(exc: Exception, job: Job) -> Reply:
    """A defect: for a file the client's to work around, for the log the place alone and nothing of the file."""
    places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(exc.__traceback__)[-8:]]
    failed = ServiceError(
        f"'{job.name}' could not be answered for: {type(exc).__name__}. This is a defect of dippm or a damaged file.",
        code="internal" if job.path is None else "model.unforeseen",
        status=500 if job.path is None else 422,
    )
    is_out_of_memory = "bad_alloc" in str(exc) or "can't allocate memory" in str(exc)
    return Reply(
        status=failed.status,
        body=error_body(failed),
        is_last=is_out_of_memory,
        defect=f"{type(exc).__name__} at {' '.join(places)}",
    )


def _body(exc: DippmError, job: Job) -> bytes:
    cure = job.as_known(client_cure(exc) or "")
    told = str(exc).removesuffix(exc.cure or "").rstrip()
    return error_body(exc, message=f"{job.as_known(told)} {cure}".rstrip(), cure=cure or None)


def _warm_up() -> None:
    """Import and load what the first answer would otherwise wait for."""
    from onnx import TensorProto, helper

    from dippm import api

    value, answer_ = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3, 8, 8]) for name in ("x", "y"))
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3, 3, 1, 1], bytes(36), raw=True)
    nodes = [helper.make_node("Conv", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "first", [value], [answer_], [weight])
    api.predict(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def _private_mb() -> float:
    """Memory that counts against the limit, MiB; 0 where the system does not say."""
    try:
        with Path("/proc/self/status").open(encoding="ascii", errors="replace") as stream:
            return next((int(line.split()[1]) / 1024 for line in stream if line.startswith("VmData:")), 0.0)
    except OSError:
        return 0.0


if __name__ == "__main__":
    main()
