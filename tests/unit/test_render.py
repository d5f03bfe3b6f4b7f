"""Rendering: whole files against committed ones, same bytes everywhere, and nothing of a spec left unquoted."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envforge import compat, spec
from envforge.errors import LockError, SpecError
from envforge.lock import Lock, LockedBase, LockedPackage, seal
from envforge.plan import Form, Rendered, make_plan
from envforge.render import context_tar, quote_value, render
from envforge.resolve import PipRequirement, Resolution, package_name, resolve

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
CASES = sorted(path.name for path in GOLDEN.iterdir() if (path / "spec.yaml").is_file())
FORMS: tuple[Form, ...] = ("buildkit", "plain")


def hash_of(number: int) -> str:
    return "sha256:" + f"{number:x}" * 64


def lock_of(found: Resolution) -> Lock:
    """A lock with one file per requirement; the hashes are made up."""

    def locked(item: PipRequirement) -> LockedPackage:
        version = re.search(r"==([A-Za-z0-9.+]+)", item.text)
        return LockedPackage(
            name=package_name(item.text),
            version=version[1] if version else "1.0",
            index=item.index,
            hashes=(hash_of(1),),
        )

    made = Lock(
        name=found.name,
        resolution_digest="",
        inputs_digest="",
        python=found.python,
        platform=found.platform,
        base=LockedBase(image=found.base.image, digest=found.base.digest, reason="no registry was asked"),
        pip=tuple(locked(item) for item in found.requirements),
        indexes=found.indexes,
        tools={"uv": "0.9.1"},
        tool_packages=(LockedPackage(name="uv", version="0.9.1", index="default", hashes=(hash_of(2),)),),
    )
    return seal(made, found)


@cache
def case(name: str) -> tuple[Resolution, Lock]:
    found = resolve(spec.load(str(GOLDEN / name / "spec.yaml")), compat.load())
    return found, lock_of(found)


def made(name: str, form: Form) -> Rendered:
    found, lock = case(name)
    return render(make_plan(found, lock, form))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_the_dockerfile_is_the_committed_one(name: str, form: Form, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / name / f"Dockerfile.{form}"
    text = made(name, form).dockerfile
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("form", FORMS)
def test_unlocked_says_so_inside(form: Form, request: pytest.FixtureRequest) -> None:
    rendered = render(make_plan(case("wheels-cu118")[0], None, form))
    path = GOLDEN / "wheels-cu118" / f"Dockerfile.{form}.unlocked"
    if request.config.getoption("--update-golden"):
        path.write_text(rendered.dockerfile, encoding="utf-8")
    assert rendered.dockerfile == path.read_text(encoding="utf-8")
    assert "# UNLOCKED" in rendered.dockerfile and "--require-hashes" not in rendered.dockerfile
    assert rendered.files["locks/pip.pytorch-cu118.txt"] == b"torch==2.7.1+cu118\ntorchvision==0.22.1+cu118\n"


def hadolint(path: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("hadolint")
    return subprocess.run([str(program), "--no-color", str(path)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.glob("*/Dockerfile.*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_hadolint_finds_nothing(path: Path) -> None:
    answer = hadolint(path)
    assert (answer.stdout, answer.returncode) == ("", 0)


def test_hadolint_control_finds_something(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian\nRUN cd /tmp && sudo apt-get install git\n", encoding="utf-8")
    assert "DL3006" in hadolint(bad).stdout


# --- stability ----------------------------------------------------------------------------------------------


def test_the_same_bytes_in_another_process_place_and_time(tmp_path: Path) -> None:
    program = (
        "import sys, hashlib; sys.path.insert(0, sys.argv[1])\n"
        "from tests.unit.test_render import made, CASES, FORMS\n"
        "from envforge.render import context_tar\n"
        "print(hashlib.sha256(b''.join(context_tar(made(c, f)) for c in CASES for f in FORMS)).hexdigest())\n"
    )
    root = GOLDEN.parent.parent
    answers = set()
    for number, extra in enumerate(
        (
            {"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo", "LC_ALL": "C", "HOME": str(tmp_path)},
            {
                "PYTHONHASHSEED": "2",
                "UV_INDEX_URL": "https://x.example",
                "HTTP_PROXY": "http://p.example",
                "LANG": "de",
            },
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        env = {"PATH": os.environ["PATH"], **extra}
        done = subprocess.run(
            [sys.executable, "-c", program, str(root)],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        answers.add(done.stdout)
    assert len(answers) == 1


def test_the_context_tar_has_no_owner_time_or_chance() -> None:
    import io
    import tarfile

    data = context_tar(made("everything", "buildkit"))
    assert data == context_tar(made("everything", "buildkit"))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = archive.getmembers()
    assert [m.name for m in members] == sorted(m.name for m in members)
    assert {(m.uid, m.gid, m.mtime, m.mode) for m in members} == {(0, 0, 0, 0o644)}
    assert {"Dockerfile", "build/ca.pem", "build/host.sh", "build/index-url", "locks/pip.default.txt"} <= {
        m.name for m in members
    }


def test_a_note_or_label_does_not_touch_the_package_layer() -> None:
    found, lock = case("cpu")
    other = replace(found, description="other words", reasons=())
    one, two = render(make_plan(found, lock)), render(make_plan(other, replace(lock, notes=("a note",))))
    assert one.files == two.files
    cut = "# labels come last"
    body = one.dockerfile[one.dockerfile.index("FROM ") : one.dockerfile.index(cut)]
    assert body == two.dockerfile[two.dockerfile.index("FROM ") : two.dockerfile.index(cut)]


# --- content ------------------------------------------------------------------------------------------------


def instructions(text: str) -> list[str]:
    """Logical lines: comments dropped, continuations joined; asserts that each starts with a known word."""
    logical: list[str] = []
    open_line = False
    for line in text.splitlines():
        if not open_line and (not line.strip() or line.startswith("#")):
            continue
        part = line[:-1] if line.endswith("\\") else line
        if open_line:
            logical[-1] += part
        else:
            logical.append(part)
        open_line = line.endswith("\\")
    assert not open_line
    for line in logical:
        assert re.match(r"(FROM|RUN|COPY|ENV|LABEL|USER|WORKDIR|CMD) ", line), line
    return logical


def pairs(line: str) -> dict[str, str]:
    """KEY="value" words of ENV or LABEL, unquoted as Docker does; asserts that nothing else stands there."""
    found = {}
    rest = line.partition(" ")[2].strip()
    while rest:
        match = re.match(r'([A-Za-z_][A-Za-z0-9_.-]*)="((?:[^"\\$]|\\["\\$])*)"\s*', rest)
        assert match, rest
        found[match[1]] = re.sub(r'\\(["\\$])', r"\1", match[2])
        rest = rest[match.end() :]
    return found


@pytest.mark.parametrize("form", FORMS)
def test_layers_come_in_the_order_of_their_churn(form: Form) -> None:
    text = made("everything", form).dockerfile
    final = text[text.index("AS final") :]
    marks = [
        "# hook: first",
        "# apt:",
        "# hook: second",
        "ENV HOME",
        "# pip:",
        "# hook: third",
        "# env:",
        "# user:",
    ]
    marks += ["COPY --chown", "# hook: fourth", "WORKDIR", "USER 1234:567\nCMD", "LABEL"]
    places = [final.index(mark) for mark in marks]
    assert places == sorted(places)
    assert instructions(text)[-1].startswith("LABEL ")


def test_values_survive_quoting() -> None:
    lines = instructions(made("everything", "buildkit").dockerfile)
    env: dict[str, str] = {}
    for line in lines:
        if line.startswith("ENV "):
            env |= pairs(line)
    assert env["GREETING"] == 'say "hi" to $USER \\o/' and env["EMPTY"] == ""
    labels = pairs(lines[-1])
    assert labels["org.opencontainers.image.description"] == 'Every field, with "quotes", $dollars and a \\ in it'
    hooks = [json.loads(line[4:]) for line in lines if line.startswith('RUN ["')]
    assert ["sh", "-c", "echo '$HOME' \"x\" ; ls"] in hooks and ["python", "-c", "print('é')"] in hooks


def test_the_user_owns_the_working_folder_and_nothing_large() -> None:
    """BC-38: folders get their owner before COPY, by number, and no tree is chowned."""
    lines = instructions(made("everything", "buildkit").dockerfile)
    made_at = next(
        i for i, line in enumerate(lines) if "install -d -o 1234 -g 567 -m 0755 /home/app /srv/project" in line
    )
    copied_at = next(i for i, line in enumerate(lines) if line.startswith("COPY --chown=1234:567"))
    assert made_at < copied_at
    text = "\n".join(lines)
    assert "chown -R" not in text and "chmod 777" not in text


@pytest.mark.parametrize("name", CASES)
def test_plain_form_needs_no_buildkit_and_leaves_host_settings_behind(name: str) -> None:
    lines = instructions(made(name, "plain").dockerfile)
    assert not any("--mount" in line for line in lines)
    final = lines[next(i for i, line in enumerate(lines) if line.endswith("AS final")) :]
    assert not any(line.startswith("COPY build") or "host.sh" in line for line in final)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_no_argument_no_secret_no_default_index(name: str, form: Form) -> None:
    text = made(name, form).dockerfile
    assert not re.search(r"(?m)^ARG ", text)  # Docker writes arguments into the history
    for found in re.findall(r"https?://\S+", text):
        assert "download.pytorch.org" in found
    assert "LD_LIBRARY_PATH=" not in text


def test_uv_is_mounted_and_packages_are_installed_once() -> None:
    lines = instructions(made("wheels-cu118", "buildkit").dockerfile)
    installs = [line for line in lines if "uv pip install" in line]
    assert len(installs) == 1 and installs[0].count("uv pip install") == 2
    assert installs[0].count("--no-deps --require-hashes") == 2
    assert '--default-index "$(index_url pytorch-cu118 https://download.pytorch.org/whl/cu118)"' in installs[0]
    assert not any(line.startswith("COPY") and "installer" in line for line in lines)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_what_is_mounted_or_copied_is_in_the_context(name: str, form: Form) -> None:
    rendered = made(name, form)
    folders = set(re.findall(r"source=([a-z]+),", rendered.dockerfile))
    folders |= set(re.findall(r"(?m)^COPY ([a-z]+)/ ", rendered.dockerfile))
    assert "build" in folders
    for folder in folders:
        assert any(path.startswith(f"{folder}/") for path in rendered.files), folder


def test_old_nvidia_bases_lose_the_withdrawn_archive_and_others_do_not() -> None:
    """BC-31: the fix names the distribution of the base and stands only where it is needed."""
    old = made("base-full-old", "buildkit").dockerfile
    fix = "RUN rm -f /etc/apt/sources.list.d/cuda.list /etc/apt/sources.list.d/nvidia-ml.list"
    assert "ubuntu20.04" in old and old.index(fix) < old.index("apt-get update", old.index("AS final"))
    assert "trusted=yes" not in old and "allow-unauthenticated" not in old
    assert fix not in made("base-nvcc", "buildkit").dockerfile
    found, lock = case("base-full-old")
    rebuilt = render(make_plan(found, lock, base="nvidia/cuda:11.4.3-runtime-ubuntu20.04")).dockerfile
    assert fix not in rebuilt


def test_the_toolchain_is_a_builder_stage() -> None:
    text = made("base-nvcc", "buildkit").dockerfile
    froms = [line for line in instructions(text) if line.startswith("FROM ")]
    assert any("-devel-" in line and line.endswith("AS toolchain") for line in froms)
    assert froms[-1] == "FROM base AS final" and "-devel-" not in froms[0]


def test_an_index_without_url_is_refused() -> None:
    found, lock = case("wheels-cu118")
    with pytest.raises(LockError) as caught:
        render(make_plan(found, replace(lock, indexes={})))
    assert caught.value.reference == "index-unknown"


# --- host.sh ------------------------------------------------------------------------------------------------


def sourced(tmp_path: Path, files: dict[str, str], program: str) -> str:
    """What a shell prints after reading host.sh with these files beside it."""
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    script = made("cpu", "buildkit").files["build/host.sh"].decode().replace("/run/envforge/host", str(tmp_path))
    (tmp_path / "host.sh").write_text(script, encoding="utf-8")
    shell = shutil.which("dash") or "/bin/sh"
    done = subprocess.run(
        [shell, "-euc", f". {tmp_path}/host.sh; {program}"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    return done.stdout


def test_host_settings_are_read_only_where_present(tmp_path: Path) -> None:
    show = (
        'echo "${SSL_CERT_FILE:-none} ${UV_DEFAULT_INDEX:-none} ${NETRC:-none} $(index_url lab https://lab.example/)"'
    )
    empty = dict.fromkeys(("ca.pem", "index-url", "netrc", "apt-mirror"), "")
    assert sourced(tmp_path, empty, show) == "none none none https://lab.example/\n"
    full = {
        "ca.pem": "x",
        "index-url": "https://i.example/simple",
        "netrc": "x",
        "index-url.lab": "https://other.example/",
    }
    assert sourced(tmp_path, full, show) == (
        f"{tmp_path}/ca.pem https://i.example/simple {tmp_path}/netrc https://other.example/\n"
    )


# --- hostile values -----------------------------------------------------------------------------------------

TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc"), max_codepoint=0x2FFF), max_size=40)
HOSTILE = st.sampled_from(
    [
        '"',
        "\\",
        "$",
        "${PATH}",
        "`id`",
        "$(id)",
        '\\"',
        "a\\",
        "' ; id #",
        "{{ x }}",
        "{% raw %}",
        "# syntax=x",
    ]
)
VALUE = st.one_of(TEXT, HOSTILE, st.builds(lambda a, b: a + b, TEXT, HOSTILE))


@given(TEXT | HOSTILE)
def test_quoting_is_reversible(text: str) -> None:
    assert pairs("ENV A=" + quote_value(text)) == {"A": text}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    description=VALUE,
    env=st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), VALUE, max_size=3),
    command=st.lists(VALUE, min_size=1, max_size=4),
    packages=st.lists(VALUE, max_size=3),
    workdir=VALUE,
    form=st.sampled_from(FORMS),
)
def test_any_accepted_spec_gives_a_well_formed_dockerfile(
    description: str, env: dict[str, str], command: list[str], packages: list[str], workdir: str, form: Form
) -> None:
    document = {
        "name": "hostile",
        "description": description,
        "packages": {"pip": ["six", *packages], "apt": packages},
        "env": env,
        "workdir": workdir,
        "hooks": [{"name": "h", "command": command}],
    }
    for field in ((), ("packages",), ("workdir",), ("packages", "workdir")):
        tried = {key: value for key, value in document.items() if key not in field} | (
            {"packages": {"pip": ["six"]}} if "packages" in field else {}
        )
        try:
            found = spec.loads(json.dumps(tried), source="hostile")
        except SpecError:
            continue
        resolution = resolve(found, compat.load())
        lines = instructions(render(make_plan(resolution, lock_of(resolution), form)).dockerfile)
        for line in lines:
            if line.startswith(("ENV ", "LABEL ")):
                pairs(line)
            elif line.startswith('RUN ["'):
                assert json.loads(line[4:]) == command
        shown = [pairs(line) for line in lines if line.startswith("ENV ")]
        for key, value in env.items():
            assert shown[-1][key] == value
        return


def test_the_renderer_imports_no_effect_module() -> None:
    from envforge import plan, render, resolve

    for module in (plan, render, resolve):
        tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        names |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        assert not names & {
            "os",
            "time",
            "datetime",
            "socket",
            "subprocess",
            "envforge.process",
            "docker",
            "random",
        }
