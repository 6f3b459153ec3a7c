"""What a field run is to do: places with their distances, methods, prompts, repeats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from testbed.bundled_files import find
from testbed.channel.link import check_address
from testbed.channel.measuring.iperf3 import parse_server
from testbed.channel.trace import read_trace
from testbed.config import Config, RunConfig, load
from testbed.errors import BadInput
from testbed.experiments.field.link import LinkModel
from testbed.experiments.inputs.datasets import Example, load_dataset
from testbed.experiments.inputs.padding import check_pad
from testbed.power.sources import check_source
from testbed.protocols.methods import run_method
from testbed.protocols.quantise import check_bits
from testbed.ue.windows.rules import check_rule, check_window

NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}"
MOST_CELLS = 10_000


class Place(Config, frozen=True):
    """Where a UE stands."""

    name: str
    distance_m: float
    """From the access point."""
    ue: str | None = None
    """Address of the agent that runs there; None: this machine is the UE."""
    ue_keys: str | None = None
    """Directory of the keys that this agent made for us (`keys new --ue`, where the agent is)."""
    trace: str | None = None
    """Link trace, by name or file, that the agent replays before the base station; None: the link is as it is."""
    about: str = ""
    """What the operator is told: which corner, which way the device faces."""


class Method(Config, frozen=True):
    """One way to decode, with a name of its own; the other fields are those of `RunConfig`."""

    name: str
    protocol: str
    window: int = 8
    threshold: float = 0.0
    hidden_bits: int = 16
    window_rule: str = "fixed"
    predictor: str | None = None
    auto_rule: str = "rtt"


class FieldPlan(Config, frozen=True):
    """A field run.

    Attributes:
        methods: the first one is what the others are held against.
        repeats: how often every method runs at every place; in orders that are balanced over them.
        prompts: of one repeat, the same for every method and place; the next repeat takes the next ones.
        settle_s: between the measurement of a place and its first run: time to step aside.
        power: where every UE reads its power, as in `RunConfig`.
        pad: device profile whose models' messages go up in place of the pair's own.
        iperf3: HOST[:PORT] of a server at the base station; None: rates are learnt from the rounds alone.
        iperf3_s: of each transfer; 0: none.
        model: how the link depends on the distance: what `--emulated` emulates, and what virtual time expects.
        engine: of the base station of `--emulated`, and of virtual runs; so are target, dtype, judge and head.
        target: directory or Hugging Face id; None: the bundled one.
    """

    places: tuple[Place, ...]
    methods: tuple[Method, ...]
    name: str = "field"
    repeats: int = 2
    prompts: int = 10
    dataset: str = "bundled:test"
    max_tokens: int = 256
    warmup: int = 1
    seed: int = 0
    bs: str = "tcp://127.0.0.1:5555"
    keys: str | None = None
    insecure: bool = False
    iperf3: str | None = None
    iperf3_s: int = 5
    handshakes: int = 20
    drafter: str | None = None
    tokenizer: str | None = None
    threads: int | None = None
    gpu_layers: int = -1
    timeout_s: float = 60.0
    settle_s: float = 0.0
    power: str | None = None
    pad: str | None = None
    model: LinkModel = LinkModel()
    engine: str = "transformers"
    target: str | None = None
    dtype: str = "float32"
    judge: str = "strict"
    head: str | None = None

    @property
    def baseline(self) -> str:
        """Name of the method that the others are held against."""
        return self.methods[0].name


def load_plan(path: Path) -> FieldPlan:
    """Read a plan.

    Raises:
        BadInput: unreadable, unknown keys, or values that do not hold together.
    """
    plan = load(FieldPlan, path)
    check_plan(plan)
    return plan


def check_plan(plan: FieldPlan) -> None:
    """Refuse a plan that cannot be followed, before anybody walks anywhere.

    Raises:
        BadInput: what is wrong, and where.
    """
    if not re.fullmatch(NAME, plan.name):
        raise BadInput(f"bad name {plan.name!r}; use letters, digits, '-' and '_'")
    _names("place", [place.name for place in plan.places])
    _names("method", [method.name for method in plan.methods])
    for place in plan.places:
        _check_place(place)
    for name, value, least in (
        ("repeats", plan.repeats, 1), ("prompts", plan.prompts, 1), ("max_tokens", plan.max_tokens, 1),
        ("warmup", plan.warmup, 0), ("handshakes", plan.handshakes, 1), ("iperf3_s", plan.iperf3_s, 0),
    ):  # fmt: skip
        if value < least:
            raise BadInput(f"{name} must be at least {least}, not {value}")
    if len(plan.places) * len(plan.methods) * plan.repeats > MOST_CELLS:
        raise BadInput(f"places, methods and repeats make more than {MOST_CELLS} runs")
    if not 0 <= plan.settle_s < 3600:
        raise BadInput(f"settle_s must lie in [0, 3600) s, not {plan.settle_s:g}")
    if plan.iperf3 is not None:
        parse_server(plan.iperf3)
    if plan.power is not None:
        check_source(plan.power)
    examples_of(plan)
    for method in plan.methods:
        _check_method(method, plan)


def _check_place(place: Place) -> None:
    if not 0 < place.distance_m < 100_000:
        raise BadInput(f"place {place.name}: a distance is positive, in metres, not {place.distance_m:g}")
    if place.ue is not None:
        check_address(place.ue)
    if place.ue_keys is not None and place.ue is None:
        raise BadInput(f"place {place.name}: ue_keys are for an agent; give its address, as ue: tcp://HOST:PORT")
    if place.trace is not None and place.ue is None:
        raise BadInput(f"place {place.name}: traces are replayed by agents; give it one, as ue: tcp://HOST:PORT")
    if place.trace is not None:
        read_trace(find("traces", place.trace))


def _names(kind: str, names: Sequence[str]) -> None:
    if not names:
        raise BadInput(f"a field run needs at least one {kind}")
    for name in names:
        if not re.fullmatch(NAME, name):
            raise BadInput(f"bad {kind} {name!r}; use letters, digits, '-' and '_', 40 at most")
    if len({name.lower() for name in names}) < len(names):
        raise BadInput(f"each {kind} needs a name of its own, not {', '.join(names)}")


def _check_method(method: Method, plan: FieldPlan) -> None:
    try:
        if (way := run_method(method.protocol)).on_bs:
            raise BadInput(f"{way.kind} runs both models on the base station: there is no link in it")
        check_window(method.window)
        check_rule(method.window_rule)
        check_bits(method.hidden_bits)
        check_pad(plan.pad, [method.protocol])
        if not 0 <= method.threshold <= 1:
            raise BadInput(f"threshold must lie in [0, 1], not {method.threshold}")
        if method.threshold > 0 and way.judged and plan.judge == "strict":
            raise BadInput("judge strict keeps no mismatch at any threshold: name the judge that the base station has")
    except BadInput as exc:
        raise BadInput(f"method {method.name}: {exc}") from exc


# ---------------------------------------------------------------- runs


def examples_of(plan: FieldPlan) -> list[Example]:
    """All prompts of a plan; the n-th of a repeat is number repeat·prompts + n.

    Raises:
        BadInput: no such data set, or one with fewer.
    """
    wanted = plan.repeats * plan.prompts
    found = load_dataset(plan.dataset, wanted)
    if len(found) < wanted:
        raise BadInput(
            f"{plan.repeats} repeats of {plan.prompts} prompts take {wanted}; {plan.dataset} has {len(found)}"
        )
    return found


def prompts_of(plan: FieldPlan, repeat: int) -> list[Example]:
    """The prompts of a repeat, and after them those that warm its runs up: the next ones, or the first."""
    examples = examples_of(plan)
    first, end = repeat * plan.prompts, (repeat + 1) * plan.prompts
    return examples[first:end] + (examples[end:] + examples)[: plan.warmup]


def run_config(plan: FieldPlan, method: str, bs: str, csi: str, dataset: str) -> RunConfig:
    """What the UE of a cell does.

    Args:
        bs: address of the base station, as the UE sees it.
        csi: where its channel state comes from.
        dataset: with the prompts of its repeat.
    """
    one = next(m for m in plan.methods if m.name == method)
    return RunConfig(
        bs=bs, keys=plan.keys, insecure=plan.insecure, drafter=plan.drafter, tokenizer=plan.tokenizer,
        methods=(one.protocol,), window=one.window, threshold=one.threshold, max_tokens=plan.max_tokens,
        dataset=dataset, limit=plan.prompts, seed=plan.seed, warmup=plan.warmup, gate=False,
        threads=plan.threads, gpu_layers=plan.gpu_layers, timeout_s=plan.timeout_s, csi=csi, auto_rule=one.auto_rule,
        hidden_bits=one.hidden_bits, window_rule=one.window_rule, predictor=one.predictor, pad=plan.pad,
        power=plan.power,
    )  # fmt: skip


FIXED = ("methods", "name", "prompts", "dataset", "max_tokens", "warmup", "seed", "drafter", "tokenizer", "pad")
"""Of a plan: must not change between the sessions of one field run."""
EMULATION = ("model", "engine", "target", "dtype", "judge", "head")
"""The same of an emulated one. In the field these only say what the results are held against."""


def check_same(before: FieldPlan, now: FieldPlan, where: Path, emulated: bool) -> None:
    """Refuse to go on with another plan. Places and repeats may be added; a place stays where it was.

    Raises:
        BadInput: what differs.
    """
    fixed = (*FIXED, *EMULATION) if emulated else FIXED
    differing = [name for name in fixed if getattr(before, name) != getattr(now, name)]
    if differing:
        raise BadInput(f"the field run in {where} had other {_listed(differing)}; give it the same, or another --out")
    if now.repeats < before.repeats:
        raise BadInput(f"the field run in {where} had {before.repeats} repeats; give as many or more")
    places = {place.name: place for place in now.places}
    names = [place.name for place in before.places]
    if [place.name for place in now.places][: len(names)] != names:
        raise BadInput(
            f"the field run in {where} had the places {_listed(names)}, in this order; add others after them"
        )
    for old in before.places:
        if places[old.name].distance_m != old.distance_m:
            raise BadInput(
                f"place {old.name} was at {old.distance_m:g} m before, not at {places[old.name].distance_m:g} m: give "
                "another distance another name"
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
