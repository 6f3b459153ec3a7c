"""A remote UE of a field run: measurements and runs become orders to its agent, and results are fetched."""

from __future__ import annotations

import hashlib
import math
import re
import shutil
import time
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

import msgspec

from testbed.assets.bundled_files import find
from testbed.assets.model_names import Part, named
from testbed.config import RunConfig, resolved
from testbed.errors import AgentError, BadInput
from testbed.experiments.field.devices.agents import AgentConnection
from testbed.experiments.field.devices.arrived import check_arrived, one_line
from testbed.experiments.field.devices.base import FILED, LINK, LINK_TRACE, OrderFailed, Probe, Reach, Say
from testbed.experiments.field.link import check_measured
from testbed.experiments.results import directory as results
from testbed.protocols.orders import CANCELLED, Order, Probing, Running, State, digest_of, hash_of, order_id

MOST_FILES = 32
"""Maximum number of files in an uploaded folder."""
MOST_MEASURED = 2**20
"""Maximum size of a measurement [bytes]."""
MOST_RUN, MOST_TOKEN = 2**24, 2**10
"""Maximum size of a run's files [bytes]: in all, and more for each token that was ordered."""
NEWS_S = 60.0
"""Interval of lines about an order for which a command waits."""
SPARE_S = 120.0
"""Time that a measurement may take beyond that of its parts."""
SAME_CLOCK_S = 1.0
"""Least change of a clock's offset that tells that it began anew."""
MARK = 12
"""Number of digits of the digest that prefix an uploaded file's name."""


class AgentDevice:
    """Implements `Device` through an agent.

    Args:
        name: name of the field run, used in order ids.
        trace: link trace, by name or file, that the agent replays towards the base station; None: none.
        settle_s: delay before the first run.
        run: what tells this field run's orders from those of another directory with the same plan (`FieldLog.run`).
    """

    def __init__(
        self, agent: AgentConnection, name: str, trace: str | None, settle_s: float, say: Say, run: str = ""
    ) -> None:
        self._agent, self._name, self._say, self._run = agent, name, say, run
        self._trace, self._settle_s = trace, settle_s
        self._names: dict[str, dict[Path, tuple[str, str]]] = {}
        self._there: set[str] = set()
        self._link: str | None = None
        self._begun: Order | None = None

    def measure(self, reach: Reach, probe: Probe, folder: Path) -> dict[str, Any]:
        """See `Device.measure`; the agent's waiting orders are carried out first."""
        if (waiting := self._agent.standing.waiting) > 0:
            self._say(f"{self._agent.address}: {waiting} waiting orders will be carried out first")
        what = Probing(reach.bs, reach.iperf3, probe.seconds, probe.handshakes, probe.timeout_s)
        order = Order(id=order_id(self._place(folder.name), "link", str(time.time_ns()), config={}), what=what)
        self._agent.order(order)
        state = self._done(order.id, probe.handshakes * probe.timeout_s + 2 * probe.seconds + SPARE_S)
        if (names := [file.name for file in state.files]) != [LINK]:
            listed = one_line(", ".join(names)) or "no file"
            raise AgentError(f"the measurement from {self._agent.address} is not {LINK} alone, but: {listed}")
        self._agent.fetch(state, folder, MOST_MEASURED)
        self._link = order.id
        try:
            document: dict[str, Any] = msgspec.json.decode((folder / LINK).read_bytes())
            check_measured(document)
        except (OSError, BadInput, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise AgentError(f"the measurement from {self._agent.address} is unreadable: {exc}") from exc
        return document

    def expect(self, runs: Sequence[tuple[RunConfig, Path]]) -> None:
        """Give all orders at once, so that the agent continues without a connection."""
        start_s = time.perf_counter() + self.offset_s + self._settle_s if self._settle_s else 0.0
        for config, out in runs:
            self._agent.order(msgspec.structs.replace(self._order(config, out), start_s=start_s))

    @property
    def offset_s(self) -> float:
        """See `Device.offset_s`."""
        return self._agent.offset.offset_s

    def begin(self, config: RunConfig, folder: Path, out: Path, start_s: float) -> None:
        """See `Device.begin`; the order is a new one, since results of an earlier attempt do not count."""
        self._agent.cancel(f"{self._cell(out)}-")
        self._agent.synchronise()
        order = self._order(config, out)
        name = f"{order.id}-{time.time_ns()}"
        self._begun = msgspec.structs.replace(order, id=name, start_s=start_s + self.offset_s)
        self._agent.order(self._begun)

    def run(self, config: RunConfig, folder: Path, out: Path) -> None:
        """See `Device.run`."""
        begun, self._begun = self._begun, None
        order, before_s = begun or self._order(config, out), self.offset_s
        self._agent.order(order)
        self._bring(self._done(order.id), config, out)
        if begun:
            self._agent.synchronise()
            if abs(self.offset_s - before_s) > SAME_CLOCK_S:
                raise AgentError(f"the clock of {self._agent.address} began anew while all places ran together")

    def collect(self, config: RunConfig, out: Path) -> bool:
        """Fetch a run if it is done; returns whether it was. Nothing is uploaded: the agent learns the order's id.

        Raises:
            OrderFailed: its order failed; not where it was cancelled.
        """
        state = self._agent.state(self._order(config, out, self._known_as).id)
        if state.state == "failed" and state.note != CANCELLED:
            raise OrderFailed(f"{self._agent.address}: order {state.id} failed: {one_line(state.note)}")
        if state.state == "done":
            self._bring(state, config, out)
        return state.state == "done"

    def cancel(self, place: str) -> int:
        """Cancel this field run's unfinished orders for a place; returns how many are cancelled."""
        return self._agent.cancel(f"{self._place(place)}-")

    def standing(self) -> dict[str, Any]:
        """The agent's state, and the offset of its clock from this machine's."""
        now, offset = self._agent.standing, self._agent.offset
        return {
            "host": one_line(now.host), "testbed": one_line(now.testbed), "free_bytes": now.free_bytes,
            "waiting": now.waiting, "clock": msgspec.to_builtins(offset),
        }  # fmt: skip

    def close(self) -> None:
        """Close the connection to the agent."""
        self._agent.close()

    def _done(self, name: str, most_s: float = math.inf) -> State:
        """Wait until an order is done, with a line a minute about it.

        Args:
            most_s: longest time that the order may be running.

        Raises:
            AgentError: the order failed, runs longer than `most_s`, or is not known to the agent.
            LinkError: the agent does not answer.
        """
        begun_s = told_s = time.monotonic()
        running_s: float | None = None
        for state in self._agent.states(name):
            now_s = time.monotonic()
            if state.state == "running":
                running_s = now_s if running_s is None else running_s
                if now_s - running_s > most_s:
                    raise AgentError(f"{self._agent.address}: order {name} has been running for {most_s:.0f} s")
            if now_s - told_s > NEWS_S and state.state != "done":
                told_s = now_s
                self._say(
                    f"{self._agent.address}: order {name} is {state.state}, after {(now_s - begun_s) / 60:.0f} min"
                )
        return state

    def _bring(self, state: State, config: RunConfig, out: Path) -> None:
        """Fetch a run into a folder beside its own, and move it there once it is found to be one. A run that cannot be
        used is made again if it is ordered again.
        """
        arriving, requests = out.with_name(f".{out.name}.arriving"), config.limit or 0
        try:
            if named := [file.name for file in state.files if "/" in file.name or file.name == LINK_TRACE]:
                raise BadInput(f"it has a file {one_line(named[0])!r}")
            if len(names := {file.name for file in state.files}) < len(state.files):
                raise BadInput("it lists a file twice")
            self._agent.fetch(state, arriving, MOST_RUN + MOST_TOKEN * requests * config.max_tokens)
            _keep_only(names, arriving)
            check_arrived(arriving, requests, config.max_tokens, config)
        except BadInput as exc:
            shutil.rmtree(arriving, ignore_errors=True)
            self._agent.drop(state.id)
            raise AgentError(f"{self._agent.address}: order {state.id} brought no run: {exc}") from exc
        out.mkdir(parents=True, exist_ok=True)
        for file in sorted(state.files, key=lambda file: file.name == results.SUMMARY):
            (arriving / file.name).replace(out / file.name)
        shutil.rmtree(arriving, ignore_errors=True)
        self._agent.drop(state.id)

    # ------------------------------------------------------------ orders

    def _place(self, name: str) -> str:
        """Begin of the ids of a place's orders: no other plan's or place's begin with it and a hyphen."""
        return f"{self._name}-{name}-{_tag(name)}"

    def _cell(self, out: Path) -> str:
        """The same for a cell of this field run."""
        return f"{self._place(out.parent.name)}-{out.name}-{_tag(self._run + out.name)}"

    def _order(self, config: RunConfig, out: Path, name: Callable[[str], str] | None = None) -> Order:
        """The order for a run; the files that it reads are uploaded, unless `name` gives their names."""
        name = name or self.put
        filed = _filed(config)
        there = {option: name(value) for option, value in filed.items()}
        config = msgspec.structs.replace(config, csi="link", keys=None, insecure=False, **there)
        replayed = [str(find("traces", self._trace))] if self._trace else []
        trace = name(replayed[0]) if replayed else None
        digests = dict(known for path in (*filed.values(), *replayed) for known in self._names[path].values())
        known = {"config": resolved(config), "trace": trace} | ({"run": self._run} if self._run else {})
        what = Running(config, self._link, trace, digests)  # the id leaves the measurement out, from which it starts
        return Order(id=order_id(self._cell(out), config=known), what=what)

    def put(self, path: str) -> str:
        """Upload a file or a folder of files to the agent; returns its name there.

        Raises:
            BadInput: no such file or folder, or too many files.
        """
        name = self._known_as(path)
        if path not in self._there:
            for file, (stored, _) in self._names[path].items():
                self._agent.put(stored, file)
            self._there.add(path)
        return name

    def _known_as(self, path: str) -> str:
        """Name that a file or a folder of files has at the agent, whether or not it is there."""
        if path not in self._names:
            self._names[path] = _names(Path(path))
        first, _ = next(iter(self._names[path].values()))
        return first.partition("/")[0] if Path(path).is_dir() else first


def _names(path: Path) -> dict[Path, tuple[str, str]]:
    """Names and digests of a file, or of the files of a folder, at an agent: a changed file has another name.

    Raises:
        BadInput: no such file or folder, or too many files.
    """
    files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    if not files or not files[0].is_file() or len(files) > MOST_FILES:
        raise BadInput(f"{path} is not a file or a folder of 1 to {MOST_FILES} files")
    digests = {file: digest_of(file) for file in files}
    whole = hash_of()
    for file, digest in digests.items():
        whole.update(f"{file.name} {digest}\n".encode())
    folder = f"{whole.hexdigest()[:MARK]}-{_plain(path.name)}" if path.is_dir() else digests[path][:MARK]
    return {file: (f"{folder}/{_plain(file.name)}", digests[file]) for file in files}


def _keep_only(names: Set[str], folder: Path) -> None:
    """Remove the files of a folder that have other names, such as those of a fetch that broke off."""
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in names:
            path.unlink()


def _tag(text: str) -> str:
    """A short hash, which no name is likely to have in its place."""
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _plain(name: str) -> str:
    """Replace characters that an agent does not accept in file names."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip("._-")[:90] or "file"


def _filed(config: RunConfig) -> dict[str, str]:
    """Paths of the files that a run reads, by option; the agent has bundled ones itself."""
    found = {name: value for name in FILED if (value := getattr(config, name)) and not _bundled(value)}
    parts: tuple[Part, ...] = ("drafter", "tokenizer")
    return found | {part: named(found[part], part) for part in parts if part in found}


def _bundled(value: str) -> bool:
    return value.startswith("bundled:")
