"""Client of several base stations with failover: one serves, the others are on standby.

All stations are greeted, and then probed every `PROBE_S`. If the serving station stops answering, the next one takes
over; an earlier one takes over again once it is stable. At each change, sessions get new numbers, so that no station
sees an old session of its own: it answers `Resync`, and the UE opens the session with its committed prefix.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from testbed.clock import Clock, within
from testbed.errors import LinkError, LinkTimeout, ModelError, ProtocolError
from testbed.protocols.codec import AnyArray, Packet, decode_downlink, encode
from testbed.protocols.messages import VERSION, Fault, Hello, Message, Ping, Pong, Resync, Welcome, difference
from testbed.protocols.ranges import check_ranges, check_welcome
from testbed.tasks import together
from testbed.ue.client import Client
from testbed.ue.waiting.stations import (
    PROGRESS,
    HandshakeTime,
    StationLink,
    StationState,
    WaitingTime,
    common,
    successor,
)

LOG = logging.getLogger(__name__)
PROBE_S = 1.0
"""Interval between probes."""
STEADY_S = 3.0
"""Time for which an earlier station must have answered before it serves again."""
PROBES = 2**62
"""First token of the pings used as probes."""
EPOCH = 2**40
"""Offset added to session numbers at every change of station."""


class FailoverClient(Client):
    """A `Client` of several base stations.

    Args:
        links: links to the stations, in order of preference.
        silence_s: time without an answer after which a station counts as gone.
    """

    def __init__(
        self,
        links: Sequence[StationLink],
        clock: Clock,
        first_session: int,
        timeout_s: float = 60.0,
        silence_s: float = 5.0,
    ) -> None:
        super().__init__(links[0].link, clock, first_session, timeout_s)
        self._stations = [StationState(*named) for named in links]
        self._silence_s = silence_s
        self._at = self._epoch = 0
        self._probes = itertools.count(PROBES)
        self._hello: Hello | None = None
        self._waited = WaitingTime(clock)
        """Without `PROGRESS` of any request."""
        self._asked = HandshakeTime(clock)
        self._news, self._asking = asyncio.Event(), asyncio.Lock()
        self.moves: list[str] = []
        """Addresses of the stations that took over, in order."""

    @property
    def serving(self) -> str:
        """Address of the serving station."""
        return self._stations[self._at].address

    async def connect(self, tokenizer: str, vocab_size: int) -> Welcome:
        """Greet all stations; the first in order that answers serves. Returns its welcome, with what all can do.

        Raises:
            LinkTimeout: no station answers.
            ModelError: one refuses this drafter's vocabulary, or they do not serve the same model and head.
        """
        self.vocab_size = vocab_size
        self._hello = Hello(version=VERSION, tokenizer=tokenizer, vocab_size=vocab_size)
        self._reader = asyncio.create_task(self._run())
        self._reader.add_done_callback(self._lost)
        deadline_s = self.clock.time() + self.timeout_s
        patience_s = deadline_s
        while True:
            for station in self._stations:
                if station.refused:
                    raise ModelError(station.refused)
            greeted = [i for i, station in enumerate(self._stations) if station.welcome is not None]
            now_s = self.clock.time()
            if greeted:
                patience_s = min(patience_s, now_s + 2 * PROBE_S)
            if len(greeted) == len(self._stations) or (greeted and now_s >= patience_s):
                break
            if now_s >= deadline_s:
                raise LinkTimeout(f"no BS answered within {self.timeout_s:g} s: {', '.join(self._addresses)}")
            await self._wait(min(patience_s, deadline_s) - now_s)
        self._serve_from(greeted[0])
        for i, station in enumerate(self._stations):
            if i not in greeted:
                LOG.warning("%s does not answer; it may serve later", station.address)
        self.welcome = common([one.welcome for one in self._stations if one.welcome is not None])
        return self.welcome

    async def send(self, message: Message, arrays: dict[str, AnyArray] | None = None) -> int:
        """Send one message to the serving station; returns its size in bytes."""
        if self._epoch and (session := getattr(message, "session", -1)) >= 0:
            message = replace(message, session=session + self._epoch * EPOCH)
        if isinstance(message, Ping):
            self._asked.sent(message.token)
        station = self._stations[self._at]
        with contextlib.suppress(LinkError):  # queue full: the message is sent again, perhaps to the next station
            sent = await station.link.send(encode(message, arrays))
            station.sent_bytes += sent
            return sent
        return 0

    async def receive(self, session: int, timeout_s: float) -> Packet[Any]:
        """Next message of a session.

        Raises:
            LinkTimeout: no message in time; says why no other station serves, if one answers.
        """
        try:
            with self._waited.of_one():
                packet = await super().receive(session, timeout_s)
            if isinstance(packet.message, Fault) and await self._leaves():
                return Packet(Resync(session=session, reason=packet.message.reason), {}, 0)
            return packet
        except LinkTimeout as exc:
            if refused := self._refused():
                raise LinkTimeout(f"{self.serving} is silent, and {refused}") from exc
            raise

    async def close(self) -> None:
        """Stop reading and close all links."""
        await super().close()
        for station in self._stations:
            station.link.close()

    async def _rest(self, seconds: float) -> bool:
        with self._waited.of_one():
            return await super()._rest(seconds)

    async def ask(self, message: Hello | Ping, timeout_s: float | None = None) -> Packet[Any]:
        """See `Client.ask`."""
        with self._asked.of_one():
            return await super().ask(message, timeout_s)

    async def _refusal(self, within_s: float) -> str:
        """See `Client._refusal`. A station that refuses is left, and the one that serves in its place asked."""
        at = self._at
        refusal = await super()._refusal(within_s)
        if refusal and at == self._at:
            self._leave()
        return refusal if at == self._at else await super()._refusal(within_s)

    @property
    def _busy(self) -> bool:
        """Whether a request is under way."""
        return self._waited.goes_on or bool(self._mail)

    @property
    def _addresses(self) -> list[str]:
        return [station.address for station in self._stations]

    async def _wait(self, seconds: float) -> None:
        self._news.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await within(max(0.0, seconds), self._news.wait())

    # ------------------------------------------------------------ receiving

    async def _run(self) -> None:
        await together([*map(self._listen, range(len(self._stations))), self._watch()])

    async def _listen(self, number: int) -> None:
        station = self._stations[number]
        while True:
            try:
                received = await station.link.recv(self.timeout_s)
                packet = decode_downlink(received.frames, received.size_bytes)
                check_ranges(packet.message)
            except (LinkTimeout, ProtocolError):  # invalid messages are dropped, as if lost
                continue
            except LinkError:  # it broke a bound
                self._lose(station)
                if self.welcome is not None:
                    self._choose(self.clock.time())
                continue
            station.hear(self.clock.time())
            message = packet.message
            if isinstance(message, Welcome) or (isinstance(message, Fault) and station.welcome is None):
                self._greeted(station, message)
            if number == self._at and not (isinstance(message, Pong) and message.token >= PROBES):
                self._deliver(packet)

    def _greeted(self, station: StationState, message: Welcome | Fault) -> None:
        """Handle a station's answer to the greeting."""
        if isinstance(message, Fault):
            station.refused = f"{station.address} refuses: {message.reason}"
        else:
            station.refused = self._difference(station, message)
            station.welcome = None if station.refused else message
        self._news.set()

    def _difference(self, station: StationState, welcome: Welcome) -> str:
        """Why a station cannot be used, such as a difference from one greeted before, in one line; empty: it can."""
        try:
            check_welcome(welcome, station.address)
        except ModelError as exc:
            return str(exc)
        if self.welcome is not None and common([self.welcome, welcome]) != self.welcome:
            return f"{station.address} takes shorter windows, fewer tokens or fewer protocols than were greeted"
        known = [(s.address, s.welcome) for s in self._stations if s is not station and s.welcome is not None]
        if self.welcome is not None:
            known.append((self.serving, self.welcome))
        for address, other in known:
            if found := difference(welcome.shared, other.shared, address):
                return f"{station.address} serves {found}"
        return ""

    def _deliver(self, packet: Packet[Any]) -> None:
        """Put a message into its session's mailbox; drops those from before the last change of station."""
        message = packet.message
        session = getattr(message, "session", -1)
        if session >= 0:
            epoch, session = divmod(session, EPOCH)
            if epoch != self._epoch:
                return
            if epoch:
                packet = Packet(replace(message, session=session), packet.arrays, packet.size_bytes)
        if isinstance(message, Pong):
            self._asked.answered(message.token)
        self._put(packet)
        if session in self._mail and isinstance(message, PROGRESS):
            self._waited.reset()
            self._stations[self._at].go_on(self.clock.time(), self.timeout_s)

    # ------------------------------------------------------------ choosing the serving station

    async def _watch(self) -> None:
        """Probe all stations, and change the serving station if needed."""
        while True:
            now_s = self.clock.time()
            for station in self._stations:
                if station.silent(now_s, self._silence_s):
                    self._lose(station)
                await self._probe(station)
            serves = self._stations[self._at].welcome is not None
            if not (serves and self._busy):
                self._waited.reset()
            if not serves:
                self._asked.reset()
            elif max(self._waited.seconds, self._asked.seconds) > self.timeout_s / 2:
                self._avoid(self._stations[self._at], now_s)
            if self.welcome is not None:
                self._choose(now_s)
            await self.clock.sleep(PROBE_S)

    async def _probe(self, station: StationState) -> None:
        assert self._hello is not None
        ask = self._hello if station.welcome is None else Ping(token=next(self._probes))
        with contextlib.suppress(LinkError):
            await station.link.send(encode(ask))

    def _choose(self, now_s: float) -> None:
        """Change the serving station if another one takes over."""
        gap_s = self.timeout_s if self._busy else 0.0
        chosen = successor(self._stations, self._at, now_s, STEADY_S, gap_s)
        if chosen is not None:
            LOG.warning("%s serves in place of %s", self._stations[chosen].address, self.serving)
            self._serve_from(chosen)

    def _lose(self, station: StationState) -> None:
        """Note that a station cannot serve. One that took over less than `timeout_s` ago is avoided, too, unless all
        are silent, as in an outage of the UE's own.
        """
        now_s = self.clock.time()
        others = any(not one.silent(now_s, self._silence_s / 2) for one in self._stations if one is not station)
        serving = station is self._stations[self._at] and station.welcome is not None
        if serving and others and now_s - station.serving_s < self.timeout_s:
            station.avoid(now_s, self.timeout_s)
        else:
            station.lose()

    def _avoid(self, station: StationState, now_s: float) -> None:
        """Leave the serving station, which answers probes but goes on with no request or handshake, if there is another
        one.
        """
        if any(one.welcome is not None for one in self._stations if one is not station):
            LOG.warning("%s has gone on with nothing that was asked for %.0f s", station.address, self.timeout_s / 2)
            station.avoid(now_s, self.timeout_s)

    async def _leaves(self) -> bool:
        """Leave a station that serves something else since the greeting, or takes less, as after a restart, for another
        one; returns whether another one serves.
        """
        at = self._at
        async with self._asking:
            trouble = at == self._at and await self.trouble(max(PROBE_S, self._silence_s))
            if at == self._at and (trouble or await self._takes_less()) and at == self._at:
                self._leave()
            return self._at != at

    def _leave(self) -> None:
        """Leave the serving station, which cannot be used, if another one can."""
        self._lose(self._stations[self._at])
        self._choose(self.clock.time())

    async def _takes_less(self) -> bool:
        """Whether the serving station can no longer be used, by its answer to a new greeting, which keeps the sessions.
        It is asked only if another one could serve.
        """
        station, until_s = self._stations[self._at], self.clock.time() + PROBE_S
        known, others = station.welcome, [one for one in self._stations if one is not station]
        if self._hello is None or all(one.welcome is None for one in others):
            return False
        with contextlib.suppress(LinkError):
            await station.link.send(encode(replace(self._hello, again=True)))
        while station.welcome is known and (left_s := until_s - self.clock.time()) > 0:
            await self._wait(left_s)
        return station.welcome is None

    def _refused(self) -> str:
        """Why no other station serves although one answers; empty: none answers, or the serving one does."""
        serving, now_s = self._stations[self._at], self.clock.time()
        if serving.welcome is not None:
            return ""
        others = [one for one in self._stations if one is not serving and not one.silent(now_s, self._silence_s)]
        return next((one.refused for one in others if one.refused), "")

    def _serve_from(self, number: int) -> None:
        if number == self._at:
            return
        left = self._stations[self._at]
        left.welcome = None  # greeted again on return, so that it frees this UE's sessions
        self._at, self._link = number, self._stations[number].link
        self._stations[number].serving_s = self.clock.time()
        self._epoch += 1
        self._waited.reset()
        self._asked.reset()
        if self.welcome is not None:
            self.moves.append(self.serving)
            self._moved_on(f"{self.serving} serves now")
