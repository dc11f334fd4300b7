import copy
import pickle

import pytest

from dippm import errors


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.UsageError("m", code="c"), 2),
        (errors.ModelReadError("m", code="c"), 3),
        (errors.UnsupportedError("m", code="c"), 4),
        (errors.MissingExtraError(package="torch", extra="torch", purpose="read it"), 5),
    ],
)
def test_exit_statuses(error: errors.DippmError, status: int) -> None:
    assert error.exit_status == status
    assert error.code


def test_the_cure_is_part_of_the_message() -> None:
    assert str(errors.UsageError("Wrong.", code="c", cure="Do this.")) == "Wrong. Do this."


def test_a_missing_extra_names_the_install_line() -> None:
    error = errors.MissingExtraError(package="timm", extra="zoo", purpose="build timm models")
    assert 'pip install "dippm[zoo]"' in str(error)


@pytest.mark.parametrize(
    "error",
    [
        errors.UsageError("Wrong.", code="c", cure="Do this."),
        errors.MissingExtraError(package="timm", extra="zoo", purpose="build timm models"),
    ],
)
@pytest.mark.parametrize("send", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_comes_whole_from_another_process(error, send) -> None:
    received = send(error)
    assert (type(received), str(received), vars(received)) == (type(error), str(error), vars(error))


class _Unwritable:
    def __repr__(self) -> str:
        raise RuntimeError


def test_a_value_is_quoted_whatever_it_is() -> None:
    assert errors.quote("a") == "'a'"
    assert len(errors.quote("a" * 10_000)) < 300
    for value, name in ((10**5000, "int"), ((1, 10**5000), "tuple"), (_Unwritable(), "_Unwritable")):
        assert errors.quote(value) == f"a value of type {name} that cannot be written out"


def test_a_chain_of_errors_has_each_of_them_once() -> None:
    first, second, third = OSError("first"), ValueError("second"), KeyError("third")
    third.__cause__, second.__context__ = second, first
    assert list(errors.error_chain(third)) == [third, second, first]
    # As `raise first from third` and `raise error from error` leave them.
    first.__cause__ = third
    assert list(errors.error_chain(third)) == [third, second, first]
    first.__cause__ = first
    assert list(errors.error_chain(first)) == [first]
    assert list(errors.error_chain(None)) == []
