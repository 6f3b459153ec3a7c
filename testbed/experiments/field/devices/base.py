"""What a field run asks of a UE, wherever it is: to measure its link, and to decode."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from testbed.channel.keys import load_client
from testbed.config import RunConfig
from testbed.errors import BadInput
from testbed.experiments.links.measure import measure
from testbed.experiments.results import directory as results
from testbed.experiments.runs.journal import NAME as JOURNAL
from testbed.experiments.runs.uerun import run_ue

LINK = "link.json"
Say = Callable[[str], None]


class Reach(NamedTuple):
    """How the base station is reached from a place."""

    bs: str
    iperf3: str | None
    """HOST[:PORT] of an iperf3 server beside it; None: none."""
    origin_s: float | None = None
    """When the emulated link began, on the host's monotonic clock; None: the link is real."""


class Probe(NamedTuple):
    """A measurement to make."""

    handshakes: int
    seconds: int
    """Of each iperf3 transfer."""
    timeout_s: float


class Device(Protocol):
    """A UE of a field run."""

    def measure(self, reach: Reach, probe: Probe, folder: Path) -> dict[str, Any]:
        """Measure the link; returns the document of `channel measure`, and keeps it for `run`.

        Args:
            folder: of the place, on the machine that the field run is directed from.

        Raises:
            LinkError: the base station cannot be reached.
        """

    def expect(self, runs: Sequence[tuple[RunConfig, Path]]) -> None:
        """Know what `run` is going to be asked, in order: a device that loses whoever asks does it all the same.

        Raises:
            BadInput: a configuration that the device does not take.
        """

    def run(self, config: RunConfig, folder: Path, out: Path) -> None:
        """Decode as configured, starting from the link's last measurement, into the run directory `out`; go on with a
        run that was cut short there.

        Raises:
            BadInput: the configuration cannot be used.
            LinkError: the base station cannot be reached.
        """

    def close(self) -> None:
        """Let go of it."""


class LocalDevice:
    """Implements `Device`: this machine is the UE.

    Args:
        keys: directory that `keys new --ue` made; None: none.
        settle_s: before the first run.
    """

    def __init__(self, keys: str | None, settle_s: float, say: Say) -> None:
        self._keys = load_client(Path(keys)) if keys else None
        self._settle_s, self._say = settle_s, say

    def measure(self, reach: Reach, probe: Probe, folder: Path) -> dict[str, Any]:
        """See `Device.measure`."""
        document = measure(
            reach.bs, reach.iperf3, probe.seconds, probe.handshakes, None, probe.timeout_s, self._say, self._keys
        )
        keep_link(folder, document)
        return document

    def expect(self, runs: Sequence[tuple[RunConfig, Path]]) -> None:
        """Give the operator the time to step aside."""
        time.sleep(self._settle_s)

    def run(self, config: RunConfig, folder: Path, out: Path) -> None:
        """See `Device.run`."""
        decode(with_link(config, folder / LINK), out, self._say)

    def close(self) -> None:
        """Nothing to let go of."""


def keep_link(folder: Path, document: dict[str, Any]) -> None:
    """Write a measurement where runs begin from it."""
    folder.mkdir(parents=True, exist_ok=True)
    results.write_text(folder / LINK, json.dumps(document, indent=2, allow_nan=False) + "\n")


def with_link(config: RunConfig, link: Path) -> RunConfig:
    """The configuration with its channel state learnt from the rounds, beginning at a measurement."""
    return msgspec.structs.replace(config, csi=str(link))


def decode(config: RunConfig, out: Path, say: Say) -> None:
    """Run a UE here, or go on with a run that was cut short; one that cannot go on begins anew.

    Raises:
        BadInput: the configuration cannot be used.
        LinkError: the base station cannot be reached.
    """
    journal = out / JOURNAL
    if journal.is_file() and journal.stat().st_size > 0:
        try:
            run_ue(config, None, out, resume=True)
            return
        except BadInput as exc:
            say(f"{exc}; it begins anew")
    journal.unlink(missing_ok=True)
    run_ue(config, None, out)
