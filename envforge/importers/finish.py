"""From a filled draft to the spec: which CUDA, which accelerator, what a spec cannot hold. Pure."""

from __future__ import annotations

import re
from typing import Any, Literal, cast

from envforge import spec as specs
from envforge.importers.records import Draft, Imported, fits
from envforge.spec_text import dumps
from envforge.versions import key, series, split_local

_SOURCES = ("wheels", "index", "conda-build", "conda", "base", "extra", "inferred")


def finish(draft: Draft, form: str) -> Imported:
    """The spec of the draft. Raises SpecError when even the parts that were kept do not make one."""
    python = draft.python or _python(draft)
    cuda = _cuda(draft, python)
    frameworks = {name: _framework(draft, name, row, cuda) for name, row in draft.frameworks.items()}
    own = {label: specs.IndexSpec(**row) for label, row in draft.indexes.items()}
    base = draft.base if fits(specs.IMAGE, draft.base) else "auto"
    empty = not (frameworks or draft.pip or draft.conda)
    if (draft.channels and draft.channels[0] == "defaults") or "defaults" in draft.channels:
        draft.note(
            "info",
            "defaults-channel",
            "the channel `defaults` has licence terms for larger organisations",
            "conda-forge has most of the same packages",
        )
    if len(draft.channels) > 1:
        draft.note(
            "info",
            "channel-priority",
            "what is installed depends on the order of the channels and on the "
            "priority mode: the order is kept, the lock records the mode",
        )
    found = specs.EnvSpec(
        name=name_of(draft.name),
        description=f"imported from {draft.place.rsplit('/', 1)[-1]}"[:300],
        kind="base" if empty else "environment",
        python=python,
        platform=cast('Literal["linux/amd64", "linux/arm64"]', draft.platform),
        base=specs.BaseSpec(image=base),
        cuda=None if empty and cuda is None else cuda,
        frameworks=cast(Any, frameworks),
        packages=specs.PackagesSpec(pip=tuple(draft.pip), apt=tuple(draft.apt), conda=tuple(draft.conda)),
        channels=tuple(draft.channels) or ("conda-forge",),
        indexes=own,
        env=draft.env,
        user=draft.user or specs.UserSpec(),
        workdir=draft.workdir if fits(specs.ABSOLUTE, draft.workdir) else "/work",
        files=tuple(draft.files),
        targets=specs.TargetsSpec(gpus=tuple(draft.gpus)),
    )
    specs.loads(dumps(found), source=draft.place)
    return Imported(format=form, spec=found, lines=tuple(draft.lines), notes=tuple(draft.notes), why=dict(draft.why))


def name_of(text: str) -> str:
    """A spec name out of a file or folder name."""
    found = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-")
    return found or "imported"


def _python(draft: Draft) -> str:
    """3.11, or the newest older (else oldest newer) Python that the frameworks have wheels for."""
    sets = []
    for name, row in draft.frameworks.items():
        release = draft.tables.release(name, split_local(row["version"])[0]) if row["version"] else None
        if release is not None and release.python:
            sets.append(set(release.python))
    common = set.intersection(*sets) if sets else {"3.11"}
    if not common or "3.11" in common:
        chosen = "3.11"
    else:
        older = [text for text in common if key(text) < key("3.11")]
        chosen = max(older, key=key) if older else min(common, key=key)
    draft.why["python"] = "the file does not say; one that the frameworks have wheels for"
    return chosen


def _full(draft: Draft, version: str) -> str | None:
    """12 -> the CUDA 12 build of the framework that asks; 12.4 stays."""
    if "." in version:
        return version
    for name, row in draft.frameworks.items():
        public = split_local(row["version"])[0] if row["version"] else draft.tables.newest(name).version
        build = draft.tables.build(name, public, version)
        if build is not None and row["accelerator"] != "cpu":
            return build.cuda
    same = [text for text in draft.tables.cuda_series() if text.split(".")[0] == version]
    return max(same, key=key) if same else None


def _cuda(draft: Draft, python: str) -> specs.CudaSpec | None:
    gpu = {name: row for name, row in draft.frameworks.items() if row["accelerator"] != "cpu"}
    ordered = sorted(draft.claims, key=lambda claim: _SOURCES.index(claim[2]))
    usable = [c for c in ordered if c[2] != "index" or "torch" in gpu or not draft.frameworks]
    _two(draft, usable)
    if draft.frameworks and not gpu:
        return None
    for version, who, source in usable:
        full = _full(draft, version)
        if full and fits(specs.CUDA, full):
            draft.why["cuda.version"] = f"from {who}"
            place: specs.CudaSource = "conda" if source.startswith("conda") else "wheels"
            if source in ("base", "inferred"):
                place = "base"
            elif any(c[2] == "base" for c in usable) and series(full) == series(
                next(c[0] for c in usable if c[2] == "base")
            ):
                place = "base" if not source.startswith("conda") else "conda"
            short = full if place == "base" else series(full)
            return specs.CudaSpec(version=short, source=place, cudnn=draft.cudnn if place == "base" else None)
    for name, row in gpu.items():
        if row.get("conda") or (row["accelerator"] is None and name == "jax"):
            continue
        version = split_local(row["version"])[0] if row["version"] else _newest(draft, name, python)
        usual = draft.tables.default_index_cuda(name, version, draft.platform)
        if (
            usual
            and usual != "cpu"
            and (name != "tensorflow" or row["accelerator"] == "cuda" or "and-cuda" in row["extras"])
        ):
            draft.why["cuda.version"] = f"{row['from']} without a label: its build on the default index"
            draft.note(
                "warning",
                "default-index-cuda",
                f"{row['from']} names no CUDA: the default index gives the build for CUDA {usual}",
                "write a label, as in torch==2.6.0+cu118, or cuda.version, if another is meant",
            )
            return specs.CudaSpec(version=usual)
    return None


def _newest(draft: Draft, name: str, python: str) -> str:
    found = draft.tables.newest_for(name, python)
    return (found or draft.tables.newest(name)).version


def _two(draft: Draft, claims: list[tuple[str, str, str]]) -> None:
    """Several places say which CUDA it is: they disagree, or two of them bring libraries."""
    seen: dict[str, str] = {}
    for version, who, _ in claims:
        seen.setdefault(series(version), who)
    for one in list(seen):
        for other in list(seen):
            if one < other and "." in one and "." in other:
                draft.note(
                    "warning",
                    "two-cuda-versions",
                    f"{seen[one]} asks for CUDA {one}, {seen[other]} for CUDA {other}",
                    "one CUDA per environment",
                )
    kinds = {"conda" if c[2].startswith("conda") else c[2] for c in claims}
    kinds = {"wheels" if kind in ("index", "extra") else kind for kind in kinds}
    if len(kinds & {"base", "conda", "wheels"}) > 1:
        draft.note(
            "warning",
            "two-cuda-providers",
            f"CUDA libraries come from two places: {' and '.join(sorted(kinds))}",
            "keep one of them",
        )


def _framework(draft: Draft, name: str, row: dict[str, Any], cuda: specs.CudaSpec | None) -> specs.FrameworkSpec:
    accelerator = row["accelerator"]
    if accelerator == "cuda" and cuda is None:
        accelerator = None
    version = row["version"]
    label = split_local(version)[1] if version else None
    index = None
    if name == "torch":
        wanted = f"pytorch-{label}" if label else None
        if wanted in draft.indexes:
            index = wanted
        elif label is None:
            index = next((text for text in draft.indexes if re.fullmatch(r"pytorch-(?:cu\d+|cpu)", text)), None)
            if index == "pytorch-cpu" and accelerator is None:
                accelerator = "cpu"
    several = len(draft.frameworks) > 1 and cuda is not None
    if several and accelerator is None and name == "tensorflow" and not row.get("conda"):
        draft.note(
            "warning",
            "accelerator-question",
            f"{row['from']} beside a framework on CUDA {cuda.version if cuda else ''}: GPU or CPU, and one cuDNN "
            "for both?",
            "set frameworks.tensorflow.accelerator; cpu is taken now",
        )
        accelerator = "cpu"
    return specs.FrameworkSpec(version=version, index=index, extras=row["extras"], accelerator=accelerator or "auto")
