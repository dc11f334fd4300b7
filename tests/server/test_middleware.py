"""Who may ask, how often, and what every answer carries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TOKEN = "a-token-of-some-length"  # noqa: S105


def test_a_token_is_asked_for(tmp_path: Path, make_setup: Callable[..., Any]) -> None:
    setup = make_setup(tmp_path, host="0.0.0.0", token=TOKEN)  # noqa: S104

    async def use(client: Any) -> None:
        for given in (None, "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xe4"):
            headers = {} if given is None else {"authorization": given.encode("latin-1")}
            for path in ("/v1/devices", "/metrics"):
                answer = await client.get(path, headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "auth.required")
                assert answer.headers["www-authenticate"] == "Bearer"
        for scheme in ("Bearer", "bearer"):
            assert (await client.get("/v1/devices", headers={"authorization": f"{scheme} {TOKEN}"})).status_code == 200
        for path in ("/healthz", "/healthz/live", "/openapi.json", "/"):
            assert (await client.get(path)).status_code == 200
        answer = await client.post("/v1/predict", **setup.named())
        assert answer.status_code == 401
        assert setup.pool.jobs == []

    setup.run(use, host="service.example")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil"])
def test_without_a_token_other_names_of_this_machine_are_refused(setup: Any, host: str) -> None:
    async def use(client: Any) -> None:
        for headers in ({"host": host}, {"host": "localhost:8080", "origin": f"https://{host}"}):
            answer = await client.post("/v1/predict", **setup.named(), headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (421, "service.host")
        answer = await client.post("/v1/predict", **setup.named(), headers={"host": "localhost", "origin": "null"})
        assert answer.status_code == 421
        for own in ("localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080", "LOCALHOST"):
            answer = await client.get("/v1/devices", headers={"host": own, "origin": f"http://{own}"})
            assert answer.status_code == 200

    setup.run(use)


def test_no_page_of_elsewhere_may_read_an_answer(setup: Any) -> None:
    async def use(client: Any) -> None:
        answer = await client.get("/v1/devices")
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"

    setup.run(use)


def test_one_client_has_its_rate(tmp_path: Path, make_setup: Callable[..., Any]) -> None:
    setup = make_setup(tmp_path, rate_per_s=0.5)

    async def use(client: Any) -> None:
        answers = [await client.get("/v1/devices") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 429, 429]
        assert answers[1].json()["error"]["code"] == "rate.exceeded"
        assert answers[1].headers["retry-after"] == "2"
        assert (await client.get("/healthz")).status_code == 200

    setup.run(use)


def test_more_requests_than_may_be_under_way_are_told_to_come_back(
    tmp_path: Path, make_setup: Callable[..., Any]
) -> None:
    setup = make_setup(tmp_path, max_requests=2)

    async def use(client: Any) -> None:
        setup.pool.hold = asyncio.Event()
        held = [asyncio.create_task(client.post("/v1/predict", **setup.named(batch=size))) for size in (1, 2)]
        while len(setup.pool.jobs) < 2:
            await asyncio.sleep(0.01)
        answer = await client.post("/v1/predict", **setup.named(batch=3))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "service.busy")
        assert answer.headers["retry-after"]
        assert (await client.get("/healthz")).status_code == 200
        setup.pool.hold.set()
        assert [(await each).status_code for each in held] == [200, 200]
        assert (await client.post("/v1/predict", **setup.named(batch=3))).status_code == 200

    setup.run(use)


def test_a_request_keeps_its_id(setup: Any) -> None:
    async def use(client: Any) -> None:
        answer = await client.get("/v1/devices", headers={"x-request-id": "job-17.a_b"})
        assert answer.headers["x-request-id"] == "job-17.a_b"
        for wrong in ("x" * 65, "a b", "a;b"):
            answer = await client.get("/v1/devices", headers={"x-request-id": wrong})
            assert answer.headers["x-request-id"] != wrong
            assert len(answer.headers["x-request-id"]) == 16

    setup.run(use)
