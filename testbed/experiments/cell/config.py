"""Configuration of a cell: its radio, groups of UEs, and the base station behind it."""

from __future__ import annotations

from typing import Annotated, Literal

from testbed import fields
from testbed.bs.scheduling.registry import SCHEDULERS
from testbed.channel.radio.config import RadioConfig
from testbed.channel.radio.model import ModelSource, RadioUe
from testbed.errors import BadInput
from testbed.experiments.cell.sections import CellBs, CellControl, CellModels
from testbed.experiments.cell.stations import CellsConfig, check_name
from testbed.experiments.inputs.state import check_kind
from testbed.options import Config, option
from testbed.protocols import PROTOCOLS, TARGET_ONLY
from testbed.protocols.methods import RunMethod, check_lookahead, run_method
from testbed.ue.windows.registry import WINDOW_RULES

MOST_UES, MOST_POINTS = 5000, 1000


class UePower(Config, frozen=True):
    """Power of a UE: of the device at rest, and what each activity adds to it."""

    idle_w: Annotated[float, option("Device at rest.", least=0, most=1e4, unit="W")] = 0.0
    draft_w: Annotated[float, option("More while drafting.", least=0, most=1e4, unit="W")] = 0.0
    transmit_w: Annotated[float, option("More in slots in which it sends.", least=0, most=1e4, unit="W")] = 0.0
    receive_w: Annotated[float, option("More in slots in which it receives.", least=0, most=1e4, unit="W")] = 0.0


class UeGroup(Config, frozen=True):
    """UEs that are alike.

    With `traffic: tokens` they decode responses, one after the other, by synthetic tokens that agree with the target's
    with probability `alpha` (for protocols that sample: are accepted with this probability); messages have the sizes of
    the profile's models. With `traffic: bytes` they send messages without content, to check the radio.

    Raises:
        BadInput: a value out of range, or settings that do not go together.
    """

    name: str
    count: Annotated[int, option("UEs of the group.", least=1, most=MOST_UES)] = 1
    weight: Annotated[float, option("Share of the radio relative to other UEs.", above=0, most=1e6)] = 1.0
    distance_m: Annotated[
        tuple[float, float], option("Least and most distance from the BS, for sources of kind model.", unit="m")
    ] = (10.0, 200.0)
    speed_mps: Annotated[float, option("Speed, for sources of kind model.", least=0, most=300, unit="m/s")] = 0.0
    path_m: tuple[tuple[float, float], ...] = ()
    """With `cells`: points x, y between which its UEs move to the last and back, starting at equal distances along it.
    Default: from their places around a base station, as `distance_m` says."""
    traffic: Literal["tokens", "bytes"] = "tokens"
    message_bytes: Annotated[int, option("Size of a message.", least=1, most=2**30, unit="bytes")] = 1500
    every_s: Annotated[float, option("Time between two messages.", least=1e-4, most=1e4, unit="s")] = 0.1
    profile: Annotated[str, option("Drafting times and sizes of the models: a profile's name or file.")] = "wisv"
    power: UePower | None = None
    protocol: Annotated[str, option("Protocol, or target-only.", kinds="protocols")] = "greedy"
    protocol_hints: Annotated[
        bool, option("Whether windows are those of fh or sh as the base station hints; for protocol sh.")
    ] = False
    window: Annotated[int, option("Draft window K.", least=1, most=256)] = 8
    window_rule: Annotated[
        str, option("When to stop drafting; with any rule but fixed, K is the upper limit.", kinds="window rules")
    ] = "fixed"
    lookahead: fields.Lookahead = 0
    lookahead_hints: Annotated[
        bool, option("Whether lookahead is 0 or 1 as the base station hints; `lookahead` is the first one's.")
    ] = False
    csi: Annotated[
        str,
        option(
            "What the UE knows of its channel and sends with its windows: none, oracle, "
            "report[,period_ms=40,delay_ms=10,levels=15,noise_db=1], handshake, or passive."
        ),
    ] = "none"
    judge_keeps: Annotated[
        float,
        option("Probability that the judge keeps a mismatched token, for protocols with a judge.", least=0, most=1),
    ] = 0.0
    threshold: Annotated[float, option("θ of the judge, or of skip, with `models`.", least=0, most=1)] = 0.0
    alpha: Annotated[float, option("Probability that a drafted token is the target's.", least=0, most=1)] = 0.8
    drafts: Annotated[
        str | None,
        option("Recorded drafts, a name or file, in place of `alpha`, `prompt` and `response`: those of the prompts."),
    ] = None
    class_tps: Annotated[
        float | None, option("Guaranteed token speed. Default: none.", least=0.001, most=1e4, unit="tokens/s")
    ] = None
    prompt: Annotated[tuple[int, int], option("Prompt length, uniform, ends included.", unit="tokens")] = (50, 250)
    response: Annotated[tuple[int, int], option("Response length, uniform, ends included.", unit="tokens")] = (20, 200)
    begin_s: Annotated[float, option("Time at which its UEs begin.", least=0, most=1e5, unit="s")] = 0.0
    think_s: Annotated[float, option("Pause between a response and the next prompt.", least=0, most=1e5, unit="s")] = (
        0.0
    )
    rate_rps: Annotated[
        float | None,
        option(
            "Requests of each UE, at random (Poisson), in place of one after the other.", above=0, most=1e3, unit="1/s"
        ),
    ] = None

    together: Annotated[
        bool, option("Requests of all such groups are sent at the same time, the next ones when all are answered.")
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("a group of UEs", self.name)
        if len(self.path_m) > MOST_POINTS:
            raise BadInput(f"group {self.name}: path_m has {len(self.path_m)} points; at most {MOST_POINTS}")
        if self.rate_rps is not None and (self.think_s or self.together):
            raise BadInput(f"group {self.name}: requests come at rate_rps or after think_s or together, not both")
        if not self.name:
            raise BadInput("a group of UEs needs a name")
        if self.together and self.traffic == "bytes":
            raise BadInput(f"group {self.name}: messages without content come every_s, not together")
        for what in ("prompt", "response"):
            low, high = getattr(self, what)
            if not 1 <= low <= high <= 2**14:
                raise BadInput(
                    f"group {self.name}: {what} needs lengths [least, most] in 1..{2**14}, not [{low}, {high}]"
                )
        if self.protocol not in (*PROTOCOLS, TARGET_ONLY):
            raise BadInput(f"unknown protocol {self.protocol!r}; known: {', '.join((*PROTOCOLS, TARGET_ONLY))}")
        if self.protocol_hints and not (self.method.drafts and PROTOCOLS[self.protocol].beside):
            raise BadInput(f"group {self.name}: no other protocol can be hinted beside {self.protocol}; take sh")
        if self.lookahead_hints and (self.lookahead not in (0, 1) or not self.method.looks_ahead):
            raise BadInput(f"group {self.name}: lookahead_hints need lookahead 0 or 1, and windows that may look ahead")
        if self.drafts is not None and not self.lossless:
            raise BadInput(f"group {self.name}: drafts are recorded for greedy decoding and the strict judge")
        if self.drafts is not None and self.lookahead == "stream":
            raise BadInput(f"group {self.name}: streams draft further ahead than recorded drafts do")
        if self.judge_keeps and not self.method.judged:
            raise BadInput(f"group {self.name}: no judge keeps tokens under {self.protocol}; take judge_keeps 0")
        WINDOW_RULES.choose(self.window_rule)
        check_kind(self.csi)
        check_lookahead(self.lookahead, [self.protocol])

    @property
    def method(self) -> RunMethod:
        """Method of the group: a protocol, or target-only."""
        return run_method(self.protocol)

    @property
    def most_threshold(self) -> float:
        """θ that its UEs request: the judge's own, or the probability of one that keeps tokens at random."""
        return (self.threshold or self.judge_keeps) if self.method.judged else 0.0

    @property
    def samples(self) -> bool:
        """Whether its protocol draws tokens at random."""
        return self.method.drafts and (self.method.sampled or self.method.coupled)

    @property
    def lossless(self) -> bool:
        """Whether responses are the target's own greedy output."""
        return not (self.judge_keeps or self.threshold or self.samples)


class CellConfig(Config, frozen=True):
    """Configuration of `testbed cell run`.

    Raises:
        BadInput: a value out of range, no UEs, or too many of them.
    """

    seconds: Annotated[float, option("Duration, warm-up included.", above=0, most=1e5, unit="s", panel="Run")] = 20.0
    warmup_s: Annotated[float, option("Time before anything is counted.", least=0, most=1e5, unit="s")] = 2.0
    seed: Annotated[int, option("Seed of the random numbers.", least=0)] = 0
    step_s: Annotated[float, option("Step of the series over time.", least=0.001, most=1e4, unit="s")] = 0.1
    radio: RadioConfig = RadioConfig()
    ues: tuple[UeGroup, ...] = ()
    bs: CellBs = CellBs()
    models: CellModels | None = None
    """Default: none, tokens are synthetic."""
    control: CellControl = CellControl()
    cells: CellsConfig | None = None
    """Several base stations, between which UEs move. Default: one."""
    carrier: Annotated[
        Literal["relay", "tc"],
        option("What carries bytes of processes: a relay with the slots of the radio, or the kernel's HTB (root)."),
    ] = "relay"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_s >= self.seconds:
            raise BadInput(f"a warm-up of {self.warmup_s:g} s leaves nothing of {self.seconds:g} s")
        if self.step_s > (counted_s := self.seconds - self.warmup_s) * (1 + 1e-9):
            raise BadInput(f"step_s is {self.step_s:g} s, and only {counted_s:g} s are counted: give a shorter step")
        names = [group.name for group in self.ues]
        if not names:
            raise BadInput("a cell needs groups of UEs: give `ues`")
        if len(set(names)) < len(names):
            raise BadInput(f"groups of UEs need different names, not {', '.join(names)}")
        if sum(group.count for group in self.ues) > MOST_UES:
            raise BadInput(f"a cell has at most {MOST_UES} UEs")
        self._check_control()
        self._check_cells()
        self._check_models()

    def _check_models(self) -> None:
        """Refuse groups that say with models what only synthetic tokens have, or the reverse.

        Raises:
            BadInput: a threshold without models; with them, several cells, recorded drafts or `judge_keeps`.
        """
        for group in self.ues:
            if group.threshold and not (group.method.judged or group.method.skips):
                raise BadInput(f"group {group.name}: no judge keeps tokens under {group.protocol}; take threshold 0")
            if self.models is None and group.threshold:
                raise BadInput(
                    f"group {group.name}: a threshold is for the judge of `models`; without them, judge_keeps"
                )
            if self.models is not None and (group.drafts is not None or group.judge_keeps):
                raise BadInput(f"group {group.name}: models draft and judge; leave out drafts and judge_keeps")
        if self.models is not None and self.cells is not None:
            raise BadInput("models are for one cell, not for `cells`")

    def _check_cells(self) -> None:
        """Refuse what is for one cell only.

        Raises:
            BadInput: a path without cells; with them, channels without places, or what is not known of several cells.
        """
        for group in self.ues:
            if group.path_m and (self.cells is None or len(set(group.path_m)) < 2):
                raise BadInput(f"group {group.name}: path_m needs `cells`, and two different points")
        if self.cells is None:
            return
        source = self.radio.source
        if not isinstance(source, ModelSource) or source.load:
            raise BadInput("cells need a source of kind model without load: interference is that of the cells")
        if self.control.decides or self.bs.plan is not None:
            raise BadInput("control and plans are for one cell, not for `cells`")

    def _check_control(self) -> None:
        """Refuse a control that cannot be carried out.

        Raises:
            BadInput: decisions that nothing follows.
        """
        decided, order = self.control.weights == "joint", self.radio.scheduler
        if decided and not self.radio.weighted:
            raise BadInput(f"control.weights decides weights, which radio.scheduler {order} ignores: set it to joint")
        if order == "joint" and not decided:
            raise BadInput(
                "radio.scheduler joint needs `control: {weights: joint}`; fixed weights are scheduler weights"
            )
        if self.control.decides and self.bs.plan is not None:
            raise BadInput("a cell carries out a plan or what its control decides, not both")
        followed = [group for group in self.ues if WINDOW_RULES[group.window_rule].hinted and group.method.drafts]
        if self.control.windows == "joint" and not followed:
            raise BadInput("no UE follows the windows of control.windows: give a group `window_rule: hinted`")
        if self.control.protocol == "joint" and not any(group.protocol_hints for group in self.ues):
            raise BadInput("no UE follows the protocols of control.protocol: give a group `protocol_hints: true`")
        if self.control.lookahead == "joint" and not any(group.lookahead_hints for group in self.ues):
            raise BadInput("no UE follows the lookahead of control.lookahead: give a group `lookahead_hints: true`")
        if self.control.threshold == "joint" and not any(group.most_threshold for group in self.ues):
            raise BadInput(
                "control.threshold decides θ of judges that keep tokens: give a group judge_keeps, or with `models` a "
                "threshold"
            )
        if self.control.order == "joint" and not SCHEDULERS.choose(self.bs.scheduler).weighs:
            raise BadInput(
                f"control.order weighs utilities: bs.scheduler {self.bs.scheduler} does not order by them; take slo"
            )


def radio_ues(config: CellConfig) -> list[RadioUe]:
    """The UEs of all groups, in order, as the radio needs them."""
    return [
        RadioUe(number, group.distance_m, group.speed_mps)
        for number, group in enumerate(config.ues)
        for _ in range(group.count)
    ]
