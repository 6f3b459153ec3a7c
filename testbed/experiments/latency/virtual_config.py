"""Options of base stations and UEs in virtual time that loads and ramps share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from testbed.config import Config
from testbed.errors import BadInput
from testbed.experiments.deployment.links import Payload, RadioSection, TrafficProtocol, check_payload, radio_section
from testbed.options import option


class VirtualLoadConfig(Config, frozen=True, kw_only=True):
    """UEs, links and pass times of a load in virtual time.

    Raises:
        BadInput: values out of their range.
    """

    ues: Annotated[int, option("UEs, which take requests in turn.", least=1, most=10**5, panel="UEs and links")] = 16
    profile: Annotated[str, option("Profile of the pass times.", completes="profiles", panel="Virtual time")] = (
        "a100-qwen3-32b-appendix"
    )
    mixed: Annotated[
        float,
        option(
            "Relative range of drafting and link times among UEs: each UE has factors of its own, from 1 − this to "
            "1 + this, evenly spaced.",
            least=0,
            below=1,
        ),
    ] = 0.0
    network_ms: Annotated[float, option("Link time of a round, both ways.", least=0, most=1e5, unit="ms")] = 40.0
    network_spread: Annotated[
        float, option("Relative spread of that time, uniform; at 0, UEs stay in lockstep.", least=0, most=1)
    ] = 0.5
    link: Annotated[
        str | None,
        option(
            "Trace that every UE's link follows, each from a time of its own, in place of --network-ms.",
            completes="traces",
        ),
    ] = None
    radio: RadioSection = None
    payload: Payload = None
    protocol: TrafficProtocol = "greedy"
    prompt: Annotated[tuple[int, int], option("Range of prompt lengths, uniform.", unit="tokens")] = (50, 250)
    response: Annotated[tuple[int, int], option("Range of response lengths, uniform.", unit="tokens")] = (32, 64)

    def check_used(self, kind: str, real: Iterable[str], virtual: Iterable[str]) -> None:
        """Refuse options that have no effect.

        Args:
            kind: `virtual` or `real`.
            real, virtual: options that only act with a real base station, and only in virtual time.

        Raises:
            BadInput: one that does not act has another value than its default.
        """
        names, where = (real, "in virtual time") if kind == "virtual" else (virtual, "with a real base station")
        self.refuse_unused(names, where)
        if self.link is not None or self.radio is not None:
            self.refuse_unused(("network_ms", "network_spread"), "with --link or --radio")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_payload(self.protocol, self.payload)
        if self.radio is not None:
            if self.link is not None:
                raise BadInput("UEs have links of their own (--link) or share a radio (--radio), not both")
            radio_section(self.radio)
        for name in ("prompt", "response"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise BadInput(f"{name} bounds must be 1 or more and in order, not {low} to {high}")
