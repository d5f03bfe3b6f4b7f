"""The embedded engine: the same lock installed by uv into a private prefix, the same smoke tests in it.

It needs no daemon and no root. What it cannot give is said in :meth:`LocalEngine.limits`: there is no
image, no Debian package is installed, and the host's files stay visible to the tests.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from envforge import lock as lockfile
from envforge import paths, process
from envforge.config import Config
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
from envforge.errors import BuildError, EngineError, NetworkError
from envforge.lock import Lock
from envforge.plan import Rendered
from envforge.resolve import DEFAULT_INDEX, Resolution

_MARK = Path(".envforge")
_STATE = _MARK / "environment.json"

# Settings of the caller that would change what is installed; where the default index is, is not one of them.
_DROPPED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "UV_PYTHON", "UV_CONSTRAINT", "UV_OVERRIDE")


def uv_binary() -> Path:
    """The uv program that belongs to this installation. EngineError when it is missing."""
    try:
        import uv

        return Path(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
        if found:
            return Path(found)
    raise EngineError(
        "uv-missing",
        "the program uv is not installed beside envforge",
        hint=f"{sys.executable} -m pip install uv",
    )


def machine_platform() -> str:
    """This machine in the spec's words: ``linux/amd64``, ``linux/arm64``, ``darwin/arm64`` …"""
    names = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64"}
    machine = platform.machine()
    return f"{platform.system().lower()}/{names.get(machine, machine)}"


def _tree_size(folder: Path) -> int:
    """Bytes of regular files, each hard-linked file once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            status = os.lstat(os.path.join(root, name))  # noqa: PTH118 - hot loop
            key = (status.st_dev, status.st_ino)
            if key not in seen:
                seen.add(key)
                total += status.st_size
    return total


class LocalEngine:
    """See :class:`envforge.engine.Engine`. An "image" is the prefix path."""

    name: EngineName = "local"

    def __init__(self, root: Path | None = None, config: Config | None = None) -> None:
        self.root = root if root is not None else paths.prefixes()
        self._config = config
        self._isolation: tuple[str, ...] | None = None

    def info(self) -> EngineInfo:
        probe = self.root
        while not probe.exists() and probe != probe.parent:
            probe = probe.parent
        return EngineInfo(
            name="local",
            version=platform.python_version(),
            flavour="local",
            buildkit=False,
            platform=machine_platform(),
            free_bytes=shutil.disk_usage(probe).free,
        )

    # -- building ---------------------------------------------------------------------------------

    def build(self, rendered: Rendered, resolution: Resolution, lock: Lock, options: BuildOptions) -> Built:
        """Install the lock into ``<root>/<name>-<digest>``. A failed or interrupted build removes its prefix."""
        here = machine_platform()
        if here != resolution.platform:
            raise EngineError(
                "platform-mismatch",
                f"the spec is for {resolution.platform} and this machine is {here}; the local engine cannot cross that",
                hint="use --engine docker on a host of that platform, or set `platform` in the spec",
            )
        prefix = self._prefix(lock)
        log = paths.logs() / f"{prefix.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        steps: list[BuildStep] = []
        if prefix.exists():
            if not options.no_cache and self._state(prefix) is not None:
                return Built(image=str(prefix), size_bytes=_tree_size(prefix), steps=(), log=log, reused=True)
            shutil.rmtree(prefix)
        prefix.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("w", encoding="utf-8") as stream:
                started = time.monotonic()
                if lock.conda:
                    self._make_conda(prefix, resolution, lock, options, stream.write, log)
                else:
                    self._make_venv(prefix, resolution, options, stream.write)
                steps.append(BuildStep(name="python", seconds=time.monotonic() - started, cached=False))
                for label, text in lockfile.requirement_files(lock).items():
                    started = time.monotonic()
                    self._install(prefix, label, text, lock, options, stream.write, log)
                    steps.append(BuildStep(name=f"pip {label}", seconds=time.monotonic() - started, cached=False))
                self._finish(prefix, resolution, lock)
        except BaseException:
            shutil.rmtree(prefix, ignore_errors=True)
            raise
        return Built(image=str(prefix), size_bytes=_tree_size(prefix), steps=tuple(steps), log=log)

    def _make_conda(
        self, prefix: Path, resolution: Resolution, lock: Lock, options: BuildOptions, write: object, log: Path
    ) -> None:
        """The explicit conda lock as the prefix, in a process of its own: its output goes to the log."""
        from envforge.lockers import conda, conda_install

        subdir = conda.SUBDIRS[resolution.platform]
        lines = [
            f"{conda.package_url(one)}#sha256:{one.sha256}" for one in lock.conda if one.subdir in (subdir, "noarch")
        ]
        with tempfile.TemporaryDirectory(prefix="envforge-conda-") as name:
            explicit = Path(name) / "conda.txt"
            explicit.write_text("\n".join(["@EXPLICIT", *lines]) + "\n", encoding="utf-8")
            argv: list[str | Path] = [sys.executable, conda_install.__file__, explicit, prefix, "--platform", subdir]
            argv += ["--cache", paths.cache() / "conda", "--folder", options.offline or ""]
            argv += ["--host", resolution.mirrors.get("conda", "")]
            env = {**self._uv_env(options), **conda.environment(resolution)}
            outcome = process.run(argv, env=env, timeout=options.timeout)
        _log(write, outcome)
        if not outcome.ok:
            raise BuildError(
                "conda-install",
                f"{lock.name}: the conda packages could not be installed",
                context=outcome.tail(40),
                hint=f"full log: {log}",
            )

    def _prefix(self, lock: Lock) -> Path:
        return self.root / f"{lock.name}-{lock.inputs_digest.removeprefix('sha256:')[:12]}"

    def _settings(self) -> Config:
        """This host's settings: where indexes are reached and whose certificates are trusted."""
        if self._config is None:
            from envforge import config

            self._config = config.load()
        return self._config

    def _uv_env(self, options: BuildOptions) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if key not in _DROPPED}
        env.update(options.environment)
        bundle = options.ca_bundle or self._settings().ca_bundle_path()
        if bundle:
            env["SSL_CERT_FILE"] = str(bundle)
        # pip's own settings name the default index on hosts where uv has none of its own.
        if "UV_INDEX_URL" not in env and "UV_DEFAULT_INDEX" not in env and env.get("PIP_INDEX_URL"):
            env["UV_DEFAULT_INDEX"] = env["PIP_INDEX_URL"]
        env.setdefault("UV_HTTP_TIMEOUT", "180")
        env["UV_NO_PROGRESS"] = "1"
        env["NO_COLOR"] = "1"
        return env

    def _make_venv(self, prefix: Path, resolution: Resolution, options: BuildOptions, write: object) -> None:
        argv: list[str | Path] = [
            uv_binary(),
            "venv",
            "--no-config",
            "--no-project",
            "--python",
            resolution.python,
            prefix,
        ]
        if options.offline:
            argv.insert(2, "--offline")
        outcome = process.run(argv, env=self._uv_env(options), timeout=options.timeout)
        _log(write, outcome)
        if not outcome.ok:
            raise EngineError(
                "python-not-found",
                f"Python {resolution.python} is not on this machine and could not be fetched",
                context=outcome.tail(8),
                hint=f"install python{resolution.python}, or choose a variant for a Python that is here",
            )

    def _install(
        self, prefix: Path, label: str, text: str, lock: Lock, options: BuildOptions, write: object, log: Path
    ) -> None:
        with tempfile.TemporaryDirectory(prefix="envforge-") as folder:
            file = Path(folder) / f"pip.{label}.txt"
            file.write_text(text, encoding="utf-8")
            argv: list[str | Path] = [
                uv_binary(),
                "pip",
                "install",
                "--no-config",
                "--python",
                prefix / "bin" / "python",
            ]
            argv += ["--no-deps", "--require-hashes", "--strict", "-r", file]
            if options.offline:
                argv += ["--offline", "--no-index", "--find-links", options.offline]
            elif label != DEFAULT_INDEX:
                argv += ["--default-index", self._settings().indexes.get(label, lock.indexes[label])]
            elif options.index_url or self._settings().default_index:
                argv += ["--default-index", options.index_url or self._settings().default_index or ""]
            say = options.progress

            def hear(line: str) -> None:
                if say:
                    say(line)

            outcome = process.run(argv, env=self._uv_env(options), timeout=options.timeout, on_line=hear)
        _log(write, outcome)
        if not outcome.ok:
            raise install_error(outcome.tail(40), label=label, log=log, step=f"pip packages from index {label!r}")

    def _finish(self, prefix: Path, resolution: Resolution, lock: Lock) -> None:
        state = {
            "schema": 1,
            "labels": {
                "envforge.name": lock.name,
                "envforge.inputs-digest": lock.inputs_digest,
                "envforge.base": "none (local engine)",
            },
            "env": dict(resolution.env),
            "python": resolution.python,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "tags": [],
        }
        paths.write_atomic(prefix / _STATE, (json.dumps(state, indent=2, sort_keys=True) + "\n").encode())

    # -- looking ----------------------------------------------------------------------------------

    def _state(self, prefix: Path) -> dict[str, object] | None:
        try:
            found = json.loads((prefix / _STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _info(self, prefix: Path, state: Mapping[str, object], *, size: bool = True) -> ImageInfo:
        labels, env, tags = state.get("labels"), state.get("env"), state.get("tags")
        return ImageInfo(
            image=str(prefix),
            tags=tuple(str(tag) for tag in tags) if isinstance(tags, list) else (),
            labels={str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else {},
            env={str(k): str(v) for k, v in env.items()} if isinstance(env, dict) else {},
            user="",
            size_bytes=_tree_size(prefix) if size else 0,
            created=str(state.get("created", "")),
        )

    def _entries(self) -> Iterator[tuple[Path, dict[str, object]]]:
        if self.root.is_dir():
            for prefix in sorted(self.root.iterdir()):
                state = self._state(prefix)
                if state is not None:
                    yield prefix, state

    def find(self, inputs_digest: str) -> ImageInfo | None:
        for prefix, state in self._entries():
            info = self._info(prefix, state, size=False)
            if info.labels.get("envforge.inputs-digest") == inputs_digest and info.tags:
                return info
        return None

    def _locate(self, image: str) -> Path:
        for prefix, state in self._entries():
            if image in (str(prefix), prefix.name) or image in self._info(prefix, state, size=False).tags:
                return prefix
        raise EngineError(
            "image-not-found",
            f"the local engine has no environment {image!r}",
            hint="build it first: envforge build NAME --engine local",
        )

    def inspect(self, image: str) -> ImageInfo:
        prefix = self._locate(image)
        state = self._state(prefix)
        assert state is not None  # _locate only yields prefixes with a state
        return self._info(prefix, state)

    def images(self) -> Sequence[ImageInfo]:
        return tuple(self._info(prefix, state) for prefix, state in self._entries())

    def tag(self, image: str, repository: str, tag: str) -> None:
        prefix = self._locate(image)
        state = self._state(prefix)
        assert state is not None
        old = state.get("tags")
        tags = {str(item) for item in old} if isinstance(old, list) else set()
        state["tags"] = sorted(tags | {f"{repository}:{tag}"})
        paths.write_atomic(prefix / _STATE, (json.dumps(state, indent=2, sort_keys=True) + "\n").encode())

    def remove(self, image: str) -> None:
        shutil.rmtree(self._locate(image))

    # -- running ----------------------------------------------------------------------------------

    def limits(self) -> tuple[str, ...]:
        """What this engine cannot promise, for the record."""
        found = [
            "no image: the environment is a folder of this machine",
            "Debian packages of the spec are not installed",
        ]
        if not self._no_network():
            found.append("tests are not cut off from the network (no user namespaces here)")
        return tuple(found)

    def _no_network(self) -> tuple[str, ...]:
        """The words that start a program without a network, or nothing where the kernel forbids it."""
        if self._isolation is None:
            words = ("unshare", "--user", "--map-current-user", "--net", "--")
            self._isolation = ()
            if shutil.which("unshare"):
                outcome = process.run([*words, "true"], timeout=10)
                self._isolation = words if outcome.ok else ()
        return self._isolation

    @contextmanager
    def _folder(self, request: RunRequest) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="envforge-run-") as name:
            folder = Path(name)
            for relative, content in request.files.items():
                target = folder / "files" / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            (folder / "files").mkdir(exist_ok=True)
            (folder / "tmp").mkdir()
            yield folder

    def environment(self, image: str) -> dict[str, str]:
        """The variables that make a program use this environment (PATH, VIRTUAL_ENV and the spec's own)."""
        prefix = self._locate(image)
        state = self._state(prefix) or {}
        env = dict(self._info(prefix, state, size=False).env)
        env["VIRTUAL_ENV"] = str(prefix)
        env["PATH"] = os.pathsep.join([str(prefix / "bin"), os.environ.get("PATH", os.defpath)])
        return env

    def run(self, image: str, request: RunRequest) -> RunResult:
        """Run with a clean environment: only PATH, locale, GPU and library settings of the host come through."""
        kept = (
            "LANG",
            "LC_ALL",
            "LD_LIBRARY_PATH",
            "CUDA_VISIBLE_DEVICES",
            "NVIDIA_VISIBLE_DEVICES",
            "OPENBLAS_CORETYPE",
            "OPENBLAS_L2_SIZE",
        )
        env = {key: os.environ[key] for key in kept if key in os.environ}
        env.update(self.environment(image))
        with self._folder(request) as folder:
            env.update(
                HOME=str(folder / "tmp"),
                TMPDIR=str(folder / "tmp"),
                ENVFORGE_DIR=str(folder / "files"),
                PYTHONNOUSERSITE="1",
                PYTHONDONTWRITEBYTECODE="1",
            )
            # Caches named by the spec point into the image's file system; here they live as long as the run.
            for key, value in list(env.items()):
                if key.endswith(("_CACHE_DIR", "_CACHE", "CONFIGDIR")) and value.startswith("/"):
                    env[key] = str(folder / "tmp" / key.lower())
            env.update(request.env)
            if request.gpus.kind == "none":
                env["CUDA_VISIBLE_DEVICES"] = ""
            elif request.gpus.kind == "devices":
                env["CUDA_VISIBLE_DEVICES"] = ",".join(request.gpus.devices)
            words = [word.replace("/envforge/", f"{folder / 'files'}/") for word in request.argv]
            if words[0] in ("python", "python3"):
                words[0] = str(self._locate(image) / "bin" / "python")
            if shutil.which(words[0], path=env.get("PATH")) is None:
                raise EngineError("command-not-found", f"the command {words[0]!r} does not exist in {image}")
            isolated = () if request.network else self._no_network()
            outcome = process.run(
                [*isolated, *words],
                env=env,
                cwd=folder / "files",
                timeout=request.timeout,
                on_line=request.on_line,
            )
            collected = {
                relative: (folder / "files" / relative).read_bytes()
                for relative in request.collect
                if (folder / "files" / relative).is_file()
            }
        return RunResult(
            code=outcome.code if outcome.code >= 0 else 128 - outcome.code,
            stdout=outcome.stdout,
            stderr=outcome.stderr,
            seconds=outcome.seconds,
            timed_out=outcome.timed_out,
            collected=collected,
        )


def _log(write: object, outcome: process.Outcome) -> None:
    assert callable(write)
    write(f"$ {' '.join(outcome.argv)}\n{outcome.stdout}{outcome.stderr}\n")


def install_error(lines: tuple[str, ...], *, label: str, log: Path, step: str) -> BuildError | NetworkError:
    """Name what went wrong in an installer's output: a hash, the index, the disk, or something else."""
    text = "\n".join(lines)
    low = text.lower()
    where = f"{step} (full log: {log})"
    if "hash mismatch" in low or "do not match the hashes" in low:
        return BuildError(
            "hash-mismatch",
            f"a file of index {label!r} is not the one that was locked, in {where}",
            context=lines,
            hint="the index serves a changed or truncated file: try again, then a mirror; the lock is not loosened",
        )
    if "no space left on device" in low:
        error = BuildError("disk-full", f"no space left on the disk, in {where}", context=lines, hint="envforge clean")
        return error
    network = (
        "failed to fetch",
        "error sending request",
        "status server error",
        "connection refused",
        "dns error",
        "timed out",
    )
    if any(sign in low for sign in network):
        return NetworkError(
            "index-unreachable",
            f"index {label!r} cannot be reached or answers with an error, in {where}",
            context=lines,
            hint="check the network, proxy and certificates (SSL_CERT_FILE), then run the same command again",
        )
    return BuildError("install-failed", f"the installer failed in {where}", context=lines, hint=f"see {log}")
