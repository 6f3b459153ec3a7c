"""What `testbed latency measure` does."""

from __future__ import annotations

from testbed.config import Config
from testbed.errors import BadInput
from testbed.ue.windows.rules import FixedWindow

LEAST = {"rates": 1, "requests": 5, "repeats": 1, "at_once": 2, "max_tokens": 1, "prefill": 1}


class LoadConfig(Config, frozen=True, kw_only=True):
    """What `testbed latency measure` does."""

    engine: str = "vllm"
    model: str | None = None
    """None: the bundled target."""
    dtype: str = "float32"
    pace: str | None = None
    """As of `bs serve --pace`."""
    windows: tuple[int, ...] = (0, 2, 4, 8)
    """K; 0: the target alone."""
    alphas: tuple[float, ...] = (0.8,)
    """Acceptance rates imposed on replayed drafts; none: the real drafter."""
    rates: int = 9
    """Loads between one request at a time and the ceiling."""
    requests: int = 60
    """Of each load and repeat."""
    repeats: int = 1
    """Each of all series, in an order of its own: where a machine is faster at one time than at another, that falls on
    all of them alike."""
    at_once: int = 32
    """Requests under way where the ceiling is measured."""
    draft_ms: float = 0.0
    """Time that a replayed token takes to draft."""
    max_tokens: int = 256
    prefill: int | None = None
    """Tokens of every prompt, drawn at random; None: the data set's prompts as they are."""
    dataset: str = "bundled:test"
    drafter: str | None = None
    tokenizer: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for window in self.windows:
            if window:
                FixedWindow(window)
        if not self.windows or min(self.windows) < 0:
            raise BadInput("give one window or more, each 0 or more")
        if not all(0 <= alpha <= 1 for alpha in self.alphas):
            raise BadInput(f"acceptance rates lie in [0, 1], not {', '.join(map(str, self.alphas))}")
        for name, least in (
            ("rates", 1),
            ("requests", 5),
            ("repeats", 1),
            ("at_once", 2),
            ("max_tokens", 1),
            ("prefill", 1),
        ):
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise BadInput(f"{name.replace('_', '-')} must be at least {least}, not {getattr(self, name)}")
        if self.draft_ms < 0:
            raise BadInput(f"draft-ms must not be negative, not {self.draft_ms:g}")

    @property
    def series(self) -> list[tuple[int, float | None]]:
        """Windows and imposed acceptance rates; the target alone once."""
        found: list[tuple[int, float | None]] = []
        for window in self.windows:
            found += [(0, None)] if window == 0 else [(window, alpha) for alpha in self.alphas or (None,)]
        return found
