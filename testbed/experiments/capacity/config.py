"""Configuration of `testbed capacity`: the assumptions (WISP, Section 5.2).

The paper does not give most conditions of the experiment. Everything that affects a capacity is a field of
`CapacityConfig`; assumptions are marked there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from testbed.config import Config
from testbed.errors import BadInput
from testbed.experiments.capacity.paper import TABLE_2
from testbed.experiments.capacity.systems import CACHE, system_of
from testbed.experiments.deployment.links import Payload, RadioSection, TrafficProtocol, check_payload, radio_section
from testbed.experiments.deployment.traffic_ue import DraftChances
from testbed.experiments.inputs.profile import InteractionVerify, Profile, load_profile
from testbed.intervals import LEAST_JUDGED
from testbed.options import option
from testbed.protocols.messages import Open
from testbed.protocols.ranges import RANGES
from testbed.ue.windows.base import MAX_WINDOW

MOST_UES = 4000
MOST_TOKENS = 60_000
"""Maximum tokens of a prompt and its response."""
SPEEDS = RANGES[Open]["speed_tps"]
"""Speeds that a session may ask for."""


class CapacityConfig(Config, frozen=True, kw_only=True):
    """Configuration of `testbed capacity`. "Assumption": not in the paper; from the errata unless marked ours.

    Raises:
        BadInput: a value out of range.
    """

    systems: Annotated[
        tuple[str, ...],
        option(
            f"Systems, separated by commas; SCHEDULER{CACHE}: fixed windows, that scheduler, prefix cache.",
            kinds="systems",
            panel="Study",
        ),
    ] = ("wisp", "fcfs-cache", "sled", "centralized")
    classes: Annotated[
        tuple[float, ...], option("Token speeds, each a load of its own (Table 2).", unit="tokens/s")
    ] = (2.0, 4.0, 6.0, 8.0)
    mix: Annotated[
        dict[float, int] | None,
        option("One load instead (Fig. 7): speed:share,..., such as 2:1,4:1,6:1,8:1.", metavar="SPEED:SHARE,..."),
    ] = None
    ues: Annotated[int | None, option("Fixed number of UEs, without a search.", least=1, most=MOST_UES)] = None
    profile: Annotated[str, option("Pass times, by eq. 19: a profile's name or file.", completes="profiles")] = (
        "a100-qwen3-32b-appendix"
    )
    verify_scale: Annotated[
        float, option("Factor on the profile's pass times, to stand for another target.", above=0)
    ] = 1.0
    epsilon: Annotated[
        float, option("Tolerated share of violated responses (eq. 20). Assumption.", least=0, most=1)
    ] = 0.05
    repeats: Annotated[int, option("Searches with different seeds; the capacity is the median.", least=1)] = 1
    seed: Annotated[int, option("The first seed.", least=0)] = 0
    paper: Annotated[str | None, option(f"Row of the paper's Table 2 to show: {', '.join(TABLE_2)}.")] = None

    prompt: Annotated[
        tuple[int, int], option("Prompt length, uniform, ends included. Assumption.", unit="tokens", panel="Load")
    ] = (50, 250)
    response: Annotated[
        tuple[int, int], option("Response length, uniform, ends included. Assumption.", unit="tokens")
    ] = (20, 580)
    think_s: Annotated[
        float,
        option("Pause between a response and the next prompt. Assumption, ours.", least=0, most=1e5, unit="s"),
    ] = 0.0
    warmup_s: Annotated[float, option("Warm-up. Assumption, ours.", least=0, most=1e5, unit="s")] = 15.0
    """UEs begin in its first third, at a random point of a response as in steady state: that response's length has a
    probability in proportion to itself, and the point is uniform."""
    horizon_s: Annotated[
        float, option("Responses that begin within it are judged. Assumption, ours.", above=0, most=1e6, unit="s")
    ] = 60.0
    """Counted from the end of the warm-up. Each response is followed until it ends or its deadline (tokens / speed
    after its beginning) has passed, while the others continue."""
    judged: Annotated[
        int,
        option("Least number of judged responses; the horizon is extended until then.", least=1, most=10**7),
    ] = 300
    judged_class: Annotated[
        int,
        option(
            "Least number of judged responses of each class; the horizon is extended until then. A class with fewer "
            f"than {LEAST_JUDGED} is undecided.",
            least=0,
            most=10**7,
        ),
    ] = LEAST_JUDGED

    network_ms: Annotated[
        float,
        option("Network time of a round, both ways. Assumption.", least=0, most=1e5, unit="ms", panel="Link and UE"),
    ] = 40.0
    network_spread: Annotated[
        float, option("Relative spread of the network time, uniform. Assumption.", least=0, most=1)
    ] = 0.5
    draft_tps: Annotated[
        float, option("Drafting speed (Section 3.2; assumption in Table 2).", above=0, unit="tokens/s")
    ] = 50.0
    window: Annotated[
        int, option("K, and the largest window of all other rules. Assumption.", least=1, most=MAX_WINDOW)
    ] = 5
    shortest: Annotated[
        Literal[0, 1], option("Smallest predicted window: 0 by eq. 25 and the errata (2.41 tokens per round).")
    ] = 0
    uplink_mbps: Annotated[
        float | None, option("Uplink rate of each UE; the time of the bytes comes on top. None: no limit.", above=0)
    ] = None
    downlink_mbps: Annotated[
        float | None, option("Downlink rate of each UE; the time of the bytes comes on top. None: no limit.", above=0)
    ] = None
    radio: RadioSection = None
    payload: Payload = None
    protocol: TrafficProtocol = "greedy"
    acceptance: Annotated[float, option("Acceptance rate α of each drafted token. Assumption.", least=0, most=1)] = (
        DraftChances.acceptance
    )
    """Given that all tokens before it were accepted. At K = 5, 47 % of the drafted tokens are accepted, as in Table 5
    for Qwen3-4B."""
    tpr: Annotated[
        float, option("Predictor: share of accepted tokens predicted accepted (Table 4).", least=0, most=1)
    ] = DraftChances.tpr
    fpr: Annotated[
        float, option("Predictor: share of first rejections predicted accepted (Table 4).", least=0, most=1)
    ] = DraftChances.fpr
    after: Annotated[
        float, option("Predictor: share of tokens after a rejection predicted accepted. Assumption.", least=0, most=1)
    ] = DraftChances.after
    calibration_bias: Annotated[
        float,
        option("Error of the predictor's log-odds, which windows by expected gain weigh.", least=-10, most=10),
    ] = 0.0

    max_batch: Annotated[
        int, option("Requests of a pass, in all systems. Assumption.", least=1, panel="Base station")
    ] = 13
    kv_tokens: Annotated[
        int, option("Tokens whose keys and values the verifier's memory holds. Assumption.", least=1, unit="tokens")
    ] = 52_000
    chunk_tokens: Annotated[
        int | None,
        option(
            "Cut uncached prompts: new tokens that a prompt may add to a pass, in all systems with a cache.", least=64
        ),
    ] = None
    late: Annotated[
        Literal["edf", "last", "stop"],
        option(
            "Algorithm 1, a request that cannot meet its deadline: served by deadline, after all others, or, as "
            "printed, never.",
            panel="Scheduler",
        ),
    ] = "edf"
    own_token: Annotated[bool, option("Algorithm 1: the verifier's own token counts (eq. 5: not).")] = True
    filling: Annotated[
        bool, option("Algorithm 1: go on after a request that does not fit (as printed: the batch ends).")
    ] = True
    guard_ms: Annotated[
        float | None, option("Algorithm 1: δ. None: three passes of the waiting requests.", least=0, unit="ms")
    ] = None
    committed: Annotated[
        Literal["geometric", "linear"],
        option("Expected tokens of a round: i.i.d. acceptance up to the first rejection, or α·K (eq. 5)."),
    ] = "geometric"
    estimate_bias: Annotated[
        float, option("Relative bias of the pass times that schedulers plan by.", least=-0.99, most=10)
    ] = 0.0
    estimate_noise: Annotated[
        float, option("Standard deviation of their logarithm, drawn for each plan.", least=0, most=3)
    ] = 0.0
    evict: Annotated[
        Literal["session", "tail"],
        option(
            "What a full prefix cache evicts: the least recently used session, or only as many of its last tokens as "
            "needed. Assumption, ours."
        ),
    ] = "session"
    linger: Annotated[
        bool, option("Keep the prefixes of finished responses until they are evicted. Assumption, ours.")
    ] = False

    @property
    def chances(self) -> DraftChances:
        """Chances of drafts and of the predictor."""
        return DraftChances(self.acceptance, self.tpr, self.fpr, self.after, self.calibration_bias)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.systems:
            system_of(name)
        if not self.systems or len(set(self.systems)) < len(self.systems):
            raise BadInput("give one system or more, each once")
        speeds(self)
        check_payload(self.protocol, self.payload)
        if self.radio is not None:
            radio_section(self.radio)
        if self.paper is not None and self.paper not in TABLE_2:
            raise BadInput(f"Table 2 has no row {self.paper!r}; it has {', '.join(TABLE_2)}")
        for name in ("prompt", "response"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise BadInput(f"{name} bounds must be 1 or more and in order, not {low} to {high}")
        longest = self.prompt[1] + self.response[1]
        if longest > min(self.kv_tokens, MOST_TOKENS):
            room = min(self.kv_tokens, MOST_TOKENS)
            raise BadInput(f"the longest prompt and response have {longest} tokens; there is room for {room}")


def speeds(config: CapacityConfig) -> tuple[float, ...]:
    """Speeds of the classes, or of the mix if there is one.

    Raises:
        BadInput: no speeds, duplicates, or values that no session may ask for.
    """
    found = config.classes if config.mix is None else tuple(config.mix)
    if config.mix is not None and any(share < 1 for share in config.mix.values()):
        raise BadInput("shares of a mix are whole numbers, 1 or more")
    named = {f"{speed:g}" for speed in found}
    if not found or len(named) < len(found) or not all(SPEEDS.least <= speed <= SPEEDS.most for speed in found):
        raise BadInput(
            f"classes are named by their speed: give numbers in [{SPEEDS.least:g}, {SPEEDS.most:g}] tokens/s, each once"
        )
    return found


def spread(config: CapacityConfig, ues: int) -> list[float]:
    """Speed of each UE in the mix, with numbers as close to the shares as possible."""
    assert config.mix is not None
    return dealt(config.mix, ues)


def dealt(shares: Mapping[float, int], ues: int) -> list[float]:
    """Speed of each UE by shares: with numbers as close to them as possible."""
    given = dict.fromkeys(shares, 0)
    found = []
    for _ in range(ues):
        speed = min(shares, key=lambda s: (given[s] + 1) / shares[s])
        given[speed] += 1
        found.append(speed)
    return found


def hardware(config: CapacityConfig) -> Profile:
    """The profile with this configuration's drafting and scale.

    Raises:
        BadInput: no such profile, or one without eq. 19's coefficients.
    """
    profile = load_profile(config.profile)
    verify, scale = profile.interactions, config.verify_scale
    scaled = InteractionVerify(
        a_s=scale * verify.a_s,
        b_compute_s=scale * verify.b_compute_s,
        b_read_s=scale * verify.b_read_s,
        c_s=scale * verify.c_s,
    )
    return msgspec.structs.replace(profile, verify=scaled)
