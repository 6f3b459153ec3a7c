"""Bundled profiles against the papers' printed numbers, and forms of cost against sums by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.assets.bundled_files import names
from testbed.channel.csi import Csi
from testbed.errors import BadInput
from testbed.experiments.inputs.profile import (
    FlopsDraft,
    FlopsVerify,
    InteractionVerify,
    PassWork,
    RooflineDraft,
    RooflineVerify,
    load_profile,
)
from testbed.optim.inference_cost import forward_flops
from testbed.protocols import protocol

# WISV Table I: K, protocol, Mbit/s, latency in s, rounds
TABLE = [
    (10, "greedy", 500, 7.616, 31.912), (10, "rejection", 500, 8.962, 32.036), (10, "fh", 500, 6.634, 27.736),
    (10, "greedy", 20, 7.617, 31.912), (10, "rejection", 20, 40.542, 32.040), (10, "fh", 20, 6.816, 27.144),
    (16, "greedy", 500, 8.842, 25.128), (16, "rejection", 500, 10.543, 25.244), (16, "fh", 500, 7.317, 20.732),
    (16, "greedy", 20, 8.843, 25.128), (16, "rejection", 20, 50.096, 25.112), (16, "fh", 20, 7.553, 19.936),
    (24, "greedy", 500, 11.074, 22.020), (24, "rejection", 500, 13.313, 22.132), (24, "fh", 500, 8.604, 17.044),
    (24, "greedy", 20, 11.075, 22.020), (24, "rejection", 20, 65.493, 22.072), (24, "fh", 20, 8.832, 15.976),
    (32, "greedy", 500, 13.525, 20.680), (32, "rejection", 500, 16.376, 20.848), (32, "fh", 500, 10.021, 15.260),
    (32, "greedy", 20, 13.527, 20.680), (32, "rejection", 20, 81.731, 20.744), (32, "fh", 20, 10.140, 13.892),
    (64, "greedy", 500, 24.272, 19.272), (64, "rejection", 500, 29.570, 19.424), (64, "fh", 500, 16.653, 13.152),
    (64, "greedy", 20, 24.274, 19.272), (64, "rejection", 20, 151.663, 19.368), (64, "fh", 20, 17.394, 12.092),
]  # fmt: skip


@pytest.mark.parametrize(("window", "kind", "rate", "latency_s", "rounds"), TABLE)
def test_wisv_table_1(window: int, kind: str, rate: float, latency_s: float, rounds: float) -> None:
    profile = load_profile("wisv")
    assert profile.sizes is not None
    link_s = protocol(kind).cost(window, 0, profile.sizes, Csi(rate, rate, 50.0), profile.overheads).latency_s
    compute_s = profile.draft.window_s(window, 100) + profile.verify.pass_s([PassWork(window, window + 1, 100)])
    tolerance = 0.003 if kind != "fh" else 0.06
    assert rounds * (link_s + compute_s) == pytest.approx(latency_s, rel=tolerance)


@pytest.mark.parametrize(
    ("window", "kind", "rate", "latency_s", "rounds"), [row for row in TABLE if row[1] == "greedy"]
)
def test_wisvs_flops_give_its_greedy_rows(window: int, kind: str, rate: float, latency_s: float, rounds: float) -> None:
    profile = load_profile("wisv-flops")
    compute_s = profile.draft.window_s(window, 200) + profile.verify.pass_s([PassWork(window, window + 1, 200)])
    assert rounds * (0.05 + compute_s) == pytest.approx(latency_s, rel=0.01)


WORK = st.builds(PassWork, drafted=st.integers(0, 64), new=st.integers(1, 65), cached=st.integers(0, 500))


@given(st.lists(WORK, min_size=1, max_size=8), st.integers(0, 7), st.integers(1, 64))
def test_wisvs_drafted_passes_are_no_cheaper_than_plain_tokens(batch: list[PassWork], one: int, window: int) -> None:
    verify, one = load_profile("wisv").verify, one % len(batch)
    plain = [*batch[:one], PassWork(0, 1, 100), *batch[one + 1 :]]
    drafted = [*batch[:one], PassWork(window, window + 1, 100), *batch[one + 1 :]]
    times_s = [verify.pass_s(passed) for passed in (plain[:one] + plain[one + 1 :], plain, drafted)]
    assert times_s[0] <= times_s[1] + 1e-12 and times_s[1] <= times_s[2] + 1e-12
    assert verify.pass_s([PassWork(0, 1, 100)]) == pytest.approx(0.023)


def test_every_bundled_profile_says_where_it_comes_from_and_what_it_assumes() -> None:
    assert names("profiles") == [
        "a100-qwen3-32b",
        "a100-qwen3-32b-appendix",
        "edge-sd",
        "raspberry-pi-5",
        "wisv",
        "wisv-flops",
    ]
    for name in names("profiles"):
        profile = load_profile(name)
        assert profile.name == name
        assert profile.source and profile.assumptions
        assert profile.sizes is not None


def test_flops_are_those_of_the_matrix_products() -> None:
    layers, hidden, ffn, new, cached = 3, 8, 20, 5, 7
    # Q, K, V, O: 2·n·h·h each; scores and their use: 2·n·(c + n)·h each; two feed-forward products: 2·n·h·f each
    by_hand = layers * (4 * 2 * new * hidden**2 + 2 * 2 * new * (cached + new) * hidden + 2 * 2 * new * hidden * ffn)
    assert forward_flops(layers, hidden, ffn, new, cached) == by_hand


def test_flops_forms_add_up_pass_by_pass() -> None:
    shape = {"layers": 2, "hidden": 4, "ffn": 6}
    flops = [forward_flops(2, 4, 6, 1, cached) for cached in (9, 10, 11)]
    assert FlopsDraft(**shape, c1_s=2.0, c2_s=5.0).window_s(3, 10) == 2 * sum(flops) + 15
    assert RooflineDraft(**shape, peak_flops=100.0, utilisation=0.5).window_s(3, 10) == pytest.approx(sum(flops) / 50)
    batch = [PassWork(3, 4, 20), PassWork(0, 1, 5)]
    both = forward_flops(2, 4, 6, 4, 20) + forward_flops(2, 4, 6, 1, 5)
    assert FlopsVerify(**shape, c1_s=2.0, c2_s=5.0).pass_s(batch) == 2 * both + 5
    assert RooflineVerify(**shape, peak_flops=100.0, utilisation=0.5).pass_s(batch) == pytest.approx(both / 50)


def test_interactions_by_hand() -> None:
    cost = InteractionVerify(a_s=1.0, b_compute_s=0.1, b_read_s=0.01, c_s=0.001)
    # new 4 + 1; interactions 4·24 + 1·6; cached 20 + 5
    assert cost.pass_s([PassWork(3, 4, 20), PassWork(0, 1, 5)]) == pytest.approx(5 + 10.2 + 0.25 + 0.001)


def test_wisps_two_sets_differ_as_printed() -> None:
    main, appendix = (load_profile(n).verify for n in ("a100-qwen3-32b", "a100-qwen3-32b-appendix"))
    assert isinstance(main, InteractionVerify) and isinstance(appendix, InteractionVerify)
    assert main.a_s / appendix.a_s == pytest.approx(4.33, abs=0.01)
    assert appendix.b_compute_s / main.b_compute_s == pytest.approx(13.6, abs=0.1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("draft: {kind: linear, per_token_s: -1}", "must not be negative"),
        ("draft: {kind: magic}", "magic"),
        ("draft: {kind: linear, per_token_s: 1, colour: red}", "colour"),
        ("verify: {kind: linear}", "base_s"),
        (
            "draft: {kind: utilisation, layers: 1, hidden: 1, ffn: 1, peak_flops: 0, utilisation: 1}",
            "computed .*division",
        ),
        (
            "verify: {kind: utilisation, layers: 1, hidden: 1, ffn: 1, peak_flops: 1, utilisation: 0}",
            "computed .*division",
        ),
        ("verify: {kind: linear, base_s: .nan}", "must be finite"),
        ("verify: {kind: linear, base_s: .inf}", "must be finite"),
        (f"draft: {{kind: flops, layers: {10**400}, hidden: 1, ffn: 1, c1_s: 1, c2_s: 1}}", "lay|range|large"),
        ("head: {drafter_hidden: 1, target_hidden: 1, width: 1, peak_flops: 0, utilisation: 1}", "computed .*division"),
    ],
)
def test_profiles_that_cannot_be(change: str, words: str, tmp_path: Path) -> None:
    lines = {"draft": "draft: {kind: linear, per_token_s: 1}", "verify": "verify: {kind: linear, base_s: 1}"}
    lines[change.split(":", 1)[0]] = change
    path = tmp_path / "p.yaml"
    path.write_text("\n".join(["name: p", "about: x", "source: y", *lines.values()]))
    with pytest.raises(BadInput, match=words):
        load_profile(str(path))


def test_a_profile_that_is_not_there() -> None:
    with pytest.raises(BadInput, match="no profile 'abacus': neither a file nor one of a100-qwen3-32b, "):
        load_profile("abacus")
