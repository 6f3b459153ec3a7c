"""The UE of a field run, local or remote: measures its link and decodes."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from testbed.channel.keys import load_client
from testbed.config import RunConfig
from testbed.errors import AgentError, BadInput, LinkError
from testbed.experiments.field.plan import Place
from testbed.experiments.inputs.state import RADIO
from testbed.experiments.links.measure import measure
from testbed.experiments.results import directory as results
from testbed.experiments.runs.journal import NAME as JOURNAL
from testbed.experiments.runs.uerun import run_ue
from testbed.experiments.runs.workers import pool_of

LINK, LINK_TRACE = "link.json", "link.csv"
"""A measurement, in the directory of a place; the link trace recorded from rounds, in that of a cell or place."""
FILED = ("drafter", "tokenizer", "dataset", "predictor")
"""Fields of a run configuration that name files or folders, which must exist on the UE."""
ALLOWED = (
    "bs", "methods", "window", "threshold", "max_tokens", "limit", "prompt_format", "shots", "seed", "warmup", "gate",
    "tie_tolerance", "concurrency", "kv_type", "threads", "gpu_layers", "timeout_s", "auto_rule", "temperature",
    "top_k", "top_p", "sampling", "hidden_bits", "speed_tps", "accept_slower", "window_rule", "lookahead", "failover_s",
    "power_period_s", "power_idle_s", "verification", "q_top", "q_bits",
)  # fmt: skip
"""Fields of a run configuration that an order may set freely, since they name nothing on the UE."""
Say = Callable[[str], None]


class Reach(NamedTuple):
    """Addresses of the base station and its iperf3 server from a place."""

    bs: str
    iperf3: str | None
    """HOST[:PORT] of the iperf3 server; None: none."""
    origin_s: float | None = None
    """Start of the emulated link on the host's monotonic clock; None: real link."""


class Probe(NamedTuple):
    """Settings of a link measurement."""

    handshakes: int
    seconds: int
    """Duration of each iperf3 transfer."""
    timeout_s: float


class OrderFailed(AgentError):
    """An agent could not carry out an order; it answers, and others of its orders may be done."""


class Skipped:
    """Agents without an answer, or with a wrong one, which a command skips from then on.

    Args:
        say: called with a line for each.
    """

    def __init__(self, say: Say) -> None:
        self._errors: dict[str, LinkError | AgentError] = {}
        self._orders: dict[str, None] = {}
        """Agents with orders that failed."""
        self._say = say

    def __contains__(self, address: str | None) -> bool:
        return address in self._errors

    @contextlib.contextmanager
    def at_fault(self, place: Place, consequence: str = "") -> Iterator[None]:
        """Note what a place's agent does wrong in the block, and go on; errors of this machine's own UE are raised."""
        try:
            yield
        except OrderFailed as exc:
            self._orders[str(place.ue)] = None
            self._say(f"{place.name}: {exc}{consequence}")
        except (LinkError, AgentError) as exc:
            if place.ue is None:
                raise
            self._errors[place.ue] = exc
            self._say(f"{place.name}: {exc}{consequence}")

    def addresses(self) -> dict[str, list[str]]:
        """Agents that were `silent`, and those that `failed`."""
        wrong = [address for address, error in self._errors.items() if isinstance(error, AgentError)]
        silent = [address for address in self._errors if address not in wrong]
        return {"silent": silent, "failed": list(dict.fromkeys([*wrong, *self._orders]))}


def check_answered(silent: Sequence[str], failed: Sequence[str], advice: str) -> None:
    """Raise if agents were skipped.

    Args:
        advice: what to do about those that did not answer.

    Raises:
        AgentError: some failed; the reasons were printed before.
        LinkError: some did not answer.
    """
    reason = f"{', '.join(silent)} did not answer; {advice}"
    if failed:
        raise AgentError(f"{', '.join(failed)} failed, for the reasons above" + (f"; {reason}" if silent else ""))
    if silent:
        raise LinkError(reason)


class Device(Protocol):
    """A UE of a field run."""

    def measure(self, reach: Reach, probe: Probe, folder: Path) -> dict[str, Any]:
        """Measure the link; returns the document of `channel measure`, which `run` also uses.

        Args:
            folder: directory of the place on this machine.

        Raises:
            LinkError: the base station is unreachable.
        """

    def expect(self, runs: Sequence[tuple[RunConfig, Path]]) -> None:
        """Announce the coming calls of `run`, in order; a remote device runs them even if the connection is lost.

        Raises:
            BadInput: the device refuses a configuration.
        """

    @property
    def offset_s(self) -> float:
        """Offset of its monotonic clock from this machine's."""

    def begin(self, config: RunConfig, folder: Path, out: Path, start_s: float) -> None:
        """Start the run of which the next call of `run` waits for the end, beside those of other devices.

        Args:
            start_s: start on this machine's monotonic clock.

        Raises:
            BadInput: the device refuses the configuration.
        """

    def run(self, config: RunConfig, folder: Path, out: Path) -> None:
        """Decode as configured into the run directory `out`, with the channel state of the last measurement; resumes an
        interrupted run.

        Raises:
            BadInput: an invalid configuration.
            LinkError: the base station is unreachable.
        """

    def close(self) -> None:
        """Release the device."""


class LocalDevice:
    """Implements `Device` on this machine.

    Args:
        keys: directory made by `keys new --ue`; None: no keys.
        settle_s: delay before the first run.
    """

    def __init__(self, keys: str | None, settle_s: float, say: Say) -> None:
        self._keys = load_client(Path(keys)) if keys else None
        self._settle_s, self._say = settle_s, say
        self._process = contextlib.ExitStack()
        self._begun: Future[None] | None = None

    def measure(self, reach: Reach, probe: Probe, folder: Path) -> dict[str, Any]:
        """See `Device.measure`."""
        document = measure(
            reach.bs, reach.iperf3, probe.seconds, probe.handshakes, None, probe.timeout_s, self._say, self._keys
        )
        keep_link(folder, document)
        return document

    def expect(self, runs: Sequence[tuple[RunConfig, Path]]) -> None:
        """Wait for the operator to step aside."""
        time.sleep(self._settle_s)

    offset_s = 0.0

    def begin(self, config: RunConfig, folder: Path, out: Path, start_s: float) -> None:
        """See `Device.begin`: in a process of its own."""
        pool = self._process.enter_context(pool_of(1, "the process of a UE was killed"))
        self._begun = pool.submit(_decode_at, start_s, with_link(config, folder / LINK), out)

    def run(self, config: RunConfig, folder: Path, out: Path) -> None:
        """See `Device.run`."""
        begun, self._begun = self._begun, None
        if begun is None:
            decode(with_link(config, folder / LINK), out, self._say)
            return
        with self._process:
            begun.result()

    def close(self) -> None:
        """Wait for the end of a process."""
        self._process.close()


def _decode_at(start_s: float, config: RunConfig, out: Path) -> None:
    """Decode from a time on the monotonic clock on."""
    time.sleep(max(0.0, start_s - time.perf_counter()))
    decode(config, out, lambda _: None)


def keep_link(folder: Path, document: dict[str, Any]) -> None:
    """Save a measurement for the runs at its place."""
    folder.mkdir(parents=True, exist_ok=True)
    results.write_text(folder / LINK, json.dumps(document, indent=2, allow_nan=False) + "\n")


def with_link(config: RunConfig, link: Path) -> RunConfig:
    """The configuration with a measurement as the initial channel state, which rounds then update; levels of the
    radio are read before every request.
    """
    return msgspec.structs.replace(config, csi=f"{link}{RADIO}")


def decode(config: RunConfig, out: Path, say: Say) -> None:
    """Run a UE on this machine, resuming an interrupted run if possible.

    Raises:
        BadInput: an invalid configuration.
        LinkError: the base station is unreachable.
    """
    journal = out / JOURNAL
    if journal.is_file() and journal.stat().st_size > 0:
        try:
            run_ue(config, None, out, resume=True)
            return
        except BadInput as exc:
            say(f"{exc}; restarting the run")
    journal.unlink(missing_ok=True)
    run_ue(config, None, out)
