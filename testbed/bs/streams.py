"""Streams, which the target decodes without a message for each round: how many tokens a call of the engine decodes, the
rounds made of them, and windows that join. Also whether a round follows another without a message of the UE.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from testbed.bs.pending import Round
from testbed.bs.sessions import Session, SessionTable
from testbed.protocols.base import Window
from testbed.protocols.messages import MOST_JOINING

NO_WINDOW = Window(np.zeros(0, np.int32), None)

MOST_AHEAD = 7
"""Tokens decoded ahead, at most."""


def ahead(session: Session, round_: Round) -> int:
    """Number of further tokens that a stream may decode in the same call of the engine. There are none before its first
    token, which is sent at once; after a window; where the target waits for windows or draws tokens; where each verdict
    may hint that the UE drafts again; and where a speed is guaranteed, since its scheduler plans every pass.
    """
    waits = session.waits or not session.got or len(round_.window.ids) or session.hinted
    if not session.alone or waits or session.drawn or session.speed_tps is not None:
        return 0
    return max(0, min(MOST_AHEAD, session.wanted - session.length - 1))


def rounds_of(round_: Round, count: int, start_s: float, verify_s: float) -> Iterator[Round]:
    """One round for each token that consecutive passes decoded for a stream; each gets the same share of their time.

    Args:
        count: number of passes.
        start_s: start of the first one.
        verify_s: duration of all.
    """
    if count == 1:
        yield round_
        return
    result = round_.result
    assert result is not None
    each_s = verify_s / count
    for i in range(count):
        own = replace(result, argmax=result.argmax[i : i + 1], margin=result.margin[i : i + 1])
        if i == 0:
            first_s, new = round_.verify_s - verify_s + each_s, round_.new - count + 1
            yield replace(round_, result=own, verify_s=first_s, new=new, shared_s=verify_s - each_s, followed=True)
            continue
        yield replace(
            round_, number=round_.number + i, result=own, arrived_s=start_s + i * each_s, queue_s=0.0, verify_s=each_s,
            new=1, cached=round_.cached + round_.new - count + i, follows=True, followed=i < count - 1,
            base_len=round_.base_len + i,
        )  # fmt: skip


def join(sessions: SessionTable, session: Session, round_: Round) -> None:
    """Keep a window for a stream: after the windows that it continues, or in place of those that it does not continue.

    A window without tokens changes nothing.
    """
    if not len(round_.window.ids):
        return
    held = session.held
    if held and not _continues(held[-1], round_):
        held = ()
    sessions.hold(session, *(*held, round_)[:MOST_JOINING])


def complete(session: Session, number: int, window: Window, base_len: int) -> bool:
    """Note a window of a stream; whether all windows came that its UE sent before the ones that are kept. Where one was
    refused or lost, those after it wait for tokens that only the target can add.
    """
    expected, missing = session.came
    if len(window.ids):
        missing = base_len if number > expected or base_len < missing else missing
        session.came = number + 1, missing
    return session.length >= missing


def _continues(before: Round, round_: Round) -> bool:
    """Whether a window is the next one of its UE and begins where the one before it ends, with its last token.

    A copy of an earlier window that came late may end there, too: the UE would take a verdict about both for one about
    other windows.
    """
    meets = before.number + 1 == round_.number and before.base_len + len(before.window.ids) == round_.base_len
    return meets and round_.guess in (None, int(before.window.ids[-1]))


def joining(sessions: SessionTable, session: Session) -> Round | None:
    """The windows that continue a stream's output as one window, without the tokens that are decoded already and no
    longer than the largest window of a pass. Windows before them are dropped, and all windows if one of them was wrong.
    None: no window continues the output, or one before them is missing.
    """
    held = session.held
    while held:
        first, *rest = held
        done, ids = session.length - first.base_len, first.window.ids
        known = session.tokens[first.base_len : session.length]
        if done < 0 and session.length < session.came[1]:  # behind a window that was refused: it may join later
            sessions.hold(session, *held)
            return None
        if done < 0 or not np.array_equal(ids[:done], known[: len(ids)]):
            break
        if session.waits and first.guess not in (None, *session.tokens[first.base_len - 1 : first.base_len]):
            break  # it continues a token that was rejected
        if done < len(ids):
            joined = [ids[done : done + session.stream]]
            while rest and sum(map(len, joined)) + len(rest[0].window.ids) <= session.stream:
                joined.append(rest.pop(0).window.ids)
            sessions.hold(session, *rest)
            return replace(first, window=Window(np.concatenate(joined), None), draft=first.number)
        held = tuple(rest)
    sessions.hold(session)
    return None


def following(sessions: SessionTable, session: Session, round_: Round, now_s: float) -> Round | None:
    """The round that begins after `round_` without another message of the UE: that of a valid window sent ahead, or the
    next one of a session that the target decodes alone. None: the UE has to send a window.
    """
    if session.held and not session.stream and (session.alone or session.held[0].number <= round_.number + 1):
        held = session.held[0]
        sessions.hold(session)
        if not session.alone and session.continued_by(held.base_len, held.guess):
            session.take(held.number, held.window.ids.tobytes(), ahead=True)
            held.at_once = True
            return held
    if not session.alone or round_.followed:
        return None
    if finished(session):
        sessions.hold(session)
        return None
    if (begun := _begun(sessions, session, round_.number + 1, now_s)) is not None:
        begun.at_once = True
    return begun


def woken(sessions: SessionTable, session: Session, now_s: float) -> Round | None:
    """The round that begins with a window for which the target of a stream was waiting; None: none begins."""
    if not session.paused:
        return None
    session.paused = False
    return _begun(sessions, session, session.last_round + 1, now_s)


def _begun(sessions: SessionTable, session: Session, number: int, now_s: float) -> Round | None:
    """The next round of a session that the target decodes alone; None: the target waits for a window."""
    begun = joining(sessions, session) if session.stream else None
    if begun is None and session.waits:
        session.paused, session.last_round = True, number - 1
        return None
    begun = begun or Round(0, NO_WINDOW, None, now_s)
    return replace(begun, number=number, arrived_s=now_s, base_len=session.length, guess=None)


def finished(session: Session) -> bool:
    """Whether the output of a session that the target decodes alone is complete."""
    return session.length >= session.wanted or int(session.tokens[session.length - 1]) in session.end_ids
