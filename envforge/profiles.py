"""Named sets of environment variables for running, each variable with its reason. Data: data/profiles.yaml."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from envforge import resources
from envforge.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """One variable: its value, what it does, which frameworks read it, and the source."""

    name: str
    value: str
    why: str
    frameworks: tuple[str, ...]
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """A named set. ``note`` says what the variables alone cannot do."""

    name: str
    summary: str
    note: str
    variables: tuple[Variable, ...]


@lru_cache(maxsize=1)
def profiles() -> dict[str, Profile]:
    """Every profile by name, in file order."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows = yaml.load(resources.data("profiles.yaml").read_text(encoding="utf-8"), Loader=loader)["profiles"]
    return {
        row["name"]: Profile(
            name=row["name"],
            summary=row["summary"],
            note=row.get("note", ""),
            variables=tuple(
                Variable(
                    name=one["name"],
                    value=one["value"],
                    why=one["why"],
                    frameworks=tuple(one["frameworks"]),
                    source=one["source"],
                )
                for one in row["variables"]
            ),
        )
        for row in rows
    }


def environment(names: Iterable[str]) -> dict[str, str]:
    """The variables of these profiles together.

    Raises UsageError for an unknown name (``unknown-profile``) or when two profiles give one variable
    different values (``profiles-disagree``).
    """
    names = tuple(names)
    known = profiles() if names else {}
    found: dict[str, str] = {}
    origin: dict[str, str] = {}
    for name in names:
        if name not in known:
            raise UsageError("unknown-profile", f"there is no profile {name!r}", hint=f"known: {', '.join(known)}")
        for one in known[name].variables:
            if found.get(one.name, one.value) != one.value:
                raise UsageError(
                    "profiles-disagree",
                    f"{origin[one.name]} sets {one.name}={found[one.name]}, {name} sets {one.value}",
                    hint="use one of the two, and --env for the rest",
                )
            found[one.name], origin[one.name] = one.value, name
    return found
