"""`testbed channel fading`: link traces from a channel model."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from testbed.channel.radio.cell import MOST_SAMPLES, RADIUS_M, Cell, Crowd, Mobility, rounded, scaled
from testbed.channel.radio.fading import Blockage, GilbertElliott, PathLoss, Shadowing, SmallScale
from testbed.channel.radio.shares import read_shares
from testbed.channel.trace import Trace, write_trace
from testbed.cli.channel.trace_files import report, summary_of
from testbed.cli.options import AsJson, Force, configured, numbers, refuse_to_overwrite
from testbed.cli.output import note
from testbed.config import Config
from testbed.errors import BadInput
from testbed.options import option, options_of

CELL = Cell()
SPOKEN = ("seconds", "step_s", "seed", "kind")
"""Options of `fading` that a trace's header always states."""


class FadingOptions(Config, frozen=True):
    """Configuration of `testbed channel fading`, in the order in which a trace's header lists it."""

    distance: Annotated[str, option("Metres from the BS, one value per UE: 2,20.", panel="UEs")]
    seconds: Annotated[float, option("Duration.", above=0, most=1e7, unit="s", panel="Trace")] = 120.0
    step_s: Annotated[
        float | None,
        option(
            "Sampling interval. Default: a quarter of the coherence time, between 1 ms and 0.1 s.",
            unit="s",
            flags=("--step",),
        ),
    ] = None
    seed: Annotated[int, option("Seed; the same seed gives the same bytes.", least=0)] = 0
    speed_mps: Annotated[
        float, option("Speed; 0 at rest.", least=0, most=1e4, unit="m/s", flags=("--speed",), panel="UEs")
    ] = 0.0  # fmt: skip
    until_m: Annotated[float, option("Distance at which a moving UE turns back.", unit="m", flags=("--until",))] = (
        RADIUS_M
    )
    kind: Annotated[
        str, option("Small-scale fading: none, rayleigh or rician.", flags=("--fading",), panel="Fading")
    ] = CELL.small_scale.kind
    k_db: Annotated[float, option("Rician K-factor.", unit="dB")] = CELL.small_scale.k_db
    coherence_s: Annotated[
        float | None, option("Coherence time. Default: from speed and carrier.", unit="s", flags=("--coherence",))
    ] = CELL.small_scale.coherence_s
    carrier_hz: Annotated[
        float, option("Carrier frequency.", least=1e3, most=1e13, unit="Hz")
    ] = CELL.small_scale.carrier_hz  # fmt: skip
    gain_at_1m: Annotated[float, option("Linear gain g0 at 1 m.", panel="Path loss and shadowing")] = (
        CELL.path_loss.reference_gain
    )
    exponent: Annotated[float, option("Path-loss exponent.")] = CELL.path_loss.exponent
    shadowing_db: Annotated[float, option("Standard deviation of log-normal shadowing.", unit="dB")] = (
        CELL.shadowing.sigma_db
    )
    decorrelation_m: Annotated[float, option("Decorrelation distance of shadowing.", unit="m")] = (
        CELL.shadowing.decorrelation_m
    )
    bandwidth_hz: Annotated[float, option("Bandwidth that the UEs share.", unit="Hz", panel="Radio")] = (
        CELL.bandwidth_hz
    )
    duplex: Annotated[
        str, option("fdd: separate bands with independent fading; tdd: one band shared in time, same fading.")
    ] = CELL.duplex
    uplink_time: Annotated[float, option("Share of the time for the uplink, under tdd.")] = CELL.uplink_time
    share: Annotated[str | None, option("Share of each UE: 0.7,0.3, or JSON of `optim bandwidth`. Default: equal.")] = (
        None
    )
    noise_w: Annotated[float, option("Noise power, not scaled by the share.", unit="W")] = CELL.noise_w
    uplink_w: Annotated[float, option("Transmission power of a UE.", unit="W")] = CELL.uplink_w
    downlink_w: Annotated[float, option("Transmission power of the BS.", unit="W")] = CELL.downlink_w
    outage_snr_db: Annotated[float, option("SNR below which the rate is 0.", unit="dB")] = CELL.outage_snr_db
    blockage_every_s: Annotated[
        float | None,
        option("Mean time between blockages. Default: none.", unit="s", flags=("--blockage-every",), panel="Blockage"),
    ] = CELL.blockage.every_s
    blockage_for_s: Annotated[float, option("Mean duration of a blockage.", unit="s", flags=("--blockage-for",))] = (
        CELL.blockage.for_s
    )
    blockage_db: Annotated[float, option("Loss during a blockage.", unit="dB")] = CELL.blockage.loss_db
    loss: Annotated[float, option("Mean packet error rate (Gilbert-Elliott).", panel="Packet errors")] = CELL.loss.mean
    loss_good: Annotated[float, option("Packet error rate in the good state.")] = CELL.loss.good
    loss_bad: Annotated[float, option("Packet error rate in the bad state.")] = CELL.loss.bad
    burst_s: Annotated[float, option("Mean duration of the bad state.", unit="s", flags=("--burst",))] = (
        CELL.loss.burst_s
    )
    others: Annotated[float, option("Mean number of other UEs that come and go.", panel="Other UEs")] = CELL.crowd.mean
    others_stay_s: Annotated[float, option("Mean duration of their stay.", unit="s", flags=("--others-stay",))] = (
        CELL.crowd.stay_s
    )
    rtt_ms: Annotated[float, option("Round-trip time.", unit="ms", panel="Delay")] = CELL.rtt_ms
    jitter_ms: Annotated[float, option("Half-width of the uniform jitter of each direction's delay.", unit="ms")] = (
        CELL.jitter_ms
    )
    queue_ms: Annotated[float, option("Time added to it by each other UE.", unit="ms")] = CELL.queue_ms
    mean_uplink_mbps: Annotated[
        str | None, option("Scale the rates to these measured means: 498,172.", unit="Mbit/s", panel="Trace")
    ] = None

    def check_used(self) -> None:
        """Check that no option is given that has no effect beside the others.

        Raises:
            BadInput: there is one.
        """
        for idle, names, when in (
            (self.duplex != "tdd", ("uplink_time",), f"under {self.duplex}"),
            (self.kind != "rician", ("k_db",), f"with --fading {self.kind}"),
            (self.kind == "none", ("coherence_s", "carrier_hz"), "without fading"),
            (self.coherence_s is not None, ("carrier_hz",), "with --coherence"),
            (not self.loss, ("loss_good", "loss_bad", "burst_s"), "without --loss"),
            (self.blockage_every_s is None, ("blockage_for_s", "blockage_db"), "without --blockage-every"),
            (not self.others, ("others_stay_s", "queue_ms"), "without --others"),
            (not self.speed_mps, ("until_m",), "at rest"),
            (not self.shadowing_db, ("decorrelation_m",), "without shadowing"),
        ):
            if idle:
                self.refuse_unused(names, when)

    @property
    def cell(self) -> Cell:
        """The channel model.

        Raises:
            BadInput: a value out of range.
        """
        kind: Any = self.kind
        duplex: Any = self.duplex
        return Cell(
            bandwidth_hz=self.bandwidth_hz,
            duplex=duplex,
            uplink_time=self.uplink_time,
            noise_w=self.noise_w,
            uplink_w=self.uplink_w,
            downlink_w=self.downlink_w,
            outage_snr_db=self.outage_snr_db,
            rtt_ms=self.rtt_ms,
            jitter_ms=self.jitter_ms,
            queue_ms=self.queue_ms,
            path_loss=PathLoss(self.gain_at_1m, self.exponent),
            small_scale=SmallScale(kind, self.k_db, self.coherence_s, self.carrier_hz),
            shadowing=Shadowing(self.shadowing_db, self.decorrelation_m),
            loss=GilbertElliott(self.loss, self.burst_s, self.loss_good, self.loss_bad),
            blockage=Blockage(self.blockage_every_s, self.blockage_for_s, self.blockage_db),
            crowd=Crowd(self.others, self.others_stay_s),
        )


@configured(FadingOptions)
def fading(
    config: FadingOptions,
    out: Annotated[Path, typer.Option(help="File to write; with several UEs a directory, for ue0.csv and on.")],
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Make link traces from a channel model: path loss, shadowing, fading, blockage, bursts of loss, a shared uplink.

    The rate is Shannon's; g0, noise, power and bandwidth default to those of the edge-SD paper.

    Examples:

        testbed channel fading --distance 100 --speed 1.4 --until 300 --seconds 300 --step 0.2 --out walk.csv

        testbed channel fading --distance 2,20 --fading rician --mean-uplink-mbps 498,172 --seed 1 --out wifi
    """
    cell = config.cell
    config.check_used()
    config = _with_step(config, cell)
    ues = [Mobility(metres, config.speed_mps, config.until_m) for metres in _numbers(config.distance, "--distance")]
    given = config.mean_uplink_mbps
    means = None if given is None else _numbers(given, "--mean-uplink-mbps", len(ues))
    shares = None if config.share is None else _shares(config.share, len(ues))
    files = _places(out, len(ues))
    refuse_to_overwrite(files, force)
    assert config.step_s is not None
    traces = cell.traces(ues, config.seconds, config.step_s, config.seed, shares)
    command = _command(config, out)
    report({"command": command, "traces": _write(files, traces, ues, means, command)}, as_json)


def _with_step(config: FadingOptions, cell: Cell) -> FadingOptions:
    """The configuration with its default step filled in; notes a given step that averages the fading."""
    fading, step_s = cell.small_scale, config.step_s
    if step_s is None:
        step_s = fading.default_step_s(config.speed_mps, config.seconds, MOST_SAMPLES)
    coherence_s = fading.coherence_at(config.speed_mps)
    if fading.kind != "none" and step_s > coherence_s:
        times = step_s / coherence_s
        note(
            f"a step of {step_s:g} s averages the fading over {times:.1f} coherence times: short messages meet no fade"
        )
    return msgspec.structs.replace(config, step_s=step_s)


def _write(
    files: Sequence[Path], traces: Sequence[Trace], ues: Sequence[Mobility], means: Sequence[float] | None, command: str
) -> list[dict[str, Any]]:
    """Scale, round and write the traces; returns what a document says of each."""
    documents = []
    if len(ues) > 1:
        try:
            files[0].parent.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise BadInput(f"cannot make {files[0].parent}: {exc.strerror or exc}") from exc
    for i, (path, trace) in enumerate(zip(files, traces, strict=True)):
        header = ["Generated by a channel model, not measured.", command]
        if len(ues) > 1:
            header.append(f"UE {i} of {len(ues)}, at {ues[i].distance_m:g} m.")
        if means:
            trace, factor = scaled(trace, means[i])
            header.append(f"Rates multiplied by {factor:.4f}, so that the mean uplink is {means[i]:g} Mbit/s.")
        trace = rounded(trace)
        write_trace(path, trace, header)
        documents.append({"file": str(path), **summary_of(trace)})
    return documents


def _shares(text: str, ues: int) -> Sequence[float]:
    """Numbers, or a file of them."""
    if not Path(text).is_file():
        return _numbers(text, "--share", ues)
    found = read_shares(Path(text))
    if len(found) != ues:
        raise BadInput(f"{text} has {len(found)} shares, and --distance {ues} UEs")
    return found


def _numbers(text: str, option: str, count: int | None = None) -> list[float]:
    """Numbers separated by commas."""
    found = numbers(text, float, option)
    if count is not None and len(found) != count:
        raise BadInput(f"{option} takes one number for each of {count} UEs, not {len(found)}")
    return found


def _places(out: Path, ues: int) -> list[Path]:
    """The file of each UE."""
    if ues == 1:
        if out.is_dir():
            raise BadInput(f"{out} is a directory; one UE needs a file, such as {out / 'trace.csv'}")
        return [out]
    if out.suffix or out.is_file():
        raise BadInput(f"{out} is a file; {ues} UEs need a directory")
    return [out / f"ue{i}.csv" for i in range(ues)]


def _command(config: FadingOptions, out: Path) -> str:
    """The command that makes the same traces again: options that differ from their defaults, and the file's name."""
    words = []
    for one in options_of(FadingOptions):
        value = getattr(config, one.name)
        if value is not None and (value != one.default or one.name in SPOKEN):
            words += [one.flag, f"{value}".removesuffix(".0")]
        if one.name == "distance":
            words += ["--out", out.name]
    return f"testbed channel fading {shlex.join(words)}"
