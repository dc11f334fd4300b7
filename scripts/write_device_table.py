"""Writes the tables of docs/devices.md from the catalogue: ``python scripts/write_device_table.py [--check]``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dippm.devices import DeviceSpec, load_catalog

PAGE = Path(__file__).resolve().parents[1] / "docs" / "devices.md"
BEGIN = "<!-- Written by scripts/write_device_table.py: change src/dippm/devices/catalog.toml instead. -->"
END = "<!-- End of the written part. -->"


def format_tables(devices: tuple[DeviceSpec, ...]) -> str:
    """Formats the catalogue as Markdown: figures, MIG profiles, sources."""
    return "\n".join([*_figures(devices), "", *_mig(devices), "", *_sources(devices)])


def replace_written_part(page: str, tables: str) -> str:
    """Returns the page with its written part, between the two markers, replaced by the tables."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


def _figures(devices: tuple[DeviceSpec, ...]) -> list[str]:
    lines = [
        "## Figures",
        "",
        "| device | also | architecture | SMs | FP32 lanes | base / boost MHz | memory MiB | of it usable | GB/s "
        "| L2 MiB | W | FP64 | FP32 | FP16 | TF32 tensor | FP16 tensor | BF16 tensor | FP8 tensor | INT8 tensor |",
        "|" + "---|" * 3 + "---:|" * 16,
    ]
    for spec in devices:
        rates = [
            f"{spec.peak_tflops[key]:g}" if key in spec.peak_tflops else "-"
            for key in (
                "fp64",
                "fp32",
                "fp16",
                "tf32_tensor",
                "fp16_tensor",
                "bf16_tensor",
                "fp8_tensor",
                "int8_tensor",
            )
        ]
        usable = "-" if spec.usable_memory_mb is None else f"{spec.usable_memory_mb:g}"
        cells = [
            spec.name,
            ", ".join(spec.aliases),
            f"{spec.architecture} {spec.compute_capability[0]}.{spec.compute_capability[1]}",
            spec.sm_count,
            spec.fp32_lanes_per_sm,
            f"{spec.base_clock_mhz:g} / {spec.boost_clock_mhz:g}",
            f"{spec.memory_mb:g}",
            usable,
            f"{spec.bandwidth_gb_s:g}",
            f"{spec.l2_mb:g}",
            f"{spec.board_power_w:g}",
            *rates,
        ]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return lines


def _mig(devices: tuple[DeviceSpec, ...]) -> list[str]:
    lines = [
        "## MIG profiles",
        "",
        "| device | profile | compute slices | memory slices | SMs | memory MiB | at most | may start at slice |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for spec in devices:
        for profile in spec.mig_profiles:
            starts = ", ".join(map(str, profile.placements)) or "not known"
            lines.append(
                f"| {spec.name} | {profile.name} | {profile.compute_slices} | {profile.memory_slices} "
                f"| {profile.sm_count} | {profile.memory_mb:g} | {profile.max_instances} | {starts} |"
            )
    return lines


def _sources(devices: tuple[DeviceSpec, ...]) -> list[str]:
    lines = ["## Sources", ""]
    for spec in devices:
        fields_by_source: dict[str, list[str]] = {}
        for field, source in spec.sources.items():
            fields_by_source.setdefault(source, []).append(field.removeprefix("peak_tflops."))
        lines.append(f"**{spec.name}**")
        lines.append("")
        lines.extend(f"- {source}: {', '.join(fields)}" for source, fields in fields_by_source.items())
        lines.append("")
    return lines[:-1]


def main() -> int:
    """Writes the page, or with ``--check`` says by its exit status whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    old = PAGE.read_text(encoding="utf-8")
    new = replace_written_part(old, format_tables(load_catalog()))
    if options.check:
        return 0 if old == new else 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
