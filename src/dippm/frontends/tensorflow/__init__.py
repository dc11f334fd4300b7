"""TensorFlow and Keras models: files of every kind and objects, converted by tf2onnx in a process of its own."""

from dippm.frontends.tensorflow.conversion import convert_tensorflow
from dippm.frontends.tensorflow.objects import is_tensorflow_object

__all__ = ["convert_tensorflow", "is_tensorflow_object"]
