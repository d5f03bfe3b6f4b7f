"""uv's failures as our errors: which index, or what was impossible and who asked for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from envforge.errors import EnvforgeError, LockError, NetworkError
from envforge.lockers.uv import PROJECT, TIMEOUT, normalise

if TYPE_CHECKING:
    from envforge.process import Outcome
    from envforge.resolve import Resolution


def credential_names(label: str) -> str:
    word = re.sub(r"[^A-Z0-9]", "_", label.upper())
    return f"UV_INDEX_{word}_USERNAME and UV_INDEX_{word}_PASSWORD"


def named(resolution: Resolution, url: str) -> str:
    """The label of the index an address belongs to, as words."""
    best = ""
    for label, root in resolution.indexes.items():
        host = re.sub(r"^([a-z]+://[^/]+).*", r"\1", root)
        if url.startswith(root.rstrip("/")) or (not best and url.startswith(host + "/")):
            best = label
    return f"index {best!r}" if best else "the default package index"


def explain(
    outcome: Outcome, resolution: Resolution, bindings: Mapping[str, str], *, as_of: str | None = None
) -> EnvforgeError:
    """uv's failure as one of our errors: the network first, then what was impossible and who asked for it."""
    return _network_error(outcome, resolution, bindings) or _lock_error(outcome, resolution, bindings, as_of)


def _network_error(outcome: Outcome, resolution: Resolution, bindings: Mapping[str, str]) -> NetworkError | None:
    text = outcome.stderr
    refused = re.search(r"request for: (\S+)\n(?:(?!request for:).)*?failure: (401|403) ", text, re.DOTALL)
    # PyTorch's index answers 403 for every package it does not have.
    if refused and refused[2] == "403" and "//download.pytorch.org/" in refused[1]:
        refused = None
    failed = re.search(r"Failed to (?:fetch|download)[^:\n]*: `?(\S+?)`?\n", text)
    if outcome.timed_out:
        return NetworkError("index-timeout", f"locking did not end within {TIMEOUT:.0f} s", hint="try again later")
    if refused or re.search(r"cause: HTTP status client error \((401|403)", text):
        where = named(resolution, refused[1] if refused else failed[1] if failed else "")
        label = re.search(r"'(.*)'", where)
        names = credential_names(label[1]) if label else "UV_DEFAULT_INDEX with user and password"
        return NetworkError(
            "index-credentials",
            f"{where} wants credentials, or refuses the ones given",
            hint=f"set {names}, or use ~/.netrc; they are never written to the lock",
        )
    if not failed and "error sending request" not in text:
        return None
    where = named(resolution, failed[1] if failed else "")
    causes = tuple(line.strip() for line in text.splitlines() if line.strip().startswith("cause:"))
    reference, words, hint = "index-unreachable", "cannot be reached", "check network, proxy and the index address"
    status = re.search(r"HTTP status \w+ error \((\d+)[^)]*\)", text)
    if status:
        reference, words, hint = "index-error", f"answers with HTTP {status[1]}", "try again later, or use a mirror"
    elif "timed out" in text:
        reference, words, hint = "index-timeout", "does not answer in time", "try again, or raise UV_HTTP_TIMEOUT"
    elif "certificate" in text or "UnknownIssuer" in text:
        reference, words = "index-certificate", "shows a certificate that is not trusted here"
        hint = "set SSL_CERT_FILE to your organisation's CA bundle"
    return NetworkError(reference, f"{where} {words}", context=causes, hint=hint)


def _sentences(text: str) -> list[str]:
    """uv's explanation as one line each, in our words for the project."""
    start = text.find("error: ")
    lines = [line.strip() for line in text[max(start, 0) :].splitlines() if not line.startswith(("DEBUG", "TRACE"))]
    joined = " ".join(re.sub(r"^cause: ", "", line) for line in lines[1:] if line and not line.startswith("hint:"))
    joined = joined.replace(f"{PROJECT} depends on", "the spec asks for")
    joined = re.sub(r"all versions of (\S+) depend on", r"\1 depends on", joined)
    joined = joined.replace("your requirements are unsatisfiable", "no set of versions fits")
    parts = re.split(r"(?<=\.) (?=Because |And )", joined)
    hints = [line for line in lines if line.startswith("hint:")]
    return [part for part in parts if part] + [hint.removeprefix("hint: ") for hint in hints]


def _lock_error(outcome: Outcome, resolution: Resolution, bindings: Mapping[str, str], as_of: str | None) -> LockError:
    text = outcome.stderr
    target = f"Python {resolution.python} on {resolution.platform} with glibc {resolution.glibc}"
    context = tuple(_sentences(text)) or outcome.tail(10)

    def place(name: str) -> str:
        return f"index {bindings[name]!r}" if name in bindings else "the default package index"

    built = re.search(r"Failed to (?:download and )?build `([^`]+)`", text)
    if built:
        return LockError(
            "lock-source-build",
            f"{built[1]} has no wheel and its source could not be read on this machine",
            context=context,
            hint="choose a version with a wheel for the target, or build one and give its index",
        )
    absent = re.search(r"Because (\S+) was not found in (?:the package registry|the provided package locations)", text)
    if absent:
        name = normalise(absent[1])
        return LockError(
            "lock-not-found", f"{name} is not on {place(name)}", context=context, hint="check the name and its index"
        )
    wheelless = re.search(r"(\S+?)(?:==\S+)? has no wheels with a matching (.+?) tag", text)
    if wheelless:
        return LockError(
            "lock-no-wheel",
            f"{normalise(wheelless[1])} has no wheel for {target}",
            context=context,
            hint="choose a version or Python for which there is one",
        )
    if as_of and "filtered by `exclude-newer`" in text:
        return LockError(
            "lock-as-of", f"no set of versions fits as of {as_of}", context=context, hint="choose a later date"
        )
    withdrawn = re.search(r"Because (\S+) was yanked(?: \(reason: (.*?)\))? and", text)
    if withdrawn:
        return LockError(
            "lock-yanked",
            f"{withdrawn[1]} was withdrawn by its maker ({withdrawn[2] or 'no reason given'}) and nothing else fits",
            context=context,
            hint="choose another version, or pin this one exactly with ==",
        )
    missing = re.search(r"there is no version of (\S+?)((?:==|>|<|~=)[^\s,]+)", text)
    if missing:
        name = normalise(missing[1])
        return LockError(
            "lock-no-version",
            f"{name}{missing[2]} is not on {place(name)}",
            context=context,
            hint="choose another version, or name the index that has it",
        )
    return LockError(
        "lock-impossible",
        f"no set of pip packages fits {resolution.name} ({target})",
        context=context,
        hint="loosen one of the requirements named above",
    )
