"""Plain data as YAML, in the small part of the language that every reader of it agrees on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["to_yaml"]

# A text that no version of YAML takes for anything else.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
# Words that some version takes for true, false or nothing.
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def to_yaml(value: Mapping[str, object] | Sequence[object]) -> str:
    """Write mappings, lists, texts, whole numbers, truth values and None as a YAML document.

    Args:
        value: What to write; mappings keep their order.

    Returns:
        The document, without the line that separates documents, ending in a line break.
    """
    return "".join(f"{line}\n" for line in _block(value))


def _block(value: object) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            head = f"{_scalar(str(key))}:"
            if isinstance(each, str) and _is_block_of_lines(each):
                yield f"{head} |"
                yield from (f"  {line}" for line in each.splitlines())
            elif each and (isinstance(each, Mapping) or _is_list(each)):
                yield head
                yield from (f"  {line}" for line in _block(each))
            else:
                yield f"{head} {_scalar(each)}"
    elif _is_list(value) and value:
        for each in value:  # type: ignore[attr-defined]  # a sequence, as just checked
            first, *rest = _block(each)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _is_block_of_lines(text: str) -> bool:
    """Whether a text can stand as it is: printable lines, none of them empty, the first not indented."""
    *lines, last = text.split("\n")
    return not last and bool(lines) and all(line.isprintable() and line for line in lines) and lines[0][0] != " "


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _scalar(value: object) -> str:
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if is_plain else f'"{"".join(map(_escape, value))}"'
    if isinstance(value, Mapping):
        return "{}"
    if _is_list(value):
        return "[]"
    return json.dumps(value)


def _escape(character: str) -> str:
    """A character of a text in double quotes; JSON's escapes of characters in pairs are not YAML's."""
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"
