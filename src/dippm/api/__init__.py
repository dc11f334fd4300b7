"""The public verbs. Everything heavier than their names is imported when a name is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dippm.api.datasets import (
        CollectionInfo,
        cache_graphs,
        export_labels,
        import_labels,
        label_statistics,
        list_recipes,
        measure_collection,
        parse_duration,
        plot_labels,
    )
    from dippm.api.device_fit import DeviceFit, fits
    from dippm.api.dippm_evaluation import DippmEvaluation, evaluate_dippm
    from dippm.api.dnnperf_evaluation import DnnperfEvaluation, evaluate_dnnperf
    from dippm.api.evaluation import evaluate
    from dippm.api.exploration.exploration import Exploration
    from dippm.api.exploration.explore import explore
    from dippm.api.exploration.rebuild import rebuild
    from dippm.api.exploration.space import BuiltModel, Space
    from dippm.api.graph_files import save_graph
    from dippm.api.inspection import Inspection, ModuleCost, OperatorCost
    from dippm.api.kubernetes import packing_manifest, pod_fragment
    from dippm.api.largest_batch import MaxBatch, max_batch
    from dippm.api.loading import load
    from dippm.api.measuring import Measured, measure
    from dippm.api.models_file import load_models_file
    from dippm.api.models_to_pack import ModelToPack
    from dippm.api.operator_table import operators
    from dippm.api.packing import ModelPacking, PackedModel, pack
    from dippm.api.predicted_collections import predict_collection
    from dippm.api.prediction import inspect, predict, predict_each
    from dippm.api.prices import Price
    from dippm.api.sweep_report import SweepFailure, SweepProgress, SweepReport
    from dippm.api.sweeping import sweep
    from dippm.api.training import adapt, load_predictor, train
    from dippm.datasets.campaign.report import CampaignReport, CampaignStoppedError
    from dippm.datasets.campaign.run import Progress as CampaignProgress
    from dippm.datasets.graph_cache import GraphFailure
    from dippm.datasets.statistics import LabelStatistics
    from dippm.devices import DeviceSpec, MigProfile, find_device, load_device_file
    from dippm.devices import load_catalog as list_devices
    from dippm.errors import DippmError, MissingExtraError, ModelReadError, UnsupportedError, UsageError
    from dippm.evaluation.dippm_report import DippmReport
    from dippm.evaluation.dnnperf_report import DnnperfReport
    from dippm.evaluation.kernels import KernelReport, KernelScore
    from dippm.evaluation.whole_models import WholeModelReport, WholeModelScore
    from dippm.frontends.detect import Framework, detect_framework, parse_framework
    from dippm.graph import Graph
    from dippm.placement.fit import Fit, FitVerdict
    from dippm.placement.packing import PackedGpu, PackedSlice, Packing
    from dippm.predictors.pmgns import PmgnsPredictor
    from dippm.predictors.prediction import Prediction
    from dippm.training.adaptation_report import AdaptationReport, AdaptedRegime
    from dippm.training.device_calibration import CalibratedPower, MeasuredContext
    from dippm.training.fit_network import EpochReport
    from dippm.training.train_model import TrainingReport

__all__ = [
    "AdaptationReport",
    "AdaptedRegime",
    "BuiltModel",
    "CalibratedPower",
    "CampaignProgress",
    "CampaignReport",
    "CampaignStoppedError",
    "CollectionInfo",
    "DeviceFit",
    "DeviceSpec",
    "DippmError",
    "DippmEvaluation",
    "DippmReport",
    "DnnperfEvaluation",
    "DnnperfReport",
    "EpochReport",
    "Exploration",
    "Fit",
    "FitVerdict",
    "Framework",
    "Graph",
    "GraphFailure",
    "Inspection",
    "KernelReport",
    "KernelScore",
    "LabelStatistics",
    "MaxBatch",
    "Measured",
    "MeasuredContext",
    "MigProfile",
    "MissingExtraError",
    "ModelPacking",
    "ModelReadError",
    "ModelToPack",
    "ModuleCost",
    "OperatorCost",
    "PackedGpu",
    "PackedModel",
    "PackedSlice",
    "Packing",
    "PmgnsPredictor",
    "Prediction",
    "Price",
    "Space",
    "SweepFailure",
    "SweepProgress",
    "SweepReport",
    "TrainingReport",
    "UnsupportedError",
    "UsageError",
    "WholeModelReport",
    "WholeModelScore",
    "adapt",
    "cache_graphs",
    "detect_framework",
    "evaluate",
    "evaluate_dippm",
    "evaluate_dnnperf",
    "explore",
    "export_labels",
    "find_device",
    "fits",
    "import_labels",
    "inspect",
    "label_statistics",
    "list_devices",
    "list_recipes",
    "load",
    "load_device_file",
    "load_models_file",
    "load_predictor",
    "max_batch",
    "measure",
    "measure_collection",
    "operators",
    "pack",
    "packing_manifest",
    "parse_duration",
    "parse_framework",
    "plot_labels",
    "pod_fragment",
    "predict",
    "predict_collection",
    "predict_each",
    "rebuild",
    "save_graph",
    "sweep",
    "train",
]

_HOMES = {
    "AdaptationReport": "dippm.training.adaptation_report",
    "AdaptedRegime": "dippm.training.adaptation_report",
    "BuiltModel": "dippm.api.exploration.space",
    "CalibratedPower": "dippm.training.device_calibration",
    "CampaignProgress": "dippm.datasets.campaign.run",
    "CampaignReport": "dippm.datasets.campaign.report",
    "CampaignStoppedError": "dippm.datasets.campaign.report",
    "CollectionInfo": "dippm.api.datasets",
    "DeviceFit": "dippm.api.device_fit",
    "DeviceSpec": "dippm.devices",
    "DippmError": "dippm.errors",
    "DippmEvaluation": "dippm.api.dippm_evaluation",
    "DippmReport": "dippm.evaluation.dippm_report",
    "DnnperfEvaluation": "dippm.api.dnnperf_evaluation",
    "DnnperfReport": "dippm.evaluation.dnnperf_report",
    "EpochReport": "dippm.training.fit_network",
    "Exploration": "dippm.api.exploration.exploration",
    "Fit": "dippm.placement.fit",
    "FitVerdict": "dippm.placement.fit",
    "Graph": "dippm.graph",
    "GraphFailure": "dippm.datasets.graph_cache",
    "Inspection": "dippm.api.inspection",
    "KernelReport": "dippm.evaluation.kernels",
    "KernelScore": "dippm.evaluation.kernels",
    "LabelStatistics": "dippm.datasets.statistics",
    "MaxBatch": "dippm.api.largest_batch",
    "Measured": "dippm.api.measuring",
    "MeasuredContext": "dippm.training.device_calibration",
    "MigProfile": "dippm.devices",
    "MissingExtraError": "dippm.errors",
    "ModelPacking": "dippm.api.packing",
    "ModelReadError": "dippm.errors",
    "ModelToPack": "dippm.api.models_to_pack",
    "ModuleCost": "dippm.api.inspection",
    "OperatorCost": "dippm.api.inspection",
    "PackedGpu": "dippm.placement.packing",
    "PackedModel": "dippm.api.packing",
    "PackedSlice": "dippm.placement.packing",
    "Packing": "dippm.placement.packing",
    "PmgnsPredictor": "dippm.predictors.pmgns",
    "Prediction": "dippm.predictors.prediction",
    "Price": "dippm.api.prices",
    "SweepFailure": "dippm.api.sweep_report",
    "SweepProgress": "dippm.api.sweep_report",
    "SweepReport": "dippm.api.sweep_report",
    "Space": "dippm.api.exploration.space",
    "TrainingReport": "dippm.training.train_model",
    "UnsupportedError": "dippm.errors",
    "UsageError": "dippm.errors",
    "WholeModelReport": "dippm.evaluation.whole_models",
    "WholeModelScore": "dippm.evaluation.whole_models",
    "adapt": "dippm.api.training",
    "cache_graphs": "dippm.api.datasets",
    "evaluate": "dippm.api.evaluation",
    "evaluate_dippm": "dippm.api.dippm_evaluation",
    "evaluate_dnnperf": "dippm.api.dnnperf_evaluation",
    "explore": "dippm.api.exploration.explore",
    "export_labels": "dippm.api.datasets",
    "find_device": "dippm.devices",
    "parse_framework": "dippm.frontends.detect",
    "detect_framework": "dippm.frontends.detect",
    "Framework": "dippm.frontends.detect",
    "fits": "dippm.api.device_fit",
    "import_labels": "dippm.api.datasets",
    "inspect": "dippm.api.prediction",
    "label_statistics": "dippm.api.datasets",
    "list_devices": "dippm.devices",
    "list_recipes": "dippm.api.datasets",
    "load": "dippm.api.loading",
    "load_device_file": "dippm.devices",
    "load_models_file": "dippm.api.models_file",
    "load_predictor": "dippm.api.training",
    "max_batch": "dippm.api.largest_batch",
    "measure": "dippm.api.measuring",
    "measure_collection": "dippm.api.datasets",
    "operators": "dippm.api.operator_table",
    "pack": "dippm.api.packing",
    "packing_manifest": "dippm.api.kubernetes",
    "parse_duration": "dippm.api.datasets",
    "plot_labels": "dippm.api.datasets",
    "pod_fragment": "dippm.api.kubernetes",
    "predict": "dippm.api.prediction",
    "predict_collection": "dippm.api.predicted_collections",
    "predict_each": "dippm.api.prediction",
    "rebuild": "dippm.api.exploration.rebuild",
    "save_graph": "dippm.api.graph_files",
    "sweep": "dippm.api.sweeping",
    "train": "dippm.api.training",
}
_NAMES_AT_HOME = {"CampaignProgress": "Progress", "list_devices": "load_catalog"}


def __getattr__(name: str) -> object:
    """Import a public name from its home on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value: object = getattr(import_module(_HOMES[name]), _NAMES_AT_HOME.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
