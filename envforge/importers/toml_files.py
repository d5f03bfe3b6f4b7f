"""pyproject.toml, uv.lock, poetry.lock, pylock.toml. Pure."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from envforge.importers import packages
from envforge.importers.records import Draft, unreadable


def _load(draft: Draft, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise unreadable(draft.place, f"not TOML: {str(error)[:200]}") from None


def _at(text: str, needle: str) -> int:
    place = text.find(needle)
    return text.count("\n", 0, place) + 1 if place >= 0 else 1


def pyproject(draft: Draft, text: str) -> None:
    """Project dependencies; extras, groups and tool tables are said."""
    data = _load(draft, text)
    project = data.get("project")
    project = project if isinstance(project, dict) else {}
    if isinstance(project.get("name"), str):
        draft.name = project["name"]
    if isinstance(project.get("requires-python"), str):
        bound = project["requires-python"]
        draft.line(
            _at(text, "requires-python"),
            f"requires-python = {bound}",
            "ignored",
            "a bound for users of the project; the interpreter is chosen for the frameworks",
        )
    found = project.get("dependencies", [])
    for item in found if isinstance(found, list) else []:
        draft.line(_at(text, str(item)), str(item), *packages.requirement(draft, str(item)))
    for table, holder in (
        ("project.optional-dependencies", project.get("optional-dependencies")),
        ("dependency-groups", data.get("dependency-groups")),
    ):
        for name, items in holder.items() if isinstance(holder, dict) else ():
            for item in items if isinstance(items, list) else []:
                draft.line(
                    _at(text, str(item)), f"{table}.{name}: {item}", "ignored", "optional: add it by hand if wanted"
                )
    tool = data.get("tool")
    poetry = tool.get("poetry") if isinstance(tool, dict) else None
    wanted = poetry.get("dependencies") if isinstance(poetry, dict) else None
    for name, bound in wanted.items() if isinstance(wanted, dict) else ():
        _poetry_line(draft, text, str(name), bound)
    for key in [*data, *(f"tool.{name}" for name in (tool if isinstance(tool, dict) else {}))]:
        if key not in ("project", "tool", "dependency-groups", "tool.poetry"):
            draft.line(_at(text, f"[{key}"), f"[{key}]", "ignored", "a table of another tool")
    if not draft.lines:
        draft.line(1, draft.place, "ignored", "the file has no dependencies")


def _poetry_line(draft: Draft, text: str, name: str, bound: Any) -> None:
    number = _at(text, f"\n{name} ") + 1
    version = bound.get("version") if isinstance(bound, dict) else bound
    shown = f"{name} = {bound}"
    if name == "python":
        draft.line(number, shown, *packages.python(draft, str(version), "the interpreter"))
    elif not isinstance(version, str):
        draft.line(number, shown, "not-understood", "only versions from an index are read")
    else:
        fate, why = packages.requirement(draft, name + _caret(version))
        draft.line(number, shown, "changed" if fate == "kept" else fate, why or f"written as {name}{_caret(version)}")


def _caret(text: str) -> str:
    match = re.fullmatch(r"\^\s*(\d+)(\.\d+)?(\S*)", text)
    if match:
        high = f"{int(match[1]) + 1}" if match[1] != "0" or not match[2] else f"0.{int(match[2][1:]) + 1}"
        return f">={text[1:].strip()},<{high}"
    if text.startswith("~"):
        parts = text[1:].strip("=").split(".")
        return "~=" + ".".join(parts if len(parts) > 1 else [*parts, "0"])
    return "" if text == "*" else text if text[:1] in "<>=!" else f"=={text}"


def _locked(draft: Draft, text: str, names: tuple[str, ...]) -> None:
    data = _load(draft, text)
    rows: list[Any] = next((data[name] for name in names if isinstance(data.get(name), list)), [])
    starts = [text.count("\n", 0, m.start()) + 1 for m in re.finditer(r"(?m)^\[\[packages?\]\]", text)]
    if not rows:
        raise unreadable(draft.place, "it locks no packages")
    python = data.get("requires-python")
    python = (
        python or (data.get("metadata") or {}).get("python-versions")
        if isinstance(data.get("metadata", {}), dict)
        else python
    )
    if isinstance(python, str):
        draft.line(_at(text, "python"), f"python {python}", "ignored", "a bound; the interpreter is chosen")
    seen: set[str] = set()
    for i, row in enumerate(rows):
        number = starts[i] if i < len(starts) else 1
        if not isinstance(row, dict) or not isinstance(row.get("name"), str):
            draft.line(number, str(row), "not-understood", "no package")
            continue
        _entry(draft, row, number, seen)
    _addresses(draft, text)


def _entry(draft: Draft, row: dict[str, Any], number: int, seen: set[str]) -> None:
    name, version = row["name"], row.get("version")
    source = row.get("source")
    if (isinstance(source, dict) and {"virtual", "editable", "directory"} & set(source)) or not isinstance(
        version, str
    ):
        draft.line(number, f"{name} {version or ''}", "ignored", "own code, or not from an index: put it under `files`")
    elif name in seen:
        draft.line(number, f"{name} {version}", "ignored", "another version for another platform or marker")
    else:
        seen.add(name)
        fate, why = packages.requirement(draft, f"{name}=={version}")
        draft.line(number, f"{name}=={version}", fate, why)


def _addresses(draft: Draft, text: str) -> None:
    """CUDA that shows only in addresses."""
    for found in sorted(set(re.findall(r"/cuda(\d+\.\d+)(?:-([a-z0-9]+))?", text))):
        draft.claim(found[0], f"the address part cuda{found[0]}", "inferred")
        draft.note(
            "warning",
            "cuda-inferred",
            f"CUDA {found[0]} is inferred from the address of the wheels: confirm it; its driver floor follows from it",
        )
        if found[1].startswith(("ubi", "rhel", "el")):
            draft.note(
                "warning",
                "base-limited",
                f"the wheels are built for {found[1]}: an Ubuntu or Debian base is not what they were made for",
                "take a base of that system",
            )
    for tag in sorted(set(re.findall(r"download\.pytorch\.org/whl/(cu\d+|cpu)", text))):
        packages.index(draft, f"https://download.pytorch.org/whl/{tag}", kind="extra-index-url")
    if re.search(r"-linux_(?:x86_64|aarch64)\.whl", text):
        draft.note(
            "warning", "platform-only-wheel", "wheels with a plain linux tag suit the system they were built on only"
        )
    if any(c[2] == "inferred" for c in draft.claims) and "nvidia-" not in text:
        draft.note(
            "warning", "cuda-from-base", "no nvidia-* packages are locked: the base image must bring CUDA and cuDNN"
        )


def uv_lock(draft: Draft, text: str) -> None:
    """uv.lock."""
    _locked(draft, text, ("package",))


def poetry_lock(draft: Draft, text: str) -> None:
    """poetry.lock."""
    _locked(draft, text, ("package",))


def pylock(draft: Draft, text: str) -> None:
    """pylock.toml (PEP 751)."""
    from envforge.pylock import loads

    loads(text, place=draft.place)
    _locked(draft, text, ("packages",))
