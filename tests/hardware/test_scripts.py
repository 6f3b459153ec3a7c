"""The set-up scripts of `hardware/`: what they plan for recorded boards, and that a dry run is what the real run does.

Whether a whole set-up works is tried in a Debian of its own: `test_clean_place.py` (`make long`).
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.environment import pinned
from scripts.locked import ROOT
from tests.support.boards import cores, memory, recorded, write

HARDWARE = ROOT / "hardware"
SCRIPTS = sorted(HARDWARE.glob("*.sh"))
STATUS = (
    "Package: {}\nStatus: install ok installed\nMaintainer: none\nArchitecture: arm64\nVersion: 1\nDescription: -\n\n"
)


def call(script: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(HARDWARE / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=cwd)


def steps(stdout: str) -> list[list[str]]:
    """Commands of a run, split into words as a shell does."""
    return [shlex.split(line[2:]) for line in stdout.splitlines() if line.startswith("+ ")]


def plan(script: str, root: Path, *arguments: str) -> list[list[str]]:
    done = call(script, "--dry-run", "--root", str(root), *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("steps, nothing was changed\n")
    return steps(done.stdout)


def variables(command: list[str]) -> dict[str, str]:
    """Variables that `env NAME=VALUE ...` sets."""
    assert command[0] == "env"
    return dict(word.split("=", 1) for word in command[1:] if re.match(r"[A-Z_]+=", word))


def test_shellcheck_finds_nothing() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck: apt install shellcheck")
    done = subprocess.run(["shellcheck", "-x", *map(str, SCRIPTS)], cwd=HARDWARE, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


# ---------------------------------------------------------------- what is planned


@pytest.mark.parametrize(
    ("board", "script", "flags", "jobs"),
    [
        ("jetson-agx-orin", "jetson.sh", {"-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=87"}, "12"),
        ("jetson-orin-nano", "jetson.sh", {"-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=87"}, "5"),
        ("raspberry-pi-5", "raspberry-pi.sh", {"-DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod+fp16"}, "4"),
        ("raspberry-pi-4", "raspberry-pi.sh", {"-DGGML_CPU_ARM_ARCH=armv8-a"}, "2"),
    ],
)
def test_each_board_builds_for_its_own_processor(
    board: str, script: str, flags: set[str], jobs: str, tmp_path: Path
) -> None:
    recorded(board, tmp_path)
    planned = plan(script, tmp_path)
    setup = next(command for command in planned if str(ROOT / "scripts/environment.py") in command)
    assert setup[-4:] == ["--extras", "ue", "--from", str(ROOT)]
    assert flags <= set(variables(setup)["CMAKE_ARGS"].split())
    assert variables(setup)["CMAKE_BUILD_PARALLEL_LEVEL"] == jobs
    assert ("CUDACXX" in variables(setup)) is board.startswith("jetson")
    built = next(command for command in planned if command[1:2] == ["/opt/testbed/built.txt"])
    assert built[2].startswith(pinned("llama-cpp-python").replace("==", " "))
    assert not any("torch" in word or "vllm" in word for command in planned for word in command)


def test_what_is_installed_is_not_installed_again(tmp_path: Path) -> None:
    recorded("jetson-orin-nano", tmp_path)
    install = next(command for command in plan("jetson.sh", tmp_path) if "apt-get" in command and "install" in command)
    assert {"nvidia-jetpack", "g++", "python3-venv"} <= set(install)
    names = ("python3-venv", "gcc", "g++", "iproute2", "iperf3", "iw", "nvidia-jetpack")
    write(tmp_path, {"var/lib/dpkg/status": "".join(STATUS.format(name) for name in names)})
    assert not any("apt-get" in command for command in plan("jetson.sh", tmp_path))
    write(tmp_path, {"var/lib/dpkg/status": "".join(STATUS.format(name) for name in names if name != "iw")})
    install = next(command for command in plan("jetson.sh", tmp_path) if "apt-get" in command and "install" in command)
    assert install[-2:] == ["--no-install-recommends", "iw"]
    assert not any("apt-get" in command for command in plan("jetson.sh", tmp_path, "--no-packages"))


def test_the_service_is_installed_once(tmp_path: Path) -> None:
    recorded("raspberry-pi-5", tmp_path)
    assert not any("systemctl" in command for command in plan("raspberry-pi.sh", tmp_path))
    planned = plan("raspberry-pi.sh", tmp_path, "--service", "--tune")
    units = {command[1] for command in planned if command[0] == "write_unit"}
    assert units == {"testbed-agent.service", "devices.conf", "testbed-tune.service"}
    assert ["systemctl", "enable", "-q", "testbed-agent.service"] in planned
    assert any(command[0] == "useradd" for command in planned)
    state = next(command for command in planned if command[-1] == "/var/lib/testbed")
    assert state[state.index("-m") + 1] == "700"

    # What those steps would have left: then only the environment remains to be made.
    units_at = tmp_path / "etc/systemd/system"
    for command in planned:
        if command[0] == "write_unit":
            text = (HARDWARE / "systemd" / command[1]).read_text().replace("/opt/testbed", command[2])
            write(tmp_path, {command[3].lstrip("/"): text})
        if command[:2] == ["systemctl", "enable"]:
            (units_at / "multi-user.target.wants").mkdir(exist_ok=True)
            (units_at / "multi-user.target.wants" / command[-1]).symlink_to(units_at / command[-1])
    conf = (HARDWARE / "systemd/networkmanager.conf").read_text()
    write(tmp_path, {"etc/passwd": "testbed:x:999:999::/var/lib/testbed:/usr/sbin/nologin\n"})
    write(tmp_path, {"etc/NetworkManager/conf.d/90-testbed.conf": conf, "var/lib/testbed/work/x": ""})
    assert plan("raspberry-pi.sh", tmp_path, "--service", "--tune") == plan("raspberry-pi.sh", tmp_path)


def test_a_base_station_is_set_up_from_a_checkout(tmp_path: Path) -> None:
    write(
        tmp_path, {"machine": "x86_64\n", "proc/cpuinfo": cores(16), "proc/meminfo": memory(131_000_000, 120_000_000)}
    )
    missing = call("gpu-bs.sh", "--dry-run", "--root", str(tmp_path))
    assert missing.returncode == 1 and "no NVIDIA driver" in missing.stderr
    # /proc/driver/nvidia/gpus/DOMAIN:BUS:DEVICE.FUNCTION/information: README of NVIDIA's Linux driver, "proc interface"
    write(tmp_path, {"proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA A40\nIRQ:   \t\t 61\n"})
    planned = plan("gpu-bs.sh", tmp_path, "--service", "--prefix", "/srv/testbed")
    setup = next(command for command in planned if command[1:2] == ["/srv/testbed/source/scripts/environment.py"])
    assert setup[2:] == ["--venv", "/srv/testbed/venv", "--extras", "bs-cuda"]
    assert any(command[0] == "write_unit" and command[1] == "testbed-bs.service" for command in planned)
    assert call("gpu-bs.sh", "--dry-run", "--from", __file__).returncode == 2


@pytest.mark.parametrize(
    ("script", "board", "said"),
    [
        ("jetson.sh", "raspberry-pi-5", "no Jetson Orin"),
        ("raspberry-pi.sh", "jetson-agx-orin", "no Raspberry Pi 5 or 4"),
        ("x86-ue.sh", "raspberry-pi-5", "for x86_64"),
    ],
)
def test_a_script_refuses_another_board(script: str, board: str, said: str, tmp_path: Path) -> None:
    recorded(board, tmp_path)
    done = call(script, "--dry-run", "--root", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n"), steps(done.stdout)) == (1, 1, [])
    assert said in done.stderr


def test_an_older_jetpack_is_refused(tmp_path: Path) -> None:
    recorded("jetson-agx-orin", tmp_path)
    write(tmp_path, {"etc/nv_tegra_release": "# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref\n"})
    done = call("jetson.sh", "--dry-run", "--root", str(tmp_path))
    assert done.returncode == 1 and "JetPack 6" in done.stderr and "35.4.1" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--frob"], "unknown option --frob"),
        (["--prefix"], "--prefix needs a value"),
        (["--prefix", "--dry-run"], "--prefix needs a value"),
        (["--prefix", "somewhere"], "absolute path"),
        (["--prefix", "/opt/with blank"], "without spaces"),
        (["--service", "--prefix", "/home/someone/testbed"], "home directories"),
        (["--from", "/no/such/file.whl"], "no such wheel or checkout"),
        (["--from", "/etc/passwd"], "neither a wheel nor a checkout"),
        (["--root", "/tmp"], "--root needs --dry-run"),
    ],
)
def test_bad_options_are_one_line(arguments: list[str], said: str) -> None:
    done = call("x86-ue.sh", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said in done.stderr


@pytest.mark.parametrize("script", [path.name for path in SCRIPTS if path.name != "common.sh"])
def test_help_names_every_option(script: str) -> None:
    done = call(script, "--help")
    assert done.returncode == 0 and done.stdout.startswith("Set up a ")
    for option in re.findall(r"^ +(--[a-z-]+)", (HARDWARE / "common.sh").read_text(), re.MULTILINE):
        assert option in done.stdout


# ---------------------------------------------------------------- a dry run is what the real run does

SMALL = """\
set -euo pipefail
source {common}
read_options "small" "$@"
PYTHON={python}
plan mkdir -p "$PREFIX/a b"
plan write_text "$PREFIX/a b/note.txt" 'it'"'"'s $HOME, *, "quoted"'
plan env NAME='two words' sh -c 'printf "%s\\n" "$NAME" >"$0"' "$PREFIX/name"
if ! same_text "$PREFIX/unit" "$(with_prefix testbed-agent.service "$PREFIX")"; then
  plan write_unit testbed-agent.service "$PREFIX" "$PREFIX/unit"
fi
{more}
carry_out
"""


def small(tmp_path: Path, more: str = "") -> Path:
    script = tmp_path / "small.sh"
    script.write_text(SMALL.format(common=HARDWARE / "common.sh", python="/usr/bin/python3", more=more))
    return script


def test_a_real_run_prints_and_does_what_the_dry_run_prints(tmp_path: Path) -> None:
    script, prefix = small(tmp_path), tmp_path / "prefix"
    runs = {}
    for mode in (["--dry-run"], []):
        command = ["bash", str(script), "--prefix", str(prefix), *mode]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        runs[bool(mode)] = steps(done.stdout)
        assert prefix.exists() is not bool(mode)
    assert runs[True] == runs[False]
    assert len(runs[True]) == 4
    assert (prefix / "a b" / "note.txt").read_text() == 'it\'s $HOME, *, "quoted"\n'
    assert (prefix / "name").read_text() == "two words\n"
    assert f"ExecStart={prefix}/venv/bin/testbed ue agent " in (prefix / "unit").read_text()


def test_a_step_that_fails_ends_the_run(tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    script = small(tmp_path, 'plan false\nplan write_text "$PREFIX/after" never')
    command = ["bash", str(script), "--prefix", str(prefix)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "step failed" in done.stderr
    assert done.stdout.splitlines()[-1] == "+ false"
    assert (prefix / "unit").exists() and not (prefix / "after").exists()


def test_every_script_does_its_steps_through_the_plan() -> None:
    """Beside planned steps, scripts only look: nothing that changes a system stands there by itself."""
    changing = re.compile(r"^\s*(sudo|apt-get|install|mkdir|cp|rm|mv|ln|systemctl|useradd|usermod|tee|pip|python3?)\b")
    for path in SCRIPTS:
        body, _, tail = path.read_text().partition("# functions that are steps")
        lines = body.splitlines() + tail.partition("# the end of every script")[2].splitlines()
        assert [line for line in lines if changing.match(line)] == []


def test_the_source_decides_whether_to_install_again(tmp_path: Path) -> None:
    def digest(source: Path) -> str:
        code = f"source {HARDWARE / 'common.sh'}; FROM={source}; source_digest"
        return subprocess.run(
            ["bash", "-c", code], capture_output=True, text=True, check=True, timeout=60
        ).stdout.strip()

    source = tmp_path / "checkout"
    write(
        source, {"testbed/__init__.py": "", "testbed/__pycache__/x.pyc": "1", "traces/a.csv": "1", "sweeps/b.yaml": "1"}
    )
    write(source, {"hardware/profiles/c.yaml": "1", "plans/d.yaml": "1", "pyproject.toml": "", "README.md": "1"})
    before = digest(source)
    assert re.fullmatch("[0-9a-f]{64}", before)
    write(source, {"README.md": "2", "testbed/__pycache__/x.pyc": "2"})
    assert digest(source) == before
    write(source, {"traces/a.csv": "2"})
    assert digest(source) != before
    wheel = tmp_path / "testbed.whl"
    wheel.write_bytes(b"1")
    first = digest(wheel)
    wheel.write_bytes(b"2")
    assert digest(wheel) != first


def test_what_the_wheel_carries_is_what_is_looked_at() -> None:
    settings = (ROOT / "pyproject.toml").read_text()
    included = settings.partition("\n[tool.hatch.build.targets.wheel.force-include]\n")[2].partition("\n\n")[0]
    bundled = re.search(r"^BUNDLED=\(([^)]*)\)", (HARDWARE / "common.sh").read_text(), re.MULTILINE)
    assert bundled is not None
    assert set(bundled[1].split()) == set(re.findall(r'^"?([\w/]+)"? = ', included, re.MULTILINE))
    copied = re.search(r"\{(testbed,[^}]*)\}", (HARDWARE / "gpu-bs.sh").read_text())
    assert copied is not None
    assert {path.split("/")[0] for path in bundled[1].split()} <= set(copied[1].split(","))
