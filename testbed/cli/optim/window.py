"""`testbed optim window`: how many tokens to draft a round."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from testbed.cli.output import print_json, print_rows
from testbed.errors import BadInput
from testbed.optim.draft_window.cost import LinkCosts, RoundCosts, committed, cut_short, prices

COLUMNS: dict[str, tuple[str, str]] = {
    "window": ("K", "{:d}"),
    "tokens_per_round": ("tokens a round", "{:.3f}"),
    "token_ms": ("ms a token", "{:.4f}"),
    "busy": ("share of saturation", "{:.4f}"),
    "best": ("", "{}"),
}
COSTS = RoundCosts()


def window(
    alpha: Annotated[float, typer.Option(help="Chance that a drafted token is accepted.")],
    draft_ms: Annotated[float, typer.Option(help="Drafting a token.")] = COSTS.draft_s * 1e3,
    verify_base_ms: Annotated[float, typer.Option(help="A verification pass, whatever is in it.")] = (
        COSTS.verify_base_s * 1e3
    ),
    verify_token_ms: Annotated[float, typer.Option(help="Each token of a pass.")] = COSTS.verify_token_s * 1e3,
    rtt_ms: Annotated[float, typer.Option(help="Round-trip time without payload.")] = 50.0,
    uplink_mbps: Annotated[float, typer.Option(help="Uplink rate.")] = 20.0,
    per_up: Annotated[float, typer.Option(help="Uplink packet error rate.")] = 0.0,
    token_bits: Annotated[float, typer.Option(help="Bits sent for each drafted token.")] = 32.0,
    load_tps: Annotated[float, typer.Option("--load", help="Tokens a second that all users ask of the BS.")] = 0.0,
    response_tokens: Annotated[float, typer.Option(help="Mean tokens of a response; 0: long.")] = COSTS.response_tokens,
    max_window: Annotated[int, typer.Option(help="Largest window to consider.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """The draft window with the least expected time for a committed token on this link; 0: the BS decodes alone.

    Examples:

        testbed optim window --alpha 0.8 --rtt-ms 50 --uplink-mbps 20

        testbed optim window --alpha 0.75 --draft-ms 5 --verify-base-ms 60 --load 200 --max-window 8 --json
    """
    if not uplink_mbps > 0:
        raise BadInput(f"--uplink-mbps must be positive, not {uplink_mbps:g}")
    if not 0 <= per_up < 1:
        raise BadInput(f"--per-up must lie in [0, 1), not {per_up:g}")
    costs = RoundCosts(
        draft_s=draft_ms / 1e3,
        verify_base_s=verify_base_ms / 1e3,
        verify_token_s=verify_token_ms / 1e3,
        response_tokens=response_tokens,
    )
    link = LinkCosts(rtt_ms / 1e3, token_bits / (uplink_mbps * 1e6 * (1 - per_up)))
    found = prices(costs, alpha, load_tps, link, max_window)
    best = min(range(len(found)), key=found.__getitem__)
    rows: list[dict[str, Any]] = [
        {
            "window": k,
            "tokens_per_round": cut_short(k, alpha, response_tokens) if response_tokens else committed(k, alpha),
            "token_s": price.time_s if price.busy < 1 else None,
            "busy": price.busy,
        }
        for k, price in enumerate(found)
    ]
    if as_json:
        print_json({"window": best, "token_s": rows[best]["token_s"], "rows": rows})
        return
    shown = [
        {**row, "token_ms": row["token_s"] and row["token_s"] * 1e3, "best": "best" if row["window"] == best else ""}
        for row in rows
    ]
    print_rows(shown, None, COLUMNS)
