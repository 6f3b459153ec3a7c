"""Failover of a UE between base stations on real sockets: serving station, sessions, refusals."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct

from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.judging.base import Judge
from testbed.bs.judging.head import BudgetJudge
from testbed.bs.server import BaseStation
from testbed.channel.link import ZmqLink, new_identity
from testbed.clock import WallClock, within
from testbed.errors import LinkTimeout, ModelError, ProtocolError
from testbed.protocols import TARGET_ONLY, protocol
from testbed.protocols.codec import Packet, decode_uplink
from testbed.protocols.messages import Busy, Draft, Open, Resync
from testbed.protocols.methods import Ahead, run_method
from testbed.protocols.sampling import Sampling
from testbed.synthetic import next_token
from testbed.tasks import cancel
from testbed.ue import failover
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.failover import FailoverClient
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.session import DecodingSession
from testbed.ue.target_only import decode_remotely
from testbed.ue.waiting.stations import StationLink, StationState, WaitingTime
from testbed.ue.windows.fixed import FixedWindow
from testbed.ue.windows.stream_choice import StreamChoice
from tests.support.heads import random_head
from tests.support.relay import Relay, relay
from tests.support.stations import VOCAB, station
from tests.support.zmtp import frame

PROMPT = [3, 1, 4, 1, 5]
SILENCE_S = 0.5


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "PROBE_S", 0.1)
    monkeypatch.setattr(failover, "STEADY_S", 0.3)


def own(prompt: list[int], length: int) -> list[int]:
    ids = list(prompt)
    for _ in range(length):
        ids.append(next_token(ids, VOCAB, 0))
    return ids[len(prompt) :]


class Site:
    """Base stations behind relays that can be disconnected."""

    def __init__(self) -> None:
        self.bss: list[BaseStation] = []
        self.relays: list[Relay] = []
        self.addresses: list[str] = []

    def rounds(self) -> list[int]:
        return [bs.rounds for bs in self.bss]

    def sessions(self) -> list[int]:
        return [len(bs._intake.sessions) for bs in self.bss]


class Slow(SyntheticEngine):
    """A slow drafter, so that disconnections occur within rounds."""

    def compute(self, batch: Any) -> Any:
        import time

        time.sleep(0.01)
        return super().compute(batch)


@contextlib.asynccontextmanager
async def site(count: int = 2, judges: Sequence[Judge] = ()) -> AsyncIterator[Site]:
    found = Site()
    async with contextlib.AsyncExitStack() as held:
        for number in range(count):
            judge = judges[number] if judges else None
            bs, address = await held.enter_async_context(station(Slow(vocab_size=VOCAB), judge=judge))
            between, address = await held.enter_async_context(relay(address))
            found.bss.append(bs)
            found.relays.append(between)
            found.addresses.append(address)
        yield found


@contextlib.asynccontextmanager
async def roaming(site: Site, timeout_s: float = 10.0, greet: bool = True) -> AsyncIterator[FailoverClient]:
    identity = new_identity()
    links = [StationLink(address, ZmqLink(address, identity)) for address in site.addresses]
    client = FailoverClient(links, WallClock(), 1, timeout_s, SILENCE_S)
    try:
        if greet:
            await client.connect("", VOCAB)
        yield client
    finally:
        await client.close()


async def until(condition: Any, wait_s: float = 10.0) -> None:
    for _ in range(int(wait_s / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come about")


async def decode(
    client: FailoverClient,
    method: str,
    length: int,
    progress: Any = None,
    prompt: list[int] = PROMPT,
    theta: float = 0.0,
    lookahead: Ahead = 0,
) -> Any:
    if method == TARGET_ONLY:
        return await decode_remotely(client, prompt, length, (), progress)
    drafter = SyntheticDrafter(vocab_size=VOCAB, alpha=0.7)
    sampling = run_method(method).sampling(Sampling(0.8))
    session = DecodingSession(
        client, drafter, protocol(method), FixedWindow(4), theta, sampling=sampling, seed=7, lookahead=lookahead,
        streams=StreamChoice(4, alone=lookahead is None),
    )  # fmt: skip
    return await session.decode(prompt, length, (), progress)


async def test_the_first_serves_while_it_is_there() -> None:
    async with site() as where, roaming(where) as client:
        assert client.serving == where.addresses[0]
        assert (await decode(client, "greedy", 20)).token_ids == own(PROMPT, 20)
        assert len(await client.rtt_s(3)) == 3
        assert where.rounds()[1] == 0 and client.moves == []


@pytest.mark.parametrize(
    ("method", "lookahead"),
    [
        *((one, 0) for one in ("greedy", "fh", "sh", "rejection", "split", "coupled", TARGET_ONLY)),
        ("greedy", 1),
        ("sh", 1),
        ("coupled", 1),
        *((one, ahead) for one in ("greedy", "coupled") for ahead in ("stream", None)),
    ],
)
async def test_the_next_goes_on_with_the_committed_prefix_and_the_first_comes_back(
    method: str, lookahead: Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.ue.exchange.SILENCE_S", 0.5)
    async with site() as where, roaming(where) as client:
        before = (await decode(client, method, 40, lookahead=lookahead)).token_ids
        rounds: list[int] = []

        def progress(record: RoundRecord) -> None:
            rounds.append(record.round)
            if len(rounds) == 3:
                where.relays[0].down = True

        record: RequestRecord = await decode(client, method, 40, progress, lookahead=lookahead)
        assert record.token_ids == before
        if method not in ("rejection", "split", "coupled"):
            assert before == own(PROMPT, 40)
        assert client.moves == [where.addresses[1]] and where.rounds()[1] > 0
        where.relays[0].down = False
        await until(lambda: client.serving == where.addresses[0])
        seen = where.rounds()
        assert (await decode(client, method, 40)).token_ids == before
        assert where.rounds()[0] > seen[0] and where.rounds()[1] == seen[1]
        await until(lambda: where.sessions() == [0, 0])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what connections have received")
@pytest.mark.parametrize("number", [0, 1])
async def test_a_station_whose_message_never_ends_is_not_used_and_a_standby_disturbs_nobody(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with site() as where, roaming(where) as client:
        before = (await decode(client, "greedy", 40)).token_ids
        where.relays[number].flood = frame(bytes(2**16), more=True)
        assert (await within(8.0, decode(client, "greedy", 40))).token_ids == before
        await until(lambda: "an unfinished message of more than" in caplog.text)
        assert where.addresses[1 - number] not in caplog.text.partition("connection closed")[2].partition("\n")[0]
        await until(lambda: client.serving == where.addresses[1 - number])
        assert (await within(8.0, decode(client, "greedy", 40))).token_ids == before
        assert ("serves in place of" in caplog.text) == (number == 0)


def refusing(bs: BaseStation, method: str, retry_s: float, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A base station that refuses each window, or request, for `retry_s`; returns what it refuses."""
    refused: list[Any] = []

    def answer(peer: bytes, message: Any, *_: Any, **__: Any) -> Any:
        refused.append(message)
        busy = Busy(session=message.session, reason="full", retry_s=retry_s, round=getattr(message, "round", None))
        return busy if method != TARGET_ONLY else (replace_struct(busy, round=None), None)

    monkeypatch.setattr(bs._intake, "open" if method == TARGET_ONLY else "draft", answer)
    return refused


@pytest.mark.parametrize("method", ["greedy", TARGET_ONLY])
async def test_a_wait_that_a_base_station_asked_for_ends_when_another_one_serves(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site() as where, roaming(where) as client:
        refused = refusing(where.bss[0], method, 86_400.0, monkeypatch)
        decoding = asyncio.create_task(decode(client, method, 20))
        await until(lambda: refused)
        await asyncio.sleep(0.1)
        where.relays[0].down = True
        assert (await within(8.0, decoding)).token_ids == own(PROMPT, 20)
        assert client.moves == [where.addresses[1]]


@pytest.mark.parametrize("method", ["greedy", TARGET_ONLY])
async def test_a_wait_that_a_base_station_asked_for_ends_with_the_timeout(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(1) as where, roaming(where, 1.0) as client:
        refusing(where.bss[0], method, 86_400.0, monkeypatch)
        with pytest.raises(LinkTimeout, match="the BS refuses for 86400 s: full"):
            await within(5.0, decode(client, method, 20))


async def test_a_quality_budget_goes_along() -> None:
    """Both base stations have a judge with a budget: the output is that of one budget, not of two."""
    share = 0.95
    judges = [BudgetJudge(random_head(), share) for _ in range(2)]
    async with site(judges=judges) as where, roaming(where) as client:
        before = await decode(client, "fh", 80, theta=1.0)
        spent = judges[0].risk(max(judges[0]._spent))  # type: ignore[type-var]
        rounds: list[int] = []

        def progress(record: RoundRecord) -> None:
            rounds.append(record.kept)
            if sum(rounds) == 1:
                where.relays[0].down = True

        record: RequestRecord = await decode(client, "fh", 80, progress, theta=1.0)
    assert client.moves == [where.addresses[1]]
    assert record.token_ids == before.token_ids != own(PROMPT, 80)
    assert max(judges[1]._spent.values()) == pytest.approx(spent)
    assert spent <= -math.log1p(-share)
    assert sum(r.kept for r in record.rounds) > 1


async def test_many_sessions_move_at_once_and_none_is_mixed_up() -> None:
    prompts = [[i, i + 1, i + 2] for i in range(12)]
    async with site(3) as where, roaming(where) as client:

        async def cuts() -> None:
            for down, up in ((0, None), (1, None), (None, 0), (0, 1)):
                await asyncio.sleep(0.8)
                if down is not None:
                    where.relays[down].down = True
                if up is not None:
                    where.relays[up].down = False

        cutting = asyncio.create_task(cuts())
        jobs = (decode(client, "greedy", 400, prompt=prompt, lookahead=i % 2) for i, prompt in enumerate(prompts))
        records = await asyncio.gather(*jobs)
        await cutting
    assert [record.token_ids for record in records] == [own(prompt, 400) for prompt in prompts]
    assert len(client.moves) >= 3


async def test_a_station_that_is_not_there_at_the_start_may_serve_later() -> None:
    async with site() as where:
        where.relays[0].down = True
        async with roaming(where) as client:
            assert client.serving == where.addresses[1]
            assert (await decode(client, "greedy", 20)).token_ids == own(PROMPT, 20)
            where.relays[0].down = False
            await until(lambda: client.serving == where.addresses[0])
            assert (await decode(client, "greedy", 20)).token_ids == own(PROMPT, 20)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"weights": "other"}, "another model"),
        ({"judge": "head 12"}, "another judge or head"),
        ({"end_ids": (7,)}, "another model"),
    ],
)
async def test_stations_that_do_not_serve_the_same_are_refused_in_one_line(change: dict[str, Any], what: str) -> None:
    async with site() as where:
        where.bss[1]._intake.offer = replace(where.bss[1]._intake.offer, **change)
        async with roaming(where, greet=False) as client:
            with pytest.raises(ModelError, match=what) as caught:
                await client.connect("", VOCAB)
        assert all(address in str(caught.value) for address in where.addresses)
        assert "\n" not in str(caught.value)


async def test_what_all_stations_take_is_greeted() -> None:
    """The next one refused windows that the first takes, and the run ended."""
    async with site() as where:
        second = where.bss[1]._intake
        second.offer = replace(second.offer, max_window=3)
        async with roaming(where) as client:
            assert client.welcome is not None and client.welcome.max_window == 3
        where.relays[1].down = True
        async with roaming(where) as client:
            assert client.welcome is not None and client.welcome.max_window > 3
            where.relays[1].down = False
            await until(lambda: "takes shorter windows" in client._stations[1].refused)


async def test_a_station_that_turns_out_different_later_does_not_take_over() -> None:
    async with site() as where:
        where.relays[1].down = True
        where.bss[1]._intake.offer = replace(where.bss[1]._intake.offer, weights="other")
        async with roaming(where, 3.0) as client:
            where.relays[1].down = False
            await until(lambda: client._stations[1].refused)

            def progress(record: RoundRecord) -> None:
                where.relays[0].down = True

            with pytest.raises(LinkTimeout, match=f"{where.addresses[0]} is silent, and .*serves another model"):
                await decode(client, "greedy", 100, progress)
        assert where.rounds()[1] == 0


@pytest.mark.parametrize("method", ["greedy", TARGET_ONLY])
async def test_a_station_that_serves_something_else_after_a_restart_is_left_for_another_one(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ended although the standby served what had been greeted."""
    monkeypatch.setattr("testbed.ue.target_only.SILENCE_S", 0.5)
    async with site() as where, roaming(where, 4.0) as client:

        def progress(record: RoundRecord) -> None:
            if record.round == 2:
                first = where.bss[0]._intake
                first.offer = replace(first.offer, weights="other")
                for session in list(first.sessions):
                    first.sessions.lose(session, "a restart")

        assert (await decode(client, method, 40, progress)).token_ids == own(PROMPT, 40)
        assert client.moves == [where.addresses[1]]
        assert (await decode(client, method, 20)).token_ids == own(PROMPT, 20)


@pytest.mark.parametrize("bounds", [{"max_window": 2}, {"max_positions": 12}])
async def test_a_station_that_takes_less_after_a_restart_is_left_for_another_one(bounds: dict[str, int]) -> None:
    """The run ended, and an endpoint answered no request any more, beside a station that took what had been greeted."""
    async with site() as where, roaming(where, 4.0) as client:

        def progress(record: RoundRecord) -> None:
            if record.round == 2:
                first = where.bss[0]._intake
                first.offer = replace(first.offer, **bounds)
                for session in list(first.sessions):
                    first.sessions.lose(session, "a restart")

        assert (await decode(client, "greedy", 40, progress)).token_ids == own(PROMPT, 40)
        assert client.moves == [where.addresses[1]]
        assert (await decode(client, "greedy", 20)).token_ids == own(PROMPT, 20)


@pytest.mark.parametrize("method", ["greedy", TARGET_ONLY])
async def test_a_station_that_answers_handshakes_only_is_left_for_another_one(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request waited for its whole timeout, and ended beside a station that would have served it; so it did as long
    as the station told something of sessions that nobody has.
    """
    async with site() as where, roaming(where, 4.0) as client:
        link = client._stations[0].link
        send = link.send

        async def lose(frames: Any) -> int:
            message = decode_uplink([bytes(frame) for frame in frames]).message
            client._deliver(Packet(Resync(session=99), {}, 0))
            return 0 if isinstance(message, Open | Draft) else await send(frames)

        monkeypatch.setattr(link, "send", lose)
        assert (await decode(client, method, 20)).token_ids == own(PROMPT, 20)
        assert client.moves == [where.addresses[1]]
        await asyncio.sleep(2.0)
        assert client.serving == where.addresses[1]  # which it does not take over from at once


async def test_a_station_that_confirms_each_new_session_and_goes_on_with_none_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one whose pass never ends: while requests came, it was never left, and 8 of 10 failed."""
    async with site() as where, roaming(where, 4.0) as client:
        link = client._stations[0].link
        send = link.send

        async def lose(frames: Any) -> int:
            message = decode_uplink([bytes(frame) for frame in frames]).message
            return 0 if isinstance(message, Draft) else await send(frames)

        monkeypatch.setattr(link, "send", lose)
        requests = []
        for _ in range(6):
            requests.append(asyncio.create_task(decode(client, "greedy", 20)))
            await asyncio.sleep(0.7)
        for request in requests:
            assert (await request).token_ids == own(PROMPT, 20)
        assert client.moves[0] == where.addresses[1]


@pytest.mark.parametrize(
    ("method", "asked", "answer"),
    [
        ("greedy", Open, Busy(0, "full", 0.3)),
        ("greedy", Draft, Busy(0, "full", 0.3)),
        ("greedy", Draft, Resync(0)),
        (TARGET_ONLY, Open, Busy(0, "full", 0.3)),
        (TARGET_ONLY, Open, Resync(0)),
    ],
)
async def test_a_station_that_asks_to_wait_or_forgets_without_end_is_left(
    method: str, asked: type[Any], answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody was waiting when the watchdog looked, so that one whose sessions another UE held denied an idle one."""
    async with site() as where, roaming(where, 4.0) as client:
        link = client._stations[0].link
        send = link.send

        async def answered(frames: Any) -> int:
            message = decode_uplink([bytes(frame) for frame in frames]).message
            if not isinstance(message, asked):
                return await send(frames)
            more = {"round": message.round} if isinstance(message, Draft) and isinstance(answer, Busy) else {}
            client._deliver(Packet(replace_struct(answer, session=message.session, **more), {}, 0))
            return 0

        monkeypatch.setattr(link, "send", answered)
        assert (await decode(client, method, 20)).token_ids == own(PROMPT, 20)
        assert client.moves[0] == where.addresses[1]


async def test_a_third_station_serves_where_two_only_ask_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two took turns for ever."""
    async with site(3) as where, roaming(where, 2.0) as client:
        for station in client._stations[:2]:

            async def refused(frames: Any, send: Any = station.link.send) -> int:
                message = decode_uplink([bytes(frame) for frame in frames]).message
                if not isinstance(message, Open):
                    return await send(frames)
                client._deliver(Packet(Busy(message.session, "full", 0.3), {}, 0))
                return 0

            monkeypatch.setattr(station.link, "send", refused)
        with contextlib.suppress(LinkTimeout):  # two halves of its time are all that it has
            await decode(client, "greedy", 20)
        assert (await decode(client, "greedy", 20)).token_ids == own(PROMPT, 20)
        assert client.serving == where.addresses[2] and len(client.moves) <= 3


async def test_what_requests_waited_counts_no_longer_once_none_is_under_way() -> None:
    """Requests of an hour ago had a station left, with nobody waiting."""
    async with site() as where, roaming(where, 8.0) as client:
        where.relays[0].down = True
        request = asyncio.create_task(decode(client, "greedy", 20))
        await until(lambda: client._waited.seconds > 0.1)
        await cancel(request)
        await until(lambda: client._waited.seconds == 0)


async def test_a_station_that_goes_on_again_takes_over_beside_requests_in_the_end() -> None:
    async with site() as where, roaming(where, 1.0) as client:
        client._avoid(client._stations[0], client.clock.time())
        client._choose(client.clock.time())
        assert client.serving == where.addresses[1]
        began_s = client.clock.time()
        while client.serving != where.addresses[0] and client.clock.time() < began_s + 20:
            for request in [asyncio.create_task(decode(client, "greedy", 20)) for _ in range(2)]:
                assert (await request).token_ids == own(PROMPT, 20)
        assert 0.9 < client.clock.time() - began_s < 10


async def test_an_outage_of_the_ues_own_is_no_stations_fault() -> None:
    """A station that answers nothing is left as one that is gone, and takes over again as soon as it answers."""
    async with site() as where, roaming(where, 6.0) as client:
        for between in where.relays:
            between.down = True
        with pytest.raises(LinkTimeout):
            await decode(client, "greedy", 20)
        for between in where.relays:
            between.down = False
        assert (await decode(client, "greedy", 20)).token_ids == own(PROMPT, 20)
        assert not any(station.avoided for station in client._stations)


def test_time_of_several_that_wait_counts_once_and_other_time_never(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = WallClock()
    now_s = 0.0
    monkeypatch.setattr(clock, "time", lambda: now_s)
    waited = WaitingTime(clock)
    now_s = 1.0
    with waited.of_one():
        now_s = 3.0
        assert waited.seconds == 2.0
        with waited.of_one():
            now_s = 4.0
        assert waited.seconds == 3.0
    now_s = 9.0
    assert waited.seconds == 3.0
    with waited.of_one():
        now_s = 10.0
        assert waited.seconds == 4.0
        waited.reset()
        now_s = 10.5
        assert waited.seconds == 0.5
    assert waited.seconds == 0.5


async def test_a_request_that_a_station_refuses_is_refused_and_moves_nobody() -> None:
    async with site() as where, roaming(where) as client:
        with pytest.raises(ProtocolError, match="token ids must lie in"):
            await decode(client, TARGET_ONLY, 4, prompt=[VOCAB + 5])
        assert client.moves == []


async def test_beside_a_different_station_the_serving_one_may_be_silent_for_a_while() -> None:
    """It ended the UE for good, although one station alone may be silent until the time-out."""
    async with site() as where:
        where.relays[1].down = True
        where.bss[1]._intake.offer = replace(where.bss[1]._intake.offer, weights="other")
        async with roaming(where) as client:
            where.relays[1].down = False
            await until(lambda: client._stations[1].refused)

            def progress(record: RoundRecord) -> None:
                if not where.relays[0].down and record.round == 2:
                    where.relays[0].down = True
                    asyncio.get_running_loop().call_later(4 * SILENCE_S, setattr, where.relays[0], "down", False)

            record = await decode(client, "greedy", 40, progress)
            assert record.token_ids == own(PROMPT, 40)
            assert (await decode(client, "greedy", 20)).token_ids == own(PROMPT, 20)
        assert where.rounds()[1] == 0


async def test_a_drafter_of_another_vocabulary_is_refused_as_by_one_station() -> None:
    async with site() as where, roaming(where, greet=False) as client:
        with pytest.raises(ModelError, match="vocabulary mismatch"):
            await client.connect("", VOCAB + 1)


async def test_nobody_there_is_a_timeout_that_names_them_all() -> None:
    async with site() as where:
        for between in where.relays:
            between.down = True
        async with roaming(where, 0.5, greet=False) as client:
            with pytest.raises(LinkTimeout, match=", ".join(where.addresses)):
                await client.connect("", VOCAB)


def test_a_station_that_is_left_again_and_again_is_left_for_longer() -> None:
    """The request that another one served stood still for half of each two timeouts."""
    found, now_s = StationState("tcp://x:1", None), 100.0  # type: ignore[arg-type]
    for times in (1, 2, 4, 8):
        found.avoid(now_s, 60.0)
        assert found.avoided_s == now_s + 60.0 * times
        now_s = found.avoided_s
    for _ in range(2000):
        found.avoid(now_s, 60.0)
    assert found.avoided_s == now_s + 60.0 * 2**10


def test_a_long_upload_is_no_silence() -> None:
    found = StationState("tcp://x:1", None)  # type: ignore[arg-type]
    found.hear(100.0)
    assert found.silent(105.1, 5.0) and not found.silent(104.9, 5.0)
    found.sent_bytes = 10**6
    assert not found.silent(112.9, 5.0) and found.silent(113.1, 5.0)
    found.hear(113.2)
    assert found.sent_bytes == 0 and found.since_s == 100.0
