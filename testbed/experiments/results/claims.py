"""A directory belongs to one configuration: the same again resumes, another is refused."""

from __future__ import annotations

from pathlib import Path

from testbed.config import Config, load, save
from testbed.errors import BadInput


def claim(config: Config, out: Path, what: str) -> None:
    """Make a directory this configuration's, or see that it is.

    Args:
        what: names the kind of run, for messages.

    Raises:
        BadInput: it is another's, is not empty, or cannot be written.
    """
    path = out / "config.yaml"
    if path.exists():
        if load(type(config), path) != config:
            raise BadInput(f"{out} holds another configuration; give another --out, or the same one to resume")
        return
    if out.exists() and any(out.iterdir()):
        raise BadInput(f"{out} is not empty and holds no {what}; give another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        save(config, path)
    except OSError as exc:
        raise BadInput(f"cannot write into {out}: {exc.strerror or exc}") from exc
