"""Channel specification of a run, such as `kind=proxy,uplink_mbps=20,rtt_ms=50`, and the link model it describes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import msgspec

from testbed.assets.bundled_files import find
from testbed.channel.csi import Csi
from testbed.channel.link_model import LEAST_MBPS, MOST_MBPS, MOST_RTT_MS, Direction, Recovery, Schedule, constant
from testbed.channel.radio.shares import uplinks_mbps
from testbed.channel.tc.session import TcConfig
from testbed.channel.trace import Trace, read_trace
from testbed.errors import BadInput

Kind = Literal["none", "proxy", "virtual", "tc", "trace"]
KINDS = ("none", "proxy", "virtual", "tc", "trace")
UNLIMITED_MBPS = 10_000.0
"""Rate in the channel state of a link without a rate limit."""


class ChannelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link with constant parameters, or one that follows a trace.

    Raises:
        BadInput: keys that the kind does not take, or values out of range.
    """

    kind: Kind = "none"
    uplink_mbps: float | None = None
    """None: no limit."""
    downlink_mbps: float | None = None
    rtt_ms: float = 0.0
    """Round-trip delay; one half in each direction."""
    jitter_ms: float = 0.0
    """Half-width of the jitter: the delay of each packet is uniform in `rtt_ms`/2 ± `jitter_ms`, as in netem, so that
    the mean RTT stays `rtt_ms`."""
    per: float = 0.0
    """Packet error rate of both directions, unless `per_up` or `per_down` is given."""
    per_up: float | None = None
    per_down: float | None = None
    harq_rtt_ms: float = 8.0
    """Time from the loss of a packet to its repetition by HARQ; 0: packet errors only cost air time (WISV eqs. 6, 10).
    The default is LTE's."""
    harq_attempts: int = 4
    """Transmissions of a packet before HARQ gives up."""
    rlc_ms: float = 40.0
    """Time to the repetition after the last attempt, by RLC; about LTE's reordering timer, our choice."""
    outage_every_s: float = 0.0
    """Period of the outages; each is at the end of a period. 0: no outages."""
    outage_s: float = 0.0
    file: str | None = None
    """Trace file: a canonical CSV, or the name of a bundled trace."""
    via: Literal["proxy", "virtual"] = "proxy"
    """Kind of link that replays the trace."""
    profile: str | None = None
    """Device profile of a virtual run, by name or file; None: times are measured on this machine."""
    shares: str | None = None
    """JSON of `testbed optim bandwidth` (proxy and virtual): the n-th UE gets the n-th share of `uplink_mbps` or, if
    that is not given, the n-th rate of the file."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("uplink_mbps", "downlink_mbps"):
            value = getattr(self, name)
            if value is not None and not LEAST_MBPS <= value <= MOST_MBPS:
                bounds = f"{LEAST_MBPS:g} to {MOST_MBPS:g} Mbit/s"
                raise BadInput(f"{name} must be {bounds}, not {value}; leave it out for no limit")
        for name in ("rtt_ms", "jitter_ms", "outage_every_s", "outage_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadInput(f"{name} must be finite and not negative, not {getattr(self, name)}")
        for name in ("per", "per_up", "per_down"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise BadInput(f"{name} must lie in [0, 1), not {value}")
        if self.seed < 0:
            raise BadInput(f"seed must not be negative, not {self.seed}")
        if (self.outage_s > 0) != (self.outage_every_s > 0) or (self.outage_s and self.outage_s >= self.outage_every_s):
            raise BadInput("outages need outage_every_s and an outage_s shorter than it")
        if (self.kind == "trace") != (self.file is not None):
            raise BadInput("kind=trace needs file=NAME|FILE.csv, and no other kind takes a file")
        if self.profile is not None and not self.is_virtual:
            raise BadInput("a profile needs virtual time: kind=virtual, or kind=trace with via=virtual")
        if self.shares is not None and self.kind not in ("proxy", "virtual"):
            raise BadInput("shares need kind=proxy or kind=virtual")
        if given := self._given():
            raise BadInput(f"kind={self.kind} takes no {', '.join(given)}")
        if self.rtt_ms > MOST_RTT_MS:
            raise BadInput(f"rtt_ms must be at most {MOST_RTT_MS:g}, a day, not {self.rtt_ms:g}")
        if self.jitter_ms > self.rtt_ms / 2:
            raise BadInput(
                f"jitter_ms={self.jitter_ms:g} needs an rtt_ms of at least {2 * self.jitter_ms:g}: the delay of each "
                "direction is uniform in rtt_ms/2 ± jitter_ms"
            )
        self.recovery()

    def _given(self) -> list[str]:
        """Parameters that differ from their defaults and that the kind does not take."""
        link = ("uplink_mbps", "downlink_mbps", "rtt_ms", "jitter_ms", "per", "per_up", "per_down", "outage_every_s")
        repeat = ("harq_rtt_ms", "harq_attempts", "rlc_ms")
        refused = {"none": link + repeat, "trace": link, "tc": repeat}.get(self.kind, ())
        plain = {field.name: field.default for field in msgspec.structs.fields(self)}
        return [n for n in refused if getattr(self, n) != plain[n]]

    def recovery(self) -> Recovery:
        """Delay of lost packets beyond their air time.

        Raises:
            BadInput: values out of range.
        """
        return Recovery(self.harq_rtt_ms / 1e3, self.harq_attempts, self.rlc_ms / 1e3 if self.harq_rtt_ms else 0.0)

    @property
    def is_virtual(self) -> bool:
        """Whether it runs in virtual time."""
        return self.kind == "virtual" or (self.kind == "trace" and self.via == "virtual")

    @property
    def is_proxied(self) -> bool:
        """Whether it needs a proxy between UE and BS."""
        return self.kind == "proxy" or (self.kind == "trace" and self.via == "proxy")

    def trace(self) -> Trace | None:
        """The trace of the link; None: the link is constant."""
        return None if self.file is None else read_trace(find("traces", self.file))

    def csi(self) -> Csi | None:
        """Channel state of a constant link; None if nothing is emulated or the link follows a trace."""
        if self.kind in ("none", "trace"):
            return None
        if self.shares is not None:
            return self.of_ue(0).csi()
        return Csi(
            self.uplink_mbps or UNLIMITED_MBPS,
            self.downlink_mbps or UNLIMITED_MBPS,
            self.rtt_ms,
            self.per if self.per_up is None else self.per_up,
            self.per if self.per_down is None else self.per_down,
            source="emulated",
        )

    @property
    def ues(self) -> int | None:
        """Number of UEs that have a share; None: any number of UEs."""
        return None if self.shares is None else len(uplinks_mbps(Path(self.shares), self.uplink_mbps))

    def of_ue(self, index: int) -> ChannelSpec:
        """The link of the `index`-th UE.

        Raises:
            BadInput: shares that cannot be read, or no share for this UE.
        """
        if self.shares is None:
            return self
        rates = uplinks_mbps(Path(self.shares), self.uplink_mbps)
        if not 0 <= index < len(rates):
            raise BadInput(f"{self.shares} has shares for {len(rates)} UEs, and none for UE {index}")
        return msgspec.structs.replace(self, shares=None, uplink_mbps=rates[index])

    def path(self, index: int, origin_s: float = 0.0, stack_s: float = 0.0) -> tuple[Direction, Direction]:
        """Uplink and downlink of the `index`-th UE, each with its own errors and jitter.

        Args:
            origin_s: when the link begins, on the caller's clock.
            stack_s: added to the delay of both directions, for the software stack that a virtual run does not execute.
        """
        up, down = schedules(self.of_ue(index), stack_s)
        jitter_s = self.jitter_ms / 1e3
        return (
            Direction(up, jitter_s, (self.seed, index, 0), origin_s, self.recovery()),
            Direction(down, jitter_s, (self.seed, index, 1), origin_s, self.recovery()),
        )


def schedules(spec: ChannelSpec, stack_s: float = 0.0) -> tuple[Schedule, Schedule]:
    """Schedules of the uplink and the downlink."""
    trace = spec.trace()
    if trace is not None:
        delay_s = (trace.rtt_ms / 2e3 + stack_s).tolist()
        times = trace.t_s.tolist()
        up = Schedule(times, trace.uplink_mbps.tolist(), delay_s, trace.per_up.tolist(), trace.duration_s)
        down = Schedule(times, trace.downlink_mbps.tolist(), delay_s, trace.per_down.tolist(), trace.duration_s)
        return up, down
    csi = spec.csi()
    one_way_s = spec.rtt_ms / 2e3 + stack_s
    rates = (spec.uplink_mbps or math.inf, spec.downlink_mbps or math.inf)
    pers = (csi.per_up, csi.per_down) if csi else (0.0, 0.0)
    if not spec.outage_s:
        return constant(rates[0], one_way_s, pers[0]), constant(rates[1], one_way_s, pers[1])
    times = [0.0, spec.outage_every_s - spec.outage_s]
    up, down = (
        Schedule(times, [rate, 0.0], [one_way_s] * 2, [per] * 2, spec.outage_every_s)
        for rate, per in zip(rates, pers, strict=True)
    )
    return up, down


def parse_channel(text: str) -> ChannelSpec:
    """Parse `key=value,key=value`.

    Raises:
        BadInput: unknown keys or kinds (the message lists the known ones), values of a wrong type or out of range.
    """
    values: dict[str, Any] = {}
    known = ChannelSpec.__struct_fields__
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, sep, value = (x.strip() for x in part.partition("="))
        if not sep or key not in known:
            raise BadInput(f"bad channel {part!r}; use key=value with the keys {', '.join(known)}")
        if key in values:
            raise BadInput(f"channel {key} is given twice")
        values[key] = value
    if values.get("kind", "none") not in KINDS:
        raise BadInput(f"unknown channel kind {values['kind']!r}; known: {', '.join(KINDS)}")
    try:
        return msgspec.convert(values, ChannelSpec, strict=False)
    except msgspec.ValidationError as exc:
        cause = exc.__cause__
        raise BadInput(str(cause) if isinstance(cause, BadInput) else f"bad channel {text!r}: {exc}") from exc


def channel_text(spec: ChannelSpec) -> str:
    """The specification as text for `parse_channel`; defaults are left out."""
    default = ChannelSpec(kind=spec.kind, file=spec.file)
    given = {name: getattr(spec, name) for name in spec.__struct_fields__}
    kept = {n: v for n, v in given.items() if v is not None and (v != getattr(default, n) or n in ("kind", "file"))}
    return ",".join(f"{name}={value}" for name, value in kept.items())


def tc_config(spec: ChannelSpec, **where: Any) -> TcConfig:
    """Configuration of `tc` for a link; `where` holds its other fields, such as the interface.

    Raises:
        BadInput: a link that `tc` does not emulate.
    """
    if spec.outage_s:
        raise BadInput("tc emulates no outages; use kind=proxy, or a trace")
    csi = spec.csi()
    assert csi is not None
    return TcConfig(
        uplink_mbps=spec.uplink_mbps,
        downlink_mbps=spec.downlink_mbps,
        rtt_ms=spec.rtt_ms,
        jitter_ms=spec.jitter_ms,
        per_up=csi.per_up,
        per_down=csi.per_down,
        **where,
    )
