"""Rewriting a saved image: nothing of the moment is left, everything else stays; and the names of the levels."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from envforge import reproducible
from envforge.reproducible import EPOCH, Rewritten, compare, rewrite, undated


def layer(entries: Mapping[str, bytes | str | int | None], *, mtime: int = 1_700_000_000, **more: Any) -> bytes:
    """A layer tar. bytes: a file; str: a link ("=x": hard); None: a folder; int: a folder of that mode."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in entries.items():
            member = tarfile.TarInfo(name)
            member.mtime, member.mode, member.uname = mtime, 0o644, more.get("uname", "")
            if content is None or isinstance(content, int):
                member.type, member.mode = tarfile.DIRTYPE, 0o40000 | (content or 0o755)
            elif isinstance(content, str):
                member.type = tarfile.LNKTYPE if content.startswith("=") else tarfile.SYMTYPE
                member.linkname = content.lstrip("=")
            else:
                member.size = len(content)
            member.pax_headers = more.get("pax", {}) if isinstance(content, bytes) else {}
            archive.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    return buffer.getvalue()


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def saved(*layers: bytes, created: str = "2026-12-01T00:00:00Z", oci: bool = False, **config: Any) -> bytes:
    """What `docker save` gives."""
    document = {
        "architecture": "amd64",
        "os": "linux",
        "created": created,
        "container": "abc" + created,
        "config": {"Env": ["A=1"], "Labels": {"x": "y"}, "Hostname": "h" + created, "Image": "sha256:" + created},
        "history": [{"created": created, "created_by": f"RUN {number}"} for number in range(len(layers))],
        "rootfs": {"type": "layers", "diff_ids": [digest(one) for one in layers]},
        "moby.buildkit.cache.v0": created,
    } | config
    names = [f"blobs/sha256/{digest(one)[7:]}" if oci else f"id{n}/layer.tar" for n, one in enumerate(layers)]
    files = dict(zip(names, layers, strict=True)) | {"config.json": json.dumps(document).encode()}
    manifest = [{"Config": "config.json", "RepoTags": None, "Layers": names}]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in (files | {"manifest.json": json.dumps(manifest).encode()}).items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def done(archive: bytes, base: tuple[str, ...] = ()) -> tuple[Rewritten, bytes]:
    target = io.BytesIO()
    with tempfile.TemporaryFile() as spool, tarfile.open(fileobj=io.BytesIO(archive)) as source:
        found = rewrite(source, base, target, spool)
    return found, target.getvalue()


def members(archive: bytes, number: int) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as outer:
        stream = outer.extractfile(f"{number}/layer.tar")
        assert stream is not None
        with tarfile.open(fileobj=stream) as inner:
            return {member.name: member for member in inner.getmembers()}


BASE = layer({"etc": None, "tmp": 0o1777, "etc/base": b"base"}, mtime=5)
CONTENT: dict[str, bytes | str | int | None] = {
    "opt": None,
    "opt/a.py": b"x = 1\n",
    "opt/link": "a.py",
    "opt/same": "=opt/a.py",
}


def test_two_moments_give_the_same_bytes() -> None:
    first = saved(BASE, layer(CONTENT, mtime=1_700_000_000), created="2026-12-01T00:00:00Z")
    second = saved(BASE, layer(CONTENT, mtime=1_800_000_000, uname="root"), created="2027-01-01T00:00:00Z")
    assert digest(first) != digest(second)
    one, two = done(first, (digest(BASE),)), done(second, (digest(BASE),))
    assert one[1] == two[1]
    assert compare(one[0], two[0]).level == "same bytes"
    assert one[0].layers[0] == digest(BASE), "the base stays what its digest says"


@pytest.mark.parametrize("changed", [{"opt/a.py": b"x = 2\n"}, {"opt/link": "b.py"}, {"opt/b.py": b""}, {"opt": 0o700}])
def test_a_real_difference_is_seen_and_named(changed: dict[str, Any]) -> None:
    one, two = done(saved(BASE, layer(CONTENT)))[0], done(saved(BASE, layer(CONTENT | changed)))[0]
    found = compare(one, two)
    assert found.level == "same versions"
    assert [line.partition(":")[0] for line in found.differences] == list(changed)
    assert one.files_digest != two.files_digest


def test_everything_else_stays() -> None:
    xattr = {"SCHILY.xattr.user.note": "kept", "ctime": "1.5"}
    found, archive = done(saved(BASE, layer(CONTENT, pax=xattr)), (digest(BASE),))
    inside = members(archive, 1)
    assert {member.mtime for member in inside.values()} == {EPOCH}
    assert inside["opt/link"].issym() and inside["opt/link"].linkname == "a.py"
    assert inside["opt/same"].islnk() and inside["opt/same"].linkname == "opt/a.py"
    assert inside["opt/a.py"].pax_headers == {"SCHILY.xattr.user.note": "kept"}
    assert members(archive, 0)["etc/base"].mtime == 5
    assert found.image == digest(_config(archive)) and json.loads(_config(archive))["config"] == {
        "Env": ["A=1"],
        "Labels": {"x": "y"},
    }
    assert "2026" not in _config(archive).decode()


def _config(archive: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive)) as outer:
        manifest = outer.extractfile("manifest.json")
        assert manifest is not None
        stream = outer.extractfile(json.loads(manifest.read())[0]["Config"])
        assert stream is not None
        return stream.read()


def test_the_newer_archive_form_gives_the_same() -> None:
    assert done(saved(BASE, layer(CONTENT), oci=True))[1] == done(saved(BASE, layer(CONTENT)))[1]


def test_logs_backups_and_unclaimed_bytecode_go() -> None:
    more: dict[str, bytes | str | int | None] = {
        "var/log/dpkg.log": b"2026", "etc/passwd-": b"", "etc/passwd": b"", "var/cache/ldconfig/aux-cache": b"1",
        "opt/__pycache__": None, "opt/__pycache__/a.cpython-311.pyc": b"\0" * 16,
    }  # fmt: skip
    found, _ = done(saved(BASE, layer(CONTENT | more)))
    assert set(found.files) - set(done(saved(BASE, layer(CONTENT)))[0].files) == {"etc/passwd"}


@pytest.mark.parametrize("claim", ["RECORD", "conda"])
def test_bytecode_a_package_brings_stays_valid(claim: str) -> None:
    made_for = 1_600_000_000
    head = b"\xa7\r\r\n" + b"\0\0\0\0" + made_for.to_bytes(4, "little") + (6).to_bytes(4, "little")
    site = "env/lib/python3.11/site-packages"
    rows: dict[str, bytes | str | int | None] = {
        f"{site}/a.py": b"x = 1\n",
        f"{site}/b.py": b"x = 1\n",
        f"{site}/__pycache__/a.cpython-311.pyc": head + b"code",
        f"{site}/__pycache__/b.cpython-311.pyc": head + b"code",
    }
    listed = "__pycache__/a.cpython-311.pyc"
    if claim == "RECORD":
        rows[f"{site}/a-1.0.dist-info/RECORD"] = f"a.py,,\n{listed},,\n".encode()
    else:
        files = [f"lib/python3.11/site-packages/{listed}"]
        rows["env/conda-meta/a-1.0-0.json"] = json.dumps({"files": files}).encode()
    _, archive = done(saved(layer(rows)))
    inside = members(archive, 0)
    assert f"{site}/{listed}" in inside and f"{site}/__pycache__/b.cpython-311.pyc" not in inside
    assert (inside[f"{site}/a.py"].mtime, inside[f"{site}/b.py"].mtime) == (made_for, EPOCH)


def test_folders_in_which_something_came_and_went_are_no_difference() -> None:
    passed_through = layer({"tmp": 0o1777, **CONTENT})
    assert done(saved(BASE, passed_through))[1] == done(saved(BASE, layer(CONTENT)))[1]
    # Not so: a changed mode, a folder with something in it, one that was removed below.
    for kept in (layer({"tmp": 0o700}), layer({"etc": None, "etc/x": b""})):
        assert {"tmp", "etc"} & set(members(done(saved(BASE, kept))[1], 1))
    removed = layer({".wh.tmp": b""})
    assert "tmp" in members(done(saved(BASE, removed, layer({"tmp": 0o1777})))[1], 2)


def test_what_engines_leave_behind_is_no_difference() -> None:
    stubs = layer(CONTENT | {"etc/hosts": b"", "run/.containerenv": b""})
    assert set(done(saved(BASE, stubs))[0].files) == set(done(saved(BASE, layer(CONTENT)))[0].files)
    assert "etc/hosts" in done(saved(BASE, layer({"etc/hosts": b"127.0.0.1 lab\n"})))[0].files
    told = [{"created": "x", "created_by": "RUN 1", "comment": f"FROM {number}"} for number in range(2)]
    images = {done(saved(BASE, layer(CONTENT), history=[row]))[0].image for row in told}
    assert len(images) == 1


def test_the_day_an_account_was_made() -> None:
    before = b"root:*:20423:0:99999:7:::\nuser:!:20423::::::\nreal:$y$hash:20423:0:99999:7:::\n"
    assert undated(before) == b"root:*::0:99999:7:::\nuser:!:::::::\nreal:$y$hash:20423:0:99999:7:::\n"
    days = [layer({"etc/shadow": f"user:!:{day}::::::\n".encode()}) for day in (20423, 9)]
    assert done(saved(days[0]))[1] == done(saved(days[1]))[1]


def test_levels_in_order() -> None:
    site = "env/lib/python3.11/site-packages"
    one = Rewritten(image="sha256:1", layers=("a", "b"), files={f"{site}/six-1.0.dist-info/METADATA": "x", "y": "1"})
    assert one.versions == ("six-1.0",)
    assert compare(one, one).level == "same bytes" and compare(one, one).differences == ()
    assert compare(one, replace(one, image="sha256:2")).level == "same files"
    moved = compare(one, replace(one, image="sha256:2", layers=("a", "c")))
    assert (moved.level, moved.differences) == ("same files", ("layer 1: b | c",))
    assert compare(one, replace(one, files=one.files | {"y": "2"})).level == "same versions"
    other = {f"{site}/six-2.0.dist-info/METADATA": "x", "y": "1"}
    found = compare(one, replace(one, files=other))
    assert found.level == "different versions"
    assert found.differences == ("only in one: six-1.0", "only in one: six-2.0")


def test_a_base_that_is_not_what_it_says_is_refused() -> None:
    wrong = layer({"etc/base": b"other"})
    archive = saved(wrong, rootfs={"type": "layers", "diff_ids": [digest(BASE)]})
    with pytest.raises(ValueError, match="base layer"):
        done(archive, (digest(BASE),))


def test_the_fixed_time_is_after_1980_everywhere() -> None:
    assert reproducible.EPOCH - 14 * 3600 > 315_532_800
