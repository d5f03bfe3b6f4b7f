"""One pip, conda or apt package and one index of an imported file, put into the draft. Pure."""

from __future__ import annotations

import re

from envforge import spec as specs
from envforge.importers.records import Draft, Fate, fits
from envforge.versions import Requirement, canonical, is_version, key, major, parse_requirement, series, split_local

Fated = tuple[Fate, str]

_TORCH_URL = re.compile(r"https?://download\.pytorch\.org/whl/(?:nightly/|test/)?(cu\d+|cpu|rocm[\d.]+|xpu)/?")
_FAMILY = {"torchvision", "torchaudio", "torchtext", "jaxlib"}


def label_version(tag: str) -> str | None:
    """cu118 or cuda12.cudnn89 -> 11.8, 12 (a CUDA version, or only its major)."""
    match = re.match(r"cu(?:da)?(\d{2,3})(?!\d)", tag)
    if match is None:
        return None
    digits = match[1]
    return f"{digits[:-1]}.{digits[-1]}" if len(digits) == 3 else digits


def requirement(draft: Draft, text: str) -> Fated:
    """Put one pip requirement into the draft; says what became of it."""
    body = re.sub(r"\s+", " ", text.strip())
    try:
        found = parse_requirement(body)
    except ValueError:
        return _other(draft, body)
    marker = body.partition(";")[2].strip() if found.url is None else ""
    if found.name == "python":
        return python(draft, found.range.text or "", "python is not a package of an index: it became the interpreter")
    if marker and not _applies(marker, draft):
        return "ignored", f"the marker is never true on {draft.platform}"
    framework, accelerator = draft.tables.framework_name(found.name)
    if framework is not None and found.url is None:
        return _framework(draft, framework, accelerator, found, bool(marker))
    return _package(draft, body, found)


def _applies(marker: str, draft: Draft) -> bool:
    """False only when the marker cannot be true on the platform: Python is judged later, by pip."""
    from packaging.markers import InvalidMarker, Marker, UndefinedEnvironmentName

    machine = "aarch64" if draft.platform.endswith("arm64") else "x86_64"
    world = {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": machine,
        "extra": "",
        "python_version": draft.python or "3.11",
        "python_full_version": (draft.python or "3.11") + ".0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    if "python" in marker or "extra" in marker:
        return True
    try:
        return Marker(marker).evaluate(world)
    except (InvalidMarker, UndefinedEnvironmentName, ValueError):
        return True


def _other(draft: Draft, body: str) -> Fated:
    """A line that is no plain requirement: an address, a wheel, a path, an editable."""
    if re.match(r"(?:git|hg|svn|bzr)\+", body):
        egg = re.search(r"[#&]egg=([A-Za-z0-9._-]+)", body)
        address = body.split("#")[0]
        guess = re.sub(r"\.git$", "", re.split(r"[@]", address.split("://")[-1])[0].rstrip("/")).rsplit("/", 1)[-1]
        name = egg[1] if egg else guess
        return _package(draft, f"{name} @ {address}", None)
    if re.match(r"https?://\S+$", body):
        name = re.match(r"([A-Za-z0-9._]+?)-\d", body.rsplit("/", 1)[-1])
        if body.split("#")[0].endswith(".whl"):
            _platform_wheel(draft, body.rsplit("/", 1)[-1])
        if name:
            return _package(draft, f"{name[1]} @ {body}", None)
    if body.endswith(".whl"):
        _platform_wheel(draft, body.rsplit("/", 1)[-1])
        return "not-understood", "a wheel on this disk: put it under `files` with `install: wheel`"
    if re.match(r"[./]|[A-Za-z]:\\|file:", body):
        return "not-understood", "a path on this disk: put it under `files` with `install: editable` or `wheel`"
    return "not-understood", "not a requirement"


def _platform_wheel(draft: Draft, name: str) -> None:
    if re.search(r"-(?:win\w*|macosx\w*)\.whl", name):
        draft.note("warning", "platform-only-wheel", f"{name} is not for Linux", "name the package and its version")
    elif re.search(r"-linux_\w+\.whl", name):
        draft.note(
            "warning", "platform-only-wheel", f"{name} has a plain linux tag: it suits the system it was built on only"
        )


def _package(draft: Draft, body: str, found: Requirement | None) -> Fated:
    clean = re.sub(r"\s*(==|>=|<=|~=|!=|<|>)\s*", r"\1", body) if " @ " not in body else body
    clean = re.sub(r"\s*,\s*", ",", clean) if " @ " not in body and ";" not in body else clean
    if "git+" in clean and not re.search(r"@[0-9a-f]{7,40}(?:#|$|\s)", clean):
        draft.note(
            "warning",
            "git-without-commit",
            f"{clean} names no commit: each build may give other code",
            "add @ and the commit; the lock keeps the one it finds",
        )
    if not fits(specs.REQUIREMENT, clean):
        return "not-understood", "a spec cannot hold this requirement: write it in the form name==version"
    if found is not None:
        claim = label_version(found.local or "") if found.name in _FAMILY else None
        if claim and "." in claim:
            draft.claim(claim, body, "wheels")
        for extra in found.extras:
            if re.fullmatch(r"cu(?:da)?1\d(?:\d)?(?:-.*)?", extra):
                draft.note(
                    "info", "extra-claims-cuda", f"{body}: the extra {extra} asks for CUDA {label_version(extra)}"
                )
                draft.claims.append((label_version(extra) or "", body, "extra"))
        if found.local and "cudnn8" in found.local:
            _cudnn8(draft, body)
        bound = found.range
        if (
            found.pinned is None
            and bound.lower is not None
            and bound.upper is None
            and re.match(r"nvidia-cudnn|numpy$|protobuf$|transformers$|opencv-python", found.name)
        ):
            draft.note(
                "warning",
                "open-bound",
                f"{body} has no upper bound: today it may give another major version",
                "add an upper bound, as in name>=1,<2",
            )
    if clean not in draft.pip:
        draft.pip.append(clean)
    return ("kept", "") if clean == body else ("changed", f"written as {clean}")


def _cudnn8(draft: Draft, who: str) -> None:
    bound = "nvidia-cudnn-cu12<9"
    if bound not in draft.pip:
        draft.pip.append(bound)
        draft.why["packages.pip"] = f"{bound} is added: {who} was built for cuDNN 8"
        draft.note(
            "warning", "cudnn-bound", f"{bound} is added: {who} was built for cuDNN 8, and its own bound is open"
        )


def _framework(draft: Draft, name: str, accelerator: str | None, found: Requirement, marker: bool) -> Fated:
    version, why = found.pinned, ""
    if version is not None and found.local and "+" not in version:
        version = f"{version}+{found.local}"
    if version is not None and not fits(specs.VERSION, version):
        return "not-understood", f"{version} is not an exact version"
    if version is None:
        version, why = _newest(draft, name, found)
        if version is None and found.range.text:
            return _package(draft, found.text, found)
    public, local = split_local(version) if version else ("", None)
    row: dict[str, object] = {"version": version, "from": found.text}
    extras = []
    for extra in found.extras:
        known = draft.tables.release(name, public) if public else None
        spelled = next((e for e in known.extras if canonical(e) == extra), extra) if known else extra
        extras.append(spelled)
        tag = label_version(extra)
        if tag:
            accelerator = "cuda"
            draft.claims.append((tag, found.text, "extra"))
    row["extras"] = tuple(extras)
    if local == "cpu":
        accelerator = "cpu"
    elif local and label_version(local):
        accelerator = "cuda"
        tag = label_version(local) or ""
        draft.claims.insert(0, (tag, found.text, "wheels"))
    row["accelerator"] = accelerator
    row["marker"] = marker
    if name == "mxnet" and found.name == "mxnet":
        draft.note("info", "mxnet-plain-cpu", "mxnet is the CPU package; mxnet-cu112 and others are for CUDA; retired")
        row["accelerator"] = "cpu"
    if name in draft.frameworks and draft.frameworks[name]["version"] != version:
        first = draft.frameworks[name]
        if first["version"] is None or first.get("open"):
            draft.frameworks[name] = row
        else:
            return "ignored", f"{name} stands already as {first['from']}"
    else:
        draft.frameworks[name] = row
    row["open"] = found.pinned is None
    draft.why[f"frameworks.{name}.version"] = f"from {found.text}"
    if name == "jax" and version and any(e.startswith("cuda12") for e in extras):
        build = draft.tables.build("jax", public, "12")
        if build is not None and (build.cudnn or "").startswith("8"):
            _cudnn8(draft, found.text)
    if name == "jax" and any("-" in text or "_" in text for text in found.extras):
        why = why or "extras with - and _ are one name"
    return ("changed", why) if why else ("kept", f"framework {name}")


def _newest(draft: Draft, name: str, found: Requirement) -> tuple[str | None, str]:
    """The newest release in the bounds: a spec names exact versions."""
    rows = [
        r for r in draft.tables.releases(name) if not r.yanked and (not found.range.text or r.version in found.range)
    ]
    if not rows:
        return None, ""
    if not found.range.text:
        draft.note("info", "unpinned-framework", f"{found.text} has no version: the newest that fits is taken")
        return None, "no version: the newest known that fits"
    best = rows[-1].version
    if draft.python:
        with_python = [r for r in rows if draft.python in r.python]
        best = with_python[-1].version if with_python else best
    lower = re.search(r">=?\s*([0-9][0-9.]*)", found.range.text)
    if found.range.upper is None and lower and major(lower[1]) != major(best):
        draft.note(
            "warning", "open-bound", f"{found.text} now gives another major version: {best}", "add an upper bound"
        )
    return best, f"{best} is the newest known in {found.range.text}"


def python(draft: Draft, text: str, why: str) -> Fated:
    """The interpreter's version from a bound or a version."""
    match = re.search(r"(?<![\d.])(3\.\d{1,2})(?!\d)", text)
    if match is None:
        return "not-understood", "the Python version cannot be read"
    wanted = match[1]
    draft.python = wanted
    draft.why["python"] = f"from {text.strip()}"
    plain = re.fullmatch(r"[=~><^ ]*" + re.escape(wanted), text.strip())
    if plain and text.strip().lstrip("= ") == wanted:
        return ("kept", why) if not why.startswith("python is not") else ("changed", why)
    return "changed", why if why.startswith("python is not") else f"{why}: {text.strip()} became {wanted}"


def index(draft: Draft, url: str, *, kind: str) -> Fated:
    """An index or find-links page. ``kind``: index-url, extra-index-url, find-links."""
    url = url.strip().strip("'\"")
    torch = _TORCH_URL.match(url)
    known = next(
        (row for row in draft.tables.raw("rules")["indexes"] if row["url"].rstrip("/") == url.rstrip("/")), None
    )
    if re.fullmatch(r"https?://pypi\.org/simple/?", url):
        return "kept", "the default index"
    if not fits(specs.URL, url):
        return "not-understood", "an address that a spec cannot hold (a password, a variable or a path)"
    links = kind == "find-links"
    if torch:
        tag = torch[1]
        label = f"pytorch-{tag}".replace("_", "-")
        version = label_version(tag)
        if version:
            draft.claims.append((version, url, "index"))
        packages: list[str] = ["torch", "torchvision", "torchaudio", "torchtext", "triton", "pytorch-triton*"]
        why = f"the index {label}, for the torch family only"
    elif known:
        label, packages = known["label"], list(known["packages"])
        links = links or bool(known.get("find_links"))
        why = f"the index {label}, for {', '.join(packages)} only"
    else:
        host = url.split("://")[-1].split("/")[0].split(":")[0].lower()
        label = re.sub(r"[^a-z0-9]+", "-", host).strip("-") or "other"
        if label == "default" or not fits(specs.LABEL, label):
            label = "other"
        base, count = label, 2
        while label in draft.indexes and draft.indexes[label]["url"] != url:
            label, count = f"{base}-{count}", count + 1
        packages, why = ["*"] if kind == "index-url" else [], "an index for the whole file"
        draft.note(
            "warning",
            "index-whole-file",
            f"{url} applies to every package of the file: a package of the same name "
            "on another index may be taken instead (dependency confusion)",
            f"name the packages that come from it under indexes.{label}.packages",
        )
    draft.indexes.setdefault(label, {"url": url, "packages": tuple(packages), "find_links": links})
    return ("changed", why) if torch or known else ("kept", why)


def conda(draft: Draft, text: str) -> Fated:
    """One conda match spec."""
    body = re.sub(r"\s+", " ", text.strip())
    channel, _, rest = body.rpartition("::")
    match = re.match(r"([A-Za-z0-9_.-]+)\s*(.*)$", rest)
    if match is None:
        return "not-understood", "not a conda package"
    name, bound = match[1].lower(), match[2].strip()
    exact = re.match(r"={1,2}\s*([0-9][A-Za-z0-9.]*)", bound)
    if name == "python":
        return python(draft, bound or "3.11", "the interpreter")
    found = re.match(r"[=<>~! ]*\s*(\d+\.\d+)", bound)
    clean = re.sub(r"\s*(==|>=|<=|~=|!=|=|<|>)\s*", r"\1", body)
    if "=" in clean.replace("==", "=") and re.fullmatch(r"[^ =<>]+==[^ =<>]+", clean):
        pass
    if not fits(specs.CONDA, clean):
        return "not-understood", "a spec cannot hold this match spec"
    if name in ("cudatoolkit", "pytorch-cuda", "cuda-version", "cuda-toolkit", "cuda") and found:
        draft.claim(found[1], body, "conda")
    build = re.search(r"=\s*\*?(?:py\d+_?)?cuda_?(\d{2,3})", bound)
    if build:
        claimed = label_version("cuda" + build[1]) or ""
        draft.claims.append((claimed, body, "conda-build"))
        draft.note("info", "build-claims-cuda", f"{body}: the build string asks for CUDA {claimed}")
    if name == "cudnn" and found:
        draft.cudnn = found[1]
    framework = {"pytorch": "torch", "pytorch-gpu": "torch"}.get(name) or draft.tables.framework_name(name)[0]
    if clean not in draft.conda:
        draft.conda.append(clean)
    if framework is None:
        return ("kept", "") if clean == body else ("changed", f"written as {clean}")
    version: str | None = exact[1] if exact and is_version(exact[1]) and fits(specs.VERSION, exact[1]) else None
    if version is not None and draft.tables.release(framework, version) is None and version.count(".") < 2:
        same = [r.version for r in draft.tables.releases(framework) if series(r.version) == version]
        version = max(same, key=key) if same else version
    draft.frameworks.setdefault(
        framework, {"version": version, "from": body, "extras": (), "accelerator": None, "conda": True}
    )
    draft.why[f"frameworks.{framework}.version"] = f"from conda: {body}"
    if (
        framework == "torch"
        and version
        and series(version) in ("1.13", "2.0", "2.1")
        and not any(re.match(r"mkl[<=]", item) for item in draft.conda)
    ):
        draft.conda.append("mkl<2024.1")
        draft.note("warning", "mkl-bound", f"mkl<2024.1 is added: torch {version} from conda fails with a later MKL")
    return "kept", f"framework {framework}, from its conda channel" if channel else f"framework {framework}"


def apt(draft: Draft, text: str) -> Fated:
    """One Debian package."""
    if not fits(specs.APT, text):
        return "not-understood", "not a Debian package name"
    if text not in draft.apt:
        draft.apt.append(text)
    return "kept", ""
