"""`testbed head compare`: heads at equal loss of accuracy, or at equal shares of critical mismatches kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from testbed.cli.options import AsJson, configured
from testbed.cli.output import note, print_json
from testbed.cli.tables import print_rows
from testbed.errors import BadInput
from testbed.experiments.head.config import CompareConfig, ConstantLink

LINK = {"rate_mbps": ("Mbit/s", "{:g}"), "rtt_ms": ("RTT ms", "{:g}"), "per": ("PER", "{:g}"), "head": ("head", "{}")}
EQUAL = {
    **LINK, "points": ("points lost", "{:g}"), "value": ("AAL", "{:.2f}"), "value_low": ("from", "{:.2f}"),
    "value_high": ("to", "{:.2f}"), "reached": ("loss reached", "{}"), "difference": ("against the first", "{:+.2f}"),
    "difference_low": ("from", "{:+.2f}"), "difference_high": ("to", "{:+.2f}"),
    "verdict": ("verdict", "{}"), "seeds": ("seeds", "{:d}"), "problems": ("n", "{:d}"),
}  # fmt: skip
HARMLESS = EQUAL | {
    "points": ("% critical", "{:g}"), "value": ("harmless kept", "{:.3f}"), "value_low": ("from", "{:.3f}"),
    "value_high": ("to", "{:.3f}"), "difference": ("against the first", "{:+.4f}"),
    "difference_low": ("from", "{:+.4f}"), "difference_high": ("to", "{:+.4f}"),
}  # fmt: skip
CHOSEN = {
    **LINK, "points": ("allowed", "{:g}"), "threshold": ("θ", "{:.4f}"), "lost_calibration": ("calibration", "{:+.2f}"),
    "lost": ("lost", "{:+.2f}"), "lost_low": ("from", "{:+.2f}"), "lost_high": ("to", "{:+.2f}"),
    "aal": ("AAL", "{:.2f}"), "aal_strict": ("strict AAL", "{:.2f}"),
}  # fmt: skip
DECODING = set(CompareConfig.__struct_fields__) - {"heads", "channels", "losses", "episodes", "seed"}
"""Fields that only act where problems are decoded."""


@configured(CompareConfig, leave=["heads", "channels"])
def compare(
    config: CompareConfig,
    head: Annotated[
        list[str],
        typer.Argument(metavar="NAME=DIR[,DIR...]...", help="Heads by name, a directory per training seed."),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of the outcomes; an unfinished one is resumed.")
    ] = None,
    channel: Annotated[
        list[str] | None,
        typer.Option(help="MBPS,RTT_MS[,PER]; repeat for more. Default: 20,50 and 500,50.", rich_help_panel="Workload"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare heads at equal loss: AAL at the same accuracy lost, paired over the same problems and training seeds.

    θ runs over a grid. The first table interpolates AAL at each loss on the test problems; the second tests the θ that
    the calibration problems choose. The first head is the baseline. With --episodes nothing is decoded: heads are
    compared by the harmless mismatches that they keep at the same share of critical ones kept.

    Examples:

        testbed head compare blind=bundled:blind csi=bundled unrelabelled=bundled:unrelabelled --first 3300 --out runs/c

        testbed head compare blind=b0,b1,b2 csi=h0,h1,h2 --channel 20,50 --losses 1,2 --out runs/seeds --json

        testbed head compare blind=b0,b1,b2 csi=h0,h1,h2 --episodes runs/heldout --losses 5,10,20
    """
    channels = tuple(map(_channel, channel)) if channel else config.channels
    heads = [_named(text) for text in head]
    if len({name for name, _ in heads}) < len(heads):
        raise BadInput("each head needs a name of its own")
    config = msgspec.structs.replace(config, heads=dict(heads), channels=channels)
    document = _compared(config, out)
    if as_json:
        print_json(document)
    else:
        _show(document, labelled=out is None)


def _compared(config: CompareConfig, out: Path | None) -> dict[str, Any]:
    """The comparison: of problems decoded into `out`, or of labelled mismatches."""
    from testbed.experiments.head.compare import compare as run
    from testbed.experiments.head.equal_harm import compare_labelled

    if (out is None) == (config.episodes is None):
        raise BadInput("give --out DIR to decode problems, or --episodes DIR to compare on labelled mismatches")
    if out is None:
        config.refuse_unused(DECODING, "with --episodes, where nothing is decoded")
        return compare_labelled(config)
    return run(config, out, lambda done, total, unit: note(f"{done} of {total} {unit}"))


def _show(document: Mapping[str, Any], labelled: bool) -> None:
    """The rows as tables; `labelled`: of mismatches, not of decoded problems."""
    if labelled:
        print_rows(document["rows"], "harmless mismatches kept at equal shares of critical ones", HARMLESS)
    else:
        print_rows(document["rows"], "AAL at equal loss of accuracy, test problems", EQUAL)
        print_rows(document["chosen"], "θ chosen on calibration problems", CHOSEN)


def _named(text: str) -> tuple[str, list[str]]:
    name, equals, directories = text.partition("=")
    if not (name and equals and directories):
        raise BadInput(f"give a head as NAME=DIR[,DIR...], such as csi=bundled, not {text!r}")
    return name, directories.split(",")


def _channel(text: str) -> ConstantLink:
    try:
        return ConstantLink(*(float(part) for part in text.split(",")))
    except (ValueError, TypeError) as exc:
        raise BadInput(f"--channel takes MBPS,RTT_MS[,PER] such as 20,50, not {text!r}") from exc
