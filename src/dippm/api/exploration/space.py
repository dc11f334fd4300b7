"""A space of models: choices, and the model that stands for each of their combinations."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.api.exploration.choices import Choice, Choices, Value, draw, key_of, parse_choices
from dippm.errors import DippmError, MissingExtraError, ModelReadError, UsageError
from dippm.frontends.python_code import missing_extra, place_of_error, run_python, tell_error

if TYPE_CHECKING:
    from dippm.predictors.prediction import Prediction

__all__ = ["BuiltModel", "Space", "load_space"]

_MODEL, _INPUTS, _SCORE, _CHOICES = "model", "inputs", "score", "CHOICES"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BuiltModel:
    """The model of one point of a space.

    Args:
        choices: What was chosen.
        model: What :func:`dippm.predict` takes: a ``torch.nn.Module`` without weights (on the meta device), an
            ``onnx.ModelProto``, a path, a name such as ``timm:resnet50``, or a graph.
        input: Shape of one sample, as :func:`dippm.predict` takes it; None where the model fixes it.
    """

    choices: Choices
    model: object
    input: object


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Space:
    """A space of models.

    Args:
        choices: What is open, in order.
        build: Called with what was chosen; gives the model and the shapes of its inputs.
        score: An objective of the user's own, called with what was chosen and the prediction; None for none.
        path: The file that it was read from; None where it was made in Python.
        sha256: Hash of that file's content, ``""`` without one.
        code_files: Files that its functions are written in, whose lines errors name; none of a YAML space.
    """

    choices: tuple[Choice, ...]
    build: Callable[[Choices], tuple[object, object]]
    score: Callable[[Choices, Prediction], float] | None = None
    path: Path | None = None
    sha256: str = ""
    code_files: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        choices: Mapping[str, object],
        model: Callable[[Choices], object],
        *,
        inputs: Callable[[Choices], object] | None = None,
        score: Callable[[Choices, Prediction], float] | None = None,
    ) -> Space:
        """A space of Python functions.

        Args:
            choices: See :func:`dippm.api.exploration.choices.parse_choices`.
            model: Called with a dictionary of what was chosen; gives a model, see :class:`BuiltModel`. PyTorch's
                default device is ``meta`` during the call, where weights have a shape and take no memory.
            inputs: Called with the same; gives the shape of one sample, as :func:`dippm.predict` takes it.
            score: Called with the same and the :class:`~dippm.predictors.prediction.Prediction`; gives a number.

        Raises:
            UsageError: ``space.invalid``.
        """

        def build(chosen: Choices) -> tuple[object, object]:
            return model(chosen), None if inputs is None else inputs(chosen)

        for name, given in ((_MODEL, model), (_INPUTS, inputs), (_SCORE, score)):
            if given is not None and not callable(given):
                raise UsageError(
                    f"The space's {name} must be a function. Got {given!r:.80} instead.", code="space.invalid"
                )
        files = frozenset(_file_of(given) for given in (model, inputs, score) if given is not None)
        return cls(choices=parse_choices(choices), build=build, score=score, code_files=files)

    def build_model(self, chosen: Choices) -> BuiltModel:
        """Build the model of a point.

        Raises:
            DippmError: ``space.build_failed``, or what the model's library raises of ours.
            MissingExtraError: A framework that the model imports is not installed.
        """
        try:
            with _without_weights():
                model, shapes = self.build(dict(chosen))
        except MissingExtraError:
            raise
        except DippmError as exc:
            exc.args = (f"The space's model failed for {key_of(chosen)}: {exc}{self._place(exc)}",)
            raise
        except (Exception, SystemExit) as exc:  # the code is the user's: whatever it raises is about this point
            raise missing_extra(exc, "build the space's models") or ModelReadError(
                f"The space's model failed for {key_of(chosen)}: {tell_error(exc)}{self._place(exc)}",
                code="space.build_failed",
            ) from exc
        return BuiltModel(choices=dict(chosen), model=model, input=shapes)

    def score_of(self, chosen: Choices, prediction: Prediction) -> float | None:
        """The user's own objective; None for none.

        Raises:
            DippmError: ``space.score_failed``.
            MissingExtraError: A framework that the score imports is not installed.
        """
        if self.score is None:
            return None
        try:
            value = float(self.score(dict(chosen), prediction))
        except (Exception, SystemExit) as exc:  # as above
            raise missing_extra(exc, "score the space's models") or UsageError(
                f"The space's score failed for {key_of(chosen)}: {tell_error(exc)}{self._place(exc)}",
                code="space.score_failed",
            ) from exc
        if not abs(value) < float("inf"):
            raise UsageError(f"The space's score of {key_of(chosen)} is {value}.", code="space.score_failed")
        return value

    def _place(self, exc: BaseException) -> str:
        return place_of_error(exc, self.code_files)

    def check(self, chosen: Mapping[str, Value]) -> Choices:
        """What was chosen elsewhere, if it is a point of this space.

        Raises:
            UsageError: ``space.mismatch``.
        """
        try:
            for choice in self.choices:
                if choice.options and choice.name in chosen:
                    choice.place(chosen[choice.name])
            import numpy as np

            point = draw(self.choices, np.random.default_rng(0), chosen)
        except ValueError:
            point = {}
        if point != dict(chosen):
            raise UsageError(f"{key_of(chosen)} is no point of this space.", code="space.mismatch")
        return point


def load_space(path: str | os.PathLike[str], *, sha256: str | None = None) -> Space:
    """Read a space from a file: ``.py``, whose code is run, or ``.yaml``, which is data.

    Args:
        path: The file. In Python it has ``CHOICES`` and ``model(choices)``, and perhaps ``inputs(choices)`` and
            ``score(choices, prediction)``; see :meth:`Space.of`. In YAML it has ``choices``, ``model`` and ``input``;
            see :mod:`dippm.api.exploration.space_template`.
        sha256: What the hash of its content must be, found out before anything of it runs; None for any.

    Raises:
        UsageError: ``space.missing``, ``space.invalid``, or ``explore.space_changed`` where the hash is another.
        MissingExtraError: PyYAML, a framework that the file imports or the library with its model is not installed.
        ModelReadError: ``space.failed`` where the file's own code fails.
    """
    file = Path(path)
    try:
        content = file.read_bytes()
    except OSError as exc:
        raise UsageError(f"The space '{file}' cannot be read: {exc.strerror or exc}.", code="space.missing") from exc
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise UsageError(
            f"The space '{file}' is not what was explored: its content changed.", code="explore.space_changed"
        )
    if file.suffix == ".py":
        space = _run(content, file)
    elif file.suffix in {".yaml", ".yml"}:
        from dippm.api.exploration.space_template import parse_template

        choices, build = parse_template(content, file, is_known=sha256 is not None)
        space = Space(choices=choices, build=build)
    else:
        raise UsageError(
            f"A space must be a .py or .yaml file. Got '{file}' instead.", code="space.invalid", cure="Rename it."
        )
    return Space(
        choices=space.choices,
        build=space.build,
        score=space.score,
        path=file,
        sha256=found,
        code_files=space.code_files | {str(file)} if file.suffix == ".py" else frozenset(),
    )


def _run(content: bytes, file: Path) -> Space:
    """Run the content that was read, and hashed, rather than what may by now lie in the file."""
    try:
        module = run_python(content, file, name=f"dippm_space_{file.stem}")
    except DippmError:
        raise
    except (Exception, SystemExit) as exc:  # the code is the user's
        raise missing_extra(exc, f"run the space '{file}'") or ModelReadError(
            f"The space '{file}' fails when it is run: {tell_error(exc)}{place_of_error(exc, {str(file)})}",
            code="space.failed",
        ) from exc
    names: dict[str, Any] = {name: getattr(module, name, None) for name in (_CHOICES, _MODEL, _INPUTS, _SCORE)}
    for name in (_CHOICES, _MODEL):
        if names[name] is None:
            raise UsageError(
                f"The space '{file}' has no {name}.",
                code="space.invalid",
                cure="It needs CHOICES = {...} and a function model(choices).",
            )
    return Space.of(names[_CHOICES], names[_MODEL], inputs=names[_INPUTS], score=names[_SCORE])


def _file_of(function: object) -> str:
    """The file that a function is written in; ``""`` for what is no function of Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)  # type: ignore[arg-type]  # whatever can be called
    return "" if code is None else str(code.co_filename)


def _without_weights() -> Any:
    """PyTorch's meta device as the default, where PyTorch is there: nobody needs the values of the weights."""
    from contextlib import nullcontext
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return nullcontext()
    import sys

    torch = sys.modules.get("torch")
    return nullcontext() if torch is None else torch.device("meta")
