"""`testbed models onboard` and `models parity`: a pair that is new to the testbed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.options import AsJson, configured
from testbed.cli.output import claim_stdout, note, print_json
from testbed.errors import ModelError, TestbedError
from testbed.experiments.onboard.config import OnboardConfig


@configured(OnboardConfig)
def onboard(
    config: OnboardConfig,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of what is made; an unfinished onboarding is resumed.")
    ],
    as_json: AsJson = False,
) -> None:
    """Run what a new pair of models needs: parity, profile of this machine, pass times, head, θ, predictor, card.

    Every step is a command of the testbed, which is printed with the time that it took; what has succeeded is not run
    again. Exit code 1 if a step failed; the others are kept.

    Examples:

        testbed models onboard --target smollm2 --drafter runs/smollm2-draft/drafter.gguf --out runs/pair

        testbed models onboard --target ./Qwen3-8B --drafter qwen3-0.6b.gguf --dtype bfloat16 --out runs/pair
    """
    from testbed.experiments.onboard.run import onboard as run

    stdout = claim_stdout() if as_json else None
    card = run(config, out, note)
    if as_json:
        print_json(card, stdout)
    else:
        print((out / "card.md").read_text(encoding="utf-8"))
    if failed := [f"{one['step']} ({one['failure']})" for one in card["steps"] if one["failure"] is not None]:
        raise TestbedError(f"these steps failed: {'; '.join(failed)}; the same command tries them again")


def parity(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="GGUF file of a Llama, Qwen2 or Qwen3 model.")],
    as_json: AsJson = False,
) -> None:
    """Compare what llama.cpp computes with a GGUF file with what transformers computes with the same weights.

    Example:

        testbed models parity drafter.gguf
    """
    from dataclasses import asdict

    from testbed.models.real.parity import prove_file

    found = prove_file(file)
    if as_json:
        print_json({"file": str(file), "ok": found.ok, **asdict(found)})
    else:
        print(f"{file}: {found}")
    if not found.ok:
        raise ModelError(f"{file}: llama.cpp computes something else than transformers: {found}")
