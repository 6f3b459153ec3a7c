"""From addresses and keys to a connection: one base station, or several."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

from testbed.channel.access import require_keys
from testbed.channel.keys import ClientKeys, load_client
from testbed.channel.link import Link, ZmqLink, check_address, new_identity
from testbed.clock import Clock
from testbed.errors import BadInput
from testbed.ue.client import Client
from testbed.ue.failover import Named, Stations


def addresses(bs: str) -> list[str]:
    """The base stations of a configuration, in the order in which they are preferred.

    Raises:
        BadInput: none, one that cannot be used, or one twice.
    """
    found = [check_address(address.strip()) for address in bs.split(",")]
    if len(set(found)) < len(found):
        raise BadInput(f"{bs}: each base station once")
    return found


def keys_for(bs: str, keys: str | None, insecure: bool = False) -> list[ClientKeys | None]:
    """Keys for each base station, checked.

    Raises:
        BadInput: keys that cannot be read, another number of them than one or one for each, or none where some are
            needed.
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
    """Refuse a silence that nothing can be told from.

    Raises:
        BadInput: below 2 s, or not finite.
    """
    if not 2 <= seconds < math.inf:
        raise BadInput(f"failover-s must be 2 s or more, not {seconds:g}: signs of life are a second apart")


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
    """A connection that has not said Hello.

    Args:
        bs: one address, or several separated by commas.
        keys: directory of `channel.keys`, or one for each address; None: none.
        silence_s: after which the next base station takes over.
        identity: of this UE; None: a fresh one.
        wrap: what is to stand around each link.

    Raises:
        BadInput: addresses or keys that cannot be used.
    """
    identity = identity or new_identity()
    first = random.SystemRandom().randrange(2**31)
    found = zip(addresses(bs), keys_for(bs, keys, insecure), strict=True)
    links = [Named(address, wrap(ZmqLink(address, identity, key))) for address, key in found]
    if len(links) == 1:
        return Client(links[0].link, clock, first, timeout_s)
    return Stations(links, clock, first, timeout_s, silence_s)
