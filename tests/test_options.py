"""Options: what a field says, its bounds, and files of configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from testbed.config import DemoConfig, RunConfig, ServeConfig
from testbed.errors import BadInput, ConfigError
from testbed.options import Bounds, Config, load, option, options_of, save
from testbed.ue.api.config import EndpointConfig
from tests.support.refusals import refuse


class Basket(Config, frozen=True):
    apples: Annotated[int, option("Apples.", least=1, most=9, panel="Fruit", unit="apples")] = 3
    weight_s: Annotated[float, option("Weighing time.", above=0, unit="s", flags=("--weighing",))] = 1.0
    shares: Annotated[tuple[float, ...], option("Shares.", least=0, below=1)] = (0.5,)
    note: str = ""


def test_what_a_field_says() -> None:
    apples, weight, shares = options_of(Basket)
    assert (apples.about, apples.flag, apples.default, apples.unit) == ("Apples.", "--apples", 3, "apples")
    assert (weight.flag, weight.metavar, weight.panel) == ("--weighing", "SECONDS", "Fruit")  # the panel before it
    assert shares.kind == tuple[float, ...]


@pytest.mark.parametrize("kind", [ServeConfig, RunConfig, DemoConfig, EndpointConfig])
def test_every_field_is_described(kind: type[Config]) -> None:
    options = options_of(kind)
    assert [one.name for one in options] == list(kind.__struct_fields__)
    assert all(one.about.endswith((".", ")")) and one.panel for one in options)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"apples": 0}, "apples must lie in 1..9, not 0"),
        ({"apples": 10}, "apples must lie in 1..9, not 10"),
        ({"weight_s": 0.0}, "weighing must be positive, not 0.0"),
        ({"weight_s": float("nan")}, "weighing must be positive, not nan"),
        ({"weight_s": float("inf")}, "weighing must be positive, not inf"),
        ({"shares": (0.2, 1.0)}, "shares must lie in [0, 1), not 1.0"),
    ],
)
def test_a_number_out_of_bounds_is_refused_wherever_it_comes_from(
    change: dict[str, object], said: str, tmp_path: Path
) -> None:
    refuse(lambda: Basket(**change), BadInput, said)  # type: ignore[arg-type]
    refuse(lambda: msgspec.structs.replace(Basket(), **change), BadInput, said)
    path = tmp_path / "basket.yaml"
    path.write_bytes(msgspec.yaml.encode(change))
    refuse(lambda: load(Basket, path), ConfigError, said)


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        (Bounds(least=0), "at least 0"),
        (Bounds(most=5), "at most 5"),
        (Bounds(above=0), "positive"),
        (Bounds(above=1), "above 1"),
        (Bounds(below=1), "below 1"),
        (Bounds(least=0, most=1), "[0, 1]"),
        (Bounds(above=0, below=1), "(0, 1)"),
        (Bounds(least=1, most=256), "1..256"),
    ],
)
def test_bounds_in_words(bounds: Bounds, text: str) -> None:
    assert str(bounds) == text


def test_a_file_of_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "basket.yaml"
    save(Basket(apples=4, note="ripe"), path)
    assert load(Basket, path) == Basket(apples=4, note="ripe")
    path.write_text("aples: 3\n")
    refuse(lambda: load(Basket, path), ConfigError, "did you mean 'apples'?")
    missing = tmp_path / "none.yaml"
    refuse(lambda: load(Basket, missing), ConfigError, f"cannot read {missing}: No such file or directory")


class Lid(Config, frozen=True, tag="lid", tag_field="kind"):
    thickness_mm: float = 1.0


class Cloth(Config, frozen=True, tag="cloth", tag_field="kind"):
    colours: tuple[str, ...] = ()


class Shop(Config, frozen=True):
    thickness: float = 2.0
    baskets: tuple[Basket, ...] = ()
    named: dict[str, Basket] | None = None
    cover: Lid | Cloth | None = None
    bag: Literal["paper", "cotton"] | None = None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("baskets: [{}, {notes: a}]", "at `$.baskets[1]`; did you mean 'note'?"),
        ("named: {a: {notes: a}}", "did you mean 'note'?"),
        ("cover: {kind: lid, thickness: 1}", "at `$.cover`; did you mean 'thickness_mm'?"),
        ("cover: {kind: cloth, colour: []}", "at `$.cover`; did you mean 'colours'?"),
        ("basket: []", "unknown field `basket`; did you mean 'baskets'?"),
        ("cover: {kind: cloth, x: 1}", "at `$.cover`; known: colours, thickness_mm"),
        ("cover: {kind: clot}", "at `$.cover.kind`; did you mean 'cloth'?"),
        ("cover: {kind: x}", "at `$.cover.kind`; known: cloth, lid"),
        ("bag: papr", "at `$.bag`; did you mean 'paper'?"),
        ("{'" + 900 * "x" + "': 1}", "x`; known: bag, baskets, cover, named, thickness"),
    ],
)
def test_the_nearest_key_is_one_of_the_same_place(text: str, said: str, tmp_path: Path) -> None:
    """It was one of the whole file, even the unknown one itself."""
    path = tmp_path / "shop.yaml"
    path.write_text(text)
    refuse(lambda: load(Shop, path), ConfigError, said)
    with pytest.raises(ConfigError, match=r"^.{1,700}$"):
        load(Shop, path)


@pytest.mark.parametrize("text", ["apples: " + "9" * 400, "weight_s: " + "9" * 400, "apples: 2001-99-99", "&a [*a]"])
def test_values_that_are_too_large_or_none_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "basket.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"basket\.yaml"):
        load(Basket, path)
