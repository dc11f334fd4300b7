"""The options of every command that asks a predictor, declared once: how the model is read, what the figures hold for.

A command has a parameter ``asked: Options`` for all of them, where they are to stand in its help.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any

from dippm.api.question import Options
from dippm.cli import options

__all__ = ["with_shared_options"]


def with_shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command as the option parser sees it: with the shared options in the place of ``asked``."""
    shared = signature(_read, eval_str=True).parameters
    parameters: list[Parameter] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        # In keywords alone: what must be given may then stand anywhere.
        standing = shared.values() if parameter.name == "asked" else [parameter]
        parameters += [each.replace(kind=Parameter.KEYWORD_ONLY) for each in standing]

    @wraps(command)
    def run(**given: Any) -> None:
        asked = _read(**{name: given.pop(name) for name in shared})
        command(**given, asked=asked)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _read(
    framework: options.FrameworkOption = None,
    input: options.InputOption = None,  # noqa: A002 - the contract's name
    weights: options.WeightsOption = None,
    precision: options.PrecisionOrHeldOption = None,
    mode: options.ModeOrHeldOption = None,
    optimizer: options.OptimizerOption = None,
    accumulation: options.AccumulationOption = 1,
    checkpointing: options.CheckpointingOption = False,
    lora: options.LoraOption = None,
    layout: options.LayoutOrHeldOption = None,
    runtime: options.RuntimeOrHeldOption = None,
    software: options.SoftwareOption = None,
    trust_pickle: options.TrustOption = False,
) -> Options:
    return Options(
        framework=framework,
        input=input or None,
        weights=weights,
        precision=precision,
        mode=mode,
        optimizer=optimizer,
        accumulation=accumulation,
        checkpointing=checkpointing,
        lora=lora,
        layout=layout,
        runtime=runtime,
        software=software,
        trust=trust_pickle,
    )
