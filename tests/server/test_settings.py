from __future__ import annotations

import pytest

from dippm.errors import UsageError
from dippm.server.settings import Settings

TOKEN = "a-token-of-some-length"  # noqa: S105


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_this_machine_needs_no_token(host: str) -> None:
    settings = Settings(host=host)
    assert settings.is_local
    assert settings.client_rate_per_s == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])  # noqa: S104
def test_any_other_address_needs_a_token(host: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings(host=host)
    assert caught.value.code == "service.token_missing"
    settings = Settings(host=host, token=TOKEN)
    assert settings.client_rate_per_s == 50
    assert Settings(host=host, token=TOKEN, rate_per_s=0).client_rate_per_s == 0


@pytest.mark.parametrize(
    "token", ["", "short", "fifteen-letters", "with spaces in it all over", "päßwörter-und-mehr-davon"]
)
def test_a_weak_token_is_refused(token: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings(token=token)
    assert caught.value.code == "service.token_weak"
    assert not token or token not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [{"port": 70000}, {"workers": 0}, {"timeout_s": 0}, {"memory_mb": 1}, {"max_upload_mb": 0},
     {"timeout_s": float("nan")}, {"rate_per_s": -1}, {"max_requests": 0}],
)  # fmt: skip
def test_what_is_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError) as caught:
        Settings(**wrong)  # type: ignore[arg-type]
    assert caught.value.code == "service.settings"
    assert next(iter(wrong)) in str(caught.value)


def test_the_token_is_not_shown() -> None:
    assert TOKEN not in repr(Settings(token=TOKEN))
