from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from dippm.api.inspect_page import render_page
from dippm.api.inspection import Inspection, OperatorCost
from dippm.costs.conditions import Conditions
from dippm.predictors.prediction import ModelInfo, NoSlice, Prediction, PredictorInfo

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\ud800\x1b"
_VOID = {"meta", "img", "br", "input", "link", "line", "path"}


class Page(HTMLParser):
    """Reads a page as a browser would: tags with attributes, text by tag, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append((self.open[-1] if self.open else "", data))

    def all_of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def texts(self, tag: str) -> list[str]:
        return [data for name, data in self.text if name == tag]


def make_operator(position: int, **changes: object) -> OperatorCost:
    values: dict[str, object] = {
        "position": position,
        "kind": "conv" if position % 3 else "relu",
        "source_op": "Conv" if position % 3 else "Relu",
        "phase": "forward",
        "scope": f"features.{position // 8}.{position}",
        "output_shape": (8, 64, 56, 56),
        "macs": 1e8 * (position % 3),
        "flops": 2e8 * (position % 3),
        "traffic_mb": 12.25,
        "time_ms": 0.05 + 0.01 * (position % 7),
        "live_mb": 100.0 + 3 * abs(40 - position % 80),
        "kernel": position,
    }
    return OperatorCost(**(values | changes))  # type: ignore[arg-type]


def make_inspection(
    operators: list[OperatorCost], *, source: str = "models/net.onnx", warnings: tuple[str, ...] = (), **changes: object
) -> Inspection:
    latency = sum(operator.time_ms for operator in operators) or 1.0
    values: dict[str, object] = {
        "model": ModelInfo(source=source, framework="onnx", nodes=len(operators), parameters=25_557_032),
        "device": "A100-SXM4-40GB",
        "conditions": Conditions(),
        "batch": 8,
        "inputs": {"input": (8, 3, 224, 224)},
        "macs": 32_716_718_080,
        "latency_ms": latency,
        "energy_j": 1.9,
        "memory_mb": 1240.0,
        "memory_parts_mb": {
            "context": 450.0,
            "weights": 98.0,
            "activations": 290.0,
            "workspace": 200.0,
            "slack": 202.0,
        },
        "mig": "1g.5gb",
        "intervals": {
            "latency_ms": (0.8 * latency, 1.3 * latency),
            "energy_j": (1.4, 2.6),
            "memory_mb": (1180.0, 1390.0),
        },
        "predictor": PredictorInfo(name="physics", version="1", labels="kernels of five GPUs", warnings=warnings),
    }
    return Inspection(
        prediction=Prediction(**(values | changes)),  # type: ignore[arg-type]
        operators=tuple(operators),
        weights_mb=98.0,
    )


@pytest.fixture
def inspection() -> Inspection:
    return make_inspection([make_operator(position) for position in range(120)])


def test_page_is_well_formed_and_loads_nothing(inspection: Inspection) -> None:
    text = render_page(inspection)
    page = Page(text)
    assert page.open == []
    assert not page.all_of("link")
    assert all("src" not in attributes and "href" not in attributes for _, attributes in page.tags)
    assert "url(" not in text
    assert "@import" not in text
    assert not re.search(r"https?:", text)
    assert page.all_of("html")[0]["lang"] == "en"
    policy = next(tag["content"] for tag in page.all_of("meta") if tag.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_figures_of_the_prediction_stand_on_the_page(inspection: Inspection) -> None:
    values = Page(render_page(inspection)).texts("div")
    assert "1,240 MiB" in values
    assert "1,180 – 1,390" in values
    assert "1.9 J" in values
    assert "1.4 – 2.6" in values
    assert "1g.5gb" in values
    assert "32.7 G" in values
    assert "25.6 M" in values


@pytest.mark.parametrize("no_slice", NoSlice)
def test_why_there_is_no_slice_stands_in_its_place(no_slice: NoSlice) -> None:
    values = Page(render_page(make_inspection([make_operator(0)], mig=None, no_slice=no_slice))).texts("div")
    assert [value for value in values if value in set(NoSlice)] == [no_slice]


def test_energy_that_is_not_known_is_a_dash() -> None:
    intervals = {"latency_ms": (0.8, 1.3), "memory_mb": (1180.0, 1390.0)}
    page = render_page(make_inspection([make_operator(0)], energy_j=None, intervals=intervals))
    assert "-" in Page(page).texts("div")


def test_memory_parts_have_their_shares(inspection: Inspection) -> None:
    bars = [tag for tag in Page(render_page(inspection)).all_of("span") if "flex" in (tag.get("style") or "")]
    shares = {str(tag["title"]): float(re.findall(r"flex:([\d.]+)", str(tag["style"]))[0]) for tag in bars}
    assert shares == dict(inspection.prediction.memory_parts_mb)


def test_timeline_marks_the_peak(inspection: Inspection) -> None:
    highest = max(inspection.operators, key=lambda operator: operator.live_mb)
    page = Page(render_page(inspection))
    slider = page.all_of("div")[[tag.get("role") for tag in page.all_of("div")].index("slider")]
    assert slider["aria-valuenow"] == str(highest.position)
    points = json.loads(next(text for text in page.texts("script") if text.startswith("[[")))
    assert len(points) == 120
    assert points[highest.position][1] == "220"
    assert page.texts("span").count("220 MiB") == 1


def test_long_models_keep_their_peak_and_stay_small() -> None:
    operators = [make_operator(position, scope=f"m{position // 2}", live_mb=10.0) for position in range(30_000)]
    operators[17_777] = make_operator(17_777, live_mb=5000.0)
    text = render_page(make_inspection(operators))
    assert len(text) < 1_000_000
    page = Page(text)
    points = json.loads(next(data for data in page.texts("script") if data.startswith("[[")))
    assert len(points) <= 1000
    assert max(points, key=lambda point: float(point[1].replace(",", "")))[0] == 17_777
    assert any("more modules are left out" in data for data in page.texts("p"))


def test_deep_modules_do_not_exhaust_the_stack() -> None:
    operators = [make_operator(0, scope=".".join(f"m{level}" for level in range(3000)))]
    assert Page(render_page(make_inspection(operators))).open == []


def test_hostile_names_stay_text() -> None:
    operators = [make_operator(0, scope=HOSTILE, source_op=HOSTILE)]
    inspection = make_inspection(
        operators, source=HOSTILE, warnings=(HOSTILE,), device=HOSTILE, mig=HOSTILE, inputs={HOSTILE: (1, 2)},
        memory_parts_mb={HOSTILE: 3.0},
    )  # fmt: skip
    page = Page(render_page(inspection))
    assert page.open == []
    assert not page.all_of("img")
    assert len(page.all_of("script")) == 2
    assert all(not name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert any("<script>alert(1)" in text for text in page.texts("td"))
    points = json.loads(next(text for text in page.texts("script") if text.startswith("[[")))
    assert "</script>" in points[0][2]
    render_page(inspection).encode("utf-8")


def test_empty_model_still_gives_a_page() -> None:
    page = Page(render_page(make_inspection([], memory_parts_mb={})))
    assert page.open == []
    assert "1,240 MiB" in page.texts("div")


def test_script_is_the_one_that_the_policy_allows(inspection: Inspection) -> None:
    import base64
    import hashlib

    text = render_page(inspection)
    script = next(data for data in Page(text).texts("script") if "use strict" in data)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert script.count("innerHTML") == 0
