from __future__ import annotations

import pytest

from dippm.errors import UsageError
from dippm.frontends.conversion.limits import ConversionLimits


def test_limits_must_be_positive() -> None:
    with pytest.raises(UsageError) as caught:
        ConversionLimits(seconds=0)
    assert caught.value.code == "conversion.limit_invalid"


@pytest.mark.parametrize("name", ["seconds", "memory_mb", "output_mb"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_the_limit_that_is_wrong_is_named(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=name) as caught:
        ConversionLimits(**{name: value})
    assert caught.value.code == "conversion.limit_invalid"
