"""When two tokenizers are the same, and when a UE and a BS go together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from testbed.errors import ModelError
from testbed.protocols.detokeniser import Detokeniser
from testbed.protocols.vocabulary import Overlap, check_same, decoded, fingerprint, overlap, token_ids
from tests.support.refusals import refuse

BPE: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [{"id": 5, "content": "<end>", "special": True}],
    "normalizer": None,
    "post_processor": None,
    "model": {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4},
        "merges": ["a b", "ab c"],
    },
}


def save(directory: Path, document: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    return directory


def changed(**model: Any) -> dict[str, Any]:
    return {**BPE, "model": {**BPE["model"], **model}}


@pytest.fixture
def base(tmp_path: Path) -> str:
    return fingerprint(save(tmp_path / "base", BPE))


@pytest.mark.parametrize(
    "document",
    [
        changed(merges=[["a", "b"], ["ab", "c"]]),
        changed(vocab=dict(reversed(BPE["model"]["vocab"].items()))),
        changed(vocab={**BPE["model"]["vocab"], "<end>": 5}),  # an added token that the vocabulary names too
        changed(dropout=None, unk_token=None, ignore_merges=True),
        {**BPE, "post_processor": {"type": "ByteLevel"}, "padding": {"pad_id": 5}, "truncation": None},
    ],
)
def test_the_same_tokens_ids_and_merges_are_the_same_tokenizer(base: str, document: Any, tmp_path: Path) -> None:
    assert fingerprint(save(tmp_path / "other", document)) == base


def test_a_chat_template_does_not_count(base: str, tmp_path: Path) -> None:
    directory = save(tmp_path / "chat", BPE)
    (directory / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}", "bos_token": "a"}')
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    assert fingerprint(directory) == base


@pytest.mark.parametrize(
    "document",
    [
        changed(vocab={"a": 0, "b": 1, "d": 2, "ab": 3, "abc": 4}),  # another token
        changed(vocab={"a": 0, "b": 2, "c": 1, "ab": 3, "abc": 4}),  # two ids exchanged
        changed(vocab={"a": 0, "b": 1, "c": 2, "ab": 3}),
        changed(vocab={**BPE["model"]["vocab"], "cc": 6}),
        changed(merges=["ab c", "a b"]),  # merges in another order
        changed(merges=["a b", "a bc"]),
        changed(merges=["a b"]),
        {**BPE, "added_tokens": []},
        {**BPE, "added_tokens": [{"id": 5, "content": "<stop>"}]},
        {**BPE, "added_tokens": [{"id": 6, "content": "<end>"}]},
    ],
)
def test_another_token_id_or_merge_is_another_tokenizer(base: str, document: Any, tmp_path: Path) -> None:
    assert fingerprint(save(tmp_path / "other", document)) != base


def test_unigram_vocabularies_are_lists_of_tokens_with_scores(tmp_path: Path) -> None:
    def unigram(*tokens: tuple[str, float]) -> str:
        return fingerprint(save(tmp_path / "unigram", {"model": {"type": "Unigram", "vocab": tokens}}))

    first = unigram(("<unk>", 0.0), ("a", -1.0), ("b", -2.0))
    assert first == unigram(("<unk>", 0.0), ("a", -1.0), ("b", -2.0))
    assert first != unigram(("<unk>", 0.0), ("b", -1.0), ("a", -2.0))


def test_a_fingerprint_fits_into_a_greeting(base: str) -> None:
    assert len(base) == 16
    int(base, 16)


@pytest.mark.parametrize(
    "content",
    [
        "{}", '{"model": {}}', '{"model": {"vocab": null}}', '{"model": {"vocab": 5}}',
        '{"model": {"vocab": {"a": 0, "b": "1"}}}', '{"model": {"vocab": [[]]}}',
        '{"model": {"vocab": {"a": 0}, "merges": [5]}}', '{"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 1}]}',
    ],
)  # fmt: skip
def test_what_is_no_tokenizer_is_refused_with_its_path(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        fingerprint(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is not JSON"), (b"no JSON", "is not JSON"), (b"\xff\xfe", "is not JSON"), (b"[]", "holds no JSON object")],
)
def test_what_is_no_json_object_is_refused_with_its_path(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelError, match=rf"tokenizer\.json {words}"):
        fingerprint(tmp_path)


def test_a_missing_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer in .*: tokenizer.json is missing"):
        fingerprint(tmp_path)


@pytest.mark.parametrize(
    ("ue", "bs"),
    [
        (("f00d", 100), ("f00d", 100)),
        (("f00d", 151_936), ("f00d", 152_064)),  # padded to different numbers of rows
        (("", 100), ("", 100)),
        (("f00d", 100), ("", 100)),
        (("", 100), ("f00d", 100)),
    ],
)
def test_sides_that_go_together(ue: tuple[str, int], bs: tuple[str, int]) -> None:
    check_same(ue, bs)


@pytest.mark.parametrize(
    ("ue", "bs", "reason"),
    [
        (("f00d", 100), ("beef", 100), "tokenizer mismatch: the UE's is f00d, the BS's is beef"),
        (("", 100), ("", 101), "vocabulary mismatch: the UE drafts 100 ids, the BS knows 101"),
        (("f00d", 100), ("", 101), "vocabulary mismatch"),
        (("", 100), ("f00d", 101), "vocabulary mismatch"),
    ],
)
def test_sides_that_do_not(ue: tuple[str, int], bs: tuple[str, int], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        check_same(ue, bs)


def test_the_overlap_of_two_vocabularies(tmp_path: Path) -> None:
    one = save(tmp_path / "one", BPE)
    other = save(tmp_path / "other", changed(vocab={"ab": 0, "c": 1, "d": 2}))
    assert token_ids(one) == {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "<end>": 5}
    assert overlap(one, one) == Overlap(6, 6, 6, 1.0)
    assert overlap(one, other) == Overlap(6, 4, 3, 0.75)  # c, ab and <end> of c, ab, d and <end>
    empty = save(tmp_path / "empty", {"model": {"vocab": {}}})
    assert overlap(empty, one) == Overlap(0, 6, 0, 0.0)
    with pytest.raises(ModelError, match="has no tokens"):
        overlap(one, empty)


@pytest.mark.parametrize("number", [-1, 2**63, 1e300, 1.0, True, "1", float("inf")])
def test_ids_that_no_row_can_have_are_refused(number: Any, tmp_path: Path) -> None:
    """They ended an endpoint at its first request."""
    directory = save(tmp_path / "ids", changed(vocab={**BPE["model"]["vocab"], "x": number}))
    for read in (token_ids, fingerprint):
        with pytest.raises(ModelError, match="tokenizer"):
            read(directory)


def test_a_decoder_that_fails_is_an_error_of_one_line() -> None:
    """The library panics, which is no Exception: this decoder cannot strip both ends of one space."""
    tokenizer = Tokenizer(models.WordLevel({" ": 0, "a": 1}, unk_token="a"))
    tokenizer.decoder = decoders.Strip(content=" ", left=1, right=1)
    assert decoded(tokenizer, [1]) == "a"
    refuse(lambda: decoded(tokenizer, [0]), ModelError, "the tokenizer fails on these tokens")
    refuse(lambda: Detokeniser(tokenizer).push(0), ModelError, "the tokenizer fails on these tokens")
