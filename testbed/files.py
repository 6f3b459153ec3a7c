"""Atomic file writes, JSON objects of models, YAML, arrays, output folders, and exclusive locks on them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from testbed.errors import BadInput, ModelError, TestbedError

T = TypeVar("T")
MISTAKEN = {errno.EISDIR, errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}
"""Error numbers that mean a wrong path, not a failing disk."""
MOST_VALUES, MOST_DEPTH, MOST_BYTES = 1_000_000, 100, 2**26
"""Largest number of values in a YAML document, and of lists and mappings within each other; its largest size."""
MOST_DIGITS = 300
"""Digits of an integer that is a float, too."""
APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
"""How a lock file is opened: not through a link to elsewhere, and without waiting where it is a pipe."""
LOCK = ".lock"
"""Name of the lock file in a locked folder."""


def cache_folder() -> Path:
    """The testbed's folder in the user's cache, which may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "testbed"


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which replaces `path` on success: readers never see a partial file.

    Raises:
        BadInput: `path` is not writable, or a device, pipe or socket, which a file would replace.
        TestbedError: writing failed, for example on a full disk; the old file is kept.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise BadInput(f"cannot write {path}: not a regular file")
        part.unlink(missing_ok=True)  # a link to elsewhere, in a folder of somebody else's
        yield part
        part.replace(path)
    except OSError as exc:
        reason = os.strerror(exc.errno) if exc.errno else exc  # messages of libraries vary
        kind = BadInput if exc.errno in MISTAKEN else TestbedError
        raise kind(f"cannot write {path}: {reason}") from exc
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def is_part(path: Path) -> bool:
    """Whether it has the name of an unfinished file of `whole_file`, whose process was killed perhaps."""
    return re.fullmatch(r"\..+\.[0-9]+", path.name) is not None


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model.

    Raises:
        ModelError: the file is missing, unreadable, not an object, or not JSON for `json_values`.
    """
    try:
        document = json_values(file_bytes(path))
    except OSError as exc:
        raise ModelError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    except ValueError as exc:
        raise ModelError(f"{path} is not JSON that can be used: {exc}") from exc
    if not isinstance(document, dict):
        raise ModelError(f"{path} holds no JSON object")
    return document


def json_values(content: bytes | str) -> Any:
    """The values in a JSON document.

    Raises:
        ValueError: it is not JSON, or nested too deeply; it has integers beyond those of floats, or half a surrogate
            pair, which is no text; or a key occurs twice in an object: one of both values would be lost.
    """
    try:
        text = content if isinstance(content, str) else content.decode(json.detect_encoding(content))
        found = json.loads(text, object_pairs_hook=_object, parse_int=_integer)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc
    return found


def _integer(text: str) -> int:
    """An integer, which may be of more than 64 bits: transformers writes 10^30 as the positions of a tokenizer."""
    if len(text) > MOST_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {max(keys, key=keys.count)!r:.80} is there twice")
    return found


def regular_bytes(path: Path) -> int:
    """Size of a regular file.

    Raises:
        OSError: there is none, or it is no regular file: a device or pipe may never end.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return found.st_size


def file_bytes(path: Path, most: int | None = None) -> bytes:
    """The contents of a regular file of at most `most` bytes, by default `MOST_BYTES`.

    Raises:
        OSError: it cannot be read, is larger, or is no regular file.
    """
    most = MOST_BYTES if most is None else most
    if regular_bytes(path) > most:
        raise OSError(errno.EFBIG, f"larger than {most} bytes", str(path))
    return path.read_bytes()


def yaml_file(path: Path, pipes: bool = False) -> Any:
    """The values in a YAML file.

    Args:
        pipes: whether a pipe or device is read, too, as one that a person names.

    Raises:
        BadInput: see `yaml_values`; or more than `MOST_BYTES`, as of a device that never ends.
        OSError: it cannot be read.
    """
    if not pipes:
        regular_bytes(path)
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise BadInput(f"more than {MOST_BYTES} bytes")
    return yaml_values(content)


def yaml_values(content: bytes) -> Any:
    """The values in a YAML document.

    Raises:
        BadInput: it is no YAML, is nested too deeply, or has more than `MOST_VALUES` values, those of aliases counted
            each time: a short file may stand for billions of them. Or a key occurs twice in a mapping.
    """
    import yaml

    try:
        _check_size(_with_distinct_keys(yaml.parse(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader))))
        return msgspec.yaml.decode(content)
    except (yaml.YAMLError, msgspec.DecodeError, ValueError) as exc:  # ValueError: a date or number that is none
        raise BadInput(f"not YAML that can be used: {exc}") from exc


def _with_distinct_keys(events: Iterable[Any]) -> Iterator[Any]:
    """The same events, up to a key that its mapping has already: one of both values would be lost.

    Raises:
        BadInput: there is such a key.
    """
    import yaml

    open_: list[tuple[set[str] | None, int]] = []
    """Keys of each open mapping so far, None for a sequence, and its number of keys and values."""
    for event in events:
        yield event
        if isinstance(event, yaml.CollectionEndEvent):
            open_.pop()
        elif isinstance(event, yaml.NodeEvent):
            if open_:
                keys, count = open_.pop()
                if keys is not None and count % 2 == 0 and isinstance(event, yaml.ScalarEvent):
                    if event.value in keys:
                        raise BadInput(f"the key {event.value!r} is there twice (line {event.start_mark.line + 1})")
                    keys.add(event.value)
                open_.append((keys, count + 1))
            if isinstance(event, yaml.CollectionStartEvent):
                open_.append((set() if isinstance(event, yaml.MappingStartEvent) else None, 0))


def _check_size(events: Iterable[Any]) -> None:
    """Count the values that a document stands for, before they are made: mappings that are merged (`<<`) are copied.

    Raises:
        BadInput: too many, or nested too deeply for libyaml, whose own recursion would overflow the stack.
    """
    import yaml

    sizes: dict[str | None, int] = {}
    """Number of values by anchor; of a collection that is not closed yet, too many, since an alias in it has no end."""
    open_: list[tuple[str | None, int]] = [(None, 0)]
    """Anchors of the collections around the next value, and their numbers of values so far."""
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, 1))
            sizes[event.anchor] = MOST_VALUES
            if len(open_) > MOST_DEPTH + 1:
                raise BadInput(f"values nested more than {MOST_DEPTH} deep")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, more = open_.pop()
        elif isinstance(event, (yaml.AliasEvent, yaml.ScalarEvent)):
            anchor, more = event.anchor, sizes.get(event.anchor, 1) if isinstance(event, yaml.AliasEvent) else 1
        else:
            continue
        sizes[anchor] = more
        outer, count = open_.pop()
        open_.append((outer, count + more))
        if count + more > MOST_VALUES:
            raise BadInput(f"more than {MOST_VALUES} values, aliases included")


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, unless it exists.

    Raises:
        BadInput: it cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise BadInput(f"cannot create {folder}: {exc.strerror or exc}") from exc


def require_empty(folder: Path, but: str = "") -> None:
    """Refuse a folder with files in it, hidden ones aside; a missing folder is empty.

    Args:
        but: addition to the message, such as "and holds no sweep".

    Raises:
        BadInput: it is not empty.
    """
    if folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise BadInput(f"{' '.join(filter(None, (f'{folder} is not empty', but)))}; choose another --out")


def claim(
    path: Path,
    mine: T,
    read: Callable[[Path], T],
    write: Callable[[T, Path], None],
    what: str,
    agree: Callable[[T], None] | None = None,
) -> None:
    """Record at `path` what its folder is used for; the same again resumes, anything else is refused.

    Args:
        what: kind of folder, for messages.
        agree: raises unless a run that was recorded earlier can be resumed; None: unless both are equal.

    Raises:
        BadInput: the folder is used for something else, or cannot be created.
    """
    if not path.exists():
        make_folder(path.parent)
        write(mine, path)
        return
    before = read(path)
    if agree is not None:
        agree(before)
    elif before != mine:
        raise BadInput(f"{path.parent} holds another {what}; choose another --out, or resume with the same settings")
    if before != mine:
        write(mine, path)


@contextlib.contextmanager
def held(folder: Path, taken: str) -> Iterator[None]:
    """Lock a folder, created if missing, for this process; the lock ends with the process.

    Args:
        taken: error message if another process holds the lock.

    Raises:
        BadInput: the folder cannot be created or written to, or another process holds it.
    """
    make_folder(folder)
    try:
        lock = os.fdopen(os.open(folder / LOCK, APPEND, 0o666), "a")
    except OSError as exc:
        raise BadInput(f"cannot write {folder / LOCK}: {exc.strerror or exc}") from exc
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise BadInput(taken) from exc
        yield


def check_folder_name(name: str) -> None:
    """Check a name of a folder, or of files but for their endings.

    Raises:
        BadInput: a path, too long, or with characters that cannot be printed.
    """
    if "/" in name or not name.strip(".") or not name.isprintable() or len(os.fsencode(name)) > 200:
        raise BadInput(f"name must be the name of a folder, not {name[:200]!r}")
