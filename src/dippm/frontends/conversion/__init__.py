"""Models of other frameworks through their own converters to ONNX, each run in a process of its own."""

from dippm.frontends.conversion.convert import ConvertedModel, convert
from dippm.frontends.conversion.limits import ConversionLimits

__all__ = ["ConversionLimits", "ConvertedModel", "convert"]
