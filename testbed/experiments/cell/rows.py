"""Results of a cell: a row for each group of UEs, and one for the cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.parts.counting import CellRun
from testbed.experiments.cell.several.rows import moves, rows_of_cells
from testbed.experiments.cell.tally import ResponseSums, UeTally
from testbed.experiments.results.cell_columns import flat_row
from testbed.protocols.fh import FullHidden

SCHEMA = 1
MEANS = ("acceptance_cond", "input_tokens", "output_tokens", "request_bytes")
"""Columns of groups that decode: acceptance rate of drafted tokens; tokens of a prompt, tokens and uplink bytes of a
response, on average."""


def document(config: CellConfig, run: CellRun) -> dict[str, Any]:
    """The answer of `testbed cell run --json`, see `docs/guides/cell.md`."""
    rows = [group_row(group, tallies, run.seconds, config.radio.bandwidth_hz) for group, tallies in run.groups]
    found = {"schema": SCHEMA, "seed": config.seed, "rows": rows, "cell": cell_row(run)}
    if config.cells is None:
        return found
    found["rows"] = [row | moves(tallies) for row, (_, tallies) in zip(rows, run.groups, strict=True)]
    return found | {"cells": rows_of_cells(config.cells, run)}


def group_row(group: UeGroup, tallies: Sequence[UeTally], seconds: float, bandwidth_hz: float) -> dict[str, Any]:
    """Row of a group: sums of bytes and tokens over its UEs, means of times over messages and responses."""
    delays_s = [delay for tally in tallies for delay in tally.delays_s]
    latencies_s = [latency for tally in tallies for latency in tally.latencies_s]
    judged = sum(tally.judged for tally in tallies)
    rounds, committed = sum(tally.rounds for tally in tallies), sum(tally.tokens for tally in tallies)
    decodes, sent = group.traffic == "tokens", sum(tally.sent for tally in tallies)
    known = sent > 0 or not decodes  # relays of processes see bytes, no messages
    uplink = sum(tally.bytes[True] for tally in tallies)
    return {
        "group": group.name,
        "ues": group.count,
        "uplink_bytes": round(uplink),
        "downlink_bytes": round(sum(tally.bytes[False] for tally in tallies)),
        "uplink_mbps": 8 * uplink / seconds / group.count / 1e6,
        "messages": len(delays_s) if known else None,
        "undelivered": sent - len(delays_s) if known else None,
        "message_delay_s": summary(delays_s),
        "goodput_tps": committed / seconds if decodes else None,
        "responses": len(latencies_s) if decodes else None,
        "judged": judged if group.class_tps and decodes else None,
        "violated": sum(tally.violated for tally in tallies) if group.class_tps and decodes else None,
        "violations": sum(tally.violated for tally in tallies) / judged if judged else None,
        "latency_s": float(np.mean(latencies_s)) if latencies_s else None,
        "latency_p95_s": float(np.quantile(latencies_s, 0.95)) if latencies_s else None,
        "latency_p99_s": float(np.quantile(latencies_s, 0.99)) if latencies_s else None,
        "throughput_tps": _throughput_tps(tallies),
        "class_tps": group.class_tps if decodes else None,
        "rounds_per_token": rounds / committed if committed else None,
        "window": sum(tally.drafted for tally in tallies) / rounds if rounds else None,
        "fh_share": _fh_share(tallies) if decodes and group.protocol_hints else None,
        "lookahead": _lookahead(group, tallies, rounds) if decodes and group.method.looks_ahead else None,
        "drafted_ahead": sum(tally.drafted_ahead for tally in tallies) / rounds if rounds else None,
        "void": sum(tally.void for tally in tallies) / rounds if rounds else None,
        **(_means(tallies) if decodes else dict.fromkeys(MEANS)),
        "kept_share": sum(tally.kept for tally in tallies) / committed if committed and group.method.judged else None,
        **_quality(group, tallies),
        "csi_error_db": _csi_error_db(tallies),
        "switches_per_s": sum(tally.switches for tally in tallies) / seconds / group.count if decodes else None,
        "uplink_bits_per_s_per_hz": efficiency(tallies, bandwidth_hz),
        "joules_per_token": joules_per_token(group, tallies, seconds),
        **{f"{part}_share": shares for part, shares in (_shares(tallies) if decodes else {}).items()},
    }


def _quality(group: UeGroup, tallies: Sequence[UeTally]) -> dict[str, float | None]:
    """Share of responses that are the target's own greedy output, accuracy, and how much less it is than the target's
    own, over the same prompts; None: tokens are synthetic, or there is nothing to compare with.
    """
    same = [one for tally in tallies for one in tally.same]
    marks = [mark for tally in tallies for mark in tally.marks]
    right, own = (float(np.mean([mark[i] for mark in marks])) if marks else None for i in range(2))
    return {
        "same_share": float(np.mean(same)) if same and not group.samples else None,
        "accuracy": right,
        "accuracy_lost": None if right is None or own is None else own - right,
    }


def _lookahead(group: UeGroup, tallies: Sequence[UeTally], rounds: int) -> float | None:
    """The group's lookahead; where it is chosen for each window, or hinted, the mean."""
    if isinstance(group.lookahead, int) and not group.lookahead_hints:
        return group.lookahead
    return sum(tally.looked_ahead for tally in tallies) / rounds if rounds else None


def _fh_share(tallies: Sequence[UeTally]) -> float | None:
    """Share of the drafted windows that brought their hidden states along; None: nothing was drafted."""
    drafted = sum(tally.protocols.total() for tally in tallies)
    return sum(tally.protocols[FullHidden.kind] for tally in tallies) / drafted if drafted else None


def ue_rows(config: CellConfig, run: CellRun) -> list[dict[str, Any]]:
    """A row for each UE, as `group_row`, with its number."""
    one = [(msgspec.structs.replace(group, count=1), tally) for group, tallies in run.groups for tally in tallies]
    rows = (
        {"ue": ue, **group_row(group, [tally], run.seconds, config.radio.bandwidth_hz)}
        for ue, (group, tally) in enumerate(one)
    )
    return [{name: value for name, value in row.items() if name != "ues"} for row in map(flat_row, rows)]


def cell_row(run: CellRun) -> dict[str, Any]:
    """Row of the cell."""
    decoding = [tally for group, tallies in run.groups if group.traffic == "tokens" for tally in tallies]
    everyone = [tally for _, tallies in run.groups for tally in tallies]
    rates = [float(tally.tokens) for tally in decoding] or [tally.bytes[True] for tally in everyone]
    return {
        "ues": len(everyone),
        "uplink_utilisation": run.uplink,
        "downlink_utilisation": run.downlink,
        "busy_share": run.busy,
        "jain": jain(rates),
        "goodput_tps": sum(tally.tokens for tally in decoding) / run.seconds,
        "passes": run.passes,
        "between_ms": None if run.between is None else 1e3 * run.between.pass_s,
        "between_request_ms": None if run.between is None else 1e3 * run.between.request_s,
        "bound_by": bound_by(run, decoding),
    }


def bound_by(run: CellRun, decoding: Sequence[UeTally]) -> str:
    """The resource with the largest utilisation: the busier direction of the radio, the drafters (mean over UEs), or
    the verifier.
    """
    drafting = float(np.mean([tally.busy_s["drafting"] for tally in decoding])) / run.seconds if decoding else 0.0
    found = {"radio": max(run.uplink, run.downlink), "drafting": drafting, "verification": run.busy}
    return max(found, key=lambda part: found[part])


def joules_per_token(group: UeGroup, tallies: Sequence[UeTally], seconds: float) -> float | None:
    """Energy of the UEs per committed token; None: their power is not given, or nothing was committed."""
    power, tokens = group.power, sum(tally.tokens for tally in tallies)
    if power is None or not tokens:
        return None
    joules = power.idle_w * seconds * len(tallies)
    for tally in tallies:
        joules += power.draft_w * tally.computed_s
        joules += power.transmit_w * tally.air_s[True] + power.receive_w * tally.air_s[False]
    return joules / tokens


def jain(rates: Sequence[float]) -> float | None:
    """Jain's fairness index (Σx)² / (n Σx²) in (0, 1]; None if all rates are 0."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else None


def summary(values: Sequence[float]) -> dict[str, float | None]:
    """Mean, median and 95th percentile; None without values."""
    if not values:
        return {"mean": None, "p50": None, "p95": None}
    p50, p95 = np.quantile(values, [0.5, 0.95])
    return {"mean": float(np.mean(values)), "p50": float(p50), "p95": float(p95)}


def efficiency(tallies: Sequence[UeTally], bandwidth_hz: float) -> float | None:
    """Bits delivered on the uplink per second and hertz that the UEs were given; None: none was."""
    given = bandwidth_hz * sum(tally.band_s[True] for tally in tallies)
    return 8 * sum(tally.bytes[True] for tally in tallies) / given if given else None


def _csi_error_db(tallies: Sequence[UeTally]) -> float | None:
    """Mean error of the uplink rates that the UEs knew; None: they knew none."""
    known = sum(tally.csi_known for tally in tallies)
    return sum(tally.csi_error_db for tally in tallies) / known if known else None


def _throughput_tps(tallies: Sequence[UeTally]) -> float | None:
    """Token speed of a response: tokens over latencies, sums over responses; None: none ended."""
    seconds = sum(sum(tally.latencies_s) for tally in tallies)
    return sum(tally.answered.output_tokens for tally in tallies) / seconds if seconds else None


def _means(tallies: Sequence[UeTally]) -> dict[str, float | None]:
    """Acceptance rate, and means over responses."""
    judged = sum(tally.accepted + tally.rejected for tally in tallies)
    responses = sum(len(tally.latencies_s) for tally in tallies)
    sums = {name: sum(getattr(tally.answered, name) for tally in tallies) for name in ResponseSums.__struct_fields__}
    found: dict[str, float | None] = {"acceptance_cond": sum(t.accepted for t in tallies) / judged if judged else None}
    for name, total in zip(MEANS[1:], sums.values(), strict=True):
        found[name] = total / responses if responses else None
    return found


def _shares(tallies: Sequence[UeTally]) -> dict[str, float | None]:
    """Shares of the rounds' time by what the UEs waited for."""
    parts = {part: sum(tally.busy_s[part] for tally in tallies) for part in ("drafting", "radio", "verification")}
    whole = sum(parts.values())
    return {part: seconds / whole if whole else None for part, seconds in parts.items()}
