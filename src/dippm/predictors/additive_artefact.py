"""The additive predictor in a folder: weights beside a JSON file that says what they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Mode, Runtime
from dippm.costs.rates import Rates
from dippm.errors import DippmError

__all__ = [
    "ARTEFACT_FOLDER",
    "OWN_REGIMES",
    "REGIMES",
    "AdditiveArtefact",
    "Regime",
    "manifest_path",
    "read_tensors",
    "write_tensors",
]

#: Where the shipped artefacts lie.
ARTEFACT_FOLDER = Path(__file__).with_name("artefact")

_FORMAT = 2
_WEIGHTS_SUFFIX = ".safetensors"
# The header of a safetensors file opens with its own length.
_LENGTH_BYTES = 8
_LARGEST_HEADER = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Regime:
    """What has networks of its own, because the kernels differ.

    Args:
        mode: Inference or training.
        runtime: Eager or compiled.
        architecture: Compute capability that has networks of its own, such as ``"9.0"``; ``""`` for all others.
    """

    mode: Mode
    runtime: Runtime = Runtime.EAGER
    architecture: str = ""

    def __str__(self) -> str:
        words = [self.mode.value] + ([] if self.runtime is Runtime.EAGER else [self.runtime.value])
        return "-".join(words + ([self.architecture] if self.architecture else []))


#: What networks are trained for: no training step was measured compiled.
REGIMES = (
    Regime(mode=Mode.INFERENCE),
    Regime(mode=Mode.TRAINING),
    Regime(mode=Mode.INFERENCE, runtime=Runtime.COMPILE),
)

#: What networks of one architecture are trained for: kernels were traced on Hopper alone.
OWN_REGIMES = tuple(Regime(mode=mode, architecture="9.0") for mode in Mode)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AdditiveArtefact:
    """What stands in the JSON file.

    Args:
        mode: Inference or training.
        runtime: Eager or compiled.
        columns: Node features, in order.
        members: Number of networks.
        rates: Sustained rates of predictor 0 that the corrections are learned on.
        distances: Distances from what was trained on, see :mod:`dippm.predictors.additive_novelty`.
        half_widths: Half-width of the 90 % interval of ``log(measured / predicted)`` at each, by split conformal
            prediction on models and families held out.
        measured: What was measured: source, devices, precisions, layouts, optimizers.
        test: Errors and coverage on models held out.
        settings: Settings of the training.
        provenance: Seed, hash of the data, versions, command.
        architectures: Compute capabilities that the networks are for, that on which they were measured first; none
            for those that are for every other device.
    """

    mode: Mode
    runtime: Runtime
    columns: tuple[str, ...]
    members: int
    rates: Rates
    distances: tuple[float, ...]
    half_widths: tuple[float, ...]
    measured: Mapping[str, Any]
    test: Mapping[str, Any]
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]
    architectures: tuple[str, ...] = ()

    @property
    def regime(self) -> Regime:
        """What the networks are for."""
        return Regime(mode=self.mode, runtime=self.runtime, architecture=(*self.architectures, "")[0])

    @property
    def labels(self) -> str:
        """What was measured, in words."""
        measured = self.measured
        devices, sources = ", ".join(measured["devices"]), ", ".join(measured["sources"])
        return (
            f"{measured['models']} models of {sources} on {devices}, {self.mode}, {self.runtime}, "
            f"{', '.join(measured['precisions'])}"
        )

    @classmethod
    def read(cls, path: Path) -> AdditiveArtefact:
        """Read a manifest.

        Raises:
            DippmError: ``artefact.unreadable`` where it is missing, damaged or of another format.
        """
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            if held.pop("format") != _FORMAT:
                raise ValueError("another format")
            return cls(
                mode=Mode(held.pop("mode")),
                runtime=Runtime(held.pop("runtime")),
                columns=tuple(held.pop("columns")),
                rates=Rates(**held.pop("rates")),
                distances=tuple(held.pop("distances")),
                half_widths=tuple(held.pop("half_widths")),
                architectures=tuple(held.pop("architectures", ())),
                **held,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
            raise _unreadable(path, exc) from exc

    def write(self, path: Path) -> None:
        """Write the manifest."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n", encoding="utf-8")


def manifest_path(regime: Regime, folder: Path = ARTEFACT_FOLDER) -> Path:
    """Where the manifest of a regime lies; its weights lie beside it under the same name."""
    return folder / f"additive_{regime}.json"


def write_tensors(path: Path, tensors: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Write weights beside a manifest, in the safetensors format.

    Args:
        path: The manifest's path.
        tensors: Arrays by name.
    """
    header: dict[str, object] = {}
    first = 0
    for name, tensor in tensors.items():
        size = tensor.size * 4
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [first, first + size]}
        first += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    body = b"".join(np.ascontiguousarray(tensor, dtype="<f4").tobytes() for tensor in tensors.values())
    path.with_suffix(_WEIGHTS_SUFFIX).write_bytes(len(text).to_bytes(_LENGTH_BYTES, "little") + text + body)


def read_tensors(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """Read the weights beside a manifest, without any package for it: a prediction needs NumPy alone.

    Args:
        path: The manifest's path.

    Raises:
        DippmError: ``artefact.unreadable`` where they are missing or damaged.
    """
    path = path.with_suffix(_WEIGHTS_SUFFIX)
    try:
        content = path.read_bytes()
        length = int.from_bytes(content[:_LENGTH_BYTES], "little")
        if not 0 < length <= min(_LARGEST_HEADER, len(content) - _LENGTH_BYTES):
            raise ValueError("no header")
        start = _LENGTH_BYTES + length
        result = {}
        for name, entry in json.loads(content[_LENGTH_BYTES:start]).items():
            if name == "__metadata__":
                continue
            if entry["dtype"] != "F32":
                raise ValueError(f"{name} is of type {entry['dtype']}")
            first, end = entry["data_offsets"]
            values = np.frombuffer(content[start + first : start + end], dtype="<f4")
            result[name] = values.astype(np.float32).reshape(entry["shape"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise _unreadable(path, exc) from exc
    return result


def _unreadable(path: Path, error: Exception) -> DippmError:
    return DippmError(
        f"The predictor '{path}' cannot be read: {error}.",
        code="artefact.unreadable",
        cure="Rebuild it with: python -m dippm.training.additive",
    )
