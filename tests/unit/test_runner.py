"""run and shell: what is decided before anything starts."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envforge import profiles, runner
from envforge.engine import ImageInfo
from envforge.errors import EngineError, GpuUnavailable, UsageError
from envforge.hostfacts import GpuFacts, HostFacts, NvmlFacts
from envforge.passthrough import Passthrough, device_requests, parse_gpus
from envforge.runner import Caller, RunOptions
from envforge.session import Mount, Session, _frames, _less, body

IMAGE = ImageInfo(
    image="sha256:1", tags=("envforge/a:1",), labels={}, env={}, user="1000", size_bytes=1, created="2026"
)
GPU = Passthrough(form="cdi", device_requests=({"driver": "cdi"},))


def plan(flavour: str = "docker", caller: Caller | None = None, **changes: Any) -> Session:
    options = changes.pop("options", RunOptions(argv=("python", "x.py")))
    return runner.plan(
        options,
        image=IMAGE,
        caller=caller or Caller(uid=1234, gid=500, groups=(500, 27), name="lea"),
        cwd=Path("/home/lea/project"),
        caches=Path("/home/lea/cache"),
        flavour=flavour,
        tty=False,
        memory_bytes=64 << 30,
        **changes,
    )


def test_the_folder_and_the_caches_are_mounted_and_the_user_is_the_caller() -> None:
    found = plan()
    assert found.mounts == (
        Mount(source="/home/lea/project", target="/work"),
        Mount(source="/home/lea/cache", target="/envforge-cache"),
    )
    assert (found.workdir, found.user, found.groups, found.userns) == ("/work", "1234:500", ("27",), None)
    assert found.argv == ("python", "x.py")
    assert found.shm_bytes == 32 << 30


@pytest.mark.parametrize(
    ("flavour", "user", "userns"),
    [
        ("docker", "1234:500", None),
        ("docker (rootless)", "0:0", None),
        ("podman", "1234:500", None),
        ("podman (rootless)", "1234:500", "keep-id"),
        ("docker (desktop)", "1234:500", None),
    ],
)
def test_files_belong_to_the_caller_on_every_engine(flavour: str, user: str, userns: str | None) -> None:
    found = plan(flavour)
    assert (found.user, found.userns) == (user, userns)


def test_limits_only_where_they_can_be_raised() -> None:
    assert plan().ulimits == ()
    assert ("memlock", -1, -1) in plan(choice=GPU).ulimits
    assert plan("docker (rootless)", choice=GPU).ulimits == ()
    assert plan("podman", choice=GPU).ulimits == ()
    assert plan(choice=GPU).passthrough is GPU


def test_caches_home_and_name_are_set_and_own_values_win() -> None:
    found = plan().env
    assert found["HOME"] == "/envforge-cache/home"
    assert found["TRITON_CACHE_DIR"] == "/envforge-cache/triton"
    assert found["USER"] == found["LOGNAME"] == "lea"
    options = RunOptions(argv=("x",), env={"HOME": "/work", "NCCL_DEBUG": "TRACE"}, profiles=("debug",))
    changed = plan(options=options).env
    assert (changed["HOME"], changed["NCCL_DEBUG"]) == ("/work", "TRACE")
    assert changed["CUDA_LAUNCH_BLOCKING"] == "1"


def test_jupyter() -> None:
    found = plan(options=RunOptions(argv=(), jupyter=True), token="secret")
    assert found.argv[:3] == ("python", "-m", "jupyterlab")
    assert "--IdentityProvider.token=secret" in found.argv
    assert found.ports == (("127.0.0.1", 8888, 8888),)
    other = plan(options=RunOptions(argv=(), jupyter=True, ports=(("127.0.0.1", 9000, 8888),)), token="secret")
    assert other.ports == (("127.0.0.1", 9000, 8888),)


@pytest.mark.parametrize(("memory", "expected"), [(1 << 30, 1 << 30), (64 << 30, 32 << 30)])
def test_shared_memory_default(memory: int, expected: int) -> None:
    assert runner.shm_default(memory) == expected


@pytest.mark.parametrize(
    ("text", "size"),
    [("8g", 8 << 30), ("512m", 512 << 20), ("1.5GiB", 3 << 29), ("1024", 1024), ("2 TB", 2 << 40), ("64kb", 65536)],
)
def test_sizes(text: str, size: int) -> None:
    assert runner.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1g", "8x", "g", "8g; rm"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        runner.parse_size(text)
    assert caught.value.reference == "bad-size"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8888", ("127.0.0.1", 8888, 8888)),
        ("9000:8888", ("127.0.0.1", 9000, 8888)),
        ("0.0.0.0:80:8080", ("0.0.0.0", 80, 8080)),
    ],
)
def test_ports(text: str, expected: tuple[str, int, int]) -> None:
    assert runner.parse_port(text) == expected


@pytest.mark.parametrize("text", ["", "0", "70000", "a", "1:2:3:4", "host name:1:2", "80:"])
def test_bad_ports(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        runner.parse_port(text)
    assert caught.value.reference == "bad-port"


def test_variables_from_the_command_line() -> None:
    found = runner.parse_env(["A=1", "B=x=y", "C=", "D"], {"D": "here"})
    assert found == {"A": "1", "B": "x=y", "C": "", "D": "here"}


@pytest.mark.parametrize("word", ["=1", "1A=2", "A B=1", "MISSING", "A-B=1", ""])
def test_bad_variables(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        runner.parse_env([word], {})
    assert caught.value.reference == "bad-env"


def test_pick_prefers_the_present_lock_then_the_newest() -> None:
    old = replace(IMAGE, image="old", tags=("envforge/a:111111111111",), created="2026-01-01")
    new = replace(IMAGE, image="new", tags=("envforge/a:222222222222",), created="2026-02-01")
    other = replace(IMAGE, image="other", tags=("envforge/ab:333333333333",), created="2026-03-01")
    images = (old, new, other)
    found = runner.pick(images, "envforge/a", "111111111111")
    assert found is not None and (found.image.image, found.remark) == ("old", "")
    found = runner.pick(images, "envforge/a", "444444444444")
    assert found is not None and found.image.image == "new"
    assert "older lock" in found.remark
    found = runner.pick(images, "envforge/a", None)
    assert found is not None and (found.image.image, found.remark) == ("new", "")
    assert runner.pick(images, "envforge/none", None) is None


class _Engine:
    name = "docker"

    def __init__(self, images: tuple[ImageInfo, ...]) -> None:
        self._images = images

    def images(self) -> tuple[ImageInfo, ...]:
        return self._images

    def inspect(self, image: str) -> ImageInfo:
        for info in self._images:
            if image in info.tags or image == info.image:
                return info
        raise EngineError("image-not-found", image)


def test_find_by_name_by_reference_and_not_at_all() -> None:
    engine = _Engine((replace(IMAGE, tags=("envforge/torch-x:abc", "lab/own:1")),))
    assert runner.find(engine, "torch-x").image.image == "sha256:1"
    assert runner.find(engine, "lab/own:1").image.image == "sha256:1"
    with pytest.raises(EngineError) as caught:
        runner.find(engine, "jax-x")
    assert caught.value.reference == "not-built"
    assert "envforge build jax-x" in caught.value.hint


def test_variant_names_the_repository_with_a_dash() -> None:
    from envforge.plan import repository

    engine = _Engine((replace(IMAGE, tags=(f"{repository('torch-x@cpu')}:abc",)),))
    assert runner.find(engine, "torch-x@cpu").image.image == "sha256:1"


@pytest.mark.parametrize(
    ("gpus", "count", "expected"),
    [("none", 0, ""), ("device=1,2", 4, "1,2"), ("2", 4, "0,1"), ("all", 4, None), ("auto", 0, None)],
)
def test_local_environment(gpus: str, count: int, expected: str | None) -> None:
    options = RunOptions(argv=("x",), gpus=parse_gpus(gpus), env={"A": "1"}, profiles=("shared-gpu",))
    outside = {"PATH": "/usr/bin", "PYTHONPATH": "/bad", "CONDA_PREFIX": "/bad", "KEPT": "1"}
    found = runner.local_environment(options, "/prefix", outside, count)
    assert found.get("CUDA_VISIBLE_DEVICES") == expected
    assert found["PATH"] == "/prefix/bin:/usr/bin"
    assert found["VIRTUAL_ENV"] == "/prefix"
    assert found["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert (found["A"], found["KEPT"]) == ("1", "1")
    assert "PYTHONPATH" not in found and "CONDA_PREFIX" not in found


def test_local_gpu_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    from envforge import host

    two = HostFacts(nvml=NvmlFacts(status="ok", driver="550.120", gpus=(GpuFacts(index=0), GpuFacts(index=1))))
    monkeypatch.setattr(host, "probe", lambda **_: two)
    assert runner.require_local_gpu(parse_gpus("auto")) == 0
    assert runner.require_local_gpu(parse_gpus("device=1")) == 2
    for text in ("3", "device=2"):
        with pytest.raises(GpuUnavailable) as caught:
            runner.require_local_gpu(parse_gpus(text))
        assert caught.value.reference == "gpu-unknown-device"
    monkeypatch.setattr(host, "probe", lambda **_: HostFacts())
    with pytest.raises(GpuUnavailable) as caught:
        runner.require_local_gpu(parse_gpus("all"))
    assert caught.value.reference == "gpu-none"


def test_local_run_becomes_the_command(tmp_path: Path) -> None:
    """A prefix of the local engine: its programs come first; exit code and signal are the command's own."""
    import json

    prefix = tmp_path / "home" / "prefixes" / "x-1"
    (prefix / "bin").mkdir(parents=True)
    (prefix / ".envforge").mkdir()
    state = {"tags": ["envforge/x:1"], "labels": {}, "env": {}, "created": "2026"}
    (prefix / ".envforge" / "environment.json").write_text(json.dumps(state))
    tool = prefix / "bin" / "mytool"
    tool.write_text('#!/bin/sh\necho "$VIRTUAL_ENV|$1|$PWD"; exit 9\n')
    tool.chmod(0o755)
    env = os.environ | {"ENVFORGE_HOME": str(tmp_path / "home")}
    words = [sys.executable, "-m", "envforge", "run", "x", "--engine", "local", "--"]
    done = subprocess.run([*words, "mytool", "a b"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (9, f"{prefix}|a b|{tmp_path}\n"), done.stderr
    done = subprocess.run([*words, "sh", "-c", "kill -TERM $$"], cwd=tmp_path, env=env)
    assert done.returncode == -15
    done = subprocess.run([*words, "no-such-tool"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 6
    assert "command-not-found" in done.stderr


def test_an_image_that_demands_a_newer_driver_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    from envforge import host

    found = NvmlFacts(status="ok", driver="470.256.02", cuda="11.4", gpus=(GpuFacts(index=0, name="GeForce"),))
    monkeypatch.setattr(host, "nvml", lambda _: found)
    runner.require_driver({"NVIDIA_REQUIRE_CUDA": "cuda>=11.4"})
    runner.require_driver({"NVIDIA_REQUIRE_CUDA": "cuda>=11.8", "NVIDIA_DISABLE_REQUIRE": "1"})
    runner.require_driver({})
    with pytest.raises(GpuUnavailable) as caught:
        runner.require_driver({"NVIDIA_REQUIRE_CUDA": "cuda>=11.8 brand=tesla,driver>=470,driver<471"})
    assert caught.value.reference == "gpu-driver-too-old"
    assert caught.value.context == ("the image demands cuda>=11.8; driver 470.256.02 supports CUDA 11.4",)
    monkeypatch.setattr(host, "nvml", lambda _: NvmlFacts())
    runner.require_driver({"NVIDIA_REQUIRE_CUDA": "cuda>=11.8"})


def test_container_request() -> None:
    """The whole request of the Engine API, with exact device requests."""
    session = Session(
        argv=("python", "a b"),
        env={"A": "1"},
        mounts=(Mount(source="/s", target="/t", read_only=True),),
        user="1:2",
        ports=(("127.0.0.1", 9000, 8888),),
        shm_bytes=5,
        ulimits=(("memlock", -1, -1),),
        passthrough=device_requests(parse_gpus("device=0,1"), "nvidia"),
        network=False,
    )
    found = body("image", session, {"l": "v"})
    assert (found["Entrypoint"], found["Cmd"], found["Env"], found["User"]) == (["python"], ["a b"], ["A=1"], "1:2")
    host = found["HostConfig"]
    assert host["Binds"] == ["/s:/t:ro"]
    assert host["DeviceRequests"] == [{"Driver": "nvidia", "Capabilities": [["gpu"]], "DeviceIDs": ["0", "1"]}]
    assert host["PortBindings"] == {"8888/tcp": [{"HostIp": "127.0.0.1", "HostPort": "9000"}]}
    assert (host["NetworkMode"], host["ShmSize"], host["Init"]) == ("none", 5, True)
    assert host["Ulimits"] == [{"Name": "memlock", "Soft": -1, "Hard": -1}]
    podman = body("i", replace(session, passthrough=device_requests(parse_gpus("all"), "cdi-device")), {})["HostConfig"]
    assert podman["Devices"][0]["PathOnHost"] == "nvidia.com/gpu=all"
    with pytest.raises(KeyError):
        body("i", replace(session, passthrough=Passthrough(form="cdi", device_requests=({"divice_ids": []},))), {})


@pytest.mark.parametrize(
    ("said", "init", "ulimits"),
    [
        ("error setting rlimit type 8: operation not permitted", True, ()),
        ("container-init binary not found: catatonit", False, (("memlock", -1, -1),)),
    ],
)
def test_helps_that_an_engine_cannot_give_are_left_out(
    said: str, init: bool, ulimits: tuple[tuple[str, int, int], ...]
) -> None:
    session = Session(argv=("x",), ulimits=(("memlock", -1, -1),))
    less = _less(session, said)
    assert less is not None and (less.init, less.ulimits) == (init, ulimits)
    assert _less(session, "no such image") is None
    assert _less(replace(session, ulimits=(), init=False), said) is None


def test_profiles_are_explained_and_unknown_ones_refused() -> None:
    rows = profiles.profiles()
    assert {"deterministic", "shared-gpu", "low-memory", "debug", "multi-gpu"} <= set(rows)
    for row in rows.values():
        assert row.summary and row.variables
        for one in row.variables:
            assert one.why and one.frameworks and one.source.startswith("https://")
            assert isinstance(one.value, str)
    named = {one.name for row in rows.values() for one in row.variables}
    wanted = {
        "PYTORCH_CUDA_ALLOC_CONF",
        "XLA_PYTHON_CLIENT_PREALLOCATE",
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "CUBLAS_WORKSPACE_CONFIG",
        "NCCL_DEBUG",
    }
    assert wanted <= named
    with pytest.raises(UsageError) as caught:
        profiles.environment(["fast"])
    assert caught.value.reference == "unknown-profile"
    with pytest.raises(UsageError) as caught:
        profiles.environment(["debug", "multi-gpu"])
    assert caught.value.reference == "profiles-disagree"
    assert profiles.environment(["shared-gpu", "low-memory"])["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


def test_stream_frames_in_any_cut() -> None:
    import io

    data = b"\x01\0\0\0\0\0\0\x05hello" + b"\x02\0\0\0\0\0\0\x03err" + b"\x01\0\0\0\0\0\0\x01!"
    for cut in range(len(data)):
        out, err = io.BytesIO(), io.BytesIO()
        rest = _frames(_frames(data[:cut], out, err) + data[cut:], out, err)
        assert (out.getvalue(), err.getvalue(), rest) == (b"hello!", b"err", b"")
