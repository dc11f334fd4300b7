"""A convolution with the norm and the activation behind it: what models have most of their time in, by itself."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

from dippm.costs.conditions import Layout
from dippm.costs.precision import Precision
from dippm.errors import UsageError
from dippm.graph import OpKind

__all__ = ["ACTIVATIONS", "Layer"]

ACTIVATIONS = frozenset(
    {
        OpKind.RELU, OpKind.LEAKY_RELU, OpKind.ELU, OpKind.GELU, OpKind.SILU, OpKind.MISH, OpKind.SIGMOID, OpKind.TANH,
        OpKind.HARD_SWISH, OpKind.HARD_SIGMOID, OpKind.CLIP,
    }
)  # fmt: skip
"""Activations that may stand behind the convolution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """All that decides how long it takes on a device.

    Args:
        precision: Arithmetic.
        layout: Layout of the weights.
        image: Batch, channels, height and width of what it reads.
        image_bytes: Bytes of an element of that, 2 or 4.
        is_read_last: Whether its channels lie side by side.
        channels: Channels that it writes.
        kernel: Height and width of the window.
        stride: Steps of the window.
        padding: Zeros on each side.
        dilation: Distance of the window's taps.
        groups: Groups of channels.
        has_bias: Whether the convolution adds a bias.
        has_norm: Whether a batch norm stands behind it.
        activation: What stands behind these, None for nothing.
        is_in_place: Whether the activation writes where it reads.
    """

    precision: Precision
    layout: Layout
    image: tuple[int, int, int, int]
    image_bytes: int
    is_read_last: bool
    channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    has_bias: bool
    has_norm: bool
    activation: OpKind | None
    is_in_place: bool

    @property
    def operators(self) -> int:
        """How many operators it is."""
        return 1 + self.has_norm + (self.activation is not None)

    def to_text(self) -> str:
        """As a list in JSON, which :meth:`from_text` reads."""
        return json.dumps([*asdict(self).values()], separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Layer:
        """Read what :meth:`to_text` wrote.

        Raises:
            UsageError: ``layer.invalid``.
        """
        try:
            values = dict(zip((field.name for field in fields(cls)), json.loads(text), strict=True))
            pairs = {name: tuple(map(int, v)) for name, v in values.items() if isinstance(v, list)}
            activation = values["activation"]
            return cls(
                **values
                | pairs
                | {
                    "precision": Precision(values["precision"]),
                    "layout": Layout(values["layout"]),
                    "activation": None if activation is None else OpKind(activation),
                }
            )
        except (KeyError, TypeError, ValueError) as exc:
            raise UsageError(f"This is no layer: {exc!r} in {text:.200}.", code="layer.invalid") from exc
