"""Options that several commands share, and the reading of their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dippm.errors import UsageError

if TYPE_CHECKING:
    from dippm.api import DeviceSpec

__all__ = [
    "AccumulationOption",
    "AdaptedPredictorOption",
    "BatchOption",
    "CheckpointingOption",
    "ClusterOption",
    "DeviceFileOption",
    "DeviceOption",
    "FormatOption",
    "FrameworkOption",
    "InputOption",
    "JsonOption",
    "LayoutOption",
    "LayoutOrHeldOption",
    "MigPolicyOption",
    "ModeOption",
    "ModeOrHeldOption",
    "ModelArgument",
    "OneBatchOption",
    "OneDeviceOption",
    "OptimizerOption",
    "PrecisionOption",
    "PrecisionOrHeldOption",
    "PredictorOption",
    "PriceOption",
    "RuntimeOption",
    "RuntimeOrHeldOption",
    "SoftwareOption",
    "TrustOption",
    "find_devices",
    "find_one_device",
    "is_kubernetes",
    "parse_batches",
    "parse_one_batch",
    "parse_prices",
    "parse_rate",
]

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Model file or folder, or timm:NAME, torchvision:NAME, hf:ARCH, diffusers:CLASS.",
        show_default=False,
    ),
]
FrameworkOption = Annotated[
    str | None,
    typer.Option("--framework", "-f", help="Framework of the file; found out when left out.", show_default=False),
]
OneBatchOption = Annotated[str, typer.Option("--batch", "-b", metavar="N", help="The batch size.")]
BatchOption = Annotated[
    list[str] | None,
    typer.Option(
        "--batch",
        "-b",
        metavar="N[,N...]",
        help="Batch sizes, joined by commas; may be repeated.",
        show_default="1",
    ),
]
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="[NAME=]SHAPE[:DTYPE]",
        help="Shape of one sample, without the batch: 3,224,224 or ids=384:int64. Repeat it for several inputs; "
        "leave it out where the file fixes the shapes.",
        show_default=False,
    ),
]
DeviceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        "-d",
        metavar="NAME[,NAME...]",
        help="Devices, joined by commas; may be repeated. 1g.5gb@A100 is a MIG slice. A100 when left out.",
        show_default=False,
    ),
]
OneDeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        "-d",
        metavar="NAME",
        help="The device; 1g.5gb@A100 is a MIG slice. A100 when left out.",
        show_default=False,
    ),
]
DeviceFileOption = Annotated[
    str | None,
    typer.Option("--device-file", metavar="FILE", help="A GPU of your own, as a TOML file.", show_default=False),
]
_PRECISION_HELP = "fp32, fp32-strict, tf32, amp, amp-bf16, fp16 or bf16."
PrecisionOption = Annotated[str, typer.Option("--precision", "-p", help=_PRECISION_HELP)]
PrecisionOrHeldOption = Annotated[
    str | None, typer.Option("--precision", "-p", help=_PRECISION_HELP, show_default="that of the weights")
]
_MODE_HELP = "inference, or training: one whole step."
ModeOption = Annotated[str, typer.Option("--mode", "-m", help=_MODE_HELP)]
ModeOrHeldOption = Annotated[str | None, typer.Option("--mode", "-m", help=_MODE_HELP, show_default="inference")]
OptimizerOption = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        help="For training: sgd, momentum, adam, adamw, adamw-fused, adamw-8bit, adafactor, rmsprop or none; "
        "SGD with momentum when left out.",
        show_default=False,
    ),
]
AccumulationOption = Annotated[
    int,
    typer.Option(
        "--accumulation",
        metavar="N",
        help="For training: batches whose gradients are added up before one update; a step is all of them.",
    ),
]
CheckpointingOption = Annotated[
    bool,
    typer.Option(
        "--checkpointing", help="For training: blocks drop their activations and compute them again on the way back."
    ),
]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        "--weights",
        help="How weights of linear layers are stored, the last layer's apart: nf4, nf4-double, int8, int4, fp8, "
        "mxfp4, or dequantised, where they are published quantised.",
        show_default="as they are",
    ),
]
LoraOption = Annotated[
    str | None,
    typer.Option(
        "--lora",
        metavar="RANK[+dropout][:LAYER,...]",
        help="For training: adapters of this rank alone are trained, beside all linear layers but the last, or those "
        "that are named, as in 16:q_proj,v_proj.",
        show_default=False,
    ),
]
_LAYOUT_HELP = "Memory order of images: nchw or nhwc."
LayoutOption = Annotated[str, typer.Option("--layout", help=_LAYOUT_HELP)]
LayoutOrHeldOption = Annotated[str | None, typer.Option("--layout", help=_LAYOUT_HELP, show_default="nchw")]
_RUNTIME_HELP = "eager or compile; at inference also cuda-graph."
RuntimeOption = Annotated[str, typer.Option("--runtime", help=_RUNTIME_HELP)]
RuntimeOrHeldOption = Annotated[str | None, typer.Option("--runtime", help=_RUNTIME_HELP, show_default="eager")]
SoftwareOption = Annotated[
    str | None,
    typer.Option(
        "--software",
        metavar="RELEASE",
        help="Releases of PyTorch and CUDA, as 'torch 1.12+cu113': they change memory and time. Today's when left out.",
        show_default=False,
    ),
]
PretrainOption = Annotated[
    str | None,
    typer.Option(
        "--pretrain",
        metavar="STORE|PARQUET",
        help="Labels that networks learn from first, as dippm dataset predict writes them.",
        show_default=False,
    ),
]
PretrainEpochsOption = Annotated[
    int, typer.Option("--pretrain-epochs", metavar="N", help="With --pretrain: passes over those labels.", min=1)
]
_HELD_HELP = "It holds for the device of its labels, and their conditions are the defaults"
PredictorOption = Annotated[
    str | None,
    typer.Option(
        "--predictor",
        metavar="FOLDER",
        help=f"Predict by what dippm train wrote there. {_HELD_HELP}; a network holds for those alone.",
        show_default=False,
    ),
]
AdaptedPredictorOption = Annotated[
    str | None,
    typer.Option(
        "--predictor",
        metavar="FOLDER",
        help=f"Predict by what dippm train --adapt wrote there. {_HELD_HELP}.",
        show_default=False,
    ),
]
PriceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        metavar="NAME=PRICE[,...]",
        help="What a device costs per hour, in any currency, as A100=1.2,T4=0.35: the cheapest per sample comes first.",
        show_default=False,
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-pickle",
        help="Open pickled files and models of Python files (net.py:Net). That runs the code in them: only for files "
        "you trust.",
    ),
]
MigPolicyOption = Annotated[
    str, typer.Option("--mig-policy", help="safe: what the slice really offers; paper: Eq. 2 of DIPPM to the letter.")
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="k8s: what a Kubernetes manifest must say to get the slice, as YAML.",
        show_default=False,
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="A Ray cluster to work on: auto, or HOST:PORT of its head.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]


def is_kubernetes(output_format: str | None, *, as_json: bool) -> bool:
    """Whether ``--format k8s`` is asked for.

    Raises:
        UsageError: ``format.unknown`` where it is something else, ``format.twice`` where JSON is asked for as well.
    """
    if output_format is None:
        return False
    if output_format != "k8s":
        raise UsageError(f"The format must be k8s. Got '{output_format}' instead.", code="format.unknown")
    if as_json:
        raise UsageError("The answer is either JSON or a manifest: give --json or --format.", code="format.twice")
    return True


def parse_batches(given: list[str] | None) -> list[int]:
    """Read ``1,8,32``, each size once, 1 for none; whether one is possible is for the API to say.

    Raises:
        UsageError: ``batch.invalid``.
    """
    text = "1" if given is None else ",".join(given)
    sizes: dict[int, None] = {}
    for part in text.split(","):
        try:
            sizes[int(part.strip().replace("_", ""))] = None
        except ValueError as exc:
            raise UsageError(
                f"The batch must be whole numbers joined by commas, such as 1,8,32. Got '{text}' instead.",
                code="batch.invalid",
            ) from exc
    return list(sizes)


def find_devices(given: list[str] | None, file: str | None) -> list[DeviceSpec]:
    """The devices of ``--device`` and ``--device-file``, each once; the one of the file first, an A100 for neither.

    Where MIG slices of the file's card are named, the card itself is one of them only if it is named too.

    Raises:
        UsageError: ``device.invalid`` where there is no name, or the file is wrong.
        UnsupportedError: ``device.unknown``.
    """
    from dippm import api

    found = [] if file is None else [api.load_device_file(file)]
    if given is None:
        return found or [api.find_device("A100")]
    names = ",".join(given)
    parts = [part.strip() for part in names.split(",")]
    if not all(parts):
        raise UsageError(
            f"Devices must be names joined by commas. Got '{names}' instead.",
            code="device.invalid",
            cure="See dippm devices.",
        )
    named = [api.find_device(part, own=found) for part in parts]
    if any(spec.parent == card.name for card in found for spec in named):
        found = [card for card in found if card in named]
    for spec in named:
        if spec not in found:
            found.append(spec)
    return found


def find_one_device(name: str | None, file: str | None) -> DeviceSpec:
    """The device of ``--device`` or ``--device-file`` for a command that takes one.

    Raises:
        UsageError: ``device.invalid`` where there are several.
    """
    found = find_devices(None if name is None else [name], file)
    if len(found) > 1:
        raise UsageError(
            f"This command takes one device. Got {', '.join(spec.name for spec in found)} instead.",
            code="device.invalid",
        )
    return found[0]


def parse_one_batch(text: str) -> int:
    """Read the batch of a command that takes one.

    Raises:
        UsageError: ``batch.invalid``.
    """
    sizes = parse_batches([text])
    if len(sizes) > 1:
        raise UsageError(f"This command takes one batch size. Got '{text}' instead.", code="batch.invalid")
    return sizes[0]


def parse_prices(given: list[str] | None) -> dict[str, float] | None:
    """Read ``A100=1.2,T4=0.35``; whether a price is possible is for the API to say.

    Raises:
        UsageError: ``price.invalid``, or ``price.repeated`` where a device comes twice.
    """
    if given is None:
        return None
    text = ",".join(given)
    prices: dict[str, float] = {}
    for part in text.split(","):
        name, _, price = (piece.strip() for piece in part.partition("="))
        if name in prices:
            raise UsageError(f"There are two prices for '{name}'.", code="price.repeated")
        try:
            prices[name] = float(price)
        except ValueError as exc:
            raise UsageError(
                f"Prices must be written as NAME=PRICE joined by commas, such as A100=1.2. Got '{text}' instead.",
                code="price.invalid",
            ) from exc
    return prices


def parse_rate(text: str) -> float | str:
    """Read a learning rate: a number, or ``auto``; whether the number is possible is for the API to say.

    Raises:
        UsageError: ``train.settings``.
    """
    if text.strip().lower() == "auto":
        return "auto"
    try:
        return float(text)
    except ValueError as exc:
        raise UsageError(
            f"The learning rate must be a number or auto. Got '{text}' instead.", code="train.settings"
        ) from exc
