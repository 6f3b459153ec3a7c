"""Which guarantees are given: by hand, by properties, and by a simulation in which those given are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.bs.scheduling.admission import Admission, GuaranteeKinds, Guarantees, RoundShape
from testbed.bs.scheduling.slo import Slo
from testbed.errors import BadInput
from testbed.optim.pass_time import Coefficients
from tests.support.devices import A100, CAP, KV_TOKENS, Simulation

SHAPE = RoundShape(new=3.0, cached=330.0, committed=2.41, draft_s=0.06, network_s=0.04)
"""Shape of rounds that a predictor ends early."""
GATE = Admission(coefficients=A100, max_requests=CAP, kv_tokens=KV_TOKENS)


def alike(counts: dict[float, int], shape: RoundShape = SHAPE) -> list[Guarantees]:
    """Guarantees of UEs with the same rounds, from their number by speed."""
    return [Guarantees(speed, count, shape) for speed, count in counts.items()]


COUNTS = st.dictionaries(st.sampled_from([2.0, 4.0, 6.0, 8.0]), st.integers(0, 60))


def test_utilisation_by_hand() -> None:
    gate = Admission(coefficients=Coefficients(a=0.001, b_compute=0.0, b_read=0.0, c=0.010), max_requests=10)
    shape = RoundShape(new=4, cached=100, committed=2.0, draft_s=0.1, network_s=0.05)
    # 10 UEs of 4 tok/s: 20 rounds a second, each 4 ms and a tenth of 10 ms.
    assert gate.utilisation(alike({4.0: 10}, shape)) == pytest.approx(20 * 0.005)
    assert gate.admissible(4.0, alike({4.0: 9}, shape), shape) == (True, 4.0, pytest.approx(0.1))


def test_a_round_that_drafting_and_the_link_take_whole_cannot_be_promised() -> None:
    slow = RoundShape(new=3.0, cached=330.0, committed=2.0, draft_s=0.2, network_s=0.06)
    # 2 tokens leave 250 ms at 8 tok/s, 333 ms at 6: the first is gone, the second leaves 73 ms.
    assert GATE.admissible(8.0, [], slow) == (False, 6.0, pytest.approx(4 * (0.00165 + A100.c / CAP), rel=0.05))
    assert GATE.admissible(50.0, [], slow)[:2] == (False, 6.0)
    hopeless = RoundShape(new=3.0, cached=330.0, committed=2.0, draft_s=2.0, network_s=0.06)
    assert GATE.admissible(2.0, [], hopeless)[:2] == (False, None)


@given(load=COUNTS, speed=st.sampled_from([2.0, 4.0, 6.0, 8.0]))
def test_the_answer_is_the_fastest_class_that_would_be_admitted(load: dict[float, int], speed: float) -> None:
    answer = GATE.admissible(speed, alike(load), SHAPE)
    slower = [s for s in GATE.classes if s <= speed and GATE.admissible(s, alike(load), SHAPE).admitted]
    assert answer.best_tps == max(slower, default=None)
    assert answer.admitted == (answer.best_tps == speed)


@given(load=COUNTS, more=COUNTS, speed=st.sampled_from([2.0, 8.0]))
def test_who_is_refused_is_refused_under_more_load_too(
    load: dict[float, int], more: dict[float, int], speed: float
) -> None:
    heavier = {s: load.get(s, 0) + more.get(s, 0) for s in GATE.classes}
    assert (
        GATE.admissible(speed, alike(load), SHAPE).admitted
        or not GATE.admissible(speed, alike(heavier), SHAPE).admitted
    )


def test_each_ue_takes_what_its_own_rounds_take() -> None:
    """Against the sum by hand: 20 rounds a second of 4 ms, and 66 of 10 ms, each with a tenth of 10 ms."""
    gate = Admission(coefficients=Coefficients(a=0.001, b_compute=0.0, b_read=0.0, c=0.010), max_requests=10)
    light = RoundShape(new=4, cached=100, committed=2.0, draft_s=0.1, network_s=0.05)
    heavy = RoundShape(new=10, cached=100, committed=1.0, draft_s=0.1, network_s=0.05)
    load = [Guarantees(4.0, 10, light), Guarantees(6.0, 11, heavy)]
    assert gate.utilisation(load) == pytest.approx(20 * 0.005 + 66 * 0.011)
    assert gate.admissible(4.0, load, light)[0] is False and gate.admissible(4.0, load[:1], light)[0] is True


def test_a_decision_looks_at_each_guarantee_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request beside 960 guarantees took 20 ms of the event loop: each class was compared with all of them."""
    looks: list[int] = []
    load_of = GuaranteeKinds.load
    monkeypatch.setattr(
        GuaranteeKinds, "load", lambda kinds, sessions: (looks.append(len(sessions)), load_of(kinds, sessions))[1]
    )
    gate = Admission(coefficients=A100, max_requests=CAP, classes=(8.0, 6.0, 4.0, 2.0))
    load = [Guarantees(0.01, 1, SHAPE) for _ in range(960)]
    assert gate.admissible(8.0, load, SHAPE).admitted
    assert looks == [960]


def test_the_times_that_another_ue_reports_refuse_nobody() -> None:
    liar = Guarantees(8.0, 1, RoundShape(new=3.0, cached=330.0, committed=2.41, draft_s=60.0, network_s=60.0))
    assert GATE.admissible(8.0, [liar], SHAPE, SHAPE).admitted
    assert not GATE.admissible(8.0, [], liar.shape, SHAPE).admitted  # itself cannot be served at this speed


@pytest.mark.parametrize(
    ("classes", "least"), [((2.0, 4.0, 6.0, 8.0), 110), ((8.0,), 0.9 * 86), ((2.0,), 0.9 * 164)]
)  # the errata's mix; 0.9 of what WISP's Table 2 sustains
def test_promises_that_were_made_are_kept_and_not_too_few_are_made(classes: tuple[float, ...], least: float) -> None:
    load: dict[float, int] = {}
    devices: list[float] = []
    while True:
        asked = classes[len(devices) % len(classes)]
        if not GATE.admissible(asked, alike(load), SHAPE).admitted:
            break
        load[asked] = load.get(asked, 0) + 1
        devices.append(asked)
    run = Simulation(devices, Slo(coefficients=A100, max_requests=CAP, acceptance=0.855), banked=True)
    run.run(100.0)
    assert max(run.violations(5.0).values()) <= 0.05
    assert len(devices) >= least


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"classes": ()}, "one positive number or more"), ({"classes": (0.0,)}, "one positive number or more"),
        ({"max_requests": 0}, "1 request or more"), ({"kv_tokens": 0}, "1 token or more"),
         ({"limit": 0.0}, "limit must lie in"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Admission(**{"coefficients": A100, "max_requests": 13, **change})  # type: ignore[arg-type]


def test_loads_and_rounds_that_cannot_be_are_refused() -> None:
    with pytest.raises(BadInput, match="positive speed"):
        GATE.admissible(0.0, [], SHAPE)
    with pytest.raises(BadInput, match="number of UEs"):
        GATE.admissible(2.0, alike({4.0: -1}), SHAPE)
    with pytest.raises(BadInput, match="commits something"):
        RoundShape(new=1, cached=1, committed=0, draft_s=0, network_s=0)
    with pytest.raises(BadInput, match="0 or more"):
        RoundShape(new=1, cached=-1, committed=1, draft_s=0, network_s=0)
