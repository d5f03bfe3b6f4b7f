"""One suite for every engine: what the pipeline may rely on, whichever engine it was given."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from envforge.engine import GpuRequest, RunRequest
from envforge.errors import EngineError, GpuUnavailable

if TYPE_CHECKING:
    from tests.contract.conftest import Subject


@pytest.fixture
def digest() -> str:
    return "sha256:" + uuid.uuid4().hex * 2


def test_info_says_who_answers(subject: Subject) -> None:
    info = subject.engine.info()
    assert info.name == subject.engine.name
    assert info.version and info.flavour
    assert info.platform == "linux/amd64"


def test_a_build_has_no_name_until_it_is_tagged(subject: Subject, digest: str) -> None:
    engine = subject.engine
    lines: list[str] = []
    built = subject.build(digest, progress=lines.append)
    assert built.size_bytes > 0
    assert built.steps and all(step.seconds >= 0 for step in built.steps)
    assert Path(built.log).read_text(encoding="utf-8").strip()
    assert lines
    assert engine.find(digest) is None, "an untested environment must not be found"
    engine.tag(built.image, "envforge/contract", digest[7:19])
    found = engine.find(digest)
    assert found is not None and found.image == built.image
    assert any(tag.endswith(f"envforge/contract:{digest[7:19]}") for tag in found.tags)
    assert found.labels["envforge.inputs-digest"] == digest
    assert engine.find("sha256:" + "0" * 64) is None


def test_inspect_by_id_and_by_tag(subject: Subject, digest: str) -> None:
    built = subject.build(digest)
    subject.engine.tag(built.image, "envforge/contract", digest[7:19])
    by_id = subject.engine.inspect(built.image)
    by_tag = subject.engine.inspect(f"envforge/contract:{digest[7:19]}")
    assert by_id == by_tag
    assert by_id.labels["envforge.name"] == "contract"
    assert by_id.size_bytes > 0 and by_id.created


def test_images_lists_it_until_it_is_removed(subject: Subject, digest: str) -> None:
    built = subject.build(digest)
    assert built.image in [info.image for info in subject.engine.images()]
    subject.engine.remove(built.image)
    assert built.image not in [info.image for info in subject.engine.images()]
    with pytest.raises(EngineError) as caught:
        subject.engine.inspect(built.image)
    assert caught.value.reference == "image-not-found"


def test_a_missing_image_cannot_run(subject: Subject) -> None:
    with pytest.raises(EngineError) as caught:
        subject.engine.run("envforge/contract:absent", RunRequest(argv=("python", "-c", "pass")))
    assert caught.value.reference == "image-not-found"


def test_run_gives_code_streams_and_lines(subject: Subject, digest: str) -> None:
    built = subject.build(digest)
    program = "import sys; print('out ü'); print('err', file=sys.stderr); sys.exit(3)"
    result = subject.engine.run(built.image, RunRequest(argv=("python", "-c", program)))
    assert (result.code, result.stdout, result.stderr) == (3, "out ü\n", "err\n")
    assert not result.timed_out and not result.oom_killed and result.seconds > 0
    lines: list[str] = []
    subject.engine.run(built.image, RunRequest(argv=("python", "-c", "print('a'); print('b')"), on_line=lines.append))
    assert lines == ["a", "b"]


def test_run_brings_files_in_and_out(subject: Subject, digest: str) -> None:
    built = subject.build(digest)
    program = (
        "import os, pathlib\n"
        "here = pathlib.Path(os.environ['ENVFORGE_DIR'])\n"
        "text = (here / 'in' / 'data.txt').read_text()\n"
        "(here / 'out.txt').write_text(text.upper() + os.environ['EXTRA'])\n"
    )
    request = RunRequest(
        argv=("python", "/envforge/program.py"),
        files={"program.py": program.encode(), "in/data.txt": b"hello "},
        env={"EXTRA": "$HOME `id`"},
        collect=("out.txt", "absent.txt"),
    )
    result = subject.engine.run(built.image, request)
    assert result.code == 0, result.stderr
    assert dict(result.collected) == {"out.txt": b"HELLO $HOME `id`"}


def test_nothing_of_one_run_reaches_the_next(subject: Subject, digest: str) -> None:
    built = subject.build(digest)
    write = "import os, pathlib; pathlib.Path(os.environ['ENVFORGE_DIR'], 'left').write_text('x')"
    look = "import os, pathlib; print(pathlib.Path(os.environ['ENVFORGE_DIR'], 'left').exists())"
    assert subject.engine.run(built.image, RunRequest(argv=("python", "-c", write))).code == 0
    assert subject.engine.run(built.image, RunRequest(argv=("python", "-c", look))).stdout == "False\n"


def test_a_time_limit_ends_the_run(subject: Subject, digest: str) -> None:
    built = subject.build(digest)
    started = time.monotonic()
    program = "import time; print('begun', flush=True); time.sleep(120)"
    result = subject.engine.run(built.image, RunRequest(argv=("python", "-c", program), timeout=3))
    assert result.timed_out and result.code != 0
    assert "begun" in result.stdout
    assert time.monotonic() - started < 60


def test_a_promised_gpu_that_is_absent_is_an_error(gpu_subject: Subject, digest: str) -> None:
    """Held on machines without a GPU; with one, this test has nothing to say and the GPU tests take over."""
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    built = gpu_subject.build(digest)
    with pytest.raises(GpuUnavailable):
        gpu_subject.engine.run(built.image, RunRequest(argv=("python", "-c", "pass"), gpus=GpuRequest(kind="all")))
    relaxed = RunRequest(argv=("python", "-c", "pass"), gpus=GpuRequest(kind="auto"))
    assert gpu_subject.engine.run(built.image, relaxed).code == 0


def test_isolation(container_subject: Subject, digest: str) -> None:
    built = container_subject.build(digest)
    program = (
        "import os, pathlib\n"
        "print(sorted(os.listdir('/sys/class/net')))\n"
        "try:\n    pathlib.Path('/opt/env/x').write_text('')\n"
        "except OSError as error:\n    print(error.strerror)\n"
        "pathlib.Path('/tmp/x').write_text('')\n"
        "print(os.getuid())\n"
    )
    result = container_subject.engine.run(built.image, RunRequest(argv=("python", "-c", program), user="1234:1234"))
    assert result.stdout.splitlines() == ["['lo']", "Read-only file system", "1234"], result.stderr
    writable = RunRequest(argv=("python", "-c", "open('/opt/env/x', 'w')"), read_only=False)
    assert container_subject.engine.run(built.image, writable).code == 0


def test_memory_limit(container_subject: Subject, digest: str) -> None:
    built = container_subject.build(digest)
    hungry = RunRequest(argv=("python", "-c", "x = bytearray(10**9)"), memory_bytes=64 * 2**20)
    result = container_subject.engine.run(built.image, hungry)
    assert (result.code, result.oom_killed) == (137, True)
    modest = RunRequest(argv=("python", "-c", "x = bytearray(10**6)"), memory_bytes=64 * 2**20)
    assert not container_subject.engine.run(built.image, modest).oom_killed


def test_a_missing_command_is_named(subject: Subject, digest: str) -> None:
    built = subject.build(digest)
    with pytest.raises(EngineError) as caught:
        subject.engine.run(built.image, RunRequest(argv=("no-such-command",)))
    assert caught.value.reference == "command-not-found"
