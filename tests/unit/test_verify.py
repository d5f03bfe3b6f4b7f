"""Each way to tamper with a real prefix is caught with the file named; an untouched one passes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envforge import baseline, cli, inventory, verify
from envforge.lock import Lock, LockedBase, LockedPackage, seal, write
from tests import tiny_wheels
from tests.resolutions import resolution

SITE = f"lib/python{'.'.join(__import__('platform').python_version_tuple()[:2])}/site-packages"
CUDART = b"\x7fELF cudart 12.4"


class Made:
    """A prefix, its lock, and the folder of wheels."""

    def __init__(self, root: Path) -> None:
        self.root = root
        wheels = root / "wheels"
        made = [
            tiny_wheels.wheel(
                wheels, "numpyish", "1.0", {"numpyish/__init__.py": b"x = 1\n"}, scripts={"np": "numpyish:x"}
            ),
            tiny_wheels.wheel(
                wheels,
                "nvidia-cuda-runtime-cu12",
                "12.4.127",
                {"nvidia/cuda_runtime/lib/libcudart.so.12": CUDART, "nvidia/cuda_runtime/__init__.py": b""},
            ),
            tiny_wheels.wheel(wheels, "torchish", "2.6.0", {"torchish/__init__.py": b"import numpyish\n"}),
        ]
        self.python = tiny_wheels.prefix(root / "env", made)
        self.prefix = root / "env"
        self.lock = Lock(
            name="case",
            resolution_digest="",
            inputs_digest="",
            python=".".join(__import__("platform").python_version_tuple()[:2]),
            platform="linux/amd64",
            base=LockedBase(image="debian:bookworm", digest=None, reason="none"),
            pip=tuple(
                LockedPackage(name=one.name, version=one.version, index="default", hashes=(tiny_wheels.sha256(path),))
                for path in made
                for one in [_Named(path)]
            ),
        )

    def look(self) -> inventory.Inventory:
        return inventory.of_interpreter(self.python)

    def kinds(self, **more: object) -> set[tuple[str, str]]:
        found = verify.compare(self.lock, self.look(), **more)  # type: ignore[arg-type]
        return {(one.kind, one.path.removeprefix(f"{self.prefix}/")) for one in found}


class _Named:
    def __init__(self, path: Path) -> None:
        parts = path.name.split("-")
        self.name, self.version = parts[0].replace("_", "-"), parts[1]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("verify"))


@pytest.fixture
def made(original: Made) -> Made:
    """The prefix as it was built; every test gets it clean."""
    keep = original.root / "keep"
    if not keep.exists():
        shutil.copytree(original.prefix, keep, symlinks=True)
    shutil.rmtree(original.prefix)
    shutil.copytree(keep, original.prefix, symlinks=True)
    return original


def test_an_untouched_prefix_has_no_differences(made: Made) -> None:
    found = made.look()
    assert verify.compare(made.lock, found) == ()
    assert found.private and len(found.pip) == 3
    assert [(one.library, one.version, one.owner) for one in found.cuda] == [
        ("libcudart", "12", "pip:nvidia-cuda-runtime-cu12")
    ]


def test_bytecode_written_by_the_interpreter_is_not_a_difference(made: Made) -> None:
    from envforge import process

    assert process.run([made.python, "-c", "import numpyish, torchish"], env={"PATH": os.defpath}).ok
    assert list(made.prefix.rglob("numpyish/__pycache__/*.pyc"))
    assert made.kinds() == set()


def change(made: Made) -> str:
    (made.prefix / SITE / "torchish/__init__.py").write_text("import numpyish, os\n")
    return f"{SITE}/torchish/__init__.py"


def same_size(made: Made) -> str:
    path = made.prefix / SITE / "numpyish/__init__.py"
    before = path.stat()
    path.write_text("x = 2\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return f"{SITE}/numpyish/__init__.py"


def remove(made: Made) -> str:
    (made.prefix / SITE / "torchish/__init__.py").unlink()
    return f"{SITE}/torchish/__init__.py"


def add(made: Made) -> str:
    (made.prefix / SITE / "sitecustomize.py").write_text("raise SystemExit('never run by the probe')\n")
    return f"{SITE}/sitecustomize.py"


def add_pth(made: Made) -> str:
    (made.prefix / SITE / "zz.pth").write_text("import os\n")
    return f"{SITE}/zz.pth"


def swap_program(made: Made) -> str:
    (made.prefix / "bin/np").write_text("#!/bin/sh\n")
    return "bin/np"


def edit_record(made: Made) -> str:
    record = made.prefix / SITE / "torchish-2.6.0.dist-info/RECORD"
    record.write_text(record.read_text().replace("torchish/__init__.py,sha256=", "torchish/__init__.py,sha256=A", 1))
    return f"{SITE}/torchish/__init__.py"


def lose_record(made: Made) -> str:
    (made.prefix / SITE / "torchish-2.6.0.dist-info/RECORD").unlink()
    return f"{SITE}/torchish-2.6.0.dist-info"


def second_cudart(made: Made) -> str:
    path = made.prefix / SITE / "torchish/lib/libcudart-d0da41ae.so.11.0"
    path.parent.mkdir()
    path.write_bytes(b"\x7fELF another")
    return f"{SITE}/torchish/lib/libcudart-d0da41ae.so.11.0"


def driver_inside(made: Made) -> str:
    (made.prefix / "lib/libcuda.so.1").write_bytes(b"\x7fELF stub")
    return "lib/libcuda.so.1"


def orphan_bytecode(made: Made) -> str:
    folder = made.prefix / SITE / "numpyish/__pycache__"
    folder.mkdir(exist_ok=True)
    (folder / "evil.cpython-311.pyc").write_bytes(b"\0" * 16)
    return f"{SITE}/numpyish/__pycache__/evil.cpython-311.pyc"


def stray_bytecode(made: Made) -> str:
    (made.prefix / SITE / "numpyish/extra.pyc").write_bytes(b"\0" * 16)
    return f"{SITE}/numpyish/extra.pyc"


@pytest.mark.parametrize(
    ("tamper", "kind"),
    [
        (change, "file-changed"),
        (same_size, "file-changed"),
        (remove, "file-removed"),
        (add, "file-added"),
        (add_pth, "file-added"),
        (swap_program, "file-changed"),
        (edit_record, "file-changed"),
        (lose_record, "record-missing"),
        (second_cudart, "cuda-copy"),
        (driver_inside, "cuda-driver"),
        (orphan_bytecode, "bytecode-orphan"),
        (stray_bytecode, "bytecode-orphan"),
    ],
)
def test_tampering_is_caught_with_the_file_named(made: Made, tamper: Callable[[Made], str], kind: str) -> None:
    path = tamper(made)
    assert (kind, path) in made.kinds()


def test_a_replaced_version_and_an_extra_package_are_named(made: Made) -> None:
    wheels = made.root / "other"
    other = [
        tiny_wheels.wheel(wheels, "torchish", "2.7.0", {"torchish/__init__.py": b"import numpyish\n"}),
        tiny_wheels.wheel(wheels, "stranger", "1.0", {"stranger.py": b""}),
    ]
    from envforge import process

    uv = Path(__import__("sys").executable).with_name("uv")
    done = process.run([uv, "pip", "install", "-q", "--offline", "--no-index", "--python", made.python, *other])
    assert done.ok, done.tail()
    found = {(one.kind, one.package): one.detail for one in verify.compare(made.lock, made.look())}
    assert found[("package-version", "torchish")] == "locked 2.6.0, installed 2.7.0"
    assert ("package-extra", "stranger") in found
    gone = replace(made.lock, pip=(*made.lock.pip, replace(made.lock.pip[0], name="absent")))
    assert ("package-missing", "absent") in {(o.kind, o.package) for o in verify.compare(gone, made.look())}


def test_a_file_changed_together_with_its_record_needs_the_baseline(made: Made) -> None:
    kept = verify.baseline(made.look())
    import base64
    import hashlib

    content = b"import numpyish, os\n"
    (made.prefix / SITE / "torchish/__init__.py").write_bytes(content)
    record = made.prefix / SITE / "torchish-2.6.0.dist-info/RECORD"
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    lines = [
        f"torchish/__init__.py,sha256={digest},{len(content)}" if line.startswith("torchish/__init__") else line
        for line in record.read_text().splitlines()
    ]
    record.write_text("\n".join(lines) + "\n")
    assert made.kinds() == set(), "RECORD and file agree, so only the baseline can tell"
    assert made.kinds(baseline=kept) == {
        ("baseline-changed", f"{SITE}/torchish/__init__.py"),
        ("baseline-changed", f"{SITE}/torchish-2.6.0.dist-info/RECORD"),
    }


def test_labels_are_compared(made: Made) -> None:
    expected = {"envforge.name": "case", "envforge.inputs-digest": "sha256:aa"}
    edited = {"envforge.name": "other"}
    found = made.kinds(labels=edited, expected_labels=expected)
    assert found == {("label-changed", "envforge.name"), ("label-missing", "envforge.inputs-digest")}


def test_own_files_can_be_allowed(made: Made) -> None:
    (made.prefix / "own").mkdir()
    (made.prefix / "own/code.py").write_text("")
    assert made.kinds() == {("file-added", "own/code.py")}
    assert made.kinds(allowed=[str(made.prefix / "own")]) == set()


def test_wrong_python_and_wrong_apt_are_named(made: Made) -> None:
    lock = replace(made.lock, python="3.8", apt=(("surely-not-there", "1.0"),))
    kinds = {(one.kind, one.package) for one in verify.compare(lock, made.look())}
    assert kinds == {("python-version", "python"), ("apt-missing", "surely-not-there")}


def test_apt_versions_are_compared_exactly(made: Made) -> None:
    found = replace(made.look(), apt=(("libfoo", "1.2-1"),))
    assert verify.compare(replace(made.lock, apt=(("libfoo", "1.2-1"),)), found) == ()
    (one,) = verify.compare(replace(made.lock, apt=(("libfoo", "1.2-2"),)), found)
    assert (one.kind, one.detail) == ("apt-version", "locked 1.2-2, installed 1.2-1")


def test_the_probe_ignores_what_the_environment_prints_or_runs(made: Made) -> None:
    (made.prefix / SITE / "sitecustomize.py").write_text("raise SystemExit(3)\n")
    (made.prefix / SITE / "a.pth").write_text("import sys; print('hello')\n")
    assert len(made.look().pip) == 3


def test_command_exit_codes_and_document(
    made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write("case", seal(made.lock, resolution(python=made.lock.python)), root=tmp_path / "lockfiles")
    assert cli.main(["verify", "case", "--python", str(made.python), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "passed" and document["differences"] == []
    assert document["checked"]["pip"] == 3
    change(made)
    assert cli.main(["verify", "case", "--python", str(made.python), "--json"]) == 10
    document = json.loads(capsys.readouterr().out)
    (one,) = document["differences"]
    assert set(one) == {"kind", "path", "package", "detail"}
    assert one["package"] == "pip:torchish"
    assert cli.main(["verify", "nothing-of-this-name", "--engine", "local", "--json"]) == 6


def test_baseline_is_kept_and_read(made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENVFORGE_HOME", str(tmp_path))
    lock = replace(made.lock, inputs_digest="sha256:" + "ab" * 32)
    assert baseline.read(lock, "local") is None
    path = baseline.write(lock, "local", made.look())
    kept = baseline.read(lock, "local")
    assert kept == verify.baseline(made.look())
    path.write_bytes(b"half")
    assert baseline.read(lock, "local") is None


def mixed(conda_value: str, record_value: str, there: str, *, meta_is_condas: bool) -> inventory.Inventory:
    """A conda and a pip package that both claim one file of the prefix."""
    path = "/p/lib/python3.11/site-packages/torch/__init__.py"
    meta = "/p/lib/python3.11/site-packages/torch-2.0.dist-info"
    conda_record: dict[str, tuple[str | None, str]] = {path: (conda_value, "hardlink")}
    if meta_is_condas:
        conda_record[f"{meta}/RECORD"] = (None, "hardlink")
    files = {
        path: inventory.FileEntry(kind="file", size=1, value=there),
        f"{meta}/RECORD": inventory.FileEntry(kind="file", size=1, value="r"),
        "/p/conda-meta/pytorch.json": inventory.FileEntry(kind="file", size=1, value="m"),
    }
    conda = inventory.InstalledConda(
        name="pytorch",
        version="2.0",
        build="0",
        subdir="linux-64",
        channel="c",
        filename="f",
        sha256="",
        license="",
        meta="/p/conda-meta/pytorch.json",
        record=conda_record,
    )
    pip = inventory.InstalledPip(
        name="torch",
        version="2.0",
        meta=meta,
        installer="uv",
        license="",
        license_expression="",
        classifiers=(),
        requires=(),
        record={path: record_value, f"{meta}/RECORD": None},
    )
    return inventory.Inventory(
        prefix="/p",
        private=True,
        python="3.11.2",
        site=(),
        files=files,
        pip=(pip,),
        conda=(conda,),
        apt=(),
        cuda=(),
        bytecode={},
    )


def test_a_conda_file_overwritten_by_pip_is_named_as_that() -> None:
    (one,) = verify.compare(None, mixed("from-conda", "from-pip", "from-pip", meta_is_condas=False))
    assert (one.kind, one.package) == ("package-overwritten", "conda:pytorch")
    assert "overwritten by pip:torch" in one.detail


def test_the_record_that_a_conda_package_carries_does_not_outweigh_conda_meta() -> None:
    assert verify.compare(None, mixed("installed", "before the prefix", "installed", meta_is_condas=True)) == ()
    (one,) = verify.compare(None, mixed("installed", "x", "x", meta_is_condas=True))
    assert (one.kind, one.package) == ("file-changed", "conda:pytorch")


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        ([("libcudart", "12.4", "pip:nvidia-cuda-runtime-cu12")], set()),
        (
            [("libcudart", "12.4", "pip:nvidia-cuda-runtime-cu12"), ("libcudart", "11.8", "pip:other")],
            {("cuda-copy", "pip:other")},
        ),
        (
            [("libcublas", "12", "pip:nvidia-cublas-cu12"), ("libcublas", "11", "apt:libcublas-11-8")],
            {("cuda-copy", "apt:libcublas-11-8")},
        ),
        ([("libcupti", "12", "pip:nvidia-cuda-cupti-cu12"), ("libcupti", "12", "pip:triton")], set()),
        ([("libnccl", "2", "")], {("cuda-unowned", "")}),
        ([("libcuda", "1", "apt:libcuda1")], {("cuda-driver", "apt:libcuda1")}),
    ],
)
def test_one_owner_per_cuda_library(
    made: Made, copies: list[tuple[str, str, str]], expected: set[tuple[str, str]]
) -> None:
    libraries = tuple(
        inventory.CudaLibrary(
            library=library, version=version, path=f"/x/{number}", size=1, sha256=None, owner=owner, stub=False
        )
        for number, (library, version, owner) in enumerate(copies)
    )
    names = {owner.removeprefix("pip:") for _, _, owner in copies if owner.startswith("pip:nvidia")}
    packages = tuple(LockedPackage(name=name, version="1", index="default", hashes=()) for name in sorted(names))
    lock = replace(made.lock, pip=packages)
    found = verify.compare(lock, replace(made.look(), cuda=libraries, pip=(), files={}))
    assert {(one.kind, one.package) for one in found if one.kind.startswith("cuda")} == expected


def test_stub_libraries_for_linking_are_not_copies(made: Made) -> None:
    stub = inventory.CudaLibrary(
        library="libcuda", version="", path="/x/stubs/libcuda.so", size=1, sha256=None, owner="", stub=True
    )
    assert verify.compare(made.lock, replace(made.look(), cuda=(stub,))) == ()


@pytest.mark.parametrize(
    ("cuda", "clean"),
    [
        ({"from": "wheels", "toolchain": "none"}, False),
        ({"from": "base", "toolchain": "none"}, True),
        ({"from": "wheels", "toolchain": "full"}, True),
    ],
)
def test_a_toolkit_is_planned_only_when_the_spec_asks_for_it(made: Made, cuda: dict[str, str], clean: bool) -> None:
    toolkit = inventory.CudaLibrary(
        library="libcudart",
        version="12.4.127",
        path="/usr/local/cuda-12.4/lib64/libcudart.so.12.4.127",
        size=1,
        sha256=None,
        owner="apt:cuda-cudart-12-4",
        stub=False,
    )
    found = made.look()
    found = replace(found, cuda=(*found.cuda, toolkit))
    assert (verify.compare(replace(made.lock, made_from={"cuda": cuda}), found) == ()) is clean


def test_the_compat_package_is_planned_only_when_the_spec_asks_for_it(made: Made) -> None:
    path = "/usr/local/cuda-12.4/compat/libcuda.so.550.54"
    driver = inventory.CudaLibrary(
        library="libcuda", version="550.54", path=path, size=1, sha256=None, owner="", stub=False
    )
    found = replace(made.look(), cuda=(driver,))
    asked = replace(made.lock, made_from={"cuda": {"from": "wheels", "compat": True}})
    assert verify.compare(asked, found) == ()
    (one,) = verify.compare(made.lock, found)
    assert (one.kind, one.path) == ("cuda-driver", path)
