"""The setting of a stream that a model drafts for: fixed, or chosen from measured times and acceptance."""

from __future__ import annotations

from collections import deque

from testbed.optim.draft_window.streams import StreamSetting, StreamTimes, stream_token_s
from testbed.protocols.messages import MOST_JOINING
from testbed.ue.windows.pass_load import PassLoad

CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
LEAST_GAIN = 1.02
"""Least expected speed-up for which the setting is changed, or the model used at all."""
WARM_TOKENS = 16
"""Drafted tokens compared with the target's before the first choice."""
AGAIN_TOKENS = 512
"""Committed tokens after which a model that did not pay is tried again."""
KEEP_TOKEN, KEEP_PASS = 0.99, 0.9
"""Factors by which the weights of earlier tokens and passes shrink with every new one."""
LINKS = 16
"""Number of recent windows; the shortest of their times on the link counts, since the others include a wait for the
previous pass."""
LEAST_PASS_S = 1e-6
"""Time that a pass takes at least, whatever the BS says."""
CHOOSE_PASSES = 8
"""Number of passes between two comparisons of all settings."""
CHANGE = 0.03
"""Relative change of a time, or absolute change of the acceptance rate, that causes a new comparison."""


class FadingMean:
    """A mean whose earlier values lose weight with every new one."""

    def __init__(self, keep: float) -> None:
        self._keep, self.weight, self._sum = keep, 0.0, 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        """Add a value with a weight."""
        keep = self._keep**weight
        self.weight, self._sum = keep * self.weight + weight, keep * self._sum + weight * value

    @property
    def value(self) -> float:
        """0 where there was none."""
        return self._sum / self.weight if self.weight else 0.0


class StreamChoice:
    """Chooses the setting of the streams that a model drafts for, from measurements over all requests of a UE.

    Where passes are crowded with drafted tokens of other UEs, too, it chooses as if these drafted as this one does
    (`PassLoad`), and lets the target wait for drafted tokens or does without them: what is best for one UE alone makes
    passes long for all.

    Args:
        most: most drafted tokens of a pass.
        alone: whether the target may decode without waiting for drafts, and the model may be unused; otherwise the
            target always waits.
    """

    def __init__(self, most: int, alone: bool) -> None:
        self._most, self._alone = most, alone
        self._token, self._accepted = FadingMean(KEEP_TOKEN), FadingMean(KEEP_TOKEN)
        self._pass, self._joined, self._size = (FadingMean(KEEP_PASS) for _ in range(3))
        self._load = PassLoad()
        self._links_s: deque[float] = deque(maxlen=LINKS)
        self._compared = self._committed = self._passes = 0
        self._measured: tuple[float, ...] = ()
        """Acceptance rate and times at the last choice."""
        self._setting: StreamSetting | None = StreamSetting(min(4, most), MOST_JOINING * min(4, most), not alone)
        self.trial = alone
        """Whether drafted tokens are only compared with the target's and not sent; the target decodes alone."""

    @property
    def setting(self) -> StreamSetting | None:
        """The current setting; None: the model does not draft, and the target decodes alone."""
        return self._setting

    @property
    def drafts(self) -> bool:
        """Whether tokens of the model are sent at present."""
        return self._setting is not None and not self.trial

    @property
    def acceptance(self) -> float:
        """Acceptance rate of the model's tokens."""
        return self._accepted.value

    # ------------------------------------------------------------ measurements

    def drafted(self, seconds: float) -> None:
        """Record the drafting time of one token."""
        self._token.add(seconds)

    def compared(self, accepted: int, rejected: int) -> None:
        """Record how many drafted tokens the target chose as well, and how many (at most one) it did not."""
        self._compared += accepted + rejected
        if accepted + rejected:
            self._accepted.add(accepted / (accepted + rejected), accepted + rejected)

    def linked(self, seconds: float) -> None:
        """Record an upper bound of the time that a window and its verdict spent on the link."""
        self._links_s.append(max(0.0, seconds))

    def passed(self, joined: int, seconds: float, committed: int, others: int = 0) -> None:
        """Record a verification pass.

        Args:
            joined: number of drafted tokens that it verified for this UE.
            seconds: its time at the BS.
            committed: number of tokens that it committed for this UE.
            others: number of drafted tokens that it verified for other UEs.
        """
        self._committed += committed
        self._passes += 1
        seconds = max(LEAST_PASS_S, seconds)
        self._load.add(joined, others, seconds, self.drafts)
        if joined:
            self._joined.add(seconds)
            self._size.add(joined)
        else:
            self._pass.add(seconds)
        if self._setting is None and self._committed >= AGAIN_TOKENS:
            self._try_again()
        elif self._compared >= WARM_TOKENS and self._token.weight and self._links_s:
            self._choose()

    def _try_again(self) -> None:
        chunk = min(4, self._most)
        self._setting, self._committed, self._compared = StreamSetting(chunk, 2 * chunk, False), 0, WARM_TOKENS // 2
        self._measured, self.trial = (), True

    # ------------------------------------------------------------ choice

    @property
    def link_s(self) -> float:
        """Least time on the link of recent windows and their verdicts; 0: none was measured."""
        return min(self._links_s, default=0.0)

    @property
    def times(self) -> StreamTimes:
        """Measured times; those of crowded passes as `PassLoad` says."""
        if self._load.crowded:
            return StreamTimes(
                self._token.value, self.link_s, max(LEAST_PASS_S, self._load.without_s), self._load.token_s
            )
        plain_s = self._pass.value or self._joined.value
        more_s = (self._joined.value - plain_s) / self._size.value if self._joined.weight else 0.0
        return StreamTimes(self._token.value, self.link_s, plain_s, max(0.0, more_s))

    def _choose(self) -> None:
        measured = (self._accepted.value, *self.times)
        if self._measured and (
            self._passes < CHOOSE_PASSES
            or all(
                abs(new - old) <= CHANGE * (old if i else 1.0)
                for i, (new, old) in enumerate(zip(measured, self._measured, strict=True))
            )
        ):
            return
        self._measured, self._passes, times = measured, 0, self.times
        costs_s: dict[StreamSetting | None, float] = {
            setting: stream_token_s(setting, self._accepted.value, times, self._most) for setting in self._settings()
        }
        if self._alone:
            costs_s[None] = self._load.alone_s if self._load.crowded else times.pass_s
        best = min(costs_s, key=lambda setting: costs_s[setting])
        for cheaper in (None, None if self.trial else self._setting):  # without a model, or without a change
            if cheaper in costs_s and costs_s[cheaper] <= LEAST_GAIN * costs_s[best]:
                best = cheaper
                break
        if best is None and self._setting is not None:
            self._committed = 0
        self._setting, self.trial = best, False

    def _settings(self) -> list[StreamSetting]:
        sizes = [size for size in CHUNKS if size < self._most] + [self._most]
        waits = (True, False) if self._alone and not self._load.crowded else (True,)
        most = {size: sorted({size, MOST_JOINING * size}) for size in sizes}
        return [StreamSetting(size, ahead, wait) for size in sizes for ahead in most[size] for wait in waits]
