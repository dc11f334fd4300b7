"""What clients may ask: the bodies of requests, checked before anything is done for them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dippm.server.errors import ServiceError
from dippm.server.jobs import Verb

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = [
    "NAMED",
    "OPTIONS",
    "FitsOptions",
    "InspectOptions",
    "MaxBatchOptions",
    "Options",
    "PredictOptions",
    "parse_question",
]

_MOST_DEVICES = 64
_MOST_BATCHES = 1024
_MOST_ANSWERS = 4096
_MOST_INPUTS = 64
_MOST_ERRORS = 3

Word = Annotated[str, Field(max_length=100)]
Shape = Annotated[list[int], Field(max_length=16)]
Input = (
    Word
    | Shape
    | Annotated[list[Word | Shape], Field(max_length=_MOST_INPUTS)]
    | Annotated[dict[Word, Word | Shape], Field(max_length=_MOST_INPUTS)]
)
_BATCH = {"minimum": 1, "maximum": 2**24}
Batch = Annotated[int, Field(json_schema_extra=_BATCH)]
Batches = Batch | Annotated[list[Batch], Field(min_length=1, max_length=_MOST_BATCHES)]
Devices = Word | Annotated[list[Word], Field(min_length=1, max_length=_MOST_DEVICES)]
Prices = Annotated[dict[Word, float], Field(max_length=_MOST_DEVICES)]
_PART = r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,150}"
# A name and never a path: nothing of this machine's disk can be asked for.
ModelName = Annotated[
    str,
    Field(
        pattern=rf"^((timm|torchvision):{_PART}|hf:{_PART}(/{_PART})?(#(prefill|decode)(=[0-9]{{1,9}})?)?"
        rf"|diffusers:{_PART}(/{_PART}){{0,2}}(#image=[0-9]{{1,5}})?)$",
        description="A model by name; nothing is downloaded.",
        examples=["timm:resnet50"],
    ),
]

_NAMES = "a name begins with timm:, torchvision:, hf: or diffusers:, as in timm:resnet50"

# What an option must be, where it may be of several kinds.
_WANTED = {
    "batch": f"a whole number, or a list of 1 to {_MOST_BATCHES:,} of them",
    "device": f"a name, or a list of 1 to {_MOST_DEVICES} of them",
    "input": f"a shape such as '3,224,224' or [3, 224, 224], or a list or an object of up to {_MOST_INPUTS} of them",
}
_WANTED_BY_ERROR = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "string_type": "a text",
}
_LONGEST_VALUE = 60

_DEVICE = Field(
    default="A100", description="Device or MIG slice, or a list.", examples=["A100", ["A100", "1g.5gb@A100-SXM4-40GB"]]
)
_BATCHES = Field(default=1, description="Samples per call, or a list.", examples=[[1, 8, 32]])


class Options(BaseModel):
    """What all verbs understand; the same names and values as on the command line."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    framework: Word | None = Field(default=None, description="onnx, pytorch, tensorflow or paddle; detected if absent.")
    input: Input | None = Field(
        default=None,
        description="Shape of one sample, without the batch; a list for several inputs, an object by name. An element "
        "type follows a colon.",
        examples=["3,224,224", {"input_ids": "384:int64"}],
    )
    weights: Word | None = Field(
        default=None,
        description="How weights of linear layers are stored, the last layer's apart: nf4, nf4-double, int8, int4, "
        "fp8, mxfp4, or dequantised, where they are published quantised; absent: as they are.",
    )
    precision: Word | None = Field(
        default=None,
        description="fp32, fp32-strict, tf32, amp, amp-bf16, fp16 or bf16; if absent that of the model's weights.",
    )
    mode: Word = Field(default="inference", description="inference, or training: one whole step.")
    optimizer: Word | None = Field(
        default=None,
        description="For training: sgd, momentum, adam, adamw, adamw-fused, adamw-8bit, adafactor, rmsprop or none.",
    )
    accumulation: int = Field(default=1, description="For training: batches of which one step is made.")
    checkpointing: bool = Field(default=False, description="For training: activations are computed again.")
    lora: int | Word | None = Field(
        default=None, description="For training: rank of adapters that alone are trained, as 16 or '16:q_proj,v_proj'."
    )
    layout: Word = Field(default="nchw", description="nchw or nhwc.")
    runtime: Word = Field(default="eager", description="eager, compile or cuda-graph.")
    software: Word | None = Field(default=None, description="Releases of PyTorch and CUDA, as 'torch 1.12+cu113'.")


class PredictOptions(Options):
    """Options of ``/v1/predict``."""

    batch: Batches = _BATCHES
    device: Devices = _DEVICE
    mig_policy: Word = Field(default="safe", description="safe, or paper: Eq. 2 of DIPPM to the letter.")


class FitsOptions(Options):
    """Options of ``/v1/fits``."""

    batch: Batches = _BATCHES
    device: Devices = _DEVICE
    prices: Prices | None = Field(default=None, description="Price per hour by device: the cheapest comes first.")


class MaxBatchOptions(Options):
    """Options of ``/v1/max-batch``."""

    device: Devices = _DEVICE
    latency_ms: float | None = Field(default=None, description="Take no longer than this for a call, ms.")
    step_time_ms: float | None = Field(default=None, description="Take no longer than this for a training step, ms.")
    prices: Prices | None = Field(default=None, description="Price per hour by device: the cheapest comes first.")


class InspectOptions(Options):
    """Options of ``/v1/inspect``."""

    batch: Batch = Field(default=1, description="Samples per call.")
    device: Word = Field(default="A100", description="Device or MIG slice.")
    mig_policy: Word = Field(default="safe", description="safe, or paper: Eq. 2 of DIPPM to the letter.")
    top: Annotated[int, Field(ge=0, le=10**6)] | None = Field(
        default=None, description="How many operators to list, those that take longest; all of them if absent."
    )


class PredictByName(PredictOptions):
    """``/v1/predict`` of a model by name."""

    model: ModelName


class FitsByName(FitsOptions):
    """``/v1/fits`` of a model by name."""

    model: ModelName


class MaxBatchByName(MaxBatchOptions):
    """``/v1/max-batch`` of a model by name."""

    model: ModelName


class InspectByName(InspectOptions):
    """``/v1/inspect`` of a model by name."""

    model: ModelName


OPTIONS: Mapping[Verb, type[Options]] = {
    Verb.PREDICT: PredictOptions,
    Verb.FITS: FitsOptions,
    Verb.MAX_BATCH: MaxBatchOptions,
    Verb.INSPECT: InspectOptions,
}
NAMED: Mapping[Verb, type[Options]] = {
    Verb.PREDICT: PredictByName,
    Verb.FITS: FitsByName,
    Verb.MAX_BATCH: MaxBatchByName,
    Verb.INSPECT: InspectByName,
}

_Question = TypeVar("_Question", bound=Options)


def parse_question(kind: type[_Question], body: bytes) -> dict[str, Any]:
    """Read the JSON of a request.

    Args:
        kind: What it is to be.
        body: The JSON.

    Returns:
        What was asked, defaults filled in, without what is not there.

    Raises:
        ServiceError: ``request.invalid``, ``request.too_many``.
    """
    try:
        question = kind.model_validate_json(body)
    except ValidationError as exc:
        wrong: dict[str, list[ErrorDetails]] = {}
        for each in exc.errors(include_url=False, include_context=False):
            wrong.setdefault(str(each["loc"][0]) if each["loc"] else "body", []).append(each)
        where = "; ".join(_tell(option, errors, kind) for option, errors in list(wrong.items())[:_MOST_ERRORS])
        raise ServiceError(
            f"The request is not as described: {where[:1000]}.",
            code="request.invalid",
            status=400,
            cure="See /openapi.json.",
        ) from exc
    asked = question.model_dump(exclude_none=True)
    _check_extent(asked)
    return asked


def _tell(option: str, errors: Sequence[ErrorDetails], kind: type[Options]) -> str:
    """What is wrong with an option; several errors are those of all the kinds that it might have been of."""
    error = min(errors, key=lambda each: len(each["loc"]))
    path = ".".join(map(str, error["loc"])) or option
    if error["type"] == "extra_forbidden":
        if option == "model":
            return "model: the file that is sent is the model"
        near = get_close_matches(option, kind.model_fields, n=1)
        return f"{option}: there is no such option{f'; the nearest is {near[0]!r}' if near else ''}"
    if error["type"] == "string_pattern_mismatch":
        return f"{path}: {_NAMES}"
    wanted = _WANTED_BY_ERROR.get(error["type"])
    if len(errors) > 1 and option in _WANTED:
        path, wanted = option, _WANTED[option]
    if wanted is None:
        return f"{path}: {error['msg']}"
    got = json.dumps(error["input"])
    shown = got if len(got) <= _LONGEST_VALUE else f"{got[:_LONGEST_VALUE]}..."
    return f"{path}: it must be {wanted}, and is {shown}"


def _check_extent(asked: Mapping[str, Any]) -> None:
    """Refuse a request for more answers than one request is for."""
    batches, devices = (len(each) if isinstance(each := asked.get(name), list) else 1 for name in ("batch", "device"))
    if batches * devices > _MOST_ANSWERS:
        raise ServiceError(
            f"{batches} batches on {devices} devices are more than {_MOST_ANSWERS:,} answers.",
            code="request.too_many",
            status=400,
            cure="Ask in several requests.",
        )
