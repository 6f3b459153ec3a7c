"""Pass-time coefficients by name: profiles, files, and invalid ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.errors import BadInput
from testbed.experiments.inputs.coefficients import coefficients, pass_coefficients
from testbed.experiments.inputs.profile import InteractionVerify, LinearVerify, PassWork, load_profile
from testbed.optim.pass_time import RequestWork as Seen

FOUND = {"a": 1e-4, "b_compute": 2e-9, "b_read": 3e-6, "c": 0.02, "r2": 0.99}


def test_profiles_and_files(tmp_path: Path) -> None:
    assert coefficients("probe") is None
    printed = coefficients("a100-qwen3-32b-appendix")
    assert printed is not None and printed.values == (3.314e-5, 3.450e-8, 4.620e-6, 1.486e-2)
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(FOUND))
    read = coefficients(str(path))
    assert read is not None and read.values == (1e-4, 2e-9, 3e-6, 0.02)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "line 1: no JSON"),
        ("[1]", "no JSON object"),
        ('{"a": 1}', "has no b_compute, b_read, c"),
        ("", "is empty"),
        ('{"a": ' + "1" * 5000 + "}", "is no JSON"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "fit.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=why):
        coefficients(str(path))


def test_a_profile_of_eq_19_has_its_own() -> None:
    own = InteractionVerify(a_s=1e-5, b_compute_s=2e-8, b_read_s=3e-6, c_s=0.01)
    assert pass_coefficients(own).values == (1e-5, 2e-8, 3e-6, 0.01)


def test_passes_that_are_linear_in_new_tokens_are_found_exactly() -> None:
    found = pass_coefficients(LinearVerify(base_s=0.02, per_new_s=3e-4))
    assert found.values == pytest.approx((3e-4, 0, 0, 0.02), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("name", "tolerance"), [("wisv", 0.35), ("edge-sd", 0.15)])
def test_other_profiles_come_near_on_passes_that_were_not_fitted(name: str, tolerance: float) -> None:
    """Their cost models differ from eq. 19, so the fit is approximate, and never negative; `wisv` has a shortest
    pass, which eq. 19 lacks.
    """
    verify = load_profile(name).verify
    found = pass_coefficients(verify)
    assert min(found.values) >= 0 and max(found.values) > 0
    for requests, drafted, cached in ((2, 3, 128), (8, 6, 512), (12, 12, 400), (1, 10, 700)):
        truth_s = verify.pass_s([PassWork(drafted, drafted + 1, cached)] * requests)
        assert found.batch_s([Seen(drafted + 1, cached)] * requests) == pytest.approx(truth_s, rel=tolerance)
