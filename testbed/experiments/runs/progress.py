"""Progress of a run: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from testbed.ue.records import RoundRecord
from testbed.ue.run import Job, Outcome

LINE_S = 10.0
"""Time between two lines where there is no terminal."""


class LiveProgress:
    """Requests, tokens, AAL and round-trip time so far."""

    def __init__(self, total: int) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
        )
        self._piped = not sys.stderr.isatty()
        self._bar = Progress(*columns, console=Console(stderr=True), disable=self._piped, transient=True)
        self._task = self._bar.add_task("decoding", total=total, state="")
        self._sums: dict[str, tuple[int, int]] = {}
        """Tokens and rounds by method."""
        self._total, self._done = total, 0
        self._begun_s = self._said_s = time.monotonic()

    def __enter__(self) -> LiveProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def round(self, job: Job, record: RoundRecord) -> None:
        """One round ended."""
        tokens, rounds = self._sums.get(job.method, (0, 0))
        self._sums[job.method] = tokens, rounds = tokens + record.committed, rounds + 1
        state = f"{job.method}: {tokens} tokens"
        if record.drafted:
            state += f", AAL {tokens / rounds:.2f}, RTT {record.link_s * 1e3:.1f} ms"
        self._bar.update(self._task, state=state)
        if self._piped and time.monotonic() - self._said_s >= LINE_S:
            self._said_s = time.monotonic()
            print(self.line(self._said_s - self._begun_s), file=sys.stderr, flush=True)

    def done(self, outcome: Outcome) -> None:
        """One request ended."""
        self._done += 1
        self._bar.advance(self._task)

    def line(self, elapsed_s: float) -> str:
        """Everything so far, in one line."""
        tokens, rounds = (sum(parts) for parts in zip(*self._sums.values(), strict=True))
        return (
            f"{self._done} of {self._total} requests, {rounds / elapsed_s:.1f} rounds/s, {tokens / elapsed_s:.1f} "
            f"tokens/s, {elapsed_s:.0f} s"
        )
