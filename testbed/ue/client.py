"""Client of one BS: handshakes, and the exchange of messages with a mailbox per session."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Collection
from typing import Any

from testbed.channel.link import Link
from testbed.clock import Clock, WallClock, within
from testbed.errors import LinkError, LinkTimeout, ModelError, ProtocolError, TestbedError
from testbed.protocols.codec import AnyArray, Packet, decode_downlink, encode
from testbed.protocols.messages import VERSION, Fault, Hello, Message, Ping, Pong, Resync, Verdict, Welcome
from testbed.protocols.ranges import check_ranges, check_welcome
from testbed.tasks import cancel
from testbed.ue.waiting.mailbox import Mailbox
from testbed.ue.waiting.patience import Patience

LOG = logging.getLogger(__name__)
RESEND_S = 2.0
"""Time until an unanswered message is sent again, doubled each time."""
HANDSHAKES = 3
"""RTT handshakes before a request, where its RTT is needed; the shortest counts."""
SILENT_S = 5.0
"""Silence in real time after which a warning is logged."""


class Client:
    """Connection to a BS that all sessions of a UE share.

    Session numbers start at a random number, so that a UE that reconnects under the same identity does not reuse those
    of its old sessions.
    """

    def __init__(self, link: Link, clock: Clock, first_session: int, timeout_s: float = 60.0) -> None:
        self._link, self.clock, self.timeout_s = link, clock, timeout_s
        self._mail: dict[int, Mailbox] = {}
        """Messages of each session."""
        self._answers: dict[int | None, Mailbox] = {}
        """Answers to handshakes that are under way, by token; None: to the greeting."""
        self._refusable: set[int | None] = set()
        """Those of them that a BS may refuse: the greeting, and those that say what it served."""
        self._numbers = itertools.count(first_session)
        self._pings = itertools.count()
        self._reader: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        """Set when another BS serves, or the connection ends; waits that come later have a new one."""
        self.welcome: Welcome | None = None
        self.vocab_size = 0
        """Size of the vocabulary that this UE greets with, whatever a BS says of its own."""
        self._silent_since_s: float | None = None
        self._warned = False

    async def connect(self, tokenizer: str, vocab_size: int) -> Welcome:
        """Exchange Hello and Welcome with the BS.

        Raises:
            LinkTimeout: no answer.
            ModelError: the BS refuses this drafter's vocabulary, or has another version.
        """
        self.vocab_size = vocab_size
        self._reader = asyncio.create_task(self._read())
        self._reader.add_done_callback(self._lost)
        hello = Hello(version=VERSION, tokenizer=tokenizer, vocab_size=vocab_size)
        packet = await self.ask(hello)
        if isinstance(packet.message, Fault):
            raise ModelError(f"the BS refuses: {packet.message.reason}")
        if not isinstance(packet.message, Welcome):
            raise ProtocolError(f"expected Welcome, got {type(packet.message).__name__}")
        check_welcome(packet.message)
        self.welcome = packet.message
        return packet.message

    @property
    def served(self) -> str:
        """`Welcome.digest` of the BS at the greeting; empty before."""
        return "" if self.welcome is None else self.welcome.digest

    def endless(self, end_ids: Collection[int]) -> bool:
        """Whether the BS has an end id that is not among these, after which it would decode alone no further."""
        return self.welcome is not None and not set(self.welcome.end_ids) <= set(end_ids)

    async def rtt_s(self, count: int = 5) -> list[float]:
        """Round-trip times of `count` successive handshakes."""
        times = []
        for token in itertools.islice(self._pings, count):
            start_s = self.clock.time()
            packet = await self.ask(Ping(token=token))
            if not isinstance(packet.message, Pong):
                raise ProtocolError(f"expected Pong, got {type(packet.message).__name__}")
            times.append(self.clock.time() - start_s)
        return times

    async def trouble(self, within_s: float) -> str:
        """Why the BS cannot be used: it does not answer a handshake in time, or serves something else than at the
        greeting; empty: it can. Silence is logged as that of any wait.
        """
        try:
            return await self._refusal(within_s)
        except LinkError:
            return "the BS does not answer"

    async def _refusal(self, within_s: float) -> str:
        """Why the BS refuses this UE, since it serves something else than at the greeting; empty: it does not.

        Raises:
            LinkError: no answer in time.
        """
        message = (await self.ask(Ping(token=next(self._pings), served=self.served), within_s)).message
        return message.reason if isinstance(message, Fault) else ""

    def new_session(self) -> int:
        """A new session number with a mailbox."""
        number = next(self._numbers)
        self._mail[number] = Mailbox()
        return number

    def end_session(self, number: int) -> None:
        """Drop a session's mailbox; later messages for it are discarded."""
        self._mail.pop(number, None)

    async def send(self, message: Message, arrays: dict[str, AnyArray] | None = None) -> int:
        """Send one message; returns its size in bytes."""
        return await self._link.send(encode(message, arrays))

    async def receive(self, session: int, timeout_s: float) -> Packet[Any]:
        """Next message of a session.

        Raises:
            LinkTimeout: no message in time.
            LinkError: the connection is closed.
        """
        return await self._get(self._mail[session], timeout_s)

    async def _get(self, mailbox: Mailbox, timeout_s: float) -> Packet[Any]:
        if self._reader is None or self._reader.done():
            error = self._reader.exception() if self._reader and not self._reader.cancelled() else None
            raise LinkError("the connection is closed") from error
        if timeout_s <= 0:  # also where messages never cease
            raise LinkTimeout(f"the BS gave no answer to this request within {self.timeout_s:g} s")
        try:
            packet = await mailbox.get(timeout_s)
        except asyncio.TimeoutError as exc:
            silence_s = self._note_silence(timeout_s)
            raise LinkTimeout(f"the BS did not answer within {silence_s:.3g} s") from exc
        self._silent_since_s = None
        if self._warned:
            LOG.warning("the BS answers again")
            self._warned = False
        return packet

    async def ask(self, message: Hello | Ping, timeout_s: float | None = None) -> Packet[Any]:
        """Send a message without a session and return its answer; resends it until the timeout, each time after twice
        as long, and at once where another BS takes over. Several may be under way at once.

        Raises:
            LinkTimeout: no answer within `timeout_s`; None: that of the client.
            LinkError: the connection is closed.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        until_s, wait_s = self.clock.time() + timeout_s, RESEND_S
        token = message.token if isinstance(message, Ping) else None
        mailbox = self._answers[token] = Mailbox()
        if isinstance(message, Hello) or message.served:
            self._refusable.add(token)
        try:
            while (left_s := until_s - self.clock.time()) > 0:
                moved = self._moved
                await self.send(message)
                if self._moved is not moved:  # while it was sent
                    continue
                with contextlib.suppress(LinkTimeout):
                    return await self._get(mailbox, min(wait_s, left_s))
                wait_s *= 2
        finally:
            del self._answers[token]
            self._refusable.discard(token)
        said = f"the BS did not answer within {timeout_s:g} s"
        raise LinkTimeout(f"{said} (is it running, and is the address right?)")

    def _note_silence(self, waited_s: float) -> float:
        """Seconds without an answer. Warns once where a person waits in vain; in virtual time nobody does."""
        now_s = self.clock.time()
        if self._silent_since_s is None:
            self._silent_since_s = now_s - waited_s
        silence_s = now_s - self._silent_since_s
        if silence_s >= SILENT_S and not self._warned and isinstance(self.clock, WallClock):
            self._warned = True
            LOG.warning("the BS has not answered for %.0f s (timeout: %g s)", silence_s, self.timeout_s)
        return silence_s

    def patience(self) -> Patience:
        """The timeout of a request that begins now."""
        return Patience(self.clock, self.timeout_s, self._rest)

    async def _rest(self, seconds: float) -> bool:
        """Wait, at most until another BS serves or the connection ends; returns whether it was cut short."""
        if seconds <= 0:
            return False
        with contextlib.suppress(asyncio.TimeoutError):
            return await within(seconds, self._moved.wait())
        return False

    def _wake_waiting(self) -> None:
        """End the waits that a BS asked for."""
        self._moved.set()
        self._moved = asyncio.Event()

    def _moved_on(self, reason: str) -> None:
        """Another BS serves now: drop what the previous one sent, except verdicts, and end waits for it, those of
        sessions with a Resync.
        """
        for session, mailbox in self._mail.items():
            if mailbox.keep(Verdict) or mailbox.awaited:
                mailbox.put(Packet(Resync(session=session, reason=reason), {}, 0))
        for mailbox in self._answers.values():
            mailbox.fail(LinkTimeout(reason))
        self._wake_waiting()

    async def close(self) -> None:
        """Stop reading and close the link."""
        if self._reader is not None:
            await cancel(self._reader)
        self._link.close()

    def _lost(self, reader: asyncio.Task[None]) -> None:
        """Nothing is received any more: end all waits, which would time out."""
        if reader.cancelled():
            return
        if not isinstance(error := reader.exception(), TestbedError | SystemExit):  # the latter of a signal
            LOG.error("receiving from the BS failed", exc_info=error)
        self._fail(LinkError("the connection is closed"))

    def _fail(self, error: LinkError) -> None:
        """End all waits."""
        for mailbox in (*self._mail.values(), *self._answers.values()):
            mailbox.fail(error)
        self._wake_waiting()

    async def _read(self) -> None:
        while True:
            try:
                received = await self._link.recv(self.timeout_s)
                packet = decode_downlink(received.frames, received.size_bytes)
                check_ranges(packet.message)
            except (LinkTimeout, ProtocolError):  # invalid messages are dropped, as if lost
                continue
            except LinkError as exc:  # the BS broke a bound
                self._fail(exc)
                continue
            self._put(packet)

    def _put(self, packet: Packet[Any]) -> None:
        """Hand a message to whoever waits for it; a refusal without a session, to all that may be refused."""
        message = packet.message
        if (session := getattr(message, "session", -1)) >= 0:
            found = [self._mail.get(session)]
        elif isinstance(message, Fault):
            found = [self._answers[token] for token in self._refusable]
        else:
            found = [self._answers.get(getattr(message, "token", None))]
        for mailbox in found:
            if mailbox is not None:
                mailbox.put(packet)
