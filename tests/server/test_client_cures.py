from __future__ import annotations

import pytest

from dippm.errors import MissingExtraError, ModelReadError, UnsupportedError, UsageError
from dippm.server.client_cures import client_cure


@pytest.mark.parametrize(
    ("cure", "told"),
    [
        (None, None),
        ("Export it again.", "Export it again."),
        (
            "Give its shape without the batch, for example: --input x=3,224,224",
            'Give its shape without the batch, for example: "input": {"x": "3,224,224"}',
        ),
        ("Or by name (--input ids=128:int64).", 'Or by name ("input": {"ids": "128:int64"}).'),
        ("Predict it with --layout nhwc.", 'Predict it with "layout": "nhwc".'),
        ("Such as --input 224,224,3.", 'Such as "input": "224,224,3".'),
    ],
)
def test_options_are_told_as_a_request_has_them(cure: str | None, told: str | None) -> None:
    assert client_cure(UsageError("It is wrong.", code="a.b", cure=cure)) == told


@pytest.mark.parametrize(
    "error",
    [
        MissingExtraError(package="timm", extra="zoo", purpose="build it"),
        ModelReadError("It is a pickle.", code="torch.pickle_refused", cure="Allow it with trust=True."),
        UnsupportedError("No such device.", code="device.unknown", cure="List all with `dippm devices`."),
    ],
)
def test_what_only_the_machine_of_the_service_could_do_is_not_told(error: Exception) -> None:
    told = client_cure(error)  # type: ignore[arg-type]
    assert told is not None
    assert not any(word in told for word in ("pip install", "trust", "`dippm"))
