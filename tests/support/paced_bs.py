"""`testbed bs serve` with a synthetic engine whose passes take as long as a profile says.

    python -m tests.support.paced_bs a100-qwen3-32b bs serve --json --engine synthetic …

Only tests start it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from testbed.bs import serve
from testbed.bs.engine import VerifyEngine, VerifyRequest, VerifyResult
from testbed.cli.main import run
from testbed.experiments.inputs.profile import Profile, Work, load_profile


class PacedEngine:
    """An engine at a profile's pace, with a prefix cache that forgets nothing."""

    def __init__(self, engine: VerifyEngine, profile: Profile) -> None:
        self._engine, self._profile = engine, profile
        self._seen: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def verify(self, batch: Sequence[VerifyRequest]) -> list[VerifyResult]:
        """A pass."""
        start_s = time.monotonic()
        results = self._engine.verify(batch)
        works = []
        for request in batch:
            length, drafted = len(request.prefix), len(request.draft)
            cached = min(self._seen.get(request.session, 0), length - 1)
            works.append(Work(drafted, drafted + length - cached, cached))
            self._seen[request.session] = length
        time.sleep(max(0.0, self._profile.verify.pass_s(works) - (time.monotonic() - start_s)))
        return results

    def release(self, session: str) -> None:
        """Forget a session."""
        self._seen.pop(session, None)


def main() -> None:
    """Serve at the profile's pace."""
    profile = load_profile(sys.argv.pop(1))
    load = serve.load_engine
    serve.load_engine = lambda *args, **options: PacedEngine(load(*args, **options), profile)  # type: ignore[assignment]
    run()


if __name__ == "__main__":
    main()
