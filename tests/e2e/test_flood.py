"""A flood on a base station process: its memory stays bounded, and afterwards it is what it was."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
import zmq.asyncio

from testbed.channel.frames import parts
from testbed.channel.link import new_identity
from testbed.config import ServeConfig
from testbed.experiments.runs.processes import base_station
from testbed.protocols import protocol
from testbed.protocols.codec import encode
from testbed.protocols.messages import Draft, Open
from testbed.synthetic import next_token
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from tests.support.stations import VOCAB, client
from tests.support.zmtp import connect, frame

FLOODERS, MESSAGES = 12, 750
IDLE_S = 2.0
PROMPT = [1, 2, 3]


def resident_mb(pid: int) -> float:
    """Memory of a process that is in RAM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) / 1024


def own(length: int) -> list[int]:
    ids = list(PROMPT)
    for _ in range(length):
        ids.append(next_token(ids, VOCAB, 0))
    return ids[len(PROMPT) :]


async def decode(address: str) -> list[int]:
    async with client(address, timeout_s=60.0) as ue:
        session = DecodingSession(ue, SyntheticDrafter(vocab_size=VOCAB, alpha=0.8), protocol("sh"), FixedWindow(4))
        return (await session.decode(PROMPT, 40, ())).token_ids


async def went(socket: zmq.asyncio.Socket, frames: Any) -> bool:
    """Whether a message is taken; one that does not read is not answered for ever."""
    try:
        await asyncio.wait_for(socket.send_multipart(parts(frames)), 5)
    except asyncio.TimeoutError:
        return False
    return True


async def flood(address: str, reads: bool) -> int:
    """Send sessions, long prompts, windows and large useless frames as fast as possible; returns messages sent."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.ROUTING_ID, new_identity())
    if not reads:
        socket.setsockopt(zmq.RCVHWM, 1)
    socket.connect(address)
    prompt, large = np.ones(4000, np.int32), [b"\xff", bytes(2**20)]
    opening = Open(session=0, protocol="split", threshold=0.0, hidden_size=64, temperature=1.0)
    sent = 0
    try:
        for number in range(MESSAGES):
            messages = [
                encode(Open(**{**{f: getattr(opening, f) for f in opening.__struct_fields__}, "session": number}),
                       {"ids": prompt}),
                encode(Draft(session=number, round=0, base_len=4000), {"ids": prompt[:64]}),
            ]  # fmt: skip
            if number % 20 == 0:
                messages.append(large)
            for frames in messages:
                if not await went(socket, frames):
                    return sent
                sent += 1
            if reads and number % 8 == 0:
                while await socket.poll(0):
                    await socket.recv_multipart()
    finally:
        socket.close(0)
        context.term()
    return sent


async def watch(pid: int, highest: list[float]) -> None:
    while True:
        highest.append(resident_mb(pid))
        await asyncio.sleep(0.1)


@pytest.mark.slow
def test_a_flood_is_borne_and_forgotten() -> None:
    config = ServeConfig(
        engine="synthetic", bind="tcp://127.0.0.1:*", max_sessions=200, max_sessions_per_ue=40, max_pending=32,
        idle_s=IDLE_S,
    )  # fmt: skip
    with base_station(config) as ready:
        bs, pid = ready["bind"], ready["pid"]

        async def borne() -> tuple[float, float, int]:
            highest: list[float] = []
            watching = asyncio.create_task(watch(pid, highest))
            sent = await asyncio.gather(*(flood(bs, reads=i % 2 == 0) for i in range(FLOODERS)))
            assert await decode(bs) == own(40)
            await asyncio.sleep(2 * IDLE_S)
            watching.cancel()
            assert await decode(bs) == own(40)
            return max(highest), resident_mb(pid), sum(sent)

        async def run() -> tuple[float, list[tuple[float, float, int]]]:
            for _ in range(3):
                assert await decode(bs) == own(40)
            return resident_mb(pid), [await borne() for _ in range(2)]

        before, floods = asyncio.run(run())
        for highest, after, sent in floods:
            print(f"\n{sent} messages; memory before {before:.1f} MB, at most {highest:.1f}, after {after:.1f}")
            assert sent > 5_000
            assert highest < before + 500
        (_, first, _), (_, second, _) = floods
        assert second < 1.15 * first  # what the allocator keeps of a flood, the next one uses again


def pour(connected: socket.socket, piece: bytes, most_bytes: int) -> int:
    """Send the same over and over; returns how much of so many bytes went before the connection ended."""
    sent = 0
    with contextlib.suppress(OSError):
        while sent < most_bytes:
            connected.sendall(piece)
            sent += len(piece)
    return sent


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what connections have received")
def test_messages_without_an_end_are_cut_off() -> None:
    """A peer that speaks the wire protocol by hand, with frames that cost more memory than they take on the wire."""
    most_bytes = 4 * 2**30
    with base_station(ServeConfig(engine="synthetic", bind="tcp://127.0.0.1:*", max_window=8)) as ready:
        bs, pid = ready["bind"], ready["pid"]

        async def run() -> tuple[float, list[int], float, float]:
            assert await decode(bs) == own(40)
            before, highest = resident_mb(pid), list[float]()
            watching, sent = asyncio.create_task(watch(pid, highest)), list[int]()
            for size in (0, 100_000):  # empty ones cost libzmq thirty times what they take on the wire
                piece = frame(bytes(size), more=True) * (2**18 // (size + 9))
                with contextlib.closing(await asyncio.to_thread(connect, bs, b"endless")) as liar:
                    liar.settimeout(1.0)
                    sent.append(await asyncio.to_thread(pour, liar, piece, most_bytes))
            assert await decode(bs) == own(40)
            deadline_s = time.monotonic() + 20
            while (after := resident_mb(pid)) > 1.1 * before and time.monotonic() < deadline_s:
                await asyncio.sleep(0.2)
            watching.cancel()
            return before, sent, max(highest), after

        before, sent, highest, after = asyncio.run(run())
        print(f"\n{sent} bytes were sent; memory before {before:.1f} MB, at most {highest:.1f}, after {after:.1f}")
        assert max(sent) < most_bytes
        assert highest < before + 1500
        assert after < 1.1 * before
