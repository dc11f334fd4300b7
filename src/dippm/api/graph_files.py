"""Graphs as files: a model to share or to ask about again, without its weights."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path

from dippm.errors import UsageError
from dippm.frontends.graph_file import write_graph_file
from dippm.graph import Graph

__all__ = ["save_graph"]


def save_graph(graph: Graph, path: str | PathLike[str]) -> None:
    """Write a graph to a file that is accepted wherever a model file is.

    It holds the operators and the shapes, names included, and no weights. Like the graph, it holds for inference or for
    training, whichever the model was read for.

    Args:
        graph: What :func:`dippm.load` read.
        path: The file, by custom ``NAME.json.gz``; one that is there already is replaced.

    Raises:
        UsageError: ``model.invalid`` where it is no graph, ``graph_file.unwritable``.
    """
    if not isinstance(graph, Graph):
        raise UsageError(
            f"What is saved must be a graph. Got {type(graph).__name__} instead.",
            code="model.invalid",
            cure="Read the model by dippm.load first.",
        )
    write_graph_file(graph, Path(fspath(path)))
