"""The command line: thin commands over :mod:`dippm.api`, tables for people and JSON for programs."""

from dippm.cli.main import main

__all__ = ["main"]
