"""`testbed latency`: what a server's mean latency does under load, and where speculation stops paying."""

from __future__ import annotations

from testbed.cli.latency import fit, limits, measure, predict, ramp
from testbed.cli.screens import CommandGroup
from testbed.cli.tables import TableCommand

app = CommandGroup(no_args_is_help=True, help="Mean latency of a server under load: measure, fit and predict.")


@app.callback()
def group() -> None:
    """Mean latency of a server under load."""


for command in (
    measure.measure, ramp.ramp, limits.limits, limits.ratios, limits.sizes, fit.fit, predict.speedup, predict.predict,
):  # fmt: skip
    app.command(cls=TableCommand)(command)
