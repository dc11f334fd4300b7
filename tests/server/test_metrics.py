"""What the service counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Form = Callable[..., tuple[bytes, str]]


def test_figures_are_counted(setup: Any) -> None:
    async def use(client: Any) -> None:
        await client.post("/v1/predict", **setup.named())
        await client.post("/v1/predict", **setup.named())
        await client.post("/v1/inspect", **setup.uploaded(b"12345"))
        await client.get("/secret-path")
        figures = (await client.get("/metrics")).text.splitlines()
        for line in (
            'dippm_requests_total{path="/v1/predict",status="200"} 2.0',
            'dippm_requests_total{path="other",status="404"} 1.0',
            'dippm_cache_total{result="hit"} 1.0',
            'dippm_cache_total{result="miss"} 2.0',
            "dippm_upload_bytes_total 5.0",
            "dippm_workers 1.0",
        ):
            assert line in figures
        assert not any("secret" in line or "_created" in line for line in figures)

    setup.run(use)


def test_services_of_one_process_count_apart() -> None:
    from dippm.server.metrics import Metrics

    first, second = Metrics(), Metrics()
    first.upload_bytes.inc(7)
    assert "dippm_upload_bytes_total 7.0" in first.render().decode()
    assert "dippm_upload_bytes_total 0.0" in second.render().decode()
    assert first.content_type.startswith("text/plain")


def test_a_watched_figure_is_read_when_it_is_asked_for() -> None:
    from dippm.server.metrics import Metrics

    metrics, values = Metrics(), [1.0]
    metrics.watch("dippm_things", "Things.", lambda: values[-1])
    assert "dippm_things 1.0" in metrics.render().decode()
    values.append(4.0)
    assert "dippm_things 4.0" in metrics.render().decode()
