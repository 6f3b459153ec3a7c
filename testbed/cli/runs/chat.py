"""`testbed chat`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import termios
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from rich.text import Text

from testbed.cli.options import AsJson, configured
from testbed.cli.output import console, note, print_json, visible
from testbed.process.interrupts import UNSTOPPABLE
from testbed.ue.chat.config import ChatConfig

if TYPE_CHECKING:
    from testbed.ue.chat.conversation import ChatAnswer

STYLES = {"drafted": "", "target": "bold magenta underline"}
PROMPT = "> "
NEW, QUIT = "/new", "/quit"


@configured(ChatConfig)
def chat(config: ChatConfig, as_json: AsJson = False) -> None:
    """Talk to the target of a running BS: drafted tokens are plain, those of the target underlined and in colour.

    Below each answer: rounds, tokens per round (AAL), speed and RTT. `/new` begins a new conversation, `/quit` or
    Ctrl-D ends. Without a terminal, each line of stdin is a question.

    Examples:

        testbed chat

        testbed chat --bs tcp://192.0.2.7:5555 --keys orin-1 --drafter small.gguf --tokenizer ./large --protocol sh
    """
    with _terminal_restored():
        turns = asyncio.run(_talk(config, as_json))
    if as_json:
        print_json({"turns": turns})


async def _talk(config: ChatConfig, quiet: bool) -> list[dict[str, Any]]:
    """Answer questions until there are no more; returns what was said."""
    from testbed.models.bundle import bundled
    from testbed.ue.chat.connect import connected
    from testbed.ue.dial import short_name

    out, turns, bundle = console(), [], bundled()
    async with connected(config, (bundle.drafter, bundle.tokenizer)) as conversation:
        if not quiet:
            note(f"{short_name(conversation.welcome.model)}; {NEW} begins anew, {QUIT} ends")
        async for question in _questions():
            if question == NEW:
                conversation.turns = []
                continue
            reply = await conversation.ask(question, lambda piece: _show(out, piece, quiet))
            turns.append(_turn(question, reply))
            if not quiet:
                out.print()
                out.print(Text(status(turns[-1]), "dim"))
    return turns


async def _questions() -> AsyncIterator[str]:
    """Lines of the terminal or of stdin, read beside the event loop, which keeps the connection alive."""
    read = (lambda: input(PROMPT)) if sys.stdin.isatty() else _line
    while True:
        try:
            line = await _read(read)
        except EOFError:
            return
        if line.strip() == QUIT:
            return
        if line.strip():
            yield line.strip()


async def _read(read: Callable[[], str]) -> str:
    """What `read` returns or raises in a thread of its own, for which nobody waits if the chat is interrupted."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def settle(text: str | None, exc: Exception | None) -> None:
        if not line.done():
            line.set_result(text or "") if exc is None else line.set_exception(exc)

    def run() -> None:
        text, failure = None, None
        try:
            text = read()
        except Exception as exc:
            failure = exc
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, text, failure)

    threading.Thread(target=run, name=f"{UNSTOPPABLE} reader", daemon=True).start()
    return await line


@contextlib.contextmanager
def _terminal_restored() -> Iterator[None]:
    """Restore the terminal's settings, which a thread that still reads a line has changed for editing."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _line() -> str:
    """The next line of a stdin that is no terminal.

    Raises:
        EOFError: there is none.
    """
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def _show(out: Any, piece: Any, quiet: bool) -> None:
    if not quiet:
        out.print(Text(visible(piece.text), STYLES[piece.origin]), end="", soft_wrap=True)


def _turn(question: str, reply: ChatAnswer) -> dict[str, Any]:
    """A turn as a document."""
    record = reply.record
    tokens, drafted = len(record.token_ids), sum(r.drafted for r in record.rounds)
    rtts_ms = sorted(1e3 * r.link_s for r in record.rounds if r.drafted)
    return {
        "question": question, "text": reply.text, "tokens": tokens, "rounds": len(record.rounds), "drafted": drafted,
        "accepted": sum(r.accepted for r in record.rounds), "latency_s": record.latency_s,
        "rtt_ms": rtts_ms[len(rtts_ms) // 2] if rtts_ms else None,
    }  # fmt: skip


def status(turn: dict[str, Any]) -> str:
    """The line below an answer."""
    parts = [f"{turn['rounds']} rounds", f"{turn['tokens']} tokens", f"AAL {turn['tokens'] / turn['rounds']:.2f}"]
    if turn["drafted"]:
        parts.append(f"{turn['accepted']} of {turn['drafted']} drafted tokens accepted")
    parts.append(f"{turn['tokens'] / turn['latency_s']:.1f} tok/s")
    if turn["rtt_ms"] is not None:
        parts.append(f"link {turn['rtt_ms']:.1f} ms a round")
    return " · ".join(parts)
