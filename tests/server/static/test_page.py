"""The page in a real browser, against a real service."""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest

from dippm.api import MissingExtraError, ModelReadError
from dippm.predictors.prediction import format_figure
from dippm.server.errors import ServiceError, error_body

Visits = Callable[..., Any]
_RESNET = "#model=timm:resnet50&device=A100&device=H100&device=L4&precision=amp&batch=1,8,32,128"
_TRAINING = "#model=timm:resnet18&device=A100&batch=8,64,512&mode=training&optimizer=adamw&precision=amp"
_DROP = """([name, bytes]) => {
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File([new Uint8Array(bytes)], name));
    document.body.dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true }));
}"""


def _refuse(route: Any, *, status: int, body: bytes) -> None:
    route.fulfill(status=status, body=body)


def cards(page: Any) -> list[str]:
    return [" ".join(text.split()) for text in page.locator(".device").all_inner_texts()]


def test_an_uploaded_model_shows_curves_devices_and_operators(visit: Visits, network_file: Path) -> None:
    visited = visit()
    page = visited.open()
    page.get_by_role("button", name="Remove A100-SXM4-40GB").wait_for()
    page.evaluate(_DROP, ["residual.onnx", list(network_file.read_bytes())])
    visited.wait_for_answer()
    assert page.locator("#answer-title").inner_text() == "residual.onnx"
    assert page.locator(".facts").inner_text().startswith("onnx, 19 operators, 19,024 parameters")
    assert page.locator(".plot svg .curve").count() == 2
    for line in page.locator(".plot svg .curve").all():
        places = [tuple(map(float, pair.split(","))) for pair in line.get_attribute("points").split()]
        assert len(places) == 8
        assert places == sorted(places)
    labels = " ".join(page.locator(".limits text").all_text_contents())
    assert "1g.5gb" in labels
    assert "whole device" in labels
    assert page.locator("#operators tbody tr").count() == 12
    assert (visited.count("predict"), visited.count("inspect"), visited.count("max-batch")) == (1, 1, 1)


def test_figures_are_those_of_the_service_as_the_command_line_shows_them(visit: Visits, page_service: Any) -> None:
    visited = visit()
    page = visited.open("#model=timm:resnet18&device=A100&device=L4&batch=1,8&at=8")
    visited.wait_for_answer()
    question = {"model": "timm:resnet18", "device": ["A100-SXM4-40GB", "L4"], "batch": [1, 8]}
    answer = page_service.ask_json("predict", **question).json
    largest = page_service.ask_json("max-batch", model="timm:resnet18", device=question["device"]).json["max_batches"]
    expected = [each for each in answer["predictions"] if each["batch"] == 8]
    for card, prediction, most in zip(cards(page), expected, largest, strict=True):
        assert prediction["device"] in card
        for name, unit in (("latency_ms", "ms"), ("energy_j", "J"), ("memory_mb", "MiB")):
            low, high = map(format_figure, prediction["intervals"][name])
            assert f"{format_figure(prediction[name])} {unit} [{low} – {high}]" in card
        assert f"MIG slice {prediction['mig'] or prediction['no_slice']}" in card
        assert f"Largest batch {most['batch']:,}" in card
        assert "Fits" in card
    assert expected[0]["software"] in page.locator(".holds").inner_text()
    notes = page.locator(".notes").inner_text()
    assert expected[0]["predictor"]["labels"] in notes
    assert "memory interval rests on" in notes


def test_the_batch_moves_cards_chart_and_link(visit: Visits) -> None:
    visited = visit()
    page = visited.open("#model=timm:resnet18&device=A100&batch=1,8,64,4096")
    visited.wait_for_answer()
    before = cards(page)
    page.locator("#at").focus()
    page.keyboard.press("End")
    assert cards(page) != before
    assert "at=4096" in page.url
    assert page.locator("#at").get_attribute("aria-valuetext") == "batch 4,096"
    page.locator(".plot svg").first.click(position={"x": 70, "y": 100})
    assert "at=1&" in page.url + "&"
    page.select_option("#measure", "rate")
    assert "show=rate" in page.url
    assert "Throughput" in page.locator(".plot svg").first.get_attribute("aria-label")
    assert visited.count("predict") == 1


def test_what_does_not_fit_says_so_with_the_reason(visit: Visits) -> None:
    visited = visit()
    page = visited.open("#model=torchvision:vgg16&device=1g.5gb@A100&device=A100&device=L4&batch=4096")
    visited.wait_for_answer()
    slice_card, whole, without = cards(page)
    assert "Does not fit" in slice_card
    assert "MIG slice – is one, of 4,864 MiB" in slice_card
    assert "MIG slice too large the largest has 40,192 MiB" in whole
    assert "no MIG on this device" in without
    assert page.locator(".limits text").all_text_contents() == ["this slice"]
    page.select_option("#limits-of", "A100-SXM4-40GB")
    assert "7g.40gb, whole device" in page.locator(".limits text").all_text_contents()


def test_a_training_step_is_asked_by_keyboard_alone(visit: Visits) -> None:
    visited = visit()
    page = visited.open()
    press = page.keyboard.press
    press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    reached = []
    for _ in range(12):
        press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
        if reached[-1] == "name":
            break
    assert "file" in reached
    page.keyboard.type("timm:resnet18")
    press("Tab")
    press("Tab")
    page.keyboard.type("h100 pcie")
    press("Enter")
    press("Escape")
    assert page.get_by_role("button", name="Remove H100 PCIe").is_visible()
    press("Tab")
    press("ControlOrMeta+a")
    page.keyboard.type("8, 32")
    press("Tab")
    page.keyboard.type("T")
    press("Tab")
    press("Tab")
    assert page.evaluate("document.activeElement.id") == "optimizer"
    page.keyboard.type("AdamW")
    while page.evaluate("document.activeElement.id") != "predict":
        press("Tab")
    press("Enter")
    visited.wait_for_answer()
    assert page.evaluate("document.activeElement.id") == "answer-title"
    assert page.locator("#status").inner_text() == "4 predictions for timm:resnet18."
    holds = page.locator(".holds").inner_text()
    assert "training step by adamw" in holds
    assert all("Step time" in card and "at the peak: context" in card for card in cards(page))
    assert "MACs a sample (forward and backward)" in page.locator(".facts").inner_text()
    row = page.locator("#operators tbody tr", has=page.locator("th", has_text=re.compile("^optimizer$"))).first
    assert re.fullmatch(r"optimizer [\d.]+ .*% aten\.\S+ – – [\d.]+", " ".join(row.inner_text().split()))
    assert re.search(
        r"A step is forward .* \+ backward .* \+ optimizer .* ms\.", page.locator("#operators").inner_text()
    )
    command = page.locator(".command pre").text_content()
    assert command == (
        "dippm predict timm:resnet18 --device 'A100-SXM4-40GB,H100 PCIe' --batch 8,32 --mode training --optimizer adamw"
    )


def test_devices_are_searched_chosen_and_removed(visit: Visits, scan: Callable[..., list[str]]) -> None:
    page = visit().open()
    assert scan(page) == []
    field = page.get_by_role("combobox", name="Devices and MIG slices")
    field.fill("1g mig a100-sxm4-80")
    options = page.locator("#device-list [role=option]")
    assert options.count() == 2
    page.get_by_role("option", name="1g.10gb@A100-SXM4-80GB").click()
    assert field.get_attribute("aria-expanded") == "true"
    assert page.locator("#status").inner_text() == "1g.10gb@A100-SXM4-80GB chosen"
    field.fill("no such card")
    assert "No device" in page.locator("#device-list").inner_text()
    field.fill("")
    page.keyboard.press("Backspace")
    assert page.get_by_role("list", name="Chosen devices").inner_text() == "A100-SXM4-40GB×"
    field.fill("l4")
    page.get_by_role("option", name="L4,").click()
    page.get_by_role("button", name="Remove A100-SXM4-40GB").click()
    assert page.evaluate("document.activeElement.ariaLabel") == "Remove L4"
    assert field.get_attribute("aria-expanded") == "false"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "device"
    assert page.locator("#device-list").is_hidden()
    page.fill("#name", "timm:resnet18")
    page.get_by_role("button", name="Predict").click()
    assert "no device" in page.locator("#error").inner_text()
    assert page.evaluate("document.activeElement.id") == "device"
    assert page.locator("#device-list").is_hidden()
    page.keyboard.press("ArrowDown")
    assert page.locator("#device-list").is_visible()


def test_a_wrong_file_is_explained(visit: Visits) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("folder/saved_model.pb", b"\x08\x01")
    visited = visit(refusals=True)
    page = visited.open()
    for name, content, expected in (
        ("notes.txt", b"no model", ["not of a kind that is read", ".onnx, .pt2"]),
        ("broken.onnx", b"no model at all", ["broken.onnx", "What helps"]),
        ("folder.zip", buffer.getvalue(), ["can run operators of its own", "never runs", "dippm predict folder.zip"]),
        ("empty.zip", b"", ["empty.zip"]),
    ):  # fmt: skip
        visited.choose({"name": name, "mimeType": "application/octet-stream", "buffer": content})
        page.locator("#error", has_text=name).wait_for()
        text = page.locator("#error").inner_text()
        for part in expected:
            assert part in text
        assert "null" not in text
        assert page.evaluate("document.activeElement.id") == "error"
        assert page.locator("#progress").is_hidden()
    assert visited.count("predict") == 3


@pytest.mark.parametrize(
    ("name", "part"), [("photo.jpg", "Choose one of .onnx, .pt2"), ("model.keras", "TensorFlow runs code")]
)
def test_a_file_that_is_not_sent_stays_explained(visit: Visits, name: str, part: str) -> None:
    visited = visit()
    page = visited.open()
    visited.choose({"name": name, "mimeType": "application/octet-stream", "buffer": b"?"})
    page.locator("#error", has_text=name).wait_for()
    text = page.locator("#error").inner_text()
    assert part in text
    for refused in (".keras,", ".h5", ".pb"):
        assert refused not in text
    page.get_by_role("button", name="Predict").click()
    assert page.locator("#error").inner_text() == text
    page.fill("#name", "resnet50")
    page.get_by_role("button", name="Predict").click()
    assert "Names begin with timm:, torchvision:, hf: or diffusers:" in page.locator("#error").inner_text()
    assert page.evaluate("document.activeElement.id") == "name"
    assert visited.count("predict") == 0


def test_the_answer_to_an_earlier_question_says_so(visit: Visits) -> None:
    visited = visit(refusals=True)
    page = visited.open("#model=timm:resnet18&device=A100&batch=8")
    visited.wait_for_answer()
    previous = page.locator(".previous")
    assert previous.is_hidden()
    page.fill("#name", "timm:no_such_model")
    page.get_by_role("button", name="Predict").click()
    page.locator("#error").wait_for()
    expected = "previous question: timm:resnet18 on A100-SXM4-40GB, inference, fp32, batch 8."
    assert expected in previous.inner_text()
    page.fill("#name", "timm:resnet18")
    page.get_by_role("button", name="Predict").click()
    page.locator("#error").wait_for(state="hidden")
    visited.wait_for_answer()
    assert previous.is_hidden()


def test_a_slice_is_asked_for_its_own_figures(visit: Visits) -> None:
    visited = visit()
    page = visited.open("#model=timm:resnet18&device=A100&batch=8")
    visited.wait_for_answer()
    note = page.get_by_text("Latency and energy are of the whole device")
    assert note.count() == 1
    page.get_by_role("link", name="on this slice, 1g.5gb@A100-SXM4-40GB").click()
    page.locator(".device h4", has_text="1g.5gb@A100-SXM4-40GB").wait_for()
    visited.wait_for_answer()
    whole, part = cards(page)
    assert whole.split("Latency")[1].split("Energy")[0] != part.split("Latency")[1].split("Energy")[0]
    assert page.get_by_role("link", name="on this slice").count() == 0
    assert page.get_by_role("button", name="Remove 1g.5gb@A100-SXM4-40GB").is_visible()


def test_what_the_service_lacks_or_refuses_is_explained(visit: Visits) -> None:
    visited = visit(refusals=True)
    page = visited.open()
    missing = MissingExtraError(package="torch", extra="torch", purpose="read 'model.pt2'")
    large = ServiceError("The file is larger than 1 MiB.", code="upload.too_large", status=413, cure="Send less.")
    pickled = ModelReadError("'model.pt2' is a pickled object.", code="torch.pickle_refused", cure="Give ONNX.")
    for error, status, reason in (
        (missing, 501, "missing where this service runs"),
        (pickled, 422, "never runs what comes with a file"),
        (large, 413, "dippm serve --max-upload-mb"),
    ):
        page.route("**/v1/predict", partial(_refuse, status=status, body=error_body(error)), times=1)
        visited.choose({"name": "model.pt2", "mimeType": "application/zip", "buffer": b"PK"})
        page.locator("#error", has_text=error.code).wait_for()
        text = page.locator("#error").inner_text()
        assert error.cure is not None
        assert str(error).removesuffix(error.cure).strip() in text
        assert f"What helps: {error.cure}" in text
        assert reason in text
        assert "dippm predict model.pt2" in text


def test_an_error_points_at_its_field(visit: Visits) -> None:
    visited = visit(refusals=True)
    page = visited.open("#model=timm:resnet18&device=A100&batch=1&software=torch+99")
    page.locator("#error").wait_for()
    assert page.locator("#software").get_attribute("aria-invalid") == "true"
    assert page.locator("#software").is_visible()
    page.fill("#software", "")
    page.fill("#batch", "1, two")
    page.get_by_role("button", name="Predict").click()
    assert "such as 1, 8, 32. Got '1, two' instead" in page.locator("#error").inner_text()
    assert page.evaluate("document.activeElement.id") == "batch"


def test_a_hostile_file_name_stays_text(visit: Visits, network_file: Path) -> None:
    name = "<img src=x onerror=alert(1)>'\"$(id).onnx"
    visited = visit()
    page = visited.open()
    visited.choose({"name": name, "mimeType": "", "buffer": network_file.read_bytes()})
    visited.wait_for_answer()
    assert page.locator("#answer-title").inner_text().startswith("<img src=x onerror=alert(1)>'")
    assert page.locator("#answer img").count() == 0
    page = visited.open(f"#{page.url.partition('#')[2]}")
    page.locator("#wanted").wait_for()
    assert name in page.locator("#wanted").inner_text()
    assert page.locator("#wanted img").count() == 0


def test_a_link_reproduces_the_view(visit: Visits) -> None:
    visited = visit()
    page = visited.open("#model=timm:resnet18&device=A100&device=H100&batch=1,8,64&precision=amp")
    visited.wait_for_answer()
    page.locator("#at").press("End")
    page.select_option("#limits-of", "H100 80GB HBM3")
    page.select_option("#measure", "energy")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    page.get_by_text("Copied.").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    expected = cards(page), page.locator(".plot").all_inner_texts(), page.url
    page = visited.open(f"#{page.url.partition('#')[2]}")
    visited.wait_for_answer()
    assert (cards(page), page.locator(".plot").all_inner_texts(), page.url) == expected
    assert page.input_value("#precision") == "amp"
    assert page.input_value("#batch") == "1, 8, 64"


def test_back_shows_the_earlier_question(visit: Visits) -> None:
    visited = visit()
    page = visited.open("#model=timm:resnet18&device=A100&batch=1")
    visited.wait_for_answer()
    page.fill("#name", "timm:resnet50")
    page.get_by_role("button", name="Predict").click()
    page.get_by_role("heading", name="timm:resnet50").wait_for()
    page.go_back()
    page.get_by_role("heading", name="timm:resnet18").wait_for()
    assert page.input_value("#name") == "timm:resnet18"


def test_a_link_to_a_file_asks_for_it_and_knows_another(visit: Visits, network_file: Path) -> None:
    visited = visit(refusals=True)
    page = visited.open()
    page.select_option("#precision", "fp16")
    visited.choose(network_file)
    visited.wait_for_answer()
    expected, link = cards(page), f"#{page.url.partition('#')[2]}"
    page = visited.open(link)
    page.locator("#wanted").wait_for()
    assert visited.count("predict") == 0
    wanted = page.locator("#wanted").inner_text()
    assert "residual.onnx" in wanted
    assert re.search(r"SHA-256 [0-9a-f]{64}", wanted)
    visited.choose(network_file)
    visited.wait_for_answer()
    assert cards(page) == expected
    assert page.locator("#wanted").is_hidden()
    page = visited.open(link)
    page.locator("#wanted").wait_for()
    changed = network_file.read_bytes().replace(b"block0_a", b"block9_a")
    visited.choose({"name": "residual.onnx", "mimeType": "", "buffer": changed})
    visited.wait_for_answer()
    assert "another file than the link is about" in page.locator(".answer-head").inner_text()
    page = visited.open(link)
    page.locator("#wanted").wait_for()
    visited.choose({"name": "residual.onnx", "mimeType": "", "buffer": b"no model at all"})
    page.locator("#error", has_text="What helps").wait_for()
    assert "another file than the link is about" in page.locator("#error").inner_text()


def test_answers_are_saved_as_csv_and_json(visit: Visits, page_service: Any) -> None:
    visited = visit()
    page = visited.open("#model=timm:resnet18&device=A100&device=L4&batch=1,8")
    visited.wait_for_answer()
    with page.expect_download() as saved:
        page.get_by_role("button", name="JSON").click()
    answer = json.loads(Path(saved.value.path()).read_text())
    question = {"model": "timm:resnet18", "device": ["A100-SXM4-40GB", "L4"], "batch": [1, 8]}
    assert answer == page_service.ask_json("predict", **question).json
    assert saved.value.suggested_filename == "dippm-timm-resnet18.json"
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(Path(saved.value.path()).read_text())))
    assert len(rows) == 4
    for row, prediction in zip(rows, answer["predictions"], strict=True):
        assert row["device"] == prediction["device"]
        assert int(row["batch"]) == prediction["batch"]
        assert float(row["latency_ms"]) == prediction["latency_ms"]
        assert [float(row["memory_low"]), float(row["memory_high"])] == prediction["intervals"]["memory_mb"]
        assert row["mig"] == (prediction["mig"] or prediction["no_slice"])
        assert row["software"] == prediction["software"]


def test_a_question_is_cancelled(visit: Visits, network_file: Path) -> None:
    visited = visit()
    page = visited.open()
    page.route("**/v1/predict", lambda route: None)
    visited.choose(network_file)
    page.get_by_role("button", name="Cancel").wait_for()
    assert page.get_by_role("progressbar").is_visible()
    page.get_by_role("button", name="Cancel").click()
    page.locator("#progress").wait_for(state="hidden")
    assert page.locator("#status").inner_text() == "Cancelled."
    assert page.evaluate("document.activeElement.id") == "predict"
    assert page.locator("#error").is_hidden()
    page.unroute("**/v1/predict")
    page.get_by_role("button", name="Predict").click()
    visited.wait_for_answer()


def test_a_file_given_before_the_devices_are_known_is_answered(visit: Visits, network_file: Path) -> None:
    visited = visit()
    held: list[Any] = []
    visited.page.route("**/v1/devices", lambda route: held.append(route))
    page = visited.open()
    visited.choose(network_file)
    page.locator("#status", has_text="Asking the service.").wait_for()
    for route in held:
        route.continue_()
    visited.wait_for_answer()
    assert page.locator("#answer-title").inner_text() == network_file.name


def test_a_large_file_is_sent_again_only_on_demand(visit: Visits, network_file: Path, tmp_path: Path) -> None:
    model = onnx.load(network_file)
    model.doc_string = "x" * 33 * 2**20
    onnx.save(model, tmp_path / "large.onnx")
    visited = visit()
    page = visited.open()
    visited.choose(tmp_path / "large.onnx")
    again = page.get_by_role("button", name="Ask for them")
    again.wait_for()
    page.locator("#operators-batch").select_option(index=1)
    again.wait_for()
    assert (visited.count("predict"), visited.count("inspect"), visited.count("max-batch")) == (1, 0, 0)
    again.click()
    visited.wait_for_answer()
    assert visited.count("inspect") == 1


def test_a_link_with_a_figure_that_there_is_not_shows_the_time(visit: Visits) -> None:
    visited = visit()
    page = visited.open("#model=timm:resnet18&device=A100&batch=1,8&show=toString")
    visited.wait_for_answer()
    assert page.locator(".plot svg .curve").count() == 2
    assert page.input_value("#measure") == "time"


def test_an_interval_down_to_nothing_is_drawn(visit: Visits, page_service: Any) -> None:
    answer = page_service.ask_json("predict", model="timm:resnet18", device=["A100"], batch=[1, 8]).json
    for prediction in answer["predictions"]:
        prediction["intervals"]["memory_mb"][0] = 0.0
    visited = visit()
    page = visited.page
    page.route("**/v1/predict", lambda route: route.fulfill(json=answer))
    visited.open("#model=timm:resnet18&device=A100&batch=1,8")
    visited.wait_for_answer()
    assert page.locator(".plot svg .band").count() == 2


def test_a_service_that_is_gone_is_told(visit: Visits) -> None:
    visited = visit()
    page = visited.open()
    page.route("**/v1/predict", lambda route: route.abort())
    page.fill("#name", "timm:resnet18")
    page.get_by_role("button", name="Predict").click()
    page.locator("#error").wait_for()
    assert "cannot be reached" in page.locator("#error").inner_text()
    assert [each for each in visited.problems if "ERR_FAILED" not in each] == []
    visited.problems.clear()


def test_the_token_is_asked_for_and_kept_for_the_tab(
    visit: Visits, start_service: Any, tmp_path: Path, scan: Callable[..., list[str]]
) -> None:
    token = "a-token-of-the-tests-0123456789"  # noqa: S105 - known to this test alone
    with start_service(tmp_path, "--workers", "1", DIPPM_TOKEN=token) as service:
        visited = visit(service=service, refusals=True)
        page = visited.open("#model=timm:resnet18&device=A100&batch=1")
        page.get_by_role("dialog").wait_for()
        assert scan(page) == []
        for wrong in ("not the token", "not-the-token"):
            page.get_by_role("textbox", name="Token").fill(wrong)
            page.keyboard.press("Enter")
            page.locator("#token-why", has_text="oken").wait_for()
        page.locator("#token-why", has_text="does not know").wait_for()
        page.get_by_role("textbox", name="Token").fill(token)
        page.keyboard.press("Enter")
        visited.wait_for_answer()
        page.reload()
        visited.wait_for_answer()
        assert page.get_by_role("dialog").is_hidden()
        other = visit(service=service, refusals=True)
        page = other.open()
        page.get_by_role("dialog").wait_for()
        page.keyboard.press("Escape")
        page.locator("#error").wait_for()
        assert "no valid token" in page.locator("#error").inner_text()
        page.fill("#name", "timm:resnet18")
        page.get_by_role("button", name="Predict").click()
        page.get_by_role("textbox", name="Token").fill(token)
        page.keyboard.press("Enter")
        other.wait_for_answer()
        assert "Fits" in cards(page)[0]


def test_the_theme_is_kept(visit: Visits) -> None:
    visited = visit(color_scheme="light")
    page = visited.open()
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_label("Theme").select_option("dark")
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark
    assert page.get_by_label("Theme").input_value() == "dark"


@pytest.fixture
def scan() -> Callable[..., list[str]]:
    """What axe finds wrong with a page or a part of it; all of its rules, or the one named."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")

    def run(page: Any, part: str | None = None, *, rule: str | None = None) -> list[str]:
        options = {"resultTypes": ["violations"]} | ({} if rule is None else {"runOnly": [rule]})
        found = axe.Axe().run(page, context=part, options=options).response["violations"]
        return [f"{each['id']}: {node['html']}" for each in found for node in each["nodes"]]

    return run


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_shuts_people_out(
    visit: Visits, scan: Callable[..., list[str]], snapshot: Callable[..., None], scheme: str
) -> None:
    # Dark differs in its colours alone.
    rule = None if scheme == "light" else "color-contrast"
    visited = visit(color_scheme=scheme, refusals=True)
    page = visited.open(_RESNET if scheme == "light" else _TRAINING)
    visited.wait_for_answer()
    snapshot(page, f"page-{scheme}")
    for fold in ("#figures summary", "#more summary", ".command summary"):
        page.locator(fold).click()
    page.locator("#device").fill("a100")
    assert scan(page, rule=rule) == []
    page.keyboard.press("Escape")
    page.fill("#name", "timm:no_such_model")
    page.get_by_role("button", name="Predict").click()
    page.locator("#error").wait_for()
    assert scan(page, "#error", rule=rule) == []


def test_a_phone_shows_all_without_scrolling_sideways(visit: Visits, snapshot: Callable[..., None]) -> None:
    visited = visit(viewport={"width": 360, "height": 780}, has_touch=True, is_mobile=True, refusals=True)
    page = visited.open()

    def overhang() -> int:
        return int(page.evaluate("document.documentElement.scrollWidth - 360"))

    assert overhang() <= 0
    page = visited.open(_RESNET)
    visited.wait_for_answer()
    assert overhang() <= 0
    for fold in ("#figures summary", "#more summary", ".command summary"):
        page.locator(fold).click()
    assert overhang() <= 0
    for head in ("time, ms", "share"):
        box = page.locator("#operators thead th", has_text=head).bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 340
    page.locator("#devices-title").scroll_into_view_if_needed()
    page.locator("#answer-title").evaluate("each => each.scrollIntoView()")
    snapshot(page, "page-phone")
    page.fill("#name", "timm:" + 150 * "w")
    page.get_by_role("button", name="Predict").click()
    page.locator("#error").wait_for()
    assert overhang() <= 0
