"""Software bills of materials as SPDX 2.3 and CycloneDX 1.5 JSON, from what is installed and the lock. Pure.

The same input gives the same bytes: identifiers are derived from the identity, times are handed in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from envforge.inventory import Inventory, normalise
from envforge.lock import Lock

Format = Literal["spdx-json", "cyclonedx-json"]
FORMATS: tuple[Format, ...] = ("spdx-json", "cyclonedx-json")
_SPDX_ID = re.compile(r"[^A-Za-z0-9.-]+")
# Licence names that are SPDX identifiers as they stand; others are carried as text.
_SPDX_NAME = re.compile(r"(?:LicenseRef-)?[A-Za-z0-9][A-Za-z0-9.+-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """A package of the bill. ``kind``: pip, conda or apt; ``sha256`` of the file it was installed from when known."""

    kind: str
    name: str
    version: str
    purl: str
    licenses: tuple[str, ...] = ()
    sha256: str = ""
    requires: tuple[str, ...] = ()


def components(found: Inventory | None, lock: Lock | None, licenses: Mapping[str, tuple[str, ...]]) -> list[Component]:
    """What is installed (or, without an inventory, locked), sorted; hashes come from the lock."""
    hashes = {
        (normalise(one.name), one.version): one.hashes[0].removeprefix("sha256:")
        for one in (lock.pip if lock else ())
        if len(one.hashes) == 1
    }
    result: list[Component] = []
    if found is None:
        for one in lock.pip if lock else ():
            name = normalise(one.name)
            result.append(_pip(name, one.version, (), hashes.get((name, one.version), ""), ()))
        for item in lock.conda if lock else ():
            result.append(_conda(item.name, item.version, item.build, item.channel, item.subdir, item.sha256, ()))
        for package, version in lock.apt if lock else ():
            result.append(_apt(package, version))
    else:
        for package_ in found.pip:
            name = normalise(package_.name)
            needs = tuple(sorted({normalise(re.split(r"[^A-Za-z0-9._-]", one)[0]) for one in package_.requires}))
            sha256 = hashes.get((name, package_.version), "")
            result.append(_pip(name, package_.version, licenses.get(f"pip:{name}", ()), sha256, needs))
        for installed in found.conda:
            names = licenses.get(f"conda:{installed.name}", ())
            channel = installed.channel.rstrip("/").rsplit("/", 1)[-1]
            result.append(
                _conda(
                    installed.name,
                    installed.version,
                    installed.build,
                    channel,
                    installed.subdir,
                    installed.sha256,
                    names,
                )
            )
        result += [_apt(name, version) for name, version in found.apt]
    return sorted(set(result), key=lambda one: (one.kind, one.name, one.version, one.purl))


def _pip(name: str, version: str, licenses: tuple[str, ...], sha256: str, requires: tuple[str, ...]) -> Component:
    return Component(
        kind="pip",
        name=name,
        version=version,
        purl=f"pkg:pypi/{name}@{quote(version, safe='')}",
        licenses=licenses,
        sha256=sha256,
        requires=requires,
    )


def _conda(
    name: str, version: str, build: str, channel: str, subdir: str, sha256: str, licenses: tuple[str, ...]
) -> Component:
    query = f"?build={quote(build)}&channel={quote(channel, safe='')}&subdir={subdir}"
    purl = f"pkg:conda/{quote(name)}@{quote(version)}{query}"
    return Component(kind="conda", name=name, version=version, purl=purl, licenses=licenses, sha256=sha256)


def _apt(name: str, version: str) -> Component:
    return Component(
        kind="apt", name=name, version=version, purl=f"pkg:deb/debian/{quote(name)}@{quote(version, safe='')}"
    )


def render(
    form: Format, name: str, identity: str, parts: Sequence[Component], *, created: str, tool: str
) -> dict[str, Any]:
    """The document. ``identity``: inputs digest or image id; ``created``: UTC time ``2026-11-01T00:00:00Z``."""
    maker = _spdx if form == "spdx-json" else _cyclonedx
    return maker(name, identity, parts, created, tool)


def _spdx_license(names: tuple[str, ...]) -> str:
    if names and all(_SPDX_NAME.fullmatch(one) for one in names):
        return " AND ".join(names)
    return "NOASSERTION"


def _spdx(name: str, identity: str, parts: Sequence[Component], created: str, tool: str) -> dict[str, Any]:
    packages: list[dict[str, Any]] = [
        {
            "SPDXID": "SPDXRef-environment",
            "name": name,
            "versionInfo": identity,
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "primaryPackagePurpose": "CONTAINER",
        }
    ]
    relations = [_relation("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-environment")]
    identifiers = {one.purl: _spdx_id(one) for one in parts}
    by_name = {(one.kind, one.name): identifiers[one.purl] for one in parts}
    for one in parts:
        row: dict[str, Any] = {
            "SPDXID": identifiers[one.purl],
            "name": one.name,
            "versionInfo": one.version,
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": _spdx_license(one.licenses),
            "externalRefs": [
                {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": one.purl}
            ],
        }
        if one.sha256:
            row["checksums"] = [{"algorithm": "SHA256", "checksumValue": one.sha256}]
        if one.licenses and row["licenseDeclared"] == "NOASSERTION":
            row["licenseComments"] = "; ".join(one.licenses)
        packages.append(row)
        relations.append(_relation("SPDXRef-environment", "CONTAINS", row["SPDXID"]))
        for need in one.requires:
            target = by_name.get((one.kind, need))
            if target and target != row["SPDXID"]:
                relations.append(_relation(row["SPDXID"], "DEPENDS_ON", target))
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://envforge.invalid/spdx/{quote(name, safe='')}/{quote(identity, safe='')}",
        "creationInfo": {"created": created, "creators": [f"Tool: {tool}"]},
        "packages": packages,
        "relationships": relations,
    }


def _spdx_id(one: Component) -> str:
    import hashlib

    # Names alone may collide once characters are replaced: a piece of the purl's digest keeps them apart.
    tail = hashlib.sha256(one.purl.encode()).hexdigest()[:8]
    return "SPDXRef-" + _SPDX_ID.sub("-", f"{one.kind}-{one.name}-{one.version}") + f"-{tail}"


def _relation(source: str, kind: str, target: str) -> dict[str, str]:
    return {"spdxElementId": source, "relationshipType": kind, "relatedSpdxElement": target}


def _cyclonedx(name: str, identity: str, parts: Sequence[Component], created: str, tool: str) -> dict[str, Any]:
    import uuid

    rows = []
    by_name = {(one.kind, one.name): one.purl for one in parts}
    dependencies = []
    for one in parts:
        row: dict[str, Any] = {
            "type": "library",
            "bom-ref": one.purl,
            "name": one.name,
            "version": one.version,
            "purl": one.purl,
        }
        if one.sha256:
            row["hashes"] = [{"alg": "SHA-256", "content": one.sha256}]
        if one.licenses:
            row["licenses"] = [{"license": {"name": text}} for text in one.licenses]
        rows.append(row)
        needs = sorted({by_name[(one.kind, need)] for need in one.requires if (one.kind, need) in by_name} - {one.purl})
        dependencies.append({"ref": one.purl, "dependsOn": needs})
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"envforge:{name}:{identity}:{len(parts)}")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": created,
            "tools": {
                "components": [
                    {"type": "application", "name": tool.rsplit("-", 1)[0], "version": tool.rsplit("-", 1)[-1]}
                ]
            },
            "component": {"type": "container", "bom-ref": "environment", "name": name, "version": identity},
        },
        "components": rows,
        "dependencies": [{"ref": "environment", "dependsOn": [one.purl for one in parts]}, *dependencies],
    }
