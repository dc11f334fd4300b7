"""The catalogue of devices, the ways to name one, MIG slices as devices, and a user's own device file.

A bare product name means one variant, chosen once and written here:

==================  =============================================  ====================================================
Name                Means                                          Why
==================  =============================================  ====================================================
``A100``            ``A100-SXM4-40GB``                             the 40 GB card of the DIPPM paper, and its MIG names
``A100 80GB``       ``A100-SXM4-80GB``                             as above
``V100``            ``Tesla V100-SXM2-16GB``                       the most widely rented variant
``P100``            ``Tesla P100-PCIE-16GB``                       the variant with published kernel measurements
``H100``, ``H200``  the SXM modules                                the most widely rented variants
``A800``            ``A800-SXM4-80GB``                             as ``A100 80GB``
``GH200``           ``GH200 480GB``                                the module with 96 GB of HBM3
``RTX 6000``        ``Quadro RTX 6000`` (Turing)                   the later cards have "Ada" and "PRO" in their names
``RTX PRO 6000``    ``RTX PRO 6000 Blackwell Workstation Edition`` the variant with the full power limit
==================  =============================================  ====================================================

Where cards of different memory share NVML's name, as the GeForce RTX 3080 with 10 and 12 GB do, the name means the one
with less, and the others have their memory in the name: ``GeForce RTX 3080 12GB``.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dippm.devices.spec import DeviceSpec, MigProfile
from dippm.errors import UnsupportedError, UsageError

__all__ = ["DEVICE_FILE_REQUIRED", "find_device", "load_catalog", "load_device_file", "slice_device"]

DEVICE_FILE_REQUIRED = (
    "name",
    "architecture",
    "compute_capability",
    "sm_count",
    "fp32_lanes_per_sm",
    "base_clock_mhz",
    "boost_clock_mhz",
    "memory_mb",
    "bandwidth_gb_s",
    "l2_mb",
    "board_power_w",
    "peak_tflops",
)
"""Keys that a device file must have."""

_OPTIONAL_KEYS = ("usable_memory_mb", "context_mb", "aliases", "mig_profiles", "sources")
_PROFILE_REQUIRED = ("name", "compute_slices", "memory_slices", "sm_count", "memory_mb", "max_instances")
_PROFILE_OPTIONAL = ("placements", "l2_slices")
_CATALOG_PATH = Path(__file__).with_name("catalog.toml")
# Words of a name that tell no two cards apart. "Quadro" is not among them: "Quadro RTX 6000" is a card of its own.
_IDLE_WORDS = frozenset({"nvidia", "tesla", "geforce", "gpu"})
_MAX_DEVICE_FILE_BYTES = 1_000_000
_SUGGESTIONS = 5
_LONGEST_NAME = 120
_SEVERAL = "; several devices are a list of names"
_SEPARATORS = frozenset(",@")
_SLICE_ALONE = re.compile(r"(?:mig\s+)?\d+g\.\S*", re.IGNORECASE)


@functools.cache
def load_catalog() -> tuple[DeviceSpec, ...]:
    """Returns every device of the catalogue, in its order; read once per process.

    Returns:
        The devices by architecture, oldest first. MIG slices are not among them; see ``find_device``.
    """
    document = tomllib.loads(_CATALOG_PATH.read_text(encoding="utf-8"))
    citations: Mapping[str, str] = document["documents"]
    return tuple(_read_entry(entry, document["mig"], citations) for entry in document["device"])


def find_device(name: str, *, own: Iterable[DeviceSpec] = ()) -> DeviceSpec:
    """Finds a device, or a MIG slice of one, by a name as people and NVML write it.

    Case, spaces, hyphens and the words NVIDIA, Tesla and GeForce do not matter: ``"A100"``, ``"rtx 4090"``,
    ``"NVIDIA A100-SXM4-40GB"`` and ``"h100 80gb hbm3"`` are all known. A bare product name means the variant that the
    module's table gives. A MIG slice is its profile at its card, ``"1g.5gb@A100-SXM4-40GB"``, or as CUDA names it,
    ``"NVIDIA A100-SXM4-40GB MIG 1g.5gb"``.

    Args:
        name: Name of a device or slice.
        own: Devices that go by their own names and aliases beside those of the catalogue, and before them.

    Returns:
        The device. For a slice, see ``slice_device``.

    Raises:
        UnsupportedError: No device has this name (code ``"device.unknown"``; the message lists the nearest), or the
            card has no such MIG profile (code ``"device.mig_profile"``).
    """
    by_name = {each.casefold(): spec for spec in own for each in (spec.name, *spec.aliases)}
    whole = by_name.get(name.strip().casefold())
    if whole is not None:
        return whole
    profile_name, card_name = _split_slice_name(name)
    card = by_name.get(card_name.strip().casefold()) or _find_card(card_name)
    return card if profile_name is None else slice_device(card, profile_name)


def slice_device(parent: DeviceSpec, profile_name: str) -> DeviceSpec:
    """Makes a device of one MIG slice of a card.

    SMs and memory are the profile's own. Bandwidth and L2 are the card's in proportion to memory slices, but for slices
    of twice the memory on Ampere and Hopper (``1g.20gb``), to which NVIDIA's guide gives the L2 of one memory slice.
    Peak rates and board power are in proportion to SMs. The last is a convention: slices share the card's power and
    have no limit of their own.

    Args:
        parent: A whole card.
        profile_name: Name of one of its MIG profiles, such as ``"1g.5gb"``; case does not matter.

    Returns:
        A device named ``"<profile>@<card>"`` whose ``parent`` is the card's name.

    Raises:
        UnsupportedError: The card has no such profile; code ``"device.mig_profile"``.
    """
    wanted = profile_name.strip().lower()
    profile = next((each for each in parent.mig_profiles if each.name.lower() == wanted), None)
    if profile is None:
        has = ", ".join(each.name for each in parent.mig_profiles)
        if not has:
            raise UnsupportedError(
                f"Device '{parent.name}' has no MIG slices that dippm knows of. Got {profile_name!r} instead.",
                code="device.mig_profile",
                cure="Name the whole card; dippm devices says which cards have slices.",
            )
        raise UnsupportedError(
            f"Device '{parent.name}' has no MIG profile {profile_name!r}. It has: {has}.",
            code="device.mig_profile",
            cure="Name one of these as PROFILE@DEVICE, or the whole card.",
        )
    total_slices = parent.memory_slices
    l2_slices = profile.memory_slices if profile.l2_slices is None else profile.l2_slices
    sm_share = profile.sm_count / parent.sm_count
    by_memory, by_l2 = (
        f"Derived: {slices} of {total_slices} memory slices of {parent.name}"
        for slices in (profile.memory_slices, l2_slices)
    )
    by_sms = f"Derived: {profile.sm_count} of {parent.sm_count} SMs of {parent.name}"
    own = parent.sources.get("mig_profiles", f"MIG profile of {parent.name}")
    sources = {
        **{key: text for key, text in parent.sources.items() if key not in {"mig_profiles", "usable_memory_mb"}},
        **{f"peak_tflops.{key}": by_sms for key in parent.peak_tflops},
        "sm_count": own,
        "memory_mb": own,
        "bandwidth_gb_s": by_memory,
        "l2_mb": by_l2 if profile.l2_slices is None else f"{by_l2}, by {own}",
        "board_power_w": by_sms,
    }
    return replace(
        parent,
        name=f"{profile.name}@{parent.name}",
        sm_count=profile.sm_count,
        memory_mb=profile.memory_mb,
        # What the slice offers is already net of what the driver keeps.
        usable_memory_mb=None,
        # A context grows with the SMs.
        context_mb=None,
        bandwidth_gb_s=parent.bandwidth_gb_s * profile.memory_slices / total_slices,
        l2_mb=parent.l2_mb * l2_slices / total_slices,
        board_power_w=parent.board_power_w * sm_share,
        peak_tflops={key: rate * sm_share for key, rate in parent.peak_tflops.items()},
        aliases=(),
        mig_profiles=(),
        parent=parent.name,
        sources=sources,
    )


def load_device_file(path: str | Path) -> DeviceSpec:
    """Reads a user's own device from a TOML file.

    The keys are the fields of ``DeviceSpec``: ``peak_tflops`` is a table with at least ``fp32``, ``mig_profiles`` an
    array of tables with the fields of ``MigProfile``, ``sources`` an optional table of field to citation.

    Args:
        path: The file; at most 1 MB.

    Returns:
        The device, with every value checked.

    Raises:
        UsageError: The file is missing or unreadable (code ``"device_file.unreadable"``), is not TOML
            (``"device_file.syntax"``), lacks a required key or has one that means nothing here
            (``"device_file.key"``), or a value is of the wrong kind (``"device_file.value"``) or out of its range
            (``"device.value"``).
    """
    text = _read_device_text(Path(path))
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise UsageError(
            f"Device file '{path}' is not valid TOML: {exc}.",
            code="device_file.syntax",
            cure='Write one `key = value` per line, such as `sm_count = 108` or `name = "My GPU"`.',
        ) from exc
    where = f"Device file '{path}'"
    _check_keys(where, table, DEVICE_FILE_REQUIRED, _OPTIONAL_KEYS)
    profiles = _expect(where, table, "mig_profiles", list, [])
    for number, profile in enumerate(profiles, start=1):
        if not isinstance(profile, dict):
            raise _wrong_kind(where, f"mig_profiles entry {number}", "a table", profile)
        _check_keys(f"{where}, mig_profiles entry {number}", profile, _PROFILE_REQUIRED, _PROFILE_OPTIONAL)
        _expect_texts(where, f"mig_profiles entry {number}, name", [profile["name"]])
        _expect(where, profile, "placements", list, [])
    peaks = _expect(where, table, "peak_tflops", dict, {})
    sources = _expect(where, table, "sources", dict, {})
    aliases = _expect(where, table, "aliases", list, [])
    _expect_texts(where, "name", [table["name"]])
    _expect_texts(where, "architecture", [table["architecture"]])
    for name in (table["name"], *(profile["name"] for profile in profiles)):
        if not _SEPARATORS.isdisjoint(name):
            raise UsageError(
                f"{where}: the name {name!r} must be without ',' and '@', which part names of devices from each other "
                "and slices from their cards.",
                code="device_file.value",
            )
    _expect_texts(where, "aliases", aliases)
    _expect_texts(where, "sources", sources.values())
    return _make_spec(table, peaks=peaks, profiles=profiles, sources=sources)


def _read_entry(entry: Mapping[str, Any], mig: Mapping[str, Any], citations: Mapping[str, str]) -> DeviceSpec:
    sources: dict[str, str] = {}
    for reference, fields in entry["sources"].items():
        citation = _cite(reference, citations)
        names, _, peaks = fields.partition("peak_tflops:")
        sources.update({name.strip(): citation for name in names.split(",") if name.strip()})
        sources.update({f"peak_tflops.{name}": citation for name in peaks.split()})
    profiles: list[Mapping[str, Any]] = []
    if "mig" in entry:
        profiles = mig[entry["mig"]]["profiles"]
        sources["mig_profiles"] = _cite(mig[entry["mig"]]["source"], citations)
    return _make_spec(entry, peaks=entry["peak_tflops"], profiles=profiles, sources=sources)


def _cite(reference: str, citations: Mapping[str, str]) -> str:
    document, _, note = reference.partition(" | ")
    return f"{citations[document]}: {note}" if note else citations[document]


def _make_spec(
    table: Mapping[str, Any],
    *,
    peaks: Mapping[str, float],
    profiles: Iterable[Mapping[str, Any]],
    sources: Mapping[str, str],
) -> DeviceSpec:
    capability = table["compute_capability"]
    if not isinstance(capability, list):
        raise _wrong_kind(f"Device '{table['name']}'", "compute_capability", "a list such as [8, 0]", capability)
    return DeviceSpec(
        name=table["name"],
        architecture=table["architecture"],
        compute_capability=tuple(capability),
        sm_count=table["sm_count"],
        fp32_lanes_per_sm=table["fp32_lanes_per_sm"],
        base_clock_mhz=table["base_clock_mhz"],
        boost_clock_mhz=table["boost_clock_mhz"],
        memory_mb=table["memory_mb"],
        usable_memory_mb=table.get("usable_memory_mb"),
        context_mb=table.get("context_mb"),
        bandwidth_gb_s=table["bandwidth_gb_s"],
        l2_mb=table["l2_mb"],
        board_power_w=table["board_power_w"],
        peak_tflops=dict(peaks),
        aliases=tuple(table.get("aliases", ())),
        mig_profiles=tuple(
            MigProfile(**{**profile, "placements": tuple(profile.get("placements", ()))}) for profile in profiles
        ),
        has_unlisted_slices=table.get("has_unlisted_slices", False),
        sources=dict(sources),
    )


def _split_slice_name(name: str) -> tuple[str | None, str]:
    if "@" in name:
        profile_name, _, card_name = name.partition("@")
        return re.sub(r"^\s*mig\s", "", profile_name, flags=re.IGNORECASE).strip(), card_name
    # CUDA's name of a slice: the card's, then " MIG ", then the profile's.
    words = name.split()
    if len(words) > 2 and words[-2].lower() == "mig":
        return words[-1], " ".join(words[:-2])
    return None, name


def _find_card(name: str) -> DeviceSpec:
    spec = _devices_by_key().get(_name_key(name))
    if spec is None:
        raise _unknown_card(name)
    return spec


def _unknown_card(name: str) -> UnsupportedError:
    shown, cure = name.strip()[:_LONGEST_NAME], "List all devices with `dippm devices`"
    if not shown:
        return UnsupportedError("The name of the device is empty.", code="device.unknown", cure=f"{cure}.")
    if _SLICE_ALONE.fullmatch(shown):
        return UnsupportedError(
            f"{shown!r} is a slice of no card.",
            code="device.unknown",
            cure="Name the card behind it, as in '1g.10gb@A100-SXM4-80GB'.",
        )
    return UnsupportedError(
        f"No device is named {name[:_LONGEST_NAME]!r}{_SEVERAL if ',' in name else ''}. The nearest are: "
        f"{', '.join(_nearest_names(name))}.",
        code="device.unknown",
        cure=f"{cure}, or describe your own with `--device-file`.",
    )


def _name_key(name: str) -> str:
    words = re.findall(r"[a-z]+|[0-9]+", name[:_LONGEST_NAME].lower())
    return "".join(word for word in words if word not in _IDLE_WORDS)


@functools.cache
def _devices_by_key() -> Mapping[str, DeviceSpec]:
    return {_name_key(name): spec for spec in load_catalog() for name in (spec.name, *spec.aliases)}


def _nearest_names(name: str) -> list[str]:
    import difflib  # costs more than the lookup itself, and only this error needs it

    by_key = _devices_by_key()
    wanted = _name_key(name)
    # What goes on from the name that was given comes first: "RTX 5000" is likely half of "RTX 5000 Ada Generation".
    longer = [key for key in by_key if wanted and key.startswith(wanted)]
    near = longer + difflib.get_close_matches(wanted, by_key, n=3 * _SUGGESTIONS, cutoff=0.0)
    # Several keys may mean one device; a dict keeps the order and drops the repeats.
    return list(dict.fromkeys(by_key[key].name for key in near))[:_SUGGESTIONS]


def _read_device_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_DEVICE_FILE_BYTES + 1)
        if len(raw) > _MAX_DEVICE_FILE_BYTES:
            raise UsageError(
                f"Device file '{path}' is larger than 1 MB, so it is not a device file.",
                code="device_file.unreadable",
                cure="Give a TOML file with one device's figures.",
            )
        return raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not UTF-8 text"
        raise UsageError(
            f"Device file '{path}' cannot be read: {reason}.",
            code="device_file.unreadable",
            cure="Give the path of a TOML file with one device's figures.",
        ) from exc


def _check_keys(where: str, table: Mapping[str, Any], required: tuple[str, ...], optional: tuple[str, ...]) -> None:
    missing = [key for key in required if key not in table]
    unknown = [key for key in table if key not in required and key not in optional]
    if missing:
        beside = f" and has unknown keys: {', '.join(unknown)}" if unknown else ""
        raise UsageError(
            f"{where} lacks: {', '.join(missing)}{beside}.",
            code="device_file.key",
            cure=f"Required are: {', '.join(required)}.",
        )
    if unknown:
        raise UsageError(
            f"{where} has unknown keys: {', '.join(unknown)}.",
            code="device_file.key",
            cure=f"Known are: {', '.join((*required, *optional))}.",
        )


def _expect(where: str, table: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = table.get(key, default)
    if not isinstance(value, kind):
        raise _wrong_kind(where, key, "a table" if kind is dict else "a list", value)
    return value


def _expect_texts(where: str, key: str, values: Iterable[object]) -> None:
    for value in values:
        if not isinstance(value, str):
            raise _wrong_kind(where, key, "text in quotes", value)


def _wrong_kind(where: str, key: str, must: str, got: object) -> UsageError:
    return UsageError(f"{where}: {key} must be {must}. Got {got!r} instead.", code="device_file.value")
