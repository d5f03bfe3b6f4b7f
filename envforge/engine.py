"""What envforge asks of an engine, and which engine answers. Knows neither Docker nor uv.

``docker_engine`` (the only importer of the Docker SDK) and ``local_engine`` implement :class:`Engine`;
both pass tests/contract/test_engine.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

# Only named here: a run must not wait for modules that it does not use.
if TYPE_CHECKING:
    from envforge.lock import Lock
    from envforge.plan import Rendered
    from envforge.reproducible import Rewritten
    from envforge.resolve import Resolution

EngineName = Literal["docker", "local"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuRequest:
    """A parsed ``--gpus`` value. ``promised`` is False only for ``none`` and ``auto``.

    ``kind``: none, auto, all, count (``count`` set) or devices (``devices`` holds indexes, UUIDs, MIG ids).
    """

    kind: Literal["none", "auto", "all", "count", "devices"]
    count: int = 0
    devices: tuple[str, ...] = ()

    @property
    def promised(self) -> bool:
        return self.kind not in ("none", "auto")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineInfo:
    """What the engine says of itself. ``buildkit`` decides the Dockerfile form; ``free_bytes`` None: unknown."""

    name: EngineName
    version: str
    flavour: str  # "docker", "podman", "docker (rootless)", "local"
    buildkit: bool
    platform: str  # "linux/amd64"
    remote: bool = False
    free_bytes: int | None = None
    cdi: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildStep:
    """One step of a finished build."""

    name: str
    seconds: float
    cached: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """A built environment: an image id, or the prefix path under the local engine. Not tagged yet."""

    image: str
    size_bytes: int
    steps: tuple[BuildStep, ...]
    log: Path
    reused: bool = False
    rewritten: Rewritten | None = None  # with BuildOptions.reproducible: what the image holds, to compare with another


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildOptions:
    """How to build; nothing here may change what is in the image."""

    progress: Callable[[str], None] | None = None  # plain lines; None: the engine draws on the terminal itself
    ca_bundle: Path | None = None
    offline: Path | None = None  # folder made by `vendor`: the only source of packages
    index_url: str | None = None  # the default index as this host knows it
    no_cache: bool = False
    timeout: float | None = None
    reproducible: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)  # proxies, as build args


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """One command in an environment, isolated: by default no network, read-only root, writable /tmp only.

    ``files`` are put under ``/envforge`` (or a private folder, its place in ``$ENVFORGE_DIR`` inside);
    ``collect``: paths relative to that folder to bring back.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    collect: tuple[str, ...] = ()
    gpus: GpuRequest = GpuRequest(kind="none")
    network: bool = False
    read_only: bool = True
    user: str | None = None
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    timeout: float | None = None
    on_line: Callable[[str], None] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """``code`` is the command's own exit code (137 with ``oom_killed`` when memory ran out)."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False
    oom_killed: bool = False
    collected: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageInfo:
    """What is known of a built environment without running it."""

    image: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    env: Mapping[str, str]
    user: str
    size_bytes: int
    created: str
    layers: tuple[str, ...] = ()
    repo_digests: tuple[str, ...] = ()


class Engine(Protocol):
    """Every method raises :class:`envforge.errors.EngineError` when the engine is lost."""

    name: EngineName

    def info(self) -> EngineInfo: ...

    def build(self, rendered: Rendered, resolution: Resolution, lock: Lock, options: BuildOptions) -> Built:
        """Build from the context; on failure BuildError with the failing step, 40 log lines and the log's path.

        Leaves no container and no tag behind, also when interrupted.
        """

    def find(self, inputs_digest: str) -> ImageInfo | None:
        """The environment with this identity that is tagged (= passed its tests), if there is one."""

    def inspect(self, image: str) -> ImageInfo:
        """By id, tag or prefix path. EngineError ``image-not-found`` when there is none."""

    def run(self, image: str, request: RunRequest) -> RunResult:
        """Run to the end; the container is removed whatever happens."""

    def tag(self, image: str, repository: str, tag: str) -> None:
        """Give the name that says: tested. Local engine: writes the marker file."""

    def remove(self, image: str) -> None: ...

    def images(self) -> Sequence[ImageInfo]:
        """Everything of envforge's in this engine."""
