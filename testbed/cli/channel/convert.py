"""`testbed channel convert`: link traces of other formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from testbed.channel.formats.convert import FORMATS, write_mahimahi
from testbed.channel.formats.convert import convert as read_foreign
from testbed.channel.formats.repair import Options
from testbed.channel.trace import write_trace
from testbed.cli.channel.trace_files import report, summary_of
from testbed.cli.options import AsJson, Force, completion, configured, refuse_to_overwrite
from testbed.cli.output import note
from testbed.config import Config, resolved
from testbed.options import option

OPTIONS = Options()
OF_ONE_FORMAT = {"bin_s": "mahimahi", "run": "lumos5g"}
"""Options that only one format reads."""


class ConvertOptions(Config, frozen=True):
    """Configuration of `testbed channel convert`: what to assume where a format says nothing."""

    bin_s: Annotated[
        float, option("Sampling interval, from mahimahi.", unit="s", flags=("--bin",), panel="Assumptions")
    ] = OPTIONS.bin_s
    run: Annotated[int | None, option("Run to take, from Lumos5G. Default: the first.")] = OPTIONS.run
    ratio: Annotated[
        float | None, option("Uplink over downlink rate, where one is missing. Default: the format's.")
    ] = OPTIONS.ratio
    rtt_ms: Annotated[float, option("Round-trip time, where it is missing.", unit="ms")] = OPTIONS.rtt_ms
    per: Annotated[float, option("Packet error rate, where it is missing.")] = OPTIONS.per


@configured(ConvertOptions)
def convert(
    config: ConvertOptions,
    inputs: Annotated[list[Path], typer.Argument(metavar="IN...", help="File; for mahimahi uplink and downlink.")],
    out: Annotated[Path, typer.Option(help="File to write; for mahimahi the name before .up and .down.")],
    source: Annotated[
        str, typer.Option("--from", help=f"{', '.join(FORMATS)}.", autocompletion=completion("trace formats"))
    ],
    target: Annotated[Literal["canonical", "mahimahi"], typer.Option("--to", help="Format to write.")] = "canonical",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Turn a recorded trace of another format into one that can be replayed; report repairs and assumptions.

    Examples:

        testbed channel convert driving.csv --from ucc --out driving-trace.csv --ratio 0.2

        testbed channel convert Verizon-LTE.up Verizon-LTE.down --from mahimahi --bin 0.5 --out lte.csv

        testbed channel convert lte.csv --from canonical --to mahimahi --out lte
    """
    pair = [out.with_name(f"{out.name}.{side}") for side in ("up", "down")]
    files = [out] if target == "canonical" else pair
    refuse_to_overwrite(files, force)
    config.refuse_unused([name for name, kind in OF_ONE_FORMAT.items() if kind != source], f"with --from {source}")
    result = read_foreign(source, inputs, Options(**resolved(config)))
    notes = list(result.notes)
    if target == "canonical":
        origin = f"Converted from {', '.join(path.name for path in inputs)} ({source})."
        write_trace(out, result.trace, [origin, *notes])
    else:
        notes += write_mahimahi(pair[0], pair[1], result.trace)
    for line in notes:
        note(line)
    report({"files": [str(path) for path in files], **summary_of(result.trace), "notes": notes}, as_json)
