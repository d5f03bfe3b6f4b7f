"""Dockerfile: ARG substitution, FROM, ENV, and the pip, conda and apt lines of RUN. Pure."""

from __future__ import annotations

import re
import shlex

from envforge import spec as specs
from envforge.importers import packages, requirements
from envforge.importers.records import Draft, fits
from envforge.versions import series


def read(draft: Draft, text: str) -> None:
    """Every instruction, and every command of a RUN."""
    values: dict[str, str] = {}
    for number, word, rest in _instructions(text):
        full = expand(rest, values)
        if word in ("ARG", "ENV"):
            _variable(draft, number, word, rest, values)
        elif word == "FROM":
            _from(draft, number, full)
        elif word == "RUN":
            for command in re.split(r"\s*(?:&&|\|\||;|\n)\s*", re.sub(r"--mount=\S+\s*", "", full)):
                if command.strip():
                    _command(draft, number, command.strip(), values)
        elif word == "WORKDIR":
            good = fits(specs.ABSOLUTE, full.strip())
            draft.workdir = full.strip() if good else draft.workdir
            draft.line(number, f"WORKDIR {full}", "kept" if good else "not-understood")
        elif word in ("LABEL", "MAINTAINER", "EXPOSE", "STOPSIGNAL", "SHELL", "HEALTHCHECK"):
            draft.line(number, f"{word} {rest}", "ignored", "does not change what is installed")
        elif word in ("COPY", "ADD"):
            draft.line(number, f"{word} {rest}", "not-understood", "own files: put them under `files`")
        elif word in ("USER", "CMD", "ENTRYPOINT", "VOLUME", "ONBUILD"):
            draft.line(number, f"{word} {rest}", "ignored", "the image of a spec has its own user and command")
        else:
            draft.line(number, f"{word} {rest}", "not-understood", "not an instruction of a Dockerfile")
    for version in {c[0] for c in draft.claims if c[2] == "base"}:
        if version.count(".") == 2 and re.search(r"\$\{CUDA\w*/\./", text):
            draft.note(
                "warning",
                "substitution-breaks",
                f"with {version} the file's own substitution gives a wrong label: "
                f"cuda{series(version).replace('.', '')} and {series(version).replace('.', '-')} are meant",
            )


def _instructions(text: str) -> list[tuple[int, str, str]]:
    found, held, start = [], "", 0
    for number, raw in enumerate([*text.split("\n"), ""], 1):
        if raw.lstrip().startswith("#") or (held and not raw.strip() and number <= text.count("\n")):
            continue
        start = start or number
        held += raw
        if held.rstrip().endswith("\\"):
            held = held.rstrip()[:-1] + " "
            continue
        if held.strip():
            word, _, rest = held.strip().partition(" ")
            found.append((start, word.upper(), rest.strip()))
        held, start = "", 0
    return found


def expand(text: str, values: dict[str, str]) -> str:
    """``$A``, ``${A}``, ``${A:-x}``, and bash's ``${A/x/y}``; what is not known stays."""

    def one(match: re.Match[str]) -> str:
        name, rest = match[1] or match[3], match[2] or ""
        value = values.get(name)
        if rest.startswith(":-"):
            return value or rest[2:]
        if value is None:
            return match[0]
        if rest.startswith("/"):
            every = rest.startswith("//")
            old, _, new = rest.lstrip("/").partition("/")
            if name.upper().startswith("CUDA") and old == "." and value.count(".") == 2:
                value = series(value)
            return value.replace(old, new) if every else value.replace(old, new, 1)
        return value

    return re.sub(r"\$\{(\w+)([^}]*)\}|\$(\w+)", one, text)


def _variable(draft: Draft, number: int, word: str, rest: str, values: dict[str, str]) -> None:
    try:
        words = shlex.split(rest)
    except ValueError:
        words = [rest]
    if word == "ENV" and words and "=" not in words[0] and len(words) > 1:
        words = [f"{words[0]}={' '.join(words[1:])}"]
    for item in words or [""]:
        name, _, value = item.partition("=")
        value = expand(value, values)
        if value or name not in values:
            values[name] = value
        secret = re.search(r"(?i)(password|passwd|secret|token|api_?key)", name)
        if (
            word == "ENV"
            and fits(specs.ENV_KEY, name)
            and not secret
            and "$" not in value
            and name.startswith("NVIDIA_")
        ):
            draft.env[name] = value
            draft.line(number, f"ENV {item}", "kept")
        else:
            draft.line(number, f"{word} {'***' if secret else item}", "ignored", "used where the file names it")


def _from(draft: Draft, number: int, full: str) -> None:
    words = [word for word in full.split() if not word.startswith("--")]
    image = words[0] if words else ""
    cuda = re.match(r"(?:[\w./-]+/)?nvidia/cuda:(\d+\.\d+(?:\.\d+)?)", image)
    if not fits(specs.IMAGE, image):
        draft.line(number, f"FROM {image}", "not-understood", "the image is not known: write base.image")
        draft.note("info", "base-unknown", f"FROM {image}: no CUDA base is assumed")
        return
    draft.base = image
    if cuda:
        draft.claim(cuda[1], image, "base")
        if cuda[1].count(".") == 1:
            draft.note(
                "warning",
                "base-two-part-tag",
                f"{image}: tags with a CUDA of two parts were withdrawn",
                f"try {image.replace(cuda[1], cuda[1] + '.1', 1)}",
            )
        cudnn = re.search(r"cudnn(\d+)", image)
        draft.cudnn = cudnn[1] if cudnn else None
    draft.line(number, f"FROM {image}", "kept")


def _command(draft: Draft, number: int, command: str, values: dict[str, str]) -> None:
    if re.search(r"chmod\s+u\+s\s+\S*ldconfig", command):
        draft.note(
            "warning",
            "setuid-ldconfig",
            "ldconfig is made setuid: any user of the image can act as root",
            "not needed: the image of a spec runs as its own user",
        )
    if "miniconda" in command.lower() and "latest" in command:
        draft.note("warning", "unpinned-conda", "the newest conda installer is fetched: each build may differ")
    try:
        words = shlex.split(command)
    except ValueError:
        draft.line(number, command, "not-understood", "this shell line cannot be read")
        return
    while words and (words[0] in ("sudo", "exec", "env") or re.match(r"\w+=", words[0])):
        words = words[1:]
    name = words[0].rsplit("/", 1)[-1] if words else ""
    if re.match(r"python[\d.]*$", name) and words[1:3] == ["-m", "pip"]:
        words, name = words[2:], "pip"
    if name == "uv" and words[1:2] == ["pip"]:
        words, name = words[1:], "pip"
    if re.match(r"pip[\d.]*$", name) and "install" in words:
        _pip(draft, number, words[words.index("install") + 1 :])
    elif name in ("conda", "mamba", "micromamba") and ("install" in words or "create" in words):
        _conda(draft, number, words[2:])
    elif name in ("apt-get", "apt") and "install" in words:
        for item in words[words.index("install") + 1 :]:
            if not item.startswith("-"):
                draft.line(number, f"apt {item}", *packages.apt(draft, item))
    elif name in ("apt-get", "apt", "rm", "echo", "conda", "mamba", "set", "ldconfig"):
        draft.line(number, command, "ignored", "preparing or cleaning up")
    else:
        draft.line(number, command, "not-understood", "what this shell line does cannot be known: a hook can run it")


def _pip(draft: Draft, number: int, words: list[str]) -> None:
    valued = {
        "-f",
        "--find-links",
        "-i",
        "--index-url",
        "--extra-index-url",
        "-r",
        "--requirement",
        "-c",
        "--constraint",
        "-e",
        "--editable",
        "--trusted-host",
        "-t",
        "--target",
        "--root",
        "--prefix",
    }
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word.startswith("-"):
            name, equal, value = word.partition("=")
            if name in valued and not equal and position < len(words):
                value = words[position]
                position += 1
            fate = (
                requirements.option(draft, name, value) if name in valued else ("ignored", "a setting of the pip run")
            )
            draft.line(number, f"{name} {value}".strip(), *fate)
        else:
            draft.line(number, f"pip {word}", *packages.requirement(draft, word))


def _conda(draft: Draft, number: int, words: list[str]) -> None:
    skip = ""
    for word in words:
        if skip:
            if skip in ("-c", "--channel") and fits(specs.CHANNEL, word):
                draft.channels.append(word)
            draft.line(number, f"{skip} {word}", "kept" if skip in ("-c", "--channel") else "ignored")
            skip = ""
        elif word in ("-c", "--channel", "-n", "--name", "-p", "--prefix", "--file", "-f"):
            skip = word
        elif not word.startswith("-"):
            draft.line(number, f"conda {word}", *packages.conda(draft, word))
