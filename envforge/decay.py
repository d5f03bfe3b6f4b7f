"""What a spec or lock stands on that has been withdrawn or has reached its end of life.

Pure: tables, the locked facts and the day are passed in. Absence from the tables is no finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from envforge.compat import Tables
    from envforge.lock import Lock

Kind = Literal["base-withdrawn", "base-replaced", "base-ended", "python-ended", "release-withdrawn", "driver-ended"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decay:
    """One finding. ``since``: "YYYY-MM" (the end of that month), or None when no date is known."""

    name: str
    kind: Kind
    severity: Literal["error", "warning"]
    message: str
    hint: str
    since: str | None = None

    def document(self) -> dict[str, str | None]:
        """The value shown in JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            "severity": self.severity,
            "message": self.message,
            "hint": self.hint,
            "since": self.since,
        }


def ended(month: str, today: date) -> bool:
    """Whether the last day of ``month`` ("YYYY-MM") is behind ``today``. Raises ValueError for another form."""
    year, number = map(int, month.split("-"))
    return (today.year, today.month) > (year, number)


def of_base(tables: Tables, name: str, image: str, today: date) -> list[Decay]:
    """A base tag that is gone or past its support window, and the end of its system."""
    base = tables.base_image(image)
    found = []
    hint = f"use {base.instead}" if base.instead else "choose a base that is still published: envforge show NAME"
    if base.status == "gone":
        message = f"{image}: {base.note or 'the tag was withdrawn'}"
        found.append(Decay(name=name, kind="base-withdrawn", severity="error", message=message, hint=hint))
    elif base.note and "support window" in base.note:
        message = f"{image}: {base.note}"
        found.append(Decay(name=name, kind="base-replaced", severity="warning", message=message, hint=hint))
    if base.ends and ended(base.ends, today):
        message = f"{image} stands on {base.system}, whose support ended in {base.ends}"
        hint = "choose a base on a newer system, then lock again"
        found.append(
            Decay(name=name, kind="base-ended", severity="warning", message=message, hint=hint, since=base.ends)
        )
    return found


def of_python(tables: Tables, name: str, python: str, today: date) -> list[Decay]:
    """A Python series past its end of life."""
    minor = ".".join(python.split(".")[:2])
    row = next((one for one in tables.raw("rules")["pythons"] if one["python"] == minor), None)
    if row is None or not ended(row["ends"], today):
        return []
    message = f"Python {minor} gets no security fixes since {row['ends']}"
    hint = "choose a newer Python that the framework has wheels for: envforge check NAME"
    return [Decay(name=name, kind="python-ended", severity="warning", message=message, hint=hint, since=row["ends"])]


def of_packages(tables: Tables, name: str, packages: Iterable[tuple[str, str, str | None]]) -> list[Decay]:
    """Withdrawn releases among (name, version, reason the lock holds or None)."""
    rows = {(one["name"], one["version"]): one for one in tables.raw("rules")["yanked"]}
    found = []
    for package, version, locked_reason in packages:
        row = rows.get((package, version.split("+")[0]))
        if row is None and locked_reason is None:
            continue
        reason = row["reason"] if row is not None else locked_reason or "no reason given"
        instead = row.get("instead") if row is not None else None
        message = f"{package} {version} was withdrawn: {reason}"
        hint = f"use {package} {instead}" if instead else f"envforge lock NAME --upgrade {package}"
        found.append(Decay(name=name, kind="release-withdrawn", severity="error", message=message, hint=hint))
    return found


def of_driver(tables: Tables, name: str, driver: str, today: date) -> list[Decay]:
    """A driver branch past its end of life. A text without a date counts only when it says "end of life"."""
    branch = driver.split(".")[0]
    row = next((one for one in tables.raw("cuda")["drivers"] if str(one["branch"]) == branch), None)
    text = str(row["end_of_life"]) if row is not None else ""
    dated = re.fullmatch(r"\d{4}-\d{2}", text) is not None
    if not (ended(text, today) if dated else text == "end of life"):
        return []
    when = f" since {text}" if dated else ""
    return [
        Decay(
            name=name,
            kind="driver-ended",
            severity="warning",
            message=f"driver branch {branch} is past its end of life{when}",
            hint="upgrade the driver to a supported branch: envforge fleet plan FILE shows what that unlocks",
            since=text if dated else None,
        )
    ]


def of_lock(tables: Tables, lock: Lock, today: date) -> list[Decay]:
    """Every finding about one lock."""
    packages = [(one.name, one.version, one.yanked) for one in lock.pip]
    return [
        *of_base(tables, lock.name, lock.base.image, today),
        *of_python(tables, lock.name, lock.python, today),
        *of_packages(tables, lock.name, packages),
    ]
