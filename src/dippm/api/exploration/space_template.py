"""A space as YAML: choices, and a model by name whose arguments may be choices.

```yaml
choices:
  depth: {from: 2, to: 12}
  heads: [3, 6, 12]
model:
  architecture: timm:vit
  arguments: {depth: $depth, num_heads: $heads, embed_dim: 192}
input: [3, 224, 224]
```

``architecture`` is what recipes of data sets name (:mod:`dippm.datasets.recipes.building`): a family of which all
arguments are given, or ``zoo:timm:NAME``, a library's own model with some arguments changed. ``$name`` is what was
chosen there; an argument whose choice is not open is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dippm.api.exploration.choices import Choice, Choices, parse_choices
from dippm.api.exploration.template_check import check_names
from dippm.datasets.recipes.recipe import Recipe
from dippm.errors import MissingExtraError, UsageError

__all__ = ["parse_template"]

_SIGN = "$"
_LEFT_OUT = object()


def parse_template(
    content: bytes, file: Path, *, is_known: bool = False
) -> tuple[tuple[Choice, ...], Callable[[Choices], tuple[object, object]]]:
    """Read a space that is written as YAML.

    Args:
        content: The file's content.
        file: Its path, for messages.
        is_known: Whether the same content was read before, and the names in it found to be known.

    Returns:
        The choices, and what gives the model and its inputs of a point.

    Raises:
        UsageError: ``space.invalid``, with the path of the key that is wrong.
        MissingExtraError: PyYAML or the library with the model is not installed.
    """
    given = _read_yaml(content, file)
    for key in given:
        if key not in {"choices", "model", "input"}:
            raise _invalid(str(key), "choices, model or input")
    choices = parse_choices(given.get("choices"))
    model = given.get("model")
    if not isinstance(model, Mapping) or not isinstance(model.get("architecture"), str):
        raise _invalid("model.architecture", "the name of an architecture, such as zoo:timm:resnet50")
    unknown = next((key for key in model if key not in {"architecture", "arguments"}), None)
    if unknown is not None:
        raise _invalid(f"model.{unknown}", "architecture or arguments")
    arguments = model.get("arguments") or {}
    if not isinstance(arguments, Mapping):
        raise _invalid("model.arguments", "names and values")
    if "input" not in given:
        raise _invalid("input", "the shape of one sample, such as [3, 224, 224]")
    names = {choice.name for choice in choices}
    for part in ("model", "input"):
        _check_references(part, given[part], names)
    builder = _Builder(architecture=model["architecture"], arguments=arguments, inputs=given["input"])
    if not is_known:
        check_names(choices, builder.fill)
    return choices, builder


class _Builder:
    """Fills the template in."""

    def __init__(self, *, architecture: str, arguments: Mapping[str, Any], inputs: object) -> None:
        self._architecture, self._arguments, self._inputs = architecture, arguments, inputs

    def __call__(self, chosen: Choices) -> tuple[object, object]:
        from dippm.datasets.recipes.building import build

        module, _ = build(self.fill(chosen))
        return module, self._shapes(chosen)

    def fill(self, chosen: Choices) -> Recipe:
        """The recipe of a point."""
        from dippm.frontends.inputs import parse_input_shapes

        return Recipe(
            collection="space",
            family="space",
            architecture=str(_fill(self._architecture, chosen)),
            arguments={
                name: value
                for name, written in self._arguments.items()
                if (value := _fill(written, chosen)) is not _LEFT_OUT
            },
            inputs=parse_input_shapes(self._shapes(chosen)),
            batch=1,
        )

    def _shapes(self, chosen: Choices) -> Any:
        return _as_shape(_fill(self._inputs, chosen))


def _read_yaml(content: bytes, file: Path) -> Mapping[str, Any]:
    try:
        import yaml
    except ImportError as exc:
        raise MissingExtraError(package="yaml", extra="explore", purpose="read a space written as YAML") from exc
    try:
        given = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as exc:
        raise UsageError(f"The space '{file}' is no YAML: {_tell(exc)}.", code="space.invalid") from exc
    if not isinstance(given, Mapping):
        raise _invalid("content", "choices, model and input")
    return given


def _tell(exc: Exception) -> str:
    """What PyYAML found, in one line, and where."""
    problem, mark = getattr(exc, "problem", None), getattr(exc, "problem_mark", None)
    where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
    return " ".join(str(problem or exc).split()).rstrip(".") + where


def _fill(written: Any, chosen: Choices) -> Any:
    """What was written with what was chosen in its places; lists become tuples, as recipes have them."""
    if isinstance(written, str) and written.startswith(_SIGN):
        return chosen.get(written[1:], _LEFT_OUT)
    if isinstance(written, list):
        filled = (_fill(each, chosen) for each in written)
        return tuple(each for each in filled if each is not _LEFT_OUT)
    if isinstance(written, Mapping):
        return {name: _fill(each, chosen) for name, each in written.items()}
    return written


def _as_shape(filled: Any) -> object:
    """A shape as the public verbs take it: several inputs are a list of tuples."""
    return list(filled) if isinstance(filled, tuple) and filled and isinstance(filled[0], tuple) else filled


def _check_references(path: str, written: Any, names: set[str]) -> None:
    for where, text in _texts(path, written):
        if text.startswith(_SIGN) and text[1:] not in names:
            raise _invalid(
                where, f"one of the choices ({', '.join(sorted(names))}) after the {_SIGN}: {text!r} is none"
            )


def _texts(path: str, written: Any) -> Iterator[tuple[str, str]]:
    if isinstance(written, str):
        yield path, written
    elif isinstance(written, list):
        for at, each in enumerate(written):
            yield from _texts(f"{path}[{at}]", each)
    elif isinstance(written, Mapping):
        for name, each in written.items():
            yield from _texts(f"{path}.{name}", each)


def _invalid(path: str, wanted: str) -> UsageError:
    return UsageError(f"The space's {path} must be {wanted}.", code="space.invalid")
