"""The networks of one regime: how they read graphs, and by what they correct the time of each operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.numbering import is_first
from dippm.costs.precision import Precision
from dippm.devices import load_catalog
from dippm.errors import DippmError, UnsupportedError
from dippm.features.physical import COLUMNS, LAUNCH_MS, STATIC, PhysicalPlan, PhysicalSamples, Ramps
from dippm.graph import OpKind
from dippm.predictors.additive_artefact import AdditiveArtefact
from dippm.predictors.additive_forward import Ensemble
from dippm.predictors.additive_novelty import Novelty, describe_calls
from dippm.predictors.convolution_forward import CONVOLUTIONS, ConvolutionForward, PreparedConvolutions
from dippm.predictors.network_inputs import NetworkInputs
from dippm.predictors.network_steps import Neighbours
from dippm.predictors.unseen_kernels import is_unseen

__all__ = ["CorrectedPlan", "CorrectedSample", "Corrector"]

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]

# Features that step from one batch to the next.
_STEPPING = ("rows_by_8", "columns_by_8", "depth_by_8", "last_wave")
# Classes of operators that go through the networks together, of whole graphs: their embeddings fit a core's own cache.
_AT_ONCE = 512


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Stretch:
    """Graphs side by side that go through the networks together: what layers hand on stays near the processor.

    Args:
        classes: Their classes of operators.
        producers: Whom each of these hears as producers, numbered from the first of them.
        consumers: Whom it hears as consumers.
    """

    classes: slice
    producers: Neighbours
    consumers: Neighbours

    @classmethod
    def all_of(cls, physical: PhysicalPlan) -> Iterator[_Stretch]:
        """All graphs, at least so many classes at a time."""
        producers, consumers = (
            Neighbours.of(messages, count=len(physical.node)) for messages in (physical.producers, physical.consumers)
        )
        starts, first = physical.class_start.tolist(), 0
        for stop in starts[1:]:
            if stop - first >= _AT_ONCE or stop == starts[-1] > first:
                classes = slice(first, stop)
                yield cls(classes=classes, producers=producers.within(classes), consumers=consumers.within(classes))
                first = stop


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CorrectedPlan:
    """What depends on neither batch nor device; built once per graph, precision and mode, or for several at once.

    Args:
        physical: The classes of operators of all graphs, laid out together.
        stretches: Graphs that go through the networks together.
        static: Scaled features that do not change, a row for each ``physical.static_number``.
        first: What these make of the networks' first layer.
        is_unseen: Whether a class runs kernels that no model of the training had, and so keeps the plain sum's time: by
            its kind, as it computes complex numbers or float64, as a product that a model keeps from the only autocast
            that they know, as a wide recurrent layer, or as an update of networks that saw one optimizer alone, and
            would give its corrections to all of them.
        convolutions: What a network of convolutions corrects first; None where there is no such network.

    Shapes:
        static: [U, F]; first: [M, U, W]; is_unseen: [C].
    """

    physical: PhysicalPlan
    stretches: tuple[_Stretch, ...]
    static: Float32Array
    first: Float32Array
    is_unseen: npt.NDArray[np.bool_]
    convolutions: PreparedConvolutions | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CorrectedSample:
    """Graphs at each batch on one device, as the networks read them.

    Args:
        plan: The graphs.
        changing: Scaled features that depend on batch, device or conditions.
        kernel_ms: Kernel time of one operator of each class by the plain sum.
        convolution: By what the network of convolutions corrects that of each convolution of the plan.

    Shapes:
        changing: [B, C, F]; kernel_ms: [B, C]; convolution: [B, K].
    """

    plan: CorrectedPlan
    changing: Float32Array
    kernel_ms: FloatArray
    convolution: FloatArray | None


class Corrector:
    """The networks of one regime."""

    def __init__(self, artefact: AdditiveArtefact, tensors: Mapping[str, Float32Array]) -> None:
        unknown = set(artefact.columns) - set(COLUMNS)
        if unknown:
            raise UnsupportedError(
                f"The additive predictor reads features that this version does not compute: {sorted(unknown)}.",
                code="artefact.columns",
                cure="Rebuild it with: python -m dippm.training.additive",
            )
        self.artefact = artefact
        measured = artefact.measured.get("devices", ())
        #: Compute capabilities of the cards that they were trained on.
        self.known_capabilities = frozenset(card.compute_capability for card in load_catalog() if card.name in measured)
        columns = np.array([COLUMNS.index(name) for name in artefact.columns], dtype=np.int64)
        factor = tensors["scale.factor"]
        self._novelty = Novelty.from_tensors(tensors, distances=artefact.distances, half_widths=artefact.half_widths)
        ramps = _read_ramps(tensors, columns=len(columns))
        self._convolutions = _read_convolutions(artefact, tensors, columns)
        self._static = NetworkInputs.of(columns, tensors, ramps, first=0, stop=len(STATIC))
        self._changing = NetworkInputs.of(columns, tensors, ramps, first=len(STATIC), stop=len(COLUMNS))
        # A column that was never anything but 0 in training has neither scale nor mean.
        is_absent = (factor == 0.0) & (tensors["scale.mean"] == 0.0)
        self.unseen_kinds = frozenset(
            kind
            for kind in OpKind
            if (name := f"is_{kind.value}") in artefact.columns and is_absent[artefact.columns.index(name)]
        )
        unseen = [f"is_{kind.value}" for kind in self.unseen_kinds]
        if len(artefact.measured.get("optimizers", ())) == 1:
            unseen.append("in_optimizer")
        self._unseen = np.array([STATIC.index(name) for name in unseen], dtype=np.int64)
        self._aligned = np.flatnonzero(np.isin(artefact.columns, _STEPPING))
        self._ensemble = _read_ensemble(artefact, tensors)
        self._of_static = self._ensemble.first_layer(self._static.inputs, has_bias=False)
        self._of_changing = self._ensemble.first_layer(self._changing.inputs, has_bias=True)

    def prepare(self, physical: PhysicalPlan) -> CorrectedPlan:
        """Work out what depends on neither batch nor device."""
        is_distinct = is_first(physical.static_number)
        static = self._static.scale(physical.static.take(np.flatnonzero(is_distinct), axis=0))
        return CorrectedPlan(
            physical=physical,
            stretches=tuple(_Stretch.all_of(physical)),
            static=static,
            first=self._ensemble.embed(self._static.expand(static), self._of_static),
            # What was never trained on keeps its time.
            is_unseen=np.any(physical.static[:, self._unseen] > 0, axis=1)
            | is_unseen(physical, knows_fp32=Precision.FP32.value in self.artefact.measured["precisions"]),
            convolutions=None if self._convolutions is None else self._convolutions.prepare(physical),
        )

    def read(self, plan: CorrectedPlan, sample: PhysicalSamples) -> CorrectedSample:
        """Scale what the networks are to read of graphs at each batch."""
        network, convolutions = self._convolutions, plan.convolutions
        return CorrectedSample(
            plan=plan,
            changing=self._changing.scale(sample.changing),
            kernel_ms=sample.kernel_ms,
            convolution=None if network is None or convolutions is None else network.factors(sample, convolutions),
        )

    def time_ms(
        self, sample: CorrectedSample, *, is_emulated: npt.NDArray[np.bool_], kept: FloatArray | None = None
    ) -> FloatArray:
        """Time of one operator of each class at each batch, the mean over the members, [B, C].

        Args:
            sample: The graphs at each batch.
            is_emulated: Which classes the device has no units for, as it had for all of the training, [C].
            kept: How much of the corrections' logarithm each graph keeps at each batch, 0 to 1, [G, B]; all of it where
                None is given.
        """
        plan, physical = sample.plan, sample.plan.physical
        mean = np.empty((*sample.kernel_ms.shape, 2))
        for stretch in plan.stretches:
            own = stretch.classes
            corrections = self._ensemble.corrections(
                self._changing.expand(sample.changing[:, own]),
                self._of_changing,
                plan.first,
                physical.static_number[own],
                stretch.producers,
                stretch.consumers,
            )
            mean[:, own] = np.exp(corrections.astype(np.float64)).sum(axis=1) / corrections.shape[1]
        if plan.convolutions is not None:
            mean[:, plan.convolutions.chosen, 0] *= sample.convolution
        mean[:, plan.is_unseen | is_emulated] = 1.0
        if kept is not None:
            for classes, share in zip(physical.classes_of_graphs, kept, strict=True):
                if share.min(initial=1.0) < 1.0:
                    mean[:, classes] **= share[:, None, None]
        time_ms: FloatArray = sample.kernel_ms * mean[..., 0] + physical.launches * LAUNCH_MS * mean[..., 1]
        return time_ms

    def describe(self, sample: CorrectedSample) -> Float32Array:
        """Descriptors of each graph at each batch, see :func:`describe_calls`, [G, B, F]."""
        plan, changing = sample.plan, sample.changing
        graphs, plain_ms = plan.physical.classes_of_graphs, sample.kernel_ms * plan.physical.count
        number = plan.physical.static_number
        descriptors = np.empty((len(graphs), len(changing), len(self.artefact.columns)), dtype=np.float32)
        for own, classes in zip(descriptors, graphs, strict=True):
            static = plan.static.take(number[classes], axis=0)[None]
            own[:, self._static.places] = describe_calls(static, plain_ms[:, classes])
            own[:, self._changing.places] = describe_calls(changing[:, classes], plain_ms[:, classes])
        return descriptors

    def half_widths(self, descriptors: Float32Array) -> FloatArray:
        """Half-width of the interval of each graph at each batch, [G, B].

        Shapes:
            descriptors: [G, B, F].
        """
        return self._novelty.half_width(self._distance(descriptors))

    def kept(self, descriptors: Float32Array) -> FloatArray:
        """How much of the corrections is left of each graph at each batch, 0 to 1, [G, B].

        All of it as far as the interval was calibrated, none twice as far. On architectures that the networks
        never saw the plain sum knows more of such calls: published ones are in `data/published`. On an architecture of
        their own the networks are the better ones at any distance, as families that were left out show.

        The distance is that of the same call whose sizes are aligned as they mostly are: it would step where the batch
        is a multiple of 8, and the time with it.

        Shapes:
            descriptors: [G, B, F].
        """
        alike = descriptors.copy()
        alike[..., self._aligned] = 0.0
        return np.asarray(np.clip(2.0 - self._distance(alike) / self._novelty.distances[-1], 0.0, 1.0))

    def _distance(self, descriptors: Float32Array) -> FloatArray:
        """How far each is from the nearest call of the training, [G, B]."""
        flat = descriptors.reshape(-1, descriptors.shape[-1])
        return self._novelty.distance(flat).reshape(descriptors.shape[:-1])


def _read_ensemble(artefact: AdditiveArtefact, tensors: Mapping[str, Float32Array]) -> Ensemble:
    """All members of an artefact."""
    members = [
        {name.removeprefix(own): values for name, values in tensors.items() if name.startswith(own)}
        for own in (f"member{member}." for member in range(artefact.members))
    ]
    try:
        return Ensemble(members)
    except (ValueError, KeyError, IndexError) as exc:
        raise _unreadable(f"The networks cannot be read: {exc}.") from exc


def _read_convolutions(
    artefact: AdditiveArtefact, tensors: Mapping[str, Float32Array], columns: IndexArray
) -> ConvolutionForward | None:
    """The network of convolutions of an artefact, None where it was trained without one."""
    if not any(name.startswith(CONVOLUTIONS) for name in tensors):
        if artefact.settings.get("convolution_epochs", 0) > 0:
            raise _unreadable("The network of convolutions, which the others were trained to correct, is missing.")
        return None
    try:
        return ConvolutionForward(tensors, columns)
    except (ValueError, KeyError, IndexError) as exc:
        raise _unreadable(f"The network of convolutions cannot be read: {exc}.") from exc


def _read_ramps(tensors: Mapping[str, Float32Array], *, columns: int) -> Ramps:
    """The ramps of an artefact, which with its columns are all that its networks read."""
    try:
        ramps = Ramps.from_tensors(tensors)
        inputs = tensors["member0.input.weight"].shape[1]
        if np.any(ramps.column >= columns) or columns + len(ramps) != inputs:
            raise ValueError(f"{columns} columns and {len(ramps)} ramps are not {inputs} inputs")
    except (ValueError, KeyError, IndexError) as exc:
        raise _unreadable(f"The networks' inputs cannot be read: {exc}.") from exc
    return ramps


def _unreadable(message: str) -> DippmError:
    return DippmError(message, code="artefact.unreadable", cure="Rebuild them with: python -m dippm.training.additive")
