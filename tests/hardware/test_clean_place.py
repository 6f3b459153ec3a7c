"""The set-up of an x86 UE for real, in a Debian of its own: as planned, twice, and then a run with a base station.

The Debian is made by debootstrap; nothing but what a script was asked for changes outside of it, and mounts end with
the process that made them. Packages come from where apt and pip of this machine look.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.environment import output
from scripts.indexes import pip_settings
from scripts.locked import ROOT
from scripts.wheels import build
from testbed.config import ServeConfig
from testbed.experiments.runs.processes import base_station
from testbed.models.bundle import bundled
from tests.hardware.test_scripts import steps

pytestmark = [pytest.mark.long, pytest.mark.root, pytest.mark.timeout(3000)]
PROGRAM = "/opt/testbed/venv/bin/testbed"
SUITE = "bookworm"


class Place:
    """A Debian below a directory, the checkout read-only at the same path as here."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = pip_settings(output(sys.executable, "-m", "pip", "config", "list"))

    def call(self, command: str, timeout_s: float = 1500) -> subprocess.CompletedProcess[str]:
        """Run a shell command inside, with an empty home and a short path."""
        mounts = [f"mount -t proc proc {self.root}/proc", f"mount --rbind /dev {self.root}/dev"]
        for place in self._shared():
            inside = f"{self.root}{place}"
            made = (
                f"mkdir -p {inside}"
                if place.is_dir()
                else f"mkdir -p {Path(inside).parent} && {{ [ -e {inside} ] || touch {inside}; }}"
            )
            mounts.append(f"{made} && mount --bind {place} {inside} && mount -o remount,bind,ro {inside}")
        environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/home/nobody-yet", "LC_ALL": "C.UTF-8"}
        environ |= {f"PIP_{key.replace('-', '_').upper()}": value for key, value in self.settings.items()}
        environ["PIP_FIND_LINKS"] = f"{environ.get('PIP_FIND_LINKS', '')} {ROOT / '.venv' / 'wheels'}".strip()
        words = " ".join(shlex.quote(f"{key}={value}") for key, value in environ.items())
        chroot = f"exec chroot {self.root} env -i {words} sh -c {shlex.quote(command)}"
        script = " && ".join(["set -e", *mounts, chroot])
        return subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "bash", "-c", script],
            capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip

    def _shared(self) -> list[Path]:
        """Files that are visible inside: the checkout and pip's configuration."""
        values = [value for key, value in self.settings.items() if key in ("extra-index-url", "find-links", "cert")]
        words = [word.removeprefix("file://") for value in values for word in value.split()]
        local = [Path(word) for word in words if word.startswith("/") and Path(word).exists()]
        # An index of files points at folders beside it.
        return [ROOT, *(path.parent if path.name == "simple" else path for path in local)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if os.geteuid() or not all(shutil.which(name) for name in ("debootstrap", "unshare", "chroot")):
        pytest.skip("needs root and debootstrap: apt install debootstrap")
    root = tmp_path_factory.mktemp("debian")
    command = ["debootstrap", "--variant=minbase", "--include=ca-certificates,systemd", SUITE, str(root)]
    subprocess.run(command, check=True, capture_output=True, timeout=1500)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    (root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")  # packages start no services
    (root / "usr/sbin/policy-rc.d").chmod(0o755)
    yield Place(root)
    shutil.rmtree(root)


def test_an_x86_ue_is_set_up_as_planned_and_once(place: Place, tmp_path: Path) -> None:
    wheel = build(place.root / "srv")
    script = f"{ROOT}/hardware/x86-ue.sh --from /srv/{wheel.name} --service --tune"
    # A script needs a Python to look with; apt's is what a fresh Debian would get first.
    first = place.call("apt-get update -q && apt-get install -q -y --no-install-recommends python3")
    assert first.returncode == 0, first.stderr
    before = listing(place)
    dry = place.call(f"{script} --dry-run")
    assert dry.returncode == 0, dry.stderr
    assert listing(place) == before
    real = place.call(script)
    assert real.returncode == 0, real.stderr[-4000:]
    assert steps(real.stdout) == steps(dry.stdout)
    assert [line for line in real.stdout.splitlines() if line.startswith("= ")] == [
        line for line in dry.stdout.splitlines() if line.startswith("= ")
    ]
    words = {command[0] for command in steps(real.stdout)}
    assert {"apt-get", "mkdir", "env", "useradd", "systemctl", "write_unit", "write_text"} <= words
    after = listing(place)
    assert after != before

    again = place.call(script)
    assert (again.returncode, steps(again.stdout)) == (0, []), again.stderr
    assert again.stdout.endswith("nothing to do: everything is in place\n")
    assert listing(place) == after

    wants = place.root / "etc/systemd/system/multi-user.target.wants"
    assert {path.name for path in wants.glob("testbed-*")} == {"testbed-agent.service", "testbed-tune.service"}
    assert (place.root / "var/lib/testbed").stat().st_mode & 0o777 == 0o700


def test_what_was_set_up_drafts_for_a_base_station(place: Place) -> None:
    target = bundled().require("target")
    with base_station(ServeConfig(engine="transformers", model=str(target), bind="tcp://127.0.0.1:*")) as ready:
        done = place.call(f"{PROGRAM} ue run --bs {ready['bind']} --limit 2 --max-tokens 24 --warmup 0 --json", 280)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told["outputs"]) == 2 and all(output["token_ids"] for output in told["outputs"])
    without = place.call("/opt/testbed/venv/bin/python -c 'import torch'")
    assert without.returncode == 1 and "No module named 'torch'" in without.stderr


def listing(place: Place) -> dict[str, tuple[int, int, int]]:
    """Every file inside but caches, logs and what is mounted: mode, size, time of change."""
    left_out = (
        "proc",
        "dev",
        "sys",
        "run",
        "tmp",
        "var/log",
        "var/cache",
        "var/lib/apt",
        str(ROOT).lstrip("/"),
        "root",
    )
    found = {}
    for folder, folders, files in os.walk(place.root):
        inside = os.path.relpath(folder, place.root)
        folders[:] = [name for name in folders if os.path.normpath(os.path.join(inside, name)) not in left_out]
        for name in files:
            path = os.path.join(folder, name)
            if name.endswith(".pyc"):
                continue
            status = os.lstat(path)
            found[os.path.join(inside, name)] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found
