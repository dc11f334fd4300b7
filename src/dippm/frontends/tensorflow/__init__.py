"""TensorFlow and Keras models: files of every kind and objects, converted by tf2onnx in a process of its own.

The package itself imports nothing: its converter starts in a process of its own, where every import counts.
"""
