"""Bundled files found by name: link traces, radio files, recorded drafts, device profiles, sweeps, field-run plans."""

from __future__ import annotations

from pathlib import Path

from testbed.errors import BadInput

PACKAGE = Path(__file__).parents[1]
CHECKOUT = PACKAGE.parent
KINDS = {"traces": ("traces", ".csv"), "profiles": ("hardware/profiles", ".yaml"), "sweeps": ("sweeps", ".yaml"),
         "plans": ("plans", ".yaml"), "radio files": ("traces/radio", ".npz"),
         "recorded drafts": ("traces/drafts", ".msgpack")}  # fmt: skip
"""Kind: folder in a checkout, and file extension. In an installed package the folder is under `bundled/`."""


def names(kind: str) -> list[str]:
    """Names of all bundled files of a kind, sorted."""
    return sorted(path.stem for path in folder(kind).glob(f"*{KINDS[kind][1]}"))


def find(kind: str, name: str) -> Path:
    """Path of a bundled file by name, or of a user's file by path.

    Raises:
        BadInput: no such file; the message lists the bundled ones.
    """
    bundled = folder(kind) / f"{name}{KINDS[kind][1]}"
    if bundled.parent == folder(kind) and bundled.is_file():
        return bundled
    if Path(name).is_file():
        return Path(name)
    raise BadInput(f"no {kind.removesuffix('s')} {name!r}: neither a file nor one of {', '.join(names(kind))}")


def folder(kind: str) -> Path:
    """Folder of a kind's files, in an installed package or in the checkout around it."""
    name = KINDS[kind][0]
    inside = PACKAGE / "bundled" / name
    return inside if inside.is_dir() else CHECKOUT / name
