"""What works with what: lookups over the compatibility tables. Pure once the tables are read.

``load()`` gives the shipped tables; each table is read (compiled JSON, no YAML) when it is first asked for.
``Tables.of(documents)`` makes tables from rows given by a test or an updater.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from envforge.resources import data
from envforge.versions import ANY, Key, Range, key, major, parse_range, series, split_local

DEFAULT = "default"
FRAMEWORKS = ("torch", "tensorflow", "jax", "keras", "paddle", "mindspore", "mxnet")

Capability = tuple[int, int]


def capability(text: str) -> Capability:
    """``8.6`` -> (8, 6)."""
    first, _, second = text.partition(".")
    return int(first), int(second or 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """One CUDA build of a release. ``index``: where it comes from first; ``vendor_index``: where its labelled form is

    ``kernels`` and ``ptx`` are capabilities; empty kernels with ``jit`` means compiled at run time for any
    device from ``sm_min`` to what the toolkit knows. ``low``: the facts that have low confidence.
    """

    cuda: str
    index: str = DEFAULT
    vendor_index: str | None = None
    platforms: tuple[str, ...] = ("amd64",)
    accepts: Range | None = None
    cudnn: str | None = None
    wheels: bool = False
    extras: tuple[str, ...] = ()
    extra_python: tuple[str, ...] | None = None  # Pythons on which the extras can be installed; None: all
    kernels: tuple[Capability, ...] = ()
    ptx: tuple[Capability, ...] = ()
    sm_min: Capability | None = None
    jit: bool = False
    driver: str | None = None
    glibc: str | None = None
    pins: Mapping[str, Range] = field(default_factory=dict)
    post: str | None = None
    distribution: str | None = None
    broken: str | None = None
    low: bool = False

    @property
    def tag(self) -> str:
        """``cu124``."""
        return "cu" + "".join(self.cuda.split(".")[:2])

    def takes(self, cuda: str) -> bool:
        """Whether this build runs with the libraries of that CUDA series."""
        return cuda == self.cuda or (self.accepts is not None and cuda in self.accepts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """A metadata bound on another package, for some interpreters only when ``python`` is set."""

    range: Range
    python: Range = ANY


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """One release of a framework."""

    framework: str
    version: str
    key: Key
    python: tuple[str, ...]
    python_unsure: bool = False
    glibc: Mapping[str, str] = field(default_factory=dict)
    default: Mapping[str, str] = field(default_factory=dict)
    builds: Mapping[str, Build] = field(default_factory=dict)
    bounds: Mapping[str, tuple[Bound, ...]] = field(default_factory=dict)
    companions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    loose: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    jaxlib: str | None = None
    backends: Mapping[str, str] = field(default_factory=dict)
    keras_generation: int | None = None
    yanked: str | None = None
    note: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU model. ``kind``: datacenter, workstation, consumer, jetson, or unknown for a bare ``sm_XX``."""

    name: str
    capability: Capability
    kind: str
    first_cuda: str
    architecture: str
    platform: str | None = None
    low: bool = False

    @property
    def text(self) -> str:
        """``8.6``."""
        return f"{self.capability[0]}.{self.capability[1]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Floors:
    """Driver floors of a CUDA series: ``native`` (its first toolkit's driver) and ``minor`` (any of its major)."""

    cuda: str
    native: str
    minor: str
    branch_only: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """Something the metadata of a framework leaves out.

    kind: requirement, constraint, conda-constraint, or apt (a Debian package).
    """

    kind: str
    text: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """What to install: pip name, version text (label included when the index needs it), extras, index label."""

    name: str
    version: str
    extras: tuple[str, ...]
    index: str

    @property
    def requirement(self) -> str:
        """``jax[cuda12]==0.4.38``."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{extras}=={self.version}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """A base image as the tables know it. ``python``: the interpreter in it; ``status``: known, gone, unknown."""

    image: str
    system: str | None
    glibc: str | None
    digest: str | None = None
    python: str | None = None
    cuda: str | None = None
    cuda_release: str | None = None
    kind: str | None = None
    cudnn: str | None = None
    accepts_branches: tuple[str, ...] = ()
    accepts_geforce: bool = False
    status: str = "known"
    instead: str | None = None
    ends: str | None = None
    note: str | None = None


def _covers(build: Build, wanted: Capability) -> bool:
    return any(c[0] == wanted[0] and c[1] <= wanted[1] for c in build.kernels)


def _ranges(texts: Iterable[str]) -> tuple[Bound, ...]:
    out = []
    for text in texts:
        body, _, marker = text.partition(" ; ")
        match = re.fullmatch(r"python\s*([<>=]+)\s*([\d.]+)", marker)
        out.append(Bound(range=parse_range(body), python=parse_range(match[1] + match[2]) if match else ANY))
    return tuple(out)


def _build(row: Mapping[str, Any]) -> Build:
    return Build(
        cuda=row["cuda"],
        index=row.get("index", DEFAULT),
        vendor_index=row.get("vendor_index"),
        platforms=tuple(row.get("platforms", ("amd64",))),
        accepts=parse_range(row["accepts"]) if "accepts" in row else None,
        cudnn=row.get("cudnn"),
        wheels=row.get("wheels", False),
        extras=tuple(row.get("extras", ())),
        extra_python=tuple(row["extra_python"].split()) if "extra_python" in row else None,
        kernels=tuple(capability(text) for text in row.get("kernels", ())),
        ptx=tuple(capability(text) for text in row.get("ptx", ())),
        sm_min=capability(row["sm_min"]) if "sm_min" in row else None,
        jit=row.get("jit", False),
        driver=row.get("driver"),
        glibc=row.get("glibc"),
        pins={n: parse_range(t if t[:1] in "<>=!~" else f"=={t}") for n, t in row.get("pins", {}).items()},
        post=row.get("post"),
        distribution=row.get("distribution"),
        broken=row.get("broken"),
        low="low" in row,
    )


_BOUND_NAMES = ("numpy", "protobuf", "scipy", "keras", "h5py", "ml_dtypes", "setuptools")


def _release(framework: str, row: Mapping[str, Any]) -> Release:
    bounds = {name.replace("_", "-"): _ranges(row[name]) for name in _BOUND_NAMES if name in row}
    companions = {n: tuple(row[n]) for n in ("torchvision", "torchaudio") if n in row}
    if "triton" in row:
        companions["triton"] = (row["triton"],)
    return Release(
        framework=framework,
        version=row["version"],
        key=key(row["version"]),
        python=tuple(row["python"]),
        python_unsure=row.get("python_unsure", False),
        glibc=row.get("glibc", {}),
        default=row.get("default", {}),
        builds={build["cuda"]: _build(build) for build in row.get("builds", ())},
        bounds=bounds,
        companions=companions,
        loose=tuple(row.get("loose", ())),
        extras=tuple(row.get("extras", ())),
        jaxlib=row.get("jaxlib"),
        backends=row.get("backends", {}),
        keras_generation=row.get("keras_generation"),
        yanked=row.get("yanked"),
        note=row.get("note"),
    )


def _read(name: str) -> Mapping[str, list[dict[str, Any]]]:
    with data(f"compiled/{name}.json").open(encoding="utf-8") as stream:
        found: Mapping[str, list[dict[str, Any]]] = json.load(stream)
    return found


# Words of a marketing name that say nothing about the chip.
_GPU_PREFIX = re.compile(r"^(nvidia|geforce|tesla|quadro|jetson)+")
_GPU_SUFFIX = re.compile(
    r"sxm\d*|pcie\w*|nvl\d*|\d+gb|hbm\d*e?|laptop|mobile|max|q|with|design|gpu|generation|super|founders?|edition|"
    r"server|workstation|ti|x2|blackwell|d|v2|mig|\d+g\.\d+gb|card|gddr\d\w*|module|developer|kit|super"
)
_SM = re.compile(r"(?:sm|compute|cc|computecapability)?[_ ]?(\d{1,2})\.?(\d)[af]?")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


class Tables:
    """The tables and every question one can ask them. Immutable: answers may be remembered."""

    def __init__(self, source: Callable[[str], Mapping[str, list[dict[str, Any]]]]) -> None:
        self._source = source
        self._raw: dict[str, Mapping[str, list[dict[str, Any]]]] = {}
        self._memo: dict[Any, Any] = {}

    @classmethod
    def of(cls, documents: Mapping[str, Mapping[str, list[dict[str, Any]]]]) -> Tables:
        """Tables from rows in memory (tests, updaters)."""
        return cls(lambda name: documents[name])

    def raw(self, name: str) -> Mapping[str, list[dict[str, Any]]]:
        """The rows of one table."""
        if name not in self._raw:
            self._raw[name] = self._source(name)
        return self._raw[name]

    def _once(self, name: Any, make: Callable[[], Any]) -> Any:
        found = self._memo.get(name)
        if found is None:
            found = self._memo[name] = make()
        return found

    # -- frameworks ---------------------------------------------------------------------------------------
    def known_frameworks(self) -> tuple[str, ...]:
        """The frameworks that have a table."""
        return FRAMEWORKS

    def framework_name(self, name: str) -> tuple[str | None, str | None]:
        """A name people use -> (framework, accelerator the name implies); (None, None) when unknown."""
        if name in FRAMEWORKS:
            return name, None
        plain = re.sub(r"[-_.]+", "-", name.strip().lower())
        if plain in FRAMEWORKS:
            return plain, None
        for row in self.raw("rules")["aliases"]:
            if row["alias"] == plain:
                return row["framework"], row.get("accelerator")
        return None, None

    def releases(self, framework: str) -> tuple[Release, ...]:
        """Every release known, oldest first; empty for an unknown framework."""
        if framework not in FRAMEWORKS:
            return ()

        def make() -> tuple[Release, ...]:
            rows = [_release(framework, row) for row in self.raw(framework)["releases"]]
            return tuple(sorted(rows, key=lambda row: row.key))

        found: tuple[Release, ...] = self._once(("releases", framework), make)
        return found

    def release(self, framework: str, version: str) -> Release | None:
        """The row of a version (its local label and paddle's ``.postNNN`` are ignored)."""
        rows = self._once(("by-key", framework), lambda: {r.key: r for r in self.releases(framework)})
        public, _ = split_local(version)
        try:
            found = rows.get(key(public))
            if found is None and framework == "paddle":
                found = rows.get(key(re.sub(r"\.post\d+$", "", public)))
        except ValueError:
            return None
        if found is None and framework == "keras":
            found = rows.get(key(series(public)))
        result: Release | None = found
        return result

    def newest(self, framework: str) -> Release:
        """The newest known release that was not withdrawn."""
        return [row for row in self.releases(framework) if row.yanked is None][-1]

    def newest_for(self, framework: str, python: str, cuda: str | None = None) -> Release | None:
        """The newest release with a wheel for that interpreter (and a build for that CUDA)."""
        for row in reversed(self.releases(framework)):
            if row.yanked or python not in row.python:
                continue
            if cuda is None or any(build.takes(series(cuda)) for build in row.builds.values()):
                return row
        return None

    def with_cuda(self, framework: str, cuda: str) -> tuple[str, ...]:
        """The releases that have a build for a CUDA, oldest first."""
        wanted = series(cuda)

        def make() -> tuple[str, ...]:
            rows = self.releases(framework)
            return tuple(row.version for row in rows if any(build.takes(wanted) for build in row.builds.values()))

        found: tuple[str, ...] = self._once(("with-cuda", framework, wanted), make)
        return found

    def first_with_python(self, framework: str, python: str, after: Key) -> str | None:
        """The first release after a version that has a wheel for an interpreter."""

        def make() -> tuple[tuple[Key, str], ...]:
            rows = self.releases(framework)
            return tuple((row.key, row.version) for row in rows if python in row.python and not row.yanked)

        rows: tuple[tuple[Key, str], ...] = self._once(("with-python", framework, python), make)
        return next((version for found, version in rows if found > after), None)

    def with_kernels(self, framework: str, wanted: Capability) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(release, its CUDA builds with code for a capability), newest release first."""

        def make() -> tuple[tuple[str, tuple[str, ...]], ...]:
            out = []
            for row in reversed(self.releases(framework)):
                fits = [b.cuda for b in row.builds.values() if _covers(b, wanted)]
                if fits:
                    out.append((row.version, tuple(sorted(fits, key=key))))
            return tuple(out)

        found: tuple[tuple[str, tuple[str, ...]], ...] = self._once(("kernels", framework, wanted), make)
        return found

    def bounds_fit(self, framework: str, version: str, python: str, accelerator: str, cuda: str | None) -> bool:
        """Whether the bounds of one release alone leave every base library a version with a wheel."""

        def make() -> tuple[bool]:
            known = self.bounds_of(framework, version, python, accelerator, cuda)
            for name, ranges in known.items():
                common = self.wheel_range(name, python)
                for bound in ranges:
                    common = common.meet(bound)
                if common.empty:
                    return (False,)
            return (True,)

        name = ("bounds-fit", framework, version, python, accelerator, major(cuda) if cuda else None)
        found: tuple[bool] = self._once(name, make)
        return found[0]

    def bounds_of(
        self, framework: str, version: str, python: str, accelerator: str, cuda: str | None
    ) -> Mapping[str, tuple[Range, ...]]:
        """Bounds a release puts on base libraries for one interpreter, declared and undeclared."""

        def make() -> dict[str, tuple[Range, ...]]:
            from envforge.versions import parse_requirement

            out: dict[str, list[Range]] = {}
            row = self.release(framework, version)
            for name, bounds in (row.bounds if row else {}).items():
                out[name] = [bound.range for bound in bounds if python in bound.python]
            for need in self.undeclared_needs(framework, version, python, accelerator, cuda):
                if need.kind not in ("requirement", "constraint"):
                    continue
                parsed = parse_requirement(need.text)
                if parsed.range != ANY:
                    out.setdefault(parsed.name, []).append(parsed.range)
            return {name: tuple(ranges) for name, ranges in out.items() if ranges}

        name = ("bounds", framework, version, python, accelerator, major(cuda) if cuda else None)
        found: dict[str, tuple[Range, ...]] = self._once(name, make)
        return found

    def default_index_cuda(self, framework: str, version: str, platform: str = "linux/amd64") -> str | None:
        """The CUDA that the default index gives, None for a CPU build or an unknown release."""
        row = self.release(framework, version)
        value = row.default.get(platform.removeprefix("linux/")) if row else None
        return None if value in (None, "cpu") else value

    def cuda_builds(self, framework: str, version: str) -> tuple[str, ...]:
        """The CUDA versions that have a build, lowest first."""
        row = self.release(framework, version)
        return tuple(sorted(row.builds, key=key)) if row else ()

    def build(self, framework: str, version: str, cuda: str) -> Build | None:
        """The build that serves a CUDA: exact when there is one, else one that accepts it."""
        row = self.release(framework, version)
        if row is None:
            return None
        wanted = series(cuda)
        if wanted in row.builds:
            return row.builds[wanted]
        if "." not in wanted:
            usual = row.default.get("amd64", "cpu")
            if usual in row.builds and major(usual) == wanted:
                return row.builds[usual]
            same = [b for b in row.builds.values() if major(b.cuda) == wanted]
            return max(same, key=lambda b: key(b.cuda)) if same else None
        return next((build for build in row.builds.values() if build.takes(wanted)), None)

    def index_url(self, label: str) -> str | None:
        """The URL behind a well-known index label; None for the default index or an unknown label."""
        for row in self.raw("rules")["indexes"]:
            if row["label"] == label:
                return str(row["url"])
            if "{tag}" in row["label"]:
                match = re.fullmatch(row["label"].replace("{tag}", r"(cu\d+)"), label)
                if match:
                    return str(row["url"]).replace("{tag}", match[1])
        return None

    def index_row(self, label: str) -> Mapping[str, Any] | None:
        """``{label, url, packages, find_links}`` of a well-known index."""
        for row in self.raw("rules")["indexes"]:
            pattern = re.escape(row["label"]).replace(r"\{tag\}", r"cu\d+")
            if re.fullmatch(pattern, label):
                return {
                    "label": label,
                    "url": self.index_url(label),
                    "packages": tuple(row["packages"]),
                    "find_links": bool(row.get("find_links", False)),
                }
        return None

    def index_for(
        self, framework: str, version: str, cuda: str | None, platform: str = "linux/amd64"
    ) -> tuple[str, str | None]:
        """(label, url) of the index that has this build; the URL of the default index is None.

        CPU builds of torch on amd64 come from pytorch-cpu: the default index has CUDA wheels there.
        """
        arch = platform.removeprefix("linux/")
        row = self.release(framework, version)
        if cuda is None:
            label = "pytorch-cpu" if framework == "torch" and row and row.default.get(arch) != "cpu" else DEFAULT
        else:
            build = self.build(framework, version, cuda)
            label = build.index if build else DEFAULT
            if build and label == DEFAULT and framework == "torch" and row and row.default.get(arch) != build.cuda:
                label = build.vendor_index or DEFAULT
        return label, self.index_url(label)

    def distribution_for(
        self, framework: str, version: str, accelerator: str, cuda: str | None, platform: str = "linux/amd64"
    ) -> Distribution:
        """Pip name, version text, extras and index of one framework build."""
        public, _ = split_local(version)
        build = self.build(framework, public, cuda) if accelerator == "cuda" and cuda else None
        index, _ = self.index_for(framework, public, cuda if accelerator == "cuda" else None, platform)
        name, text, extras = framework, public, build.extras if build else ()
        if framework == "tensorflow":
            name = "tensorflow-cpu" if accelerator == "cpu" and platform == "linux/amd64" else "tensorflow"
        elif framework == "paddle":
            name = "paddlepaddle" if accelerator == "cpu" else "paddlepaddle-gpu"
            if build and build.post and build.index != DEFAULT and ".post" not in text:
                text = f"{text}.{build.post}"
        elif framework == "mxnet" and build and build.distribution:
            name = build.distribution
        elif framework == "torch" and index != DEFAULT:
            text = f"{public}+{build.tag if build else 'cpu'}"
        return Distribution(name=name, version=text, extras=extras, index=index)

    def companions(self, framework: str, version: str) -> Mapping[str, tuple[str, ...]]:
        """Versions of the packages that belong to a release (torchvision, torchaudio, triton)."""
        row = self.release(framework, version)
        return row.companions if row else {}

    def undeclared_needs(
        self, framework: str, version: str, python: str, accelerator: str = "cpu", cuda: str | None = None
    ) -> tuple[Need, ...]:
        """What the metadata of a release leaves out, each with its reason."""
        del python
        public, _ = split_local(version)
        return self._needs(framework, public, accelerator, major(cuda) if cuda else None)

    def _needs(self, framework: str, version: str, accelerator: str, cuda_major: str | None) -> tuple[Need, ...]:
        def make() -> tuple[Need, ...]:
            out = []
            for row in self.raw("rules")["undeclared"]:
                if row["framework"] != framework or version not in parse_range(row["versions"]):
                    continue
                if row.get("accelerator", accelerator) != accelerator or row.get("cuda", cuda_major) != cuda_major:
                    continue
                out.append(Need(kind=row["kind"], text=row["need"], why=row["why"]))
            return tuple(out)

        found: tuple[Need, ...] = self._once(("needs", framework, version, accelerator, cuda_major), make)
        return found

    # -- CUDA and drivers ---------------------------------------------------------------------------------
    def _toolkits(self) -> list[dict[str, Any]]:
        return [*self.raw("rules").get("more_toolkits", []), *self.raw("cuda")["toolkits"]]

    def cuda_series(self) -> tuple[str, ...]:
        """The CUDA series with a toolkit, lowest first."""
        found: tuple[str, ...] = self._once(
            "series", lambda: tuple(sorted({row["series"] for row in self._toolkits()}, key=key))
        )
        return found

    def driver_floors(self, cuda: str) -> Floors | None:
        """Driver floors of a CUDA; None when the series is not in the table."""

        def make() -> dict[str, Floors]:
            out: dict[str, Floors] = {}
            for row in self._toolkits():
                if row.get("preview"):
                    continue
                bare = "." not in row["driver"]
                have = out.get(row["series"])
                if have is None or (have.branch_only and not bare):
                    # CUDA 11.0's first driver is older than the family floor; only the floor counts there.
                    native = max((row["driver"], row["floor"]), key=key)
                    out[row["series"]] = Floors(cuda=row["series"], native=native, minor=row["floor"], branch_only=bare)
            return out

        floors: dict[str, Floors] = self._once("floors", make)
        return floors.get(series(cuda))

    def toolkit_capabilities(self, cuda: str) -> tuple[Capability, Capability] | None:
        """(lowest, highest) compute capability that a CUDA series can build for."""

        def make() -> dict[str, tuple[Capability, Capability]]:
            out: dict[str, tuple[Capability, Capability]] = {}
            for row in self._toolkits():
                out[row["series"]] = (capability(row["sm_min"]), capability(row["sm_max"]))
            return out

        found: dict[str, tuple[Capability, Capability]] = self._once("capabilities", make)
        return found.get(series(cuda))

    def driver_cuda(self, driver: str) -> str | None:
        """The CUDA that a driver brings (what nvidia-smi prints); None below the oldest branch."""
        found = None
        for row in self.raw("cuda")["drivers"]:
            if key(row["branch"]) <= key(driver):
                found = row["cuda"]
        return found

    def driver_branch(self, driver: str) -> Mapping[str, Any] | None:
        """The branch row of a driver."""
        found = None
        for row in self.raw("cuda")["drivers"]:
            if row["branch"] == major(driver):
                found = row
        return found

    def last_driver(self, gpu: Gpu) -> str | None:
        """The last driver branch for this GPU, None when it is still supported."""

        def make() -> dict[str, str]:
            return {
                c: row["last_driver"]
                for row in self.raw("cuda")["architectures"]
                if "last_driver" in row
                for c in row["capabilities"]
            }

        branches: dict[str, str] = self._once("last-driver", make)
        if gpu.capability >= (7, 5) and gpu.text not in branches:
            return None
        same = (branch for text, branch in branches.items() if text.split(".")[0] == str(gpu.capability[0]))
        return branches.get(gpu.text) or next(same, None)

    # -- GPUs ---------------------------------------------------------------------------------------------
    def gpu(self, name: str) -> Gpu | None:
        """A GPU by name (case, spaces and vendor prefix ignored) or by ``sm_90`` / ``9.0``; None when unknown."""
        found: Gpu | None = self._once(("gpu", name), lambda: self._find_gpu(name) or False) or None
        return found

    def gpu_vendor(self, name: str) -> str | None:
        """The other vendor that a GPU name points to (AMD, Intel …), None for NVIDIA or unknown names."""
        for row in self.raw("rules")["gpu_vendors"]:
            if re.search(row["pattern"], name.strip().lower()):
                return str(row["vendor"])
        return None

    def gpus(self) -> tuple[Gpu, ...]:
        """Every GPU known."""

        def make() -> tuple[Gpu, ...]:
            rows = [*self.raw("gpus")["gpus"], *self.raw("rules").get("more_gpus", [])]
            return tuple(
                Gpu(
                    name=row["name"],
                    capability=capability(row["capability"]),
                    kind=row["kind"],
                    first_cuda=row["first_cuda"],
                    architecture=row["architecture"],
                    platform=row.get("platform"),
                    low="confidence" in row,
                )
                for row in rows
            )

        found: tuple[Gpu, ...] = self._once("gpus", make)
        return found

    def _gpu_names(self) -> dict[str, Gpu]:
        def make() -> dict[str, Gpu]:
            out: dict[str, Gpu] = {}
            spoken = [
                (text, row) for row in self.gpus() for text in (row.name, *re.split(r"[()]", row.name)) if text.strip()
            ]
            for name, row in spoken:
                plain = _plain(name)
                out.setdefault(plain, row)
                short = _GPU_PREFIX.sub("", plain)
                # "Quadro RTX 6000" must not take the bare name of a card that has it itself.
                if short not in out or "quadro" in _plain(out[short].name):
                    out[short] = row
            # "RTX PRO 6000" for "… Blackwell Workstation Edition": without the edition, never the server card.
            for name, row in spoken:
                bare = re.sub(r"\s*blackwell.*$", "", name.lower())
                if bare != name.lower() and row.kind != "datacenter":
                    out.setdefault(_GPU_PREFIX.sub("", _plain(bare)), row)
            return out

        found: dict[str, Gpu] = self._once("gpu-names", make)
        return found

    def _find_gpu(self, name: str) -> Gpu | None:
        names = self._gpu_names()
        plain = _plain(name)
        match = _SM.fullmatch(name.strip().lower())
        if match and plain not in names:
            return self._bare_gpu((int(match[1]), int(match[2])))
        words = [word for word in re.split(r"[\s\-_/()]+", name.lower()) if word]
        while words:
            for text in (_plain("".join(words)), _GPU_PREFIX.sub("", _plain("".join(words)))):
                if text in names:
                    return names[text]
                while glued := re.sub(r"(?:super|ti|laptop)$", "", text):
                    if glued == text:
                        break
                    if glued in names:
                        return names[glued]
                    text = glued
            if not _GPU_SUFFIX.fullmatch(words[-1]):
                return None
            words.pop()
        return None

    def _bare_gpu(self, wanted: Capability) -> Gpu | None:
        same = [row for row in self.gpus() if row.capability == wanted]
        architectures = self.raw("cuda")["architectures"]
        text = f"{wanted[0]}.{wanted[1]}"
        if same:
            first = min((row.first_cuda for row in same), key=key)
            return Gpu(
                name=f"sm_{wanted[0]}{wanted[1]}",
                capability=wanted,
                kind="unknown",
                first_cuda=first,
                architecture=same[0].architecture,
            )
        for row in architectures:
            if text in row["capabilities"]:
                return Gpu(
                    name=f"sm_{wanted[0]}{wanted[1]}",
                    capability=wanted,
                    kind="unknown",
                    first_cuda=row["first_cuda"],
                    architecture=row["architecture"],
                )
        return None

    # -- packages and base libraries ----------------------------------------------------------------------
    def package(self, name: str, version: str) -> Mapping[str, Any] | None:
        """The row of an exporter or runtime release."""
        rows = self._once(
            "packages", lambda: {(r["name"], key(r["version"])): r for r in self.raw("packages")["packages"]}
        )
        found: Mapping[str, Any] | None = rows.get((name, key(version)))
        return found

    def package_rows(self, name: str) -> tuple[Mapping[str, Any], ...]:
        """Every row of one package, oldest first."""
        found: tuple[Mapping[str, Any], ...] = self._once(
            ("package", name),
            lambda: tuple(
                sorted(
                    (r for r in self.raw("packages")["packages"] if r["name"] == name), key=lambda r: key(r["version"])
                )
            ),
        )
        return found

    def wheel_range(self, name: str, python: str) -> Range:
        """The versions of numpy or scipy that have a wheel for an interpreter (ANY when not known).

        An interpreter newer than the table needs at least what the newest one in it needs.
        """

        def make() -> Range:
            rows = {row["python"]: row for row in self.raw("rules")["wheels"] if row["name"] == name}
            newest = max(rows, key=key, default=python)
            row = rows.get(python) or (rows.get(newest) if key(python) > key(newest) else None)
            if row is None:
                return ANY
            return parse_range(f">={row['first']}" + (f",<={row['last']}" if "last" in row else ""))

        found: Range = self._once(("wheels", name, python), make)
        return found

    def cudnn_for(self, framework: str, version: str, cuda: str) -> str | None:
        """The cuDNN that a build was made with (at least this, same major)."""
        build = self.build(framework, version, cuda)
        return build.cudnn if build else None

    def python_row(self, python: str) -> Mapping[str, Any] | None:
        """``{python, ends}`` of an interpreter."""
        rows = self._once("pythons", lambda: {row["python"]: row for row in self.raw("rules")["pythons"]})
        found: Mapping[str, Any] | None = rows.get(python)
        return found

    # -- base images --------------------------------------------------------------------------------------
    def system_glibc(self, system: str) -> str | None:
        """``ubuntu22.04`` -> ``2.35``."""
        rows = self._once(
            "systems",
            lambda: {
                r["system"]: r["glibc"] for r in [*self.raw("bases")["systems"], *self.raw("rules")["more_systems"]]
            },
        )
        found: str | None = rows.get(system)
        return found

    def base_image(self, image: str) -> Base:
        """What is known of an image reference (``python:3.11-slim-bookworm``, ``nvidia/cuda:…``, ``ubuntu:22.04``)."""
        from envforge.bases import describe

        found: Base = self._once(("base", image), lambda: describe(self, image))
        return found

    def python_image(self, python: str) -> Base:
        """The base for wheels that bring their own CUDA: the official slim image.

        On Debian bookworm, but on trixie for the Pythons that trixie itself ships or that came after it.
        """
        system = "trixie" if key(python) >= key("3.13") else "bookworm" if key(python) >= key("3.8") else "bullseye"
        return self.base_image(f"python:{python}-slim-{system}")

    def cuda_image(
        self, cuda: str, kind: str = "runtime", cudnn_major: str | None = None, cudnn_least: str | None = None
    ) -> Base | None:
        """The nvidia/cuda image for a CUDA series with the wanted cuDNN major and at least that cuDNN.

        When the series has none, a later series of the same CUDA major serves: its libraries are compatible.
        """
        from envforge.bases import choose_cuda

        wanted = series(cuda)

        def make() -> Base | None:
            same = [c for c in self.cuda_series() if major(c) == major(wanted) and key(c) >= key(wanted)]
            for candidate in same:
                found = choose_cuda(self, candidate, kind, cudnn_major)
                enough = found and (
                    cudnn_least is None
                    or not found.cudnn
                    or "." not in found.cudnn
                    or key(found.cudnn) >= key(cudnn_least)
                )
                if found and enough:
                    return found
            return None

        found: Base | None = self._once(("cuda-image", wanted, kind, cudnn_major, cudnn_least), lambda: make() or False)
        return found or None


@lru_cache(maxsize=1)
def load() -> Tables:
    """The shipped tables."""
    return Tables(_read)
