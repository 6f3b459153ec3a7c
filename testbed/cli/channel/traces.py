"""`testbed channel convert` and `testbed channel fading`: link traces from elsewhere, and from a channel model."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from testbed.channel.formats.convert import FORMATS, write_mahimahi
from testbed.channel.formats.convert import convert as read_foreign
from testbed.channel.formats.repair import Options
from testbed.channel.radio.cell import RADIUS_M, Cell, Crowd, Mobility, rounded, scaled
from testbed.channel.radio.fading import Blockage, GilbertElliott, Kind, PathLoss, Shadowing, SmallScale
from testbed.channel.radio.shares import read_shares
from testbed.channel.trace import Trace, write_trace
from testbed.cli.options import numbers
from testbed.cli.output import note, print_json
from testbed.errors import BadInput

CELL, OPTIONS = Cell(), Options()
SILENT, SPOKEN = ("force", "as_json"), ("seconds", "step_s", "seed", "kind")
"""Options of `fading` that a trace's header never has, since they change nothing, and always has."""


def convert(
    inputs: Annotated[list[Path], typer.Argument(metavar="IN...", help="File; for mahimahi uplink and downlink.")],
    out: Annotated[Path, typer.Option(help="File to write; for mahimahi the name before .up and .down.")],
    source: Annotated[str, typer.Option("--from", help=f"{', '.join(FORMATS)}.")],
    target: Annotated[Literal["canonical", "mahimahi"], typer.Option("--to", help="Format to write.")] = "canonical",
    bin_s: Annotated[float, typer.Option("--bin", help="Seconds a sample, from mahimahi.")] = OPTIONS.bin_s,
    run: Annotated[int | None, typer.Option(help="Run to take, from Lumos5G; default: the first.")] = OPTIONS.run,
    ratio: Annotated[
        float | None, typer.Option(help="Uplink over downlink, where one is missing; default: the format's.")
    ] = OPTIONS.ratio,
    rtt_ms: Annotated[float, typer.Option(help="Round-trip time, where there is none.")] = OPTIONS.rtt_ms,
    per: Annotated[float, typer.Option(help="Packet error rate, where there is none.")] = OPTIONS.per,
    force: Annotated[bool, typer.Option("--force", help="Overwrite.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Turn a recorded trace of another format into one that can be replayed; say what was mended or assumed.

    Examples:

        testbed channel convert driving.csv --from ucc --out driving-trace.csv --ratio 0.2

        testbed channel convert Verizon-LTE.up Verizon-LTE.down --from mahimahi --bin 0.5 --out lte.csv

        testbed channel convert lte.csv --from canonical --to mahimahi --out lte
    """
    pair = [out.with_name(f"{out.name}.{side}") for side in ("up", "down")]
    files = [out] if target == "canonical" else pair
    _refuse_to_overwrite(files, force)
    options = Options(bin_s=bin_s, run=run, ratio=ratio, rtt_ms=rtt_ms, per=per)
    result = read_foreign(source, inputs, options)
    notes = list(result.notes)
    if target == "canonical":
        origin = f"Converted from {', '.join(path.name for path in inputs)} ({source})."
        write_trace(out, result.trace, [origin, *notes])
    else:
        notes += write_mahimahi(pair[0], pair[1], result.trace)
    for line in notes:
        note(line)
    _report({"files": [str(path) for path in files], **_summary(result.trace), "notes": notes}, as_json)


def fading(
    context: typer.Context,
    distance: Annotated[str, typer.Option(help="Metres from the BS, one UE each: 2,20.")],
    out: Annotated[Path, typer.Option(help="File to write; with several UEs a directory, for ue0.csv and on.")],
    seconds: Annotated[float, typer.Option(help="Length.")] = 120.0,
    step_s: Annotated[float, typer.Option("--step", help="Seconds a sample.")] = 0.1,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
    speed_mps: Annotated[float, typer.Option("--speed", help="Metres a second; 0: at rest.")] = 0.0,
    until_m: Annotated[float, typer.Option("--until", help="Where a moving UE turns back, metres.")] = RADIUS_M,
    kind: Annotated[str, typer.Option("--fading", help="none, rayleigh or rician.")] = CELL.small_scale.kind,
    k_db: Annotated[float, typer.Option(help="Rician K-factor.")] = CELL.small_scale.k_db,
    coherence_s: Annotated[
        float | None, typer.Option("--coherence", help="Coherence time in seconds; default: from speed and carrier.")
    ] = CELL.small_scale.coherence_s,
    carrier_hz: Annotated[float, typer.Option(help="Carrier frequency.")] = CELL.small_scale.carrier_hz,
    gain_at_1m: Annotated[float, typer.Option(help="Linear gain g0.")] = CELL.path_loss.reference_gain,
    exponent: Annotated[float, typer.Option(help="Of path loss.")] = CELL.path_loss.exponent,
    shadowing_db: Annotated[float, typer.Option(help="Spread of log-normal shadowing.")] = CELL.shadowing.sigma_db,
    decorrelation_m: Annotated[float, typer.Option(help="Of shadowing.")] = CELL.shadowing.decorrelation_m,
    bandwidth_hz: Annotated[float, typer.Option(help="Shared by the UEs.")] = CELL.bandwidth_hz,
    share: Annotated[
        str | None, typer.Option(help="Share of each UE: 0.7,0.3, or JSON of `optim bandwidth`; default: equal.")
    ] = None,
    noise_w: Annotated[float, typer.Option(help="Noise power; not scaled by the share.")] = CELL.noise_w,
    uplink_w: Annotated[float, typer.Option(help="A UE's power.")] = CELL.uplink_w,
    downlink_w: Annotated[float, typer.Option(help="The BS's power.")] = CELL.downlink_w,
    outage_snr_db: Annotated[float, typer.Option(help="No rate below this SNR.")] = CELL.outage_snr_db,
    blockage_every_s: Annotated[
        float | None, typer.Option("--blockage-every", help="Mean seconds between blockages; default: none.")
    ] = CELL.blockage.every_s,
    blockage_for_s: Annotated[float, typer.Option("--blockage-for", help="Mean seconds of one.")] = CELL.blockage.for_s,
    blockage_db: Annotated[float, typer.Option(help="What one costs.")] = CELL.blockage.loss_db,
    loss: Annotated[float, typer.Option(help="Mean packet error rate (Gilbert-Elliott).")] = CELL.loss.mean,
    loss_good: Annotated[float, typer.Option(help="The same in the good state.")] = CELL.loss.good,
    loss_bad: Annotated[float, typer.Option(help="The same in the bad state.")] = CELL.loss.bad,
    burst_s: Annotated[float, typer.Option("--burst", help="Mean seconds of the bad state.")] = CELL.loss.burst_s,
    others: Annotated[float, typer.Option(help="Mean number of other UEs that come and go.")] = CELL.crowd.mean,
    others_stay_s: Annotated[
        float, typer.Option("--others-stay", help="Mean seconds that one stays.")
    ] = CELL.crowd.stay_s,
    rtt_ms: Annotated[float, typer.Option(help="Round-trip time.")] = CELL.rtt_ms,
    jitter_ms: Annotated[float, typer.Option(help="Mean of an exponential part added to it.")] = CELL.jitter_ms,
    queue_ms: Annotated[float, typer.Option(help="Added to it by each other UE.")] = CELL.queue_ms,
    mean_uplink_mbps: Annotated[
        str | None, typer.Option(help="Multiply the rates to these measured means: 498,172.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Make link traces from a channel model: path loss, shadowing, fading, blockage, bursts of loss, a shared uplink.

    The rate is Shannon's; g0, noise, power and bandwidth default to those of the edge-SD paper.

    Examples:

        testbed channel fading --distance 100 --speed 1.4 --until 300 --seconds 300 --step 0.2 --out walk.csv

        testbed channel fading --distance 2,20 --fading rician --mean-uplink-mbps 498,172 --seed 1 --out wifi
    """
    cell = Cell(
        bandwidth_hz=bandwidth_hz,
        noise_w=noise_w,
        uplink_w=uplink_w,
        downlink_w=downlink_w,
        outage_snr_db=outage_snr_db,
        rtt_ms=rtt_ms,
        jitter_ms=jitter_ms,
        queue_ms=queue_ms,
        path_loss=PathLoss(gain_at_1m, exponent),
        small_scale=SmallScale(_kind(kind), k_db, coherence_s, carrier_hz),
        shadowing=Shadowing(shadowing_db, decorrelation_m),
        loss=GilbertElliott(loss, burst_s, loss_good, loss_bad),
        blockage=Blockage(blockage_every_s, blockage_for_s, blockage_db),
        crowd=Crowd(others, others_stay_s),
    )
    ues = [Mobility(metres, speed_mps, until_m) for metres in _numbers(distance, "--distance")]
    means = None if mean_uplink_mbps is None else _numbers(mean_uplink_mbps, "--mean-uplink-mbps", len(ues))
    shares = None if share is None else _shares(share, len(ues))
    files = _places(out, len(ues))
    _refuse_to_overwrite(files, force)
    traces = cell.traces(ues, seconds, step_s, seed, shares)
    command = _command(context, out)
    _report({"command": command, "traces": _write(files, traces, ues, means, command)}, as_json)


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
        documents.append({"file": str(path), **_summary(trace)})
    return documents


def _kind(text: str) -> Kind:
    """SmallScale checks it, and lists the known ones."""
    kind: Any = text
    return kind  # type: ignore[no-any-return]


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


def _refuse_to_overwrite(files: Sequence[Path], force: bool) -> None:
    there = [path for path in files if os.path.lexists(path)]
    if there and not force:
        raise BadInput(f"{there[0]} is there already; --force overwrites it")


def _command(context: typer.Context, out: Path) -> str:
    """The command that makes the same traces again: all that is not the default, and the file's bare name."""
    words = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if value is None or parameter.name in SILENT or (value == parameter.default and parameter.name not in SPOKEN):
            continue
        words += [parameter.opts[0], out.name if parameter.name == "out" else f"{value}".removesuffix(".0")]
    return f"testbed channel fading {shlex.join(words)}"


def _summary(trace: Trace) -> dict[str, Any]:
    """What a document says of a trace."""
    means = {f"mean_{name}": value for name, value in trace.means().items()}
    return {"rows": len(trace), "duration_s": trace.duration_s, **means}


def _report(document: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    for one in document.get("traces", [document]):
        name = one.get("file") or ", ".join(one["files"])
        rates = f"uplink {one['mean_uplink_mbps']:.1f}, downlink {one['mean_downlink_mbps']:.1f} Mbit/s"
        print(f"{name}: {one['rows']} samples, {one['duration_s']:g} s, {rates}, RTT {one['mean_rtt_ms']:.1f} ms")
