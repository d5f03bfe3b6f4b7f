"""Makes the shipped conda locks out of package sets that others published; nothing is solved or downloaded here.

python tools/transcribe_conda_locks.py --facts FILE     first: write lockfiles/NAME/source.yaml from the facts
python tools/transcribe_conda_locks.py --write          source.yaml -> lock
python tools/transcribe_conda_locks.py                  check: closed set, and the lock is what source.yaml gives
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from envforge import compat, lock, spec
from envforge.lock import Lock, LockedBase, LockedConda
from envforge.lockers import conda
from envforge.resolve import Resolution, resolve

ROOT = Path(__file__).resolve().parent.parent / "lockfiles"
# Catalogue entry -> the published environment its lock is taken from.
ENTRIES = {"torch-conda-cu118": "yi-pytorch-channel-cu118", "torch-conda-cu129": "gpu-test-conda-forge-cu129"}
# Fewer rows than this: the source has been cut short.
FLOORS = {"torch-conda-cu118": 180, "torch-conda-cu129": 110}


def write_source(name: str, facts: dict[str, Any]) -> Path:
    """Keep the published rows beside the lock, with where they come from."""
    (found,) = [one for one in facts["environments"] if one["id"] == ENTRIES[name]]
    head = {key: found[key] for key in ("source", "environment", "date", "licence", "platform", "channels", "note")}
    head["about"] = "facts read from the published lock; nothing was downloaded or rebuilt here"
    lines = [yaml.safe_dump(head, sort_keys=False, width=110, allow_unicode=True).rstrip(), "packages:"]
    for one in found["packages"]:
        text = yaml.safe_dump(one, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
        lines.append(f"- {text.strip()}")
    path = ROOT / name / "source.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def packages(source: dict[str, Any]) -> tuple[LockedConda, ...]:
    """The rows as locked packages, sorted. Raises ``ValueError`` for a row that cannot be right."""
    found = []
    for one in source["packages"]:
        if not re.fullmatch(r"[0-9a-f]{64}", one["sha256"]):
            raise ValueError(f"{one['name']}: {one['sha256']!r} is not a sha256")
        stem = re.sub(r"(\.conda|\.tar\.bz2)$", "", one["file"])
        if stem != f"{one['name']}-{one['version']}-{one['build']}":
            raise ValueError(f"{one['name']}: the file {one['file']} is of another version or build")
        found.append(
            LockedConda(
                name=one["name"],
                version=str(one["version"]),
                build=str(one["build"]),
                channel=one["channel"],
                subdir=one["subdir"],
                filename=one["file"],
                sha256=one["sha256"],
                size=one.get("size"),
            )
        )
    return tuple(sorted(found, key=lambda one: (one.subdir, one.name, one.filename)))


def unmet(source: dict[str, Any], resolution: Resolution) -> list[str]:
    """Dependencies of the set that no package of the set (or virtual package of the spec) meets, in words."""
    import rattler

    have: dict[str, list[Any]] = {}
    for one in source["packages"]:
        record = rattler.PackageRecord(
            name=one["name"],
            version=str(one["version"]),
            build=rattler.BuildString(str(one["build"])),
            build_number=0,
            subdir=one["subdir"],
        )
        have.setdefault(one["name"], []).append(record)
    subdir = conda.SUBDIRS[resolution.platform]
    for name, version in conda.virtual_packages(resolution, subdir).items():
        build = rattler.BuildString(conda.ARCHSPEC[subdir] if name == "__archspec" else "0")
        record = rattler.PackageRecord(name=name, version=version, build=build, build_number=0, subdir=subdir)
        have[name] = [record]
    lines = []
    for one in source["packages"]:
        for text in one.get("depends") or ():
            match = rattler.MatchSpec(text)
            name = text.split()[0].split("[")[0]
            if not any(match.matches(record) for record in have.get(name, [])):
                lines.append(f"{one['name']} {one['version']} needs {text}, the set does not have it")
    return lines


def make(name: str) -> tuple[Lock, list[str]]:
    """The lock of an entry out of its source.yaml, and what is wrong with the set."""
    source = yaml.safe_load((ROOT / name / "source.yaml").read_text(encoding="utf-8"))
    resolution = resolve(spec.load(name), compat.load())
    problems = unmet(source, resolution)
    if len(source["packages"]) < FLOORS[name]:
        problems.append(f"only {len(source['packages'])} packages, at least {FLOORS[name]} expected")
    found = Lock(
        name=name,
        resolution_digest="",
        inputs_digest="",
        python=resolution.python,
        platform=resolution.platform,
        base=LockedBase(
            image=resolution.base.image,
            digest=resolution.base.digest,
            reason="" if resolution.base.digest else "not looked up when the lock was transcribed",
        ),
        pip=(),
        conda=packages(source),
        conda_settings=conda.settings(resolution),
        tools={"py-rattler": conda.INSTALLER_VERSION},
        notes=(
            f"transcribed from {source['source']} (environment {source['environment']}, {source['date']})",
            "not rebuilt here: no file of this lock was downloaded",
        ),
    )
    return lock.seal(found, resolution), problems


def main() -> int:
    """0: everything is as it should be; 1: the set is not closed or the lock differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--facts", type=Path, help="file with the published sets; writes source.yaml")
    parser.add_argument("--write", action="store_true", help="write the locks")
    args = parser.parse_args()
    facts = yaml.safe_load(args.facts.read_text(encoding="utf-8")) if args.facts else None
    bad = 0
    for name in ENTRIES if facts is not None else ():
        print(f"{name}: {write_source(name, facts or {})}")
    for name in ENTRIES:
        made, problems = make(name)
        for line in problems:
            print(f"{name}: {line}", file=sys.stderr)
        bad += len(problems)
        if args.write and not problems:
            print(f"{name}: {lock.write(name, made, root=ROOT)}")
        elif not problems and lock.dumps(made) != {
            key: (ROOT / name / key).read_bytes() for key in lock.dumps(made) if (ROOT / name / key).exists()
        }:
            print(f"{name}: the lock is not what source.yaml gives; run with --write", file=sys.stderr)
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
