"""Stations that answer handshakes but go on with no request: when a UE leaves them, and when it returns."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
from typing import Any

import pytest
from msgspec.structs import replace

from testbed.clock import WallClock
from testbed.errors import LinkTimeout
from testbed.protocols import TARGET_ONLY
from testbed.protocols.codec import Packet
from testbed.protocols.messages import Busy, Draft, Message, Open, Ping, Pong, Resync, Welcome
from testbed.tasks import cancel
from testbed.ue.failover import PROBES, FailoverClient
from testbed.ue.waiting.stations import StationState, WaitingTime, successor
from tests.support.roaming import PROMPT, SILENCE_S, Site, decode, intercept, own, roaming, site, until


@pytest.mark.parametrize("method", ["greedy", TARGET_ONLY])
async def test_one_that_answers_handshakes_only(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request waited for its whole timeout, and ended beside a station that would have served it; so it did as long
    as the station told something of sessions that nobody has.
    """
    async with site() as where, roaming(where, 4.0) as client:

        def lose(message: Message) -> bool:
            client._deliver(Packet(Resync(session=99), {}, 0))
            return isinstance(message, Open | Draft)

        intercept(client._stations[0], lose, monkeypatch)
        assert (await decode(client, method, 20)).token_ids == own(PROMPT, 20)
        assert client.moves == [where.addresses[1]]
        await asyncio.sleep(2.0)
        assert client.serving == where.addresses[1]  # which it does not take over from at once


async def test_one_that_confirms_each_new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose pass never ends: while requests came, it was never left, and 8 of 10 failed."""
    async with site() as where, roaming(where, 4.0) as client:
        intercept(client._stations[0], lambda message: isinstance(message, Draft), monkeypatch)
        requests = []
        for _ in range(6):
            requests.append(asyncio.create_task(decode(client, "greedy", 20)))
            await asyncio.sleep(0.7)
        for request in requests:
            assert (await request).token_ids == own(PROMPT, 20)
        assert client.moves[0] == where.addresses[1]


async def test_one_that_answers_no_handshakes_but_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handshake before a request waited for its whole timeout, beside a station that would have answered it."""
    async with site() as where, roaming(where, 3.0) as client:
        unanswered = lambda message: isinstance(message, Ping) and message.token < PROBES  # noqa: E731
        intercept(client._stations[0], unanswered, monkeypatch)
        times = await client.rtt_s(5)
        assert max(times[1:]) < 1.0 and client.moves == [where.addresses[1]]
        assert (await decode(client, "greedy", 20)).token_ids == own(PROMPT, 20)


async def test_one_that_answers_a_handshake_with_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The move came while the UE looked at such an answer, and the rest of the wait was for the new station's."""
    async with site() as where, roaming(where, 2.0) as client:

        def other(message: Message) -> bool:
            return isinstance(message, Ping) and message.token < PROBES

        async def flood() -> None:
            while not client.moves:
                client._deliver(Packet(Pong(token=2**40), {}, 0))
                await asyncio.sleep(0)

        intercept(client._stations[0], other, monkeypatch)
        flooding = asyncio.create_task(flood())
        assert len(await client.rtt_s(3)) == 3 and client.moves == [where.addresses[1]]
        await flooding


async def test_answers_that_come_after_their_health_check_move_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """UEs on slow links went from station to station, in the middle of requests."""
    async with site() as where, roaming(where, 1.0) as client:
        loop = asyncio.get_running_loop()

        def later(message: Message) -> bool:
            if own_ping := isinstance(message, Ping) and message.token < PROBES:
                loop.call_later(0.2, client._deliver, Packet(Pong(token=message.token), {}, 0))
            return own_ping

        intercept(client._stations[0], later, monkeypatch)
        for _ in range(15):
            assert await client.trouble(0.1) == "the BS does not answer"
            await asyncio.sleep(0.12)
        assert client.moves == []


async def test_health_checks_without_an_answer_move_an_idle_ue(monkeypatch: pytest.MonkeyPatch) -> None:
    """They said for ever that the base station does not answer, although another one would have served."""
    async with site() as where, roaming(where, 2.0) as client:
        unanswered = lambda message: isinstance(message, Ping) and message.token < PROBES  # noqa: E731
        intercept(client._stations[0], unanswered, monkeypatch)
        found = [await client.trouble(0.25) for _ in range(8)]
        assert found[0] == "the BS does not answer" and found[-1] == ""
        assert client.moves == [where.addresses[1]]


async def test_refused_health_checks_move_an_idle_ue() -> None:
    """They said until the next request that the base station has another target, although another one would serve."""
    async with site() as where, roaming(where) as client:
        where.bss[0]._intake.offer = dataclasses.replace(where.bss[0]._intake.offer, weights="other")
        assert await client.trouble(2.0) == "" and client.moves == [where.addresses[1]]
        where.bss[1]._intake.offer = where.bss[0]._intake.offer
        assert "another target" in await client.trouble(2.0)
        assert "another target" in await client.trouble(2.0)


def answer_all(client: FailoverClient, number: int, asked: type[Any], answer: Any, patch: pytest.MonkeyPatch) -> None:
    """Have a station give the same answer to all messages of a type."""

    def take(message: Any) -> bool:
        if not isinstance(message, asked):
            return False
        more = {"round": message.round} if isinstance(message, Draft) and isinstance(answer, Busy) else {}
        client._deliver(Packet(replace(answer, session=message.session, **more), {}, 0))
        return True

    intercept(client._stations[number], take, patch)


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
async def test_one_that_asks_to_wait_or_forgets_without_end(
    method: str, asked: type[Any], answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody was waiting when the watchdog looked, so that one whose sessions another UE held denied an idle one."""
    async with site() as where, roaming(where, 4.0) as client:
        answer_all(client, 0, asked, answer, monkeypatch)
        assert (await decode(client, method, 20)).token_ids == own(PROMPT, 20)
        assert client.moves[0] == where.addresses[1]


async def test_a_third_station_serves_where_two_only_ask_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two took turns for ever."""
    async with site(3) as where, roaming(where, 2.0) as client:
        for number in (0, 1):
            answer_all(client, number, Open, Busy(0, "full", 0.3), monkeypatch)
        with contextlib.suppress(LinkTimeout):  # two halves of its time are all that it has
            await decode(client, "greedy", 20)
        assert (await decode(client, "greedy", 20)).token_ids == own(PROMPT, 20)
        assert client.serving == where.addresses[2] and len(client.moves) <= 3


async def test_what_requests_waited_counts_no_longer_once_none_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of an hour ago had a station left, with nobody waiting."""
    async with site() as where, roaming(where, 8.0) as client:
        intercept(client._stations[0], lambda message: isinstance(message, Draft), monkeypatch)
        request = asyncio.create_task(decode(client, "greedy", 20))
        await until(lambda: client._waited.seconds > 0.5)
        await cancel(request)
        await until(lambda: client._waited.seconds == 0)
        assert client.moves == []


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


def fall_silent_at_requests(where: Site, client: FailoverClient, patch: pytest.MonkeyPatch) -> None:
    """Have the first station answer nothing for a while after each request, as one that such requests end."""

    def take(message: Message) -> bool:
        if isinstance(message, Open):
            where.relays[0].down = True
            asyncio.get_running_loop().call_later(SILENCE_S + 0.3, setattr, where.relays[0], "down", False)
        return where.relays[0].down

    intercept(client._stations[0], take, patch)


async def test_one_that_falls_silent_at_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took over every few seconds, and had a stream of the other one begin anew each time."""
    async with site() as where, roaming(where, 6.0) as client:
        fall_silent_at_requests(where, client, monkeypatch)
        assert (await decode(client, TARGET_ONLY, 300)).token_ids == own(PROMPT, 300)
        first, second = where.addresses
        assert client.moves in ([second], [second, first, second])


async def test_an_outage_soon_after_a_station_took_over_is_not_its_fault() -> None:
    async with site() as where, roaming(where, 6.0) as client:
        where.relays[0].down = True
        await until(lambda: client.serving == where.addresses[1])
        where.relays[1].down = True
        await until(lambda: client._stations[1].welcome is None)
        where.relays[1].down = False
        assert (await decode(client, "greedy", 20)).token_ids == own(PROMPT, 20)
        assert not any(station.avoided for station in client._stations)


def test_failures_count_until_a_station_has_served_for_a_while() -> None:
    found = StationState("tcp://x:1", None)  # type: ignore[arg-type]
    found.avoid(100.0, 60.0)
    found.serving_s = 200.0
    found.go_on(259.0, 60.0)
    assert found.avoided == 1
    found.go_on(260.0, 60.0)
    assert found.avoided == 0


CHOICES: list[tuple[float, bool, list[tuple[bool, float, int, float]], int, int | None]] = [
    # time, whether a request is under way, stations (greeted, avoided until, how often, since), serving, successor
    (100, False, [(True, -math.inf, 0, 0), (True, -math.inf, 0, 0)], 1, 0),
    (100, False, [(True, -math.inf, 0, 98), (True, -math.inf, 0, 0)], 1, None),  # not stable yet
    (100, False, [(True, -math.inf, 0, 0), (True, -math.inf, 0, 0)], 0, None),  # a later one is no better
    (100, False, [(True, 110, 1, 0), (True, -math.inf, 0, 0)], 1, None),
    (100, False, [(True, 90, 1, 0), (True, -math.inf, 0, 0)], 1, 0),
    (100, True, [(True, 90, 1, 0), (True, -math.inf, 0, 0)], 1, None),  # between requests
    (100, True, [(True, 30, 1, 0), (True, -math.inf, 0, 0)], 1, 0),  # or 60 s later
    (100, True, [(False, 110, 1, 0), (True, 120, 1, 0), (True, -math.inf, 0, 0)], 0, 2),
    (100, True, [(True, 120, 1, 0), (False, 110, 1, 0), (True, 110, 2, 0)], 1, 2),  # the soonest of those avoided
    (100, True, [(True, 90, 1, 0), (False, 110, 1, 0), (True, -math.inf, 0, 0)], 1, 2),  # even if their time is over
    (100, True, [(False, -math.inf, 0, 0), (False, -math.inf, 0, 0)], 1, None),
]


@pytest.mark.parametrize(("now_s", "busy", "stations", "at", "chosen"), CHOICES)
def test_which_station_takes_over(
    now_s: float, busy: bool, stations: list[tuple[bool, float, int, float]], at: int, chosen: int | None
) -> None:
    states = [
        StationState("", None, Welcome if greeted else None, avoided_s=until_s, avoided=times, since_s=since_s)  # type: ignore[arg-type]
        for greeted, until_s, times, since_s in stations
    ]
    assert successor(states, at, now_s, 3.0, 60.0 if busy else 0.0) == chosen


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


def test_a_station_that_is_left_again_and_again_is_left_for_longer() -> None:
    """The request that another one served stood still for half of each two timeouts."""
    found, now_s = StationState("tcp://x:1", None), 100.0  # type: ignore[arg-type]
    for times in (1, 2, 4, 8):
        found.avoid(now_s, 60.0)
        assert found.avoided_s == now_s + 60.0 * times
        now_s = found.avoided_s
    for _ in range(2000):
        found.avoid(now_s, 60.0)
    assert found.avoided_s == now_s + 60.0 * 2**6
