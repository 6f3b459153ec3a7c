"""What exports are made of: the requests of a row, with the times of their tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.experiments.report.data import RowSource, Shown
from testbed.experiments.results.metrics import RequestTimes, times_from

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class ExportedRow:
    """A row with its requests, in order of their prompts."""

    name: str
    row: Mapping[str, Any]
    prompt_tokens: Reals
    times: list[RequestTimes]
    drafted: int
    """Tokens drafted in all rounds."""

    @property
    def tokens(self) -> Reals:
        """Tokens of each output [n]."""
        return np.array([one.tokens for one in self.times], np.float64)

    @property
    def latency_s(self) -> Reals:
        """[n]"""
        return np.array([one.latency_s for one in self.times])

    @property
    def ttft_s(self) -> Reals:
        """[n]"""
        return np.array([one.ttft_s for one in self.times])

    @property
    def tpot_s(self) -> Reals:
        """[m], one of each output with more than one token."""
        return np.array([one.tpot_s for one in self.times if one.tpot_s is not None])

    @property
    def gaps_s(self) -> Reals:
        """Times between arrivals of tokens, of all requests."""
        return np.array([gap_s for one in self.times for gap_s in one.gaps_s])

    @property
    def duration_s(self) -> float:
        """Time of all requests, one after another: methods take turns in a run, so that it has no other."""
        return float(self.latency_s.sum())


def exported_rows(shown: Shown) -> list[ExportedRow]:
    """The rows of a run or a sweep.

    Raises:
        BadInput: it has no rows of decoding methods, or lacks the time stamps of their rounds.
    """
    if not shown.speculates:
        raise BadInput(f"{shown.path} has no requests to export: give the directory of a run or a sweep")
    return [_exported(shown, part) for part in shown.parts]


def _exported(shown: Shown, part: RowSource) -> ExportedRow:
    requests, rounds = part.requests, part.rounds
    if requests is None or rounds is None or rounds["end_s"].dtype == object or not len(requests["request"]):
        raise BadInput(f"{shown.path}: {part.name} has no rounds with time stamps, which an export needs")
    ends = rounds["committed"] > 0
    order = np.lexsort((rounds["end_s"][ends], rounds["request"][ends]))
    numbers, ends_s = rounds["request"][ends][order], rounds["end_s"][ends][order].astype(float)
    columns = (requests[name].tolist() for name in ("request", "latency_s", "tokens"))
    times = []
    for request, latency_s, tokens in zip(*columns, strict=True):
        mine = ends_s[slice(*np.searchsorted(numbers, (request, request + 1)))]
        if not len(mine) or not np.isfinite(mine).all():
            raise BadInput(f"{shown.path}: request {request} of {part.name} has no time stamps, which an export needs")
        times.append(times_from(mine.tolist(), float(latency_s), int(tokens)))
    return ExportedRow(part.name, part.row, requests["prompt_len"].astype(float), times, int(rounds["drafted"].sum()))
