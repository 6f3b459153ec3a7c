"""Failover of a UE between base stations on real sockets: serving station, sessions, refusals."""

from __future__ import annotations

import asyncio
import math
import sys
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct

from testbed.bs.judging.head import BudgetJudge
from testbed.bs.server import BaseStation
from testbed.clock import within
from testbed.errors import LinkTimeout, ModelError, ProtocolError
from testbed.protocols import TARGET_ONLY
from testbed.protocols.codec import Packet, encode
from testbed.protocols.messages import Busy, Message, Open, Ping, Resync, Verdict
from testbed.protocols.methods import Ahead
from testbed.ue import failover
from testbed.ue.records import RequestRecord, RoundRecord
from testbed.ue.waiting.stations import StationState
from tests.support.heads import random_head
from tests.support.roaming import PROMPT, SILENCE_S, decode, intercept, own, roaming, site, until
from tests.support.stations import VOCAB
from tests.support.zmtp import frame


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


async def test_a_station_that_takes_less_is_left_beside_requests_that_it_takes() -> None:
    """Requests that no longer fit failed for as long as others went on."""
    async with site() as where, roaming(where) as client:
        shorter = [asyncio.create_task(decode(client, "greedy", 200)) for _ in range(3)]
        await until(lambda: where.rounds()[0] > 6)
        first = where.bss[0]._intake
        first.offer = replace(first.offer, max_positions=250)
        longer = own(PROMPT, 300)
        assert (await decode(client, "greedy", 20, prompt=longer)).token_ids == own(longer, 20)
        for request in shorter:
            assert (await request).token_ids == own(PROMPT, 200)
        assert client.moves == [where.addresses[1]]


@pytest.mark.parametrize("method", ["greedy", "sh", TARGET_ONLY])
async def test_a_refused_request_does_not_hold_up_the_others(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The station is asked what it takes now, which ended their sessions: each was opened again, some after 2 s."""
    async with site() as where, roaming(where) as client:
        openings: list[Message] = []

        def look(message: Message) -> bool:
            if isinstance(message, Open) and (message.protocol, message.max_tokens) != (TARGET_ONLY, 4):
                openings.append(message)
            return False

        intercept(client._stations[0], look, monkeypatch)
        rounds: list[RoundRecord] = []
        other = asyncio.create_task(decode(client, method, 300, rounds.append))
        await until(lambda: len(rounds) > 3)
        refused = 0
        while not other.done():
            with pytest.raises(ProtocolError, match="token ids must lie in"):
                await decode(client, TARGET_ONLY, 4, prompt=[VOCAB + 5])
            refused += 1
        assert (await other).token_ids == own(PROMPT, 300)
        assert refused > 3 and len(openings) == 1 and client.moves == []


async def test_a_station_that_takes_less_is_left_at_once_whatever_it_refused_before() -> None:
    """Each refusal made the time longer until it was asked again, up to 64 times `--timeout`."""
    async with site() as where, roaming(where) as client:
        other = asyncio.create_task(decode(client, "greedy", 400))
        await until(lambda: where.rounds()[0] > 3)
        for _ in range(3):
            with pytest.raises(ProtocolError, match="token ids must lie in"):
                await decode(client, TARGET_ONLY, 4, prompt=[VOCAB + 5])
        first = where.bss[0]._intake
        first.offer = replace(first.offer, max_positions=500)
        longer = own(PROMPT, 600)
        assert (await decode(client, "greedy", 20, prompt=longer)).token_ids == own(longer, 20)
        assert (await other).token_ids == own(PROMPT, 400)
        assert client.moves == [where.addresses[1]]


async def test_a_round_trip_longer_than_between_two_probes_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused request made the UE leave one station after the other, until it timed out."""
    async with site() as where, roaming(where) as client:
        sending: list[asyncio.Task[Any]] = []
        for state in client._stations:

            async def later(message: Message, send: Any = state.link.send) -> None:
                await asyncio.sleep(2 * failover.PROBE_S)
                await send(encode(message))

            def look(message: Message, later: Any = later) -> bool:
                if held := isinstance(message, Ping) and bool(message.served):
                    sending.append(asyncio.create_task(later(message)))
                return held

            intercept(state, look, monkeypatch)
        with pytest.raises(ProtocolError, match="token ids must lie in"):
            await decode(client, TARGET_ONLY, 4, prompt=[VOCAB + 5])
        assert sending and client.moves == []


async def test_what_a_station_sent_before_it_was_left_is_dropped() -> None:
    """Sessions read it one by one, opened again each time, and ignored the answers of the next station."""
    async with site() as where, roaming(where) as client:
        sessions = [client.new_session() for _ in range(2)]
        for _ in range(30):
            client._deliver(Packet(Busy(session=sessions[0], reason="full", retry_s=0.0), {}, 0))
        verdict = Verdict(
            session=sessions[0], round=0, accepted=0, token=1, candidates=0, queried=0, gap=0.0, batch_size=1,
            queue_s=0.0, verify_s=0.0, judge_s=0.0, bs_s=0.0,
        )  # fmt: skip
        client._deliver(Packet(verdict, {}, 0))
        client._serve_from(1)
        assert (await client.receive(sessions[0], 1.0)).message == verdict
        assert isinstance((await client.receive(sessions[0], 1.0)).message, Resync)
        for session in sessions:
            with pytest.raises(LinkTimeout):
                await client.receive(session, 0.05)


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


def test_a_long_upload_is_no_silence() -> None:
    found = StationState("tcp://x:1", None)  # type: ignore[arg-type]
    found.hear(100.0)
    assert found.silent(105.1, 5.0) and not found.silent(104.9, 5.0)
    found.sent_bytes = 10**6
    assert not found.silent(112.9, 5.0) and found.silent(113.1, 5.0)
    found.hear(113.2)
    assert found.sent_bytes == 0 and found.since_s == 100.0
