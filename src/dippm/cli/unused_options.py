"""Options that a person gave and that would change nothing."""

from __future__ import annotations

from collections.abc import Callable

import typer

from dippm.errors import UsageError

__all__ = ["refuse_unused"]


def refuse_unused(context: typer.Context, is_unused: Callable[[str], bool], *, what: str, cure: str) -> None:
    """Refuse options on the command line that mean nothing beside another one.

    Args:
        context: The command as it was called.
        is_unused: Whether the parameter of this name means nothing.
        what: Beside which option, such as ``"--adapt"``.
        cure: What to do about it.

    Raises:
        UsageError: ``option.unused``.
    """
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if is_unused(str(parameter.name))
        and (source := context.get_parameter_source(str(parameter.name))) is not None
        and source.name == "COMMANDLINE"
    ]
    if given:
        raise UsageError(
            f"With {what} there is nothing that {', '.join(given)} could change.", code="option.unused", cure=cure
        )
