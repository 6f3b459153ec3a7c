"""What a report says of the run itself: when, with which version, machine and settings."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

GRIDS = ("grid", "zip", "series", "exclude", "include")
"""Parts of a sweep's configuration that vary its runs."""
BUNDLED = "bundled pair (2.8 and 0.4 million parameters)"


def facts_html(document: Mapping[str, Any]) -> str:
    """A list of facts, and the settings folded."""
    host, config = document.get("host", {}), document.get("config", {})
    facts = {
        "made": document.get("created", "unknown"),
        "testbed": f"{document.get('testbed', 'unknown')}, commit {(document.get('commit') or 'unknown')[:12]}",
        "seed": document.get("seed", "unknown"),
    }
    if host.get("cores"):
        known = (host.get("cpu"), f"{host['cores']} cores", host.get("system"))
        facts["machine"] = ", ".join(str(part) for part in known if part)
    if pids := host.get("pids"):
        facts["processes"] = ", ".join(f"{name} {number}" for name, number in pids.items())
    varied = {name: config[name] for name in GRIDS if isinstance(config.get("run"), Mapping) and config.get(name)}
    facts |= {name: _value(value) for name, value in varied.items()}
    settings = settings_of(config)
    if "methods" in settings:
        facts["models"] = _pair(settings)
    lines = _items({name.replace("_", " "): _value(value) for name, value in settings.items()})
    return f"{_items(facts)}<details><summary>Settings</summary>{lines}</details>"


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that all rows share: without those that a sweep varies, and those that are not set."""
    run = config.get("run")
    flat = {**config, **run} if isinstance(run, Mapping) else dict(config)
    varied = _varied(config) if isinstance(run, Mapping) else set()
    leave = {"run", *GRIDS, *varied} if isinstance(run, Mapping) else {"series"} & flat.keys()
    return {name: value for name, value in flat.items() if value is not None and name not in leave}


def _varied(config: Mapping[str, Any]) -> set[str]:
    """Fields that a grid, zip or series sets."""
    names = {name for part in ("grid", "zip") for name in (config.get(part) or {})}
    series = config.get("series") or {}
    rows = series.values() if isinstance(series, Mapping) else series
    names |= {name for row in rows if isinstance(row, Mapping) for name in row}
    return names | ({"methods"} if "method" in names or "protocol" in names else set())


def _pair(settings: Mapping[str, Any]) -> str:
    """Names of target and drafter."""
    target, drafter = settings.get("model"), settings.get("drafter")
    if isinstance(target, Mapping):  # the model of the link in a field plan, which names its target
        target = settings.get("target")
    if target is None and drafter is None:
        return BUNDLED
    return f"target {target or 'bundled'}, drafter {drafter or 'bundled'}"


def _value(value: Any) -> str:
    """A value of a configuration as text for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_value(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        named = any(isinstance(one, Mapping) for one in value)
        return ("; " if named else ", ").join(_named(one) if isinstance(one, Mapping) else _value(one) for one in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _named(one: Mapping[str, Any]) -> str:
    """An entry of a list, such as a series: its name, and what it sets."""
    name, rest = one.get("name"), {key: value for key, value in one.items() if key != "name"}
    sets = ", ".join(f"{field} {_value(one)}" for field, one in rest.items())
    return f"{name} ({sets})" if name is not None else f"({sets})"


def _items(facts: Mapping[str, Any]) -> str:
    items = (f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(value))}</dd>" for name, value in facts.items())
    return f"<dl>{''.join(items)}</dl>"
