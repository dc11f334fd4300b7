"""Whether the architecture and the arguments of a space in YAML are there, found out before any trial."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from dippm.api.exploration.choices import Choice, Choices, draw
from dippm.datasets.recipes.recipe import Recipe
from dippm.errors import DippmError, UnsupportedError, UsageError

__all__ = ["check_names"]

_ZOO = "zoo:"
# Points that are looked at for arguments that are not always there, and the most of them that are built.
_DRAWN, _MOST_BUILT = 64, 8
_NEAREST = 3
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
_MISSING = re.compile(r"missing \d+ required .*?arguments?: (.*)")


def check_names(choices: Sequence[Choice], fill: Callable[[Choices], Recipe]) -> None:
    """Build a few points of a space on the meta device and see whether all names are known.

    A point that fails for what was chosen, rather than for a name, is let pass.

    Args:
        choices: The choices.
        fill: Gives the recipe of a point.

    Raises:
        UsageError: ``space.invalid``, with the nearest names.
        MissingExtraError: PyTorch or the library with the model is not installed.
    """
    generator = np.random.default_rng(0)
    try:
        recipes = [fill(draw(choices, generator)) for _ in range(_DRAWN)]
    except UsageError:  # shapes that are none are an error of each point that has them
        return
    given = {name for recipe in recipes for name in recipe.arguments}
    seen: set[tuple[str, str]] = set()
    built = 0
    for recipe in recipes:
        names = {(recipe.architecture, name) for name in ("", *recipe.arguments)}
        if not names <= seen and built < _MOST_BUILT:
            seen |= names
            built += 1
            _check(recipe, given)


def _check(recipe: Recipe, given: set[str]) -> None:
    from dippm.datasets.recipes.building import build

    try:
        build(recipe)
    except (UnsupportedError, UsageError) as exc:
        wrong = _find_wrong_name(recipe, exc, given)
        if wrong is not None:
            raise wrong from exc


def _find_wrong_name(recipe: Recipe, exc: DippmError, given: set[str]) -> UsageError | None:
    """What to say of an error that is about a name; None of every other."""
    architecture = recipe.architecture
    if exc.code in {"recipe.architecture_unknown", "zoo.unknown"}:
        return _invalid(f"model.architecture '{architecture}' is not known.", _near_architecture(architecture, exc))
    if exc.code == "zoo.option_unknown":
        return _invalid(f"model.arguments are not all known. {exc}", None)
    if not isinstance(exc.__cause__, TypeError):
        return None
    text = str(exc.__cause__)
    unexpected, missing = _UNEXPECTED.search(text), _MISSING.search(text)
    if unexpected is not None and unexpected[1] in recipe.arguments:
        name = unexpected[1]
        return _invalid(f"model.arguments.{name} is no argument of {architecture}.", _near_argument(recipe, name))
    lacking = [] if missing is None else [name for name in re.findall(r"'(\w+)'", missing[1]) if name not in given]
    if lacking and not architecture.startswith(_ZOO):
        return _invalid(f"model.arguments lack {', '.join(lacking)}: {architecture} needs them.", _of_library(recipe))
    return None


def _near_architecture(architecture: str, exc: DippmError) -> str | None:
    from dippm.datasets.recipes.building import list_architectures
    from dippm.frontends.zoo import is_zoo_name

    if architecture.startswith(_ZOO):
        return None if exc.cure is None else re.sub(r"\b(timm|torchvision|hf):", rf"{_ZOO}\1:", exc.cure)
    if is_zoo_name(architecture):
        return f"A library's own model is written as {_ZOO}{architecture}."
    return _nearest(architecture, list_architectures()) or exc.cure


def _near_argument(recipe: Recipe, name: str) -> str | None:
    library = _of_library(recipe)
    if library is not None:
        return library
    known = _arguments_of(recipe)
    return _nearest(name, known) or (f"It takes {', '.join(known)}." if known else None)


def _of_library(recipe: Recipe) -> str | None:
    """What to say where the arguments are those of the library's own model, which has ``zoo:`` before its name."""
    from dippm.frontends import zoo

    if not zoo.is_zoo_name(recipe.architecture):
        return None
    own = replace(recipe, architecture=f"{_ZOO}{recipe.architecture}")
    try:
        zoo.build(recipe.architecture, options=recipe.arguments)
    except (UnsupportedError, UsageError) as exc:
        if _find_wrong_name(own, exc, set(recipe.arguments)) is not None:
            return None
    return f"Write {own.architecture} for the library's own model, which takes what is given."


def _arguments_of(recipe: Recipe) -> list[str]:
    """Names that an architecture takes, as far as it tells: of a recipe's those that it needs."""
    from dippm.datasets.recipes.building import build
    from dippm.frontends import zoo

    if recipe.architecture.startswith(_ZOO):
        module, _ = zoo.build(recipe.architecture.removeprefix(_ZOO))
        return [name for name in inspect.signature(type(module)).parameters if name not in {"args", "kwargs"}]
    try:
        build(replace(recipe, arguments={}))
    except UnsupportedError as exc:
        missing = _MISSING.search(str(exc.__cause__))
        return [] if missing is None else re.findall(r"'(\w+)'", missing[1])
    return []


def _nearest(name: str, known: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(name, list(known), n=_NEAREST, cutoff=0.5)
    return f"The nearest: {', '.join(near)}." if near else None


def _invalid(what: str, cure: str | None) -> UsageError:
    return UsageError(f"The space's {what}", code="space.invalid", cure=cure)
