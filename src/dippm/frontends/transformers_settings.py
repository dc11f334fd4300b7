"""Settings of a configuration of transformers: which of those that were given it knows."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from dippm.frontends.zoo_building import option_unknown

__all__ = ["refuse_unknown_settings"]

_NEAREST = 3


def refuse_unknown_settings(name: str, config: Any, options: Mapping[str, Any]) -> None:
    """Refuse what a configuration took without knowing it: it keeps any keyword, and no model reads those.

    Args:
        name: The model, for the message.
        config: The configuration as it was made from the options.
        options: The options; those of a part of the configuration are a mapping by the part's name.

    Raises:
        UsageError: ``zoo.option_unknown``, with the nearest that the configuration has.
    """
    _check(name, config, options, path="")


def _check(name: str, config: Any, options: Mapping[str, Any], *, path: str) -> None:
    parts = {part: getattr(config, part, None) for part in getattr(config, "sub_configs", {})}
    for option, value in options.items():
        if not _is_known(config, option) and not any(_has_taken(part, option, value) for part in parts.values()):
            elsewhere = [f"{at}.{option}" for at, part in parts.items() if part is not None and _is_known(part, option)]
            near = difflib.get_close_matches(option, sorted(_declared(type(config))), n=_NEAREST, cutoff=0.6)
            raise option_unknown(name, path + option, [path + each for each in (*elsewhere, *near)])
        if isinstance(value, Mapping) and parts.get(option) is not None:
            _check(name, parts[option], value, path=f"{path}{option}.")


def _declared(config_class: Any) -> set[str]:
    parameters = inspect.signature(config_class).parameters.values()
    named = {each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD}
    return named | set(config_class.attribute_map)


def _is_known(config: Any, option: str) -> bool:
    config_class = type(config)
    if option in _declared(config_class) or hasattr(config_class, option):
        return True
    # What is taken under an old name, or for all configurations alike, is not kept as it was given.
    return option not in vars(config) or option in vars(_make_plain(config_class))


def _make_plain(config_class: Any) -> Any:
    """The configuration without options; the class itself where it needs some."""
    try:
        return config_class()
    except Exception:  # noqa: BLE001 - the library's own code
        return config_class


def _has_taken(part: Any, option: str, value: Any) -> bool:
    """Whether a part of a configuration has what was given to the whole."""
    missing = object()
    given = getattr(part, option, missing)
    return given is not missing and _is_known(part, option) and bool(given == value)
