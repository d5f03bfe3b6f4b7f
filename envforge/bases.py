"""Base image references read into what is known of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from envforge.versions import key, series

if TYPE_CHECKING:
    from envforge.compat import Base, Tables

DEBIAN = {"buster": "debian10", "bullseye": "debian11", "bookworm": "debian12", "trixie": "debian13"}
UBUNTU = {
    "xenial": "16.04",
    "bionic": "18.04",
    "focal": "20.04",
    "jammy": "22.04",
    "noble": "24.04",
    "resolute": "26.04",
}
# What plain `python:3.11` and `debian:latest` stand on at the time the tables were checked.
CURRENT_DEBIAN = "trixie"


def label(system: str) -> str:
    """``debian12`` -> ``debian:bookworm``, ``ubuntu22.04`` -> ``ubuntu:22.04``."""
    for name, known in DEBIAN.items():
        if known == system:
            return f"debian:{name}"
    match = re.fullmatch(r"([a-z]+)([\d.]+)", system)
    return f"{match[1]}:{match[2]}" if match else system


def _parts(image: str) -> tuple[str, str]:
    name = image.split("@")[0]
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        repository, tag = name, "latest"
    for prefix in ("docker.io/library/", "docker.io/", "library/", "nvcr.io/"):
        repository = repository.removeprefix(prefix)
    return repository, tag


def describe(tables: Tables, image: str) -> Base:
    """What is known of one reference; ``status`` says how much."""
    from envforge.compat import Base

    repository, tag = _parts(image)
    if re.search(r"windows|nanoserver|servercore", f"{repository}:{tag}", re.IGNORECASE):
        # python:3.11-windowsservercore must not be taken for the Debian of a python tag without a system
        return Base(image=image, system="windows", glibc=None, status="unknown")
    if repository == "nvidia/cuda":
        found = _cuda(tables, image, tag)
    elif repository == "python":
        found = _python(image, tag)
    elif repository in ("debian", "ubuntu"):
        code = tag.split("-")[0]
        version = UBUNTU.get(code, code) if repository == "ubuntu" else DEBIAN.get(code, f"debian{code}")
        system: str | None = f"ubuntu{version}" if repository == "ubuntu" else version
        if tag in ("latest", "stable", "stable-slim"):
            system = DEBIAN[CURRENT_DEBIAN] if repository == "debian" else "ubuntu24.04"
        found = Base(image=image, system=system, glibc=None)
    elif repository == "alpine" or "alpine" in tag:
        found = Base(
            image=image, system="alpine", glibc=None, note="musl instead of glibc: no framework wheel installs there"
        )
    else:
        match = re.search(r"(ubuntu|debian|rockylinux|ubi)[:_-]?(\d+(?:\.\d+)?)", f"{repository}:{tag}")
        system = f"{match[1]}{match[2]}" if match else None
        if system is None:
            for code, known in {**DEBIAN, **{c: f"ubuntu{v}" for c, v in UBUNTU.items()}}.items():
                if code in tag:
                    system = known
        found = Base(image=image, system=system, glibc=None, status="unknown")
    glibc = tables.system_glibc(found.system) if found.system else None
    ends = next((r["ends"] for r in tables.raw("rules")["system_ends"] if r["system"] == found.system), None)
    digest = next((r["digest"] for r in tables.raw("bases")["digests"] if r["image"] == f"{repository}:{tag}"), None)
    if "@sha256:" in image:
        digest = image.split("@")[1]
    return replace(found, glibc=glibc, ends=ends, digest=digest)


def _python(image: str, tag: str) -> Base:
    from envforge.compat import Base

    match = re.match(r"(\d+\.\d+)", tag)
    system: str = next((known for code, known in DEBIAN.items() if code in tag), DEBIAN[CURRENT_DEBIAN])
    if "alpine" in tag:
        return Base(
            image=image,
            system="alpine",
            glibc=None,
            python=match[1] if match else None,
            note="musl instead of glibc: no framework wheel installs there",
        )
    return Base(image=image, system=system, glibc=None, python=match[1] if match else None)


_CUDA_TAG = re.compile(
    r"(?P<cuda>\d+\.\d+(?:\.\d+)?)(?:-(?P<cudnn>cudnn\d*))?-(?P<kind>tensorrt-runtime|tensorrt-devel|base|runtime|devel)"
    r"(?:-(?P<distro>[a-z]+[\d.]+))?"
)


def _cuda(tables: Tables, image: str, tag: str) -> Base:
    from envforge.compat import Base

    match = _CUDA_TAG.fullmatch(tag)
    if match is None:
        gone = tag == "latest" or re.fullmatch(r"\d+\.\d+(-.*)?", tag) is not None
        why = "no such tag: NVIDIA publishes no 'latest' and no two-part tags" if gone else "the tag has no known form"
        return Base(image=image, system=None, glibc=None, status="gone" if gone else "unknown", note=why)
    cuda, kind = match["cuda"], (f"{match['cudnn']}-" if match["cudnn"] else "") + match["kind"]
    row = next((r for r in tables.raw("bases")["cuda_images"] if r["cuda"] == cuda), None)
    cudnn = str(row["cudnn"]) if row is not None and match["cudnn"] and "cudnn" in row else None
    if cudnn is None and match["cudnn"]:
        cudnn = match["cudnn"].removeprefix("cudnn") or "9"
    status, note, instead = _status(tables, cuda, tag, match, row, kind)
    return Base(
        image=image,
        system=match["distro"],
        glibc=None,
        cuda=series(cuda),
        cuda_release=cuda,
        kind=kind,
        cudnn=cudnn,
        accepts_branches=tuple(row.get("accepts_branches", ())) if row else (),
        accepts_geforce=bool(row.get("accepts_geforce", False)) if row else False,
        status=status,
        note=note,
        instead=instead,
    )


def _status(
    tables: Tables, cuda: str, tag: str, match: re.Match[str], row: Mapping[str, Any] | None, kind: str
) -> tuple[str, str | None, str | None]:
    newest = _newest(tables, series(cuda))
    if cuda.count(".") == 1:
        full = newest["cuda"] if newest else None
        return (
            "gone",
            f"two-part tags were withdrawn; the publisher keeps three-part tags such as {full or 'X.Y.Z'}",
            f"nvidia/cuda:{tag.replace(cuda, full, 1)}" if full else None,
        )
    if key(cuda) < key("11.0"):
        return "gone", "the CUDA 10 and older tags were deleted by mid 2023", None
    if row is None:
        older = newest is not None and key(newest["cuda"]) > key(cuda)
        instead = f"nvidia/cuda:{tag.replace(cuda, newest['cuda'], 1)}" if older and newest else None
        return "unknown", f"no image of CUDA {cuda} is in the tables", instead
    if "tags" in row:
        seen = tag in row["tags"]
        note = "seen, but past its support window: it may be deleted" if row.get("ended") else None
        return ("known" if seen else "unknown"), note or (None if seen else "this tag was not seen"), None
    if match["distro"] is None or match["distro"] not in row["distros"]:
        return "unknown", f"CUDA {cuda} images exist on {', '.join(row['distros'])}", None
    if kind not in row["kinds"]:
        return "gone", f"there is no {kind} flavour of {cuda}; there are {', '.join(row['kinds'])}", None
    if match["cudnn"] and match["distro"] in row.get("no_cudnn", ()):
        return "gone", f"CUDA {cuda} on {match['distro']} has no cuDNN flavour", None
    if row.get("ended"):
        instead = f"nvidia/cuda:{tag.replace(cuda, newest['cuda'], 1)}" if newest else None
        return "known", "an older point release past its support window: it may be deleted", instead
    return "known", None, None


def _newest(tables: Tables, wanted: str) -> Mapping[str, Any] | None:
    rows = [row for row in tables.raw("bases")["cuda_images"] if row["series"] == wanted]
    whole = [row for row in rows if "distros" in row and not row.get("ended")]
    return max(whole or rows, key=lambda row: key(row["cuda"])) if rows else None


def choose_cuda(tables: Tables, wanted: str, kind: str, cudnn_major: str | None) -> Base | None:
    """The newest image of a series; Ubuntu 22.04 first (its glibc suits every wheel), then 20.04, 24.04, 18.04."""
    rows = sorted(
        (row for row in tables.raw("bases")["cuda_images"] if row["series"] == wanted),
        key=lambda row: ("distros" in row and not row.get("ended"), key(row["cuda"])),
        reverse=True,
    )
    for row in rows:
        names = [name for name in row.get("kinds", ()) if name.endswith(kind)]
        if cudnn_major is not None:
            wished = [n for n in names if n in (f"cudnn{cudnn_major}-{kind}", f"cudnn-{kind}")]
            if str(row.get("cudnn", "")).split(".")[0] != cudnn_major and "kinds" in row:
                continue
        else:
            wished = [n for n in names if n == kind]
        for system in ("ubuntu22.04", "ubuntu20.04", "ubuntu24.04", "ubuntu18.04"):
            if wished and system in row.get("distros", ()) and not (cudnn_major and system in row.get("no_cudnn", ())):
                return tables.base_image(f"nvidia/cuda:{row['cuda']}-{wished[0]}-{system}")
            for tag in row.get("tags", ()):
                flavour = "cudnn" in tag
                if tag.endswith(system) and f"-{kind}-" in tag and flavour == (cudnn_major is not None):
                    return tables.base_image(f"nvidia/cuda:{tag}")
    return None
