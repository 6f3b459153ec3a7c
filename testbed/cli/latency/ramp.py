"""`testbed latency ramp`: hinted windows against fixed ones under a load that climbs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from testbed.cli.options import AsJson, configured
from testbed.cli.output import note, print_json
from testbed.cli.tables import print_rows
from testbed.config import resolved
from testbed.errors import TestbedError
from testbed.experiments.latency.ramp.config import RampConfig

CHECK = "Exit with status 1 unless the intervals show that hinted windows meet the required latency."


@configured(RampConfig, leave=["kind"])
def ramp(
    config: RampConfig,
    out: Annotated[Path, typer.Option(help="Directory of the ramp; give it again to resume.")],
    real: Annotated[bool, typer.Option("--real", help="A BS process on this machine, in real time.")] = False,
    check: Annotated[bool, typer.Option("--check/--no-check", help=CHECK)] = False,
    as_json: AsJson = False,
) -> None:
    """Raise the load step by step, with each fixed window and with windows hinted by the BS.

    Writes points.csv (a row for each load and window), loads.csv (hinted against the best fixed window of each load),
    ramp.csv (hinted against each fixed one over the whole ramp), switches.csv (changes of hinted windows) and ramp.png.
    Requests, arrivals and accepted tokens are the same for all windows of a seed; intervals are over seeds.

    Examples:

        testbed latency ramp --out runs/ramp

        testbed latency ramp --draft-ms 2 --network-ms 10 --out runs/ramp-near

        testbed latency ramp --mixed 0.8 --link congested --out runs/ramp-mixed

        testbed latency ramp --real --windows 0,2,4,8 --steps 4 --out runs/ramp-real
    """
    from testbed.experiments.latency.ramp.measure import measure
    from testbed.experiments.latency.ramp.rows import table, write

    chosen = msgspec.structs.replace(config, kind="real") if real else config
    found = table(chosen, measure(chosen, out, note))
    for path in write(found, out):
        note(f"wrote {path}")
    (print_json if as_json else _print)({"config": resolved(chosen), **found._asdict()})
    if check and not found.holds:
        raise TestbedError("hinted windows fall short, or the intervals do not decide it: see the rows above")


def _print(document: dict[str, Any]) -> None:
    each = {"rps": ("requests/s", "{:g}"), "policy": ("window", "{}"), "requests": ("n", "{:d}"),
            "latency_s": ("mean s", "{:.4f}"), "latency_p95_s": ("p95 s", "{:.4f}"),
            "latency_p99_s": ("p99 s", "{:.4f}"), "window": ("drafted a round", "{:.2f}"),
            "piled_up": ("piles up", "{}")}  # fmt: skip
    print_rows(document["points"], None, each)
    ratio = {"ratio": ("hinted / it", "{:.4f}"), "low": ("95 %: from", "{:.4f}"), "high": ("to", "{:.4f}")}
    best = {"rps": ("requests/s", "{:g}"), "best_window": ("best K", "{:d}"), "best_s": ("mean s", "{:.4f}"),
            "hinted_s": ("hinted s", "{:.4f}"), **ratio, "within": ("within 2 %", "{}")}  # fmt: skip
    print_rows(document["loads"], "Hinted windows against the best fixed one at each load", best)
    over = {"window": ("K", "{:d}"), "latency_s": ("mean s", "{:.4f}"), "hinted_s": ("hinted s", "{:.4f}"), **ratio,
            "better": ("hinted better", "{}")}  # fmt: skip
    print_rows(document["ramp"], "Over the whole ramp", over)
    switches = {"seed": ("seed", "{:d}"), "switches": ("switches", "{:d}"), "rounds": ("rounds", "{:d}"),
                "per_1000_rounds": ("per 1,000 rounds", "{:.2f}")}  # fmt: skip
    print_rows(document["switches"], "Changes of hinted windows", switches)
