"""What people already have, read into a spec: every line is accounted for. Pure: texts in, :class:`Imported` out."""

from __future__ import annotations

import re
from importlib import import_module

from envforge.errors import EnvforgeError
from envforge.importers.records import Draft, Imported, Line, Reader, unreadable

__all__ = ["FORMATS", "Imported", "Line", "decode", "detect", "read"]

MAX_BYTES = 64_000_000
# format -> (module, function)
FORMATS = {
    "requirements": ("requirements", "read"),
    "conda-env": ("conda_env", "read"),
    "pyproject": ("toml_files", "pyproject"),
    "uv-lock": ("toml_files", "uv_lock"),
    "poetry-lock": ("toml_files", "poetry_lock"),
    "pylock": ("toml_files", "pylock"),
    "conda-lock": ("conda_locks", "read"),
    "pixi-lock": ("conda_locks", "read"),
    "cog": ("containers", "cog"),
    "compose": ("containers", "compose"),
    "devcontainer": ("containers", "devcontainer"),
    "dockerfile": ("dockerfile", "read"),
}


def detect(path: str, text: str = "") -> str:
    """The format of a file by its name, then by its content. Raises SpecError ``import-unknown-format``."""
    name = path.replace("\\", "/").rsplit("/", 1)[-1].lower()
    exact = {
        "pyproject.toml": "pyproject",
        "uv.lock": "uv-lock",
        "poetry.lock": "poetry-lock",
        "pixi.lock": "pixi-lock",
        "cog.yaml": "cog",
        "devcontainer.json": "devcontainer",
        ".devcontainer.json": "devcontainer",
    }
    if name in exact:
        return exact[name]
    if re.match(r"pylock\..*toml$|pylock\.toml$", name):
        return "pylock"
    if re.search(r"(?:^|[._-])(?:dockerfile|containerfile)(?:$|[._-])", name):
        return "dockerfile"
    if name.endswith((".txt", ".in", ".pip")):
        return "requirements"
    if name.endswith((".yml", ".yaml")):
        return _yaml(name, text)
    if name.endswith(".toml"):
        return "pylock" if "lock-version" in text else "pyproject"
    if name.endswith(".json"):
        return "devcontainer"
    if re.search(r"(?m)^\s*FROM\s+\S+", text):
        return "dockerfile"
    if re.search(r"(?m)^[A-Za-z0-9._-]+(?:\[[^\]]*\])?\s*==", text):
        return "requirements"
    from envforge.errors import SpecError

    raise SpecError("import-unknown-format", f"{path}: the format is not known", hint=f"--format {'|'.join(FORMATS)}")


def _yaml(name: str, text: str) -> str:
    if re.search(r"(?m)^services:", text) or "compose" in name:
        return "compose"
    if "conda-lock" in name or (re.search(r"(?m)^package:", text) and re.search(r"(?m)^metadata:", text)):
        return "conda-lock"
    if re.search(r"(?m)^build:", text) and re.search(r"(?m)^(?:predict|image|\s+python_packages|\s+gpu):", text):
        return "cog"
    return "conda-env"


def decode(data: bytes, draft: Draft) -> str:
    """Text of any of the usual encodings; what was not plain UTF-8 is noted."""
    if len(data) > MAX_BYTES:
        raise unreadable(draft.place, f"larger than {MAX_BYTES // 1_000_000} MB")
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if data.startswith(mark):
            said = "a UTF-8 byte order mark" if encoding == "utf-8-sig" else "UTF-16 text"
            draft.note(
                "warning", "encoding", f"{draft.place}: {said}: some tools misread the first line", "save as UTF-8"
            )
            text = data.decode(encoding, "replace")
            break
    else:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            draft.note("warning", "encoding", f"{draft.place}:{line}: not UTF-8: read as Latin-1", "save as UTF-8")
            text = data.decode("latin-1")
    if "\r\n" in text:
        draft.note("info", "crlf", f"{draft.place}: Windows line ends; read as they are meant")
    return re.sub(r"\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", "\n", text)


def read(
    data: bytes | str,
    *,
    place: str,
    reader: Reader = lambda name: None,
    form: str | None = None,
    name: str | None = None,
    strict: bool = False,
    platform: str = "linux/amd64",
) -> Imported:
    """Read one file. ``reader`` gives the text of a file beside it, or None; ``place`` is its name.

    Raises SpecError when nothing can be read (``import-unreadable``, ``import-unknown-format``), and
    ``requirements-syntax`` with ``strict`` for a line that pip refuses.
    """
    from envforge.compat import load
    from envforge.importers.finish import finish

    base = place.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    draft = Draft(
        name=name or re.sub(r"\.[A-Za-z]+$", "", base), place=place, tables=load(), read=reader, strict=strict
    )
    draft.platform = platform
    text = decode(data.encode("utf-8", "replace") if isinstance(data, str) else data, draft)
    found = form or detect(place, text)
    module, function = FORMATS[found]
    try:
        getattr(import_module(f"envforge.importers.{module}"), function)(draft, text)
    except EnvforgeError as error:
        if error.exit_code == 3:
            raise
        raise unreadable(place, error.message, error.hint) from error
    if not draft.lines:
        raise unreadable(place, "nothing in it can be read", "is it the right file, or empty?")
    return finish(draft, found)
