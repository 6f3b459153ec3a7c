"""Drafters by name: a GGUF file for llama.cpp, an entry of the registry, or both with a plus sign between them.

An installed package adds a drafter by an entry point in the group `testbed.drafters`, which names a `DrafterKind`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from testbed.assets.fingerprints import model_fingerprint
from testbed.assets.model_names import NAMES, named
from testbed.errors import BadInput
from testbed.protocols.methods import run_method
from testbed.protocols.vocabulary import FILE, token_ids, tokenizer_file
from testbed.registry import Registry
from testbed.synthetic import VOCAB
from testbed.ue.drafters.base import Drafter
from testbed.ue.drafters.hybrid import HybridDrafter
from testbed.ue.drafters.index import IndexDrafter, IndexRule
from testbed.ue.drafters.lookup import NgramLookup, SuffixLookup
from testbed.ue.drafters.mapped import MAPPED, IdMap, MappedDrafter
from testbed.ue.drafters.synthetic import SyntheticDrafter
from testbed.ue.drafters.text_memory import TextMemory
from testbed.ue.llama.drafter import LlamaDrafter

LOG = logging.getLogger(__name__)
CONTEXT = 4096
"""Positions of a sequence where the run leaves them to a drafter without a model."""
BUNDLED = "bundled"
"""The bundled drafter in the name of a hybrid."""
MOST, LEAST = 8, 3
"""Tokens of the n-grams that `ngram` looks up."""
INDEX_RULE = IndexRule(floor=3, reach=2)


@dataclass(frozen=True)
class DrafterOptions:
    """Requirements of a run on its drafter.

    Attributes:
        vocab_size: ids of the tokenizer; None: prompts are ids, and the drafter's own vocabulary counts.
        context: positions of the longest prompt and output; None: the drafter's choice.
        sequences: sequences open at once.
        threads: CPU threads; None: the drafter's choice.
        gpu_layers: layers on a GPU; -1: all.
        kv_type: type of the KV cache.
        memory_tokens: tokens of earlier requests that `suffix` drafts from, too.
        tokenizer: directory of the target's tokenizer; None: the drafter's vocabulary is taken to be the target's.
        keep: whether texts that come back, grown by a turn of a conversation, have only their new part computed.
    """

    vocab_size: int | None = None
    context: int | None = None
    sequences: int = 1
    threads: int | None = None
    gpu_layers: int = -1
    kv_type: Literal["f16", "f32"] = "f16"
    memory_tokens: int = 0
    tokenizer: Path | None = None
    keep: bool = False


class DrafterKind(NamedTuple):
    """A registry entry."""

    kind: str
    about: str
    load: Callable[[str, DrafterOptions], Drafter]
    """Takes the name as it was given, and the options."""
    hidden: bool = True
    """Whether its tokens carry hidden states, which fh and sh upload."""
    pure: bool = True
    """Whether its drafts depend on nothing but the prefix, so that runs in virtual time may share them."""


def is_file(name: str) -> bool:
    """Whether a drafter is a GGUF file, given by path or by the name of a fetched model."""
    return hybrid_parts(name) is None and (name.endswith(".gguf") or name in NAMES or Path(name).is_file())


def hybrid_parts(name: str) -> tuple[str, str] | None:
    """Index and model of a hybrid such as `suffix+FILE.gguf`; None if the name is not that of one."""
    index, _, model = name.partition("+")
    return (index, model) if model and index in INDEXES and not Path(name).is_file() else None


def drafter_kind(name: str) -> DrafterKind:
    """The kind of a drafter given by file or name.

    Raises:
        BadInput: unknown name; the message lists the known ones.
    """
    parts = hybrid_parts(name)
    if parts is None:
        return GGUF if is_file(name) else DRAFTERS.choose(name)
    if parts[1] != BUNDLED and not is_file(parts[1]):
        raise BadInput(f"{name}: after the plus sign stands a GGUF file, or a name: {BUNDLED}, {', '.join(NAMES)}")
    return HYBRID


def needs_target(name: str) -> bool:
    """Whether a drafter is, or holds, a model of its own, which drafts for one target."""
    model = (hybrid_parts(name) or ("", name))[1]
    return model != BUNDLED and is_file(model)


def check_states(name: str, methods: Sequence[str], states: str = "predicting") -> None:
    """Refuse a drafter without a model for methods that need its hidden states or probabilities, before anything is
    loaded.

    Args:
        states: which states tokens carry.

    Raises:
        BadInput: such a method, states of another kind, or an unknown name.
    """
    if drafter_kind(name).hidden:
        return
    if wrong := [method for method in methods if run_method(method).judged]:
        raise BadInput(f"drafter {name} has no hidden states, which {wrong[0]} uploads: use greedy or rejection")
    if "skip" in methods:
        raise BadInput(f"drafter {name} is not sure of its tokens by a model, as skip needs: use greedy")
    if states == "after":
        raise BadInput(f"drafter {name} has no hidden states: leave --states out")


def load_drafter(name: str, options: DrafterOptions) -> Drafter:
    """Load a drafter given by file or name. Warns of a memory of earlier requests that it does not look in.

    Raises:
        BadInput: unknown name.
        ModelError: it cannot be used.
    """
    if options.memory_tokens and (hybrid_parts(name) or (name,))[0] != SUFFIX.kind:
        LOG.warning("drafter %s remembers no earlier requests: a memory is for %s", name, SUFFIX.kind)
    return drafter_kind(name).load(name, options)


def fingerprint_of(model: Path, tokenizer: Path) -> str:
    """The fingerprint that a GGUF file has as a drafter for the target with this tokenizer, before it is loaded.

    Raises:
        ModelError: it cannot be read, or no token is in both vocabularies.
    """
    return model_fingerprint(model) + ("" if _id_map(model, tokenizer) is None else MAPPED)


def drafter_and_tokenizer(
    drafter: str | None, tokenizer: str | None, bundled: tuple[Path | None, Path | None]
) -> tuple[str, Path | None]:
    """Drafter and tokenizer directory as given, else those of the bundled pair.

    A model that is given by name has its tokenizer, any other GGUF file none; a drafter without a model drafts for the
    bundled tokenizer, and a hybrid for that of its model.

    Raises:
        BadInput: no drafter, or an unknown name.
        ModelError: a model that has not been fetched.
    """
    index, model = (hybrid_parts(drafter) if drafter else None) or ("", drafter)
    given = None if model == BUNDLED and index else model
    name = given or (str(bundled[0]) if bundled[0] else None)
    if name is None:
        raise BadInput("which drafter? give --drafter FILE.gguf")
    drafter_kind(f"{index}+{name}" if index else name)
    if tokenizer is None and given in NAMES:
        tokenizer = given
    by_file, name = given is not None and is_file(given), named(name, "drafter")
    directory = Path(named(tokenizer, "tokenizer")) if tokenizer else None if by_file else bundled[1]
    return f"{index}+{name}" if index else name, directory


def _llama(name: str, options: DrafterOptions) -> Drafter:
    ids = _id_map(Path(name), options.tokenizer)
    if ids is None:
        return _llama_of(name, options)
    LOG.warning(
        "%s has another vocabulary than the target: it drafts the %d tokens that both know, %.1f %% of the target's",
        name, len(ids.own_ids), 100 * ids.share,
    )  # fmt: skip
    return MappedDrafter(_llama_of(name, replace(options, vocab_size=ids.own_size)), ids)


def _id_map(model: Path, tokenizer: Path | None) -> IdMap | None:
    """Map between the vocabulary beside a GGUF file and the target's; None: the file knows the target's ids."""
    if tokenizer is None or not (model.parent / FILE).is_file():
        return None
    if tokenizer_file(model).samefile(tokenizer_file(tokenizer)):
        return None
    own, target = token_ids(model), token_ids(tokenizer)
    if all(own.get(token) == number for token, number in target.items()):
        return None
    return IdMap(own, target)


def _llama_of(name: str, options: DrafterOptions) -> LlamaDrafter:
    return LlamaDrafter(
        Path(name),
        options.vocab_size,
        context=options.context,
        sequences=options.sequences,
        threads=options.threads,
        gpu_layers=options.gpu_layers,
        kv_type=options.kv_type,
        keep=options.keep,
    )


def _synthetic(name: str, options: DrafterOptions) -> Drafter:
    return SyntheticDrafter(
        vocab_size=options.vocab_size or VOCAB,
        alpha=0.8,
        context=options.context or CONTEXT,
        max_sequences=options.sequences,
    )


def _index(name: str, options: DrafterOptions) -> Drafter:
    if options.vocab_size is None:
        raise BadInput(f"drafter {name} needs a tokenizer: give --tokenizer DIR")
    return _index_of(name, options.vocab_size, options.context or CONTEXT, INDEX_RULE, options.memory_tokens)


def _index_of(kind: str, vocab_size: int, context: int, rule: IndexRule, memory_tokens: int) -> IndexDrafter:
    if kind == NGRAM.kind:
        return IndexDrafter(vocab_size, context, kind, lambda: NgramLookup(MOST, LEAST), rule)
    memory = TextMemory(memory_tokens)
    return IndexDrafter(vocab_size, context, kind, lambda: SuffixLookup(memory), rule, memory)


def _hybrid(name: str, options: DrafterOptions) -> Drafter:
    parts = hybrid_parts(name)
    assert parts is not None
    model = _llama(parts[1], options)
    index = _index_of(parts[0], model.vocab_size, model.context, INDEX_RULE, options.memory_tokens)
    return HybridDrafter(index, model)


GGUF = DrafterKind("FILE.gguf", "a model in a GGUF file, by llama.cpp", _llama)
HYBRID = DrafterKind(
    "suffix+FILE.gguf", "an index (ngram, suffix) where its match is long, else a model", _hybrid, False, False
)
NGRAM = DrafterKind("ngram", "what followed the same n-gram in prompt or output, without a model", _index, False, False)
SUFFIX = DrafterKind(
    "suffix", "what followed the longest suffix that occurred before, without a model", _index, False, False
)
INDEXES = (NGRAM.kind, SUFFIX.kind)
DRAFTERS: Registry[DrafterKind] = Registry(
    "drafter",
    "testbed.drafters",
    GGUF,
    HYBRID,
    NGRAM,
    SUFFIX,
    DrafterKind("synthetic", "agrees with `--engine synthetic` with probability 0.8, without a model", _synthetic),
    of=DrafterKind,
)
