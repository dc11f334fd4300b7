"""Transformations of a graph, one per module."""
