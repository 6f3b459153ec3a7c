"""Rows of several cells: one for each, and what handovers add to those of the groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from testbed.experiments.cell.parts.counting import CellRun
from testbed.experiments.cell.several.tally import RoamingTally
from testbed.experiments.cell.stations import CellsConfig
from testbed.experiments.cell.tally import UeTally


def rows_of_cells(cells: CellsConfig, run: CellRun) -> list[dict[str, Any]]:
    """A row for each cell; those of a base station with sectors have the same passes."""
    tallies = _roaming([tally for _, group in run.groups for tally in group])
    return [
        {
            "cell": cell.name,
            "goodput_tps": sum(tally.tokens_at[number] for tally in tallies) / run.seconds,
            "handovers": sum(tally.arrivals[number] for tally in tallies),
            "prefilled_again": sum(tally.prefilled_again[number] for tally in tallies),
            "uplink_utilisation": site.uplink,
            "downlink_utilisation": site.downlink,
            "busy_share": site.busy,
            "passes": site.passes,
        }
        for number, (cell, site) in enumerate(zip(cells.cells, run.sites, strict=True))
    ]


def moves(tallies: Sequence[UeTally]) -> dict[str, Any]:
    """Columns of a group whose UEs move between cells."""
    found = _roaming(tallies)
    interruptions_s = [seconds for tally in found for seconds in tally.interruptions_s]
    return {
        "handovers_per_ue": sum(tally.arrivals.total() for tally in found) / len(found),
        "ping_pongs_per_ue": sum(tally.ping_pongs for tally in found) / len(found),
        "interruption_s": float(np.mean(interruptions_s)) if interruptions_s else None,
        "prefilled_again": sum(tally.prefilled_again.total() for tally in found),
        "moved_bytes": sum(tally.moved_bytes for tally in found),
        "failures_per_ue": sum(tally.failures for tally in found) / len(found),
    }


def _roaming(tallies: Sequence[UeTally]) -> list[RoamingTally]:
    return [tally for tally in tallies if isinstance(tally, RoamingTally)]
