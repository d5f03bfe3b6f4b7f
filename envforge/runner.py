"""`run` and `shell`: a command in an environment, with this folder, this user and the GPU.

:func:`plan` decides everything and is pure; the rest finds the image, makes the cache folder and starts.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envforge import passthrough, profiles
from envforge.engine import GpuRequest, ImageInfo
from envforge.errors import EngineError, UsageError
from envforge.session import Mount, Session

GIB = 1 << 30
CACHE = "/envforge-cache"
JUPYTER_PORT = 8888
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)

# Where frameworks keep what they compile and fetch; relative to the cache folder.
CACHES: Mapping[str, str] = {
    "HOME": "home",
    "XDG_CACHE_HOME": "xdg",
    "CUDA_CACHE_PATH": "cuda",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
    "TORCH_HOME": "torch",
    "JAX_COMPILATION_CACHE_DIR": "jax",
    "NUMBA_CACHE_DIR": "numba",
    "KERAS_HOME": "keras",
    "MPLCONFIGDIR": "matplotlib",
    "HF_HOME": "huggingface",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """The person who runs: ids, further groups, name."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    name: str = "user"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """What was asked for on the command line, already read."""

    argv: tuple[str, ...]
    gpus: GpuRequest = GpuRequest(kind="auto")
    jupyter: bool = False
    ports: tuple[tuple[str, int, int], ...] = ()
    shm_bytes: int | None = None
    host_ipc: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    profiles: tuple[str, ...] = ()
    network: bool = True


def parse_size(text: str) -> int:
    """``8g``, ``512MB``, ``1.5GiB`` or bytes as a number of bytes (powers of 1024). UsageError ``bad-size``."""
    found = _SIZE.fullmatch(text.strip())
    if not found or float(found[1]) <= 0:
        raise UsageError("bad-size", f"{text!r} is no size", hint="write for example 8g or 512m")
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " "))


def parse_port(text: str) -> tuple[str, int, int]:
    """``8888``, ``9000:8888`` or ``0.0.0.0:9000:8888``: (address, outside, inside); by default this machine only."""
    parts = text.split(":")
    numbers = parts[-2:] if len(parts) > 1 else parts * 2
    address = parts[0] if len(parts) == 3 else "127.0.0.1"
    good = len(parts) <= 3 and all(part.isdigit() and 0 < int(part) < 65536 for part in numbers)
    if not good or not re.fullmatch(r"[0-9.]+", address):
        hint = "write PORT, HOST:CONTAINER or ADDRESS:HOST:CONTAINER"
        raise UsageError("bad-port", f"{text!r} is no port", hint=hint)
    return address, int(numbers[0]), int(numbers[1])


def parse_env(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """``KEY=VALUE``, or ``KEY`` to hand on this process's value. UsageError ``bad-env``."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not _ENV_NAME.fullmatch(name):
            raise UsageError("bad-env", f"--env {word!r}: {name!r} is no variable name", hint="write KEY=VALUE")
        if not equals and name not in environ:
            raise UsageError("bad-env", f"--env {name}: it is not set here", hint="write KEY=VALUE")
        found[name] = value if equals else environ[name]
    return found


def shm_default(memory_bytes: int) -> int:
    """A ceiling for shared memory: half of the machine's, at least 1 GiB. It is taken only as it is used."""
    return max(GIB, memory_bytes // 2)


def command(options: RunOptions, token: str = "") -> tuple[str, ...]:
    """The command to start; Jupyter's when that was asked for."""
    if not options.jupyter:
        return options.argv
    words = ("python", "-m", "jupyterlab", "--no-browser", "--ip=0.0.0.0", f"--port={JUPYTER_PORT}")
    return (*words, f"--IdentityProvider.token={token}" if token else "--IdentityProvider.token=", *options.argv)


def variables(options: RunOptions, caller: Caller, caches: str) -> dict[str, str]:
    """The variables given inside; what the person set by hand wins over profiles, profiles over defaults."""
    found = {name: f"{caches}/{folder}" for name, folder in CACHES.items()}
    # Without an entry in the image's passwd these are the only way to a user name.
    found |= {"USER": caller.name, "LOGNAME": caller.name}
    return found | profiles.environment(options.profiles) | dict(options.env)


def plan(
    options: RunOptions,
    *,
    image: ImageInfo,
    caller: Caller,
    cwd: Path,
    caches: Path,
    flavour: str,
    tty: bool,
    memory_bytes: int,
    choice: passthrough.Passthrough | None = None,
    workdir: str = "/work",
    token: str = "",
) -> Session:
    """The container to start.

    Files must belong to the caller afterwards. A root engine gets the caller's own ids. A rootless Docker
    engine maps its root to the caller, so root inside is right there; rootless Podman keeps the ids
    (``keep-id``).
    """
    rootless = "rootless" in flavour
    podman = flavour.startswith("podman")
    user, userns = f"{caller.uid}:{caller.gid}", None
    if rootless and podman:
        userns = "keep-id"
    elif rootless:
        user = "0:0"
    ports = options.ports
    if options.jupyter and not ports:
        ports = (("127.0.0.1", JUPYTER_PORT, JUPYTER_PORT),)
    # Pinned memory and NCCL lock pages. A rootless engine may not raise limits above its own.
    ulimits = (("memlock", -1, -1), ("stack", 64 << 20, 64 << 20)) if choice and not (rootless or podman) else ()
    return Session(
        argv=command(options, token),
        env=variables(options, caller, CACHE),
        mounts=(Mount(source=str(cwd), target=workdir), Mount(source=str(caches), target=CACHE)),
        workdir=workdir,
        user=user,
        groups=tuple(str(group) for group in caller.groups if group != caller.gid) if not rootless else (),
        userns=userns,
        ports=ports,
        shm_bytes=options.shm_bytes if options.shm_bytes is not None else shm_default(memory_bytes),
        host_ipc=options.host_ipc,
        ulimits=ulimits,
        passthrough=choice,
        tty=tty,
        network=options.network,
    )


# -- finding the environment -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The environment that will be used, and a remark when it is not the one of the present lock."""

    image: ImageInfo
    remark: str = ""


def locked_tag(name: str) -> str | None:
    """The tag that the present lock gives (first 12 of its digest), None without a lock. Reads one line only."""
    from envforge import resources

    # Not through envforge.lock: a run must start at once, and one line of the file is all it needs.
    places = [Path("lockfiles") / name / "envforge.lock.yaml"]
    try:
        places.append(resources.shipped("lockfiles") / name / "envforge.lock.yaml")
        text = next(place for place in places if place.is_file()).read_text(encoding="utf-8")
    except (OSError, StopIteration):
        return None
    found = re.search(r"^inputs_digest:\s*[\"']?(?:sha256:)?([0-9a-f]{12})", text, re.MULTILINE)
    return found[1] if found else None


def pick(images: Sequence[ImageInfo], repository: str, tag: str | None) -> Found | None:
    """The image of the present lock, else the newest tested one of that environment, else None."""
    tagged = [(name, info) for info in images for name in info.tags if name.rpartition(":")[0] == repository]
    for name, info in tagged:
        if tag is not None and name == f"{repository}:{tag}":
            return Found(image=info)
    if not tagged:
        return None
    name, info = max(tagged, key=lambda row: (row[1].created, row[0]))
    remark = f"{name} was built from an older lock; envforge build makes the present one" if tag else ""
    return Found(image=info, remark=remark)


def find(engine: Any, name: str) -> Found:
    """The built environment of ``name`` (a spec name, or an image reference of the engine).

    EngineError ``not-built`` when there is none.
    """
    bare = Path(name).stem if name.endswith((".yaml", ".yml")) else name
    # The same words as plan.repository, which would cost an import of the resolver.
    plain = re.fullmatch(r"[a-z0-9][a-z0-9._-]*(@[a-z0-9._-]+)?", bare)
    reference = f"envforge/{bare.replace('@', '-')}" if plain else ""
    tag = locked_tag(bare) if reference else None
    if reference and tag:
        try:
            return Found(image=engine.inspect(f"{reference}:{tag}"))
        except EngineError as error:
            if error.reference != "image-not-found":
                raise
    found = pick(engine.images(), reference, tag) if reference else None
    if found is None and (":" in name or "/" in name or name.startswith("sha256")):
        return Found(image=engine.inspect(name))
    if found is None:
        raise EngineError(
            "not-built",
            f"{name} is not built in the {engine.name} engine",
            hint=f"build it first: envforge build {name}" + (" --engine local" if engine.name == "local" else ""),
        )
    return found


def connect(choice: str, name: str, console: Any) -> Any:
    """The engine that has the environment: with ``auto`` Docker when it answers and has it, else the local one."""
    if choice == "local":
        from envforge.local_engine import LocalEngine

        return LocalEngine()
    from envforge.direct_engine import DirectEngine

    try:
        engine: Any = DirectEngine.connect()
        if engine is None:
            from envforge.docker_engine import DockerEngine

            engine = DockerEngine.connect()
        if choice == "docker":
            return engine
        find(engine, name)
        return engine
    except EngineError as error:
        if choice == "docker":
            raise
        from envforge.local_engine import LocalEngine

        local = LocalEngine()
        try:
            find(local, name)
        except EngineError:
            raise error from None
        console.note(f"engine: local ({error.message})")
        return local


# -- starting --------------------------------------------------------------------------------------


def caller() -> Caller:
    """This process's user."""
    import getpass

    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "user"
    return Caller(uid=os.getuid(), gid=os.getgid(), groups=tuple(sorted(os.getgroups())), name=name)


def cache_folder(name: str) -> Path:
    """This environment's cache folder on this machine, with a folder per framework; made when needed."""
    from envforge import paths

    folder = paths.cache() / "run" / re.sub(r"[^\w.-]", "-", name)
    for leaf in CACHES.values():
        (folder / leaf).mkdir(parents=True, exist_ok=True)
    return folder


def memory() -> int:
    """Bytes of main memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def local_environment(options: RunOptions, prefix: str, environ: Mapping[str, str], gpu_count: int) -> dict[str, str]:
    """The environment of a command in a prefix: its programs first, the GPUs asked for, profiles, own variables."""
    found = {key: value for key, value in environ.items() if key not in ("PYTHONHOME", "PYTHONPATH", "CONDA_PREFIX")}
    found["VIRTUAL_ENV"] = prefix
    found["PATH"] = f"{prefix}/bin:{environ.get('PATH', '/usr/bin:/bin')}"
    request = options.gpus
    if request.kind == "none":
        found["CUDA_VISIBLE_DEVICES"] = ""
    elif request.kind == "devices":
        found["CUDA_VISIBLE_DEVICES"] = ",".join(request.devices)
    elif request.kind == "count":
        found["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in range(min(request.count, gpu_count)))
    return found | profiles.environment(options.profiles) | dict(options.env)


def require_local_gpu(request: GpuRequest) -> int:
    """How many GPUs NVML counts here; GpuUnavailable with its cause when that breaks the promise."""
    if not request.promised:
        return 0
    from envforge import host

    facts = host.probe(engine=False)
    gpus = [gpu for gpu in facts.nvml.gpus if gpu.error is None]
    asked = passthrough.gpus_text(request)
    if not gpus:
        raise passthrough.unavailable(passthrough.name_cause("", facts), facts.nvml.text, asked=asked)
    known = {name for gpu in gpus for name in (gpu.uuid, str(gpu.index), *gpu.mig_instances)}
    missing = [device for device in request.devices if device.partition(":")[0] not in known]
    if missing or request.count > len(gpus):
        seen = f"NVML counts {len(gpus)}: " + ", ".join(f"{gpu.index} {gpu.name}" for gpu in gpus)
        raise passthrough.unavailable("gpu-unknown-device", seen, asked=asked)
    return len(gpus)


def require_driver(env: Mapping[str, str]) -> None:
    """Stop before the start when the image demands a newer driver (its NVIDIA_REQUIRE_CUDA).

    Nothing is said when NVML does not answer here, or the image's check is switched off.
    """
    wanted = env.get("NVIDIA_REQUIRE_CUDA", "")
    if not wanted or env.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "true"):
        return
    from envforge import host

    found = host.nvml(os.environ)
    if found.status != "ok" or not found.cuda or not found.driver:
        return
    name = found.gpus[0].name.lower() if found.gpus else ""
    brand = next((one for one in ("geforce", "quadro", "tesla", "titan") if one in name), "")
    unmet = passthrough.unmet_requirement(wanted, cuda=found.cuda, driver=found.driver, brand=brand)
    if unmet:
        said = f"the image demands {unmet}; driver {found.driver} supports CUDA {found.cuda}"
        raise passthrough.unavailable("gpu-driver-too-old", said)


def start(engine: Any, name: str, options: RunOptions, console: Any) -> int:
    """Run the command in the environment and return its exit code (128 + signal number when a signal ended it)."""
    import secrets

    found = find(engine, name)
    if found.remark:
        console.warn(found.remark)
    token = secrets.token_hex(16) if options.jupyter else ""
    if engine.name == "local":
        return _start_local(name, found.image, options, token, console)
    info = engine.info()
    if info.remote:
        console.warn("the engine is on another machine: this folder is looked for there")
    choice = engine.gpu_passthrough(options.gpus)
    console.detail(f"GPU: {choice.form if choice else 'none'}")
    if choice is not None and not info.remote:
        require_driver(engine.inspect(found.image.image).env | dict(options.env))
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    session = plan(
        options,
        image=found.image,
        caller=caller(),
        cwd=Path.cwd(),
        caches=cache_folder(name),
        flavour=info.flavour,
        tty=terminal and not console.json_mode,
        memory_bytes=memory(),
        choice=choice,
        workdir=engine.workdir(found.image.image),
        token=token,
    )
    if options.jupyter:
        _announce(session.ports, token, console)
    # With --json stdout holds the document, so the command speaks on stderr.
    out = sys.stderr.buffer if console.json_mode else sys.stdout.buffer
    code = int(engine.attach_run(found.image.image, session, out))
    console.document(_document(name, engine.name, found.image, code))
    return code


def _document(name: str, engine: str, image: ImageInfo, code: int) -> dict[str, Any]:
    return {"schema": 1, "name": name, "engine": engine, "image": image.image, "exit_code": code}


def _announce(ports: Sequence[tuple[str, int, int]], token: str, console: Any) -> None:
    for address, outside, inside in ports:
        if inside == JUPYTER_PORT:
            host = "127.0.0.1" if address == "0.0.0.0" else address
            console.result(f"http://{host}:{outside}/lab?token={token}")
            if address == "0.0.0.0":
                console.warn("the port is open to the network; the token is all that protects it")


def _start_local(name: str, image: ImageInfo, options: RunOptions, token: str, console: Any) -> int:
    from envforge import process

    env = local_environment(options, image.image, os.environ, require_local_gpu(options.gpus))
    words = command(options, token)
    if options.jupyter:
        words = tuple("--ip=127.0.0.1" if word == "--ip=0.0.0.0" else word for word in words)
        _announce((("127.0.0.1", JUPYTER_PORT, JUPYTER_PORT),), token, console)
    sys.stdout.flush()
    try:
        if console.json_mode:
            ran = process.run(words, env=env, on_line=lambda line: print(line, file=sys.stderr))
            code = ran.code if ran.code >= 0 else 128 - ran.code
            console.document(_document(name, "local", image, code))
            return code
        process.replace(words, env=env)
    except FileNotFoundError:
        raise EngineError(
            "command-not-found", f"there is no program {words[0]!r} in {image.image} or on PATH", hint="check its name"
        ) from None
    return 0
