"""The public verbs. Everything heavier than their names is imported when a name is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dippm.api.capacity import MaxBatch, fits, max_batch
    from dippm.api.evaluation import evaluate
    from dippm.api.inspection import Inspection, ModuleCost, OperatorCost
    from dippm.api.operator_table import operators
    from dippm.api.prediction import inspect, load, predict
    from dippm.devices import DeviceSpec, MigProfile, find_device, load_device_file
    from dippm.devices import load_catalog as list_devices
    from dippm.errors import DippmError, MissingExtraError, ModelReadError, UnsupportedError, UsageError
    from dippm.evaluation.kernels import KernelReport, KernelScore
    from dippm.evaluation.whole_models import WholeModelReport, WholeModelScore
    from dippm.graph import Graph
    from dippm.placement.fit import Fit, FitVerdict
    from dippm.predictors.prediction import Prediction

__all__ = [
    "DeviceSpec",
    "DippmError",
    "Fit",
    "FitVerdict",
    "Graph",
    "Inspection",
    "KernelReport",
    "KernelScore",
    "MaxBatch",
    "MigProfile",
    "MissingExtraError",
    "ModelReadError",
    "ModuleCost",
    "OperatorCost",
    "Prediction",
    "UnsupportedError",
    "UsageError",
    "WholeModelReport",
    "WholeModelScore",
    "evaluate",
    "find_device",
    "fits",
    "inspect",
    "list_devices",
    "load",
    "load_device_file",
    "max_batch",
    "operators",
    "predict",
]

_HOMES = {
    "DeviceSpec": "dippm.devices",
    "DippmError": "dippm.errors",
    "Fit": "dippm.placement.fit",
    "FitVerdict": "dippm.placement.fit",
    "Graph": "dippm.graph",
    "Inspection": "dippm.api.inspection",
    "KernelReport": "dippm.evaluation.kernels",
    "KernelScore": "dippm.evaluation.kernels",
    "MaxBatch": "dippm.api.capacity",
    "MigProfile": "dippm.devices",
    "MissingExtraError": "dippm.errors",
    "ModelReadError": "dippm.errors",
    "ModuleCost": "dippm.api.inspection",
    "OperatorCost": "dippm.api.inspection",
    "Prediction": "dippm.predictors.prediction",
    "UnsupportedError": "dippm.errors",
    "UsageError": "dippm.errors",
    "WholeModelReport": "dippm.evaluation.whole_models",
    "WholeModelScore": "dippm.evaluation.whole_models",
    "list_devices": "dippm.devices",
    "evaluate": "dippm.api.evaluation",
    "find_device": "dippm.devices",
    "fits": "dippm.api.capacity",
    "inspect": "dippm.api.prediction",
    "load": "dippm.api.prediction",
    "load_device_file": "dippm.devices",
    "max_batch": "dippm.api.capacity",
    "operators": "dippm.api.operator_table",
    "predict": "dippm.api.prediction",
}
_NAMES_AT_HOME = {"list_devices": "load_catalog"}


def __getattr__(name: str) -> object:
    """Import a public name from its home on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value: object = getattr(import_module(_HOMES[name]), _NAMES_AT_HOME.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
