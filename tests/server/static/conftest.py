"""A browser, a service whose page it opens, and models to drop on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_IMAGES = Path(__file__).parents[3] / "docs" / "images"
_LARGEST_IMAGE = 200_000
_DESK = {"width": 1280, "height": 860}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-screenshots", action="store_true", help="write the screenshots of docs/images anew")


@pytest.fixture(scope="session")
def page_service(
    start_service: Callable[..., AbstractContextManager[Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """One service for all pages."""
    with start_service(tmp_path_factory.mktemp("page"), "--workers", "1", "--timeout-s", "30") as running:
        yield running


# Not for the session: Playwright keeps an event loop going in this thread, and other tests bring loops of their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, without a window."""
    api = pytest.importorskip("playwright.sync_api", reason="THE PAGE IS NOT TESTED: pip install playwright")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("THE PAGE IS NOT TESTED: there is no Chromium on this machine (Debian: apt install chromium)")
    with api.sync_playwright() as playwright:
        # Its sandbox needs rights that containers do not give; it opens nothing but this machine's service.
        chromium = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield chromium
        chromium.close()


@dataclass(kw_only=True)
class Visit:
    """One page in a browser of its own, with what went wrong on it."""

    page: Page
    base: str
    problems: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)

    def open(self, fragment: str = "") -> Page:
        # Else another fragment would not load the page anew.
        self.page.goto("about:blank")
        self.asked.clear()
        self.page.goto(f"{self.base}/{fragment}")
        return self.page

    def wait_for_answer(self) -> Page:
        """Until everything that is asked of its own accord has its answer."""
        self.page.locator("#operators table").wait_for()
        self.page.locator("#answer", has_text="being asked").wait_for(state="detached")
        return self.page

    def choose(self, path: Path | dict[str, Any]) -> None:
        self.page.set_input_files("#file", path)

    def count(self, verb: str) -> int:
        return self.asked.count(f"/v1/{verb}")


@pytest.fixture
def visit(browser: Browser, page_service: Any) -> Iterator[Callable[..., Visit]]:
    """Opens pages; a test fails where one logs an error, breaks its own policy, or asks another host.

    ``refusals`` says that the service refuses something on purpose, which the browser logs.
    """
    visits: list[tuple[Visit, bool]] = []

    def begin(*, service: Any = page_service, refusals: bool = False, **options: Any) -> Visit:
        context = browser.new_context(**({"viewport": _DESK, "reduced_motion": "reduce"} | options))
        context.set_default_timeout(20_000)
        found = Visit(page=context.new_page(), base=f"http://127.0.0.1:{service.port}")
        page = found.page
        page.add_init_script(
            "addEventListener('securitypolicyviolation', e => console.error('policy: ' + e.blockedURI))"
        )
        page.on("console", lambda line: found.problems.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: found.problems.append(str(error)))
        page.on("dialog", lambda dialog: found.problems.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: _note(found, request.url))
        visits.append((found, refusals))
        return found

    yield begin
    for found, is_refused in visits:
        found.page.context.close()
        problems = [each for each in found.problems if not (is_refused and "the server responded with" in each)]
        assert problems == []
        assert found.hosts <= {urlsplit(found.base).netloc}


def _note(found: Visit, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("blob", "about"):
        found.hosts.add(parts.netloc)
        found.asked.append(parts.path)


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Makes a picture of the page for the documentation; written only where it is asked for."""

    def take(page: Page, name: str) -> None:
        image = page.screenshot(animations="disabled", caret="hide")
        assert len(image) < _LARGEST_IMAGE
        if request.config.getoption("--write-screenshots", default=False):
            _IMAGES.mkdir(exist_ok=True)
            (_IMAGES / f"{name}.png").write_bytes(image)

    return take


@pytest.fixture(scope="session")
def network_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of residual blocks for images of 3×64×64, with weights, as ONNX."""
    random = np.random.default_rng(7)
    nodes, weights = [], []

    def convolve(source: str, target: str, before: int, after: int, size: int = 3, stride: int = 1) -> None:
        values = random.normal(0, 0.05, (after, before, size, size)).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"{target}_weight"))
        pads = [size // 2] * 4
        nodes.append(
            helper.make_node("Conv", [source, f"{target}_weight"], [target], target, pads=pads, strides=[stride] * 2)
        )

    convolve("image", "stem", 3, 16, stride=2)
    last = "stem"
    for block in range(4):
        convolve(last, f"block{block}_a", 16, 16)
        nodes.append(helper.make_node("Relu", [f"block{block}_a"], [f"block{block}_r"]))
        convolve(f"block{block}_r", f"block{block}_b", 16, 16)
        nodes.append(helper.make_node("Add", [last, f"block{block}_b"], [f"block{block}"]))
        last = f"block{block}"
    nodes += [
        helper.make_node("GlobalAveragePool", [last], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "head_weight"], ["classes"]),
    ]
    weights.append(numpy_helper.from_array(random.normal(0, 0.1, (16, 10)).astype(np.float32), "head_weight"))
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, 64, 64])],
        [helper.make_tensor_value_info("classes", TensorProto.FLOAT, ["N", 10])],
        weights,
    )
    path = tmp_path_factory.mktemp("model") / "residual.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    return path
