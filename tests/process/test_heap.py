"""Objects that are loaded before a server starts are left out of its garbage collections."""

from __future__ import annotations

import gc
import weakref

import pytest

from testbed.process.heap import loaded_heap_frozen


class Node:
    """A cycle, which reference counts do not free."""

    def __init__(self) -> None:
        self.own = self


def test_collections_visit_new_objects_only() -> None:
    before, loaded = gc.get_freeze_count(), Node()
    with loaded_heap_frozen():
        assert gc.get_freeze_count() > before
        assert not any(found is loaded for found in gc.get_objects())
        new = weakref.ref(Node())
        gc.collect()
        assert new() is None
    assert any(found is loaded for found in gc.get_objects())


def test_an_error_ends_it_too() -> None:
    with pytest.raises(ValueError, match="sic"), loaded_heap_frozen():
        raise ValueError("sic")
    assert gc.get_freeze_count() == 0


def test_garbage_of_before_is_collected_first() -> None:
    old = weakref.ref(Node())
    with loaded_heap_frozen():
        assert old() is None
