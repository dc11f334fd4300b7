"""Models of other frameworks through their own converters to ONNX, each run in a process of its own.

The package itself imports nothing: a converter imports its side of it alone.
"""
