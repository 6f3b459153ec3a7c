"""What a UE's agent does for an order, in a process of its own: a measurement, or a run that goes on where it was."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from testbed.bundled_files import names
from testbed.channel.keys import load_client
from testbed.channel.spec import ChannelSpec
from testbed.config import RunConfig
from testbed.errors import BadInput
from testbed.experiments.agent.files import ORDERS, RESULT, Files, StoredOrder
from testbed.experiments.field.devices.base import LINK, decode
from testbed.experiments.links.measure import measure
from testbed.experiments.results import directory as results
from testbed.experiments.runs.processes import proxy
from testbed.power.sources import AUTO, NONE, SOURCES
from testbed.protocols.orders import Probing, Running
from testbed.ue.dial import addresses

FILED = ("drafter", "tokenizer", "dataset", "predictor")
"""Of a run's configuration: names of files that were put, or None."""
FREE = (
    "bs", "methods", "window", "threshold", "max_tokens", "limit", "prompt_format", "shots", "seed", "warmup", "gate",
    "tie_tolerance", "concurrency", "kv_type", "threads", "gpu_layers", "timeout_s", "auto_rule", "temperature",
    "top_k", "top_p", "hidden_bits", "speed_tps", "accept_slower", "window_rule", "failover_s",
    "power_period_s", "power_idle_s",
)  # fmt: skip
"""Names nothing on this machine."""
CHECKED = ("csi", "pad", "power")
CSI = ("none", "passive", "link")


def grounded(config: RunConfig, files: Files) -> RunConfig:
    """A configuration as it came, with the names of files replaced by where they are.

    Raises:
        BadInput: a field that no order may set, a file that was not put, or a channel state or profile that would be
            read from anywhere else.
    """
    default = RunConfig()
    given = {name: getattr(config, name) for name in config.__struct_fields__}
    for name, value in given.items():
        if name not in (*FILED, *FREE, *CHECKED) and value != getattr(default, name):
            raise BadInput(f"an order may not set {name}: that is the agent's own")
    check_reach(config.bs)
    if config.csi not in CSI:
        raise BadInput(f"channel state {config.csi!r}: an order may ask for {', '.join(CSI)}")
    if config.pad is not None and config.pad not in names("profiles"):
        raise BadInput(f"no profile {config.pad!r}; known: {', '.join(names('profiles'))}")
    if config.power is not None and not set(config.power.split(",")) <= {AUTO, NONE, *SOURCES}:
        raise BadInput(f"no power source {config.power!r}; known: {', '.join((AUTO, NONE, *SOURCES))}")
    found = {name: str(files.path(given[name])) for name in FILED if given[name] and not _bundled(given[name])}
    return msgspec.structs.replace(config, **found)


def check_reach(bs: str) -> None:
    """Refuse a base station that is no host and port: sockets of this machine are its own.

    Raises:
        BadInput: see above.
    """
    for address in addresses(bs):
        if not address.startswith("tcp://"):
            raise BadInput(f"an order names base stations by tcp://HOST:PORT, not {address}")


def _bundled(name: str) -> bool:
    return name in ("bundled:test", "bundled:calibration")


def carry_out(workdir: Path, name: str, bs_keys: str | None, insecure: bool, say: Any) -> None:
    """Do what an order says, into its folder.

    Args:
        bs_keys: directory of this UE's keys for the base station.

    Raises:
        BadInput: an order that cannot be carried out.
        LinkError: the base station cannot be reached.
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
    config = grounded(what.config, Files(workdir))
    config = msgspec.structs.replace(config, keys=bs_keys, insecure=insecure)
    with _through(what, config, Files(workdir)) as reached:
        if reached.csi == "link":
            reached = msgspec.structs.replace(reached, csi=_link(workdir, what))
        decode(reached, kept.result, say)


def _link(workdir: Path, what: Running) -> str:
    """The measurement that a run begins from; without one it learns from its rounds alone."""
    path = workdir / ORDERS / what.link / RESULT / LINK if what.link else None
    return str(path) if path is not None and path.is_file() else "passive"


@contextlib.contextmanager
def _through(what: Running, config: RunConfig, files: Files) -> Iterator[RunConfig]:
    """The configuration, behind a relay that replays a trace where the order names one."""
    if what.trace is None:
        yield config
        return
    path = str(files.path(what.trace))
    with proxy(ChannelSpec(kind="trace", file=path), config.bs) as relay:
        csi = f"trace={path},origin_s={relay['origin_s']!r}"
        yield msgspec.structs.replace(config, bs=relay["listen"], csi=csi)
