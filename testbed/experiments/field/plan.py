"""Plan of a field run: places with their distances, methods, prompts and repeats."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from testbed import fields
from testbed.assets.bundled_files import find
from testbed.bs.judging.registry import JUDGES
from testbed.channel.access import check_address
from testbed.channel.measuring.iperf3 import parse_server
from testbed.channel.trace import read_trace
from testbed.config import Config, RunConfig, load
from testbed.errors import BadInput
from testbed.experiments.field.link import LinkModel
from testbed.experiments.inputs.datasets import load_dataset
from testbed.experiments.inputs.formats import Example
from testbed.experiments.inputs.padding import check_pad
from testbed.power.sources import check_source
from testbed.protocols.methods import check_lookahead, run_method
from testbed.protocols.quantise import check_bits
from testbed.ue.windows.base import check_window
from testbed.ue.windows.registry import WINDOW_RULES

NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}"
MOST_CELLS = 10_000
RUN = RunConfig()
"""Fields of plans and methods that a run has, too, go to every run under their name, and have its defaults."""


class Place(Config, frozen=True):
    """A location of the UE."""

    name: str
    distance_m: float
    """Distance from the access point."""
    ue: str | None = None
    """Address of the agent on the UE; None: this machine is the UE."""
    ue_keys: str | None = None
    """Directory of the keys for this agent (made by `keys new --ue` on the agent's machine)."""
    trace: str | None = None
    """Link trace, by name or file, that the agent replays towards the base station; None: the real link alone."""
    about: str = ""
    """Instructions for the operator, such as the exact spot and the orientation of the device."""


class Method(Config, frozen=True):
    """A named decoding method; the other fields are those of `RunConfig`."""

    name: str
    protocol: str
    window: int = RUN.window
    threshold: float = RUN.threshold
    hidden_bits: int = RUN.hidden_bits
    window_rule: str = RUN.window_rule
    lookahead: fields.Lookahead = RUN.lookahead
    predictor: str | None = RUN.predictor
    auto_rule: str = RUN.auto_rule


class FieldPlan(Config, frozen=True):
    """A field run.

    Attributes:
        methods: the first method is the baseline.
        repeats: number of runs of every method at every place, in balanced order.
        prompts: number of prompts per repeat, the same for every method and place; the next repeat uses the next ones.
        settle_s: delay between measuring a place and its first run, for the operator to step aside.
        power: power source of every UE, as in `RunConfig`.
        pad: device profile; messages are padded to the sizes of its models.
        iperf3: HOST[:PORT] of an iperf3 server at the base station; None: rates are estimated from rounds only.
        iperf3_s: duration of each iperf3 transfer; 0: none.
        together: after each place alone, repeat all runs at all places at the same time, each with a UE of its own; in
            an emulated run the UEs share one radio cell.
        model: link as a function of distance, for `--emulated` and for predictions in virtual time.
        engine: engine of the base station for `--emulated` and virtual runs, as are target, dtype, judge and head.
        target: directory or Hugging Face id; None: the bundled target.
    """

    places: tuple[Place, ...]
    methods: tuple[Method, ...]
    name: str = "field"
    repeats: int = 2
    prompts: int = 10
    dataset: str = RUN.dataset
    max_tokens: int = RUN.max_tokens
    warmup: int = RUN.warmup
    seed: int = RUN.seed
    bs: str = RUN.bs
    keys: str | None = RUN.keys
    insecure: bool = RUN.insecure
    iperf3: str | None = None
    iperf3_s: int = 5
    handshakes: int = 20
    drafter: str | None = RUN.drafter
    tokenizer: str | None = RUN.tokenizer
    threads: int | None = RUN.threads
    gpu_layers: int = RUN.gpu_layers
    timeout_s: float = RUN.timeout_s
    settle_s: float = 0.0
    power: str | None = RUN.power
    pad: str | None = RUN.pad
    together: bool = False
    model: LinkModel = LinkModel()
    engine: str = "transformers"
    target: str | None = None
    dtype: str = "float32"
    judge: str = "strict"
    head: str | None = None

    @property
    def baseline(self) -> str:
        """Name of the baseline method."""
        return self.methods[0].name


def load_plan(path: Path, pipes: bool = False) -> FieldPlan:
    """Read a plan; `pipes`: see `yaml_file`.

    Raises:
        BadInput: unreadable file, unknown keys, or invalid values.
    """
    plan = load(FieldPlan, path, pipes)
    check_plan(plan)
    return plan


def check_plan(plan: FieldPlan) -> None:
    """Validate a plan before the run starts.

    Raises:
        BadInput: an invalid value; the message names the field.
    """
    if not re.fullmatch(NAME, plan.name):
        raise BadInput(f"invalid name {plan.name!r}; use letters, digits, '-' and '_'")
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
    if plan.together and len(plan.places) < 2:
        raise BadInput("together needs two places or more")
    if len(plan.places) * len(plan.methods) * plan.repeats > MOST_CELLS:
        raise BadInput(f"places × methods × repeats exceeds {MOST_CELLS} runs")
    if not 0 <= plan.settle_s < 3600:
        raise BadInput(f"settle_s must lie in [0, 3600) s, not {plan.settle_s:g}")
    if plan.iperf3 is not None:
        parse_server(plan.iperf3)
    if plan.power is not None:
        check_source(plan.power)
    examples_of(plan)
    for method in plan.methods:
        with naming(f"method {method.name}"):
            _check_method(method, plan)


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Prefix the message of a `BadInput` with what it is about."""
    try:
        yield
    except BadInput as exc:
        raise BadInput(f"{what}: {exc}") from exc


def _check_place(place: Place) -> None:
    if not 0 < place.distance_m < 100_000:
        raise BadInput(f"place {place.name}: distance_m must lie in (0, 100000) m, not {place.distance_m:g}")
    if place.ue is not None:
        check_address(place.ue)
    if place.ue_keys is not None and place.ue is None:
        raise BadInput(f"place {place.name}: ue_keys need an agent; set ue: tcp://HOST:PORT")
    if place.trace is not None and place.ue is None:
        raise BadInput(f"place {place.name}: traces are replayed by agents; set ue: tcp://HOST:PORT")
    if place.trace is not None:
        read_trace(find("traces", place.trace))


def _names(kind: str, names: Sequence[str]) -> None:
    if not names:
        raise BadInput(f"a field run needs at least one {kind}")
    for name in names:
        if not re.fullmatch(NAME, name):
            raise BadInput(f"invalid {kind} {name!r}; use up to 40 letters, digits, '-' and '_'")
    if len({name.lower() for name in names}) < len(names):
        raise BadInput(f"{kind} names must be unique, not {', '.join(names)}")


def _check_method(method: Method, plan: FieldPlan) -> None:
    if (way := run_method(method.protocol)).on_bs:
        raise BadInput(f"{way.kind} runs both models on the base station, without a link")
    check_window(method.window)
    WINDOW_RULES.choose(method.window_rule)
    check_bits(method.hidden_bits)
    check_lookahead(method.lookahead, [method.protocol])
    check_pad(plan.pad, [method.protocol])
    if not 0 <= method.threshold <= 1:
        raise BadInput(f"threshold must lie in [0, 1], not {method.threshold}")
    if method.threshold > 0 and way.judged and JUDGES.choose(plan.judge).lossless:
        raise BadInput(f"judge {plan.judge} keeps no mismatch at any threshold; set judge to that of the base station")


# ---------------------------------------------------------------- runs


def examples_of(plan: FieldPlan) -> list[Example]:
    """All prompts of a plan; the n-th prompt of a repeat has index repeat·prompts + n.

    Raises:
        BadInput: no such data set, or too few prompts.
    """
    wanted = plan.repeats * plan.prompts
    found = load_dataset(plan.dataset, wanted)
    if len(found) < wanted:
        raise BadInput(
            f"{plan.repeats} repeats of {plan.prompts} prompts need {wanted}; {plan.dataset} has {len(found)}"
        )
    return found


def prompts_of(plan: FieldPlan, repeat: int) -> list[Example]:
    """The prompts of a repeat, followed by its warm-up prompts: the next ones, wrapping around."""
    examples = examples_of(plan)
    first, end = repeat * plan.prompts, (repeat + 1) * plan.prompts
    return examples[first:end] + (examples[end:] + examples)[: plan.warmup]


def run_config(plan: FieldPlan, method: str, bs: str, csi: str, dataset: str) -> RunConfig:
    """Run configuration of the UE for a cell.

    Args:
        bs: address of the base station, as seen by the UE.
        csi: source of the channel state.
        dataset: data set with the prompts of the repeat.
    """
    one = next(m for m in plan.methods if m.name == method)
    given = msgspec.structs.asdict(plan) | msgspec.structs.asdict(one)
    given |= {"bs": bs, "csi": csi, "dataset": dataset, "limit": plan.prompts, "methods": (one.protocol,)}
    return RunConfig(**{name: given[name] for name in RunConfig.__struct_fields__ if name in given}, gate=False)


FIXED = (
    "methods",
    "name",
    "together",
    "prompts",
    "dataset",
    "max_tokens",
    "warmup",
    "seed",
    "drafter",
    "tokenizer",
    "pad",
)
"""Fields of a plan that must not change when a field run is resumed."""
EMULATION = ("model", "engine", "target", "dtype", "judge", "head")
"""Fields that must not change in an emulated run; in the field they only affect virtual runs."""


def check_same(before: FieldPlan, now: FieldPlan, where: Path, emulated: bool) -> None:
    """Refuse to resume with a different plan. Places and repeats may be added; existing places may not change.

    Raises:
        BadInput: the plans differ; the message says where.
    """
    fixed = (*FIXED, *EMULATION) if emulated else FIXED
    differing = [name for name in fixed if getattr(before, name) != getattr(now, name)]
    if differing:
        raise BadInput(f"the field run in {where} had other {', '.join(differing)}; use the same, or another --out")
    if now.repeats < before.repeats:
        raise BadInput(f"the field run in {where} had {before.repeats} repeats; use at least as many")
    places = {place.name: place for place in now.places}
    names = [place.name for place in before.places]
    if [place.name for place in now.places][: len(names)] != names:
        raise BadInput(
            f"the field run in {where} had the places {', '.join(names)}, in this order; add new ones after them"
        )
    for old in before.places:
        if places[old.name].distance_m != old.distance_m:
            raise BadInput(
                f"place {old.name} was at {old.distance_m:g} m before, not at {places[old.name].distance_m:g} m; use a "
                "new name for a new distance"
            )
