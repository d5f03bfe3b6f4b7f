"""The YAML tables as people keep them: reading, cross-row checks, and the compact form read at run time.

``compat`` reads only the compiled JSON; this module is used by tools, tests and the updaters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envforge.resources import data
from envforge.versions import key, major, parse_range, series

NAMES = (
    "cuda",
    "gpus",
    "torch",
    "tensorflow",
    "jax",
    "keras",
    "paddle",
    "mindspore",
    "mxnet",
    "packages",
    "bases",
    "rules",
)
FRAMEWORK_TABLES = ("torch", "tensorflow", "jax", "keras", "paddle", "mindspore", "mxnet")

Table = Mapping[str, list[dict[str, Any]]]


def read(name: str) -> Table:
    """One YAML table."""
    import yaml

    with data(f"{name}.yaml").open(encoding="utf-8") as stream:
        found = yaml.load(stream, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if not isinstance(found, dict):
        raise ValueError(f"{name}.yaml: not a table")
    return found


def read_all() -> dict[str, Table]:
    """Every YAML table."""
    return {name: read(name) for name in NAMES}


def compiled_path(name: str) -> Path:
    """Where the compact form of a table stands."""
    return data(f"compiled/{name}.json")


def compile_text(table: Table) -> str:
    """The compact form: the same rows without their sources."""
    kept = {
        section: [{k: v for k, v in row.items() if k not in ("source", "checked")} for row in rows]
        for section, rows in table.items()
    }
    return json.dumps(kept, separators=(",", ":"), ensure_ascii=False) + "\n"


def problems(found: Mapping[str, Table]) -> list[str]:
    """Every fault of a set of tables, in words; empty when they are sound."""
    out: list[str] = []
    for name, table in found.items():
        for section, rows in table.items():
            for number, row in enumerate(rows):
                place = f"{name}.yaml {section}[{number}]"
                if not row.get("source"):
                    out.append(f"{place}: no source")
                if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", str(row.get("checked", ""))):
                    out.append(f"{place}: 'checked' is not a date")
                out += [f"{place}: {text}" for text in _types(row)]
    checks = (_cuda, _gpus, _frameworks, _packages, _bases, _rules)
    for check in checks:
        try:
            out += check(found)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            out.append(f"{check.__name__.strip('_')}: cannot be checked: {type(error).__name__}: {error}")
    return out


def _types(row: Mapping[str, Any]) -> list[str]:
    """Numbers that should be quoted: 3.10 read as 3.1 is the classic."""
    return [
        f"{name!r} holds the bare number {value}; quote it"
        for name, value in row.items()
        if isinstance(value, float) or (isinstance(value, list) and any(isinstance(v, float) for v in value))
    ]


def _duplicates(place: str, keys: list[str]) -> list[str]:
    seen: set[str] = set()
    out = []
    for item in keys:
        if item in seen:
            out.append(f"{place}: {item} stands twice")
        seen.add(item)
    return out


def _cuda(found: Mapping[str, Table]) -> list[str]:
    table = found["cuda"]
    out = _duplicates("cuda.yaml toolkits", [row["release"] for row in table["toolkits"]])
    out += _duplicates("cuda.yaml drivers", [row["branch"] for row in table["drivers"]])
    last: dict[str, Any] = {}
    for row in table["toolkits"]:
        place = f"cuda.yaml toolkit {row['release']}"
        if series(row["release"]) != row["series"]:
            out.append(f"{place}: series {row['series']} does not belong to it")
        if row.get("preview"):
            continue
        # Within a major the drivers of later toolkits never fall, and the family floor never moves.
        family = major(row["series"])
        driver, floor = key(row["driver"]), key(row["floor"])
        if family != "10" and driver < key(major(row["floor"])):
            out.append(f"{place}: its driver {row['driver']} is below its family floor {row['floor']}")
        if family in last:
            before = last[family]
            if driver[0][0] < before["driver"][0][0]:
                out.append(f"{place}: driver {row['driver']} falls below that of the release before it")
            if family != "10" and floor != before["floor"]:
                out.append(f"{place}: family floor {row['floor']} differs from the other {family}.x rows")
        last[family] = {"driver": driver, "floor": floor}
        if key(row["sm_min"]) > key(row["sm_max"]):
            out.append(f"{place}: sm_min is above sm_max")
    return out


def _gpus(found: Mapping[str, Table]) -> list[str]:
    rows = found["gpus"]["gpus"]
    out = _duplicates("gpus.yaml", [row["name"].lower() for row in rows])
    known = {c for row in found["cuda"]["architectures"] for c in row["capabilities"]}
    for row in rows:
        if not re.fullmatch(r"\d+\.\d", row["capability"]):
            out.append(f"gpus.yaml {row['name']}: capability {row['capability']!r}")
        elif row["capability"].split(".")[0] not in {c.split(".")[0] for c in known} | {"11"}:
            out.append(f"gpus.yaml {row['name']}: no architecture has capability {row['capability']}")
    return out


def _frameworks(found: Mapping[str, Table]) -> list[str]:
    out: list[str] = []
    toolkits = {row["series"] for row in [*found["cuda"]["toolkits"], *found["rules"].get("more_toolkits", [])]}
    for name in FRAMEWORK_TABLES:
        rows = found[name]["releases"]
        out += _duplicates(f"{name}.yaml", [row["version"] for row in rows])
        keys = [key(row["version"]) for row in rows]
        if keys != sorted(keys):
            out.append(f"{name}.yaml: releases are not in order")
        for row in rows:
            out += _release(name, row, toolkits)
    return out


def _release(name: str, row: Mapping[str, Any], toolkits: set[str]) -> list[str]:
    place = f"{name}.yaml {row['version']}"
    out = []
    if not row.get("python") or any(not re.fullmatch(r"3\.\d+", text) for text in row["python"]):
        out.append(f"{place}: 'python' must list interpreters like \"3.11\"")
    for build in row.get("builds", []):
        if build["cuda"] not in toolkits:
            out.append(f"{place}: CUDA {build['cuda']} has no toolkit row")
        for capability in [*build.get("kernels", []), *build.get("ptx", [])]:
            key(capability)
        if build.get("accepts"):
            parse_range(build["accepts"])
        for name in ("cudnn", "sm_min", "driver", "glibc"):
            if name in build:
                key(build[name])
    out += _duplicates(place, [f"CUDA {build['cuda']}" for build in row.get("builds", [])])
    for value in row.get("default", {}).values():
        if value != "cpu" and not any(build["cuda"] == value for build in row.get("builds", [])):
            out.append(f"{place}: default CUDA {value} is not among its builds")
    for bound in ("numpy", "protobuf", "scipy", "keras", "h5py", "ml_dtypes", "setuptools"):
        for text in row.get(bound, []):
            parse_range(text.split(";")[0])
    return out


def _packages(found: Mapping[str, Table]) -> list[str]:
    rows = found["packages"]["packages"]
    out = _duplicates("packages.yaml", [f"{row['name']} {row['version']}" for row in rows])
    for row in rows:
        for texts in row.get("needs", {}).values():
            for text in texts:
                parse_range(text.split(";")[0])
    return out


def _bases(found: Mapping[str, Table]) -> list[str]:
    table = found["bases"]
    out = _duplicates("bases.yaml cuda_images", [row["cuda"] for row in table["cuda_images"]])
    systems = {row["system"] for row in [*table["systems"], *found["rules"]["more_systems"]]}
    for row in table["digests"]:
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", row["digest"]):
            out.append(f"bases.yaml digest of {row['image']}: not a sha256 digest")
    out += _duplicates("bases.yaml digests", [row["image"] for row in table["digests"]])
    for row in table["cuda_images"]:
        for system in row.get("distros", []):
            if system not in systems and system not in ("cm2", "azl3"):
                out.append(f"bases.yaml {row['cuda']}: system {system} has no glibc row")
    return out


def _rules(found: Mapping[str, Table]) -> list[str]:
    rules = found["rules"]
    out = _duplicates("rules.yaml pythons", [row["python"] for row in rules["pythons"]])
    for row in rules["undeclared"]:
        parse_range(row["versions"])
        if row["framework"] not in FRAMEWORK_TABLES:
            out.append(f"rules.yaml undeclared: unknown framework {row['framework']}")
        if row["kind"] not in ("requirement", "constraint", "conda-constraint", "apt"):
            out.append(f"rules.yaml undeclared: kind {row['kind']}")
    for row in rules["wheels"]:
        if "last" in row and key(row["first"]) > key(row["last"]):
            out.append(f"rules.yaml wheels: {row['name']} on Python {row['python']}: first is above last")
    return out
