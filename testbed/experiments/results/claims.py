"""Output directories that belong to one configuration, and results kept in them so that a second call resumes."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from testbed.assets.fingerprints import file_stamp
from testbed.config import Config, load, resolved, save
from testbed.errors import BadInput
from testbed.experiments.inputs.scorers import scorer_file
from testbed.experiments.results.folders import refuse_links
from testbed.files import claim, file_bytes, held, require_empty, whole_file, yaml_file

LOG = logging.getLogger(__name__)
CONFIG = "config.yaml"
INPUTS = "inputs.json"
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Quantity = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Share = Annotated[float, msgspec.Meta(ge=0, le=2)]
"""Numbers in results that are kept; what begins or ends outside of a short run may make a share of time more than 1."""
C = TypeVar("C", bound=Config)
T = TypeVar("T")


@contextlib.contextmanager
def reserved(out: Path) -> Iterator[None]:
    """Lock a new or empty directory, created if missing, for the results of this process.

    Raises:
        BadInput: it has files in it, another process writes its results there, or it cannot be written to.
    """
    require_empty(out)
    with held(out, f"another process writes its results into {out}; choose another --out"):
        require_empty(out)
        yield


@contextlib.contextmanager
def claimed(
    config: C,
    out: Path,
    what: str,
    agree: Callable[[C], None] | None = None,
    *,
    resumes: bool = True,
    stamped: bool = True,
) -> Iterator[None]:
    """Reserve a directory for one configuration, saved as `config.yaml`, and lock it for this process.

    Fingerprints of the files that the configuration names are kept, too, as `inputs.json`. A command that is refused
    before it has made anything gives up a directory that it was the first to reserve.

    Args:
        what: kind of run, for messages.
        agree: see `files.claim`.
        resumes: whether the same command goes on with what is finished; Ctrl-C logs it then.
        stamped: whether finished results are kept only as long as these files do not change; False: results know by
            themselves which files they were computed from.

    Raises:
        BadInput: the directory belongs to another configuration or contains other files, is in use by another process,
            or cannot be written to; has links in it, which an archive of somebody else may; or one of the files has
            changed.
    """
    if first := not (out / CONFIG).exists():
        require_empty(out, f"and holds no {what}")
    with held(out, f"another process is running the {what} in {out}; wait for it, or choose another --out"):
        refuse_links(out)
        claim(out / CONFIG, config, lambda path: load(type(config), path), save, what, agree)
        if resumes and stamped:
            compare_inputs(resolved(config), out)
        try:
            yield
        except KeyboardInterrupt:
            if resumes:
                LOG.warning("what the %s has finished is kept in %s; the same command goes on", what, out)
            raise
        except BadInput:
            if first:
                _give_up(out)
            raise


def _give_up(out: Path) -> None:
    """Remove the claim to a directory in which there is nothing else but empty folders."""
    made = [path for path in out.iterdir() if path.name not in (CONFIG, INPUTS) and not path.name.startswith(".")]
    if any(not path.is_dir() or any(path.iterdir()) for path in made):
        return
    for folder in made:
        folder.rmdir()
    for name in (CONFIG, INPUTS):
        (out / name).unlink(missing_ok=True)


def compare_inputs(settings: Any, out: Path) -> None:
    """Compare the files that settings name with those from which the results in a directory were computed, or write
    down their fingerprints, if these are the first.

    Raises:
        BadInput: one has changed.
    """
    now = stamps(settings)
    if name := changed(kept(out / INPUTS, dict[str, str], lambda: now), now):
        raise BadInput(f"{name} has changed since the results in {out} were begun; choose another --out")


def changed(before: dict[str, str], now: dict[str, str]) -> str | None:
    """The first file whose fingerprint has changed; None: none has."""
    return next((name for name in sorted(before.keys() & now.keys()) if before[name] != now[name]), None)


def stamps(value: Any, inside: bool = True) -> dict[str, str]:
    """Fingerprints of the files that are named anywhere in settings, be it as `key=FILE`, `suffix+FILE` or
    `FILE:function`, and of the modules of scorers.

    Args:
        inside: those that a YAML file among them names, too.
    """
    if isinstance(value, str):
        found = {}
        ends = (part.partition("=")[2] for part in value.split(","))
        for name in filter(None, {value, value.rpartition(":")[0], *ends, *re.split("[+=,]", value)}):
            with contextlib.suppress(OSError, ValueError):  # no possible name of a file
                if (stamp := file_stamp(name)) is not None:
                    found[name] = stamp
                    if inside and Path(name).suffix in (".yaml", ".yml"):
                        found |= _stamps_inside(Path(name))
        return found
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    if isinstance(value, dict) and (scorers := value.get("scorer")) is not None:
        parts = [*parts, *(scorer_file(str(one)) for one in (scorers if isinstance(scorers, list) else [scorers]))]
    return {name: stamp for part in parts for name, stamp in stamps(part, inside).items()}


def _stamps_inside(path: Path) -> dict[str, str]:
    """Fingerprints of the files that a YAML file names; none if it is not readable."""
    with contextlib.suppress(OSError, BadInput, RecursionError):
        return stamps(yaml_file(path), inside=False)
    return {}


def kept(path: Path, kind: type[T], make: Callable[[], T]) -> T:
    """A result from its JSON file; computed and written there if the file is missing.

    Raises:
        BadInput: the file is damaged.
    """
    if not path.exists():
        made = make()
        with whole_file(path) as part:
            part.write_bytes(msgspec.json.encode(made))
    try:
        return msgspec.json.decode(file_bytes(path), type=kind)
    except (OSError, BadInput, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadInput(f"{path} is damaged ({exc}); remove it, and its result is computed again") from exc


KEYS = 2
"""Version of the files of `kept_under`; results of an earlier one are computed again."""


class _Named(msgspec.Struct, Generic[T]):
    """A result, and the name of the file that it is kept in."""

    key: str
    result: T


def kept_under(
    folder: Path, parts: Any, kind: type[T], make: Callable[[], T], check: Callable[[T], object] = lambda _: None
) -> T:
    """A result from the file in a folder whose name is a digest of all that it depends on; see `kept`.

    Args:
        check: raises `ValidationError` for a damaged result.

    Raises:
        BadInput: the file is damaged, or of another result.
    """
    key = hashlib.blake2b(msgspec.json.encode([KEYS, parts]), digest_size=10).hexdigest()
    path = folder / f"{key}.json"
    found: _Named[T] = kept(path, _Named[kind], lambda: _Named(key, make()))  # type: ignore[valid-type]
    try:
        check(found.result)
    except msgspec.ValidationError as exc:
        raise BadInput(f"{path} is damaged ({exc}); remove it, and its result is computed again") from exc
    if found.key != key:
        raise BadInput(f"{path} is of another run; remove it, and its result is computed again")
    return found.result
