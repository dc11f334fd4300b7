"""The HTTP service: the verbs of :mod:`dippm.api` for programs that ask over a network.

The process that holds the network only moves bytes: it reads no model and imports no framework. Models are read and
predicted in worker processes, which a hostile or broken file may hang, fill or crash without harm to anyone else.
"""
