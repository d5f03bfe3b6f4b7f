"""Is what is installed what the lock says? Pure comparison of an Inventory with a Lock; names every difference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from envforge.inventory import CudaLibrary, Inventory, normalise
from envforge.lock import Lock

# Paths of an environment that no package owns and every environment has, relative to the prefix.
SKELETON = frozenset(
    {
        "pyvenv.cfg", ".gitignore", ".lock", "CACHEDIR.TAG", "lib64", "envforge.json", ".envforge.json",
        "bin/python", "bin/python3", "bin/activate", "bin/activate.csh", "bin/activate.fish", "bin/activate.nu",
        "bin/activate.ps1", "bin/activate.bat", "bin/activate.xsh", "bin/activate_this.py", "bin/Activate.ps1",
        "bin/deactivate.bat", "bin/pydoc.bat", "conda-meta/history", "conda-meta/.lock", "conda-meta/state",
    }
)  # fmt: skip
# Files an installer writes beside a package after reading its RECORD; their content says nothing about the code.
INSTALLER_FILES = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"})
# Needed to bootstrap an environment; not required to stand in the lock.
UNLOCKED_ALLOWED = frozenset({"pip", "setuptools", "wheel"})
# Copies that publishers put inside their own package on purpose, with why they do no harm.
PLANNED_COPIES: Mapping[tuple[str, str], str] = {
    ("libcupti", "pip:triton"): "triton's profiler loads its own CUPTI by path",
    ("libcudart", "pip:cupy"): "loaded by path, private to the package",
}
# The driver's own libraries: they come from the host and must never lie in an image.
DRIVER_LIBRARIES = frozenset({"libcuda", "libnvidia-ml"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One thing that is not as locked.

    ``kind``: package-missing, package-extra, package-version, package-twice, package-hash, package-overwritten,
    file-changed, file-removed, file-added, record-missing, bytecode-orphan, cuda-copy, cuda-unowned,
    cuda-driver, apt-missing, apt-version, label-changed, label-missing, python-version, baseline-changed.
    """

    kind: str
    path: str
    package: str
    detail: str

    def document(self) -> dict[str, str]:
        """The value shown in JSON."""
        return {"kind": self.kind, "path": self.path, "package": self.package, "detail": self.detail}


def compare(
    lock: Lock | None,
    found: Inventory,
    *,
    labels: Mapping[str, str] | None = None,
    expected_labels: Mapping[str, str] | None = None,
    baseline: Mapping[str, str] | None = None,
    allowed: Iterable[str] = (),
) -> tuple[Difference, ...]:
    """Every difference, sorted by kind and path.

    ``lock`` None: only what the environment claims of itself. ``labels`` are the image's, ``expected_labels``
    those the lock asks for. ``baseline``: path -> value kept when the environment was built (:func:`baseline`).
    ``allowed``: absolute paths or folders that belong to the environment without a package (own code).
    """
    differences: list[Difference] = []
    if lock is not None:
        differences += _pip_packages(lock, found)
        differences += _conda_packages(lock, found)
        differences += _apt_packages(lock, found)
        if not found.python.startswith(lock.python + ".") and found.python != lock.python:
            detail = f"locked for Python {lock.python}, the interpreter is {found.python}"
            differences.append(Difference(kind="python-version", path=found.prefix, package="python", detail=detail))
    differences += _files(found)
    differences += _added(found, tuple(allowed))
    differences += _cuda(lock, found)
    if expected_labels is not None:
        differences += _labels(labels or {}, expected_labels)
    if baseline is not None:
        known = {(one.path) for one in differences}
        differences += [one for one in _baseline(found, baseline) if one.path not in known]
    return tuple(sorted(set(differences), key=lambda one: (one.kind, one.path, one.package, one.detail)))


def baseline(found: Inventory) -> dict[str, str]:
    """path -> sha256 or link target of everything but bytecode: what :func:`compare` takes as ``baseline``."""
    return {path: one.value or "" for path, one in found.files.items() if not path.endswith(".pyc")}


def _pip_packages(lock: Lock, found: Inventory) -> list[Difference]:
    from packaging.version import InvalidVersion, Version

    def same(left: str, right: str) -> bool:
        try:
            return Version(left) == Version(right)
        except InvalidVersion:
            return left == right

    differences = []
    wanted = {normalise(one.name): one for one in lock.pip}
    conda_names = {normalise(one.name) for one in found.conda}
    carried = _conda_metas(found)
    seen: dict[str, str] = {}
    files = lock.made_from.get("files") or ()
    own_code = any(len(one) == 3 and one[2] != "none" for one in files)
    for package in found.pip:
        name = normalise(package.name)
        if name in seen:
            detail = f"also installed in {seen[name]}"
            differences.append(Difference(kind="package-twice", path=package.meta, package=name, detail=detail))
        seen[name] = package.meta
        if name in wanted:
            if not same(wanted[name].version, package.version):
                detail = f"locked {wanted[name].version}, installed {package.version}"
                differences.append(Difference(kind="package-version", path=package.meta, package=name, detail=detail))
        elif own_code and package.direct_url.startswith("file:"):
            continue  # `files` of the spec that are installed: their content is part of the identity
        elif not _expected_extra(name, package.installer, package.meta, found, conda_names, carried):
            detail = f"{package.version} is installed and not in the lock"
            differences.append(Difference(kind="package-extra", path=package.meta, package=name, detail=detail))
    for name, one in wanted.items():
        if name not in seen:
            detail = f"locked {one.version}, not installed"
            differences.append(Difference(kind="package-missing", path="", package=name, detail=detail))
    return differences


def _expected_extra(
    name: str, installer: str, meta: str, found: Inventory, conda_names: set[str], carried: frozenset[str]
) -> bool:
    """Whether a distribution outside the pip lock is explained: bootstrap, Debian's, or conda's own."""
    if name in UNLOCKED_ALLOWED or not found.private:
        return True
    if installer == "conda" or name in conda_names:
        return True
    # A conda package may carry a distribution under another name (pytorch carries torch): its files say so.
    return meta in carried


def _conda_packages(lock: Lock, found: Inventory) -> list[Difference]:
    wanted = {one.name: one for one in lock.conda if one.subdir in (_subdir(lock.platform), "noarch")}
    installed = {one.name: one for one in found.conda}
    differences = []
    for name, one in sorted(wanted.items()):
        have = installed.get(name)
        if have is None:
            detail = f"locked {one.version} {one.build}, not installed"
            differences.append(Difference(kind="package-missing", path="", package=name, detail=detail))
        elif (have.version, have.build) != (one.version, one.build):
            detail = f"locked {one.version} {one.build}, installed {have.version} {have.build}"
            differences.append(Difference(kind="package-version", path=have.meta, package=name, detail=detail))
        elif have.sha256 and have.sha256 != one.sha256:
            detail = f"locked file sha256 {one.sha256}, installed from {have.sha256}"
            differences.append(Difference(kind="package-hash", path=have.meta, package=name, detail=detail))
    for name, have in sorted(installed.items()):
        if have.broken:
            differences.append(
                Difference(kind="file-changed", path=have.meta, package=name, detail="conda-meta cannot be read")
            )
        elif name not in wanted:
            detail = f"{have.version} {have.build} is installed and not in the lock"
            differences.append(Difference(kind="package-extra", path=have.meta, package=name, detail=detail))
    return differences


def _subdir(platform: str) -> str:
    return {"linux/amd64": "linux-64", "linux/arm64": "linux-aarch64"}.get(platform, platform)


def _apt_packages(lock: Lock, found: Inventory) -> list[Difference]:
    installed = dict(found.apt)
    differences = []
    for name, version in lock.apt:
        have = installed.get(name.split(":")[0])
        if have is None:
            differences.append(
                Difference(kind="apt-missing", path="", package=name, detail=f"locked {version}, not installed")
            )
        elif version and have != version:
            detail = f"locked {version}, installed {have}"
            differences.append(Difference(kind="apt-version", path="", package=name, detail=detail))
    return differences


def _files(found: Inventory) -> list[Difference]:
    """Claims of RECORD and conda-meta against what is there; conda's file overwritten by pip is named as that."""
    real = _aliases(found)
    claims: dict[str, list[tuple[str, str | None, bool]]] = {}
    differences = []
    for conda in found.conda:
        for path, (value, kind) in conda.record.items():
            claims.setdefault(real(path), []).append((f"conda:{conda.name}", value, kind == "softlink"))
    carried = _conda_metas(found)
    for package in found.pip:
        name = f"pip:{normalise(package.name)}"
        if package.meta in carried:
            # conda-meta claims every one of these files; the RECORD inside is from before the prefix was put in.
            continue
        if package.record is None:
            if found.private:
                detail = "its RECORD is missing: nothing can be said about its files"
                differences.append(Difference(kind="record-missing", path=package.meta, package=name, detail=detail))
            continue
        for path, value in package.record.items():
            claims.setdefault(real(path), []).append((name, value, False))
    for path, owners in claims.items():
        differences += _one_file(path, owners, found)
    return differences


def _conda_metas(found: Inventory) -> frozenset[str]:
    """The ``.dist-info`` and ``.egg-info`` of distributions that conda packages carry."""
    metas = set()
    for one in found.conda:
        for path in one.record:
            for mark in (".dist-info", ".egg-info"):
                head, found_mark, tail = path.partition(mark)
                if found_mark and (not tail or tail.startswith("/")):
                    metas.add(head + mark)
    return frozenset(metas)


def _aliases(found: Inventory) -> Any:
    """A function that maps ``PREFIX/lib64/x`` to ``PREFIX/lib/x`` where lib64 is a link to lib."""
    link = f"{found.prefix}/lib64"
    entry = found.files.get(link)
    if entry is not None and entry.kind == "link":
        return lambda path: f"{found.prefix}/lib/{path[len(link) + 1 :]}" if path.startswith(link + "/") else path
    return lambda path: path


def _one_file(path: str, owners: list[tuple[str, str | None, bool]], found: Inventory) -> list[Difference]:
    entry = found.files.get(path)
    names = sorted({name for name, _, _ in owners})
    package = names[0]
    if entry is None:
        if path.endswith(".pyc") or not _inside(path, found):
            return []
        return [Difference(kind="file-removed", path=path, package=package, detail="recorded, not there")]
    values = {value for _, value, link in owners if value and not link}
    if entry.kind == "link" or not values:
        return []
    if entry.value is None:
        return [Difference(kind="file-changed", path=path, package=package, detail="cannot be read")]
    if entry.value in values and len(values) == 1:
        return []
    if path.endswith(".pyc"):
        return [] if entry.value in values else [_changed(path, package, values, entry.value)]
    matching = [name for name, value, _ in owners if value == entry.value]
    if matching and len(names) > 1:
        losers = [name for name, value, _ in owners if value and value != entry.value]
        detail = f"belongs to {', '.join(losers)} and was overwritten by {matching[0]}"
        return [Difference(kind="package-overwritten", path=path, package=losers[0], detail=detail)]
    return [_changed(path, package, values, entry.value)]


def _changed(path: str, package: str, values: set[str], have: str) -> Difference:
    detail = f"recorded sha256 {sorted(values)[0]}, found {have}"
    return Difference(kind="file-changed", path=path, package=package, detail=detail)


def _inside(path: str, found: Inventory) -> bool:
    """Whether the probe looked where this path lies (data files of a system interpreter may lie elsewhere)."""
    return any(path.startswith(root.rstrip("/") + "/") for root in ((found.prefix,) if found.private else found.site))


def _added(found: Inventory, allowed: tuple[str, ...]) -> list[Difference]:
    """Files nobody claims. Compiled bytecode with its source beside it is the interpreter's own doing."""
    if not found.private:
        return []
    real = _aliases(found)
    owned = {real(path) for path in found.owners()}
    metas = tuple(f"{package.meta}/" for package in found.pip)
    differences = []
    python = f"bin/python{'.'.join(found.python.split('.')[:2])}"
    for path in found.files:
        relative = path[len(found.prefix) + 1 :]
        if path in owned or relative in SKELETON or relative == python or relative.startswith(".envforge/"):
            continue
        if any(path == one or path.startswith(one.rstrip("/") + "/") for one in allowed):
            continue
        if path in found.bytecode:
            if found.bytecode[path]:
                detail = f"compiled code that no package owns ({found.bytecode[path]})"
                differences.append(Difference(kind="bytecode-orphan", path=path, package="", detail=detail))
            continue
        if path.startswith(metas) and path.rsplit("/", 1)[-1] in INSTALLER_FILES:
            continue
        if relative.startswith("lib/python") and relative.endswith("/site-packages/_virtualenv.pth"):
            continue
        if relative.endswith(("/site-packages/_virtualenv.py", "/site-packages/distutils-precedence.pth")):
            continue
        differences.append(Difference(kind="file-added", path=path, package="", detail="no package owns it"))
    return differences


def _cuda(lock: Lock | None, found: Inventory) -> list[Difference]:
    """One owner per CUDA library; a second copy must be planned (two locked CUDA packages, or a known bundle)."""
    differences = []
    groups: dict[str, list[Any]] = {}
    compat = _compat(lock)
    for one in found.cuda:
        if compat and "/compat/" in one.path and one.path.startswith("/usr/local/cuda"):
            continue  # the forward-compatibility package: asked for by the spec, used only with an older driver
        if one.stub:
            continue  # for linking only; the smoke tests look whether one is on the search path
        if one.library in DRIVER_LIBRARIES:
            detail = "a driver library inside the environment hides the host's"
            differences.append(Difference(kind="cuda-driver", path=one.path, package=one.owner, detail=detail))
        elif (one.library, one.owner) not in PLANNED_COPIES:
            groups.setdefault(one.library, []).append(one)
    planned = _cuda_packages(lock)
    toolkit = _has_toolkit(lock)
    for library, copies in sorted(groups.items()):
        for one in copies:
            if not one.owner and found.private and lock is not None and not (toolkit and _of_toolkit(one)):
                detail = f"{library} {one.version} belongs to no package"
                differences.append(Difference(kind="cuda-unowned", path=one.path, package="", detail=detail))
        main = _main_copy(copies, planned)
        for one in copies:
            same_owner = one.owner and one.owner == main.owner
            if one is main or (same_owner and one.version == main.version) or one.owner in planned:
                continue
            if toolkit and _of_toolkit(one):
                continue  # asked for by the spec, beside what the packages bring
            detail = f"{library} {one.version} beside {main.version} of {main.owner or 'nobody'} ({main.path})"
            differences.append(Difference(kind="cuda-copy", path=one.path, package=one.owner, detail=detail))
    return differences


def _has_toolkit(lock: Lock | None) -> bool:
    """Whether the spec asks for CUDA libraries outside the packages: a CUDA base image or a toolchain."""
    cuda = (lock.made_from.get("cuda") if lock is not None else None) or {}
    return cuda.get("from") == "base" or cuda.get("toolchain", "none") != "none"


def _compat(lock: Lock | None) -> bool:
    cuda = (lock.made_from.get("cuda") if lock is not None else None) or {}
    return bool(cuda.get("compat"))


def _of_toolkit(one: CudaLibrary) -> bool:
    """Whether a library belongs to the toolkit's own place or to a Debian package."""
    return one.path.startswith("/usr/local/cuda") or one.owner.startswith("apt:")


def _main_copy(copies: list[Any], planned: frozenset[str]) -> Any:
    """The copy that counts as the environment's own: a CUDA package's, else an owned one, else the first."""
    return min(copies, key=lambda one: (one.owner not in planned, not one.owner, one.path))


def _cuda_packages(lock: Lock | None) -> frozenset[str]:
    """Owners of the lock whose very purpose is to carry CUDA libraries."""
    if lock is None:
        return frozenset()
    names = {f"pip:{normalise(one.name)}" for one in lock.pip if normalise(one.name).startswith("nvidia-")}
    heads = ("cuda-", "libcu", "libnv", "cudatoolkit", "cudnn", "nccl", "libcufft")
    return frozenset(names | {f"conda:{one.name}" for one in lock.conda if one.name.startswith(heads)})


def _labels(labels: Mapping[str, str], expected: Mapping[str, str]) -> list[Difference]:
    differences = []
    for name, value in sorted(expected.items()):
        have = labels.get(name)
        if have is None:
            differences.append(
                Difference(kind="label-missing", path=name, package="", detail=f"expected {value!r}, there is none")
            )
        elif have != value:
            detail = f"expected {value!r}, found {have!r}"
            differences.append(Difference(kind="label-changed", path=name, package="", detail=detail))
    return differences


def _baseline(found: Inventory, known: Mapping[str, str]) -> list[Difference]:
    """Against what was written down after the build: also catches a RECORD edited together with its file."""
    now = baseline(found)
    owners = found.owners()
    differences = []
    for path in sorted(known.keys() | now.keys()):
        if path not in now:
            detail = "was there after the build and is gone"
        elif path not in known:
            detail = "was not there after the build"
        elif now[path] != known[path]:
            detail = f"was {known[path]} after the build, is {now[path]}"
        else:
            continue
        package = owners.get(path, "")
        differences.append(Difference(kind="baseline-changed", path=path, package=package, detail=detail))
    return differences
