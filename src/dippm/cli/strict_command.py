"""A command that drops nothing of what was typed."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperOption

from dippm.errors import UsageError

__all__ = ["StrictCommand"]


class StrictCommand(TyperCommand):
    """A command whose options are given once, but for those that take several values and those that take none.

    The option parser itself keeps the last value and says nothing of the others.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a command line.

        Args:
            ctx: The command as it is called; the class has no public name in every version of the parser.
            args: The words.

        Returns:
            Words that are left.

        Raises:
            UsageError: ``option.repeated``.
        """
        # In the order of the words, an option as often as it is there.
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        for at, parameter in enumerate(order):
            if not isinstance(parameter, TyperOption) or parameter.multiple or parameter.is_flag:
                continue
            if parameter in order[:at]:
                raise UsageError(
                    f"The option {parameter.opts[0]} takes one value here, and is given twice.",
                    code="option.repeated",
                    cure=f"Give it once; see {ctx.command_path} --help.",
                )
        return super().parse_args(ctx, args)
