"""Several cells with processes: UEs that are handed over keep their output."""

from __future__ import annotations

import asyncio
import multiprocessing
from typing import Any

import msgspec
import pytest

from testbed.bs.sessions import SessionTable
from testbed.channel.emulate import endpoint
from testbed.channel.link_model import Direction, constant
from testbed.channel.proxy import Proxy
from testbed.channel.radio.config import RadioConfig
from testbed.channel.radio.model import ModelSource
from testbed.clock import WallClock
from testbed.errors import BadInput
from testbed.experiments.cell.config import CellConfig, UeGroup
from testbed.experiments.cell.real.run import run_cell_really
from testbed.experiments.cell.rows import document
from testbed.experiments.cell.run import run_cell
from testbed.experiments.cell.several.moving import MovingClient
from testbed.experiments.cell.several.tally import RoamingTally
from testbed.experiments.cell.stations import CellsConfig, Migration, Station
from testbed.protocols import protocol
from testbed.synthetic import next_token
from testbed.tasks import cancel
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.records import RoundRecord
from testbed.ue.session import DecodingSession
from testbed.ue.windows.fixed import FixedWindow
from tests.support.stations import VOCAB, station

LONG = {"path_m": ((0, 5), (120, 5)), "speed_mps": 20.0, "response": (250, 250), "window": 4}
"""From the first of three cells to the third within a response, at up to 40 tokens per second."""
STATIONS = tuple(Station(name=name, at_m=(x, 0)) for name, x in (("west", 0), ("middle", 60), ("east", 120)))
CELL = CellConfig(
    seconds=18.0,
    warmup_s=0.0,
    radio=RadioConfig(source=ModelSource(shadowing_db=0)),
    cells=CellsConfig(stations=STATIONS),
    ues=(
        UeGroup(name="greedy", **LONG),
        UeGroup(name="ahead", lookahead=1, **LONG),
        UeGroup(name="stream", lookahead="stream", **LONG),
        UeGroup(name="bytes", traffic="bytes", message_bytes=1000, distance_m=(10, 20)),
    ),
)


@pytest.mark.slow
def test_processes_that_cross_three_cells_decode_without_loss() -> None:
    """Lossless, or it raises; handovers are those of virtual time."""
    run = run_cell_really(CELL)
    found, virtual = document(CELL, run), document(CELL, run_cell(CELL))
    moves = [[row["handovers_per_ue"] for row in one["rows"]] for one in (found, virtual)]
    assert moves[0] == moves[1] == [6, 6, 6, 0]
    for row, (_, (tally,)) in zip(found["rows"][:3], run.groups, strict=False):
        assert isinstance(tally, RoamingTally)
        assert row["responses"] >= 1 and row["output_tokens"] == 250
        assert set(tally.tokens_at) == {0, 1, 2}
        assert len(tally.interruptions_s) >= 2 and 0.05 <= row["interruption_s"] < 2
        assert min(tally.prefilled_again[cell] for cell in (1, 2)) > 50  # the prompt, and what was committed
    assert found["rows"][3]["messages"] > 100
    assert [cell["cell"] for cell in found["cells"]] == ["west", "middle", "east"]
    assert all(cell["passes"] > 0 and 0 < cell["uplink_utilisation"] < 1 for cell in found["cells"])


async def test_the_base_station_that_was_left_closes_the_sessions() -> None:
    ours, theirs = multiprocessing.Pipe()
    tables = [SessionTable(), SessionTable()]
    prompt, tokens = [1, 2, 3], 60
    async with station(sessions=tables[0]) as (_, first), station(sessions=tables[1]) as (_, second):
        clock = WallClock()
        tally = RoamingTally(clock, clock.time(), clock.time() + 100)
        proxy = Proxy(endpoint(first), lambda _: (Direction(constant()), Direction(constant())))
        address = f"tcp://127.0.0.1:{await proxy.start('127.0.0.1', 0)}"
        client = MovingClient(address, [first, second], theirs, tally, clock, 20.0)
        ours.send((0, False))
        await client.begin()
        following = asyncio.create_task(client.follow())
        await client.connect("", VOCAB)
        ends: list[int] = []

        def progress(record: RoundRecord) -> None:
            ends.append(record.base_len)
            if record.base_len > 20 >= ends[-2]:
                assert len(tables[0]) == 1
                proxy.hand_over(endpoint(second))
                ours.send(None)
                ours.send((1, True))

        session = DecodingSession(
            client, SyntheticDrafter(vocab_size=VOCAB, alpha=0.7), protocol("greedy"), FixedWindow(3)
        )
        record = await session.decode(prompt, tokens, (), progress)
        for _ in range(500):
            if not len(tables[0]):
                break
            await asyncio.sleep(0.01)
        assert not len(tables[0]) and tally.arrivals.total() == 1 and tally.prefilled_again[1] > 20
        await cancel(following)
        await client.close()
        await proxy.close()
    expected = list(prompt)
    for _ in range(tokens):
        expected.append(next_token(expected, VOCAB, 0))
    assert record.token_ids == expected[3:]
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("cells", "says"),
    [({"migration": Migration(kind="move")}, "moved in virtual time alone"),
     ({"stations": (*STATIONS[:2], Station(name="far", at_m=(90, 90), down_s=(1, 2)))}, "do not fail"),
     ({"stations": (*STATIONS[:2], Station(name="far", at_m=(90, 90), azimuths_deg=(0, 90)))}, "without sectors")],
)  # fmt: skip
def test_what_only_virtual_time_has_is_refused(cells: dict[str, Any], says: str) -> None:
    config = msgspec.structs.replace(CELL, cells=CellsConfig(**{"stations": STATIONS} | cells))
    with pytest.raises(BadInput, match=says):
        run_cell_really(config)


def test_channel_states_are_refused() -> None:
    with pytest.raises(BadInput, match=r"group known: .* csi none"):
        run_cell_really(msgspec.structs.replace(CELL, ues=(UeGroup(name="known", csi="oracle", **LONG),)))
