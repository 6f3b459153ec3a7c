"""Every command alike: help with examples that can be typed, `--json`, and one line for what cannot be taken."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
import typer

from testbed.assets import bundled_files
from testbed.bs.scheduling.registry import SCHEDULERS
from testbed.channel.formats.convert import FORMATS
from testbed.cli.main import command_line, main
from testbed.experiments.capacity.systems import system_names
from testbed.experiments.doctor import checks as doctor


def walk(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Names and commands, without the groups."""
    if not hasattr(command, "commands"):
        yield words, command
        return
    for name, inner in command.commands.items():
        yield from walk(inner, (*words, name))


COMMANDS = dict(walk(command_line()))
every = pytest.mark.parametrize("words", COMMANDS, ids=" ".join)


def test_a_command_is_imported_alone() -> None:
    """All of them take a second of CPU time, which every process of a run would spend."""
    code = "import sys; from testbed.cli.main import command_line; print(*command_line('bs').commands, *sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    name, *modules = said.split()
    assert name == "bs"
    assert "testbed.cli.bs" in modules
    assert "testbed.cli.cell" not in modules


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The error line of an invalid command line."""
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("testbed: ") and shown.err.count("\n") == 1, arguments
    return shown.err


def test_there_are_as_many_as_the_contract_names() -> None:
    groups = {words[0] for words in COMMANDS}
    assert len(COMMANDS) > 50
    assert {"bs", "ue", "channel", "head", "predictor", "estimator", "optim", "latency", "models", "keys"} < groups


@every
def test_help_says_what_everything_is(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--help"]) == 0
    shown = capsys.readouterr()
    assert f"Usage: testbed {' '.join(words)}" in shown.out and shown.err == ""
    assert all(parameter.help for parameter in COMMANDS[words].params if parameter.name != "help")


@every
def test_examples_can_be_typed(words: tuple[str, ...]) -> None:
    """Each is read by the command's own parser: no option is misspelt, no value of a wrong type, nothing missing."""
    text = " ".join(words)
    lines = [line.strip() for line in (COMMANDS[words].help or "").splitlines()]
    examples = [line for line in lines if line.startswith(f"testbed {text}")]
    assert examples
    for line in examples:
        arguments = shlex.split(re.split(r" [>|&] ?", line)[0])[1 + len(words) :]
        with COMMANDS[words].make_context(text, arguments, parent=typer.Context(COMMANDS[words])) as context:
            assert context.params


@every
def test_one_document_of_json_can_be_asked_for(words: tuple[str, ...]) -> None:
    assert "--json" in {option for parameter in COMMANDS[words].params for option in parameter.opts}


@every
def test_an_option_that_is_not_there(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, *words, "--no-such-option")
    assert "--no-such-option" in said and f"testbed {' '.join(words)} --help" in said


@every
def test_what_is_needed_is_asked_for(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    needed = [parameter for parameter in COMMANDS[words].params if parameter.required]
    if needed:
        said = refused(capsys, *words)
        names = {name for one in needed for name in (one.name, one.metavar, *one.opts) if name}
        assert said.startswith("testbed: Missing ") and any(f"'{name}'" in said for name in names)


def numbers(command: Any) -> Iterator[str]:
    """Options whose values are numbers, by the annotations of the function behind them."""
    kinds = get_type_hints(inspect.unwrap(command.callback))
    for parameter in command.params:
        kind = kinds.get(parameter.name)
        takes_one = parameter.param_type_name == "option" and not (parameter.is_flag or parameter.count)
        if takes_one and {kind, *get_args(kind)} & {int, float}:
            yield parameter.opts[0]


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("sweep", "[OPTIONS] [FILE]"),
        ("report", "[OPTIONS] RUNS..."),
        ("channel convert", "[OPTIONS] IN..."),
        ("keys revoke", "[OPTIONS] DIR NAME"),
    ],
)
def test_the_usage_names_arguments_as_the_panels_do(words: str, usage: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([*words.split(), "--help"])
    assert f"Usage: testbed {words} {usage}\n" in "\n".join(map(str.strip, capsys.readouterr().out.splitlines())) + "\n"


NUMBERS = [(words, option) for words, command in COMMANDS.items() for option in numbers(command)]


@pytest.mark.parametrize(("words", "option"), NUMBERS, ids=lambda value: value if isinstance(value, str) else value[-1])
def test_a_number_is_a_number(words: tuple[str, ...], option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert option in refused(capsys, *words, option, "many")


def test_a_command_that_is_nearly_right_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "capacity" in refused(capsys, "capacty")
    assert "profile" in refused(capsys, "estimator", "profil")


@pytest.mark.parametrize(
    ("words", "found"),
    [("testbed cap", "capacity"), ("testbed estimator prof", "profile"), ("testbed bs serve --eng", "--engine")],
)
def test_the_shell_completes(
    words: str, found: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert completed(words, monkeypatch, capsys) == [found]


def completed(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Completions of the last word."""
    for name, value in (
        ("_TESTBED_COMPLETE", "complete_bash"),
        ("COMP_WORDS", words),
        ("COMP_CWORD", str(words.count(" "))),
    ):
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main([])
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("capacity --systems wisp,", [f"wisp,{name}" for name in system_names()]),
        ("bs serve --scheduler ", list(SCHEDULERS)),
        ("demo --methods gr", ["greedy"]),
        ("demo --auto-rule ", ["rtt", "latency"]),
        ("bs serve --pace ", bundled_files.names("profiles")),
        ("ue run --pad ", bundled_files.names("profiles")),
        ("capacity --profile ", bundled_files.names("profiles")),
        ("bs serve --model s", ["smollm2"]),
        ("models fetch ", ["smollm2-draft", "smollm2"]),
        ("latency measure --link ", bundled_files.names("traces")),
        ("channel replay ", bundled_files.names("traces")),
        ("channel emulate --trace ", bundled_files.names("traces")),
        ("channel convert --from ", list(FORMATS)),
        ("field run ", bundled_files.names("plans")),
        ("sweep wisv", [name for name in bundled_files.names("sweeps") if name.startswith("wisv")]),
        ("optim plan --algorithm a", ["autoregressive"]),
        ("optim run --policies uniform,m", ["uniform,max-min"]),
        ("predictor train --models m", ["mlp"]),
    ],
)
def test_the_shell_completes_names(
    words: str, names: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert names and completed(f"testbed {words}", monkeypatch, capsys) == names


# ---------------------------------------------------------------- doctor


def test_the_doctor_answers_in_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {"llama.cpp drafter", "vLLM engine", "bundled pair", "iperf3", "tc", "power sensors"} <= {
        finding["name"] for finding in findings
    }
    assert all(set(finding) == {"name", "ok", "found", "fix"} for finding in findings)


def test_a_bare_machine_is_told_how_to_get_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda *_: None)
    monkeypatch.setattr(doctor.shutil, "which", lambda *_: None)
    monkeypatch.setattr(doctor, "output", lambda *_: "")
    lacking = [finding for finding in doctor.examine() if not finding.ok]
    assert len(lacking) >= 10
    assert all(finding.fix and finding.found for finding in lacking)
    assert all(re.search(r"make setup|apt install|modprobe|run as root|testbed models|optional|meter", finding.fix)
               for finding in lacking)  # fmt: skip


def test_examples_in_help_keep_their_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    main(["sweep", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "methods: [greedy, fh], prompts: 50" in said and "window: [8, 16], rate_mbps: [20, 500]" in said
