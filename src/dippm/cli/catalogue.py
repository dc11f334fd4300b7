"""``dippm devices`` and ``dippm ops``: what the program knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dippm.cli import options
from dippm.cli.output import SCHEMA, is_terminal, make_console, print_columns, print_json

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

    from dippm.api import DeviceSpec

__all__ = ["DEVICES_HELP", "OPS_HELP", "devices", "ops"]

DEVICES_HELP = "List the devices, or show one with its MIG profiles and the source of every figure."
OPS_HELP = "List the operators and how the time of each is predicted."

_DEVICE_COLUMNS = ("name", "architecture", "sm_count", "memory_mb", "bandwidth_gb_s", "board_power_w", "mig")
_FIGURES = (
    ("sm_count", "SMs", ""),
    ("fp32_lanes_per_sm", "FP32 lanes per SM", ""),
    ("base_clock_mhz", "base clock", " MHz"),
    ("boost_clock_mhz", "boost clock", " MHz"),
    ("memory_mb", "memory", " MiB"),
    ("usable_memory_mb", "offered by CUDA", " MiB"),
    ("bandwidth_gb_s", "bandwidth", " GB/s"),
    ("l2_mb", "L2 cache", " MiB"),
    ("board_power_w", "board power", " W"),
)
_DEVICE_WIDTH = 20
_SOURCE_WIDTH = 16


def devices(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A device or MIG slice to show in full.", show_default=False)
    ] = None,
    device_file: options.DeviceFileOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Run ``dippm devices``."""
    from dippm import api

    if name is not None or device_file is not None:
        spec = options.find_one_device(name, device_file)
        if as_json:
            print_json({"schema": SCHEMA, "device": _to_dict(spec)})
        elif is_terminal():
            make_console().print(_show_device(spec))
        else:
            print_columns(("figure", "value", "source"), _figure_rows(spec))
        return
    specs = api.list_devices()
    if as_json:
        print_json({"schema": SCHEMA, "devices": [_to_dict(spec) for spec in specs]})
    elif is_terminal():
        make_console().print(_list_devices(specs))
    else:
        print_columns(_DEVICE_COLUMNS, (_device_row(spec) for spec in specs))


def _to_dict(spec: DeviceSpec) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(spec)


def _device_row(spec: DeviceSpec) -> list[object]:
    profiles = ",".join(profile.name for profile in spec.mig_profiles)
    figures = (spec.sm_count, spec.memory_mb, spec.bandwidth_gb_s, spec.board_power_w)
    return [spec.name, spec.architecture, *(f"{figure:g}" for figure in figures), profiles]


def _figure_rows(spec: DeviceSpec) -> list[tuple[str, str, str]]:
    """Every figure of a device: what, how much, from where."""
    rows = [
        ("architecture", f"{spec.architecture}, compute capability {'.'.join(map(str, spec.compute_capability))}", "")
    ]
    for key, label, unit in _FIGURES:
        value = getattr(spec, key)
        if value is not None:
            rows.append((label, f"{_trim(value)}{unit}", spec.sources.get(key, "")))
    rows += [
        (f"peak {key.replace('_', ' ')}", f"{_trim(rate)} TFLOP/s", spec.sources.get(f"peak_tflops.{key}", ""))
        for key, rate in spec.peak_tflops.items()
    ]
    return rows


def _trim(value: float) -> str:
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def _list_devices(specs: tuple[DeviceSpec, ...]) -> Table:
    from rich.text import Text

    from dippm.cli.fitting_table import FittingTable

    table = FittingTable()
    table.add_column("device", overflow="fold", min_width=_DEVICE_WIDTH)
    table.add_column("kind", no_wrap=True)
    for title in ("SMs", "FP32\nTFLOP/s", "memory\nGiB", "GB/s", "W"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("MIG\nkinds", justify="right", no_wrap=True)
    for spec in specs:
        table.add_row(
            Text(spec.name),
            spec.architecture,
            str(spec.sm_count),
            f"{spec.peak_tflops['fp32']:.1f}",
            f"{spec.memory_mb / 1024:.0f}",
            f"{spec.bandwidth_gb_s:,.0f}",
            f"{spec.board_power_w:,.0f}",
            str(len(spec.mig_profiles) or ""),
        )
    return table


def _show_device(spec: DeviceSpec) -> Group:
    from rich.console import Group
    from rich.text import Text

    from dippm.cli.fitting_table import FittingTable
    from dippm.cli.output import make_printable

    figures = FittingTable(gap=3, show_header=False)
    figures.add_column(no_wrap=True)
    figures.add_column(justify="right", no_wrap=True)
    figures.add_column(style="dim", overflow="fold", min_width=_SOURCE_WIDTH)
    for label, value, source in _figure_rows(spec):
        figures.add_row(label, value, Text(make_printable(source)))
    parts: list[RenderableType] = [Text(make_printable(spec.name), style="bold"), figures]
    if spec.aliases:
        parts.insert(1, Text(f"also {make_printable(', '.join(spec.aliases))}", style="dim"))
    if not spec.mig_profiles:
        return Group(*parts)
    slices = FittingTable("MIG slices", gap=3)
    slices.add_column("profile")
    for title in ("compute slices", "memory slices", "SMs", "memory, MiB", "at most"):
        slices.add_column(title, justify="right")
    for profile in spec.mig_profiles:
        slices.add_row(
            Text(make_printable(profile.name)),
            str(profile.compute_slices),
            str(profile.memory_slices),
            str(profile.sm_count),
            f"{profile.memory_mb:,.0f}",
            str(profile.max_instances),
        )
    return Group(*parts, slices, Text(make_printable(spec.sources.get("mig_profiles", "")), style="dim"))


def ops(as_json: options.JsonOption = False) -> None:
    """Run ``dippm ops``."""
    from dippm import api

    rows = [(str(kind), list(sources), str(method)) for kind, sources, method in api.operators()]
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "operators": [{"kind": kind, "from": sources, "time": method} for kind, sources, method in rows],
            }
        )
    elif is_terminal():
        make_console().print(_list_operators(rows))
    else:
        print_columns(("kind", "from", "time"), ((kind, " ".join(sources), method) for kind, sources, method in rows))


def _list_operators(rows: list[tuple[str, list[str], str]]) -> Table:
    from rich.text import Text

    from dippm.cli.fitting_table import FittingTable

    table = FittingTable(gap=3)
    table.add_column("kind", no_wrap=True)
    table.add_column("operators of the frameworks", overflow="fold", ratio=2)
    table.add_column("how its time is predicted", overflow="fold", ratio=1)
    for kind, sources, method in rows:
        table.add_row(kind, Text(", ".join(sources), style="dim"), Text(method))
    return table
