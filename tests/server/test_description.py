"""The service does what its OpenAPI description says, whatever it is asked."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest


@pytest.mark.slow
@pytest.mark.skipif(find_spec("schemathesis") is None, reason="not installed: schemathesis")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nothing_that_is_asked_is_answered_by_a_failure(service: Any) -> None:
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{service.port}/openapi.json")
    asked = 0
    for operation in schema.get_all_operations():
        found = operation.ok()

        @given(case=found.as_strategy())
        @settings(
            max_examples=25,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def ask(case: Any) -> None:
            nonlocal asked
            case.call_and_validate(checks=checks, timeout=120)
            asked += 1

        ask()
    assert asked >= 100
    assert service.ask("/healthz").status == 200
