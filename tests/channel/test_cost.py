"""Costs of a round against values computed by hand and WISV's Table I."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from testbed.channel.cost import Overheads, Sizes, id_bits, position_bits
from testbed.channel.csi import Csi
from testbed.cli.channel.group import app
from testbed.errors import BadInput
from testbed.protocols import protocol

LLAMA = Sizes(hidden_size=2048, id_bits=17, vocab_size=128256)
LINK = Csi(20.0, 40.0, 50.0, 0.2, 0.5)


def test_bits_of_ids_and_positions() -> None:
    assert [id_bits(v) for v in (1, 2, 3, 65536, 65537, 128256)] == [1, 1, 2, 16, 17, 17]
    assert [position_bits(k) for k in (1, 2, 3, 4, 7, 8, 64)] == [1, 2, 2, 3, 3, 4, 7]


@pytest.mark.parametrize(
    ("kind", "queried", "up_bits", "down_bits", "trips"),
    [
        # K = 10: 10·17 + 100 up; ceil(log2 11) + 17 + 30 = 51 down
        ("greedy", 0, 270, 51, 1),
        # 10·(17 + 16·128256) + 100
        ("rejection", 0, 20_521_230, 51, 1),
        # 10·(17 + 2048·16) + 100
        ("fh", 0, 327_950, 51, 1),
        ("sh", 0, 270, 51, 1),
        # 170 + 100, then 3·32768 + 100; 3·4 + 30, then 51
        ("sh", 3, 98_674, 93, 2),
        # 10·(17 + 16) + 100; 51, and 16·128256 more where something was rejected
        ("split", 0, 430, 51, 1),
        ("split", 1, 430, 2_052_147, 1),
    ],
)
def test_a_round_by_hand(kind: str, queried: int, up_bits: int, down_bits: int, trips: int) -> None:
    found = protocol(kind).cost(10, queried, LLAMA, LINK, Overheads(100, 30))
    assert (found.uplink_bits, found.downlink_bits, found.round_trips) == (up_bits, down_bits, trips)
    # 20 Mbit/s of which 0.8 passes: 16e6 bit/s; 40 Mbit/s of which half passes: 20e6 bit/s
    assert found.latency_s == pytest.approx(up_bits / 16e6 + down_bits / 20e6 + trips * 0.05)


@given(
    st.sampled_from(["greedy", "rejection", "fh", "sh"]), st.integers(1, 256), st.integers(0, 256), st.floats(0.1, 1e4),
    st.floats(0.1, 1e4), st.floats(0, 0.9), st.floats(0, 1e3),
)  # fmt: skip
def test_the_command_line_agrees(
    kind: str, window: int, queried: int, up: float, down: float, per: float, rtt_ms: float
) -> None:
    queried = min(queried, window) if kind == "sh" else 0
    done = CliRunner().invoke(app, [
        "cost", "--protocol", kind, "--window", str(window), "--vocab", "32000", "--hidden", "96", "--queried",
        str(queried), "--uplink-mbps", str(up), "--downlink-mbps", str(down), "--per-up", str(per), "--per-down",
        str(per), "--rtt-ms", str(rtt_ms), "--overhead-up-bits", "7", "--overhead-down-bits", "9", "--json",
    ])  # fmt: skip
    said = json.loads(done.stdout)
    exchanges = 2 if kind == "sh" and queried else 1
    up_bits = 15 * window + 7 * exchanges
    up_bits += {"greedy": 0, "rejection": 16 * 32000 * window, "fh": 1536 * window, "sh": 1536 * queried}[kind]
    down_bits = len(f"{window:b}") + 15 + 9 * exchanges + (queried * len(f"{window:b}") if kind == "sh" else 0)
    assert (said["uplink_bits"], said["downlink_bits"], said["round_trips"]) == (up_bits, down_bits, exchanges)
    seconds = up_bits / (up * 1e6 * (1 - per)) + down_bits / (down * 1e6 * (1 - per)) + exchanges * rtt_ms / 1e3
    assert said["latency_s"] == pytest.approx(seconds)


def test_quantised_states_take_their_bits_and_what_is_said_of_their_scale() -> None:
    common = ["cost", "--protocol", "fh", "--window", "10", "--hidden", "2048", "--hidden-bits", "8", "--json"]
    bare = json.loads(CliRunner().invoke(app, common).stdout)
    scaled = json.loads(CliRunner().invoke(app, [*common, "--scale-bits", "16"]).stdout)
    assert bare["uplink_bits"] == 10 * (17 + 2048 * 8)
    assert scaled["uplink_bits"] == 10 * (17 + 2048 * 8 + 16)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("carrier-pigeon", 8, 0, LLAMA), "known: greedy, fh, sh, rejection, split"),
        (("greedy", 0, 0, LLAMA), "1 token or more"),
        (("sh", 4, 5, LLAMA), "0 to K queried"),
        (("fh", 4, 0, Sizes(-1)), "not be negative"),
        (("fh", 4, 0, Sizes(1, scale_bits=-1)), "not be negative"),
        (("greedy", 4, 0, Sizes(1, 0)), "1 bit or more"),
    ],
)
def test_what_has_no_cost(arguments: tuple[str, int, int, Sizes], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        protocol(arguments[0]).cost(*arguments[1:], LINK)
