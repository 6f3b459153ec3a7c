"""Loads whose UEs share a radio: capacity runs and ramps, against links without rate and against one another."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import BadInput
from testbed.experiments.capacity.config import CapacityConfig
from testbed.experiments.capacity.run import run_capacity
from testbed.experiments.capacity.systems import system_of
from testbed.experiments.capacity.tally import ALL, CapacityRun
from testbed.experiments.deployment.links import radio_section
from testbed.experiments.deployment.load import open_loop
from testbed.experiments.latency.virtual import VirtualBs
from testbed.experiments.latency.virtual_config import VirtualLoadConfig
from testbed.ue.windows.fixed import FixedWindow

CAPACITY = CapacityConfig(warmup_s=4.0, horizon_s=6.0, judged=20, judged_class=0, response=(20, 60), network_ms=0.0)


def radio(folder: Path, bandwidth_hz: float, slot_ms: float = 1.0) -> str:
    path = folder / f"{bandwidth_hz:g}.yaml"
    path.write_text(
        f"radio: {{bandwidth_hz: {bandwidth_hz}, slot_ms: {slot_ms}}}\nues: [{{name: a}}]\n", encoding="utf-8"
    )
    return str(path)


def ran(config: CapacityConfig, **more: object) -> CapacityRun:
    found = CapacityConfig(**{name: getattr(config, name) for name in config.__struct_fields__} | more)
    return run_capacity(found, system_of("fcfs-cache"), [4.0] * 12, 0, until=ALL)


def test_a_wide_radio_is_a_link_without_rate(tmp_path: Path) -> None:
    free = ran(CAPACITY)
    wide = ran(CAPACITY, radio=radio(tmp_path, 1e9, 0.05), protocol="fh", payload="wisv")
    assert wide.goodput_tps == pytest.approx(free.goodput_tps, rel=0.03)
    assert free.uplink_share is None and 0 < (wide.uplink_share or 0) < 0.1


def test_bytes_of_a_protocol_fill_a_radio_that_all_share(tmp_path: Path) -> None:
    narrow = radio(tmp_path, 2e6)
    greedy, fh = (ran(CAPACITY, radio=narrow, protocol=kind, payload="wisv") for kind in ("greedy", "fh"))
    assert (fh.uplink_share or 0) > 0.9 > 0.1 > (greedy.uplink_share or 1)
    assert fh.goodput_tps < 0.6 * greedy.goodput_tps
    bits = 8 * 2048 * 2  # of a hidden state in half precision
    most_tps = 2e6 * 2.0 / bits * 3.35 / 5  # 3.35 tokens come of 5 hidden states
    assert fh.goodput_tps == pytest.approx(most_tps, rel=0.15)


def test_a_load_on_a_shared_radio_waits_for_it(tmp_path: Path) -> None:
    def latency_s(**more: object) -> float:
        config = VirtualLoadConfig(ues=8, network_ms=0.0, **more)  # type: ignore[arg-type]
        bs = VirtualBs(config, 2.0, 16)
        requests = bs.requests([(0, 0.1 * i) for i in range(16)], 1)
        served, _ = bs.served(lambda: FixedWindow(4), 0.8, 1, requests, lambda fleet: open_loop(fleet, requests))
        return sum(seconds for _, seconds in served) / len(served)

    alone = latency_s()
    wide = latency_s(radio=radio(tmp_path, 1e9, 0.05), protocol="fh", payload="wisv")
    narrow = latency_s(radio=radio(tmp_path, 4e6), protocol="fh", payload="wisv")
    assert alone <= wide < 1.05 * alone and narrow > 2 * alone


def test_loads_that_cannot_be_run(tmp_path: Path) -> None:
    for more, words in (
        ({"protocol": "fh"}, "give a payload"),
        ({"payload": "nowhere"}, "no profile 'nowhere'"),
        ({"radio": str(tmp_path / "nowhere.yaml")}, "nowhere.yaml"),
    ):
        for kind in (CapacityConfig, VirtualLoadConfig):
            with pytest.raises(BadInput, match=words):
                kind(**more)
    with pytest.raises(BadInput, match="not both"):
        VirtualLoadConfig(radio=radio(tmp_path, 1e6), link="walk")
    (tmp_path / "no.yaml").write_text("ues: []\n", encoding="utf-8")
    with pytest.raises(BadInput, match="radio"):
        radio_section(str(tmp_path / "no.yaml"))
