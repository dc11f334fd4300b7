"""What the service asks a worker, what the worker answers, and how both cross the socket between them.

Everything crosses as JSON: a worker reads hostile files, and nothing that it sends may run code here.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

__all__ = ["FRAME_HEAD", "LARGEST_BODY", "LARGEST_HEAD", "Job", "Reply", "Verb"]

#: Lengths of a frame's JSON and of the bytes after it.
FRAME_HEAD = struct.Struct(">II")
LARGEST_HEAD = 2**20
LARGEST_BODY = 2**26


class Verb(StrEnum):
    """What is asked of a model."""

    PREDICT = "predict"
    FITS = "fits"
    MAX_BATCH = "max-batch"
    INSPECT = "inspect"


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One question.

    Args:
        verb: What is asked.
        name: The model's name, or the name under which the client knows its file.
        path: The uploaded file; None for a model by name.
        content: Hash of the file, or the model's name.
        options: Options of the verb, as the client wrote them.
    """

    verb: Verb
    name: str
    path: str | None
    content: str
    options: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The same for all jobs that have the same answer."""
        described = (self.verb.value, self.name, self.path is None, self.content, self.options)
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()

    def as_known(self, text: str) -> str:
        """A message under the name that the client knows, and without the folders of this machine."""
        if self.path is not None:
            folder = Path(self.path).parent
            for known in (self.path, str(folder / "unpacked"), str(folder)):
                text = text.replace(known, self.name)
        for entry in sorted(filter(None, sys.path), key=len, reverse=True):
            text = text.replace(entry + os.sep, "")
        return text

    def to_frame(self) -> bytes:
        """The job as a worker reads it."""
        head = json.dumps(asdict(self)).encode()
        return FRAME_HEAD.pack(len(head), 0) + head

    @classmethod
    def from_head(cls, head: bytes) -> Job:
        """Read a job."""
        content = json.loads(head)
        return cls(**(content | {"verb": Verb(content["verb"])}))


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """One answer.

    Args:
        status: HTTP status.
        body: JSON.
        is_lasting: Whether the same question has the same answer the next time.
        is_last: Whether the worker ends itself, because too little memory is left to it.
        defect: Where an error happened that nobody foresaw, for the log; ``""`` for none.
    """

    status: int
    body: bytes
    is_lasting: bool = False
    is_last: bool = False
    defect: str = ""

    def to_frame(self) -> bytes:
        """The reply as the service reads it."""
        head = json.dumps(
            {"status": self.status, "lasting": self.is_lasting, "last": self.is_last, "defect": self.defect}
        ).encode()
        return FRAME_HEAD.pack(len(head), len(self.body)) + head + self.body

    @classmethod
    def from_parts(cls, head: bytes, body: bytes) -> Reply:
        """Read a reply.

        Raises:
            ValueError: It is none: its worker is not to be trusted any more.
        """
        content = json.loads(head)
        if not isinstance(content, dict) or not isinstance(content.get("status"), int):
            raise ValueError("a worker's reply has no status")
        return cls(
            status=content["status"],
            body=body,
            is_lasting=content.get("lasting") is True,
            is_last=content.get("last") is True,
            defect=str(content.get("defect", ""))[:4096],
        )
