"""Reads the output of a failed build step: what went wrong, and what to do. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """``reference`` is a paragraph of docs/errors.md; ``line`` the log line that gave it away."""

    reference: str
    message: str
    hint: str
    line: str = ""


_SIZE = r"([\d.]+)\s*/\s*([\d.]+)\s*(GB|MB|kB|KB|GiB|MiB)"
_EXPECTED = re.compile(r"(?i)expected:?\s+(?:sha256[: ]*)?([0-9a-f]{8,64})")
_GOT = re.compile(r"(?i)(?:got|computed:?)\s+(?:sha256[: ]*)?([0-9a-f]{8,64})")

# (reference, pattern, message, hint); the first that matches anywhere in the log wins, so order is importance.
_SIMPLE: tuple[tuple[str, str, str, str], ...] = (
    (
        "damaged-download",
        r"(?i)\bBad CRC\b|Failed to extract archive|Failed to read from zip file|not a (?:valid )?zip file|BadZipFile",
        "a downloaded package is damaged: it cannot be unpacked",
        "build again; if it stays damaged, a cache or proxy between here and the index holds a broken copy",
    ),
    (
        "apt-key-rotation",
        r"NO_PUBKEY\s+[0-9A-F]{8,}|Conflicting values set for option Signed-By",
        "the package repository inside the base image is signed with a key the image does not have",
        "the base image is older than its vendor's key change: use a newer tag or digest of it, or remove the "
        "vendor's old .list file before the first apt-get update",
    ),
    (
        "index-error",
        r"(?i)\b(?:status code:? |HTTP (?:status )?(?:server )?error[^\n]{0,40}?\(?|HTTP error )5\d\d\b"
        r"|\b5\d\d (?:Internal Server Error|Bad Gateway|Service Unavailable|Gateway Time-?out|Server Error)",
        "a package index answered with a server error",
        "the index has a fault on its own side: try again later, or name a mirror in the config file (default_index)",
    ),
    (
        "index-refused",
        r"(?i)\b(?:401 Unauthorized|403 Forbidden)\b",
        "a package index refused the request",
        "credentials are missing or not accepted: give them in the index URL of this host or in the file NETRC names",
    ),
    (
        "index-certificate",
        r"(?i)invalid peer certificate|certificate verify failed|UnknownIssuer|self.signed certificate",
        "the package index shows a certificate that the build does not trust",
        "behind an intercepting proxy give its CA: --ca-bundle FILE, or SSL_CERT_FILE",
    ),
    (
        "index-unreachable",
        r"(?i)Temporary failure (?:in name resolution|resolving)|Could not resolve|dns error|failed to lookup address"
        r"|Connection refused|Network is unreachable|Could not connect to|Failed to establish a new connection"
        r"|operation timed out|Connection timed out|error trying to connect|tcp connect error",
        "a package index or mirror cannot be reached from inside the build",
        "check the network of the engine and the proxy variables; a mirror can be named in the config file",
    ),
)


def short_download(text: str) -> tuple[str, str] | None:
    """(received, expected) when the log shows a download that ended early; None when it shows none."""
    match = re.search(
        r"(?i)(?:incomplete ?read|incomplete-download|only received)\D{0,20}(\d+) bytes(?: read)?,?"
        r"\D{0,20}(\d+) (?:more )?(?:bytes )?(?:more )?expected",
        text,
    )
    if match:
        more = "more" in match[0].lower()
        total = int(match[1]) + int(match[2]) if more else int(match[2])
        return f"{match[1]} bytes", f"{total} bytes"
    match = re.search(r"(?i)received (\d+) bytes?[^\n]{0,40}?expected (\d+)", text)
    if match and int(match[1]) < int(match[2]):
        return f"{match[1]} bytes", f"{match[2]} bytes"
    # A progress bar that stopped before its end, right before the hash complaint.
    position = re.search(r"(?i)do(?:es)? not match the hash|hash mismatch", text)
    bars = list(re.finditer(_SIZE, text[: position.start()] if position else ""))
    if bars and float(bars[-1][1]) < float(bars[-1][2]) * 0.995:
        return f"{bars[-1][1]} {bars[-1][3]}", f"{bars[-1][2]} {bars[-1][3]}"
    if re.search(r"(?i)end of file before message length|unexpected end of file|unexpected EOF during download", text):
        return "fewer bytes", "those announced"
    return None


def _line_of(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if not match:
        return ""
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    return text[start : end if end >= 0 else len(text)].strip()[:300]


def _hash_cause(text: str) -> Cause | None:
    """Three causes of a wrong hash, told apart as far as the log allows."""
    mark = r"(?i)do(?:es)? not match the hash|hash mismatch|hashes? (?:are|is) (?:required|wrong)|Hash-Mismatch"
    if not re.search(mark, text):
        return None
    expected, got = _EXPECTED.search(text), _GOT.search(text)
    detail = f" (expected {expected[1][:16]}…, got {got[1][:16]}…)" if expected and got else ""
    short = short_download(text)
    if short is not None:
        return Cause(
            reference="incomplete-download",
            message=f"a download ended early: received {short[0]} of {short[1]}{detail}; this is no tampering",
            hint="build again (finished downloads are kept); on an unstable line use a mirror or an offline bundle. "
            "Hash checking stays on",
            line=_line_of(mark, text),
        )
    return Cause(
        reference="hash-mismatch",
        message=f"a file from the package index has another hash than the lock{detail}",
        hint="the index or a proxy serves a changed file: compare from another network; if the project really "
        "replaced it, review and lock again. Do not turn hash checking off",
        line=_line_of(mark, text),
    )


def classify(log: Sequence[str] | str, message: str = "") -> Cause | None:
    """The cause of a failed build from its output and the builder's error message; None: nothing known."""
    text = (log if isinstance(log, str) else "\n".join(log)) + "\n" + message
    full = r"(?i)no space left on device|disk quota exceeded|not enough free space"
    if re.search(full, text):
        return Cause(
            reference="disk-full",
            message="the disk ran full during the build",
            hint="see what can go with: envforge clean; Docker's build cache: docker builder prune",
            line=_line_of(full, text),
        )
    hashes = _hash_cause(text)
    if hashes is not None:
        return hashes
    short = short_download(text)
    if short is not None:
        return Cause(
            reference="incomplete-download",
            message=f"a download ended early: received {short[0]} of {short[1]}",
            hint="build again (finished downloads are kept); on an unstable line use a mirror or an offline bundle",
        )
    for reference, pattern, said, hint in _SIMPLE:
        if re.search(pattern, text):
            return Cause(reference=reference, message=said, hint=hint, line=_line_of(pattern, text))
    return None
