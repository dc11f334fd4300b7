import pytest

import dippm
from dippm.api.evaluation import PROTOCOLS
from dippm.errors import UsageError


def test_an_unknown_protocol_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        dippm.evaluate("horoscope")
    assert caught.value.code == "protocol.unknown"
    assert all(name in str(caught.value) for name in PROTOCOLS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_missing_tables_are_named(
    protocol: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("DIPPM_DATA", str(tmp_path_factory.mktemp("empty") / "none"))
    with pytest.raises(dippm.DippmError, match="DIPPM_DATA"):
        dippm.evaluate(protocol)
