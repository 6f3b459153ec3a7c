"""Carries out one order of a UE's agent in its own process: a link measurement, or a resumable run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from testbed.assets.bundled_files import names
from testbed.channel.keys import load_client
from testbed.channel.spec import ChannelSpec
from testbed.config import RunConfig
from testbed.errors import BadInput
from testbed.experiments.agent.files import Files
from testbed.experiments.agent.stored_orders import ORDERS, RESULT, StoredOrder
from testbed.experiments.field.devices.base import ALLOWED, FILED, LINK, decode
from testbed.experiments.inputs.state import PASSIVE, RADIO
from testbed.experiments.links.measure import measure
from testbed.experiments.results import directory as results
from testbed.experiments.runs.journal import NAME as JOURNAL
from testbed.experiments.runs.processes import proxy
from testbed.power.sources import AUTO, NONE, SOURCES
from testbed.protocols.orders import Probing, Running, digest_of
from testbed.ue.dial import addresses

CHECKED = ("csi", "pad", "power")
CSI = ("none", "passive", "link")
MOST_TIMEOUT_S = 86_400
"""Longest wait for an answer of a base station: other orders wait meanwhile."""


def resolve_files(config: RunConfig, files: Files, owner: str = "") -> RunConfig:
    """Validate an order's configuration and replace names of its owner's files by paths.

    Raises:
        BadInput: a field that orders may not set, a file that was not uploaded, a channel state or profile that would
            be read from elsewhere, or too long a wait for answers.
    """
    default = RunConfig()
    given = {name: getattr(config, name) for name in config.__struct_fields__}
    for name, value in given.items():
        if name not in (*FILED, *ALLOWED, *CHECKED) and value != getattr(default, name):
            raise BadInput(f"an order may not set {name}; only the agent's own configuration can")
    check_reach(config.bs)
    if config.csi not in CSI:
        raise BadInput(f"an order may not use channel state {config.csi!r}; known: {', '.join(CSI)}")
    if config.timeout_s > MOST_TIMEOUT_S:
        raise BadInput(f"an order may not wait longer than {MOST_TIMEOUT_S} s for an answer")
    if config.pad is not None and config.pad not in names("profiles"):
        raise BadInput(f"unknown profile {config.pad!r}; known: {', '.join(names('profiles'))}")
    if config.power is not None and not set(config.power.split(",")) <= {AUTO, NONE, *SOURCES}:
        raise BadInput(f"unknown power source {config.power!r}; known: {', '.join((AUTO, NONE, *SOURCES))}")
    found = {name: str(files.path(given[name], owner)) for name in FILED if given[name] and not _bundled(given[name])}
    return msgspec.structs.replace(config, **found)


def check_digests(what: Running, files: Files, owner: str = "") -> None:
    """Refuse files other than those with which an order was given: they may have been replaced since.

    Raises:
        BadInput: a file has changed, is missing, or has been added to a folder.
    """
    named = [getattr(what.config, field) for field in FILED] + [what.trace]
    found: dict[str, Path] = {}
    for name in (name for name in named if what.digests and name and not _bundled(name)):
        path = files.path(name, owner)
        below = path.rglob("*") if path.is_dir() else [path]
        found |= {
            (PurePosixPath(name) / file.relative_to(path)).as_posix(): file for file in below if not file.is_dir()
        }
    for name in sorted(found.keys() | what.digests.keys()):
        if name not in found or digest_of(found[name]) != what.digests.get(name):
            raise BadInput(f"{name} at the agent is not the file that the order was given with; give the order again")


def check_reach(bs: str) -> None:
    """Refuse base-station addresses other than tcp://HOST:PORT, such as local sockets.

    Raises:
        BadInput: any other address.
    """
    for address in addresses(bs):
        if not address.startswith("tcp://"):
            raise BadInput(f"an order must name base stations as tcp://HOST:PORT, not {address}")


def _bundled(name: str) -> bool:
    return name in ("bundled:test", "bundled:calibration", "bundled:edit")


def carry_out(workdir: Path, name: str, bs_keys: str | None, insecure: bool, say: Any) -> None:
    """Carry out an order, writing its results into its directory.

    Args:
        bs_keys: directory of this UE's keys for the base station.

    Raises:
        BadInput: an invalid order.
        LinkError: the base station is unreachable.
    """
    kept = StoredOrder(workdir / ORDERS / name)
    kept.result.mkdir(exist_ok=True)
    what = kept.order.what
    if isinstance(what, Probing):
        check_reach(what.bs)
        keys = load_client(Path(bs_keys)) if bs_keys else None
        document = measure(what.bs, what.iperf3, what.seconds, what.count, None, what.timeout_s, say, keys)
        results.write_text(kept.result / LINK, json.dumps(document, indent=2, allow_nan=False) + "\n")
        return
    if (kept.result / results.SUMMARY).is_file() and not (kept.result / JOURNAL).exists():
        return  # it was complete when its process, or the agent, was ended
    files = Files(workdir)
    config = resolve_files(what.config, files, kept.owner)
    check_digests(what, files, kept.owner)
    config = msgspec.structs.replace(config, keys=bs_keys, insecure=insecure)
    trace = what.trace and str(files.path(what.trace, kept.owner))
    with _through(trace, config) as reached:
        if reached.csi == "link":
            reached = msgspec.structs.replace(reached, csi=_link(workdir, what))
        decode(reached, kept.result, say)


def _link(workdir: Path, what: Running) -> str:
    """The measurement that a run's channel state starts from; without one it is estimated from rounds only."""
    path = workdir / ORDERS / what.link / RESULT / LINK if what.link else None
    return f"{path}{RADIO}" if path is not None and path.is_file() else PASSIVE + RADIO


@contextlib.contextmanager
def _through(trace: str | None, config: RunConfig) -> Iterator[RunConfig]:
    """The configuration; with a trace, through a relay that replays it."""
    if trace is None:
        yield config
        return
    with proxy(ChannelSpec(kind="trace", file=trace), config.bs) as relay:
        csi = f"trace={trace},origin_s={relay['origin_s']!r}"
        yield msgspec.structs.replace(config, bs=relay["listen"], csi=csi)
