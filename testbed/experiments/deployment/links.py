"""Links of UEs in virtual time: ports of one radio cell, and the sizes of their messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from testbed.channel.radio.config import RadioConfig
from testbed.channel.radio.mac import RadioCell
from testbed.channel.radio.model import RadioUe
from testbed.channel.radio.ports import RadioPort
from testbed.channel.virtual import Sizer, frame_bytes
from testbed.errors import BadInput
from testbed.experiments.inputs.payloads import sizers
from testbed.experiments.inputs.profile import Profile, load_profile
from testbed.options import Config, load, option

RadioSection = Annotated[
    str | None,
    option(
        "File with the `radio` of a cell (sweeps/cell/umi.yaml) whose slots the UEs share, in place of the network "
        "time. Default: each has a link of its own.",
        metavar="FILE",
    ),
]
Payload = Annotated[
    str | None,
    option("Profile whose models' messages are sent. Default: those of the synthetic tokens.", completes="profiles"),
]
TrafficProtocol = Annotated[Literal["greedy", "fh", "sh"], option("Protocol; fh and sh need a payload.")]


class VirtualRadio:
    """Ports of UEs in one radio cell, on the running event loop's clock.

    Args:
        seconds: time that computed channels cover, after which they repeat.
        seed: seed of channels and block errors.
        weights: of the UEs; None: equal.

    Raises:
        BadInput: channels that cannot be computed.
    """

    def __init__(
        self,
        config: RadioConfig,
        ues: Sequence[RadioUe],
        seconds: float,
        seed: int,
        weights: Sequence[float] | None = None,
    ) -> None:
        self.air = config.air(ues, seconds, seed)
        self.cell = RadioCell(config, self.air, seed)
        self.ports: list[dict[bool, RadioPort]] = [
            {up: self.cell.port(number, up, weight) for up in (True, False)}
            for number, weight in enumerate(weights or [1.0] * len(ues))
        ]
        """Ports of each UE by direction; True: uplink."""

    def ways(self, number: int) -> tuple[RadioPort, RadioPort]:
        """Uplink and downlink of a UE."""
        return self.ports[number][True], self.ports[number][False]

    @property
    def uplink_share(self) -> float:
        """Mean share of the uplink's bandwidth in use so far."""
        config, passed_s = self.cell.config, asyncio.get_running_loop().time() - self.cell.begin()
        return self.cell.counters[True].used / max(1.0, passed_s / config.slot_s * config.slot_share(True))


def message_sizes(profile: Profile) -> tuple[Sizer, Sizer]:
    """Bytes of messages up and down: of the profile's models, or of the messages as they are if it has no sizes."""
    return (frame_bytes, frame_bytes) if profile.sizes is None else sizers(profile.sizes, profile.overheads)


def payload_sizes(payload: str | None) -> tuple[Sizer, Sizer]:
    """The same by the profile's name; None: messages as they are."""
    return (frame_bytes, frame_bytes) if payload is None else message_sizes(load_profile(payload))


def check_payload(protocol: str, payload: str | None) -> None:
    """Refuse hidden states of synthetic tokens.

    Raises:
        BadInput: a protocol that sends hidden states without models that have them, or an unknown profile.
    """
    sizes = None if payload is None else load_profile(payload).sizes
    if payload is not None and sizes is None:
        raise BadInput(f"profile {payload} has no sizes of messages")
    if protocol != "greedy" and sizes is None:
        raise BadInput(f"protocol {protocol} sends hidden states, which synthetic tokens lack: give a payload")


class _CellFile(Config, frozen=True, forbid_unknown_fields=False):
    """What a cell's file says of its radio."""

    radio: RadioConfig


def radio_section(file: str) -> RadioConfig:
    """The `radio` of a cell's file.

    Raises:
        BadInput: unreadable, or no such configuration.
    """
    return load(_CellFile, Path(file)).radio
