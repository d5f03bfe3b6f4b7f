"""`envforge run` against a real engine: files, exit codes, signals, input, shared memory, terminal, start-up."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.docker

RUN = [sys.executable, "-m", "envforge", "run"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {"ENVFORGE_HOME": str(tmp_path / "home")}


def start(image: str, place: Path, *words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, image, "--no-network", *options, "--", *words],
        cwd=place,
        env=environment(place.parent),
        capture_output=True,
        text=True,
        timeout=120,
    )


def strays() -> str:
    import docker

    client = docker.from_env()
    try:
        found = client.containers.list(all=True, filters={"label": "envforge.run-owner"})
        return ", ".join(one.name for one in found if one.labels.get("envforge.run") == "session")
    finally:
        client.close()


@pytest.mark.parametrize("code", [0, 1, 7, 126])
def test_exit_code_is_the_command_s(code: int, bookworm_base: str, place: Path) -> None:
    assert start(bookworm_base, place, "sh", "-c", f"exit {code}").returncode == code


def test_output_is_kept_apart_and_nothing_is_added(bookworm_base: str, place: Path) -> None:
    done = subprocess.run(
        [*RUN, bookworm_base, "--no-network", "--", "sh", "-c", "echo out; echo err >&2; printf '\\377'"],
        cwd=place,
        env=environment(place.parent),
        capture_output=True,
    )
    assert (done.stdout, done.stderr) == (b"out\n\xff", b"err\n")


def test_arguments_reach_the_command_unchanged(bookworm_base: str, place: Path) -> None:
    words = ["a b", "$HOME", "--gpus", "--json", "*", ""]
    done = start(bookworm_base, place, "python3", "-c", "import sys; print(sys.argv[1:])", *words)
    assert done.stdout.strip() == str(words)


def test_files_belong_to_the_caller(bookworm_base: str, place: Path) -> None:
    """The folder is the working folder inside, and what is written there is the caller's."""
    (place / "given").write_text("hello")
    done = start(bookworm_base, place, "sh", "-c", "cat given; mkdir made; echo new > made/file; id -u; id -g")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"hello{os.getuid()}\n{os.getgid()}\n"
    for path in (place / "made", place / "made" / "file"):
        assert (path.stat().st_uid, path.stat().st_gid) == (os.getuid(), os.getgid())


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_user_leaves_no_root_files(bookworm_base: str, place: Path, tmp_path: Path) -> None:
    """The same as an ordinary user, who is only known by number inside the image."""
    socket = Path("/var/run/docker.sock")
    if os.environ.get("DOCKER_HOST") or not socket.exists():
        pytest.skip("needs the system's own socket")
    uid, gid = 12345, 23456
    os.chown(place, uid, gid)
    # The ids are set by this test itself, the rest runs in the same process as the command would.
    code = (
        "import os; from pathlib import Path; from envforge import runner; "
        f"runner.caller = lambda: runner.Caller(uid={uid}, gid={gid}, name='lea'); "
        "from envforge.cli import main; "
        f"raise SystemExit(main(['run', {bookworm_base!r}, '--no-network', '--', 'sh', '-c', "
        "'echo x > f; id -u; echo $USER; test -w $HOME && echo home; touch $XDG_CACHE_HOME/c && echo cache']))"
    )
    home = tmp_path / "home"
    cache = home / "cache"
    cache.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-c", f"import os; os.umask(0); {code}"],
        cwd=place,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{uid}\nlea\nhome\ncache\n", done.stderr
    assert ((place / "f").stat().st_uid, (place / "f").stat().st_gid) == (uid, gid)
    assert [path for path in place.rglob("*") if path.stat().st_uid == 0] == []


def test_input_is_passed_on(bookworm_base: str, place: Path) -> None:
    text = "line\n" * 50_000
    done = subprocess.run(
        [*RUN, bookworm_base, "--no-network", "--", "sh", "-c", "wc -c"],
        input=text,
        cwd=place,
        env=environment(place.parent),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == str(len(text))


def test_large_output_is_complete(bookworm_base: str, place: Path) -> None:
    done = start(bookworm_base, place, "python3", "-c", "print('x' * 99, end='\\n' * 1); print('y' * 5_000_000)")
    assert len(done.stdout) == 100 + 5_000_001


def test_shared_memory_and_variables(bookworm_base: str, place: Path) -> None:
    options = ("--shm-size", "256m", "--env", "COLOR=red blue", "--profile", "deterministic")
    script = "df -k /dev/shm | tail -1 | awk '{print $2}'; echo $COLOR; echo $CUBLAS_WORKSPACE_CONFIG"
    done = start(bookworm_base, place, "sh", "-c", script, options=options)
    assert done.stdout == f"{256 * 1024}\nred blue\n:4096:8\n", done.stderr


def test_shared_memory_is_large_by_default(bookworm_base: str, place: Path) -> None:
    done = start(bookworm_base, place, "sh", "-c", "df -k /dev/shm | tail -1 | awk '{print $2}'")
    assert int(done.stdout) >= 1 << 20, "at least 1 GiB, not Docker's 64 MB"


def test_caches_stay_between_runs(bookworm_base: str, place: Path) -> None:
    start(bookworm_base, place, "sh", "-c", "echo kernel > $TRITON_CACHE_DIR/k")
    done = start(bookworm_base, place, "sh", "-c", "cat $TRITON_CACHE_DIR/k")
    assert done.stdout == "kernel\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 42), (signal.SIGTERM, 43)], ids=["ctrl-c", "terminate"])
def test_signals_reach_the_command(number: signal.Signals, code: int, bookworm_base: str, place: Path) -> None:
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(42))\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(43))\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    words = [*RUN, bookworm_base, "--no-network", "--", "python3", "-c", script]
    child = subprocess.Popen(words, cwd=place, env=environment(place.parent), stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(number)
    assert child.wait(timeout=30) == code
    child.stdout.close()
    assert strays() == ""


def test_a_command_that_does_nothing_about_ctrl_c_still_ends(bookworm_base: str, place: Path) -> None:
    words = [*RUN, bookworm_base, "--no-network", "--", "sh", "-c", "echo ready; exec sleep 60"]
    child = subprocess.Popen(words, cwd=place, env=environment(place.parent), stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=30) == 130
    child.stdout.close()


def test_terminal(bookworm_base: str, place: Path) -> None:
    """With a terminal here there is one inside, of the same size."""
    leader, follower = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
    words = [*RUN, bookworm_base, "--no-network", "--", "sh", "-c", "sleep 0.5; tty; stty size; read x; echo got $x"]
    child = subprocess.Popen(
        words, cwd=place, env=environment(place.parent), stdin=follower, stdout=follower, stderr=follower
    )
    os.close(follower)
    seen = b""
    sent = False
    while True:
        try:
            piece = os.read(leader, 4096)
        except OSError:
            break
        if not piece:
            break
        seen += piece
        if b"111" in seen and not sent:
            os.write(leader, b"typed\r")
            sent = True
    assert child.wait(timeout=30) == 0
    os.close(leader)
    text = seen.decode()
    assert "/dev/pts/" in text
    assert "33 111" in text
    assert "got typed" in text


def test_unknown_program(bookworm_base: str, place: Path) -> None:
    """127, as shells and `docker run` say it."""
    done = start(bookworm_base, place, "no-such-program")
    assert done.returncode == 127
    assert "no-such-program" in done.stderr
    assert strays() == ""


def test_json_keeps_stdout_for_the_document(bookworm_base: str, place: Path) -> None:
    import json

    done = start(bookworm_base, place, "sh", "-c", "echo spoken; exit 5", options=("--json",))
    document = json.loads(done.stdout)
    assert done.returncode == 5
    assert document["exit_code"] == 5 and document["engine"] == "docker"
    assert "spoken" in done.stderr


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("docker") is None, reason="the docker client is the yardstick")
def test_starts_within_the_limit_of_docker_run(bookworm_base: str, place: Path) -> None:
    """At most 0.3 s more than `docker run`, as the median of pairs. A busy machine widens the limit by its load."""
    extra = []
    for _ in range(7):
        begin = time.perf_counter()
        subprocess.run(
            [
                "docker",
                "run",
                "--rm",
                "--network",
                "none",
                "-v",
                f"{place}:/work",
                "-w",
                "/work",
                bookworm_base,
                "true",
            ],
            check=True,
        )
        middle = time.perf_counter()
        assert start(bookworm_base, place, "true").returncode == 0
        extra.append((time.perf_counter() - middle) - (middle - begin))
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert statistics.median(extra) < 0.3 * busy, extra
