"""Installs an explicit conda lock into a prefix, every file checked against its sha256.

Runs in two places: inside the builder stage of an image, where the text of this file and py-rattler are all
there is (so nothing of envforge is imported), and in this process for a private prefix. Nothing is solved.

    python conda_install.py LOCK PREFIX [--host URL] [--cache FOLDER] [--folder VENDORED] [--target PREFIX]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

HOST = "https://conda.anaconda.org"
_LINE = re.compile(r"(\S+)/([^/\s]+)/([^/\s#]+)#sha256:([0-9a-f]{64})")


def parse(text: str) -> list[dict[str, str]]:
    """Packages of an explicit file: name, version, build, channel, subdir, filename, sha256.

    Raises ``ValueError`` with the line number for anything that is not such a line.
    """
    found: list[dict[str, str]] = []
    facts: list[str] = []
    seen = False
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if line == "@EXPLICIT":
            seen = True
        elif line.startswith("# "):
            facts = line[2:].split(" ")
        elif line and not line.startswith("#"):
            match = _LINE.fullmatch(line)
            if not match or not seen:
                raise ValueError(f"line {number} is not an explicit package: {line}")
            if len(facts) != 4:
                facts = [*_from_filename(match[3]), "-"]
            found.append(
                {
                    "name": facts[0],
                    "version": facts[1],
                    "build": facts[2],
                    "channel": match[1],
                    "subdir": match[2],
                    "filename": match[3],
                    "sha256": match[4],
                }
            )
            facts = []
    return found


def _from_filename(filename: str) -> list[str]:
    stem = re.sub(r"(\.tar\.bz2|\.conda)$", "", filename)
    parts = stem.rsplit("-", 2)
    if len(parts) != 3:
        raise ValueError(f"{filename} is not a conda file name")
    return parts


def address(package: dict[str, str], host: str | None, folder: str | None) -> str:
    """Where to take a package from: the vendored folder, another host for channels of the usual one, or its own URL."""
    if folder:
        return (Path(folder).resolve() / "conda" / package["subdir"] / package["filename"]).as_uri()
    channel = package["channel"]
    if host and channel.startswith(HOST + "/"):
        channel = host.rstrip("/") + channel[len(HOST) :]
    return f"{channel}/{package['subdir']}/{package['filename']}"


def records(packages: list[dict[str, str]], host: str | None, folder: str | None) -> list[Any]:
    """The packages as rattler knows them."""
    import rattler

    found = []
    for one in packages:
        record = rattler.PackageRecord(
            name=one["name"],
            version=one["version"],
            build=rattler.BuildString(one["build"]),
            build_number=0,
            subdir=one["subdir"],
            sha256=bytes.fromhex(one["sha256"]),
        )
        url = address(one, host, folder)
        found.append(rattler.RepoDataRecord(record, one["filename"], url, one["channel"]))
    return found


def _remember(prefix: Path, packages: list[dict[str, str]]) -> None:
    """Put the locked channel into conda-meta, so that the prefix is the same from a mirror or a folder."""
    known = {(one["name"], one["version"], one["build"]): one for one in packages}
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        path.chmod(0o644)  # any user of the image may read what is installed
        one = known.get((data.get("name"), data.get("version"), data.get("build")))
        if one is None:
            continue
        data["channel"] = one["channel"]
        data["url"] = f"{one['channel']}/{one['subdir']}/{one['filename']}"
        for key in ("extracted_package_dir", "package_tarball_full_path", "link"):
            data.pop(key, None)
        path.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def install(
    text: str,
    prefix: Path,
    *,
    platform: str | None = None,
    host: str | None = None,
    cache: Path | None = None,
    folder: str | None = None,
    target: str | None = None,
) -> int:
    """Fetch, check and link every package; returns how many. Post-link scripts are not run.

    ``target``: the path the prefix will have where it is used, when that is another one. Raises what rattler
    raises: a file whose sha256 differs is refused.
    """
    import rattler

    packages = parse(text)

    async def work() -> None:
        await rattler.install(
            records(packages, host, folder),
            target_prefix=str(prefix),
            cache_dir=cache,
            platform=rattler.Subdir(platform) if platform else None,
            execute_link_scripts=False,
            show_progress=False,
            alternative_target_prefix=target,
        )

    asyncio.run(work())
    _remember(prefix, packages)
    return len(packages)


def main() -> int:
    """The command line inside the builder stage; errors are one line on stderr."""
    parser = argparse.ArgumentParser()
    parser.add_argument("lock", type=Path)
    parser.add_argument("prefix", type=Path)
    parser.add_argument("--host", default=None)
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--platform", default=None)
    parser.add_argument("--target", default=None)
    args = parser.parse_args()
    try:
        count = install(
            args.lock.read_text(encoding="utf-8"),
            args.prefix,
            platform=args.platform,
            host=args.host or None,
            cache=args.cache,
            folder=args.folder or None,
            target=args.target,
        )
    except Exception as problem:
        text = re.sub(r"//[^/@\s]*@", "//", str(problem))
        print(f"conda packages: {text}", file=sys.stderr)
        return 1
    print(f"{count} conda packages in {args.prefix}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
