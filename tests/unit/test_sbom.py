"""Bills of materials: complete, the same bytes each time, and readable for another tool (syft)."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from envforge import audit, cli, inventory, process, sbom
from envforge.lock import Lock, LockedBase, LockedConda, LockedPackage
from tests import tiny_wheels

SYFT = Path(sys.executable).with_name("syft")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sbom")
    wheels = [
        tiny_wheels.wheel(root, "Base_Pkg", "1.0+cu118", {"base.py": b""}, license="Apache-2.0"),
        tiny_wheels.wheel(
            root, "top", "2.0", {"top.py": b""}, requires=("base-pkg>=1", "absent"), license="Own (v1), free"
        ),
    ]
    return tiny_wheels.prefix(root / "env", wheels)


@pytest.fixture(scope="module")
def parts(python: Path) -> list[sbom.Component]:
    found = inventory.of_interpreter(python, hashing=False)
    found = replace(found, apt=(("libc6", "2.36-9+deb12u1"),))
    return sbom.components(found, None, audit.licenses(found))


LOCK = Lock(
    name="case",
    resolution_digest="",
    inputs_digest="sha256:" + "a" * 64,
    python="3.11",
    platform="linux/amd64",
    base=LockedBase(image="debian:bookworm", digest=None, reason=""),
    pip=(LockedPackage(name="six", version="1.16.0", index="default", hashes=("sha256:" + "b" * 64,)),),
    conda=(
        LockedConda(
            name="numpy",
            version="1.26.4",
            build="py311h5_0",
            channel="conda-forge",
            subdir="linux-64",
            filename="numpy-1.26.4-py311h5_0.conda",
            sha256="c" * 64,
        ),
    ),
)


def made(form: sbom.Format, parts: list[sbom.Component]) -> dict[str, object]:
    return sbom.render(form, "case", "sha256:aa", parts, created="2026-11-01T00:00:00Z", tool="envforge-0.1.0")


def test_components_name_version_purl_licence(parts: list[sbom.Component]) -> None:
    found = {one.name: one for one in parts}
    assert found["base-pkg"].purl == "pkg:pypi/base-pkg@1.0%2Bcu118"
    assert found["base-pkg"].licenses == ("Apache-2.0",)
    assert found["top"].requires == ("absent", "base-pkg")
    assert found["libc6"].purl == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u1"


def test_a_lock_alone_gives_a_bill_with_hashes() -> None:
    found = {one.name: one for one in sbom.components(None, LOCK, {})}
    assert found["six"].sha256 == "b" * 64
    assert found["numpy"].purl == "pkg:conda/numpy@1.26.4?build=py311h5_0&channel=conda-forge&subdir=linux-64"


@pytest.mark.parametrize("form", sbom.FORMATS)
def test_another_tool_reads_it_and_finds_the_same_packages(
    form: sbom.Format, parts: list[sbom.Component], tmp_path: Path
) -> None:
    every = [*parts, *sbom.components(None, LOCK, {})]
    (tmp_path / "bill.json").write_text(json.dumps(made(form, every)))
    done = process.run([SYFT, "convert", tmp_path / "bill.json", "-q", "-o", "syft-json"], timeout=60)
    assert done.ok, done.tail()
    read = {(one["name"], one["version"]) for one in json.loads(done.stdout)["artifacts"]}
    assert {(one.name, one.version) for one in every} <= read


def test_the_same_input_gives_the_same_bytes(parts: list[sbom.Component]) -> None:
    for form in sbom.FORMATS:
        assert json.dumps(made(form, parts)) == json.dumps(made(form, list(parts)))


def test_spdx_relations_and_odd_licences(parts: list[sbom.Component]) -> None:
    document = made("spdx-json", parts)
    packages = {one["name"]: one for one in document["packages"]}  # type: ignore[attr-defined]
    assert packages["base-pkg"]["licenseDeclared"] == "Apache-2.0"
    assert packages["top"]["licenseDeclared"] == "NOASSERTION"
    assert packages["top"]["licenseComments"].startswith("Own")
    relation = {
        "spdxElementId": packages["top"]["SPDXID"],
        "relationshipType": "DEPENDS_ON",
        "relatedSpdxElement": packages["base-pkg"]["SPDXID"],
    }
    assert relation in document["relationships"]  # type: ignore[operator]
    identifiers = [one["SPDXID"] for one in document["packages"]]  # type: ignore[attr-defined]
    assert len(set(identifiers)) == len(identifiers)


def test_command(python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sbom", "--python", str(python), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spdxVersion"] == "SPDX-2.3"
    target = tmp_path / "bill.json"
    words = ["sbom", "--python", str(python), "--format", "cyclonedx-json", "-o", str(target), "--json"]
    assert cli.main(words) == 0
    assert json.loads(capsys.readouterr().out)["file"] == str(target)
    assert json.loads(target.read_text())["bomFormat"] == "CycloneDX"


def test_syft_agrees_about_what_is_installed(python: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sbom", "--python", str(python), "--format", "cyclonedx-json", "--syft", "--json"]) == 0
    theirs = {one["name"].lower().replace("_", "-") for one in json.loads(capsys.readouterr().out)["components"]}
    assert {"base-pkg", "top"} <= theirs
