"""The client of a UE: handshakes and answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from testbed.channel.link import Received
from testbed.clock import WallClock, within
from testbed.errors import LinkError, LinkTimeout
from testbed.protocols.codec import Packet, decode_uplink, encode
from testbed.protocols.messages import VERSION, Fault, Ping, Pong, Welcome
from testbed.ue import client as client_module
from testbed.ue.client import Client
from testbed.ue.waiting.mailbox import MOST_WAITING, MOST_WAITING_BYTES, Mailbox


class OneWord:
    """A link that delivers one message on command."""

    def __init__(self) -> None:
        self.word: asyncio.Future[list[bytes | memoryview]] = asyncio.get_running_loop().create_future()
        self.closed = False

    async def send(self, frames: Any) -> int:
        return sum(map(len, frames))

    async def recv(self, timeout_s: float) -> Any:
        return await within(
            timeout_s, self.word if not self.word.done() else asyncio.get_running_loop().create_future()
        )

    def close(self) -> None:
        self.closed = True


async def test_closing_as_a_message_arrives_closes() -> None:
    link = OneWord()
    client = Client(link, WallClock(), first_session=0, timeout_s=30.0)
    asking = asyncio.create_task(client.connect("", 1))
    await asyncio.sleep(0.01)
    asking.cancel()
    link.word.set_result(encode(Pong(token=0)))
    _, still_closing = await asyncio.wait({asyncio.create_task(client.close())}, timeout=5)
    assert link.closed
    assert not still_closing


class Twice:
    """A link to a BS that answered a greeting late, so that it was sent twice and answered twice."""

    def __init__(self) -> None:
        self.mail: asyncio.Queue[Any] = asyncio.Queue()

    async def send(self, frames: Any) -> int:
        message = decode_uplink([bytes(frame) for frame in frames]).message
        if isinstance(message, Ping):
            self.answer(Pong(token=message.token))
        else:
            for _ in range(2):
                self.answer(
                    Welcome(
                        version=VERSION,
                        model="m",
                        hidden_size=1,
                        vocab_size=1,
                        end_ids=(),
                        protocols=("greedy",),
                        max_window=1,
                        max_positions=1,
                    )
                )
        return 0

    def answer(self, message: Any) -> None:
        self.mail.put_nowait(Received([bytes(frame) for frame in encode(message)], 0))

    async def recv(self, timeout_s: float) -> Any:
        return await within(timeout_s, self.mail.get())

    def close(self) -> None:
        """Nothing to close."""


async def test_a_second_welcome_is_no_answer_to_a_handshake() -> None:
    client = Client(Twice(), WallClock(), first_session=0, timeout_s=5.0)
    await client.connect("", 1)
    assert len(await client.rtt_s(3)) == 3
    await client.close()


async def test_what_came_unasked_answers_no_later_question() -> None:
    """Faults of a base station that was gone were taken for answers of the next one, for hours."""
    link = Twice()
    client = Client(link, WallClock(), first_session=0, timeout_s=5.0)
    await client.connect("", 1)

    async def flood() -> None:
        for _ in range(40):
            link.answer(Fault(session=-1, reason="x"))
        await asyncio.sleep(0.05)

    await flood()
    assert len(await client.rtt_s(3)) == 3
    await flood()
    assert await client.trouble(5.0) == ""
    await client.close()


class Later(Twice):
    """A link to a BS whose answers take 20 ms."""

    def answer(self, message: Any) -> None:
        asyncio.get_running_loop().call_later(0.02, super().answer, message)


async def test_handshakes_of_one_ue_may_be_under_way_at_once() -> None:
    """They took each other's answers, and were sent again after 2 s, or ended with an unexpected error."""
    client = Client(Later(), WallClock(), first_session=0, timeout_s=5.0)
    await client.connect("", 1)
    *times, trouble = await within(1.5, asyncio.gather(*(client.rtt_s(3) for _ in range(8)), client.trouble(1.0)))
    assert trouble == "" and all(0.02 <= rtt_s < 0.5 for ue in times for rtt_s in ue)
    await client.close()


class Restarted(Later):
    """A link to a BS that now serves something else than at the greeting."""

    async def send(self, frames: Any) -> int:
        message = decode_uplink([bytes(frame) for frame in frames]).message
        if not (isinstance(message, Ping) and message.served):
            return await super().send(frames)
        self.answer(Fault(session=-1, reason="another target"))
        return 0


async def test_a_refused_question_ends_no_handshake_that_measures_a_round_trip() -> None:
    """Requests failed that another base station would have served."""
    client = Client(Restarted(), WallClock(), first_session=0, timeout_s=5.0)
    await client.connect("", 1)
    *times, trouble = await asyncio.gather(*(client.rtt_s(3) for _ in range(8)), client.trouble(1.0))
    assert trouble == "another target" and [len(ue) for ue in times] == [3] * 8
    await client.close()


async def test_what_nobody_reads_is_not_kept_without_end() -> None:
    mailbox = Mailbox()
    for number in range(MOST_WAITING + 100):
        mailbox.put(Packet(Pong(token=number), {}, 0))
    assert [(await mailbox.get(1.0)).message.token for _ in range(MOST_WAITING)] == list(range(MOST_WAITING))
    mailbox.put(Packet(Pong(token=-1), {}, 0))
    assert (await mailbox.get(1.0)).message.token == -1
    for number in range(9):
        mailbox.put(Packet(Pong(token=number), {}, MOST_WAITING_BYTES // 4))
    assert [(await mailbox.get(1.0)).message.token for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(asyncio.TimeoutError):
        await mailbox.get(0.01)
    mailbox.put(Packet(Pong(token=-1), {}, MOST_WAITING_BYTES))
    assert (await mailbox.get(1.0)).message.token == -1


class Dripping(Twice):
    """A link to a BS that answers other handshakes than those that it is asked."""

    async def recv(self, timeout_s: float) -> Any:
        if not self.mail.empty():
            return await super().recv(timeout_s)
        await asyncio.sleep(0.02)
        return Received([bytes(frame) for frame in encode(Pong(token=2**40))], 0)

    def answer(self, message: Any) -> None:
        if isinstance(message, Welcome):
            super().answer(message)


async def test_answers_to_other_handshakes_do_not_prolong_the_wait() -> None:
    client = Client(Dripping(), WallClock(), first_session=0, timeout_s=0.5)
    await client.connect("", 1)
    assert await within(3.0, client.trouble(0.3)) == "the BS does not answer"
    with pytest.raises(LinkTimeout, match=r"did not answer within 0.5 s"):
        await within(3.0, client.rtt_s(2))
    await client.close()


async def test_messages_that_never_cease_do_not_prolong_a_wait_that_is_over() -> None:
    client = Client(Nobody(), WallClock(), first_session=0, timeout_s=5.0)
    client._reader = asyncio.ensure_future(asyncio.sleep(5))
    session = client.new_session()
    client._mail[session].put(Packet(Pong(token=1), {}, 0))
    with pytest.raises(LinkTimeout):
        await client.receive(session, 0.0)
    assert (await client.receive(session, 1.0)).message == Pong(token=1)
    await client.close()


class Nobody:
    """A link to a BS that is not there."""

    async def send(self, frames: Any) -> int:
        return 0

    async def recv(self, timeout_s: float) -> Any:
        await asyncio.sleep(timeout_s)
        raise LinkTimeout("nobody")

    def close(self) -> None:
        """Nothing to close."""


async def test_silence_is_reported_once_and_long_before_it_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_module, "SILENT_S", 0.15)
    monkeypatch.setattr(client_module, "RESEND_S", 0.1)
    client = Client(Nobody(), WallClock(), first_session=0, timeout_s=0.7)
    with pytest.raises(LinkTimeout, match="is it running"):
        await client.connect("", 1)
    await client.close()
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("the BS has not answered for 0 s (timeout: 0.7 s)")


async def test_a_timeout_tells_how_long_the_bs_was_silent_not_the_last_wait() -> None:
    client = Client(Nobody(), WallClock(), first_session=0, timeout_s=5.0)
    client._reader = asyncio.ensure_future(asyncio.sleep(5))
    session = client.new_session()
    for wait_s, told in ((0.2, "0.2"), (0.1, r"0\.[3-9]")):
        with pytest.raises(LinkTimeout, match=rf"did not answer within {told}\d* s"):
            await client.receive(session, wait_s)
    await client.close()


async def test_waits_end_when_nothing_can_be_received_any_more(caplog: pytest.LogCaptureFixture) -> None:
    link = OneWord()
    client = Client(link, WallClock(), first_session=0, timeout_s=30.0)
    asking = asyncio.create_task(client.connect("", 1))
    await asyncio.sleep(0.01)
    link.word.set_exception(RuntimeError("broken"))
    with pytest.raises(LinkError, match="the connection is closed"):
        await asyncio.wait_for(asking, 5)
    assert "receiving from the BS failed" in caplog.text
    with pytest.raises(LinkError, match="the connection is closed"):
        await client.receive(client.new_session(), 30.0)
    await client.close()


class Terminated(OneWord):
    """A link over which SIGTERM arrives: its handler raises while the client receives."""

    async def recv(self, timeout_s: float) -> Any:
        raise SystemExit(143)


def test_a_signal_is_no_failure_to_receive(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        client = Client(Terminated(), WallClock(), first_session=0, timeout_s=1.0)
        await client.connect("", 1)

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert "receiving from the BS failed" not in caplog.text
