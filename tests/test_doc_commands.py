"""Commands of README and docs: read off the pages, set aside with a reason, made smaller, and run."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.doc_commands import DocCommand, aside, by_page, commands, main, run, run_page, smaller

PAGE = """
Text with `testbed not --this`.

```
testbed sweep --list            # the bundled ones
testbed demo --prompts 1 \\
    --methods greedy
make test
testbed sweep --list
```
"""


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "start").mkdir(parents=True)
    (tmp_path / "README.md").write_text(PAGE)
    (tmp_path / "docs" / "start" / "other.md").write_text("```\ntestbed doctor\n```\n```\ntestbed sweep --list\n```\n")
    return tmp_path


def test_every_command_of_a_page_is_read_once_whole_and_without_its_comment(pages: Path) -> None:
    assert list(commands(pages)) == [
        DocCommand("README.md", 5, "testbed sweep --list"),
        DocCommand("README.md", 6, "testbed demo --prompts 1 --methods greedy"),
        DocCommand("docs/start/other.md", 2, "testbed doctor"),
        DocCommand("docs/start/other.md", 5, "testbed sweep --list"),
    ]
    assert {page: len(found) for page, found in by_page(pages).items()} == {"README.md": 2, "docs/start/other.md": 2}


def test_prompts_and_what_calls_an_installed_testbed_are_no_part_of_a_command(pages: Path) -> None:
    (pages / "hardware").mkdir()
    lines = ("edge$    testbed keys new keys; testbed doctor   # comment", "device$  as_testbed keys new /var/lib/keys",
             "/opt/testbed/venv/bin/testbed doctor", "edge$    curl testbed", "as_testbed() { testbed; }")  # fmt: skip
    (pages / "hardware" / "README.md").write_text("\n".join(("```", *lines, "```")))
    assert [one.text for one in by_page(pages)["hardware/README.md"]] == [
        "testbed keys new keys; testbed doctor", "testbed keys new /var/lib/keys", "testbed doctor",
    ]  # fmt: skip


def test_what_cannot_run_here_has_a_reason(tmp_path: Path) -> None:
    for text, why in (
        ("testbed ue run --bs tcp://192.0.2.7:5555", "machine"),
        ("testbed report runs/far", "runs/far"),
        ("testbed bs serve --model ./Qwen2.5-7B-Instruct", "model"),
        ("testbed latency sizes --csv 4.7=runs/a/points.csv", "runs/a/points.csv"),
        ("testbed bs serve --keys keys --bind tcp://0.0.0.0:5555", "needs keys,"),
        ("testbed keys new /var/lib/testbed/keys", "installed"),
        ("testbed head compare csi=runs/head --out runs/b", "needs runs/head,"),
    ):
        assert why in (aside(DocCommand("README.md", 1, text), tmp_path) or ""), text
    assert aside(DocCommand("README.md", 1, "testbed demo --out runs/new"), tmp_path) is None
    (tmp_path / "runs" / "far").mkdir(parents=True)
    assert aside(DocCommand("README.md", 1, "testbed report runs/far"), tmp_path) is None


def test_studies_run_smaller_with_their_own_options() -> None:
    words = smaller("testbed demo --prompts 50 --methods greedy,sh --out runs/a").split()
    assert words[:6] == ["testbed", "demo", "--prompts", "2", "--methods", "greedy,sh"]
    assert words[-4:] == ["--max-tokens", "48", "--engine", "llama"]
    assert smaller("testbed sweep rates.yaml --set prompts=9").endswith(
        "--set prompts=9 --set prompts=2 --set max_tokens=48 --set engine=llama"
    )
    for text in ("testbed sweep --list", "testbed sweep wisv-table1 --dry-run", "testbed doctor"):
        assert smaller(text) == text


def test_the_pages_have_commands_that_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert listed.count("    runs: ") > 40 and listed.count("aside: ") > 10


def test_a_command_ends_and_a_wrong_one_fails(tmp_path: Path) -> None:
    assert run(DocCommand("", 1, "testbed sweep --list"), tmp_path).ok
    assert run(DocCommand("", 1, "testbed sweep --list > list.txt"), tmp_path).ok
    assert "wisv-table1" in (tmp_path / "list.txt").read_text()
    wrong = run(DocCommand("", 1, "testbed sweep nothing-of-the-kind"), tmp_path)
    assert not wrong.ok and "exit code 2" in wrong.text


def test_a_server_becomes_ready_and_ends_when_it_is_interrupted(tmp_path: Path) -> None:
    serve = "testbed bs serve --engine synthetic --bind tcp://127.0.0.1:"
    found = run(DocCommand("", 1, serve + "*"), tmp_path)
    assert found.ok and found.text.startswith("ready, interrupted")
    assert not run(DocCommand("", 1, serve + "nowhere"), tmp_path).ok
    assert not run(DocCommand("", 1, serve + "*"), tmp_path, limit_s=0.1).ok


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", list(by_page()))
def test_all_commands_of_a_page_run(page: str) -> None:
    failed = [f"{text}: {ran.text}" for _, text, ran in run_page(page, by_page()[page]) if not ran.ok]
    assert not failed, "\n".join(failed)
