"""ONNX models: any opset since 7, of any size, without reading a weight."""

from dippm.frontends.onnx.reader import read_onnx

__all__ = ["read_onnx"]
