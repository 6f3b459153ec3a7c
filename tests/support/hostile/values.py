"""Values of message fields, drawn from the message schema: types, bounds (`RANGES`, `msgspec.Meta`), and their edges.

Values are those of a decoded header: lists, dictionaries, numbers and texts. A new message or field needs nothing here.
"""

from __future__ import annotations

import math
import random
import re
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from testbed.protocols.ranges import RANGES
from tests.support.hostile.texts import TEXTS

INTS = (-(2**63), -(2**31) - 1, -(2**31), -2, -1, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**64 - 1)
REALS = (-math.inf, -1e308, -1.0, -5e-324, -0.0, 5e-324, 1e-310, 1e300, 1.7e308, math.inf, math.nan)
MOST_INT = 2**63 - 1
ORDINARY = 64


@cache
def described(kind: type[msgspec.Struct]) -> inspect.StructType:
    """Fields of a message, with their types."""
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return found


class Values:
    """Draws values; reproducible by the generator of random numbers.

    Args:
        texts: texts to draw from beside `TEXTS`, by name of a field.
    """

    def __init__(self, rng: random.Random, texts: dict[str, tuple[str, ...]] | None = None) -> None:
        self._rng, self._texts = rng, texts or {}

    def draw(self, kind: type[msgspec.Struct], name: str, wild: bool) -> Any:
        """A value of a message's field: within its bounds, or, if `wild`, any that its wire type can carry."""
        field = next(field for field in described(kind).fields if field.name == name)
        return self._of(field.type, kind, name, wild)

    def message(self, kind: type[msgspec.Struct], wild: float) -> list[Any]:
        """Header of a message whose fields are all drawn, each wild with a probability; it has no arrays."""
        names = [name for name in kind.__struct_fields__ if name != "arrays"]
        return [described(kind).tag, *(self.draw(kind, name, self._rng.random() < wild) for name in names), []]

    def _of(self, found: inspect.Type, kind: type[Any], name: str, wild: bool) -> Any:
        rng = self._rng
        if isinstance(found, inspect.Metadata):  # an option of a configuration: its bounds are checked after decoding
            limits, found = (found.extra or {}).get("bounds"), found.type
            if limits is not None and isinstance(found, inspect.IntType | inspect.FloatType):
                least = next((n for n in (limits.least, limits.above) if n is not None), None)
                most = next((n for n in (limits.most, limits.below) if n is not None), None)
                found = type(found)(ge=least, le=most)
        if isinstance(found, inspect.UnionType):
            return self._of(rng.choice(found.types), kind, name, wild)
        if wild and rng.random() < 0.1:
            return rng.choice([None, True, 0, -1, 0.5, math.nan, "", "x", [], [[]], {}, b"\xff"])  # of another type
        if isinstance(found, inspect.IntType):
            return self._int(*self._bounds(found, kind, name, 0, MOST_INT), wild)
        if isinstance(found, inspect.FloatType):
            return self._real(*self._bounds(found, kind, name, 0.0, 1e308), wild)
        if isinstance(found, inspect.StructType):
            return self._struct(found, wild)
        if isinstance(found, inspect.VarTupleType | inspect.ListType):
            return [self._of(found.item_type, kind, name, wild) for _ in range(rng.randrange(3))]
        if isinstance(found, inspect.DictType):  # such as `digests`: of a `name`, its `digest`
            keys = [self._simple(found.key_type, "name", wild) for _ in range(rng.randrange(3))]
            return {key: self._of(found.value_type, kind, name.removesuffix("s"), wild) for key in keys}
        return self._simple(found, name, wild)

    def _simple(self, found: inspect.Type, name: str, wild: bool) -> Any:
        rng = self._rng
        if isinstance(found, inspect.StrType):
            texts = [*TEXTS, *self._texts.get(name, ())]
            fitting = [text for text in texts if found.pattern is None or re.search(found.pattern, text)]
            return rng.choice(texts if wild else fitting)
        if isinstance(found, inspect.BoolType):
            return rng.random() < 0.5
        if isinstance(found, inspect.LiteralType):
            return rng.choice(TEXTS if wild else found.values)
        if isinstance(found, inspect.NoneType):
            return None
        raise TypeError(f"no values for {found}: tests/support/hostile/values.py must learn to draw them")

    def _struct(self, found: inspect.StructType, wild: bool) -> Any:
        """A struct within a message; one of its fields is wild, the others are not."""
        at = self._rng.randrange(len(found.fields)) if wild else -1
        drawn = {
            field.encode_name: self._of(field.type, found.cls, field.name, i == at)
            for i, field in enumerate(found.fields)
            if field.required or i == at or self._rng.random() < 0.3
        }
        if not found.array_like:
            return drawn if found.tag is None else {str(found.tag_field): found.tag, **drawn}
        last = max((i for i, field in enumerate(found.fields) if field.encode_name in drawn), default=-1)
        return [drawn.get(field.encode_name, field.default) for field in found.fields[: last + 1]]

    def _bounds(self, found: Any, kind: type[Any], name: str, least: float, most: float) -> tuple[Any, Any]:
        if (known := RANGES.get(kind, {}).get(name)) is not None:
            return known.least, known.most
        return least if found.ge is None else found.ge, most if found.le is None else found.le

    def _int(self, least: int, most: int, wild: bool) -> int:
        if wild:
            return self._rng.choice([*INTS, max(least - 1, -(2**63)), min(most + 1, 2**64 - 1)])
        edges = [n for n in (least, least + 1, most - 1, most, 0, 1) if least <= n <= most]
        return self._rng.choice([*edges, self._rng.randint(least, min(most, least + ORDINARY))])

    def _real(self, least: float, most: float, wild: bool) -> float:
        if wild:
            return self._rng.choice([*REALS, math.nextafter(least, -math.inf), math.nextafter(most, math.inf)])
        numbers = (least, math.nextafter(least, math.inf), math.nextafter(most, -math.inf), most, 0.0, 5e-324)
        edges = [n for n in (*numbers, 2.2e-308, 1e-9, 0.05, 1.0) if least <= n <= most]
        low = max(least, most * 1e-12, 1e-300)
        return float(self._rng.choice([*edges, low * (most / low) ** self._rng.random()]))
