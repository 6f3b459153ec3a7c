"""Training and export of the bundled pair: tokenizer, both models, and their files in the package."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from testbed.errors import BadInput
from testbed.files import regular_bytes, whole_file
from testbed.models.checkpoint import writing
from testbed.models.export import export_gguf
from testbed.models.net import Net
from testbed.models.tokenizer import end_of, save_tokenizer, train_tokenizer
from testbed.models.train import MAX_POSITIONS, RECIPES, train

Progress = Callable[[str, int, int, float], None]
"""Called with role, steps done, total steps, and loss."""


def make_pair(work: Path, out: Path, seed: int, progress: Progress) -> None:
    """Train both models, resuming from `work`, and write the pair's files to `out`.

    These are `target/` and `drafter/` (safetensors in bfloat16, with the tokenizer) and `drafter.gguf` (the same
    weights in float32).
    """
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_of(work, seed)
    for role, recipe in RECIPES.items():

        def report(step: int, loss: float, role: str = role, steps: int = recipe.steps) -> None:
            progress(role, step, steps, loss)

        net = train(recipe, tokenizer, work / f"{role}.ckpt", seed, report)
        save_model(net, tokenizer, out / role)
    export_gguf(out / "drafter", out / "drafter.gguf", "f32")


def tokenizer_of(work: Path, seed: int) -> Tokenizer:
    """Tokenizer of the pair, trained once for a seed and stored in `work`.

    Raises:
        BadInput: the stored one is damaged.
    """
    path = work / f"tokenizer-{seed}.json"
    if not path.exists():
        with whole_file(path) as part:
            part.write_text(train_tokenizer(seed).to_str(pretty=True))
    try:
        regular_bytes(path)
        tokenizer = Tokenizer.from_str(path.read_text())
        if sorted(tokenizer.get_vocab().values()) != [*range(tokenizer.get_vocab_size())]:
            raise ValueError("its ids do not count up from 0")
    except Exception as exc:  # of no narrower type
        raise BadInput(f"{path} is damaged ({exc}); remove it, and the tokenizer is trained again") from exc
    return tokenizer


def save_model(net: Net, tokenizer: Tokenizer, directory: Path) -> None:
    """Write a trained model as a transformers directory, weights in bfloat16."""
    model = LlamaForCausalLM(net.config)
    model.load_state_dict({**net.state_dict(), "lm_head.weight": net.model.embed_tokens.weight})
    with writing(directory):
        model.bfloat16().save_pretrained(directory)
    (directory / "model.safetensors").chmod(0o644)
    save_tokenizer(tokenizer, directory, MAX_POSITIONS)
    end_id = end_of(tokenizer)
    generation = {"eos_token_id": end_id, "pad_token_id": end_id, "do_sample": False}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
