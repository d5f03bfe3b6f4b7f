"""requirements.txt: options, hashes, markers, continuation lines, nested files; tolerant or strict. Pure."""

from __future__ import annotations

import posixpath
import re

from envforge.errors import SpecError
from envforge.importers import packages
from envforge.importers.records import Draft

_OPTION = re.compile(r"(?:^|(?<=\s))(--[a-z-]+|-[a-zA-Z])(?:[= ]\s*|(?<=-[a-zA-Z]))('[^']*'|\"[^\"]*\"|[^\s-]\S*)?")
_WITHOUT_VALUE = {
    "--pre",
    "--no-index",
    "--require-hashes",
    "--prefer-binary",
    "-U",
    "--upgrade",
    "--no-cache-dir",
    "--no-deps",
}
_START = re.compile(r"\s+(?=[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[^\]]*\])?\s*(?:===|==|~=|>=|<=|!=|<|>|@)\s*\S)")
MAX_INCLUDES = 50


def logical(text: str) -> list[tuple[int, str, str]]:
    """(number of the first line, content without comment, comment) of every line that says something."""
    found, held, start = [], "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        start = start or number
        held += raw
        if held.endswith("\\") and not raw.lstrip().startswith("#"):
            held = held[:-1] + " "
            continue
        body, comment = _comment(held)
        if body.strip():
            found.append((start, body.strip(), comment))
        held, start = "", 0
    body, comment = _comment(held)
    if body.strip():
        found.append((start, body.strip(), comment))
    return found


def _comment(text: str) -> tuple[str, str]:
    match = re.search(r"(?:^|\s)#.*$", text)
    return (text[: match.start()], match[0].strip()) if match else (text, "")


def read(draft: Draft, text: str) -> None:
    """Read the whole file into the draft. Strict: SpecError ``requirements-syntax`` with line and column."""
    for number, body, comment in logical(text):
        if re.search(r"#.*\bno[_-]verify\b", comment):
            draft.note(
                "info", "private-flag", f"line {number}: a private flag in a comment is not read: {comment[:80]}"
            )
        if body.startswith("-"):
            _option_line(draft, number, body)
        else:
            _requirement_line(draft, number, body)


def _option_line(draft: Draft, number: int, body: str) -> None:
    match = re.match(r"(--[a-z-]+|-[a-zA-Z])[=\s]*(.*)$", body)
    if match is None:
        draft.line(number, body, "not-understood", "not an option of pip")
        return
    name, rest = match[1], match[2].strip()
    if name not in ("-e", "--editable", "-r", "--requirement", "-c", "--constraint"):
        first, _, more = rest.partition(" ")
        if more.strip().startswith("-") and name not in _WITHOUT_VALUE:
            draft.line(number, f"{name} {first}", *option(draft, name, first))
            _option_line(draft, number, more.strip())
            return
    draft.line(number, body, *option(draft, name, rest.split(" #")[0].strip("'\"")))


def option(draft: Draft, name: str, value: str) -> packages.Fated:
    """One option of pip."""
    if name in ("-f", "--find-links"):
        return packages.index(draft, value, kind="find-links")
    if name in ("-i", "--index-url", "--extra-index-url"):
        return packages.index(draft, value, kind="index-url" if name in ("-i", "--index-url") else "extra-index-url")
    if name in ("-r", "--requirement", "-c", "--constraint"):
        return _include(draft, value, constraint=name in ("-c", "--constraint"))
    if name in ("-e", "--editable"):
        if "+" in value.split(":")[0]:
            fate, why = packages.requirement(draft, value)
            return ("changed", "installed from its repository, not editable") if fate == "kept" else (fate, why)
        return "not-understood", "own code: put it under `files` with `install: editable`"
    if name == "--pre":
        return "ignored", "pre-releases are taken when a version names one"
    if name in _WITHOUT_VALUE or name in ("--no-binary", "--only-binary", "--trusted-host", "--hash", "--use-feature"):
        return "ignored", "a setting of the pip run; the lock fixes files by hash"
    return "not-understood", "not an option that is known here"


def _include(draft: Draft, value: str, *, constraint: bool) -> packages.Fated:
    folder = posixpath.dirname(draft.file)
    target = posixpath.normpath(posixpath.join(folder, value)) if "://" not in value else value
    if target in draft.included:
        return "ignored", "this file was read already"
    if "://" in value or len(draft.included) >= MAX_INCLUDES:
        return "not-understood", "only files beside this one are read"
    content = draft.read(target)
    if content is None:
        draft.note("warning", "included-file-missing", f"{value} could not be read: its lines are not in the spec")
        return "not-understood", "the included file could not be read"
    draft.included.add(target)
    before, outer = len(draft.lines), draft.file
    draft.file = target
    if constraint:
        for number, body, _ in logical(content):
            draft.line(number, body, "ignored", "a constraint: write it among the packages where it is needed")
        draft.note("warning", "constraints-not-applied", f"the bounds of {value} are not in the spec")
    else:
        read(draft, content)
    draft.file = outer
    return "kept", f"{len(draft.lines) - before} lines of {target} follow"


def _requirement_line(draft: Draft, number: int, body: str) -> None:
    head, options = body, []
    at = re.search(r"\s(?=--?[a-zA-Z])", body)
    if at and ";" not in body[: at.start()].split(" -")[0][-1:]:
        head, options = body[: at.start()].strip(), _options(body[at.start() :])
    parts = [head] if ";" in head or " @ " in head else _START.split(head)
    parts = _joined(parts)
    inline = any(name not in ("--hash", "--config-settings", "--global-option") for name, _ in options)
    if draft.strict and (len(parts) > 1 or inline):
        where = body.find(parts[1]) if len(parts) > 1 else len(head) + 1
        place = f"{draft.file or draft.place}:{number}:{where + 1}"
        raise SpecError(
            "requirements-syntax",
            f"{place}: pip cannot read this line: one requirement per line",
            context=(body,),
            hint="leave out --strict: the line is then split",
        )
    split = len(parts) > 1
    if split:
        draft.note(
            "warning",
            "several-requirements",
            f"line {number} holds {len(parts)} requirements: pip refuses it",
            "it was split; write one per line",
        )
    for part in parts:
        fate, why = packages.requirement(draft, part)
        hashed = any(name == "--hash" for name, _ in options)
        if hashed and fate == "kept":
            fate, why = "changed", "its hashes are left out: the lock has its own"
        draft.line(number, part, "changed" if split and fate == "kept" else fate, why or ("split" if split else ""))
    for name, value in options:
        if name == "--hash":
            continue
        fate, why = option(draft, name, value)
        draft.note(
            "warning",
            "option-on-requirement",
            f"line {number}: pip ignores {name} on a requirement line",
            "it was taken as a line of its own",
        )
        draft.line(number, f"{name} {value}".strip(), "changed" if fate == "kept" else fate, why)


def _joined(parts: list[str]) -> list[str]:
    """``name`` alone before a bound is one requirement: only what starts anew is split."""
    found = []
    for part in parts:
        words = part.split()
        if (
            words
            and len(words) > 1
            and re.fullmatch(r"[A-Za-z0-9._-]+(?:\[[^\]]*\])?(?:==\S+)?", words[0])
            and not re.match(r"[=<>~!@;,(]", words[1])
            and not words[0].endswith((",", "="))
        ):
            found += [words[0], *_joined([" ".join(words[1:])])]
        elif part.strip():
            found.append(part.strip())
    return found


def _options(text: str) -> list[tuple[str, str]]:
    words = re.findall(r"'[^']*'|\"[^\"]*\"|\S+", text)
    found: list[tuple[str, str]] = []
    for word in words:
        if word.startswith("-"):
            name, _, value = word.partition("=")
            found.append((name, value.strip("'\"")))
        elif found and not found[-1][1]:
            found[-1] = (found[-1][0], word.strip("'\""))
        else:
            found.append(("", word))
    return found
