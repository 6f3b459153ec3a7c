"""Half-open connections: hosts of UEs vanish without a word, and the base station keeps connections to nobody.

An address of a namespace of its own is removed, so that nothing reaches it and nothing leaves it, not even the end of
its connections. `half_open` runs this module anew under `unshare`.

    python -m tests.faults.half_open '{"times": 3, "seed": 0, "folder": "/tmp/x", "expected": []}'
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from testbed.protocols import PROTOCOLS
from tests.faults.limits import recovered
from tests.faults.links import Reference, judged
from tests.faults.outcome import Outcome, counted
from tests.faults.site import Child, Site, Station, site
from tests.support.postman import Fault

GONE_S = 6.0
"""Silence of a host after which the base station of this test closes its connections."""


async def half_open(times: int, seed: int, folder: Path, expected: Reference) -> Outcome:
    """UEs' hosts vanish, and the UEs come back from elsewhere, every other one as one that is not known; counted when
    the BS's side of the connection was still established then. All of them must be closed in the end.
    """
    said = {"times": times, "seed": seed, "folder": str(folder), "expected": list(expected.items())}
    child = await Child.start(
        "half-open", "tests.faults.half_open", json.dumps(said), prefix=("unshare", "-rn")
    )  # fmt: skip
    assert await child.ended(600.0) == 0, child.complaints[-5:]
    return msgspec.convert(child.said[-1], Outcome)


def namespaces_available() -> str | None:
    """Why there can be no network of its own here; None: there can."""
    try:
        done = subprocess.run(["unshare", "-rn", "ip", "link"], capture_output=True, timeout=10, check=False)
    except OSError as exc:
        return f"no unshare: {exc}"
    return None if done.returncode == 0 else "namespaces are not allowed here, or there is no ip (apt install iproute2)"


class Hosts:
    """Addresses of UEs in this namespace."""

    def __init__(self, station: Station) -> None:
        self._station, self._count = station, 0
        self._of: dict[bytes, str] = {}
        _ip("link", "set", "lo", "up")

    def move(self, found: Site, ue: bytes, anew: bool) -> None:
        """Have a UE's host vanish, if it has an address here, and give the UE another; `anew`: as an unknown UE."""
        if (old := self._of.pop(ue, None)) is not None:
            _ip("addr", "del", f"{old}/32", "dev", "lo")
        self._count += 1
        self._of[ue] = f"10.9.{self._count // 250}.{self._count % 250 + 1}"
        _ip("addr", "add", f"{self._of[ue]}/32", "dev", "lo")
        identity = b"%s/%d" % (ue, self._count) if anew else ue
        reached = self._station.address.removeprefix("tcp://")
        found.postman.reconnect(ue, identity, f"tcp://{self._of[ue]}:0;{reached}")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=10)


def established(station: Station) -> int:
    """Established connections at the BS's port, its side."""
    port = f":{int(station.address.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(port) and row[3] == "01" for row in rows)


async def vanishing(times: int, seed: int, folder: Path, expected: Reference) -> Outcome:
    """See `half_open`, within the namespace."""
    fault, start_s, dice = "connections half open", time.monotonic(), random.Random(f"half-open/{seed}")
    station, phases, most = Station(folder, gone_s=GONE_S), list[str](), 0
    hosts = Hosts(station)
    async with site(station) as found:
        await found.begin(4, methods=tuple(PROTOCOLS))
        for ue in found.postman.ues:
            hosts.move(found, ue, anew=False)
        await asyncio.sleep(1.0)
        alive = established(station)
        while len(phases) < times:
            await asyncio.sleep(dice.uniform(0.0, 0.3))
            ue, anew = dice.choice(found.postman.ues), dice.random() < 0.5
            hosts.move(found, ue, anew)
            hit: list[Fault] = [found.postman.watch("moved", one) for one in found.postman.sessions_of(ue)]
            await asyncio.sleep(0.05)
            if established(station) > alive or not anew:
                phases.append("as another UE" if anew else "as the same UE")
            most = max(most, established(station) - alive)
            assert hit
            await recovered(found)
        await found.until(lambda: established(station) <= alive, 4 * GONE_S)
        outcome = await judged(fault, seed, found, expected, start_s, len(phases))
    return msgspec.structs.replace(outcome, phases=counted(phases), notes={"most_half_open": most})


def main() -> None:
    """Run in this namespace."""
    said: dict[str, Any] = json.loads(sys.argv[1])
    expected = {(method, number): tokens for (method, number), tokens in said["expected"]}
    outcome = asyncio.run(vanishing(said["times"], said["seed"], Path(said["folder"]), expected))
    print(json.dumps(msgspec.to_builtins(outcome)), flush=True)


if __name__ == "__main__":
    main()
