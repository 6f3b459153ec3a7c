"""`testbed latency measure`: open-loop load on a real base station."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from testbed.cli.options import AsJson, configured, numbers
from testbed.cli.output import note, print_json
from testbed.cli.tables import print_rows
from testbed.config import resolved
from testbed.errors import BadInput
from testbed.experiments.latency.load_config import LoadConfig

if TYPE_CHECKING:
    from testbed.experiments.latency.load import Series


@configured(LoadConfig, leave=["prefill", "kind"])
def measure(
    config: LoadConfig,
    out: Annotated[Path, typer.Option(help="Directory of the measurement; give it again to resume.")],
    prefills: Annotated[
        str | None,
        typer.Option(help="Tokens of prompts, drawn at random: 64,128,256.", rich_help_panel="Workload"),
    ] = None,
    decodes: Annotated[
        str | None,
        typer.Option(help="Output lengths in tokens, each in turn; needs --prefills.", rich_help_panel="Workload"),
    ] = None,
    virtual: Annotated[
        bool, typer.Option("--virtual", help="In virtual time, with a profile's pass and drafting times.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure mean and tail latency over load: Poisson arrivals at a BS that this command starts.

    Writes points.csv, a row for each load and repeat, which `testbed latency fit` and `ratios` take (loads at which
    requests pile up left out), all.csv (with these), and pooled.csv, a row for each load over all repeats. Percentiles
    need 200 (p95) and 1,000 requests (p99).

    Examples:

        testbed latency measure --virtual --config sweeps/latency/alpha-k-virtual.yaml --out runs/alpha-k-virtual

        testbed latency measure --model random --windows 0,4 --prefills 64,128,256 --decodes 32,64 --out runs/lengths
    """
    if virtual:
        config = msgspec.structs.replace(config, kind="virtual")
    found = _measured(config, prefills, decodes, out)
    rows: list[dict[str, Any]] = [msgspec.to_builtins(point) for series in found for point in series.points]
    if as_json:
        print_json({"config": resolved(config), "rows": rows})
        return
    _show(rows)
    note(f"wrote {out / 'points.csv'}")


def _measured(config: LoadConfig, prefills: str | None, decodes: str | None, out: Path) -> Sequence[Series]:
    """Prompts of the data set or, with lists of lengths, random ones of each length."""
    from testbed.experiments.latency.load import measure as run
    from testbed.experiments.latency.load_lengths import measure_lengths

    if (prefills is None) is not (decodes is None):
        raise BadInput("give --prefills and --decodes, or neither")
    if prefills is None or decodes is None:
        return run(config, out, note)
    if config.kind == "virtual":
        raise BadInput("--prefills is for a real BS; in virtual time give --prompt and --response")
    lengths = numbers(prefills, int, "--prefills"), numbers(decodes, int, "--decodes")
    return measure_lengths(config, *lengths, out, note)


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    from testbed.experiments.latency.load import COLUMNS

    shown = {name: (name, "{:g}") for name in COLUMNS if name not in ("alpha", "saturated")}
    print_rows(rows, None, {**shown, "alpha": ("alpha", "{:.3f}"), "saturated": ("piled up", "{}")})
