"""Paddle's models, through paddle2onnx; Paddle is loaded only where one is converted."""

from dippm.frontends.paddle.convert import convert_paddle

__all__ = ["convert_paddle"]
