"""Reading specs: what is accepted, what is refused and where, extends, variants, flags, schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from envforge import spec
from envforge.errors import EXIT_SPEC, SpecError, UsageError
from envforge.resources import data
from envforge.yamlmodel import Pattern, parse, plain

GOOD = 'schema: 1\nname: demo\nframeworks:\n  torch: {version: "2.6.0"}\n'


def refused(text: str, **kw: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        spec.loads(text, source="demo.yaml", **kw)
    assert caught.value.exit_code == EXIT_SPEC
    return caught.value


def test_the_design_example_reads() -> None:
    found = spec.loads(
        """
schema: 1
name: torch-cu124
python: "3.11"
base: {image: "python:3.11-slim-bookworm"}
cuda: {version: "12.4", from: wheels}
frameworks:
  torch: {version: "2.6.0"}
packages: {pip: ["onnx", "onnxruntime"], apt: [], conda: []}
"""
    )
    assert found.cuda == spec.CudaSpec(version="12.4")
    assert found.frameworks["torch"].version == "2.6.0"
    assert found.packages.pip == ("onnx", "onnxruntime")
    assert found.full_name == "torch-cu124"


def test_every_problem_of_a_bad_spec_at_once() -> None:
    error = refused(
        """schema: 1
name: Bad Name
python: 3.10
framework: {}
frameworks:
  torsch: {}
  torch: {version: latest}
packages:
  pip: ["six; touch /x"]
  apt: ["git && reboot"]
env: {"A B": "1"}
"""
    )
    told = "\n".join(error.context)
    assert "8 problems" in error.message
    for expected in (
        "demo.yaml:2:7: name: 'Bad Name' is not a name",
        'demo.yaml:3:9: python: a version must be quoted text; quote it: "3.10"',
        "demo.yaml:4:1: framework: unknown key; did you mean 'frameworks'?",
        "demo.yaml:6:3: frameworks.torsch: unknown key; did you mean 'torch'?",
        "demo.yaml:7:20: frameworks.torch.version: 'latest' is not an exact version",
        "demo.yaml:9:9: packages.pip[0]: 'six; touch /x' is not a Python requirement",
        "demo.yaml:10:9: packages.apt[0]: 'git && reboot' is not a Debian package name",
        "demo.yaml:11:7: env.A B: 'A B' is not the name of an environment variable",
    ):
        assert expected in told


def pattern_cases() -> list[tuple[Pattern, list[str], list[str]]]:
    sha = "sha256:" + "0" * 64
    return [
        (
            spec.NAME,
            ["torch-cu124", "a", "a.b_c--d"],
            ["", "-a", "a-", "A", "a b", "a/b", "a@b", "a\n", "x" * 65, "a..b"],
        ),
        (
            spec.VERSION,
            ["2.6.0", "2.7.1+cu118", "2.0.0rc1", "1.0.post1", "0.12.0.1"],
            ["latest", ">=2", "2.*", "2.6.0 ", "v2", "2.6.0;x", "$(id)", "2+"],
        ),
        (
            spec.REQUIREMENT,
            [
                "onnx",
                "onnx>=1.16,<2",
                "jax[cuda12]==0.4.38",
                "a ~= 1.0",
                "a==1; python_version < '3.12'",
                "a; sys_platform == 'linux' and (extra == \"x\" or os_name != 'nt')",
                "thing @ git+https://example.org/a/b.git@" + "0" * 40,
                "thing @ https://example.org/a.whl#sha256=" + "0" * 64,
            ],
            [
                "six; touch /x",
                "six\n",
                "six && id",
                "six $(id)",
                "six`id`",
                "-r requirements.txt",
                "--index-url=https://evil.example",
                "-e .",
                "six==1 --hash=sha256:00",
                "six|id",
                "six; python_version < '3' ; id",
                "a @ https://example.org/a whl",
                "six==1.0' ",
                "",
            ],
        ),
        (
            spec.APT,
            ["git", "libc6-dev", "g++=4:12.2.0-3", "libx:amd64"],
            ["Git", "a", "git;id", "git id", "-y", "git\n", "$(x)"],
        ),
        (
            spec.URL,
            ["https://download.pytorch.org/whl/cu118", "file:///srv/index", "http://localhost:8080/simple/"],
            [
                "ftp://x",
                "https://user:pw@example.org/",
                "https://a/'b'",
                'https://a/"',
                "https://a b",
                "https://a/$(id)",
                "x",
            ],
        ),
        (
            spec.IMAGE,
            [
                "auto",
                "python:3.11-slim-bookworm",
                "nvcr.io/nvidia/cuda:12.4.1-base-ubuntu22.04",
                f"debian@{sha}",
                f"localhost:5000/a/b:1@{sha}",
            ],
            [
                "python",
                "python:",
                "Python:3",
                "a b:1",
                "python:3.11\nRUN id",
                "python:3@sha256:00",
                "$(id):1",
                "a:1 AS x",
            ],
        ),
        (spec.ENV_KEY, ["HF_HOME", "_a1"], ["1A", "A B", "A=B", "A\n", "A-B", ""]),
        (
            spec.ABSOLUTE,
            ["/work", "/", "/a/b.c/", "/srv/x-y_z"],
            ["work", "/a/../b", "/..", "/a b", "/a$b", "/a\n", "//", "/a//b"],
        ),
        (
            spec.RELATIVE,
            ["src", "./a/b.whl", ".", "a/"],
            ["/a", "../a", "a/../../b", "a b", "", "..", "a/..", "~/x$"],
        ),
        (spec.DRIVER, ["535", "535.104.05"], ["12", "535.", "535.104.05x", ""]),
        (spec.LABEL, ["pytorch-cu118", "lab"], ["default", "A", "a_b", "-a", "a b"]),
    ]


@pytest.mark.parametrize(
    ("pattern", "good", "bad"), pattern_cases(), ids=lambda value: getattr(value, "meaning", "")[:20]
)
def test_patterns_match_whole(pattern: Pattern, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not pattern.accepts(text)] == []
    assert [text for text in bad if pattern.accepts(text)] == []


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ('python: "3.11.4"\n', "python: '3.11.4' is not a Python version of two parts"),
        (
            'base: {digest: "sha256:' + "0" * 64 + '"}\n',
            "base.digest: a digest needs `base.image` to be named",
        ),
        ("user: {name: root}\n", "user: the name root and uid 0 belong together"),
        ("hooks: [{name: a, command: []}]\n", "hooks[0].command: a hook needs a command"),
        ("hooks: [{name: a, command: [x]}, {name: a, command: [y]}]\n", "hooks: 'a' stands twice"),
        ("env: {HF_TOKEN: abc}\n", "env.HF_TOKEN: secrets do not belong in a spec"),
        ("smoke: {level: 9}\n", "smoke.level: 9 is out of range (from 0 to 5)"),
        ("budget: {size_mb: 0}\n", "budget.size_mb: 0 is out of range (at least 1)"),
        (
            'indexes: {default: {url: "https://x.example"}}\n',
            "indexes.default: 'default' is not an index label",
        ),
        (
            "apt: {snapshot: 2026-11-01}\n",
            'apt.snapshot: expected text, found a timestamp; quote it: "2026-11-01"',
        ),
        ("schema: 1\n", "schema: this key stands twice"),
        (
            "platform: linux/amd46\n",
            "platform: expected one of linux/amd64, linux/arm64; did you mean 'linux/amd64'?",
        ),
        ("files: [{source: ../x, target: /x}]\n", "files[0].source: '../x' is not a path below the folder"),
        ('packages: {conda: ["a; id"]}\n', "packages.conda[0]: 'a; id' is not a conda match spec"),
    ],
)
def test_rules_of_single_fields(extra: str, expected: str) -> None:
    assert any(expected in line for line in refused(GOOD + extra).context)


def test_rules_between_fields() -> None:
    told = refused("schema: 1\nname: a\nframeworks:\n  torch: {accelerator: cuda, index: lab}\n").context
    assert told == (
        "demo.yaml:4:24: frameworks.torch.accelerator: cuda is asked for but the spec has no `cuda: {version: …}`",
        "demo.yaml:4:37: frameworks.torch.index: no index has the label 'lab' (indexes: none here)",
    )
    assert "an environment needs a framework" in refused("schema: 1\nname: a\n").context[0]
    assert "a base has no frameworks" in refused(GOOD + "kind: base\n").context[0]
    assert spec.loads("schema: 1\nname: a\nkind: base\npackages: {apt: [git]}\n").kind == "base"


# --- variants and extends -----------------------------------------------------------------------------------

VARIANTS = GOOD + (
    'cuda: {version: "12.4"}\npackages: {pip: ["onnx>=1", "numpy"]}\n'
    'variants:\n  cpu: {cuda: null}\n  py312: {python: "3.12", packages: {pip: ["onnx==1.16", "six"]}}\n'
    "  bare: {packages: {pip: !replace []}}\n"
)


def test_variants_are_laid_over_the_spec() -> None:
    assert spec.loads(VARIANTS).variants == ("cpu", "py312", "bare")
    cpu = spec.loads(VARIANTS, variant="cpu")
    assert cpu.cuda is None and cpu.full_name == "demo@cpu"
    other = spec.loads(VARIANTS, variant="py312")
    assert other.python == "3.12" and other.packages.pip == ("onnx==1.16", "numpy", "six")
    assert spec.loads(VARIANTS, variant="bare").packages.pip == ()


def test_an_unknown_variant_names_the_known() -> None:
    error = refused(VARIANTS, variant="gpu")
    assert error.reference == "unknown-variant" and "cpu, py312, bare" in error.hint


def test_a_bad_variant_is_told_even_when_not_chosen() -> None:
    told = refused(GOOD + 'variants:\n  x: {pyton: "3.12"}\n  y: {name: z}\n  z: 1\n').context
    assert told == (
        "demo.yaml:6:7: pyton: unknown key; did you mean 'python'?",
        "demo.yaml:7:6: variants.y: a variant cannot set `name`, `extends` or `variants`",
        "demo.yaml:8:6: variants.z: expected a mapping with the fields that differ",
    )


def project(tmp_path: Path, **files: str) -> Path:
    (tmp_path / "envs").mkdir(exist_ok=True)
    for name, text in files.items():
        (tmp_path / "envs" / f"{name}.yaml").write_text(text, encoding="utf-8")
    return tmp_path


def test_extends_merges_lab_base_and_project(tmp_path: Path) -> None:
    folder = project(
        tmp_path,
        lab="schema: 1\nname: lab\nkind: base\npackages: {apt: [git, curl]}\nenv: {A: x, B: x}\nuser: {name: lab}\n",
        mine='schema: 1\nname: mine\nextends: lab\nkind: environment\nframeworks: {jax: {version: "0.4.38"}}\n'
        'packages: {apt: ["git=1:2.39", vim-tiny]}\nenv: {B: y}\n',
    )
    found = spec.load("mine", cwd=folder)
    assert found.name == "mine" and found.user.name == "lab"
    assert found.packages.apt == ("git=1:2.39", "curl", "vim-tiny")
    assert dict(found.env) == {"A": "x", "B": "y"}
    assert spec.load("envs/mine.yaml", cwd=folder) == found


def test_a_problem_in_the_parent_carries_the_parents_file(tmp_path: Path) -> None:
    folder = project(tmp_path, lab="schema: 1\nname: lab\nkind: bse\n", mine=GOOD + "extends: lab\n")
    with pytest.raises(SpecError) as caught:
        spec.load("mine", cwd=folder)
    assert caught.value.context == ("envs/lab.yaml:3:7: kind: expected one of environment, base; did you mean 'base'?",)


def test_extends_in_a_circle_is_refused(tmp_path: Path) -> None:
    folder = project(tmp_path, a=GOOD + "extends: b\n", b=GOOD + "extends: a\n")
    with pytest.raises(SpecError) as caught:
        spec.load("a", cwd=folder)
    assert caught.value.reference == "extends-cycle" and "a.yaml -> b.yaml -> a.yaml" in caught.value.message


def test_a_project_spec_may_extend_the_catalogue_entry_of_its_own_name(tmp_path: Path) -> None:
    folder = project(tmp_path, **{"jax-cpu": "schema: 1\nname: jax-cpu\nextends: jax-cpu\npackages: {pip: [rich]}\n"})
    found = spec.load("jax-cpu", cwd=folder)
    assert "rich" in found.packages.pip and "jax" in found.frameworks
    assert found.path == folder / "envs" / "jax-cpu.yaml"


def test_a_missing_parent_names_the_line(tmp_path: Path) -> None:
    folder = project(tmp_path, a=GOOD + "extends: jax-cpuu\n")
    with pytest.raises(SpecError) as caught:
        spec.load("a", cwd=folder)
    assert "envs/a.yaml:5:10: extends: there is no spec 'jax-cpuu'" in caught.value.message
    assert "jax-cpu" in caught.value.hint


# --- references, flags, schema ------------------------------------------------------------------------------


@pytest.mark.parametrize("reference", ["no-such", "./no.yaml", "no/such.yml", "envs", "Bad Name", "../x"])
def test_what_is_not_there_is_said(reference: str, tmp_path: Path) -> None:
    (project(tmp_path) / "envs").mkdir(exist_ok=True)
    with pytest.raises(SpecError) as caught:
        spec.load(reference, cwd=tmp_path)
    assert caught.value.reference == "spec-not-found"


def test_the_catalogue_is_sound() -> None:
    known = spec.names()
    assert {"jax-cpu", "tf-cpu", "torch-cpu", "torch-cu118", "torch-cu124", "tf-cuda12", "jax-cuda13"} <= set(known)
    for name in known:
        assert spec.load(name).name == name


def test_flags_make_a_spec() -> None:
    found = spec.from_flags(["torch=2.0.1", "jax"], cuda="11.8", python="3.12", cudnn="8.7", base="Ubuntu 22.04")
    assert found.frameworks["torch"].version == "2.0.1" and found.frameworks["jax"].version is None
    assert found.cuda == spec.CudaSpec(version="11.8", cudnn="8.7")
    assert (found.python, found.base.image, found.name) == (
        "3.12",
        "ubuntu:22.04",
        "torch2.0.1-jax-py3.12-cu118",
    )
    assert spec.from_flags(["pytorch==2.7.1+cu118"]).frameworks["torch"].version == "2.7.1+cu118"


@pytest.mark.parametrize(
    ("frameworks", "options", "kind"),
    [
        (["torch=2.0.1", "pytorch=2.1"], {}, UsageError),
        (["torch>=2"], {}, UsageError),
        (["torch=2.0.1"], {"cudnn": "8.7"}, UsageError),
        (["torch=$(id)"], {}, SpecError),
        (["tortch=2.0"], {}, SpecError),
        (["torch=2.0.1"], {"python": "3"}, SpecError),
        (["torch=2.0.1"], {"base": "a b"}, SpecError),
    ],
)
def test_bad_flags(frameworks: list[str], options: dict[str, str], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        spec.from_flags(frameworks, **options)


def test_the_committed_schema_is_generated() -> None:
    assert json.loads(data("spec.schema.json").read_text(encoding="utf-8")) == spec.schema()


def test_the_schema_agrees_with_the_reader() -> None:
    validator = jsonschema.Draft202012Validator(spec.schema())
    validator.check_schema(spec.schema())
    for name in spec.names():
        tree = plain(parse((spec.load(name).path or Path()).read_bytes(), source=name))
        assert list(validator.iter_errors(tree)) == [], name
    for bad in (
        {"name": "a", "pyton": "3.11"},
        {"name": "A B"},
        {"name": "a", "packages": {"pip": ["six; touch /x"]}},
    ):
        assert list(validator.iter_errors(bad)) != []
