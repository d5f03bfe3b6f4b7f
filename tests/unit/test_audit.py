"""A missing library, a wrong ABI, a vendor's BLAS and licences: each named, and a clean prefix stays clean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envforge import audit, audit_probe, cli, process
from envforge.errors import SpecError
from tests import tiny_wheels


def compiled(folder: Path, name: str, source: str, *flags: str, language: str = "c") -> bytes:
    """The bytes of a shared library out of C or C++ text."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.{language}").write_text(source)
    target = folder / name
    program = "gcc" if language == "c" else "g++"
    done = process.run([program, "-shared", "-fPIC", "-O1", "-o", target, folder / f"{name}.{language}", *flags])
    assert done.ok, done.tail()
    return target.read_bytes()


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefix with one package per fault."""
    root = tmp_path_factory.mktemp("audit")
    build = root / "build"
    declared = "#include <string>\nnamespace frame { struct Error { Error(const std::string& s); }; }\n"
    old = declared + "frame::Error::Error(const std::string&) {}\n"
    user = declared + 'void use() { frame::Error e(std::string("x")); }\n'
    framework = compiled(
        build, "libframe.so", old, "-D_GLIBCXX_USE_CXX11_ABI=0", "-Wl,-soname,libframe.so", language="cc"
    )
    gone = compiled(build, "libgone.so", "int gone(void) { return 1; }\n", "-Wl,-soname,libgone.so.3")
    assert gone
    lacking = compiled(build, "lacking.so", "int gone(void); int f(void) { return gone(); }\n", f"-L{build}", "-lgone")
    extension = compiled(
        build,
        "extension.so",
        user,
        f"-L{build}",
        "-Wl,--no-as-needed",
        "-lframe",
        "-Wl,-rpath,$ORIGIN/../frame",
        language="cc",
    )
    undefined = compiled(
        build, "undefined.so", "int nobody_has_this(void); int f(void) { return nobody_has_this(); }\n"
    )
    driver = compiled(build, "libcuda.so", "int cuInit(int x) { return x; }\n", "-Wl,-soname,libcuda.so.1")
    assert driver
    gpu = compiled(build, "gpu.so", "int cuInit(int); int f(void) { return cuInit(0); }\n", f"-L{build}", "-lcuda")
    big = compiled(
        build,
        "libbig.so",
        'const char maker[] = "Intel(R) oneAPI Math Kernel Library Version 2024";\nchar pad[1 << 21] = {1};\n',
    )
    python = compiled(build, "pyext.so", "void *PyLong_FromLong(long); void *f(void) { return PyLong_FromLong(1); }\n")
    wheels = [
        tiny_wheels.wheel(root, "frame", "1.0", {"frame/libframe.so": framework}, license="MIT"),
        tiny_wheels.wheel(root, "abi", "1.0", {"abi/extension.so": extension}, license="Apache-2.0"),
        tiny_wheels.wheel(root, "lacking", "1.0", {"lacking/lacking.so": lacking}, license="GPL-3.0-only"),
        tiny_wheels.wheel(root, "undefined", "1.0", {"undefined/undefined.so": undefined}),
        tiny_wheels.wheel(root, "gpu", "1.0", {"gpu/gpu.so": gpu}, license="MIT"),
        tiny_wheels.wheel(root, "blas", "1.0", {"blas/libbig.so": big, "blas/libmkl_rt.so.2": python}, license="MIT"),
        tiny_wheels.wheel(root, "good", "1.0", {"good/pyext.so": python}, license="MIT AND BSD-3-Clause"),
    ]
    return tiny_wheels.prefix(root / "env", wheels)


@pytest.fixture(scope="module")
def findings(faulty: Path) -> list[audit.Finding]:
    from envforge import inventory

    found = inventory.of_interpreter(faulty, hashing=False)
    return audit.judge_objects(audit.objects_of_interpreter(faulty), found.owners(), audit.Policy())


def of(findings: list[audit.Finding], package: str) -> list[tuple[str, str]]:
    return [(one.kind, one.severity) for one in findings if one.package == f"pip:{package}"]


def test_a_missing_library_is_named(findings: list[audit.Finding]) -> None:
    assert of(findings, "lacking") == [("missing-library", "error")]
    (one,) = [one for one in findings if one.package == "pip:lacking"]
    assert "libgone.so.3" in one.detail and one.path.endswith("lacking/lacking.so")


def test_the_other_cpp_abi_is_named_with_both_symbols(findings: list[audit.Finding]) -> None:
    assert of(findings, "abi") == [("cxx-abi", "error")]
    (one,) = [one for one in findings if one.package == "pip:abi"]
    assert "cxx11" in one.detail and "_ZN5frame5Error" in one.detail


def test_an_undefined_symbol_is_named(findings: list[audit.Finding]) -> None:
    assert of(findings, "undefined") == [("undefined-symbol", "warning")]
    assert any("nobody_has_this" in one.detail for one in findings)


def test_a_vendor_blas_is_found_by_name_and_inside_a_file(findings: list[audit.Finding]) -> None:
    found = {one.path.rsplit("/", 1)[1]: one.detail for one in findings if one.kind == "vendor-blas"}
    assert set(found) == {"libbig.so", "libmkl_rt.so.2"}
    assert "Intel oneMKL" in found["libbig.so"]


def test_the_driver_and_python_itself_are_not_missing(findings: list[audit.Finding]) -> None:
    assert of(findings, "gpu") == []
    assert of(findings, "good") == []
    assert of(findings, "frame") == []


def test_a_symbol_version_nobody_offers_is_named() -> None:
    document = {
        "missing": [],
        "versions": [["/p/x.so", "libstdc++.so.6", "/usr/lib/libstdc++.so.6", ["GLIBCXX_3.4.99"]]],
        "undefined": [],
        "machine": [],
        "broken": [],
        "blas": [],
    }
    (one,) = audit.judge_objects(document, {"/p/x.so": "pip:x"}, audit.Policy())
    assert (one.kind, one.severity, one.package) == ("symbol-version", "error", "pip:x")
    assert "GLIBCXX_3.4.99" in one.detail and "/usr/lib/libstdc++.so.6" in one.detail


def test_versions_are_looked_up_in_the_library_that_would_be_loaded(tmp_path: Path) -> None:
    """A library that asks for a version its provider lacks: the provider is swapped after linking."""
    script = tmp_path / "map"
    script.write_text("V_1 { global: *; };\nV_2 { global: later; } V_1;\n")
    source = "int early(void) { return 1; }\nint later(void) { return 2; }\n"
    compiled(tmp_path, "libprov.so", source, f"-Wl,--version-script={script}", "-Wl,-soname,libprov.so")
    compiled(
        tmp_path,
        "libuser.so",
        "int later(void); int u(void) { return later(); }\n",
        f"-L{tmp_path}",
        "-lprov",
        "-Wl,-rpath,$ORIGIN",
    )
    objects = [str(tmp_path / "libprov.so"), str(tmp_path / "libuser.so")]
    assert audit_probe.analyse(objects, [], "/nowhere")["versions"] == []
    script.write_text("V_1 { global: *; };\n")
    compiled(tmp_path, "libprov.so", source, f"-Wl,--version-script={script}", "-Wl,-soname,libprov.so")
    ((path, name, _, lacking),) = audit_probe.analyse(objects, [], "/nowhere")["versions"]
    assert (path, name, lacking) == (objects[1], "libprov.so", ["V_2"])


def test_licences_of_installed_packages(faulty: Path) -> None:
    from envforge import inventory

    found = audit.licenses(inventory.of_interpreter(faulty, hashing=False))
    assert found["pip:lacking"] == ("GPL-3.0-only",)
    assert found["pip:good"] == ("MIT", "BSD-3-Clause")
    assert found["pip:undefined"] == ()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (audit.Policy(), {("license-unknown", "pip:none", "warning")}),
        (
            audit.Policy(deny=("gpl-3*",)),
            {("license-denied", "pip:gpl", "error"), ("license-unknown", "pip:none", "warning")},
        ),
        (
            audit.Policy(allow=("MIT",), unknown="error"),
            {("license-unlisted", "pip:gpl", "error"), ("license-unknown", "pip:none", "error")},
        ),
        (audit.Policy(deny=("GPL*",), exceptions={"gpl": "build only", "none": "ours"}), set()),
    ],
)
def test_policy(policy: audit.Policy, expected: set[tuple[str, str, str]]) -> None:
    found = audit.judge_licenses({"pip:gpl": ("GPL-3.0-only",), "pip:mit": ("MIT",), "pip:none": ()}, policy)
    assert {(one.kind, one.package, one.severity) for one in found} == expected


def test_a_wrong_policy_file_lists_every_problem(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("allow: MIT\nunknwon: error\nunknown: loud\nexceptions: {x: ''}\n")
    with pytest.raises(SpecError) as caught:
        audit.read_policy(path)
    assert len(caught.value.context) == 5
    path.write_text("schema: 1\ndeny: [AGPL*]\nexceptions: {Some_Pkg: reviewed}\n")
    assert audit.read_policy(path).exceptions == {"some-pkg": "reviewed"}


def test_command(faulty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", "--python", str(faulty), "--json"]) == 10
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "failed" and document["objects"] == 8
    assert {one["kind"] for one in document["findings"] if one["severity"] == "error"} == {"missing-library", "cxx-abi"}
    clean = tiny_wheels.prefix(
        tmp_path / "env", [tiny_wheels.wheel(tmp_path, "ok", "1.0", {"ok.py": b""}, license="MIT")]
    )
    assert cli.main(["audit", "--python", str(clean), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
