"""The bodies of answers, for the description of the service; answers themselves come from the workers as they are.

Within one ``schema`` fields may be added; none is taken away, renamed or given another meaning.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, Field

from dippm.server.jobs import Verb

__all__ = ["ANSWERS", "DevicesAnswer", "ErrorAnswer", "HealthAnswer"]


class Model(BaseModel):
    """The model that was read."""

    source: str
    framework: str
    nodes: int
    parameters: int = Field(description="Trained weights.")
    frozen_parameters: int = Field(description="Weights beside them where adapters alone are trained, else 0.")
    quantised_weights: dict[str, int] = Field(description="Weights that are stored in fewer than 16 bits, by type.")
    unsupported_ops: dict[str, int] = Field(description="Operators without a rule of their own.")


class Predictor(BaseModel):
    """Provenance."""

    name: str
    version: str
    labels: str = Field(description="Measurements that it was fitted on.")
    warnings: list[str] = Field(description="What the prediction cannot vouch for.")


class Prediction(BaseModel):
    """One batch on one device."""

    device: str
    mode: str
    precision: str
    layout: str
    runtime: str
    software: str | None
    optimizer: str | None = Field(default=None, description="In training.")
    accumulation: int | None = Field(default=None, description="In training.")
    checkpointing: bool | None = Field(default=None, description="In training.")
    lora: str | None = Field(default=None, description="In training: rank of the adapters, and their layers.")
    batch: int
    inputs: dict[str, list[int]]
    macs: int
    latency_ms: float
    step_time_ms: float | None = Field(default=None, description="In training; equal to latency_ms.")
    energy_j: float | None
    memory_mb: float | None = Field(description="MiB, at the peak.")
    needed_mb: list[float] | None = Field(
        description="Ends of the memory with which it gets through, MiB; at most those of what it holds."
    )
    mig: str | None = Field(description="Smallest MIG profile that holds it.")
    no_slice: str | None = Field(description="Why mig is null, as a person reads it; null where it is not.")
    intervals: dict[str, list[float]] = Field(description="Low and high: 90 % of measured values lie between.")
    memory_parts_mb: dict[str, float]
    predictor: Predictor


class Refused(BaseModel):
    """A device that cannot run what is asked."""

    device: str
    code: str = Field(description="Stable name for programs.", examples=["software.impossible"])
    message: str


_REFUSED: list[Refused] = Field(
    default=[], description="Devices that are left out, and why; absent where there are none."
)


class PredictAnswer(BaseModel):
    """Answer of ``/v1/predict``: the object of ``dippm predict --json``."""

    schema_: int = Field(alias="schema")
    model: Model
    predictions: list[Prediction]
    refused: list[Refused] = _REFUSED


class Price(BaseModel):
    """What the run costs, in the currency of the question."""

    per_hour: float
    per_call: float
    per_sample: float


class Fit(BaseModel):
    """Whether a model fits one device at one batch."""

    device: str
    batch: int
    software: str
    fits: str = Field(description="yes, no, or unsure: the capacity lies within the interval.")
    needed_mb: list[float] = Field(description="Ends of the memory with which it gets through; at most what it holds.")
    capacity_mb: float
    margin_mb: float
    largest_part: str
    memory_parts_mb: dict[str, float]
    price: Price | None = None
    prediction: Prediction


class FitsAnswer(BaseModel):
    """Answer of ``/v1/fits``: the object of ``dippm fits --json``."""

    schema_: int = Field(alias="schema")
    model: Model
    fits: list[Fit]
    refused: list[Refused] = _REFUSED


class MaxBatch(BaseModel):
    """The largest batch on one device."""

    device: str
    batch: int = Field(description="All of the interval of what it needs fits; 0 where no sample does.")
    batch_at_most: int = Field(description="Not ruled out.")
    bound_by: str
    needed_mb: list[float] = Field(description="The same as in fits, at that batch.")
    largest_part: str
    price: Price | None = None
    prediction: Prediction


class MaxBatchAnswer(BaseModel):
    """Answer of ``/v1/max-batch``: the object of ``dippm max-batch --json``."""

    schema_: int = Field(alias="schema")
    model: Model
    max_batches: list[MaxBatch]
    refused: list[Refused] = _REFUSED


class Operator(BaseModel):
    """One operator's part of a prediction."""

    position: int
    kind: str
    source_op: str
    phase: str
    scope: str
    output_shape: list[int]
    macs: int
    flops: int
    traffic_mb: float
    time_ms: float
    live_mb: float
    kernel: int


class Module(BaseModel):
    """Sum over one module and what is below it."""

    name: str
    time_ms: float
    macs: int
    peak_mb: float
    operators: int
    children: list[Module]


class InspectAnswer(BaseModel):
    """Answer of ``/v1/inspect``: the object of ``dippm inspect --json``."""

    schema_: int = Field(alias="schema")
    model: Model
    prediction: Prediction
    phases: dict[str, float]
    operators: list[Operator]
    modules: Module


class Device(BaseModel):
    """A device of the catalogue; every figure of ``dippm devices --json`` is there."""

    name: str
    architecture: str
    memory_mb: float
    bandwidth_gb_s: float
    board_power_w: float


class DevicesAnswer(BaseModel):
    """Answer of ``/v1/devices``."""

    schema_: int = Field(alias="schema")
    devices: list[Device]


class Error(BaseModel):
    """Why a request was not answered."""

    code: str = Field(description="Stable name for programs.", examples=["device.unknown"])
    message: str
    cure: str | None
    exit_status: int = Field(description="Exit status of the command line for the same error.")


class ErrorAnswer(BaseModel):
    """Every answer but 200."""

    schema_: int = Field(alias="schema")
    error: Error


class HealthAnswer(BaseModel):
    """Answer of ``/healthz``."""

    status: str = Field(description="ready, starting, or stopping.")
    workers: int = Field(description="Workers that can work.")


ANSWERS: Mapping[Verb, type[BaseModel]] = {
    Verb.PREDICT: PredictAnswer,
    Verb.FITS: FitsAnswer,
    Verb.MAX_BATCH: MaxBatchAnswer,
    Verb.INSPECT: InspectAnswer,
}
