"""Bandwidth shares in the proxy, the cell and virtual time: uploads end at the planned times."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.channel.emulate import relay
from testbed.channel.radio.cell import Cell, Mobility
from testbed.channel.radio.fading import PathLoss, SmallScale
from testbed.channel.radio.shares import read_shares, uplinks_mbps
from testbed.channel.spec import ChannelSpec, channel_text, parse_channel
from testbed.cli.channel.fading import _shares
from testbed.errors import BadInput
from testbed.experiments.runs.processes import proxy
from testbed.optim.tasks import Problem, Task, allocation
from tests.support.refusals import refuse

METRES, INPUTS = (40.0, 150.0, 390.0), (300, 120, 200)
LINKS = PathLoss().gains(np.array(METRES))


def problem(bandwidth_hz: float) -> Problem:
    """Three UEs of a cell at very different distances."""
    tasks = [Task(input_tokens=n, power_w=0.2, gain=float(g)) for n, g in zip(INPUTS, LINKS, strict=True)]
    return Problem(bandwidth_hz=bandwidth_hz, noise_w=2.5e-14, tasks=tuple(tasks), bits_per_token=8000.0)


def write(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document))
    return path


@pytest.fixture(params=["optimal", "uniform"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, dict[str, Any]]:
    document = allocation(problem(1e6), request.param)
    return request.param, write(tmp_path / "shares.json", document), document


def expect(policy: str, times: list[float], communication_s: float, rel: float) -> None:
    """All uploads end together, or the last one at the modelled time and the others long before."""
    assert max(times) == pytest.approx(communication_s, rel=rel)
    if policy == "optimal":
        assert min(times) == pytest.approx(communication_s, rel=rel)
    else:
        assert min(times) < 0.7 * communication_s


def test_in_virtual_time(shared: tuple[str, Path, dict[str, Any]]) -> None:
    policy, path, document = shared
    spec = parse_channel(f"kind=virtual,shares={path}")
    assert spec.ues == 3
    times = [spec.path(ue)[0].admit(0.0, n * 1000) for ue, n in enumerate(INPUTS)]
    expect(policy, times, document["communication_s"], 1e-9)


def test_in_a_cell_whose_traces_take_them(shared: tuple[str, Path, dict[str, Any]]) -> None:
    policy, path, document = shared
    cell = Cell(bandwidth_hz=1e6, noise_w=2.5e-14, small_scale=SmallScale("none"))
    traces = cell.traces([Mobility(metres) for metres in METRES], 10.0, 0.1, 0, read_shares(path))
    times = [8000 * n / (1e6 * trace.uplink_mbps[0]) for n, trace in zip(INPUTS, traces, strict=True)]
    expect(policy, times, document["communication_s"], 1e-6)
    assert _shares(str(path), 3) == read_shares(path)


async def upload(listens: list[str], arrivals: dict[int, float], done: asyncio.Event) -> list[float]:
    """Send every UE's input to its address; returns the seconds until each has arrived."""
    loop = asyncio.get_running_loop()
    start_s = loop.time()

    async def send(ue: int) -> None:
        host, port = listens[ue].removeprefix("tcp://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(bytes([ue]) * (INPUTS[ue] * 1000))
        writer.write_eof()
        await done.wait()
        writer.close()

    await asyncio.gather(*(send(ue) for ue in range(len(listens))))
    return [arrivals[ue] - start_s for ue in range(len(listens))]


async def through_the_relay(path: Path) -> list[float]:
    arrivals: dict[int, float] = {}
    done = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(-1)
        assert len(set(data)) == 1 and len(data) == INPUTS[data[0]] * 1000
        arrivals[data[0]] = asyncio.get_running_loop().time()
        if len(arrivals) == len(INPUTS):
            done.set()
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with proxy(ChannelSpec(kind="proxy", shares=str(path)), f"tcp://127.0.0.1:{port}") as ready:
        assert len(set(ready["listens"])) == 3 and ready["listen"] == ready["listens"][0]
        times = await asyncio.wait_for(upload(ready["listens"], arrivals, done), 60)
    server.close()
    await server.wait_closed()
    return times


def test_through_the_relay(shared: tuple[str, Path, dict[str, Any]]) -> None:
    policy, path, document = shared
    times = asyncio.run(through_the_relay(path))
    assert min(times) > 0.25 * document["communication_s"]
    expect(policy, times, document["communication_s"], 0.25)


def test_rates_come_from_the_file_or_from_a_whole(tmp_path: Path) -> None:
    document = allocation(problem(1e6))
    path = write(tmp_path / "shares.json", document)
    assert uplinks_mbps(path) == tuple(document["rates_mbps"])
    assert uplinks_mbps(path, 10.0) == pytest.approx([10 * share for share in document["bandwidth"]])
    del document["rates_mbps"]
    path = write(tmp_path / "bare.json", document)
    refuse(lambda: uplinks_mbps(path), BadInput, "has no rates_mbps", "uplink_mbps")
    assert sum(uplinks_mbps(path, 10.0)) == pytest.approx(10)


def test_specifications_with_shares(tmp_path: Path) -> None:
    path = write(tmp_path / "shares.json", {"bandwidth": [0.25, 0.75]})
    spec = parse_channel(f"kind=proxy,uplink_mbps=8,rtt_ms=4,shares={path}")
    assert parse_channel(channel_text(spec)) == spec
    assert [spec.of_ue(ue).uplink_mbps for ue in (0, 1)] == [2.0, 6.0]
    csi = spec.csi()
    assert csi is not None and csi.uplink_mbps == 2.0
    refuse(lambda: spec.of_ue(2), BadInput, "shares for 2 UEs, and none for UE 2")
    refuse(lambda: parse_channel(f"kind=tc,uplink_mbps=8,shares={path}"), BadInput, "kind=proxy or kind=virtual")
    refuse(lambda: relay(spec, "tcp://127.0.0.1:x", "tcp://127.0.0.1:1", lambda _: None), BadInput, "tcp://HOST:PORT")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "cannot read shares"),
        ("[0.5, 0.5]", "holds no shares"),
        ('{"bandwidth": []}', "bandwidth in"),
        ('{"bandwidth": "0.5"}', "must be positive numbers"),
        ('{"bandwidth": [0.5, -0.1]}', "must be positive numbers"),
        ('{"bandwidth": [0.5, true]}', "must be positive numbers"),
        ('{"bandwidth": [0.5, 0.6]}', "add up to 1.1, more than 1"),
        ('{"bandwidth": [0.5], "rates_mbps": [1, 2]}', "1 shares and 2 rates"),
    ],
)
def test_files_that_hold_no_shares(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "shares.json"
    path.write_text(content)
    refuse(lambda: uplinks_mbps(path), BadInput, words, "shares.json")
