"""`testbed head relabel`, `train` and `eval`: documents, files, refusals."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from testbed.assets.fingerprints import model_fingerprint
from testbed.channel.csi import FEATURES
from testbed.cli.head.train import evaluate, relabel, train
from testbed.decision_head.episodes import EpisodeStore
from testbed.decision_head.head import load_head
from testbed.errors import BadInput
from testbed.files import held
from testbed.models.bundle import bundled
from tests.support.mismatches import labelled_files, some_meta

app = typer.Typer()
app.command("relabel")(relabel)
app.command("train")(train)
app.command("eval")(evaluate)
FAST = "--width 16 --epochs 3 --draws 2"


def call(line: str) -> Result:
    result = CliRunner().invoke(app, shlex.split(line))
    if result.exit_code and not isinstance(result.exception, (BadInput, SystemExit)):
        raise AssertionError(f"{line}: {result.output}") from result.exception
    return result


def refusal(line: str) -> str:
    result = call(line)
    assert isinstance(result.exception, BadInput), result.output
    assert result.stdout == "" and "\n" not in str(result.exception)
    return str(result.exception)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    labelled_files(tmp_path / "episodes")
    return tmp_path


def test_from_episodes_to_an_evaluated_head(here: Path) -> None:
    labelled_files(here / "unseen", 40, seed=9)
    document = json.loads(call("relabel episodes --draws 2 --out r.safetensors --json").stdout)
    assert document["instances"] == 2 * document["mismatches"] and document["file"] == "r.safetensors"
    assert sum(band["critical"] for band in document["bands"]) == 2 * document["critical"]
    trained = json.loads(call(f"train episodes --relabelled r.safetensors --out head {FAST} --json").stdout)
    assert len(trained["history"]) == 3 and trained["instances"] == document["instances"]
    head = load_head(here / "head")
    assert head.info.features == FEATURES and head.info.metrics["auc"] == trained["auc"]
    result = call("eval head --episodes unseen --out e --json")
    found = json.loads(result.stdout)
    assert {"auc", "brier", "mismatches"} <= set(found) and found["prompts"] == 40
    assert sorted(path.name for path in (here / "e").iterdir()) == [
        "eval.json", "operating.csv", "reliability.csv", "reliability.png", "roc.png",
    ]  # fmt: skip
    assert json.loads((here / "e" / "eval.json").read_text()) == found
    lines = (here / "e" / "operating.csv").read_text().splitlines()
    assert lines[0].startswith("channel,quality,threshold") and len(lines) == 1 + len(found["operating"])


def test_relabelling_on_the_way_is_the_same_as_before(here: Path) -> None:
    call("relabel episodes --draws 2 --out r.safetensors")
    call(f"train episodes --relabelled r.safetensors --out one {FAST}")
    call(f"train episodes --out other {FAST}")
    assert (here / "one/head.safetensors").read_bytes() == (here / "other/head.safetensors").read_bytes()
    assert (here / "one/head.json").read_bytes() == (here / "other/head.json").read_bytes()


def test_ablations(here: Path) -> None:
    blind = json.loads(call(f"train episodes --no-csi --out blind {FAST} --json").stdout)
    assert load_head(here / "blind").info.features == () and blind["instances"] == blind["mismatches"]
    call(f"train episodes --no-relabel --out base {FAST}")
    base = load_head(here / "base").info
    assert base.features == FEATURES
    call(f"train episodes --hidden-bits 4 --out coarse {FAST} --about 'at four bits'")
    coarse = load_head(here / "coarse").info
    assert (coarse.hidden_bits, coarse.about) == (4, "at four bits")


def test_people_get_tables(here: Path) -> None:
    assert "critical mismatches repaired" in call("relabel episodes --out r.safetensors").stdout
    trained = call(f"train episodes --out head {FAST}")
    assert "AUC" in trained.stdout and "wrote head" in trained.stderr
    shown = call("eval head --episodes episodes").stdout
    for words in ("AUC", "reliability on a perfect channel", "by channel quality", "20 Mbit/s, 50 ms"):
        assert words in shown
    assert "digit" not in shown  # the tokens' texts are not known


def test_the_digit_rule_needs_texts(here: Path) -> None:
    target = bundled().require("target")
    labelled_files(here / "ours", target_fingerprint=model_fingerprint(target))
    call(f"train ours --out head {FAST}")
    shown = call("eval head --episodes ours")
    assert "the rule that accepts what has no digit" in shown.stdout
    given = json.loads(call(f"eval head --episodes ours --tokenizer {target} --json").stdout)
    assert given["digits"] == json.loads(call("eval head --episodes ours --json").stdout)["digits"]
    assert "tokenizer.json" in refusal("eval head --episodes ours --tokenizer .")


def test_episodes_of_another_pair_are_refused_by_name(here: Path) -> None:
    call(f"train episodes --out head {FAST}")
    labelled_files(here / "theirs", target_fingerprint="f" * 16)
    said = refusal("eval head --episodes theirs --json")
    assert "e" * 16 in said and "f" * 16 in said


def test_what_is_missing_is_named(here: Path) -> None:
    assert "head collect" in refusal("train nowhere --out head")
    assert "head collect" in refusal("relabel nowhere --out r.safetensors --json")
    assert "head relabel" in refusal("train episodes --relabelled none --out head")
    assert "no decision head at nothing" in refusal("eval nothing --episodes episodes")
    assert "not a directory" in refusal("relabel episodes --out no/such/r.safetensors")
    assert "leave out --relabelled" in refusal("train episodes --no-csi --relabelled r.safetensors --out head")
    assert "leave out --relabelled" in refusal("train episodes --no-relabel --relabelled r.safetensors --out head")
    assert "16, 8, 4" in refusal("train episodes --hidden-bits 5 --out head")
    assert "draws" in refusal("relabel episodes --draws 0 --out r.safetensors")
    EpisodeStore(here / "bare").create(some_meta())
    assert "head label" in refusal("train bare --out head")
    call("relabel episodes --out r.safetensors")
    labelled_files(here / "more", 61)
    assert "other episodes" in refusal("train more --relabelled r.safetensors --out head")
    assert not (here / "head").exists()
    (here / "file").write_text("")
    assert "cannot create" in refusal(f"train episodes --out file/head {FAST}")


def test_a_head_is_not_trained_into_a_directory_that_another_process_writes(here: Path) -> None:
    with held(here / "head", "taken"):
        assert "another process writes its results into head" in refusal(f"train episodes --out head {FAST}")
    call(f"train episodes --out head {FAST}")


def test_nothing_is_overwritten_unless_forced(here: Path) -> None:
    call("relabel episodes --out r.safetensors")
    call(f"train episodes --out head {FAST}")
    before = [(path, path.read_bytes()) for path in (here / "r.safetensors", *sorted((here / "head").iterdir()))]
    assert "--force overwrites it" in refusal("relabel episodes --seed 1 --out r.safetensors")
    assert "is not empty; choose another --out" in refusal(f"train episodes --seed 1 --out head {FAST}")
    assert all(path.read_bytes() == content for path, content in before)
    call("relabel episodes --seed 1 --out r.safetensors --force")
    assert before[0][0].read_bytes() != before[0][1]


@pytest.mark.parametrize("command", ["relabel", "train", "eval"])
def test_help_has_examples(command: str) -> None:
    assert f"testbed head {command}" in call(f"{command} --help").stdout
