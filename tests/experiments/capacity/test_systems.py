"""Assumptions of a capacity study, and the options that it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.cli.capacity import combined
from testbed.config import resolved
from testbed.errors import BadInput
from testbed.experiments.capacity.config import CapacityConfig, hardware, speeds, spread
from testbed.experiments.capacity.paper import ESTIMATES, SENSITIVITY, SWITCHES, TABLE_2
from testbed.experiments.capacity.real_config import RealConfig
from testbed.experiments.capacity.systems import SYSTEMS
from testbed.experiments.inputs.profile import InteractionVerify
from testbed.options import replaced


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["tpr=2"], r"tpr must lie in \[0, 1\]"),
        (["prompt=[5, 1]"], "in order"),
        (["nope=1"], "fields: systems"),
        (["acceptance"], "FIELD=VALUE"),
        (["acceptance=high"], "acceptance"),
        (["kv_tokens=500"], "room for 500"),
        (["window=0"], "1..256"),
        (["horizon_s=0"], "horizon-s must lie in"),
        (["systems=[abacus]"], "known: wisp, fcfs-cache"),
        (["systems=[wisp, wisp]"], "each once"),
        (["classes=[2, 2]"], "each once"),
        (["classes=[2, 2.0000001]"], "each once"),
        (["classes=[1e308]"], "each once"),
        (["classes=[5e-324]"], "each once"),
        (["mix={fast: 1}"], "mix"),
        (["mix={2: 0}"], "1 or more"),
        (["ues=0"], "ues must lie in 1..4000"),
        (["paper=GPT"], "Qwen3-32B"),
        (["shortest=3"], "shortest"),
    ],
)
def test_what_cannot_be_is_refused(more: list[str], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        combined(CapacityConfig(), None, {}, more)


def test_options_win_over_the_file_and_pairs_over_both(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("{systems: [sled], epsilon: 0.1, mix: {2: 1, 8: 3}}")
    config = combined(CapacityConfig(), path, {"epsilon": 0.2, "classes": ["6"]}, ["kv_tokens=9000"])
    assert (config.systems, config.epsilon, config.mix, config.kv_tokens) == (("sled",), 0.2, None, 9000)
    assert speeds(config) == (6.0,)
    with pytest.raises(BadInput, match="--classes"):
        combined(CapacityConfig(), None, {"classes": ["6"], "mix": {"6": "1"}})


def test_any_scheduler_makes_a_system() -> None:
    assert CapacityConfig(systems=("slo-cache",)).systems == ("slo-cache",)
    with pytest.raises(BadInput, match=r"fcfs-cache.*slo-cache"):
        CapacityConfig(systems=("abacus-cache",))


def test_profiles_without_the_equation_are_refused() -> None:
    with pytest.raises(BadInput, match="interactions"):
        hardware(CapacityConfig(profile="wisv"))


def test_scale_stretches_every_pass() -> None:
    one, half = (hardware(CapacityConfig(verify_scale=scale)).verify for scale in (1.0, 0.5))
    assert isinstance(one, InteractionVerify)
    assert isinstance(half, InteractionVerify)
    assert [getattr(half, n) * 2 for n in ("a_s", "b_compute_s", "b_read_s", "c_s")] == pytest.approx(
        [getattr(one, n) for n in ("a_s", "b_compute_s", "b_read_s", "c_s")]
    )


@given(st.dictionaries(st.integers(1, 20), st.integers(1, 5), min_size=1, max_size=5), st.integers(1, 200))
def test_a_mix_keeps_its_shares_at_every_size(shares: dict[int, int], ues: int) -> None:
    config = CapacityConfig(mix={float(speed): share for speed, share in shares.items()})
    given_ = spread(config, ues)
    assert len(given_) == ues
    assert spread(config, ues + 1)[:ues] == given_
    for speed, share in shares.items():
        assert abs(given_.count(float(speed)) - ues * share / sum(shares.values())) < len(shares) + 1


def test_what_sensitivity_varies_can_be_and_differs() -> None:
    base = resolved(CapacityConfig())
    for values in (*SENSITIVITY, *SWITCHES, *ESTIMATES):
        assert resolved(replaced(CapacityConfig(), values)) != base


@pytest.mark.parametrize("path", sorted(Path("sweeps/capacity").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_files_that_come_along_can_be_read(path: Path) -> None:
    if "capacity --real" in path.read_text():
        assert combined(RealConfig(), path, {}).depth >= combined(RealConfig(), path, {}).window
    else:
        assert set(combined(CapacityConfig(), path, {}).systems) <= set(SYSTEMS)


def test_the_papers_factors_follow_from_its_table() -> None:
    """Table 2 prints its speedups too."""
    wisp = TABLE_2["Qwen3-32B"]["wisp"]
    for other, factors in (("sled", (1.98, 3.38, 3.81, 4.10)), ("centralized", (1.69, 1.78, 1.91, 2.10))):
        theirs = TABLE_2["Qwen3-32B"][other]
        assert [wisp[s] / theirs[s] for s in sorted(wisp)] == pytest.approx(factors, abs=0.006)
