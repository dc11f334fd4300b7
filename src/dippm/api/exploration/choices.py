"""What a space of models leaves open: named choices between whole numbers, fractions or categories."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dippm.errors import UsageError

__all__ = ["Choice", "Choices", "Value", "count_points", "draw", "key_of", "open_choices", "parse_choices"]

Value = bool | int | float | str
Choices = dict[str, Value]
"""What was chosen, by name; a choice whose condition does not hold is missing."""

_KEYS = {"from", "to", "step", "of", "if"}
_MOST_OPTIONS = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One named choice.

    Args:
        name: Its name.
        options: What can be chosen, in order; empty where any number from ``low`` to ``high`` can.
        is_ordered: Whether options that are next to each other are alike, as sizes are and names are not.
        low: Lowest number, without options.
        high: Highest number, without options.
        condition: Names of earlier choices to the values under which this one is open.
    """

    name: str
    options: tuple[Value, ...] = ()
    is_ordered: bool = True
    low: float = 0.0
    high: float = 0.0
    condition: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

    def is_open(self, chosen: Mapping[str, Value]) -> bool:
        """Whether the condition holds."""
        return not self.condition or all(
            any(_is_same(chosen.get(name), allowed) for allowed in values) for name, values in self.condition.items()
        )

    def draw(self, generator: np.random.Generator) -> Value:
        """Choose at random, each option as likely as the others."""
        if self.options:
            return self.options[int(generator.integers(len(self.options)))]
        return float(generator.uniform(self.low, self.high))

    def place(self, value: Value) -> int:
        """Which of the options a value is; ValueError where it is none."""
        found = self.options.index(value)
        if type(self.options[found]) is type(value):
            return found
        for at, option in enumerate(self.options):
            if _is_same(option, value):
                return at
        raise ValueError(value)


def parse_choices(given: object) -> tuple[Choice, ...]:
    """Read choices as users write them.

    Args:
        given: Name to choice. A choice is a ``range``; a list of categories, ordered where it is of rising numbers;
            or a mapping with ``from``, ``to`` and perhaps ``step`` (with no step, two whole numbers have step 1 and
            fractions none), or with ``of`` and a list; and perhaps with ``if``: names of earlier choices to a value
            or a list of values under which it is open.

    Raises:
        UsageError: ``space.invalid``, with the path of the key that is wrong.
    """
    if not isinstance(given, Mapping) or not given:
        raise _invalid("choices", "names and what can be chosen", given)
    parsed: dict[str, Choice] = {}
    for name, written in given.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise _invalid("choices", "names such as width_1", name)
        parsed[name] = _parse_choice(name, written, parsed)
    return tuple(parsed.values())


def _parse_choice(name: str, written: object, earlier: Mapping[str, Choice]) -> Choice:
    path = f"choices.{name}"
    if isinstance(written, range):
        return Choice(name=name, options=_check_count(path, written))
    if isinstance(written, list | tuple):
        return _of_list(name, path, written, {})
    if not isinstance(written, Mapping):
        raise _invalid(path, "a list, a range, or a mapping with from and to", written)
    unknown = [key for key in written if key not in _KEYS]
    if unknown:
        raise _invalid(f"{path}.{unknown[0]}", "one of from, to, step, of, if", unknown[0])
    condition = _parse_condition(path, written.get("if"), earlier)
    if "of" in written:
        extra = next((key for key in ("from", "to", "step") if key in written), None)
        if extra is not None:
            raise _invalid(f"{path}.{extra}", "left out beside of", written[extra])
        return _of_list(name, f"{path}.of", written["of"], condition)
    return _of_interval(name, path, written, condition)


def _of_list(name: str, path: str, written: object, condition: Mapping[str, tuple[Value, ...]]) -> Choice:
    if not isinstance(written, list | tuple) or not written:
        raise _invalid(path, "a list of what can be chosen", written)
    for at, value in enumerate(written):
        if not _is_value(value):
            raise _invalid(f"{path}[{at}]", "a number, a text, true or false", value)
        if any(_is_same(value, other) for other in written[:at]):
            raise _invalid(f"{path}[{at}]", "given once", value)
    numbers = [value for value in written if isinstance(value, int | float) and not isinstance(value, bool)]
    is_ordered = len(numbers) == len(written) and numbers == sorted(numbers)
    return Choice(name=name, options=tuple(written), is_ordered=is_ordered, condition=condition)


def _of_interval(
    name: str, path: str, written: Mapping[str, object], condition: Mapping[str, tuple[Value, ...]]
) -> Choice:
    low, high = (_parse_number(f"{path}.{key}", written.get(key)) for key in ("from", "to"))
    if high < low:
        raise _invalid(f"{path}.to", f"{low} or more", high)
    is_whole = isinstance(low, int) and isinstance(high, int)
    if "step" not in written and not is_whole:
        return Choice(name=name, low=float(low), high=float(high), condition=condition)
    step = _parse_number(f"{path}.step", written.get("step", 1))
    if step <= 0:
        raise _invalid(f"{path}.step", "more than 0", step)
    if is_whole and isinstance(step, int):
        options: Sequence[Value] = range(int(low), int(high) + 1, step)
    else:
        # Of 0.1 + 0.1 + 0.1 nobody wants the digits beyond the twelfth.
        count = min(math.floor((high - low) / step * (1 + 1e-12) + 1e-9) + 1, _MOST_OPTIONS + 1)
        options = [float(f"{low + at * step:.12g}") for at in range(count)]
    return Choice(name=name, options=_check_count(path, options), condition=condition)


def _parse_condition(path: str, written: object, earlier: Mapping[str, Choice]) -> dict[str, tuple[Value, ...]]:
    if written is None:
        return {}
    if not isinstance(written, Mapping) or not written:
        raise _invalid(f"{path}.if", "names of earlier choices and their values", written)
    condition = {}
    for name, values in written.items():
        if name not in earlier:
            raise _invalid(f"{path}.if", f"names of earlier choices ({', '.join(earlier) or 'there are none'})", name)
        listed = tuple(values) if isinstance(values, list | tuple) else (values,)
        for value in listed:
            options = earlier[name].options
            if not _is_value(value) or (options and not any(_is_same(value, option) for option in options)):
                raise _invalid(f"{path}.if.{name}", "a value that can be chosen", value)
        condition[name] = listed
    return condition


def _parse_number(path: str, value: object) -> int | float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise _invalid(path, "a number", value)
    return value


def _check_count(path: str, options: Sequence[Value]) -> tuple[Value, ...]:
    if not 1 <= len(options) <= _MOST_OPTIONS:
        raise _invalid(path, f"1 to {_MOST_OPTIONS:,} options", f"{len(options):,}")
    return tuple(options)


def _is_value(value: object) -> bool:
    return isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


def _is_same(one: object, other: object) -> bool:
    """Equal and of one kind: 1 is not True, as it would be in Python."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _invalid(path: str, wanted: str, got: object) -> UsageError:
    return UsageError(f"The space's {path} must be {wanted}. Got {got!r:.80} instead.", code="space.invalid")


def open_choices(choices: Sequence[Choice], chosen: Mapping[str, Value]) -> Iterator[Choice]:
    """The choices that are open after these, in order; what is chosen may grow on the way."""
    return (choice for choice in choices if choice.is_open(chosen))


def draw(choices: Sequence[Choice], generator: np.random.Generator, kept: Mapping[str, Value] | None = None) -> Choices:
    """Choose at random.

    Args:
        choices: What is open.
        generator: Where chance comes from.
        kept: What is chosen already; an entry whose choice is not open is left out.
    """
    chosen: Choices = {}
    for choice in open_choices(choices, chosen):
        chosen[choice.name] = kept[choice.name] if kept and choice.name in kept else choice.draw(generator)
    return chosen


def key_of(chosen: Mapping[str, Value]) -> str:
    """A text that is equal for equal choices."""
    return json.dumps(chosen, sort_keys=True)


def count_points(choices: Sequence[Choice]) -> float:
    """How many points there are, each open choice times those after it; infinite where a choice has no steps."""
    gates = {name for choice in choices for name in choice.condition}
    return _count(choices, gates, {})


def _count(choices: Sequence[Choice], gates: set[str], chosen: Choices) -> float:
    total = 1.0
    for at, choice in enumerate(choices):
        if not choice.is_open(chosen):
            continue
        if not choice.options:
            total = math.inf
        elif choice.name in gates:
            rest = choices[at + 1 :]
            return total * sum(_count(rest, gates, {**chosen, choice.name: option}) for option in choice.options)
        else:
            total *= len(choice.options)
    return total
