"""Models to measure, in a module that another process can import."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch
from torch import nn

from dippm.frontends.inputs import InputEntry, InputShapes


class Tiny(nn.Module):
    """Two layers; what happens between them is a subclass's matter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.between(self.first(x)))


class Halved(Tiny):
    """Stored in 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.bfloat16()


class Hanging(Tiny):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(600)
        return x


class Slow(Tiny):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.9)
        return x


class Crashing(Tiny):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        os.abort()


class Killed(Tiny):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), 9)
        return x


class Undefined(Tiny):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(-x.abs() - 1)


class Wrong(Tiny):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such thing\nas a second line")


class Talking(Tiny):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        os.write(1, b"noise from the model\n")
        return x


class CrashingAtEight(Tiny):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 8:
            os.abort()
        return super().forward(x)


class Hungry(Tiny):
    """Needs 64 MiB for each sample."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(x.shape[0], 2**24).sum()


KINDS = {kind.__name__: kind for kind in
         (Tiny, Halved, Hanging, Slow, Crashing, Killed, Undefined, Wrong, Talking, CrashingAtEight,
          Hungry)}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A source of one of these models."""

    kind: str = "Tiny"

    @property
    def name(self) -> str:
        return self.kind

    @property
    def model_key(self) -> str:
        return self.kind

    def build(self, device: str) -> tuple[nn.Module, InputShapes]:
        with torch.device(device):
            module = KINDS[self.kind]()
        return module.eval(), InputShapes(positional=(InputEntry(shape=(8,)),))


@dataclass(frozen=True, kw_only=True, slots=True)
class Unreadable:
    """A source that can be pickled and not unpickled."""

    name: str = "unreadable"
    model_key: str = "unreadable"

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("not a number",)
