"""A stand-in for the pynvml module with two devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

MIB = 2**20


class NVMLError(Exception):
    """What the real binding raises."""


@dataclass
class Card:
    uuid: str
    bus: str
    name: str = "NVIDIA H200"
    used: int = 1000 * MIB
    energy_mj: int | None = 5_000_000
    power_mw: int = 100_000
    instant_mw: int | None = None
    reasons: int = 0x1 | 0x4 | 0x40
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    slices: list[Card] = field(default_factory=list)  # MIG is on where there are any


class FakeNvml:
    """Only some functions: the others are missing as in an old binding."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.cards = [Card("GPU-aa", "00000000:01:00.0"), Card("GPU-bb", "00000000:02:00.0", name="NVIDIA H100 NVL")]

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802 - the binding's name, here and below
        return b"580.1"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:  # noqa: N802
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:  # noqa: N802
        known = [*self.cards, *(slice_ for card in self.cards for slice_ in card.slices)]
        return self._first(card for card in known if card.uuid == uuid)

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> Card:  # noqa: N802
        return self._first(card for card in self.cards if card.bus == bus)

    def nvmlDeviceGetMigMode(self, card: Card) -> list[int]:  # noqa: N802
        return [int(bool(card.slices)), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, card: Card) -> int:  # noqa: N802
        return 7 if card.slices else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: Card, index: int) -> Card:  # noqa: N802
        return self._first(card.slices[index : index + 1])

    def nvmlDeviceGetName(self, card: Card) -> str:  # noqa: N802
        return card.name

    def nvmlDeviceGetUUID(self, card: Card) -> str:  # noqa: N802
        return card.uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, card: Card) -> int:  # noqa: N802
        if card.energy_mj is None:
            raise NVMLError("not supported")
        return card.energy_mj

    def nvmlDeviceGetPowerUsage(self, card: Card) -> int:  # noqa: N802
        return card.power_mw

    def nvmlDeviceGetFieldValues(self, card: Card, fields: list[int]) -> list[SimpleNamespace]:  # noqa: N802
        status = 0 if fields == [186] and card.instant_mw is not None else 3
        return [SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=card.instant_mw or 0))]

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=card.used, total=140_000 * MIB)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, card: Card) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in card.processes]

    def nvmlDeviceGetClockInfo(self, card: Card, kind: int) -> int:  # noqa: N802
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetTemperature(self, card: Card, sensor: int) -> int:  # noqa: N802
        return 41 + sensor

    def nvmlDeviceGetEnforcedPowerLimit(self, card: Card) -> int:  # noqa: N802
        return 700_000

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card: Card) -> int:  # noqa: N802
        return card.reasons

    @staticmethod
    def _first(cards: object) -> Card:
        for card in cards:  # type: ignore[attr-defined]
            return card
        raise NVMLError("not found")
