"""Runs with coupled sampling in virtual time: the gate, the rows, and the distribution of the outputs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from testbed.bs.engines import coupled
from testbed.bs.engines.base import VerifyRequest, VerifyResult
from testbed.bs.engines.synthetic import SyntheticEngine
from testbed.bs.intake import Offer
from testbed.channel.spec import ChannelSpec
from testbed.config import RunConfig
from testbed.experiments.inputs.formats import Example
from testbed.experiments.inputs.profile import LinearDraft, LinearVerify, Profile
from testbed.experiments.runs.prepare import Prompt, Workload, unlabelled
from testbed.experiments.runs.uerun import UeResult, result_of
from testbed.experiments.runs.virtual import Models, run_virtual
from testbed.protocols.sampling import Sampling
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.windows.predictor import AcceptanceLabels
from tests.support.sampled import chances, p_value, rows
from tests.support.virtual import QUIET

SMALL = 5
METHODS = ("target-only", "coupled", "fh", "sh", "auto")
PROFILE = Profile(
    name="bare", about="", source="", draft=LinearDraft(per_token_s=0.01, base_s=0.0, prefill_per_token_s=0.0),
    verify=LinearVerify(base_s=0.03, per_drafted_s=0.0, undrafted_s=0.03),
)  # fmt: skip
LINK = ChannelSpec(kind="virtual", uplink_mbps=20, downlink_mbps=20, rtt_ms=10)


def run(prompts: int, **config: object) -> UeResult:
    """The same prompt again and again, by every method."""
    engine = SyntheticEngine(vocab_size=SMALL)
    offer = Offer("synthetic", "", SMALL, engine.hidden_size, (), engine.max_positions)
    models = Models(engine, SyntheticDrafter(vocab_size=SMALL, alpha=0.3), offer)
    options = {"window": 2, "max_tokens": 3, "warmup": 0, "methods": METHODS, "sampling": "coupled", **config}
    told = RunConfig(**options)  # type: ignore[arg-type]
    work = Workload([Prompt([3, 1, 4], Example(""))] * prompts, [], None, "")
    return result_of(told, work, run_virtual(told, work, QUIET, LINK, PROFILE, models))


def outputs(result: UeResult, method: str) -> list[tuple[int, ...]]:
    mine = {o.request: tuple(o.record.token_ids) for o in result.outcomes if o.method == method}
    return [mine[request] for request in sorted(mine)]


def test_every_method_is_lossless_at_a_temperature_and_its_row_says_how_it_sampled() -> None:
    result = run(20, methods=(*METHODS, "greedy", "rejection"), temperature=1.3, max_tokens=20)
    table = {row["method"]: (row["lossless"], row["temperature"], row["sampling"]) for row in result.rows}
    assert table == {
        **dict.fromkeys(METHODS, (True, 1.3, "coupled")),
        "greedy": (True, None, None),
        "rejection": (None, 1.3, None),
    }
    assert len({tuple(outputs(result, method)) for method in METHODS}) == 1
    assert len(set(outputs(result, "coupled"))) == 20 and len(set(outputs(result, "greedy"))) == 1
    assert outputs(run(5, methods=("coupled",), seed=1), "coupled") != outputs(run(5, methods=("coupled",)), "coupled")


def test_without_the_option_only_the_protocol_is_coupled() -> None:
    result = run(4, sampling="independent", max_tokens=20, methods=("target-only", "coupled", "fh"))
    table = {row["method"]: (row["lossless"], row["temperature"], row["sampling"]) for row in result.rows}
    assert table == {"target-only": (None, 1.0, None), "coupled": (True, 1.0, "coupled"), "fh": (True, None, None)}


def test_noise_that_differs_between_streams_and_windows_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = coupled.chosen

    def other(request: VerifyRequest, result: VerifyResult) -> VerifyResult:
        if len(request.draft) and request.coupling is not None:
            request = replace(request, coupling=replace(request.coupling, seed=request.coupling.seed ^ 1))
        return honest(request, result)

    monkeypatch.setattr(coupled, "chosen", other)
    result = run(6, methods=("coupled",), max_tokens=20)
    assert [row["lossless"] for row in result.rows] == [False]
    assert "not lossless: coupled" in result.losses[0]


def p_of(found: list[tuple[int, ...]], sampling: Sampling) -> float:
    expected = chances(rows(SyntheticEngine(vocab_size=SMALL)), (3, 1, 4), sampling, 3)
    return p_value(Counter(found), expected)


def test_outputs_are_distributed_as_the_targets_own() -> None:
    methods = ("target-only", "coupled", "sh")
    result = run(1000, methods=methods, temperature=1.3, top_k=4)
    found = [outputs(result, method) for method in methods]
    assert found[0] == found[1] == found[2]
    assert p_of(found[0], Sampling(1.3, 4)) > 1e-4


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("sampling", [Sampling(0.7, 4, 0.95), Sampling(1.0), Sampling(1.6, 3, 0.9)])
def test_many_outputs_are_distributed_as_the_targets_own(sampling: Sampling) -> None:
    how = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    assert p_of(outputs(run(20_000, methods=("coupled",), gate=False, **how), "coupled"), sampling) > 1e-4


def test_predictors_are_not_calibrated_for_samples() -> None:
    config = RunConfig(methods=("greedy", "coupled", "fh", "target-only"), temperature=0.8)
    assert unlabelled(config, AcceptanceLabels()) == ["coupled"]
    assert unlabelled(msgspec.structs.replace(config, sampling="coupled"), AcceptanceLabels()) == ["coupled", "fh"]
    of_rejection = AcceptanceLabels(temperature=0.8)
    assert "coupled" in unlabelled(config, of_rejection)
