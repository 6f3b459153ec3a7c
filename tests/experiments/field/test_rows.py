"""Rows of a field run computed by hand for a few prompts; its device profile against a virtual run with known times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.channel.spec import ChannelSpec
from testbed.channel.trace import Trace
from testbed.errors import TestbedError
from testbed.experiments.field.log import FieldLog
from testbed.experiments.field.order import FieldCell
from testbed.experiments.field.plan import FieldPlan, Method, Place
from testbed.experiments.field.profile import by_rounds, by_traces, field_profile
from testbed.experiments.field.report import _standstills
from testbed.experiments.field.rows import agreement, field_rows
from testbed.experiments.field.samples import samples
from testbed.experiments.inputs.formats import Example
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.experiments.results import directory as results
from tests.support.virtual import decode, synthetic_models

PLAN = FieldPlan(
    places=(Place(name="near", distance_m=2.0),),
    methods=(Method(name="greedy", protocol="greedy"), Method(name="wisv", protocol="fh", threshold=0.5)),
    judge="head",
    repeats=2,
    prompts=2,
)
LATENCY_S = {("greedy", "field"): [4.0, 2.0, 3.0, 3.0], ("wisv", "field"): [2.0, 1.0, 1.5, 1.5],
             ("greedy", "virtual"): [4.4, 2.2, 3.3, 3.3], ("wisv", "virtual"): [1.0, 1.0, 2.0, 2.0]}  # fmt: skip
DRAFT = LinearDraft(per_token_s=0.004, base_s=0.003, prefill_per_token_s=0.0005)
VERIFY = LinearVerify(base_s=0.02, per_new_s=0.0015)
KNOWN = Profile(name="known", about="", source="", draft=DRAFT, verify=VERIFY, stack_s=0.0015)


def made() -> list[dict[str, Any]]:
    return [
        {
            "place": "near", "distance_m": 2.0, "repeat": request // 2, "setting": setting, "way": way,
            "request": request, "tokens": 10, "rounds": 5, "latency_s": latency_s, "link_s": 0.1, "uplink_bytes": 9,
            "energy_j": 5.0 if way == "field" else None,
            "temp_c": 50.0 + request if way == "field" else None, "throttled": request if way == "field" else None,
            "kept": 3 * request if setting == "wisv" else 0, "judged": 6 if setting == "wisv" else 5,
            "right": request != 3, "token_ids": [request, way == "virtual" and request == 0],
        }
        for (setting, way), values in LATENCY_S.items()
        for request, latency_s in enumerate(values)
    ]  # fmt: skip


def test_rows_are_what_they_are_by_hand(tmp_path: Path) -> None:
    rows = {(row["setting"], row["way"]): row for row in field_rows(FieldLog(tmp_path, PLAN), made())}
    assert set(rows) == set(LATENCY_S)
    greedy, wisv = rows["greedy", "field"], rows["wisv", "field"]
    assert (greedy["latency_s"], wisv["latency_s"]) == (3.0, 1.5)
    assert greedy["gain"] is None
    gains = [wisv[f"gain{end}"] for end in ("", "_low", "_high")]
    assert gains == pytest.approx([2.0] * 3)  # every prompt is twice as fast: paired
    assert wisv["permissiveness"] == 18 / 24 and greedy["permissiveness"] is None
    assert wisv["permissiveness_low"] < 18 / 24 < wisv["permissiveness_high"]
    assert greedy["latency_s_low"] < 3.0 < greedy["latency_s_high"]
    assert (wisv["requests"], wisv["repeats"], wisv["aal"], wisv["accuracy"]) == (4, 2, 2.0, 0.75)
    assert greedy["energy_per_token_j"] == 0.5
    virtual = rows["greedy", "virtual"]
    assert virtual["energy_per_token_j"] is None
    assert (greedy["temp_c_max"], greedy["throttled_rounds"]) == (53.0, 6)
    assert (virtual["temp_c_max"], virtual["throttled_rounds"]) == (None, None)
    assert virtual["differs"] == pytest.approx(0.1) and greedy["differs"] is None
    assert virtual["same_outputs"] == 0.75 and greedy["same_outputs"] is None
    assert agreement(list(rows.values())) == {"virtual": pytest.approx(0.1)}


def test_only_prompts_that_all_have_count(tmp_path: Path) -> None:
    less = [row for row in made() if not (row["way"] == "virtual" and row["request"] == 0)]
    rows = field_rows(FieldLog(tmp_path, PLAN), less)
    assert {row["requests"] for row in rows} == {3}
    assert rows[0]["latency_s"] == pytest.approx(8 / 3)


def test_a_prompts_judged_mismatches_are_those_kept_and_the_one_that_ended_a_window() -> None:
    rounds = [
        {"request": 0, "kept": kept, "accepted": accepted, "drafted": 8, "link_s": 0.01, "energy_j": 1.0}
        for kept, accepted in ((0, 8), (2, 8), (1, 5), (0, 0))
    ]
    request = {
        "request": 0,
        "tokens": 9,
        "rounds": 4,
        "latency_s": 1.0,
        "uplink_bytes": 1,
        "text": "#### 7",
        "token_ids": [1],
    }
    found = samples(PLAN, FieldCell("near", 1, "wisv"), "field", [request], rounds, [Example("", "7")] * 4)
    assert (found[0]["kept"], found[0]["judged"], found[0]["request"], found[0]["right"]) == (3, 5, 2, True)
    assert found[0]["link_s"] == pytest.approx(0.04)


def rounds_at(place: str, channel: ChannelSpec, kind: str) -> list[dict[str, Any]]:
    outcomes = decode(channel, KNOWN, synthetic_models(), methods=(kind,), max_tokens=70)
    return [{**row, "place": place, "origin_s": 0.0} for row in results.round_rows(outcomes)]


@pytest.mark.parametrize("kind", ["greedy", "fh", "sh"])
def test_a_profile_is_found_again_in_the_rounds_that_it_made(kind: str) -> None:
    links = {name: ChannelSpec(kind="virtual", uplink_mbps=up, downlink_mbps=10, rtt_ms=rtt)
             for name, up, rtt in (("near", 20, 10), ("far", 2, 30))}  # fmt: skip
    rounds = [row for name, link in links.items() for row in rounds_at(name, link, kind)]
    zero = np.zeros(1)
    traces = {
        name: Trace(zero, zero + link.uplink_mbps, zero + link.downlink_mbps, zero + link.rtt_ms, zero, zero, zero)
        for name, link in links.items()
    }
    for expected in (by_rounds, by_traces(traces)):
        near, far = ([row for row in rounds if row["place"] == place] for place in links)
        found = field_profile(near, far, expected, None)
        assert isinstance(found.draft, LinearDraft) and isinstance(found.verify, LinearVerify)
        assert found.draft.window_s(8, 40) == pytest.approx(DRAFT.window_s(8, 40), rel=1e-6)
        assert found.draft.prefill_per_token_s == pytest.approx(0.0005, rel=1e-3)
        assert found.verify.base_s == pytest.approx(0.02, rel=1e-3)
        assert found.verify.per_new_s == pytest.approx(0.0015, rel=1e-3)
        assert found.stack_s == pytest.approx(0.0015, rel=0.02)
        assert f"{len(near)} rounds at near" in found.source and f"{len(far)} at far" in found.source
    with pytest.raises(TestbedError):
        field_profile([], rounds, by_rounds, None)


def test_what_an_outage_holds_up_waits_for_its_end() -> None:
    zero = np.zeros(2)
    trace = Trace(np.array([0.0, 1.0]), np.array([8.0, 0.0]), np.full(2, 100.0), np.full(2, 10.0), zero, zero, zero)
    row = {"place": "near", "protocol": "sh", "queried": 0, "sent_s": 100.9, "origin_s": 100.0, "downlink_bytes": 0}
    expected = by_traces({"near": trace})
    assert expected({**row, "uplink_bytes": 50_000}) == pytest.approx(0.05 + 0.01)
    assert expected({**row, "uplink_bytes": 200_000}) == pytest.approx(1.2 + 0.01)  # 0.1 s, a second of nothing, 0.1 s
    assert expected({**row, "uplink_bytes": 50_000, "queried": 2}) == pytest.approx(0.05 + 0.02)


def test_a_ue_that_stood_still_is_noted(tmp_path: Path) -> None:
    """Its method was six times slower than another one, without a word."""
    log, cells = FieldLog(tmp_path, PLAN), [FieldCell("near", n, "sh") for n in range(6)]
    for cell, still in zip(cells, ["2.5", "0.5", "1e400", '"x"', "1" * 300], strict=False):
        log.cell(cell).mkdir(parents=True)
        (log.cell(cell) / "summary.json").write_text(f'{{"schema": 1, "rows": [], "still_s": {still}}}')
    assert list(_standstills(log, cells)) == ["the UE stood still for 2.5 s in near/0-sh; its times include that"]
