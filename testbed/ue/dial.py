"""Creates the client of a UE from addresses and keys, for one base station or several with failover."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

from testbed.channel.access import check_address, require_keys
from testbed.channel.keys import ClientKeys, load_client
from testbed.channel.link import Link, ZmqLink, new_identity
from testbed.clock import Clock
from testbed.errors import BadInput
from testbed.ue.client import Client
from testbed.ue.failover import FailoverClient
from testbed.ue.waiting.stations import StationLink


def addresses(bs: str) -> list[str]:
    """Base-station addresses of a configuration, in order of preference.

    Raises:
        BadInput: no address, an invalid one, or a duplicate.
    """
    found = [check_address(address.strip()) for address in bs.split(",")]
    if len(set(found)) < len(found):
        raise BadInput(f"{bs}: each base station once")
    return found


def keys_for(bs: str, keys: str | None, insecure: bool = False) -> list[ClientKeys | None]:
    """Load the keys for each base station.

    Raises:
        BadInput: keys that cannot be read, a number of directories other than one or one per station, or no keys
            although some are required.
    """
    count = len(addresses(bs))
    if keys is None:
        require_keys(addresses(bs), None, insecure)
        return [None] * count
    found = [load_client(Path(directory)) for directory in keys.split(",")]
    if len(found) not in (1, count):
        raise BadInput(f"{len(found)} directories of keys for {count} base stations; give one, or one for each")
    require_keys((), found, insecure)
    return [*found * (count if len(found) == 1 else 1)]


def check_silence(seconds: float) -> None:
    """Check the timeout of failover.

    Raises:
        BadInput: below 2 s, or not finite.
    """
    if not 2 <= seconds < math.inf:
        raise BadInput(f"failover-s must be 2 s or more, not {seconds:g}: stations are probed once a second")


def dial(
    bs: str,
    keys: str | None,
    clock: Clock,
    timeout_s: float,
    silence_s: float = 5.0,
    insecure: bool = False,
    identity: bytes | None = None,
    wrap: Callable[[Link], Link] = lambda link: link,
) -> Client:
    """Create a client; it is not connected yet.

    Args:
        bs: base-station address; several, separated by commas, for failover in that order.
        keys: key directory (see `channel.keys`), or one per address; None: no keys.
        silence_s: time without an answer after which the next base station takes over.
        identity: ZeroMQ identity of this UE; None: a new one.
        wrap: wrapper around each link.

    Raises:
        BadInput: invalid addresses or keys.
    """
    identity = identity or new_identity()
    first = random.SystemRandom().randrange(2**31)
    found = zip(addresses(bs), keys_for(bs, keys, insecure), strict=True)
    links = [StationLink(address, wrap(ZmqLink(address, identity, key))) for address, key in found]
    if len(links) == 1:
        return Client(links[0].link, clock, first, timeout_s)
    return FailoverClient(links, clock, first, timeout_s, silence_s)


def short_name(model: str) -> str:
    """Short name of a BS's model: the last part of a directory; a Hugging Face id as it is."""
    return model.rstrip("/").rpartition("/")[2] if model[:1] in "/.~" else model
