"""Columns of the rows of `testbed field run` in tables: headers, formats, and the terms that they use."""

from __future__ import annotations

FIELD_COLUMNS = {
    "place": ("place", "{}"),
    "distance_m": ("m", "{:g}"),
    "setting": ("method", "{}"),
    "way": ("way", "{}"),
    "requests": ("n", "{:d}"),
    "latency_s": ("latency s", "{:.4f}"),
    "gain": ("speed-up", "{:.3f}"),
    "permissiveness": ("kept of judged", "{:.3f}"),
    "goodput_tps": ("goodput tok/s", "{:.1f}"),
    "aal": ("AAL", "{:.2f}"),
    "accuracy": ("accuracy", "{:.3f}"),
    "differs": ("vs. field", "{:+.3f}"),
    "same_outputs": ("same outputs", "{:.2f}"),
}
CONTENTION_COLUMNS = {
    "place": ("place", "{}"),
    "method": ("method", "{}"),
    "alone_tps": ("alone tok/s", "{:.1f}"),
    "goodput_tps": ("at once tok/s", "{:.1f}"),
    "share": ("share", "{:.2f}"),
    "link_ratio": ("link time", "{:.2f}"),
    "draft_ratio": ("drafting time", "{:.2f}"),
    "overlap": ("overlap", "{:.2f}"),
}
"""Columns of UEs at the same time; the two times are relative to those alone."""
NAMES = ("place", "distance_m", "setting", "way")
"""Columns that name a row."""
TERMS = {
    "way": (
        "way",
        "field: measured; together: measured beside all other places; replay: virtual time over the recorded link; "
        "virtual: over the modelled link",
    ),
    "gain": ("speed-up", "latency of the plan's first method at this place, divided by the row's"),
    "permissiveness": ("kept of judged", "share of the judged mismatches that the head kept"),
    "aal": ("AAL", "average accepted length: tokens committed per round, correction or bonus token included"),
    "differs": ("vs. field", "latency relative to the measured one: 0.1 is 10 % longer"),
    "same_outputs": ("same outputs", "share of requests whose output is that of the field, token for token"),
}
"""Columns that need an explanation: term and meaning."""
