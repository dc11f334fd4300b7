"""Placement: which MIG slice a model needs, and whether it fits a device."""

from dippm.placement.fit import Fit, FitVerdict, fits
from dippm.placement.mig import MigPolicy, choose_mig

__all__ = ["Fit", "FitVerdict", "MigPolicy", "choose_mig", "fits"]
