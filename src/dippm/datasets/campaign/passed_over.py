"""The option of a campaign's command that passes over the first recipes of a collection."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

__all__ = ["add_first_option"]


def add_first_option(parser: argparse.ArgumentParser, collections: Sequence[str]) -> None:
    """Add ``--first COLLECTION=NUMBER``, which may be given for each collection; a list of pairs comes out.

    Args:
        parser: The command's.
        collections: What it measures.
    """

    def read(text: str) -> tuple[str, int]:
        collection, _, number = text.partition("=")
        if collection not in collections or not number.isdecimal():
            raise argparse.ArgumentTypeError(f"{text!r} is not a collection ({', '.join(collections)}) and a number")
        return collection, int(number)

    parser.add_argument(
        "--first",
        type=read,
        action="append",
        default=[],
        metavar="COLLECTION=NUMBER",
        help="recipes of a collection to pass over; may be given for each",
    )
