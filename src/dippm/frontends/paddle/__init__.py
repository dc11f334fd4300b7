"""Paddle's models, through paddle2onnx; Paddle is loaded only where one is converted.

The package itself imports nothing: its converter starts in a process of its own, where every import counts.
"""
