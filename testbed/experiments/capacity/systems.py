"""How many UEs a BS sustains: what is assumed, and the systems that are compared (WISP, Section 5.2).

The paper leaves most of the experiment's conditions open. Everything that a capacity depends on is a field of
`CapacityConfig`; what the paper does not say is marked as an assumption there, and `SENSITIVITY` varies each alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from testbed.bs.scheduling.registry import SCHEDULERS
from testbed.config import Config, load, resolved
from testbed.errors import BadInput
from testbed.experiments.inputs.profile import InteractionVerify, Profile, load_profile
from testbed.ue.windows.base import MAX_WINDOW

C = TypeVar("C", bound=Config)
FIXED, LEFT_OUT, GAIN, HINTED, NONE = "fixed", "predicted", "gain", "hinted", "none"
"""Windows: K tokens; up to the first predicted rejection, left out; while another is worth its time; as the BS hints,
which may decode on alone; none, the target decodes alone."""
FCFS, ROUND, FILLED, CARRY = "fcfs", "slo-round", "slo-filled", "slo"
"""Orders: first come, first served; SLO-aware with a budget for each round by itself (WISP, eq. 6); the same, with
passes always filled; SLO-aware with what a response is ahead or behind carried over."""


@dataclass(frozen=True)
class System:
    """One way of serving."""

    name: str
    about: str
    order: str
    window: str
    memory: Literal["cache", "none", "reserved"]
    """Keys and values: an LRU cache of prefixes; nothing is kept; prompt and response are reserved for each request."""


SYSTEMS = {
    system.name: system
    for system in (
        System("wisp", "as the paper has it: predicted windows, SLO scheduler, prefix cache", ROUND, LEFT_OUT, "cache"),
        System("fcfs-cache", "fixed windows, first come first served, prefix cache", FCFS, FIXED, "cache"),
        System("sled", "fixed windows, first come first served, prefixes recomputed", FCFS, FIXED, "none"),
        System("centralized", "the target decodes everything, continuous batching", FCFS, NONE, "reserved"),
        System("wisp-gain", "windows by expected gain, promises kept over whole responses", CARRY, GAIN, "cache"),
        System("wisp-carry", "wisp, with promises kept over whole responses", CARRY, LEFT_OUT, "cache"),
        System("wisp-fixed", "wisp, with fixed windows", ROUND, FIXED, "cache"),
        System("wisp-filled", "wisp, with passes that are always filled", FILLED, LEFT_OUT, "cache"),
        System("fixed-filled", "wisp-fixed, with passes that are always filled", FILLED, FIXED, "cache"),
        System("fcfs-predicted", "fcfs-cache, with predicted windows", FCFS, LEFT_OUT, "cache"),
        System("fcfs-hinted", "fcfs-cache, with windows that the BS hints, none among them", FCFS, HINTED, "cache"),
    )
}
CACHE = "-cache"


def system_of(name: str) -> System:
    """The system of that name; `KIND-cache` is any registered scheduler with fixed windows and the prefix cache.

    Raises:
        BadInput: unknown; the message lists the known ones.
    """
    kind = name.removesuffix(CACHE)
    if name in SYSTEMS:
        return SYSTEMS[name]
    if kind == name or kind not in SCHEDULERS:
        raise BadInput(f"unknown system {name!r}; known: {', '.join(SYSTEMS)}, and SCHEDULER{CACHE}")
    return System(name, f"fixed windows, {SCHEDULERS[kind].about}, prefix cache", kind, FIXED, "cache")


TABLE_2 = {
    "Qwen3-32B": {
        "sled": {2.0: 83, 4.0: 42, 6.0: 27, 8.0: 21},
        "centralized": {2.0: 97, 4.0: 80, 6.0: 54, 8.0: 41},
        "wisp": {2.0: 164, 4.0: 142, 6.0: 103, 8.0: 86},
    },
    "Qwen3-14B": {
        "sled": {2.0: 119, 4.0: 88, 6.0: 71, 8.0: 52},
        "centralized": {2.0: 198, 4.0: 165, 6.0: 109, 8.0: 86},
        "wisp": {2.0: 245, 4.0: 223, 6.0: 194, 8.0: 154},
    },
}
"""As WISP prints it."""


class CapacityConfig(Config, frozen=True, kw_only=True):
    """What `testbed capacity` does. "Assumption": the paper does not say; the value is the errata's unless marked ours.

    Raises:
        BadInput: values that cannot be.
    """

    systems: tuple[str, ...] = ("wisp", "fcfs-cache", "sled", "centralized")
    classes: tuple[float, ...] = (2.0, 4.0, 6.0, 8.0)
    """Token speeds, each a load of its own (Table 2)."""
    mix: dict[float, int] | None = None
    """Shares of UEs by speed, in one load (Fig. 7); None: `classes`."""
    ues: int | None = None
    """So many UEs, and no search."""
    profile: str = "a100-qwen3-32b-appendix"
    """Pass times: eq. 19 with Table 12's coefficients."""
    verify_scale: float = 1.0
    """Factor on all of a profile's coefficients, to stand for another target."""
    epsilon: float = 0.05
    """Violated responses that are tolerated (eq. 20). Assumption; and that responses are counted, not rounds."""
    repeats: int = 1
    """Searches with seeds of their own; the capacity is their median."""
    seed: int = 0
    paper: str | None = None
    """Row of the paper's Table 2 to show beside: one of `TABLE_2`."""

    # ------------------------------------------------------------ load

    prompt: tuple[int, int] = (50, 250)
    """Tokens, uniform, both ends included. Assumption."""
    response: tuple[int, int] = (20, 580)
    """Tokens, uniform, both ends included. Assumption."""
    think_s: float = 0.0
    """Pause of a UE between a response and its next prompt. Assumption, ours."""
    warmup_s: float = 15.0
    """Assumption, ours. UEs begin in its first third, somewhere within a response, as a run that has always been
    going on would show them: that response's length has a chance in proportion to itself, how far it is, is uniform."""
    horizon_s: float = 60.0
    """Responses that begin within so many seconds after the warm-up are judged. Each is followed until it ends or its
    deadline, tokens / speed after its beginning, is past; the others go on meanwhile. Assumption, ours."""
    judged: int = 100
    """The horizon goes on until so many have begun: with few UEs a share of violations would be a matter of luck."""

    # ------------------------------------------------------------ link and UE

    network_ms: float = 40.0
    """Of a round, there and back. Assumption."""
    network_spread: float = 0.5
    """A round's lies uniformly within so much of it, either way. Assumption."""
    draft_tps: float = 50.0
    """Tokens a second of a UE's drafter. Assumption in Table 2 (Section 3.2 has it)."""
    window: int = 5
    """K, and the most of a predicted window. Assumption."""
    shortest: Literal[0, 1] = 0
    """Fewest tokens of a predicted window: 0 as eq. 25 and the errata have it (2.41 tokens committed a round)."""
    gain_window: int = 8
    """The most of a window by expected gain or as hinted, which are not the paper's."""
    acceptance: float = 0.758
    """α of each drafted token given those before it, the same for all. At K = 5, 47 % of the drafted tokens stay, as
    Table 5 has it for Qwen3-4B. Assumption."""
    tpr: float = 0.80
    """Predictor: share of accepted tokens that it predicts accepted (Table 4)."""
    fpr: float = 0.425
    """Predictor: share of first rejections that it predicts accepted (Table 4)."""
    after: float = 0.85
    """Predictor: share of the tokens after a rejection that it predicts accepted. Assumption."""

    # ------------------------------------------------------------ BS

    max_batch: int = 13
    """Requests of a pass, in all systems, centralized too. Assumption."""
    kv_tokens: int = 52_000
    """Tokens whose keys and values the verifier's memory holds. Assumption."""
    evict: Literal["session", "tail"] = "session"
    """What leaves a full prefix cache: the session that was used longest ago as a whole, or its last tokens, as many
    as are needed. Assumption, ours."""
    linger: bool = False
    """Whether the prefixes of finished responses stay in the cache until they are evicted. Assumption, ours."""

    def __post_init__(self) -> None:
        for name in self.systems:
            system_of(name)
        if not self.systems or len(set(self.systems)) < len(self.systems):
            raise BadInput("give one system or more, each once")
        speeds(self)
        for name, low, high in (
            ("epsilon", 0, 1), ("acceptance", 0, 1), ("tpr", 0, 1), ("fpr", 0, 1), ("after", 0, 1),
            ("network_spread", 0, 1), ("network_ms", 0, 1e5), ("think_s", 0, 1e5), ("warmup_s", 0, 1e5),
        ):  # fmt: skip
            if not low <= getattr(self, name) <= high:
                raise BadInput(f"{_option(name)} must lie in [{low:g}, {high:g}], not {getattr(self, name):g}")
        for name in ("verify_scale", "draft_tps", "horizon_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadInput(f"{_option(name)} must be positive, not {getattr(self, name):g}")
        for name in ("repeats", "judged", "max_batch", "kv_tokens"):
            if getattr(self, name) < 1:
                raise BadInput(f"{_option(name)} must be at least 1, not {getattr(self, name)}")
        if self.ues is not None and not 1 <= self.ues <= MOST_UES:
            raise BadInput(f"--ues must lie in 1..{MOST_UES}, not {self.ues}")
        if self.paper is not None and self.paper not in TABLE_2:
            raise BadInput(f"Table 2 has no row {self.paper!r}; it has {', '.join(TABLE_2)}")
        if self.seed < 0:
            raise BadInput(f"--seed must be at least 0, not {self.seed}")
        for name in ("window", "gain_window"):
            if not 1 <= getattr(self, name) <= MAX_WINDOW:
                raise BadInput(f"{_option(name)} must lie in 1..{MAX_WINDOW}, not {getattr(self, name)}")
        for name in ("prompt", "response"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise BadInput(f"{name} bounds must be 1 or more and in order, not {low} to {high}")
        longest = self.prompt[1] + self.response[1]
        if longest > min(self.kv_tokens, MOST_TOKENS):
            room = min(self.kv_tokens, MOST_TOKENS)
            raise BadInput(f"the longest prompt and response have {longest} tokens; there is room for {room}")


def configured(default: C, file: Path | None, given: Mapping[str, Any], more: Sequence[str] = ()) -> C:
    """A configuration from a file, options on top of it, and on top of them FIELD=VALUE pairs, values as in YAML.

    Raises:
        BadInput: a file that cannot be read, an unknown field, or a value that cannot be.
    """
    values = resolved(load(type(default), file)) if file is not None else {}
    if "classes" in given and "mix" in given:
        raise BadInput("give --classes, each class by itself, or --mix, all in one load")
    if "classes" in given:
        values["mix"] = None
    values |= given
    for text in more:
        name, equals, value = text.partition("=")
        if not equals or name not in default.__struct_fields__:
            known = ", ".join(default.__struct_fields__)
            raise BadInput(f"--set takes FIELD=VALUE, not {text!r}; fields: {known}")
        try:
            values[name] = msgspec.yaml.decode(value.encode())
        except msgspec.DecodeError as exc:
            raise BadInput(f"--set {name}: {value!r} is no value ({exc})") from exc
    return replaced(default, values)


def replaced(config: C, values: Mapping[str, Any]) -> C:
    """A configuration with other values, checked; numbers may be text.

    Raises:
        BadInput: an unknown field, or a value that cannot be.
    """
    try:
        return msgspec.convert(resolved(config) | dict(values), type(config), strict=False)
    except msgspec.ValidationError as exc:
        cause = exc.__cause__
        raise BadInput(str(cause if isinstance(cause, BadInput) else exc)) from exc


MOST_UES = 4000
MOST_TOKENS = 60_000
"""Of a prompt and its response."""


def _option(name: str) -> str:
    return name.replace("_", "-")


def speeds(config: CapacityConfig) -> tuple[float, ...]:
    """The classes by speed, those of the mix where there is one.

    Raises:
        BadInput: none, one twice, or one that is no speed.
    """
    found = config.classes if config.mix is None else tuple(config.mix)
    if config.mix is not None and any(share < 1 for share in config.mix.values()):
        raise BadInput("shares of a mix are whole numbers, 1 or more")
    if not found or len(set(found)) < len(found) or not all(0 < speed < math.inf for speed in found):
        raise BadInput("classes are named by their speed in tokens a second: give positive numbers, each once")
    return found


def spread(config: CapacityConfig, ues: int) -> list[float]:
    """The class of each UE under a mix: as near to the shares as whole numbers allow, for any number of UEs."""
    assert config.mix is not None
    return dealt(config.mix, ues)


def dealt(shares: Mapping[float, int], ues: int) -> list[float]:
    """The same, of shares by speed."""
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
    verify, scale = profile.verify, config.verify_scale
    if not isinstance(verify, InteractionVerify):
        raise BadInput(f"profile {profile.name} has no coefficients of eq. 19; give one of kind interactions")
    scaled = InteractionVerify(
        a_s=scale * verify.a_s,
        b_compute_s=scale * verify.b_compute_s,
        b_read_s=scale * verify.b_read_s,
        c_s=scale * verify.c_s,
    )
    return msgspec.structs.replace(profile, verify=scaled)


SENSITIVITY: tuple[dict[str, Any], ...] = (
    {"epsilon": 0.01}, {"epsilon": 0.1},
    {"prompt": (50, 150)}, {"prompt": (150, 450)},
    {"response": (20, 280)}, {"response": (200, 400)},
    {"think_s": 5.0}, {"horizon_s": 120.0},
    {"network_ms": 20.0}, {"network_ms": 100.0}, {"network_spread": 0.0},
    {"draft_tps": 25.0}, {"draft_tps": 100.0},
    {"shortest": 1}, {"window": 3}, {"window": 8},
    {"acceptance": 0.6}, {"acceptance": 0.85},
    {"tpr": 0.94, "fpr": 0.86}, {"after": 0.425},
    {"max_batch": 8}, {"max_batch": 32}, {"max_batch": 256},
    {"kv_tokens": 26_000}, {"kv_tokens": 104_000}, {"evict": "tail"}, {"linger": True},
)  # fmt: skip
"""What `--sensitivity` varies, one entry at a time."""
