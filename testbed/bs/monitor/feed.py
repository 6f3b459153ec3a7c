"""Updates for the viewers of the live view: ten times a second, made once for all of them.

The base station is not asked while there are no viewers. JSON is made here, in the live view's own process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from testbed import __version__
from testbed.bs.monitor import record_ring
from testbed.bs.monitor.client import SERVING, MonitoredStation
from testbed.bs.monitor.history import History, HistoryPoint
from testbed.bs.monitor.recent import RING
from testbed.bs.monitor.wire import MonitorServing
from testbed.bs.observer import PassNote, RecentActivity, RoundNote, SessionRow
from testbed.errors import ModelError
from testbed.protocols.detokeniser import Detokeniser
from testbed.protocols.vocabulary import panics_refused

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LOG = logging.getLogger(__name__)
INTERVAL_S = 0.1
"""Time between updates."""
QUIET_S = 1.0
"""Time between updates while the base station loads or closes."""
SHARE = 0.01
"""Share of the base station's time that answers may take; above it, updates become less frequent."""
MOST_PAUSE_S = 2.0
BEHIND = 50
"""Unsent updates after which a viewer is dropped."""
MOST_VIEWERS = 16
MOST_TEXTS = 1024
"""Sessions whose text is decoded at once; beyond, the least recently used one starts anew."""
COLUMNS = {
    "rows": SessionRow._fields,
    "rounds": RoundNote._fields,
    "passes": PassNote._fields,
    "history": HistoryPoint._fields,
}
"""Names of the fields in each list, sent with the first update."""


class TooManyViewers(Exception):
    """The maximum number of viewers is connected."""


class Viewer:
    """A viewer and its unsent updates."""

    def __init__(self) -> None:
        self.fresh = True
        """Whether it has received nothing yet."""
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()

    def put(self, update: bytes) -> None:
        """Queue an update; a viewer that is too far behind is closed."""
        if self._waiting.qsize() < BEHIND:
            self._waiting.put_nowait(update)
        else:
            self.close()

    def close(self) -> None:
        """End the viewer's stream; unsent updates are dropped."""
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting.put_nowait(None)

    async def next(self) -> bytes | None:
        """The next update; None: the stream has ended."""
        return await self._waiting.get()


class Feed:
    """Makes updates while there are viewers."""

    def __init__(self, station: MonitoredStation, history: History | None = None) -> None:
        self.viewers: set[Viewer] = set()
        self._history, self._told = history or History(), 0
        self._station = station
        self._someone = asyncio.Event()
        self._serving: MonitorServing | None = None
        self._rounds: deque[RoundNote] = deque(maxlen=RING)
        self._passes: deque[PassNote] = deque(maxlen=RING)
        self._texts = Texts(None)

    @contextlib.contextmanager
    def viewer(self) -> Iterator[Viewer]:
        """A new viewer, removed on leaving.

        Raises:
            TooManyViewers: `MOST_VIEWERS` are connected.
        """
        if len(self.viewers) >= MOST_VIEWERS:
            raise TooManyViewers
        viewer = Viewer()
        self.viewers.add(viewer)
        self._someone.set()
        try:
            yield viewer
        finally:
            self.viewers.discard(viewer)
            if not self.viewers:
                self._someone.clear()

    async def run(self) -> None:
        """Make updates until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._someone.wait()
            start_s = loop.time()
            try:
                await self.update()
            except Exception:
                LOG.exception("an update of the live view failed")
            least_s = INTERVAL_S if self._station.state == SERVING else QUIET_S
            least_s = max(least_s, min(self._station.cpu_s / SHARE, MOST_PAUSE_S))
            await asyncio.sleep(least_s - (loop.time() - start_s))

    def close(self) -> None:
        """End all viewers' streams."""
        for viewer in self.viewers:
            viewer.close()

    async def update(self) -> None:
        """Send an update to every viewer."""
        await self._meet(self._station.serving)
        before = (self._rounds[-1].number if self._rounds else 0, self._passes[-1].number if self._passes else 0)
        look = await self._station.look(*before)
        if look is None:
            self._send(self._about, self._about)
            for viewer in self.viewers:
                viewer.fresh = True
            return
        rounds, passes = [self._texts.spell(note) for note in record_ring.rounds(look)], record_ring.passes(look)
        self._rounds += rounds
        self._passes += passes
        fresh, self._told = self._history.since(self._told), self._history.count
        self._send(
            lambda: _activity(look, rounds, passes) | self._past(fresh),
            lambda: {
                **self._about(),
                "columns": COLUMNS,
                **_activity(look, self._rounds, self._passes),
                **self._past(self._history.points),
            },
        )

    def _past(self, points: Iterable[HistoryPoint]) -> dict[str, Any]:
        return {"history_now_s": asyncio.get_running_loop().time(), "history": list(points)}

    async def _meet(self, serving: MonitorServing | None) -> None:
        """Start anew if the base station's state has changed."""
        if serving is self._serving:
            return
        path = None if serving is None else serving.tokenizer
        self._texts = Texts(None if path is None else await asyncio.to_thread(load_tokenizer, path))
        self._serving = serving
        self._rounds.clear()
        self._passes.clear()
        for viewer in self.viewers:
            viewer.fresh = True

    def _about(self) -> dict[str, Any]:
        serving = self._serving
        known = {} if serving is None else {**serving.about, "text": serving.text}
        return {"about": {"state": self._station.state, "version": __version__, **known}}

    def _send(self, news: Callable[[], dict[str, Any]], whole: Callable[[], dict[str, Any]]) -> None:
        """Send the news, or the whole to new viewers; each is made at most once."""
        made: dict[bool, bytes] = {}
        for viewer in self.viewers:
            if viewer.fresh not in made:
                made[viewer.fresh] = event(whole() if viewer.fresh else news())
            viewer.put(made[viewer.fresh])
            viewer.fresh = False


class Texts:
    """Incremental decoding of the tokens of many sessions.

    Args:
        tokenizer: None: tokens stay ids.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._open: dict[int, Detokeniser] = {}
        self._failed = False
        """Whether the decoder has failed on a round, whose tokens stay ids."""

    def spell(self, note: RoundNote) -> RoundNote:
        """The note with each token replaced by the text that it completes, often empty."""
        if self._tokenizer is None or not note.tokens:
            return note
        known = self._open.pop(note.session, None) or Detokeniser(self._tokenizer)
        self._open[note.session] = known
        if len(self._open) > MOST_TEXTS:
            del self._open[next(iter(self._open))]
        try:
            pieces: Sequence[Any] = [known.push(token) for token in note.tokens]
        except ModelError as exc:
            if not self._failed:
                LOG.warning("%s; ids are shown instead", exc)
            self._failed = True
            del self._open[note.session]
            return note
        return note._replace(tokens=list(pieces))


def load_tokenizer(path: str) -> Tokenizer | None:
    """A target's tokenizer; None: the file is invalid, and ids are shown."""
    from tokenizers import Tokenizer

    try:
        with panics_refused("this file"):
            return Tokenizer.from_file(path)
    except Exception as exc:  # tokenizers raises nothing narrower
        LOG.warning("%s is no tokenizer file, ids are shown instead: %s", path, exc)
        return None


def event(document: dict[str, Any]) -> bytes:
    """A document as a server-sent event; non-finite numbers become null."""
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


def _activity(look: RecentActivity, rounds: Sequence[RoundNote], passes: Sequence[PassNote]) -> dict[str, Any]:
    return {
        "now_s": look.now_s,
        "sessions": look.sessions,
        "rows": look.rows,
        "rounds": list(rounds),
        "passes": list(passes),
    }
