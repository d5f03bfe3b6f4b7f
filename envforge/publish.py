"""Publishing: an image leaves this machine only after its expected checks passed, under a tag that never moves.

The fixed tag is the identity (first 12 of the inputs digest). Moving tags follow a policy: ``version`` moves one tag
per combination of framework, CUDA and Python; further ones are asked for by name.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from envforge.base import split_reference
from envforge.engine import ImageInfo
from envforge.errors import EngineError, EnvforgeError, NetworkError, SmokeError, UsageError

TagPolicy = Literal["fixed", "version"]
TRIES = 4
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_REPOSITORY = re.compile(
    r"(?:[a-zA-Z0-9.-]+(?::\d+)?/|\[[0-9a-fA-F:]+\](?::\d+)?/)?[a-z0-9]+(?:(?:\.|_{1,2}|-+|/)[a-z0-9]+)*"
)
_FIXED = re.compile(r"[0-9a-f]{12}")
NOTICE = (
    "this image holds NVIDIA {what} files: NVIDIA's licences let you pass on the files they list, as part of an "
    "application; read them before you push to a registry that others can read"
)


class PushEngine(Protocol):
    """What publishing asks of an engine (only the Docker engine has it)."""

    def has(self, reference: str) -> bool: ...

    def inspect(self, image: str) -> ImageInfo: ...

    def tag(self, image: str, repository: str, tag: str) -> None: ...

    def remove(self, image: str) -> None: ...

    def push(self, repository: str, tag: str, progress: Callable[[str], None] | None = None) -> str: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """What is to be pushed where. ``tags``: the fixed one first."""

    name: str
    image: str
    repository: str
    tags: tuple[str, ...]
    tested_on_gpu: bool
    notice: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Pushed:
    """``reference`` is the image by digest. ``moved``: tag -> digest it had before (only tags that moved).

    ``confirmed`` is False when the registry could not be asked afterwards.
    """

    reference: str
    digest: str
    tags: tuple[str, ...]
    moved: Mapping[str, str]
    confirmed: bool
    already_there: bool
    retries: int


# --- may it leave? -------------------------------------------------------------------------------------------


def require_tested(info: ImageInfo, records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The record that vouches for this very image. Pure.

    Needed: the identity label, a record of a passed build of this image id, the tag that such a build gives, and no
    newer record of this image that failed. Raises SmokeError ``not-tested`` or ``tests-failed``.
    """
    name, digest = info.labels.get("envforge.name", ""), info.labels.get("envforge.inputs-digest", "")
    build = f"envforge build {name or 'NAME'}"
    if not name or not digest:
        raise SmokeError("not-tested", f"{info.image[:19]} carries no envforge identity", hint=build)
    mine = [one for one in records if one.get("image") == info.image and one.get("inputs_digest") == digest]
    if mine and mine[-1].get("status") in ("failed", "error"):
        bad = [str(row["name"]) for row in mine[-1].get("checks", ()) if row.get("outcome") in ("failed", "error")]
        raise SmokeError(
            "tests-failed",
            f"the last test of {name} failed, so it is not published",
            context=tuple(bad),
            hint=f"see {mine[-1].get('record', 'its record')}; build again with: {build}",
        )
    passed = [one for one in mine if one.get("status") == "passed" and one.get("tag")]
    if not passed:
        raise SmokeError(
            "not-tested",
            f"no record says that {name} ({info.image[:19]}) passed its tests",
            hint=f"{build} (without --no-smoke)",
        )
    given = str(passed[-1]["tag"])
    if not any(tag == given or tag.endswith(f"/{given}") for tag in info.tags):
        raise SmokeError("not-tested", f"{name} has lost the tag {given} that says it was tested", hint=build)
    return passed[-1]


def tested_on_gpu(info: ImageInfo, records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any passed record of this image ran its kernels on a GPU."""
    return any(
        one.get("image") == info.image and one.get("status") == "passed" and one.get("gpu_tested") for one in records
    )


def notice(info: ImageInfo, packages: Sequence[str]) -> str:
    """The redistribution notice; "" for an image without NVIDIA's libraries. ``packages``: names in the locks."""
    found = [name for name in packages if re.match(r"nvidia-|cudatoolkit|cuda-|cudnn|libcu|nccl", name)]
    cuda = "envforge.cuda" in info.labels or bool(found)
    if not cuda:
        return ""
    base = info.labels.get("org.opencontainers.image.base.name", "")
    cudnn = any("cudnn" in name for name in (*found, base))
    return NOTICE.format(what="CUDA and cuDNN" if cudnn else "CUDA")


# --- where to, under which tags ------------------------------------------------------------------------------


def target(image: str, name: str, to: str | None) -> str:
    """The repository to push to. ``to`` is a whole repository; one that ends in "/" gets the environment's name.

    Without it an image that is named after a registry goes there. UsageError ``push-target``.
    """
    if to is None:
        head, slash, _ = image.partition("/")
        if not slash or not ("." in head or ":" in head or head == "localhost"):
            raise UsageError("push-target", "say where to push", hint=f"envforge push {name} --to REGISTRY/REPOSITORY")
        registry, path, _, _ = split_reference(image)
        return f"{registry}/{path}"
    found = to + name.replace("@", "-") if to.endswith("/") else to
    if not _REPOSITORY.fullmatch(found):
        raise UsageError(
            "push-target",
            f"{to!r} is no repository",
            hint="write HOST[:PORT]/PATH in small letters, without https:// and without a tag; tags: --also TAG",
        )
    return found


def version_tag(labels: Mapping[str, str]) -> str:
    """One tag per combination, e.g. ``torch2.6.0-cu124-py3.11``; it moves when the environment is locked again."""
    parts = [item.replace("=", "") for item in labels.get("envforge.frameworks", "").split()]
    cuda = labels.get("envforge.cuda")
    parts.append("cu" + "".join(cuda.split(".")[:2]) if cuda else "cpu")
    if labels.get("envforge.python"):
        parts.append(f"py{labels['envforge.python']}")
    return re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(parts))[:128]


def tags(info: ImageInfo, also: Sequence[str], policy: TagPolicy) -> tuple[str, ...]:
    """The fixed tag, then the moving ones of the policy and those asked for. UsageError ``push-tag``."""
    fixed = info.labels["envforge.inputs-digest"].removeprefix("sha256:")[:12]
    for tag in also:
        if not _TAG.fullmatch(tag):
            raise UsageError(
                "push-tag", f"{tag!r} is no tag", hint="letters, digits, dot, dash, underscore; 128 at most"
            )
        if _FIXED.fullmatch(tag) and tag != fixed:
            raise UsageError("push-tag", f"{tag} looks like the fixed tag of another identity", hint="choose another")
    moving = [version_tag(info.labels)] if policy == "version" else []
    return tuple(dict.fromkeys((fixed, *moving, *also)))


# --- doing it ------------------------------------------------------------------------------------------------

_REFUSED = r"(?i)denied|unauthorized|authentication required|no basic auth credentials|forbidden|\b40[13]\b"
_DROPPED = (
    r"(?i)\bEOF\b|connection reset|broken pipe|use of closed network connection|i/o timeout|TLS handshake timeout"
    r"|Client\.Timeout|unexpected status.*\b5\d\d\b|received unexpected HTTP status: 5\d\d|toomanyrequests"
    r"|server closed|http2: |connection refused"
)
_UNREACHABLE = r"(?i)no such host|connection refused|network is unreachable|no route to host|i/o timeout|lookup \S+ on"


def failure(reference: str, text: str) -> tuple[EnvforgeError, bool]:
    """Why a push failed, and whether another try may help. Pure."""
    detail = ((text.strip().splitlines() or ["no explanation"])[0][:400],)
    registry = split_reference(reference)[0]
    if re.search(r"(?i)no space left|disk quota", text):
        where = f"the disk is full, here or in the registry {registry}"
        return EngineError("disk-full", where, context=detail, hint="see: envforge clean"), False
    if re.search(r"(?i)server gave HTTP response to HTTPS client|x509:|certificate", text):
        hint = (
            "give the engine its certificate (/etc/docker/certs.d), or name it in `insecure-registries` of the engine"
        )
        return (
            NetworkError("registry-unreachable", f"no trusted TLS to {registry}", context=detail, hint=hint),
            False,
        )
    if re.search(_REFUSED, text):
        hint = f"docker login {registry}; does your account have the right to write there?"
        return NetworkError("registry-refused", f"{registry} refuses {reference}", context=detail, hint=hint), False
    again = re.search(_DROPPED, text) is not None
    if re.search(_UNREACHABLE, text):
        hint = "is the name right, and can the engine (not this terminal) reach it?"
        return (
            NetworkError("registry-unreachable", f"the engine cannot reach {registry}", context=detail, hint=hint),
            again,
        )
    if again:
        hint = "push again: layers that have arrived are not sent twice"
        return NetworkError("push-interrupted", f"the connection to {registry} broke", context=detail, hint=hint), True
    hint = "the registry's own words are above; some registries want the repository made first"
    return NetworkError("registry-refused", f"{registry} did not take {reference}", context=detail, hint=hint), False


class Interrupted(Exception):
    """One try of a push failed; ``error`` is what a person sees when no further try helps."""

    def __init__(self, error: EnvforgeError, *, again: bool) -> None:
        super().__init__(error.message)
        self.error, self.again = error, again


def publish(
    engine: PushEngine,
    wanted: Publication,
    *,
    replace_fixed: bool = False,
    note: Callable[[str], None],
    progress: Callable[[str], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Pushed:
    """Push the fixed tag, confirm its digest, then move the others. Raises NetworkError and EngineError.

    A fixed tag that holds another image is refused (``fixed-tag-taken``): whoever wrote it down must get the same
    bytes for ever. No name made for the push stays in the engine.
    """
    fixed, *moving = wanted.tags
    before, reachable = _ask(wanted, note)
    held = before.get(fixed)
    if held is not None and wanted.image not in (held.config, held.digest) and not replace_fixed:
        raise NetworkError(
            "fixed-tag-taken",
            f"{wanted.repository}:{fixed} holds another image of the same lock ({held.digest[:19]})",
            hint="pull and use that one; --replace puts yours in its place",
        )
    retries, digest = 0, held.digest if held is not None and not replace_fixed else ""
    already = bool(digest)
    if already:
        note(f"{wanted.repository}:{fixed} is already there")
    for tag in moving if already else wanted.tags:
        known = before.get(tag)
        if digest and known is not None and known.digest == digest:
            continue
        got, used = _push_one(engine, wanted, tag, note=note, progress=progress, sleep=sleep)
        retries += used
        if digest and got != digest:
            raise NetworkError(
                "digest-differs",
                f"{wanted.repository}:{tag} became {got[:19]}, the fixed tag is {digest[:19]}",
                hint="push again",
            )
        digest = got
    moved = {tag: before[tag].digest for tag in moving if tag in before and before[tag].digest != digest}
    return Pushed(
        reference=f"{wanted.repository}@{digest}",
        digest=digest,
        tags=wanted.tags,
        moved=moved,
        confirmed=reachable and _confirm(wanted, digest),
        already_there=already,
        retries=retries,
    )


def _ask(wanted: Publication, note: Callable[[str], None]) -> tuple[dict[str, Any], bool]:
    """What the tags hold now; the engine may reach a registry that this process cannot (then nothing is known)."""
    from envforge import registry

    found: dict[str, Any] = {}
    try:
        for tag in wanted.tags:
            held = registry.published(f"{wanted.repository}:{tag}")
            if held is not None:
                found[tag] = held
    except NetworkError as error:
        note(f"the registry cannot be asked from here ({error.message}); the engine's own answer is taken")
        return {}, False
    return found, True


def _confirm(wanted: Publication, digest: str) -> bool:
    from envforge import registry

    for tag in wanted.tags:
        held = registry.published(f"{wanted.repository}:{tag}")
        if held is None or held.digest != digest:
            there = held.digest[:19] if held else "nothing"
            raise NetworkError(
                "digest-differs",
                f"{wanted.repository}:{tag} should hold {digest[:19]} and holds {there}",
                hint="someone else may have pushed at the same time; push again",
            )
    return True


def _push_one(
    engine: PushEngine,
    wanted: Publication,
    tag: str,
    *,
    note: Callable[[str], None],
    progress: Callable[[str], None] | None,
    sleep: Callable[[float], None],
) -> tuple[str, int]:
    """The digest of one pushed tag and how many tries failed before."""
    name = f"{wanted.repository}:{tag}"
    foreign = engine.inspect(name).image if engine.has(name) else None
    if foreign != wanted.image:
        engine.tag(wanted.image, wanted.repository, tag)
    try:
        for number in range(TRIES):
            try:
                return engine.push(wanted.repository, tag, progress), number
            except Interrupted as problem:
                if not problem.again or number == TRIES - 1:
                    raise problem.error from problem
                wait = float(2**number)
                note(f"{problem.error.message} ({problem.error.context[0]}); trying again in {wait:.0f} s")
                sleep(wait)
        raise AssertionError("the last try returns or raises")
    finally:
        if foreign is None:
            engine.remove(name)
        elif foreign != wanted.image:
            engine.tag(foreign, wanted.repository, tag)
