"""`testbed optim window`: how many tokens to draft a round."""

from __future__ import annotations

from typing import Annotated, Any

from testbed.cli.options import AsJson, configured
from testbed.cli.output import print_json
from testbed.cli.tables import print_rows
from testbed.config import Config
from testbed.errors import BadInput
from testbed.optim.draft_window.cost import LinkCosts, RoundCosts, committed, cut_short, prices
from testbed.options import option

COLUMNS: dict[str, tuple[str, str]] = {
    "window": ("K", "{:d}"),
    "tokens_per_round": ("tokens a round", "{:.3f}"),
    "token_ms": ("ms a token", "{:.4f}"),
    "busy": ("share of saturation", "{:.4f}"),
    "best": ("", "{}"),
}
COSTS = RoundCosts()
MOST = 1e9
"""Largest time, rate or number in an option."""


class WindowOptions(Config, frozen=True):
    """Configuration of `testbed optim window`."""

    alpha: Annotated[float, option("Probability that a drafted token is accepted.", panel="Costs")]
    draft_ms: Annotated[float, option("Drafting time per token.", least=0, most=MOST, unit="ms")] = COSTS.draft_s * 1e3
    verify_base_ms: Annotated[
        float, option("Fixed time of a verification pass.", least=0, most=MOST, unit="ms")
    ] = COSTS.verify_base_s * 1e3  # fmt: skip
    verify_token_ms: Annotated[
        float, option("Pass time per token.", least=0, most=MOST, unit="ms")
    ] = COSTS.verify_token_s * 1e3  # fmt: skip
    rtt_ms: Annotated[
        float, option("Round-trip time without payload.", least=0, most=MOST, unit="ms", panel="Link")
    ] = 50.0  # fmt: skip
    uplink_mbps: Annotated[float, option("Uplink rate.", least=1 / MOST, most=MOST, unit="Mbit/s")] = 20.0
    per_up: Annotated[float, option("Uplink packet error rate.", least=0, below=1)] = 0.0
    token_bits: Annotated[float, option("Bits sent for each drafted token.", least=0, most=MOST, unit="bits")] = 32.0
    load_tps: Annotated[
        float,
        option(
            "Token speed that all users together require.", least=0, most=MOST, unit="tokens/s", flags=("--load",),
            panel="Load",
        ),
    ] = 0.0  # fmt: skip
    response_tokens: Annotated[
        float, option("Mean tokens of a response, 1 or more; 0 for long ones.", least=0, most=MOST)
    ] = COSTS.response_tokens  # fmt: skip
    max_window: Annotated[int, option("Largest window to consider.")] = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.response_tokens < 1:
            raise BadInput(f"a response has 1 token or more, not {self.response_tokens:g}; 0 is for long ones")


@configured(WindowOptions)
def window(config: WindowOptions, as_json: AsJson = False) -> None:
    """Find the draft window with the least expected time per committed token; 0 if the BS alone is faster.

    Examples:

        testbed optim window --alpha 0.8 --rtt-ms 50 --uplink-mbps 20

        testbed optim window --alpha 0.75 --draft-ms 5 --verify-base-ms 60 --load 200 --max-window 8 --json
    """
    costs = RoundCosts(
        draft_s=config.draft_ms / 1e3,
        verify_base_s=config.verify_base_ms / 1e3,
        verify_token_s=config.verify_token_ms / 1e3,
        response_tokens=config.response_tokens,
    )
    link = LinkCosts(config.rtt_ms / 1e3, config.token_bits / (config.uplink_mbps * 1e6 * (1 - config.per_up)))
    found = prices(costs, config.alpha, config.load_tps, link, config.max_window)
    best = min(range(len(found)), key=found.__getitem__)
    rows: list[dict[str, Any]] = [
        {
            "window": k,
            "tokens_per_round": _committed(k, config),
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


def _committed(window: int, config: WindowOptions) -> float:
    """Expected tokens of a round."""
    if config.response_tokens:
        return cut_short(window, config.alpha, config.response_tokens)
    return committed(window, config.alpha)
