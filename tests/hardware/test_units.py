"""The systemd units: that systemd takes them, how far they are closed, and that what they start is there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.locked import ROOT
from testbed.cli.main import command_line

UNITS = ROOT / "hardware" / "systemd"
SERVICES = ("testbed-agent.service", "testbed-bs.service")
LARGEST_EXPOSURE = {False: 2.0, True: 2.5}
"""Without and with devices, of systemd-analyze's scale from 0 to 10; a unit without any of these settings has 9.6."""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units as the scripts install them, with a program where they expect one."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze: apt install systemd")
    program = tmp_path / "venv" / "bin" / "testbed"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for path in UNITS.glob("*.service"):
        (tmp_path / path.name).write_text(path.read_text().replace("/opt/testbed", str(tmp_path)))
    return tmp_path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("name", [*SERVICES, "testbed-tune.service"])
def test_systemd_takes_the_unit(name: str, installed: Path) -> None:
    done = analyze("verify", str(installed / name))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_systemd_would_notice_a_wrong_one(installed: Path) -> None:
    broken = installed / "broken.service"
    broken.write_text((installed / SERVICES[0]).read_text().replace("ProtectSystem=strict", "ProtectSystm=strict"))
    assert "ProtectSystm" in analyze("verify", str(broken)).stderr


@pytest.mark.parametrize("devices", [False, True])
@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_reach_little(name: str, devices: bool, installed: Path) -> None:
    if devices:
        # With the drop-in for GPU and firmware; offline, systemd-analyze reads drop-ins below --root alone.
        text = (installed / name).read_text() + (UNITS / "devices.conf").read_text().replace("[Service]", "[Service]\n")
        (installed / name).write_text(text)
    done = analyze("security", "--offline=true", str(installed / name))
    exposure = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert exposure is not None, done.stdout + done.stderr
    assert float(exposure[1]) <= LARGEST_EXPOSURE[devices]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_restarts_and_is_bounded(name: str) -> None:
    settings = dict(line.split("=", 1) for line in (UNITS / name).read_text().splitlines() if re.match(r"\w+=", line))
    assert settings["User"] == "testbed"
    assert settings["NoNewPrivileges"] == "yes" and settings["ProtectSystem"] == "strict"
    assert settings["Restart"] == "on-failure" and settings["MemoryMax"].endswith("%")
    assert settings["RestartPreventExitStatus"] == "2"


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_starts_is_a_command_with_these_options(name: str) -> None:
    start = re.search(r"^ExecStart=\S+/testbed (.+)$", (UNITS / name).read_text(), re.MULTILINE)
    assert start is not None
    given = start[1].split()
    options = [word for word in given if word.startswith("--")]
    extra = re.search(r"^TESTBED_BS_OPTIONS=(.+)$", (UNITS / "bs.env").read_text(), re.MULTILINE)
    assert extra is not None
    if "$TESTBED_BS_OPTIONS" in given:
        options += [word for word in extra[1].split() if word.startswith("--")]
    command = command_line()
    for word in given[:2]:
        command = command.commands[word]  # type: ignore[attr-defined]
    known = {name for parameter in command.params for name in parameter.opts}
    assert set(options) <= known
