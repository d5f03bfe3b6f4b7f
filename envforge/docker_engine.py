"""The Docker engine, also Podman through its Docker-compatible socket. The only importer of the Docker SDK.

Nothing is bind-mounted from this machine, so a remote engine works the same way. Why BuildKit is reached
by a plain HTTP call: docs/decisions/0001-buildkit-through-the-sdk.md.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import tarfile
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from envforge import docker_errors, paths
from envforge.build_context import HostInputs, declared_args, from_images, host_inputs, reaches_loopback, write_tar
from envforge.build_failure import Cause, classify
from envforge.buildkit_trace import TraceError, decode_aux
from envforge.config import Config
from envforge.engine import (
    BuildOptions,
    Built,
    EngineInfo,
    EngineName,
    GpuRequest,
    ImageInfo,
    RunRequest,
    RunResult,
)
from envforge.errors import BuildError, EngineError, EnvforgeError, GpuUnavailable
from envforge.json_stream import objects
from envforge.process import mask
from envforge.progress import Step, Steps, open_display, short_name

if TYPE_CHECKING:
    from envforge.lock import Lock
    from envforge.passthrough import Choice, Passthrough, ProbeOutcome
    from envforge.plan import Rendered
    from envforge.reproducible import Rewritten
    from envforge.resolve import Resolution
    from envforge.session import Session

DIGEST_LABEL = "envforge.inputs-digest"
RUN_LABEL = "envforge.run"
OWNER_LABEL = "envforge.run-owner"  # host:pid
_VOLUME = "/envforge"  # an anonymous volume: it may be written before the start although the root is read-only
_WORK = "/envforge/work"  # the engine never changes the mode of a volume's own folder, so any user writes here
BOOTSTRAP_LABEL = "envforge.bootstrap"
BASE_REPOSITORY = "envforge/base:"
_CPU_NEED, _CUDA_NEED = 2 * 10**9, 12 * 10**9  # measured: a torch CUDA image 5.9 GB and its cache as much again


def _translate(error: BaseException, doing: str) -> EnvforgeError:
    """The one place where errors of the SDK (and of requests below it) become ours."""
    from docker import errors

    if isinstance(error, EnvforgeError):
        return error
    if isinstance(error, errors.APIError):
        status = error.response.status_code if error.response is not None else None
        return docker_errors.engine_failure(status, str(error.explanation or error), doing)
    if isinstance(error, errors.DockerException):
        return docker_errors.engine_failure(None, str(error), doing)
    return docker_errors.engine_lost(doing, str(error))


@contextmanager
def _engine_errors(doing: str) -> Iterator[None]:
    import requests
    import urllib3
    from docker import errors

    try:
        yield
    except (errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise _translate(error, doing) from error


def _addresses(environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """(address, TLS settings) in the order they are tried; DOCKER_HOST or a context excludes everything after it."""
    if environ.get("DOCKER_HOST"):
        yield environ["DOCKER_HOST"], None
        return
    from docker.context import ContextAPI

    name = environ.get("DOCKER_CONTEXT") or _current_context(environ)
    if name and name != "default":
        context = ContextAPI.get_context(name)
        if context is None or not context.Host:
            raise EngineError(
                "no-engine",
                f"the Docker context {name!r} does not exist",
                hint="docker context ls; or set DOCKER_HOST",
            )
        yield context.Host, context.TLSConfig
        return
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid() if hasattr(os, 'getuid') else 0}"
    home = environ.get("HOME", "")
    for place in (
        "/var/run/docker.sock",
        f"{runtime}/docker.sock",
        f"{home}/.docker/run/docker.sock",
        f"{home}/.docker/desktop/docker.sock",
        f"{runtime}/podman/podman.sock",
        "/run/podman/podman.sock",
    ):
        if Path(place).exists():
            yield f"unix://{place}", None


def _current_context(environ: Mapping[str, str]) -> str | None:
    folder = Path(environ.get("DOCKER_CONFIG") or Path(environ.get("HOME", "")) / ".docker")
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("currentContext")
    except (OSError, ValueError):
        return None
    return str(found) if found else None


def gpu_host_config(wanted: Passthrough) -> dict[str, Any]:
    """Keyword arguments for the container's host config that ask for this GPU."""
    from docker.types import DeviceRequest

    found: dict[str, Any] = {}
    if wanted.device_requests:
        found["device_requests"] = [DeviceRequest(**dict(row)) for row in wanted.device_requests]
    if wanted.devices:
        found["devices"] = list(wanted.devices)
    return found


class _Calls:
    """What a session asks of an engine (see session.py), answered by the SDK."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self._stream: Any = None  # the SDK's wrapper must outlive the socket inside it

    def create(self, name: str, body: dict[str, Any]) -> str:
        return str(self._api.create_container_from_config(body, name)["Id"])

    def attach_socket(self, container: str) -> Any:
        self._stream = self._api.attach_socket(container, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
        return getattr(self._stream, "_sock", self._stream)

    def start(self, container: str) -> None:
        self._api.start(container)

    def wait(self, container: str) -> int:
        return int(self._api.wait(container, timeout=None)["StatusCode"])

    def kill(self, container: str, signal: str) -> None:
        self._api.kill(container, signal)

    def resize(self, container: str, height: int, width: int) -> None:
        self._api.resize(container, height=height, width=width)


class DockerEngine:
    """See :class:`envforge.engine.Engine`. Make it with :meth:`connect`."""

    name: EngineName = "docker"

    def __init__(self, client: Any, config: Config | None = None) -> None:
        self._client = client
        self._api = client.api
        self._config = config
        self._info: EngineInfo | None = None
        self._choices: dict[GpuRequest, Choice] = {}

    @classmethod
    def connect(cls, timeout: float = 5.0, config: Config | None = None) -> DockerEngine:
        """The engine that DOCKER_HOST, the Docker context or a well-known socket leads to.

        ``timeout``: seconds to wait for an answer. Raises EngineError ``no-engine``.
        """
        import docker
        import requests

        tried: list[EngineError] = []
        for address, tls in _addresses(os.environ):
            environment = dict(os.environ) if address == os.environ.get("DOCKER_HOST") else None
            try:
                extra: dict[str, Any] = {"use_ssh_client": True} if address.startswith("ssh://") else {}
                if environment is not None:
                    client = docker.from_env(environment=environment, timeout=int(timeout) or 1, **extra)
                else:
                    extra |= {"tls": tls} if tls else {}
                    client = docker.DockerClient(base_url=address, timeout=int(timeout) or 1, **extra)
                client.ping()
            except (docker.errors.DockerException, requests.RequestException, OSError, ValueError) as error:
                tried.append(docker_errors.no_engine(address, str(error)))
                continue
            client.api.timeout = 300
            return cls(client, config)
        raise tried[0] if tried else docker_errors.no_engine("the usual sockets", "")

    def close(self) -> None:
        """Give the connection back."""
        self._client.close()

    def info(self) -> EngineInfo:
        """Asked once per connection, but the free space each time."""
        if self._info is None:
            with _engine_errors("asking the engine about itself"):
                self._info = self._describe(self._api.version(), self._api.info())
        return self._info

    def _describe(self, version: Mapping[str, Any], info: Mapping[str, Any]) -> EngineInfo:
        components = [str(row.get("Name", "")) for row in version.get("Components") or ()]
        podman = any("Podman" in name for name in components)
        security = " ".join(info.get("SecurityOptions") or ())
        root = str(info.get("DockerRootDir") or "")
        notes = []
        if "rootless" in security or info.get("Rootless"):
            notes.append("rootless")
        if "/snap/" in root:
            notes.append("snap")
        if "Desktop" in str(info.get("OperatingSystem")):
            notes.append("desktop")
        flavour = ("podman" if podman else "docker") + (f" ({', '.join(notes)})" if notes else "")
        api = tuple(int(part) for part in str(version.get("ApiVersion", "1.0")).split(".")[:2])
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(str(version.get("Arch")), str(version.get("Arch")))
        base = str(getattr(self._api, "base_url", ""))
        remote = not base.startswith(("http+docker", "http+unix", "npipe"))
        free = None
        if not remote and "desktop" not in notes and root and Path(root).is_dir():
            free = shutil.disk_usage(root).free
        return EngineInfo(
            name="docker",
            version=str(version.get("Version", "unknown")),
            flavour=flavour,
            buildkit=not podman and api >= (1, 39) and version.get("Os", "linux") == "linux",
            platform=f"{version.get('Os', 'linux')}/{machine}",
            remote=remote,
            free_bytes=free,
            cdi=bool(info.get("CDISpecDirs")) or (podman and api >= (1, 41)),
        )

    # -- images -----------------------------------------------------------------------------------

    def has(self, reference: str) -> bool:
        """Whether the image is in the engine's own store."""
        try:
            self.inspect(reference)
        except EngineError as error:
            if error.reference == "image-not-found":
                return False
            raise
        return True

    def inspect(self, image: str) -> ImageInfo:
        with _engine_errors(f"looking at {image}"):
            found = self._api.inspect_image(image)
        config = found.get("Config") or {}
        pairs = (entry.partition("=") for entry in config.get("Env") or ())
        return ImageInfo(
            image=found["Id"] if found["Id"].startswith("sha256:") else f"sha256:{found['Id']}",
            tags=tuple(found.get("RepoTags") or ()),
            labels=dict(config.get("Labels") or {}),
            env={key: value for key, _, value in pairs},
            user=str(config.get("User") or ""),
            size_bytes=int(found.get("Size") or 0),
            created=str(found.get("Created") or ""),
            layers=tuple((found.get("RootFS") or {}).get("Layers") or ()),
            repo_digests=tuple(found.get("RepoDigests") or ()),
        )

    def history(self, image: str) -> list[tuple[int, str]]:
        """(bytes, instruction) of every step, the newest first; the base's own steps among them."""
        with _engine_errors(f"looking at {image}"):
            rows = self._api.history(image)
        return [(int(row.get("Size") or 0), str(row.get("CreatedBy") or "")) for row in rows]

    def _labelled(self, label: str) -> list[ImageInfo]:
        with _engine_errors("listing images"):
            rows = self._api.images(filters={"label": [label]})
        found = []
        for row in rows:
            with suppress(EngineError):  # removed by someone else between the two questions
                found.append(self.inspect(row["Id"]))
        return sorted(found, key=lambda info: info.created, reverse=True)

    def find(self, inputs_digest: str) -> ImageInfo | None:
        return next((info for info in self._labelled(f"{DIGEST_LABEL}={inputs_digest}") if info.tags), None)

    def images(self) -> Sequence[ImageInfo]:
        return self._labelled(DIGEST_LABEL)

    def bases(self) -> Sequence[ImageInfo]:
        """Bases made by `base bootstrap`, newest first. Images built on one inherit its label, hence the name too."""
        return [
            info
            for info in self._labelled(BOOTSTRAP_LABEL)
            if DIGEST_LABEL not in info.labels and any(BASE_REPOSITORY in tag for tag in info.tags)
        ]

    def tag(self, image: str, repository: str, tag: str) -> None:
        with _engine_errors(f"tagging {image}"):
            self._api.tag(image, repository, tag, force=True)

    def remove(self, image: str) -> None:
        with _engine_errors(f"removing {image}"):
            self._api.remove_image(image, force=image.startswith("sha256:"))

    def pull(self, reference: str, progress: Callable[[str], None] | None = None) -> None:
        """Fetch an image with this user's credentials. NetworkError: refused, absent or unreachable."""
        import requests
        from docker import errors
        from docker.utils import parse_repository_tag

        seen: dict[str, tuple[int, int]] = {}
        last = time.monotonic()
        repository, tag = parse_repository_tag(reference)
        try:
            for row in self._api.pull(repository, tag=tag or "latest", stream=True, decode=True):
                if row.get("error"):
                    raise docker_errors.pull_failure(reference, str(row["error"]))
                detail = row.get("progressDetail") or {}
                if detail.get("total"):
                    seen[str(row.get("id"))] = (int(detail.get("current") or 0), int(detail["total"]))
                if progress and seen and time.monotonic() - last > 2:
                    last = time.monotonic()
                    done, total = (sum(pair[index] for pair in seen.values()) / 1e6 for index in (0, 1))
                    progress(f"pulling {reference}: {done:.0f} of {total:.0f} MB")
        except errors.APIError as error:
            raise docker_errors.pull_failure(reference, str(error.explanation or error)) from error
        except (requests.RequestException, OSError) as error:
            raise docker_errors.engine_lost(f"pulling {reference}", str(error)) from error

    def push(self, repository: str, tag: str, progress: Callable[[str], None] | None = None) -> str:
        """Push one tag with this user's credentials; the digest the registry has now.

        Raises publish.Interrupted, which says whether another try may help.
        """
        import requests
        from docker import errors

        from envforge import publish

        name, digest, seen, last = f"{repository}:{tag}", "", dict[str, tuple[int, int]](), time.monotonic()
        try:
            for row in self._api.push(repository, tag=tag, stream=True, decode=True):
                if row.get("error"):
                    error, again = publish.failure(name, str(row["error"]))
                    raise publish.Interrupted(error, again=again)
                digest = str((row.get("aux") or {}).get("Digest") or digest)
                detail = row.get("progressDetail") or {}
                if detail.get("total"):
                    seen[str(row.get("id"))] = (int(detail.get("current") or 0), int(detail["total"]))
                if progress and seen and time.monotonic() - last > 2:
                    last = time.monotonic()
                    done, total = (sum(pair[index] for pair in seen.values()) / 1e6 for index in (0, 1))
                    progress(f"pushing {name}: {done:.0f} of {total:.0f} MB")
        except errors.APIError as refusal:
            error, again = publish.failure(name, str(refusal.explanation or refusal))
            raise publish.Interrupted(error, again=again) from refusal
        except (requests.RequestException, OSError) as problem:
            raise docker_errors.engine_lost(f"pushing {name}", str(problem)) from problem
        if not digest:  # Podman says it in its image list only
            found = [one for one in self.inspect(name).repo_digests if one.startswith(f"{repository}@")]
            digest = found[0].partition("@")[2] if found else ""
        if not digest:
            raise docker_errors.engine_lost(f"pushing {name}", "the answer ended without a digest")
        return digest

    def import_rootfs(self, tar: IO[bytes], repository: str, tag: str, changes: Iterable[str]) -> ImageInfo:
        """Make an image of a root file system. It is tagged by its id: Podman forgets the name given to an import."""
        before = set(self._image_ids())
        with _engine_errors("importing a base image"):
            url = self._api._url("/images/create")
            params: dict[str, Any] = {"fromSrc": "-", "changes": list(changes)}
            answer = self._api._post(
                url, data=tar, params=params, headers={"Content-Type": "application/x-tar"}, stream=True, timeout=None
            )
            self._api._raise_for_status(answer)
            image = ""
            for row in objects(answer.iter_content(chunk_size=None)):
                if row.get("error"):
                    raise docker_errors.engine_failure(500, str(row["error"]), "importing a base image")
                status = str(row.get("status", "")).strip()
                image = status if status else image
        if not image:
            image = next(iter(set(self._image_ids()) - before), "")
        name = f"{repository}:{tag}"
        old = self.inspect(name).image if self.has(name) else None
        self.tag(image, repository, tag)
        found = self.inspect(name)
        if old is not None and old != found.image:
            with suppress(EngineError):  # something may still stand on it
                self._remove_unused(old)
        return found

    def _remove_unused(self, image: str) -> None:
        with _engine_errors(f"removing {image}"):
            self._api.remove_image(image, force=False)

    def _image_ids(self) -> list[str]:
        with _engine_errors("listing images"):
            return [row["Id"] for row in self._api.images()]

    def export(self, image: str) -> Iterator[bytes]:
        """The image as a `docker save` archive, in pieces."""
        with _engine_errors(f"exporting {image}"):
            yield from self._api.get_image(image)

    # -- building ---------------------------------------------------------------------------------

    def build(self, rendered: Rendered, resolution: Resolution, lock: Lock, options: BuildOptions) -> Built:
        """See the protocol. The image has no name yet; the log holds all output with secrets masked."""
        config = self._settings()
        host = host_inputs(options, config)
        info = self.info()
        _check_disk(info, _CUDA_NEED if resolution.cuda else _CPU_NEED)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        log = paths.logs() / f"{resolution.name.replace('@', '-').replace('/', '-')}-{stamp}-{uuid.uuid4().hex[:6]}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w", encoding="utf-8") as stream, tempfile.TemporaryFile() as tar:

            def write(line: str) -> None:
                stream.write(mask(line, host.secrets) + "\n")
                stream.flush()

            fresh = {"build/fresh": b""} if options.reproducible and options.no_cache else {}
            write_tar(rendered, host.files() | fresh, options.offline, tar)
            with Steps(open_display(options.progress), write) as steps:
                for image in from_images(rendered.dockerfile):
                    if not self.has(image):
                        self.pull(image, options.progress)
                params = _build_params(
                    rendered, host, options, urls=(host.index_url, *host.indexes.values(), *lock.indexes.values())
                )
                build = _Build(self._api, buildkit=info.buildkit, params=params, timeout=options.timeout)
                try:
                    image = build.run(tar, steps)
                except BaseException as error:
                    build.abandon()
                    _raise_build_error(error, build, steps, log, resolution.name, host)
                    raise
        rewritten = None
        if options.reproducible:
            image, rewritten = self._rewrite(image, from_images(rendered.dockerfile))
        found = self.inspect(image)
        return Built(
            image=found.image, size_bytes=found.size_bytes, steps=steps.finished(), log=log, rewritten=rewritten
        )

    def _rewrite(self, image: str, bases: Sequence[str]) -> tuple[str, Rewritten]:
        """The same image without traces of the moment; the one that was built is removed."""
        from envforge import reproducible

        own = self.inspect(image).layers
        known = [self.inspect(one).layers for one in bases if self.has(one)]
        base = max((one for one in known if own[: len(one)] == one), key=len, default=())
        paths.cache().mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryFile(dir=paths.cache()) as saved,
            tempfile.TemporaryFile(dir=paths.cache()) as target,
            tempfile.TemporaryFile(dir=paths.cache()) as spool,
        ):
            for block in self.export(image):
                saved.write(block)
            saved.seek(0)
            with tarfile.open(fileobj=saved) as archive:
                rewritten = reproducible.rewrite(archive, base, target, spool)
            target.seek(0)
            loaded = self._load(target) or rewritten.image
        if loaded != self.inspect(image).image:
            with suppress(EngineError):  # a tag of before may stand on the very same image
                self._remove_unused(image)
        return loaded, rewritten

    def _load(self, archive: IO[bytes]) -> str:
        """Take in an image without a name; its id, "" when the engine does not say it."""
        import re

        said = ""
        with _engine_errors("loading an image"):
            for row in self._api.load_image(archive):
                if row.get("error"):
                    raise docker_errors.engine_failure(500, str(row["error"]), "loading an image")
                said += str(row.get("stream", ""))
        found = re.search(r"sha256:[0-9a-f]{64}", said)
        return found[0] if found else ""

    def _settings(self) -> Config:
        from envforge import config

        return self._config if self._config is not None else config.load()

    # -- GPUs and interactive runs ------------------------------------------------------------------

    def gpu_probe(self, image: str, wanted: Passthrough) -> ProbeOutcome:
        """What a tiny container with this GPU request says (see passthrough.ProbeOutcome)."""
        from envforge.passthrough import ProbeOutcome

        name = f"envforge-probe-{uuid.uuid4().hex[:12]}"
        try:
            with _engine_errors("starting the GPU probe"):
                host = self._api.create_host_config(network_mode="none", **gpu_host_config(wanted))
                self._api.create_container(
                    image,
                    entrypoint=["/gpu-probe"],
                    command=[],
                    labels={RUN_LABEL: name, OWNER_LABEL: f"{socket.gethostname()}:{os.getpid()}"},
                    host_config=host,
                    name=name,
                )
                self._api.start(name)
                self._api.wait(name, timeout=60)
                lines = self._api.logs(name).decode("utf-8", "replace").split("\n")
        except GpuUnavailable as error:
            return ProbeOutcome(error="\n".join(error.context) or error.message)
        except EngineError as error:
            if error.reference == "engine-lost":
                raise
            return ProbeOutcome(error="\n".join((error.message, *error.context)))
        finally:
            self._discard(name)
        return ProbeOutcome(seen=tuple(line for line in lines if ":" in line))

    def gpu_choice(self, request: GpuRequest) -> Choice:
        """The form in which this engine really delivers these GPUs, by trial; asked once per request."""
        from envforge import passthrough
        from envforge.gpu_image import rootfs

        if request not in self._choices:
            info = self.info()
            tar = io.BytesIO(rootfs(info.platform))
            image = self.import_rootfs(tar, "envforge/gpu-probe", uuid.uuid4().hex[:12], ()).image
            try:
                wanted = passthrough.forms(info.flavour, info.version)
                self._choices[request] = passthrough.choose(request, wanted, lambda one: self.gpu_probe(image, one))
            finally:
                with suppress(EngineError):
                    self.remove(image)
        return self._choices[request]

    def gpu_passthrough(self, request: GpuRequest) -> Passthrough | None:
        """How to ask for these GPUs; None without one (``none``, or ``auto`` where there is none).

        Raises GpuUnavailable with the one cause when a promise cannot be kept.
        """
        from envforge.gpu_image import gpu_sign

        remote = self.info().remote
        if request.kind == "none" or (request.kind == "auto" and not remote and not gpu_sign()):
            return None
        from envforge import host, passthrough

        choice = self.gpu_choice(request)
        if choice.passthrough is None and request.promised:
            facts = None if remote else host.probe()
            cdi = bool(choice.tried) and choice.tried[0][0] != "nvidia" and "CDI" in choice.error
            reference = passthrough.name_cause(choice.error, facts, cdi=cdi)
            raise passthrough.unavailable(reference, choice.error, asked=passthrough.gpus_text(request))
        return choice.passthrough

    def workdir(self, image: str) -> str:
        """The image's working folder, ``/work`` when it names none."""
        with _engine_errors(f"looking at {image}"):
            found = str((self._api.inspect_image(image).get("Config") or {}).get("WorkingDir") or "")
        return found if found not in ("", "/") else "/work"

    def attach_run(self, image: str, session: Session, out: IO[bytes]) -> int:
        """Run on this terminal; stdin, signals and size are passed through. The command's exit code."""
        from envforge.session import attach

        with _engine_errors(f"running {session.argv[0]} in {image}"):
            return attach(_Calls(self._api), image, session, out, discard=self._discard)

    # -- running ----------------------------------------------------------------------------------

    def run(self, image: str, request: RunRequest) -> RunResult:
        """See the protocol. The GPU goes in by the form that a tiny container has proven; see gpu_passthrough."""
        wanted = self.gpu_passthrough(request.gpus)
        return self._run(image, request, gpu_host_config(wanted) if wanted else {})

    def _run(self, image: str, request: RunRequest, gpu: Mapping[str, Any]) -> RunResult:
        name = f"envforge-run-{uuid.uuid4().hex[:12]}"
        doing = f"running {request.argv[0]} in {image}"
        self.inspect(image)
        try:
            with _engine_errors(doing):
                self._create(name, image, request, gpu)
                self._put(name, request.files)
                return self._follow(name, request)
        finally:
            self._discard(name)

    def _create(self, name: str, image: str, request: RunRequest, gpu: Mapping[str, Any]) -> None:
        env = {"ENVFORGE_DIR": _WORK, "PYTHONDONTWRITEBYTECODE": "1"}
        if request.read_only:
            env |= {"HOME": "/tmp", "TMPDIR": "/tmp", "XDG_CACHE_HOME": "/tmp/.cache"}
        env |= dict(request.env)
        limits: dict[str, Any] = {}
        if request.memory_bytes is not None:
            limits |= {"mem_limit": request.memory_bytes, "memswap_limit": request.memory_bytes}
        if request.shm_bytes is not None:
            limits["shm_size"] = request.shm_bytes
        host = self._api.create_host_config(
            network_mode="bridge" if request.network else "none",
            read_only=request.read_only,
            # exec: frameworks compile kernels and load them from their cache there
            tmpfs={"/tmp": "rw,exec,nosuid,mode=1777"},
            security_opt=["no-new-privileges"],
            **limits,
            **gpu,
        )
        self._api.create_container(
            image,
            command=list(request.argv[1:]),
            entrypoint=[request.argv[0]],
            environment=env,
            user=request.user,
            working_dir=_WORK,
            volumes=[_VOLUME],
            labels={RUN_LABEL: name, OWNER_LABEL: f"{socket.gethostname()}:{os.getpid()}"},
            host_config=host,
            name=name,
        )

    def _put(self, name: str, files: Mapping[str, bytes]) -> None:
        """Files into the work folder of the volume; links beside it, so that ``/envforge/FILE`` names them too."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            folders = {str(parent) for path in files for parent in Path("work", path).parents if parent != Path()}
            for folder in sorted(folders | {"work"}):
                member = tarfile.TarInfo(folder)
                member.type, member.mode = tarfile.DIRTYPE, 0o777
                archive.addfile(member)
            for top in sorted({Path(path).parts[0] for path in files} - {"work"}):
                member = tarfile.TarInfo(top)
                member.type, member.linkname = tarfile.SYMTYPE, f"work/{top}"
                archive.addfile(member)
            for path, content in sorted(files.items()):
                member = tarfile.TarInfo(f"work/{path}")
                member.size, member.mode = len(content), 0o644
                archive.addfile(member, io.BytesIO(content))
        self._api.put_archive(name, _VOLUME, buffer.getvalue())

    def _follow(self, name: str, request: RunRequest) -> RunResult:
        """Start, read both streams to their end, and ask how it went."""
        output = self._api.attach(name, stdout=True, stderr=True, stream=True, logs=False, demux=True)
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            with suppress(Exception):
                self._api.kill(name)

        started = time.monotonic()
        self._api.start(name)
        timer = threading.Timer(request.timeout, expire) if request.timeout else None
        if timer:
            timer.daemon = True
            timer.start()
        try:
            out, err = _read(output, request.on_line)
            self._api.wait(name, timeout=None)
        finally:
            if timer:
                timer.cancel()
        seconds = time.monotonic() - started
        state = self._api.inspect_container(name)["State"]
        return RunResult(
            code=int(state.get("ExitCode", -1)),
            stdout=out,
            stderr=err,
            seconds=seconds,
            timed_out=expired.is_set(),
            oom_killed=self._out_of_memory(state, request, expired.is_set()),
            collected={key: value for path in request.collect for key, value in self._collect(name, path)},
        )

    def _out_of_memory(self, state: Mapping[str, Any], request: RunRequest, expired: bool) -> bool:
        """Podman does not report it under every cgroup manager; a kill under a limit that we did not send is it."""
        if state.get("OOMKilled"):
            return True
        killed = state.get("ExitCode") == 137 and request.memory_bytes is not None and not expired
        return killed and self.info().flavour.startswith("podman")

    def _collect(self, name: str, path: str) -> Iterator[tuple[str, bytes]]:
        """A file, or every file of a folder, by its path under the work folder; nothing when it does not exist."""
        from docker import errors

        try:
            chunks, _ = self._api.get_archive(name, f"{_WORK}/{path}")
        except errors.NotFound:
            return
        with tempfile.TemporaryFile() as spool:
            for chunk in chunks:
                spool.write(chunk)
            spool.seek(0)
            parent = Path(path).parent
            with tarfile.open(fileobj=spool) as archive:
                for member in archive:
                    content = archive.extractfile(member) if member.isreg() else None
                    if content is not None:
                        yield (parent / member.name).as_posix(), content.read()

    def _discard(self, name: str) -> None:
        """Remove the container and its volume; a lost engine must not hide the error that is under way."""
        from docker import errors

        for _ in range(3):
            try:
                self._api.remove_container(name, force=True, v=True)
                return
            except errors.NotFound:
                return
            except Exception:
                time.sleep(0.3)

    def stray_containers(self) -> list[str]:
        """Ids of run containers whose envforge is gone (a killed process could not remove them)."""
        with _engine_errors("listing containers"):
            rows = self._api.containers(all=True, filters={"label": RUN_LABEL})
        return [row["Id"] for row in rows if not _owner_lives((row.get("Labels") or {}).get(OWNER_LABEL, ""))]

    def remove_container(self, container: str) -> None:
        """Remove one of :meth:`stray_containers` with its volume."""
        with _engine_errors(f"removing container {container[:12]}"):
            self._api.remove_container(container, force=True, v=True)


def _owner_lives(owner: str) -> bool:
    """Whether the process that started a container runs; one on another machine is assumed to."""
    host, _, pid = owner.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return bool(host)
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _check_disk(info: EngineInfo, need: int) -> None:
    if info.free_bytes is not None and info.free_bytes < need:
        raise EngineError(
            "disk-full",
            f"the engine's disk has {info.free_bytes / 1e9:.1f} GB free; this build needs about {need / 1e9:.0f} GB",
            hint="see what can go with: envforge clean; Docker's build cache: docker builder prune",
        )


def _read(
    output: Iterable[tuple[bytes | None, bytes | None]], on_line: Callable[[str], None] | None
) -> tuple[str, str]:
    """Both streams to their end; each complete line is handed on as it comes."""
    whole: tuple[list[bytes], list[bytes]] = ([], [])
    pending = [b"", b""]
    for pair in output:
        for index, data in enumerate(pair):
            if not data:
                continue
            whole[index].append(data)
            if on_line is None:
                continue
            *lines, pending[index] = (pending[index] + data).split(b"\n")
            for line in lines:
                on_line(line.decode("utf-8", "replace").rstrip("\r"))
    for rest in pending:
        if rest and on_line is not None:
            on_line(rest.decode("utf-8", "replace"))
    out, err = (b"".join(parts).decode("utf-8", "replace") for parts in whole)
    return out, err


def _build_params(rendered: Rendered, host: HostInputs, options: BuildOptions, urls: Iterable[str]) -> dict[str, str]:
    """Query of POST /build. Only proxies are arguments: the engine keeps those out of history and image."""
    arguments = dict(host.proxies)
    if options.reproducible and "SOURCE_DATE_EPOCH" in declared_args(rendered.dockerfile):
        arguments["SOURCE_DATE_EPOCH"] = "0"
    params = {"dockerfile": "Dockerfile", "rm": "1", "forcerm": "1", "buildargs": json.dumps(arguments)}
    if options.no_cache:
        params["nocache"] = "1"
    if options.offline is not None:
        params["networkmode"] = "none"
    elif reaches_loopback((*urls, *host.proxies.values())):
        params["networkmode"] = "host"
    return params


class _Build:
    """One POST /build: sends the context, feeds the steps, knows how to stop."""

    def __init__(self, api: Any, *, buildkit: bool, params: dict[str, str], timeout: float | None) -> None:
        self._api = api
        self._id = uuid.uuid4().hex
        self._buildkit = buildkit
        self._params = params | ({"version": "2", "buildid": self._id} if buildkit else {})
        self._timeout = timeout
        self._answer: Any = None
        self.expired = threading.Event()
        self.image = ""
        self.error = ""
        self.tail: deque[str] = deque(maxlen=400)

    def run(self, tar: IO[bytes], steps: Steps) -> str:
        """The image id. Raises BuildError with the builder's own message, EngineError when the stream just ends."""
        tar.seek(0)
        timer = threading.Timer(self._timeout, self._expire) if self._timeout else None
        if timer:
            timer.daemon = True
            timer.start()
        try:
            with _engine_errors("building"):
                headers = {"Content-Type": "application/x-tar"}
                self._api._set_auth_headers(headers)
                url = self._api._url("/build")
                self._answer = self._api._post(
                    url, data=tar, params=self._params, headers=headers, stream=True, timeout=None
                )
                self._api._raise_for_status(self._answer)
                classic = _Classic(steps)
                for row in objects(self._answer.iter_content(chunk_size=None)):
                    self._row(row, steps, classic)
        finally:
            if timer:
                timer.cancel()
        if self.error:
            raise BuildError("build-step-failed", self.error)
        if not self.image:
            raise docker_errors.engine_lost("building", "the build's output ended without a result")
        return self.image

    def _row(self, row: Mapping[str, Any], steps: Steps, classic: _Classic) -> None:
        if row.get("id") == "moby.buildkit.trace":
            with suppress(TraceError):  # progress only; the result comes in its own object
                steps.apply(decode_aux(str(row.get("aux"))))
        elif isinstance(row.get("aux"), dict) and row["aux"].get("ID"):
            self.image = str(row["aux"]["ID"])
        elif row.get("error") or row.get("errorDetail"):
            self.error = str((row.get("errorDetail") or {}).get("message") or row.get("error"))
            classic.failed(self.error)
        elif row.get("stream"):
            self.image = classic.text(str(row["stream"])) or self.image
        elif row.get("status"):
            steps.note(f"{row['status']} {row.get('id', '')}".rstrip())

    def _expire(self) -> None:
        self.expired.set()
        self.abandon()

    def abandon(self) -> None:
        """Stop the build on the engine: ask BuildKit by id, and close the stream, which ends either builder."""
        if self._buildkit:
            with suppress(Exception):
                self._api._post(self._api._url("/build/cancel"), params={"id": self._id}, timeout=10)
        if self._answer is not None:
            with suppress(Exception):
                self._answer.close()


class _Classic:
    """Steps out of the classic builder's text (``Step 2/5 : RUN …`` by Docker, ``STEP 2/5: RUN …`` by Podman)."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._current: Step | None = None

    def text(self, text: str) -> str:
        """Take in one piece; returns an image id when this piece names the result."""
        import re

        begins = re.match(r"(?i)step (\d+/\d+) ?: (.*)", text)
        if begins:
            self._end()
            self._current = self._steps.step(f"step {begins[1]}", f"[{begins[1]}] {begins[2].strip()}")
            self._current.started = time.time()
            self._steps.note(f"#> {self._current.name}")
            self._steps.changed(self._current)
            return ""
        if self._current is not None:
            if "Using cache" in text:
                self._current.cached = True
            self._steps.output(self._current.key, text.encode())
        else:
            self._steps.note(text.rstrip())
        built = re.match(r"Successfully built ([0-9a-f]{12,64})", text)
        if built:
            self._end()
            return built[1]
        return ""

    def _end(self) -> None:
        if self._current is not None and self._current.completed is None:
            self._current.completed = time.time()
            self._steps.changed(self._current)

    def failed(self, message: str) -> None:
        """The builder gave up; the step under way is the one that failed."""
        if self._current is not None:
            self._current.error = message
            self._end()


def _raise_build_error(
    error: BaseException, build: _Build, steps: Steps, log: Path, name: str, host: HostInputs
) -> None:
    """Turn the builder's answer into what a person needs; other errors pass (the caller raises them again)."""
    if build.expired.is_set():
        raise BuildError(
            "build-timeout",
            "the build took longer than it was allowed to",
            context=(f"full log: {log}",),
            hint="give it more time; finished steps are kept",
        ) from error
    if not isinstance(error, BuildError):
        return
    failed = steps.failed
    lines = tuple(mask(line, host.secrets) for line in (failed.tail if failed else ()))
    cause = classify(lines, mask(error.message, host.secrets))
    where = f"step {short_name(failed.name, 100)!r}" if failed else "the build"
    context = (*lines[-40:], f"full log: {log}")
    again = f"run again with: envforge build {name} --engine docker -v"
    raise _cause_error(cause, where, mask(error.message, host.secrets), context, again) from error


def _cause_error(cause: Cause | None, where: str, message: str, context: tuple[str, ...], again: str) -> EnvforgeError:
    if cause is None:
        return BuildError("build-step-failed", f"{where} failed: {message[:400]}", context=context, hint=again)
    kind = EngineError if cause.reference == "disk-full" else BuildError
    return kind(cause.reference, f"{where} failed: {cause.message}", context=context, hint=f"{cause.hint}. {again}")
