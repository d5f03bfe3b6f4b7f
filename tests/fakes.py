"""A fake engine held to the same contract as the real ones (tests/contract/test_engine.py).

Images are records in memory. A command runs for real, on this machine's Python in a private folder, unless a
``script`` is given, which then answers instead.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from envforge import process
from envforge.engine import (
    BuildOptions,
    BuildStep,
    Built,
    EngineInfo,
    EngineName,
    ImageInfo,
    RunRequest,
    RunResult,
)
from envforge.errors import EngineError, GpuUnavailable
from envforge.lock import Lock
from envforge.plan import Rendered
from envforge.resolve import Resolution

Script = Callable[[str, RunRequest], RunResult]


class FakeEngine:
    """``script`` answers runs; ``fail_build`` is raised by the next build. ``calls`` lists what was asked."""

    name: EngineName = "docker"

    def __init__(self, folder: Path, *, script: Script | None = None, buildkit: bool = True) -> None:
        self._folder = folder
        self._script = script
        self._buildkit = buildkit
        self._images: dict[str, ImageInfo] = {}
        self._bases: list[ImageInfo] = []
        self.registry: set[str] = set()
        self.fail_build: Exception | None = None
        self.calls: list[str] = []

    def info(self) -> EngineInfo:
        return EngineInfo(name="docker", version="0", flavour="fake", buildkit=self._buildkit, platform="linux/amd64")

    def build(self, rendered: Rendered, resolution: Resolution, lock: Lock, options: BuildOptions) -> Built:
        self.calls.append("build")
        if self.fail_build is not None:
            error, self.fail_build = self.fail_build, None
            raise error
        log = self._folder / f"{uuid.uuid4().hex}.log"
        log.write_text("RUN everything\n", encoding="utf-8")
        if options.progress:
            options.progress("RUN everything")
        image = f"sha256:{uuid.uuid4().hex * 2}"
        self._images[image] = ImageInfo(
            image=image,
            tags=(),
            labels={"envforge.inputs-digest": lock.inputs_digest, "envforge.name": lock.name},
            env=dict(resolution.env),
            user=resolution.user.name,
            size_bytes=1000,
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )
        step = BuildStep(name="RUN everything", seconds=0.1, cached=False)
        return Built(image=image, size_bytes=1000, steps=(step,), log=log)

    def find(self, inputs_digest: str) -> ImageInfo | None:
        for info in self._images.values():
            if info.labels["envforge.inputs-digest"] == inputs_digest and info.tags:
                return info
        return None

    def inspect(self, image: str) -> ImageInfo:
        for info in self._images.values():
            if image == info.image or image in info.tags:
                return info
        raise EngineError("image-not-found", f"the fake engine has no {image}")

    def run(self, image: str, request: RunRequest) -> RunResult:
        self.calls.append(f"run {request.argv[0]}")
        self.inspect(image)
        if request.gpus.promised:
            raise GpuUnavailable("gpu-no-device-driver", "the fake engine has no GPU")
        if self._script is not None:
            return self._script(image, request)
        return self._execute(request)

    def _execute(self, request: RunRequest) -> RunResult:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            here = Path(folder)
            for path, content in request.files.items():
                (here / path).parent.mkdir(parents=True, exist_ok=True)
                (here / path).write_bytes(content)
            env = {"PATH": os.defpath, "ENVFORGE_DIR": folder, "HOME": folder} | dict(request.env)
            argv = [sys.executable if word == "python" else word for word in request.argv[:1]]
            argv += [word.replace("/envforge/", f"{folder}/") for word in request.argv[1:]]
            try:
                done = process.run(argv, env=env, cwd=here, timeout=request.timeout)
            except FileNotFoundError as error:
                raise EngineError("command-not-found", str(error)) from error
            if request.on_line:
                for line in (done.stdout + done.stderr).splitlines():
                    request.on_line(line)
            found = {path: (here / path).read_bytes() for path in request.collect if (here / path).is_file()}
            return RunResult(
                code=done.code,
                stdout=done.stdout,
                stderr=done.stderr,
                seconds=done.seconds,
                timed_out=done.timed_out,
                collected=found,
            )

    def tag(self, image: str, repository: str, tag: str) -> None:
        info = self.inspect(image)
        name = f"{repository}:{tag}"
        for other in list(self._images.values()):
            if name in other.tags:
                self._images[other.image] = replace(other, tags=tuple(t for t in other.tags if t != name))
        info = self.inspect(image)
        self._images[info.image] = replace(info, tags=(*info.tags, name))

    def remove(self, image: str) -> None:
        del self._images[self.inspect(image).image]

    def images(self) -> Sequence[ImageInfo]:
        return tuple(self._images.values())

    # -- bases (what envforge.base asks for) --------------------------------------------------------

    def has(self, reference: str) -> bool:
        return reference in self.registry

    def pull(self, reference: str, progress: Callable[[str], None] | None = None) -> None:
        from envforge import docker_errors

        self.calls.append(f"pull {reference}")
        raise docker_errors.pull_failure(reference, "dial tcp: lookup registry: no such host")

    def bases(self) -> Sequence[ImageInfo]:
        return self._bases

    def add_base(self, suite: str, python: str) -> None:
        """Pretend that `base bootstrap` was run."""
        self._bases.append(
            ImageInfo(
                image="sha256:" + "b" * 64,
                tags=(f"envforge/base:{suite}-py{python}",),
                labels={"envforge.bootstrap": suite, "envforge.bootstrap-python": python},
                env={},
                user="",
                size_bytes=1,
                created="2026-01-01T00:00:00Z",
            )
        )
