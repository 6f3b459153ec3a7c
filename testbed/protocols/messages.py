"""The messages between UE and BS: frame 0 of every ZeroMQ message, one msgpack array a message.

Arrays (ids, hidden states, positions) follow as raw frames; `arrays` in the header names each one and states its
dtype and shape. Integers count from 0; times are durations in seconds on the sender's own monotonic clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, Union

import msgspec

from testbed.channel.csi import Csi

VERSION = 17
"""Version of this wire format; `Hello` and `Welcome` must agree on it."""
NO_HINT = -1
"""Stands in the place of a hinted window."""
MOST_JOINING = 8
"""Windows of a stream that the BS keeps; further ones are dropped."""
SHARED = ("weights", "judge", "vocab_size", "hidden_size", "end_ids")
"""Fields of `Welcome` that must stay the same as long as a UE decodes, on every BS."""
Reading = Literal["predicting", "after"]
"""Hidden states of a token that are uploaded and judged: those that predict it, or those that have read it. WISV eq. 23
says "at token position" and leaves both open."""


class Array(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Name, dtype and shape of one raw frame."""

    name: str
    dtype: str
    """Little-endian: i4, f2, f4, u1 or u2."""
    shape: tuple[int, ...]


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Base of all messages."""

    arrays: tuple[Array, ...] = ()


# ---------------------------------------------------------------- UE → BS


class Hello(Message, frozen=True):
    """First message of a UE; answered by `Welcome` or `Fault`."""

    version: int
    tokenizer: str
    """Fingerprint of the tokenizer (`protocols.vocabulary`); empty where there is none."""
    vocab_size: int
    """Number of ids that the drafter may draft."""
    again: bool = False
    """Whether a UE that was welcomed before asks what the BS takes now; its sessions go on."""


class Open(Message, frozen=True):
    """Start a session, or start it anew after a loss; frame `ids`: committed prefix, prompt included, i4 [n]."""

    session: int
    protocol: str
    threshold: float
    """The decision head's θ in [0, 1]; 0 rejects every mismatch."""
    hidden_size: int
    """Hidden size of the drafter."""
    max_tokens: int = 0
    """Tokens to decode, under `target-only` and with hints."""
    temperature: float = 0.0
    """Sampling temperature of protocols that sample, of coupled sampling and of `target-only`; 0: greedy
    (`protocols.sampling.Sampling`)."""
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    """Seed of the request's random numbers, in [0, 2⁶⁴)."""
    drafter: str = ""
    """Fingerprint of the drafter (`assets/fingerprints.py`); a judge trained for one drafter refuses others."""
    served: str = ""
    """`Welcome.digest` of the BS that welcomed the UE; a BS with another one answers `Fault`. Empty: any BS will do."""
    speed_tps: float | None = None
    """Token speed in tokens/s that the UE wants guaranteed, its service class; None: no guarantee."""
    hidden_bits: int = 16
    """Bits per element of uploaded hidden states: 16, 8 or 4 (`protocols.quantise`)."""
    window: int = 0
    """Largest window of a UE that follows the windows that verdicts hint; 0: no hints. With hints, `max_tokens` is the
    number of tokens still to decode, and the BS may decode alone."""
    alone: bool = False
    """Whether the BS decodes alone from the start: as the last hint said, or with `stream`."""
    round: int = 0
    """Number of the first round, with `alone`."""
    endless: bool = False
    """Whether a BS that decodes alone goes on after its end ids, until `max_tokens`."""
    states: Reading = "predicting"
    """Which hidden states of a token are uploaded: those that predict it, or those after reading it."""
    risk: float = 0.0
    """Risk that the response has spent so far, as the last `Verdict` said, so that a quality budget holds across base
    stations."""
    coupled: bool = False
    """Whether UE and BS choose tokens with noise that they share, a function of `seed` (`protocols.sampling.Coupling`);
    never under a protocol that draws tokens itself."""
    stream: int = 0
    """Largest window of a pass in a session whose target decodes alone throughout, while drafted windows join if they
    continue its output; 0: none. With `alone`, without hints, and only where tokens are not drawn or judged."""
    block: bool = False
    """Whether drafted tokens are accepted jointly (`protocols.rejection_sampling.accept_block`)."""
    q_top: int = 0
    q_bits: int = 16
    """Ids of an uploaded draft distribution (0: all), and bits of a probability: 16, 8 or 4 (`protocols.quantise`)."""
    protocol_hints: bool = False
    lookahead_hints: bool = False
    """Whether verdicts may hint the next window's protocol (`RoundProtocol.beside`), and lookahead without sampling."""
    load: bool = False
    """Whether verdicts tell `others_drafted`, for a UE that chooses its windows or chunks itself."""


class Draft(Message, frozen=True):
    """One drafted window; frames: `ids` i4 [K] and what the protocol adds. K = 0: the verdict brings a token alone."""

    session: int
    round: int
    base_len: int
    """Length of the committed prefix that the window continues."""
    csi: Csi | None = None
    draft_s: float = 0.0
    """Time since the last verdict; in the first round, since the start of the request."""
    network_s: float = 0.0
    """Estimated time of the last round's messages on the link (WISP eq. 6); 0: not known."""
    guess: int | None = None
    """Of a window sent before the verdict of the previous round: the last token of the prefix that it continues. The UE
    expects the BS to add this token after accepting the previous window entirely; the BS drops the window otherwise.
    None: the verdict was known.
    In a stream, windows are numbered apart from rounds, and `base_len` may exceed the committed prefix by the tokens of
    earlier windows. `guess` is the token before the window: if the latest window does not end with it, the new one
    replaces all that wait. The BS drops a window that does not continue the output when its turn comes, and with
    `waits` also one before which the output has another token."""
    waits: bool = False
    """Of a window in a stream: the target waits for further windows after it has verified those that it has. The latest
    window decides; a window without tokens only carries this flag."""


class Hidden(Message, frozen=True):
    """Answer to `NeedHidden`: m hidden states, in the order of the requested positions; frame `hidden`: f2
    [m, hidden_size], or packed u1 and a frame `scale`: f2 [m] where `Open.hidden_bits` is below 16.
    """

    session: int
    round: int


class Close(Message, frozen=True):
    """End of a session; not answered."""

    session: int


class Ping(Message, frozen=True):
    """RTT handshake; answered by `Pong` at once."""

    token: int
    served: str = ""
    """See `Open.served`."""


# ---------------------------------------------------------------- BS → UE


class Welcome(Message, frozen=True):
    """Answer to `Hello`: models, protocols and limits of this BS."""

    version: int
    model: str
    hidden_size: int
    """Hidden size of the target."""
    vocab_size: int
    """Number of ids that the target may choose."""
    end_ids: tuple[int, ...]
    """Ids that end an output, from the target's generation config."""
    protocols: tuple[str, ...]
    max_window: int
    max_positions: int
    """Upper limit of prefix + window + 1."""
    weights: str = ""
    """Fingerprint of the target (`testbed.assets.fingerprints`)."""
    judge: str = ""
    """Kind of the judge, and fingerprint of its head."""

    @property
    def shared(self) -> dict[str, Any]:
        """The fields `SHARED`, in msgpack's types."""
        values = {name: getattr(self, name) for name in SHARED}
        return values | {"end_ids": list(self.end_ids)}

    @property
    def digest(self) -> str:
        """Digest of the fields `SHARED`, 8 hexadecimal digits."""
        return hashlib.blake2b(msgspec.msgpack.encode(self.shared), digest_size=4).hexdigest()


class Opened(Message, frozen=True):
    """The session is open; the BS knows its `length` committed tokens."""

    session: int
    length: int


class NeedHidden(Message, frozen=True):
    """Request for hidden states; frame `positions`: u1, positions in the window packed at ceil(log2(K+1)) bits each."""

    session: int
    round: int
    count: int
    """Number of requested positions."""


class Verdict(Message, frozen=True):
    """Outcome of a round: the first `accepted` drafted tokens are committed, then `token` (correction or bonus). Where
    `split` leaves `token` to the UE, frame `target` f2 [V] has the target's distribution there.
    """

    session: int
    round: int
    accepted: int
    token: int
    """-1: the UE draws it."""
    candidates: int
    """Number of positions whose drafted token was not the target's (its argmax, or its sample if they are coupled)."""
    queried: int
    """Number of requested positions; under `split`, 1 where the target's distribution comes down."""
    gap: float
    """Logit of `token` minus logit of the drafted token that it replaces; where it replaces none (a bonus,
    target-only), minus the next best logit. Where `token` was drawn, the argmax's logit counts instead of its own."""
    batch_size: int
    """Number of requests in the pass that verified the round."""
    queue_s: float
    verify_s: float
    judge_s: float
    bs_s: float
    """Time from receipt to reply, without the wait for `Hidden`."""
    window: int = NO_HINT
    """Largest window of the next round; 0: the BS decodes alone, and the next verdict comes unasked. `NO_HINT`: no
    change, since the session takes no hints or the BS gives none."""
    kept: int = 0
    """Number of candidates among the `accepted`: mismatches that the judge kept."""
    risk: float = 0.0
    """Risk that the response has spent so far under judge `budget`: −Σ ln(1 − p) over the kept mismatches."""
    base_len: int | None = None
    """Length of the prefix that the round continued, in streams and in sessions that take hints of windows: after the
    BS has decoded alone, two rounds may have the same number. None in other sessions."""
    draft: int | None = None
    """Of a round in a stream: number of the first window of which the pass verified tokens; None: it verified none."""
    joined: int = 0
    """Of a round in a stream: number of drafted tokens that the pass verified, of one window or more."""
    protocol: str = ""
    lookahead: int = NO_HINT
    """Protocol of the next window (empty: no change) and lookahead, 0 or 1, where the session takes such hints."""
    others_drafted: int = 0
    """Number of drafted tokens of other sessions in the pass that verified the round, if the session asked for it."""


class Resync(Message, frozen=True):
    """The BS does not know the session: open it again with the committed prefix."""

    session: int
    reason: str = ""
    """Why the session was dropped, where the BS knows."""


class Busy(Message, frozen=True):
    """Refused for now."""

    session: int
    reason: str
    retry_s: float
    speed_tps: float | None = None
    """Fastest class that can be guaranteed where the requested one cannot, 0: none; None: refused for another cause."""
    round: int | None = None
    """The refused round, whose session stays open; None: the session is refused."""


class Fault(Message, frozen=True):
    """The message was refused; `session` is -1 where it belongs to none."""

    session: int
    reason: str


class Pong(Message, frozen=True):
    """Answer to `Ping`."""

    token: int
    time_s: float = 0.0
    """Time of the answer on the BS's monotonic clock, from which the offset of both clocks is estimated."""


Uplink = Union[Hello, Open, Draft, Hidden, Close, Ping]  # noqa: UP007 (msgspec reads it at run time, on 3.10 too)
Downlink = Union[Welcome, Opened, NeedHidden, Verdict, Resync, Busy, Fault, Pong]  # noqa: UP007


def difference(mine: Mapping[str, Any], theirs: Mapping[str, Any], whose: str) -> str:
    """The first difference between two BSs' `Welcome.shared`, for "it serves …"; empty if there is none."""
    for name in SHARED:
        if mine.get(name) != theirs.get(name):
            what = "model" if name != "judge" else "judge or head"
            return f"another {what} than {whose}: {name} {mine.get(name)!r}, not {theirs.get(name)!r}"
    return ""
