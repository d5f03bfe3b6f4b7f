"""Licences against a policy, and what licences do not show: missing libraries, wrong C++ ABI, bundled vendor BLAS."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from envforge.engine import Engine, ImageInfo, RunRequest
from envforge.errors import EngineError, SpecError
from envforge.inventory import Inventory, decode, interpreter_of, normalise

POLICY_SCHEMA = 1
Severity = Literal["error", "warning", "note"]
# Libraries that packages use only when they are there; asking for them does not break anything else.
OPTIONAL: Mapping[str, str] = {
    "libibverbs.so.1": "RDMA, used by GPUDirect Storage and NCCL plugins only where the host has it",
    "librdmacm.so.1": "RDMA, used by GPUDirect Storage only where the host has it",
    "libmlx5.so.1": "Mellanox network cards, opened only where the host has them",
    "libmpi.so.40": "MPI backends of wheels, unused without an MPI launcher",
    "libmpi.so.12": "MPI backends of wheels, unused without an MPI launcher",
    "libhpu.so": "another maker's accelerator",
}
_CLASSIFIER_IDS = {
    "MIT License": "MIT",
    "BSD License": "BSD",
    "Apache Software License": "Apache-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "ISC License (ISCL)": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "GNU General Public License v3 (GPLv3)": "GPL-3.0",
    "GNU General Public License v2 (GPLv2)": "GPL-2.0",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0",
    "GNU Affero General Public License v3": "AGPL-3.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "zlib/libpng License": "Zlib",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """``kind``: missing-library, symbol-version, undefined-symbol, cxx-abi, foreign-machine, broken-object,
    vendor-blas, license-denied, license-unlisted, license-unknown."""

    kind: str
    severity: Severity
    path: str
    package: str
    detail: str

    def document(self) -> dict[str, str]:
        """The value shown in JSON."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "path": self.path,
            "package": self.package,
            "detail": self.detail,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Patterns of licence names (``*`` allowed, case ignored). An empty ``allow`` allows all that is not denied.

    ``unknown``: what a package without a licence is; ``exceptions``: package -> reason it may stay;
    ``vendor_blas``: what a commercial BLAS is.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    unknown: Severity = "warning"
    vendor_blas: Severity = "warning"
    exceptions: Mapping[str, str] = field(default_factory=dict)


def read_policy(path: Path) -> Policy:
    """A policy file. Raises SpecError with every problem."""
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as problem:
        raise SpecError("policy-unreadable", f"{path}: {problem}", hint="see docs: audit policy") from problem
    problems = []
    known = {"schema", "allow", "deny", "unknown", "vendor_blas", "exceptions"}
    if not isinstance(data, dict) or data.get("schema") != POLICY_SCHEMA:
        problems.append(f"schema: {POLICY_SCHEMA} is required")
        data = data if isinstance(data, dict) else {}
    problems += [f"{key}: unknown key" for key in sorted(set(map(str, data)) - known)]
    for key in ("allow", "deny"):
        value = data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            problems.append(f"{key}: a list of licence names is expected")
    for key in ("unknown", "vendor_blas"):
        if data.get(key, "warning") not in ("error", "warning", "note"):
            problems.append(f"{key}: error, warning or note is expected")
    exceptions = data.get("exceptions", {})
    if not isinstance(exceptions, dict) or not all(isinstance(one, str) and one for one in exceptions.values()):
        problems.append("exceptions: package -> reason is expected")
    if problems:
        raise SpecError("policy-invalid", f"{path}: {len(problems)} problems in this policy", context=tuple(problems))
    return Policy(
        allow=tuple(data.get("allow", [])),
        deny=tuple(data.get("deny", [])),
        unknown=data.get("unknown", "warning"),
        vendor_blas=data.get("vendor_blas", "warning"),
        exceptions={normalise(str(name)): reason for name, reason in exceptions.items()},
    )


def licenses(found: Inventory) -> dict[str, tuple[str, ...]]:
    """ "pip:NAME" or "conda:NAME" -> licence names; empty when the package states none."""
    result: dict[str, tuple[str, ...]] = {}
    for conda in found.conda:
        result[f"conda:{conda.name}"] = tuple(_split(conda.license))
    for package in found.pip:
        if package.license_expression:
            names = _split(package.license_expression)
        else:
            short = [one.rsplit(" :: ", 1)[-1] for one in package.classifiers]
            names = [_CLASSIFIER_IDS.get(one, one) for one in short if one not in ("OSI Approved", "License")]
            text = package.license.strip()
            # Some put the whole text into the field: its first words tell which one it is.
            if not names and text and text.upper() != "UNKNOWN":
                names = _split(text) if len(text) < 60 else [text[:60]]
        result[f"pip:{normalise(package.name)}"] = tuple(dict.fromkeys(names))
    return result


def _split(expression: str) -> list[str]:
    """The licence names of an SPDX expression."""
    parts = re.split(r"\s+(?:AND|OR|WITH|and|or)\s+|[()]", expression)
    return [one.strip() for one in parts if one.strip()]


def _matches(name: str, patterns: Iterable[str]) -> str | None:
    from fnmatch import fnmatch

    return next((one for one in patterns if fnmatch(name.lower(), one.lower())), None)


def judge_licenses(found: Mapping[str, tuple[str, ...]], policy: Policy) -> list[Finding]:
    """One finding per package and problem; pure."""
    findings = []
    for package, names in sorted(found.items()):
        if normalise(package.split(":", 1)[1]) in policy.exceptions:
            continue
        if not names:
            detail = "states no licence"
            findings.append(
                Finding(kind="license-unknown", severity=policy.unknown, path="", package=package, detail=detail)
            )
        for name in names:
            denied = _matches(name, policy.deny)
            if denied:
                detail = f"{name} is denied by {denied!r}"
                findings.append(
                    Finding(kind="license-denied", severity="error", path="", package=package, detail=detail)
                )
            elif policy.allow and not _matches(name, policy.allow):
                detail = f"{name} is not among the allowed licences"
                findings.append(
                    Finding(kind="license-unlisted", severity="error", path="", package=package, detail=detail)
                )
    return findings


def judge_objects(document: Mapping[str, Any], owners: Mapping[str, str], policy: Policy) -> list[Finding]:
    """The probe's facts as findings; pure."""
    findings: list[Finding] = []

    def add(kind: str, severity: Severity, path: str, detail: str) -> None:
        package = owners.get(path, "")
        findings.append(Finding(kind=kind, severity=severity, path=path, package=package, detail=detail))

    for path, name in document["missing"]:
        if name in OPTIONAL:
            add("missing-library", "note", path, f"{name} is not there: {OPTIONAL[name]}")
        else:
            add("missing-library", "error", path, f"needs {name}, which is nowhere in the environment or system")
    for path, name, target, versions in document["versions"]:
        detail = f"needs {', '.join(versions)} of {name}, {target} does not have it"
        add("symbol-version", "error", path, detail)
    for path, count, symbols in document["undefined"]:
        twins = [(symbol, twin) for symbol, twin in symbols if twin]
        if twins:
            detail = f"needs {twins[0][0]}; there is {twins[0][1]}: built for the other C++ ABI (std::string)"
            add("cxx-abi", "error", path, detail)
        else:
            more = f" and {count - 1} more" if count > 1 else ""
            add("undefined-symbol", "warning", path, f"nobody defines {symbols[0][0]}{more}")
    for path, machine, expected in document["machine"]:
        add("foreign-machine", "note", path, f"ELF machine {machine}, the interpreter's is {expected}")
    for path, problem in document["broken"]:
        add("broken-object", "warning", path, problem)
    for path, evidence in document["blas"]:
        add("vendor-blas", policy.vendor_blas, path, f"a vendor's BLAS under its own licence: {evidence}")
    return findings


def probe_program() -> str:
    """The program that runs inside: reader, probe and analysis as one text."""
    folder = Path(__file__).parent
    texts = {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in ("elf", "probe", "audit_probe")}
    return (
        "import json, sys, types\n"
        f"for name, text in {list(texts.items())!r}:\n"
        "    module = types.ModuleType('envforge_' + name)\n"
        "    sys.modules[module.__name__] = module\n"
        "    exec(compile(text, name, 'exec'), module.__dict__)\n"
        "module.main(json.loads(sys.argv[1]))\n"
    )


def objects_of_image(engine: Engine, info: ImageInfo, *, symbols: bool = True, timeout: float = 900) -> dict[str, Any]:
    """The facts about every shared object of an image or prefix. Raises EngineError when it gives no answer."""
    docker = engine.name == "docker"
    interpreter = interpreter_of(info) if docker else "python"
    argv = (interpreter, "-I", "-S", "-c", probe_program(), json.dumps({"symbols": symbols}))
    result = engine.run(info.image, RunRequest(argv=argv, user="0" if docker else None, timeout=timeout))
    return _decoded(info.image, result.code, result.stdout, result.stderr)


def objects_of_interpreter(python: Path, *, symbols: bool = True, timeout: float = 900) -> dict[str, Any]:
    """The same for an interpreter of this machine."""
    from envforge import process

    argv = (python, "-I", "-S", "-c", probe_program(), json.dumps({"symbols": symbols}))
    outcome = process.run(argv, timeout=timeout)
    return _decoded(str(python), outcome.code, outcome.stdout, outcome.stderr)


def _decoded(what: str, code: int, out: str, err: str) -> dict[str, Any]:
    try:
        return decode(out)
    except ValueError as problem:
        tail = tuple(err.splitlines()[-15:])
        raise EngineError(
            "audit-impossible", f"{what}: its interpreter gave no answer (exit code {code})", context=tail
        ) from problem
