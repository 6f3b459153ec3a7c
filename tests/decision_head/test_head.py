"""Decision head: comparison with torch, files, refused inputs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from testbed.decision_head.head import DecisionHead, HeadInfo, check_fits, load_head, save_head
from testbed.errors import BadInput, ModelError
from tests.support.heads import random_head
from tests.support.refusals import refuse

FEATURES = ("log10_uplink_mbps", "per_up")
TARGET, DRAFTER = "e" * 16, "d" * 16


def some_info(**changes: Any) -> HeadInfo:
    given = {
        "drafter_hidden": 5, "target_hidden": 7, "width": 4, "features": FEATURES, "drafter_fingerprint": DRAFTER,
        "target_fingerprint": TARGET, "drafter_quantisation": "Q8_0",
    }  # fmt: skip
    return HeadInfo(**(given | changes))


def some_head(seed: int, **changes: Any) -> DecisionHead:
    info, rng = some_info(**changes), np.random.default_rng(seed)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in info.shapes.items()}
    arrays["scale"] = np.abs(arrays["scale"]) + np.float32(0.1)
    arrays["mean"] *= 10
    return DecisionHead(info, **arrays)


def some_states(head: DecisionHead, rows: int, seed: int) -> tuple[Any, Any, Any]:
    rng, info = np.random.default_rng(seed), head.info
    sizes = (info.drafter_hidden, info.target_hidden, len(info.features))
    drafter, target, channel = (10 * rng.standard_normal((rows, size)) for size in sizes)
    return drafter.astype(np.float16), target.astype(np.float32), channel.astype(np.float32)


@given(st.integers(0, 10**6), st.integers(0, 40), st.sampled_from([FEATURES, ()]))
def test_probabilities_are_those_of_torch(seed: int, rows: int, features: tuple[str, ...]) -> None:
    import torch

    head = some_head(seed, features=features)
    states = some_states(head, rows, seed)
    x = torch.from_numpy(np.concatenate([part.astype(np.float64) for part in states], axis=1))
    first, second = (
        torch.nn.Linear(head.info.inputs, 4, dtype=torch.float64),
        torch.nn.Linear(4, 1, dtype=torch.float64),
    )
    with torch.no_grad():
        for layer, weight, bias in ((first, head.w1, head.b1), (second, head.w2[None], head.b2)):
            layer.weight.copy_(torch.from_numpy(weight))
            layer.bias.copy_(torch.from_numpy(bias))
        standard = (x - torch.from_numpy(head.mean)) / torch.from_numpy(head.scale)
        wanted = torch.sigmoid(second(torch.relu(first(standard))))[:, 0].numpy()
    found = head.reject_probability(*states)
    assert found.dtype == np.float32 and found.shape == (rows,)
    np.testing.assert_allclose(found, wanted, atol=2e-4)


def test_rows_are_judged_each_for_itself() -> None:
    head = some_head(1)
    states = some_states(head, 30, 1)
    whole = head.reject_probability(*states)
    for row in range(30):
        alone = head.reject_probability(*(part[row : row + 1] for part in states))
        np.testing.assert_allclose(alone, whole[row : row + 1], atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_rejected_for_sure_and_touches_no_other_row(bad: float) -> None:
    head = some_head(2)
    drafter, target, channel = some_states(head, 4, 2)
    whole = head.reject_probability(drafter, target, channel)
    drafter[1, 0] = bad
    found = head.reject_probability(drafter, target, channel)
    assert found[1] == 1
    np.testing.assert_allclose(np.delete(found, 1), np.delete(whole, 1), atol=1e-6)


@pytest.mark.parametrize("name", ["w1", "b1", "w2", "mean", "scale"])
def test_weights_too_large_to_compute_with_are_refused(name: str, tmp_path: Path) -> None:
    """They are finite, but `demo` warned of overflows and judged by NaN."""
    head = some_head(4)
    save_head(head, tmp_path)
    path = tmp_path / "head.safetensors"
    stored = load_file(path)
    signs = np.where(np.arange(stored[name].size) % 2, 1, -1).reshape(stored[name].shape)
    bad = np.full_like(stored[name], 1e-38) if name == "scale" else (3e38 * signs).astype(np.float32)
    save_file(stored | {name: bad}, path)
    refuse(lambda: load_head(tmp_path), ModelError, "head.safetensors", "too large")


def test_inputs_too_large_to_compute_with_are_rejected_for_sure() -> None:
    head = some_head(5)
    drafter, target, channel = some_states(head, 4, 5)
    target[2] = np.float32(3e38) * np.where(np.arange(7) % 2, 1, -1)
    found = head.reject_probability(drafter, target, channel)
    assert np.isfinite(found).all()


def test_inputs_of_another_size_are_refused() -> None:
    head = some_head(3)
    drafter, target, channel = some_states(head, 4, 3)
    for states in (
        (drafter[:, 1:], target, channel),
        (drafter, target[1:], channel),
        (drafter, target, channel[:, :0]),
    ):
        with pytest.raises(ValueError, match="must be"):
            head.reject_probability(*states)


def test_a_saved_head_is_loaded_bit_by_bit(tmp_path: Path) -> None:
    head = some_head(
        4, thresholds=((0.2, 0.5), (0.9, 0.1)), hidden_bits=4, metrics={"auc": 0.9}, calibration=(0.8, -1.0), about="a"
    )
    save_head(some_head(5), tmp_path / "a" / "head")
    save_head(head, tmp_path / "a" / "head")
    again = load_head(tmp_path / "a" / "head")
    assert again.info == head.info
    for name in head.info.shapes:
        assert (getattr(again, name) == getattr(head, name)).all()
    assert sorted(path.name for path in (tmp_path / "a" / "head").iterdir()) == ["head.json", "head.safetensors"]


def test_thresholds_are_interpolated_and_level_off() -> None:
    head = some_head(6, thresholds=((0.2, 0.6), (0.6, 0.2), (0.8, 0.1)))
    wanted = {0.0: 0.6, 0.2: 0.6, 0.3: 0.5, 0.5: 0.3, 0.6: 0.2, 0.7: 0.15, 1.0: 0.1}
    for quality, threshold in wanted.items():
        assert head.threshold(quality) == pytest.approx(threshold)
    assert some_head(6, thresholds=((0.5, 0.3),)).threshold(0.9) == 0.3
    with pytest.raises(BadInput, match="--threshold"):
        some_head(6).threshold(0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "schema must be 1"),
        ({"width": 0}, "width must be at least 1"),
        ({"target_hidden": -1}, "target_hidden must be at least 1"),
        ({"features": ("snr_db",)}, "features must be some of log10_uplink_mbps"),
        ({"features": ("per_up", "per_up")}, "each once"),
        ({"hidden_bits": 5}, "16, 8, 4 bits"),
        ({"thresholds": ((0.5, 0.1), (0.5, 0.2))}, "increasing q"),
        ({"thresholds": ((0.5, 1.1),)}, r"\[0, 1\]"),
        ({"width": "wide"}, "Expected `int`"),
        ({"more": 1}, "unknown field `more`"),
    ],
)
def test_a_malformed_description_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    save_head(some_head(7), tmp_path)
    path = tmp_path / "head.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelError, match=message) as caught:
        load_head(tmp_path)
    assert "head.json" in str(caught.value) and "\n" not in str(caught.value)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def reshaped(path: Path) -> None:
    save_file(load_file(path) | {"w2": np.zeros(9, np.float32)}, path)


def retyped(path: Path) -> None:
    save_file(load_file(path) | {"w2": np.zeros(4)}, path)


def poisoned(path: Path) -> None:
    save_file(load_file(path) | {"b1": np.full(4, np.nan, np.float32)}, path)


def flattened(path: Path) -> None:
    save_file(load_file(path) | {"scale": np.zeros(14, np.float32)}, path)


def renamed(path: Path) -> None:
    save_file({"x": np.zeros(1, np.float32)}, path)


def test_a_description_that_is_no_text_is_refused(tmp_path: Path) -> None:
    save_head(some_head(8), tmp_path)
    (tmp_path / "head.json").write_bytes(b'{"drafter_fingerprint": "\xc7("}')
    with pytest.raises(ModelError, match="not part of a decision head"):
        load_head(tmp_path)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (cut, "not part of a decision head"),
        (reshaped, r"w2 must be float32 \[4\], not float32 \[9\]"),
        (retyped, "not float64"),
        (poisoned, "b1 has entries that are not finite"),
        (flattened, "scale must be positive"),
        (renamed, "must hold w1, b1, w2, b2, mean, scale, not x"),
        (Path.unlink, "no decision head in"),
    ],
)
def test_malformed_weights_are_refused(tmp_path: Path, harm: Any, message: str) -> None:
    save_head(some_head(8), tmp_path)
    harm(tmp_path / "head.safetensors")
    with pytest.raises(ModelError, match=message) as caught:
        load_head(tmp_path)
    assert "head.safetensors" in str(caught.value) and "\n" not in str(caught.value)


def test_missing_heads_and_unwritable_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no decision head in .*head\.json"):
        load_head(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot create"):
        save_head(some_head(9), tmp_path / "file" / "head")


def test_other_models_are_refused_by_both_names() -> None:
    info = some_info()
    check_fits(info)
    check_fits(
        info, target_fingerprint=TARGET, drafter_fingerprint=DRAFTER, target_hidden=7, drafter_hidden=5
    )  # fmt: skip
    other = "f" * 16
    for wrong, words in (
        ({"target_fingerprint": other}, ["target", TARGET, other]),
        ({"drafter_fingerprint": other}, ["drafter", DRAFTER, other, "Q8_0"]),
        ({"drafter_fingerprint": ""}, ["drafter", DRAFTER, "unknown"]),
        ({"target_hidden": 8}, ["target", "7", "8"]),
        ({"drafter_hidden": 8}, ["drafter", "5", "8"]),
    ):
        with pytest.raises(ModelError) as caught:
            check_fits(info, **wrong)  # type: ignore[arg-type]
        assert all(word in str(caught.value) for word in words)


def test_the_document_says_what_the_struct_says(tmp_path: Path) -> None:
    head = random_head(features=())
    save_head(head, tmp_path)
    document = json.loads((tmp_path / "head.json").read_text())
    assert document["features"] == [] and set(document) == {f.name for f in msgspec.structs.fields(HeadInfo)}


def test_judging_needs_no_torch_and_no_scipy() -> None:
    code = (
        "import sys, testbed.decision_head.head; print([m for m in ('torch', 'scipy', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
