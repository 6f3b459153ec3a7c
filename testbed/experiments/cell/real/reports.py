"""What the processes of a real cell tell the one that started them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import NamedTuple

from testbed.experiments.cell.tally import UeTally
from testbed.files import whole_file


class UeReport(NamedTuple):
    """What the process of a UE counted."""

    tally: UeTally
    lossy: int
    """Responses that had to be the target's own, and were not."""
    late_s: float
    """Time by which steps of its drafter took longer than the profile's."""
    ready_s: float
    """Time from the start at which it was ready, negative before the start."""
    still_s: float
    """Longest standstill of its event loop after the warm-up."""
    beats_late_s: float
    """Latenesses of all beats of that loop."""

    def write(self, path: Path) -> None:
        """Write the report."""
        with whole_file(path) as part:
            part.write_bytes(pickle.dumps(tuple(self)))

    @classmethod
    def read(cls, path: Path) -> UeReport:
        """A report that a process of this run has written."""
        return cls(*pickle.loads(path.read_bytes()))  # noqa: S301


class RelayedWork(NamedTuple):
    """What the radio counted of a decoding UE after the warm-up; pairs are up and down."""

    bytes: tuple[float, float]
    air_s: tuple[float, float]
    """Time of the slots in which it sent and received."""
    band_s: tuple[float, float]
    """The same, times its shares of the bandwidth."""
    switches: int
    """Changes of its window, protocol or θ by the controller of the cell."""

    def put(self, tally: UeTally) -> None:
        """Put the counters into the UE's tally."""
        pairs = (tally.bytes, self.bytes), (tally.air_s, self.air_s), (tally.band_s, self.band_s)
        for there, (up, down) in pairs:
            there.update({True: up, False: down})
        tally.switches = self.switches


class RadioReport(NamedTuple):
    """What the process of the radio counted."""

    used: list[tuple[float, float]]
    """Sums of the shares of the bandwidth in use after the warm-up, uplink and downlink, one pair for each cell."""
    relayed: dict[int, RelayedWork]
    """Work of each decoding UE, by its number."""
    senders: dict[int, UeTally]
    """Counters of UEs that send bytes."""
    still_s: float
    """Longest standstill of its event loop after the warm-up."""
    beats_late_s: float
    """Latenesses of all beats of that loop."""
