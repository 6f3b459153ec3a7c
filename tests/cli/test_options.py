"""Options made from configurations: their names, `--config FILE`, and help screens on 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from typer.main import get_command

from testbed.cli.main import command_line, main
from testbed.cli.options import configured, with_names
from testbed.cli.screens import CommandGroup
from testbed.errors import BadInput
from testbed.options import Config, option

KNOWN = Path(__file__).with_name("known_options.txt")
"""Options of every command before they were made from configurations: each must stay."""


class Basket(Config, frozen=True):
    apples: Annotated[int, option("Apples.", least=1)] = 3
    ripe: Annotated[bool, option("Ripe ones only.")] = True
    farms: Annotated[tuple[str, ...], option("Farms.", flags=("--farm", "--farms"))] = ("north", "south")
    sizes: Annotated[tuple[int, ...] | None, option("Sizes.")] = None
    at: Annotated[str, option("Addresses.", repeat=True)] = "here"
    pair: Annotated[tuple[str, ...], option("Pair.", repeat=True)] = ()
    scale: Annotated[str | None, option("Scale.", none="none")] = None
    most: Annotated[int | None, option("Apples at most.", least=1, none="all")] = 9
    inner: int = 0


def taken(*arguments: str) -> tuple[Basket, str]:
    """The configuration that a command gets, and its own option."""
    found: list[tuple[Basket, str]] = []
    group = CommandGroup()

    @group.command()
    @configured(Basket)
    def pick(config: Basket, label: str = "none yet") -> None:
        """Pick apples."""
        found.append((config, label))

    get_command(group)(args=list(arguments), standalone_mode=False)
    return found[0]


def test_defaults_are_those_of_the_configuration() -> None:
    assert taken() == (Basket(), "none yet")


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        (["--apples", "5"], Basket(apples=5)),
        (["--no-ripe"], Basket(ripe=False)),
        (["--farm", "east, west,east"], Basket(farms=("east", "west"))),
        (["--farms", "east"], Basket(farms=("east",))),
        (["--sizes", "1,2"], Basket(sizes=(1, 2))),
        (["--at", "a", "--at", "b"], Basket(at="a,b")),
        (["--pair", "a,1", "--pair", "b"], Basket(pair=("a,1", "b"))),
        (["--scale", "big"], Basket(scale="big")),
        (["--scale", "none"], Basket()),
        (["--most", "all"], Basket(most=None)),
        (["--most", "4"], Basket(most=4)),
    ],
)
def test_values(arguments: list[str], config: Basket) -> None:
    assert taken(*arguments, "--label", "x") == (config, "x")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--apples", "0"], "apples must be at least 1, not 0"),
        (["--sizes", "1,b"], "--sizes takes whole numbers separated by commas, not '1,b'"),
        (["--farm", ","], "--farm takes names separated by commas"),
        (["--most", "few"], "--most takes a whole number or all, not 'few'"),
        (["--most", "0"], "most must be at least 1, not 0"),
    ],
)
def test_values_that_cannot_be(arguments: list[str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        taken(*arguments)


def test_a_file_and_what_goes_before_it(tmp_path: Path) -> None:
    path = tmp_path / "basket.yaml"
    path.write_text("{apples: 7, ripe: false, scale: small, inner: 2}\n")
    assert taken("--config", str(path))[0] == Basket(apples=7, ripe=False, scale="small", inner=2)
    config, _ = taken("--config", str(path), "--apples", "3", "--ripe", "--scale", "none")
    assert config == Basket(inner=2)  # given on the command line, even where it is the default
    path.write_text("apels: 7\n")
    with pytest.raises(BadInput, match="did you mean 'apples'"):
        taken("--config", str(path))


# ---------------------------------------------------------------- all commands


def walk(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield " ".join(words), command
        return
    for name, inner in command.commands.items():
        yield from walk(inner, (*words, name))


COMMANDS = dict(walk(command_line()))


@pytest.mark.parametrize("line", KNOWN.read_text().splitlines(), ids=lambda line: line.partition(":")[0])
def test_no_option_is_lost(line: str) -> None:
    name, _, options = line.partition(":")
    now = {flag for one in COMMANDS[name].params for flag in (*one.opts, *one.secondary_opts)}
    assert set(options.split()) <= now


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_whole_on_80_columns(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown and max(map(len, shown.splitlines())) <= 80
    words = shown.split()
    for one in COMMANDS[name].params:
        if not getattr(one, "hidden", False):
            assert all(flag in words for flag in one.opts if flag.startswith("-")), one.name
            assert described(with_names(one.help), shown), one.help


def described(text: str, shown: str) -> bool:
    """Whether a description stands in the right column of a panel, line by line and whole."""
    columns = [re.split(r" {2,}", line.strip("│╭╮╰╯─ "), maxsplit=1)[-1] for line in shown.splitlines()]
    return re.sub(r"\W", "", text) in re.sub(r"\W", "", "".join(columns))


def test_all_commands_are_in_panels(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    panels = re.findall(r"╭─ ([\w ]+?) ─", shown)
    assert panels == ["Start here", "Links and field", "Studies", "Train", "Results", "Options"]
    for name, command in command_line().commands.items():
        assert re.search(rf"^│ {name} ", shown, re.MULTILINE)
        assert described(" ".join(command.help.split("\n\n")[0].split()), shown), name


def test_ue_run_has_panels(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["ue", "run", "--help"]) == 0
    panels = re.findall(r"╭─ ([\w ]+?) ─", capsys.readouterr().out)
    assert panels == [
        "Protocol",
        "Sampling",
        "Workload",
        "Base station",
        "Models",
        "Channel",
        "Checks",
        "Power",
        "Output",
    ]


def test_ue_run_reads_what_a_run_directory_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("{window: 0}\n")
    assert main(["ue", "run", "--config", str(path)]) == 2
    assert capsys.readouterr().err == f"testbed: {path}: window must lie in 1..256, not 0\n"
