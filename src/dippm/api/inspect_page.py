"""An inspection as one HTML page that needs nothing else: no server, no other file, no host."""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from dippm.api.inspection import Inspection, ModuleCost, OperatorCost
from dippm.predictors.prediction import Prediction, format_figure

__all__ = ["render_page"]

_FOLDER = Path(__file__).parent
_COLOURS = 8
_TIMELINE_POINTS = 800
_LISTED_OPERATORS = 60
_LISTED_MODULES = 1500
_OPEN_MODULE_LEVELS = 1
_GRID_LINES = 4

# (title, "number" or "", order of the first click)
_OPERATOR_COLUMNS = (
    ("#", "number", "ascending"),
    ("kind", "", "ascending"),
    ("time, ms", "number", "descending"),
    ("%", "number", "descending"),
    ("live, MiB", "number", "descending"),
    ("module", "", "ascending"),
    ("operator", "", "ascending"),
    ("output", "", "ascending"),
    ("MMACs", "number", "descending"),
    ("traffic, MiB", "number", "descending"),
)


def render_page(inspection: Inspection) -> str:
    """Write an inspection as a self-contained HTML page.

    Every name that comes from the model is escaped, and the page's own policy lets no script run but the one that it
    carries, and nothing be loaded from anywhere.

    Args:
        inspection: What to show.

    Returns:
        The page's text; long lists are cut, with a line that says so.
    """
    prediction = inspection.prediction
    style = (_FOLDER / "inspect_page.css").read_text(encoding="utf-8")
    script = (_FOLDER / "inspect_page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    title = f"{_leaf(prediction.model.source)} on {prediction.device}"
    sections = (
        _tiles(prediction),
        _notes(prediction.warnings),
        _memory_parts(prediction),
        _timeline(inspection),
        _kinds(inspection),
        _operators(inspection),
        _modules(inspection),
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{_escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"{_header(prediction)}\n<main>\n{''.join(sections)}</main>\n{_footer(prediction)}\n"
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _header(prediction: Prediction) -> str:
    model, conditions = prediction.model, prediction.conditions
    inputs = ", ".join(f"{name} {_shape(shape)}" for name, shape in prediction.inputs.items())
    optimizer = "" if conditions.optimizer is None else f" by {conditions.optimizer.value}"
    return (
        f"<header><h1>{_escape(_leaf(model.source))}</h1>"
        f'<p>{_escape(prediction.device)}, batch {prediction.batch:,}, <span class="soft">'
        f"{conditions.mode.value}{optimizer}, {conditions.precision.value}, {conditions.layout.value}, "
        f"{conditions.runtime.value}; {_escape(inputs)}</span></p></header>"
    )


def _tiles(prediction: Prediction) -> str:
    time = "latency" if prediction.step_time_ms is None else "step time"
    tiles = [
        _tile(label, "-", "")
        if value is None
        else _tile(label, f"{format_figure(value)} {unit}", _interval(prediction.intervals[name]))
        for label, value, unit, name in (
            (time, prediction.latency_ms, "ms", "latency_ms"),
            ("energy", prediction.energy_j, "J", "energy_j"),
            ("memory", prediction.memory_mb, "MiB", "memory_mb"),
        )
    ]
    model = prediction.model
    tiles += [
        _tile("MIG slice", prediction.mig_name, "smallest that holds it" if prediction.mig else ""),
        _tile("MACs", f"{format_figure(prediction.macs / 1e9)} G", f"batch of {prediction.batch:,}"),
        _tile("parameters", f"{format_figure(model.parameters / 1e6)} M", f"{model.nodes:,} operators"),
    ]
    return f'<dl class="tiles">{"".join(tiles)}</dl>\n'


def _tile(label: str, value: str, below: str) -> str:
    return (
        f'<div class="tile"><dt>{_escape(label)}</dt><dd><div class="value">{_escape(value)}</div>'
        f'<div class="range">{_escape(below)}</div></dd></div>'
    )


def _notes(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    return f'<ul class="notes">{"".join(f"<li>{_escape(warning)}</li>" for warning in warnings)}</ul>\n'


def _memory_parts(prediction: Prediction) -> str:
    parts = [(name.replace("_", " "), value) for name, value in prediction.memory_parts_mb.items() if value > 0]
    if not parts or prediction.memory_mb is None:
        return ""
    # Shares go into an inline style as bare numbers; names go into text only.
    bars = "".join(
        f'<span class="k{number % _COLOURS}" style="flex:{value:.4f} 0 0" title="{_escape(name)}"></span>'
        for number, (name, value) in enumerate(parts)
    )
    legend = "".join(
        f'<li><i class="k{number % _COLOURS}"></i>{_escape(name)} <b>{format_figure(value)}</b></li>'
        for number, (name, value) in enumerate(parts)
    )
    low_high = _interval(prediction.intervals["memory_mb"])
    return _card(
        f"Memory: {format_figure(prediction.memory_mb)} MiB",
        f'<p class="soft">90 % interval {low_high} MiB</p><div class="stack" aria-hidden="true">{bars}</div>'
        f'<ul class="legend">{legend}</ul>',
    )


def _timeline(inspection: Inspection) -> str:
    operators = _thin_out(inspection.operators)
    if not operators:
        return ""
    count = len(operators)
    peak = max(range(count), key=lambda index: operators[index].live_mb)
    top = _round_up(max(operators[peak].live_mb, inspection.weights_mb, 1e-3))
    heights = [1000 * (1 - operator.live_mb / top) for operator in operators]
    path = f"M0 {heights[0]:.1f}" + "".join(f"V{height:.1f}H{index + 1}" for index, height in enumerate(heights))
    lines = "".join(_level_line("grid", 1000 * step / _GRID_LINES, count) for step in range(_GRID_LINES))
    lines += _level_line("base", 1000 * (1 - inspection.weights_mb / top), count)
    ticks = "".join(f"<span>{format_figure(top * (1 - step / _GRID_LINES))}</span>" for step in range(_GRID_LINES + 1))
    data = json.dumps([[each.position, format_figure(each.live_mb), _label(each)] for each in operators])
    highest = operators[peak]
    return _card(
        "Live tensors in the order of execution, MiB",
        f'<p>peak <span class="peak">{format_figure(highest.live_mb)} MiB</span> at operator {highest.position}, '
        f'{_escape(_label(highest))}<span class="soft">; dashed: weights, {format_figure(inspection.weights_mb)} MiB'
        f'</span></p><div class="chart"><div class="ticks" aria-hidden="true">{ticks}</div>'
        f'<div class="plot" tabindex="0" role="slider" '
        'aria-label="Live memory by operator; arrow keys move through it" aria-valuemin="0" '
        f'aria-valuemax="{count - 1}" aria-valuenow="{peak}" '
        f'aria-valuetext="peak, {format_figure(highest.live_mb)} MiB">'
        f'<svg viewBox="0 0 {count} 1000" preserveAspectRatio="none" aria-hidden="true">{lines}'
        f'<path class="area" d="{path}V1000H0Z"/><path class="curve" d="{path}"/></svg>'
        f'<span class="dot" style="left:{100 * (peak + 0.5) / count:.3f}%;top:{heights[peak] / 10:.3f}%"></span>'
        f'<span class="cursor"></span></div><div class="under"><span>operator {operators[0].position}</span>'
        f"<span>{operators[-1].position}</span></div></div>"
        '<output class="readout soft" aria-hidden="true">Point at the curve, or press the arrow keys on it.</output>'
        f'<script type="application/json" id="timeline">{_as_script_data(data)}</script>',
    )


def _level_line(name: str, height: float, count: int) -> str:
    return f'<line class="{name}" x1="0" x2="{count}" y1="{height:.1f}" y2="{height:.1f}"/>'


def _thin_out(operators: Sequence[OperatorCost]) -> list[OperatorCost]:
    """At most a screen's width of operators: of each stretch the one with the most live memory, so no peak is lost."""
    count = len(operators)
    if count <= _TIMELINE_POINTS:
        return list(operators)
    edges = [count * index // _TIMELINE_POINTS for index in range(_TIMELINE_POINTS + 1)]
    return [
        max(operators[start:end], key=lambda operator: operator.live_mb) for start, end in itertools.pairwise(edges)
    ]


def _kinds(inspection: Inspection) -> str:
    rows = inspection.by_kind()
    if not rows:
        return ""
    longest = max(row[1] for row in rows) or 1.0
    total = sum(row[1] for row in rows) or 1.0
    body = "".join(
        f'<tr><th scope="row">{_escape(kind)} <span class="soft">× {count:,}</span></th>'
        f'<td><div class="bar" style="width:{100 * time_ms / longest:.2f}%"></div></td>'
        f'<td class="number">{format_figure(time_ms)} ms</td>'
        f'<td class="number soft">{100 * time_ms / total:.1f} %</td></tr>'
        for kind, time_ms, _, count in rows
    )
    return _card("Time by kind of operator", f'<table class="bars"><tbody>{body}</tbody></table>')


def _operators(inspection: Inspection) -> str:
    listed: dict[int, OperatorCost] = {}
    for operator in (*inspection.top_by_time(_LISTED_OPERATORS), *inspection.top_by_memory(_LISTED_OPERATORS)):
        listed.setdefault(operator.position, operator)
    total = sum(operator.time_ms for operator in inspection.operators) or 1.0
    head = "".join(
        f'<th scope="col" class="{kind}" data-first="{first}" '
        f'aria-sort="{"descending" if title == "time, ms" else "none"}"><button type="button">{title}</button></th>'
        for title, kind, first in _OPERATOR_COLUMNS
    )
    body = "".join(
        _operator_row(operator, total) for operator in sorted(listed.values(), key=lambda each: -each.time_ms)
    )
    left_out = len(inspection.operators) - len(listed)
    note = f"; the other {left_out:,} take less of both" if left_out else ""
    return _card(
        "Operators",
        f'<p class="soft">The {len(listed):,} with the most time or live memory{note}. '
        "A column's title sorts by it.</p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Operators"><table class="operators">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>",
    )


def _operator_row(operator: OperatorCost, total_ms: float) -> str:
    def number(value: float, text: str) -> str:
        return f'<td class="number" data-value="{value:.9g}">{text}</td>'

    return (
        "<tr>"
        + number(operator.position, str(operator.position))
        + f"<td>{_escape(operator.kind)}</td>"
        + number(operator.time_ms, format_figure(operator.time_ms))
        + number(operator.time_ms, f"{100 * operator.time_ms / total_ms:.1f}")
        + number(operator.live_mb, format_figure(operator.live_mb))
        + f'<td class="module">{_escape(operator.scope)}</td>'
        + f"<td>{_escape(operator.source_op)}</td><td>{_shape(operator.output_shape)}</td>"
        + number(operator.macs, format_figure(operator.macs / 1e6) if operator.macs else "")
        + number(operator.traffic_mb, format_figure(operator.traffic_mb))
        + "</tr>"
    )


def _modules(inspection: Inspection) -> str:
    root = inspection.tree()
    total = root.time_ms or 1.0
    parts: list[str] = []
    written = 0
    # Explicit stack: a hostile file can nest modules deeper than Python's recursion goes.
    stack: list[tuple[ModuleCost, int] | str] = [(root, 0)]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            parts.append(item)
            continue
        module, level = item
        written += 1
        if written > _LISTED_MODULES:
            continue
        line = _module_line(module, total, name=module.name or _leaf(inspection.prediction.model.source))
        if not module.children:
            parts.append(f'<div class="leaf">{line}</div>')
            continue
        parts.append(f"<details{' open' if level < _OPEN_MODULE_LEVELS else ''}><summary>{line}</summary>")
        stack.append("</details>\n")
        stack.extend((child, level + 1) for child in reversed(module.children.values()))
    left_out = written - _LISTED_MODULES
    note = f'<p class="soft">{left_out:,} more modules are left out here.</p>' if left_out > 0 else ""
    return _card("Modules", f'<div class="tree">{"".join(parts)}</div>{note}')


def _module_line(module: ModuleCost, total_ms: float, *, name: str) -> str:
    share = module.time_ms / total_ms
    noun = "operator" if module.operators == 1 else "operators"
    return (
        f'{_escape(name)}<span class="share"><i style="width:{100 * share:.2f}%"></i></span>'
        f'<b>{format_figure(module.time_ms)} ms</b> <span class="soft">{100 * share:.1f} %, '
        f"peak {format_figure(module.peak_mb)} MiB, {module.operators:,} {noun}</span>"
    )


def _footer(prediction: Prediction) -> str:
    predictor = prediction.predictor
    return (
        f"<footer><p>Predicted without running the model by {_escape(predictor.name)} {_escape(predictor.version)}, "
        f"fitted on: {_escape(predictor.labels)}. An interval holds the measured value in 90 % of cases.</p>"
        f"<p>{_escape(prediction.model.source)}, read as {_escape(prediction.model.framework)}.</p></footer>"
    )


def _card(title: str, content: str) -> str:
    return f'<section class="card"><h2>{_escape(title)}</h2>{content}</section>\n'


def _label(operator: OperatorCost) -> str:
    name = operator.scope or operator.source_op
    return f"{operator.kind} {name}" if name else operator.kind


def _interval(interval: tuple[float, float]) -> str:
    return f"{format_figure(interval[0])} – {format_figure(interval[1])}"


def _shape(shape: Iterable[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _leaf(source: str) -> str:
    return source.replace("\\", "/").rsplit("/", 1)[-1] or source


def _round_up(value: float) -> float:
    """The next round number at or above a value, for the top of an axis."""
    size = 10.0 ** len(str(int(value))) / 10 if value >= 1 else 0.001
    while size < value / 10:
        size *= 10
    for factor in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 5, 6, 8, 10):
        if size * factor >= value:
            return size * factor
    return size * 20


def _escape(text: str) -> str:
    # A lone surrogate, which a damaged file can bring, has no UTF-8 form.
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"), quote=True)


def _as_script_data(data: str) -> str:
    """JSON that cannot end the script element that holds it; json.dumps has already escaped all but ASCII."""
    return data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
