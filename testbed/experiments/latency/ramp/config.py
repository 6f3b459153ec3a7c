"""Configuration of `testbed latency ramp`."""

from __future__ import annotations

from typing import Annotated, Literal

from testbed.errors import BadInput
from testbed.experiments.latency.virtual_config import VirtualLoadConfig
from testbed.options import option

HINTS = "hinted"
"""Name of the policy that follows the BS's hints; the others are named by their window."""
MOST_REQUESTS = 10**6
"""Requests of a step, at most."""

REAL = ("engine", "model", "dtype", "pace", "dataset", "max_tokens")
"""Options of real base stations alone."""


class RampConfig(VirtualLoadConfig, frozen=True, kw_only=True):
    """Configuration of `testbed latency ramp`.

    Raises:
        BadInput: values out of their range.
    """

    kind: Literal["virtual", "real"] = "virtual"
    windows: Annotated[
        tuple[int, ...],
        option("Fixed windows to compare with; 0 for the target alone.", least=0, most=256, panel="Windows"),
    ] = (0, 1, 2, 4, 6, 8)
    controller: Annotated[str, option("Settings of the controller (see `bs serve --window-controller`).")] = (
        "max_window=8"
    )
    loads: Annotated[
        tuple[float, ...],
        option(
            "Loads, climbing. Default: --steps of them, by measured throughput.",
            above=0,
            most=1e5,
            unit="requests/s",
            panel="Load",
        ),
    ] = ()
    steps: Annotated[int, option("Number of such loads.", least=1)] = 6
    reach: Annotated[
        float, option("The last of them, as a share of the highest throughput of a fixed window.", least=0.05, most=2)
    ] = 1.1
    requests: Annotated[int, option("Requests per step, at least.", least=8, most=MOST_REQUESTS)] = 300
    step_s: Annotated[float, option("Duration of a step, at least.", least=0, below=1e6, unit="s")] = 30.0
    settle: Annotated[
        float, option("Share of a step's requests discarded while estimates and queues settle.", least=0, most=0.9)
    ] = 0.25
    seeds: Annotated[
        tuple[int, ...],
        option("Seeds of arrivals, prompts and acceptance; intervals need two or more.", least=0),
    ] = (0, 1, 2, 3, 4)
    alpha: Annotated[float, option("Acceptance rate imposed on drafts.", least=0, most=1)] = 0.758
    draft_ms: Annotated[
        float | None,
        option("Drafting time per token. Default: the profile's; 2 with --real.", least=0, below=1e5, unit="ms"),
    ] = None
    max_batch: Annotated[int, option("Requests of one pass, at most.", least=1)] = 256
    learn_from: Annotated[
        float,
        option(
            "Virtual: factor on the true pass-time coefficients from which the controller starts to learn them.",
            least=0.05,
            most=20,
        ),
    ] = 2.0
    engine: Annotated[str, option("Inference engine.", kinds="engines", panel="With --real")] = "vllm"
    model: Annotated[
        str | None, option("Target. Default: the bundled one.", completes="fetched models", panel="With --real")
    ] = None
    dtype: Annotated[str, option("float32 or bfloat16.")] = "float32"
    pace: Annotated[
        str | None,
        option(
            "Emulate another machine's pass times (see `bs serve --pace`).",
            metavar="PROFILE|FILE.json",
            completes="profiles",
        ),
    ] = None
    dataset: Annotated[str, option("Prompts: bundled:test, FILE.jsonl, or hf:NAME.")] = "bundled:test"
    max_tokens: Annotated[int, option("Output tokens per request, at most.", least=1)] = 64

    def __post_init__(self) -> None:
        from testbed.bs.scheduling.window_hints import window_config

        super().__post_init__()
        if not self.windows or len(set(self.windows)) < len(self.windows):
            raise BadInput("give one window or more, each 0 or more and once")
        window_config(self.controller)
        if list(self.loads) != sorted(set(self.loads)):
            raise BadInput("loads are positive requests a second, each higher than the one before")
        if self.loads and self.loads[-1] * self.step_s > MOST_REQUESTS:
            raise BadInput(f"a step has {MOST_REQUESTS} requests at most, not {self.loads[-1] * self.step_s:g}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise BadInput("give one seed or more, each 0 or more and once")

    def check_kind(self) -> None:
        """Check that no option is given that a ramp of this kind ignores.

        Raises:
            BadInput: there is one.
        """
        virtual = [name for name in VirtualLoadConfig.__struct_fields__ if name != "ues"]
        self.check_used(self.kind, REAL, [*virtual, "learn_from"])
        if self.loads:
            self.refuse_unused(("steps", "reach"), "with --loads")

    @property
    def policies(self) -> list[str]:
        """Fixed windows by name, and the hinted ones last."""
        return [*map(str, self.windows), HINTS]

    @property
    def limit(self) -> int:
        """The most that a UE under hints drafts."""
        from testbed.bs.scheduling.window_hints import window_config

        return window_config(self.controller).max_window
