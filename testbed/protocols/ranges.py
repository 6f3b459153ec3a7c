"""Ranges of the numbers in messages, with their units: wider than any device or link, yet safe to compute with."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from testbed.channel.csi import Csi
from testbed.errors import ModelError, ProtocolError
from testbed.protocols.messages import (
    NO_HINT,
    VERSION,
    Busy,
    Draft,
    NeedHidden,
    Open,
    Opened,
    Pong,
    Verdict,
    Welcome,
)  # fmt: skip
from testbed.protocols.sampling import FULL_BITS, MOST_TOP, Q_BITS


class Range(NamedTuple):
    """A closed interval; NaN lies in none."""

    least: float
    most: float
    unit: str = ""


MAX_HIDDEN = 2**14
"""Largest hidden size of a drafter; the BS allocates the hidden states that it requests by it."""
_COUNT = Range(0, 2**31 - 1)
_ID = Range(-1, 2**31 - 1)
"""Ids of tokens, and -1 in place of none."""
_ROUND = Range(0, 2**32 - 1)
"""Rounds counted on by the BS still fit a message."""
_DURATION = Range(0, 86_400, " s")
_MEASURED = Range(-86_400, 86_400, " s")
"""Differences of clock readings round below 0."""
_RISK = Range(0, 1e6)
_RATE = Range(1e-6, 1e12, " Mbit/s")
_ERROR_RATE = Range(0, 1)
_POWER = Range(-1000, 1000, " dB")
_CLOCK = Range(-1e12, 1e12, " s")

RANGES: dict[type[msgspec.Struct], dict[str, Range]] = {
    Open: {
        "threshold": Range(0, 1),
        "hidden_size": Range(1, MAX_HIDDEN),
        "max_tokens": _COUNT,
        "temperature": Range(0, 1e6),
        "top_k": _COUNT,
        "top_p": Range(0, 1),
        "seed": Range(0, 2**64 - 1),
        "speed_tps": Range(1e-3, 1e9, " tokens/s"),
        "window": _COUNT,
        "round": _ROUND,
        "risk": _RISK,
        "stream": _COUNT,
        "q_top": Range(0, MOST_TOP),
        "q_bits": Range(min(Q_BITS), FULL_BITS, " bits"),
    },
    Draft: {"round": _ROUND, "base_len": _COUNT, "draft_s": _DURATION, "network_s": _DURATION, "guess": _COUNT},
    Csi: {
        "uplink_mbps": _RATE,
        "downlink_mbps": _RATE,
        "rtt_ms": Range(0, 86_400e3, " ms"),
        "per_up": _ERROR_RATE,
        "per_down": _ERROR_RATE,
        "snr_db": _POWER,
        "rssi_dbm": _POWER,
        "time_s": _CLOCK,
    },
    Welcome: {
        "hidden_size": _COUNT,
        "vocab_size": _COUNT,
        "end_ids": _ID,
        "max_window": _COUNT,
        "max_positions": _COUNT,
    },
    Opened: {"length": _COUNT},
    NeedHidden: {"round": _ROUND, "count": _COUNT},
    Verdict: {
        "round": _ROUND,
        "accepted": _COUNT,
        "token": _ID,
        "candidates": _COUNT,
        "queried": _COUNT,
        "batch_size": _COUNT,
        "window": Range(NO_HINT, _COUNT.most),
        "kept": _COUNT,
        "queue_s": _MEASURED,
        "verify_s": _MEASURED,
        "judge_s": _MEASURED,
        "bs_s": _MEASURED,
        "risk": _RISK,
        "base_len": _COUNT,
        "draft": _ROUND,
        "joined": _COUNT,
        "lookahead": Range(NO_HINT, 1),
        "others_drafted": _COUNT,
    },
    Busy: {"round": _ROUND, "retry_s": _DURATION, "speed_tps": Range(0, 1e9, " tokens/s")},
    Pong: {"time_s": _CLOCK},
}
"""Ranges by message (or part of one) and field, of a tuple those of its elements; None is in every range."""


def check_ranges(message: msgspec.Struct) -> None:
    """Check the numbers of a message, channel state included.

    Raises:
        ProtocolError: one is out of its range.
    """
    for name, (least, most, unit) in RANGES.get(type(message), {}).items():
        given = getattr(message, name)
        for value in given if isinstance(given, tuple) else (given,):
            if value is not None and not least <= value <= most:
                raise ProtocolError(f"{name} must lie in {_text(least)}..{_text(most)}{unit}, not {value}")
    if isinstance(message, Draft) and message.csi is not None:
        check_ranges(message.csi)


def check_welcome(welcome: Welcome, address: str = "the BS") -> None:
    """Check that a UE of this version can use a BS.

    Raises:
        ModelError: another version, no protocols, or no vocabulary.
    """
    if welcome.version != VERSION:
        said = f"version {welcome.version} of the protocol, and this UE version {VERSION}"
    elif not welcome.protocols or welcome.vocab_size < 1:
        said = "no protocols, or no vocabulary"
    else:
        return
    raise ModelError(f"{address} cannot be used: it has {said}")


def check_token(token: int, vocab_size: int) -> None:
    """Check that a verdict's token is one.

    Raises:
        ProtocolError: it is not in a vocabulary of this size.
    """
    if not 0 <= token < vocab_size:
        raise ProtocolError(f"verdict adds token {token}, outside the vocabulary")


def check_accepted(verdict: Verdict, drafted: int) -> None:
    """Check that a verdict accepts, and counts as candidates, no more tokens than were drafted.

    Raises:
        ProtocolError: it does.
    """
    if not 0 <= verdict.accepted <= drafted:
        raise ProtocolError(f"verdict accepts {verdict.accepted} of {drafted} tokens")
    if verdict.candidates > drafted or verdict.queried > max(1, drafted):
        raise ProtocolError(
            f"verdict has {verdict.candidates} candidates ({verdict.queried} queried) of {drafted} tokens"
        )
    if verdict.kept > min(verdict.accepted, verdict.candidates):
        raise ProtocolError(
            f"verdict keeps {verdict.kept} of {verdict.candidates} candidates, {verdict.accepted} tokens accepted"
        )


def _text(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"
