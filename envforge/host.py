"""Looks at this host and writes down what it finds, changing nothing. `doctor` judges it.

Every file is looked up below ``root`` so that tests can lay out a host in a folder. Programs are started
only on the real host.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from envforge import paths, process
from envforge.hostfacts import (
    CdiFile,
    DriverFacts,
    FrameworkFacts,
    GpuFacts,
    HostFacts,
    InterpreterFacts,
    LibraryFile,
    NvmlFacts,
    PciGpu,
    Space,
    ToolkitFacts,
)

NVML_SECONDS = 20.0
INTERPRETER_SECONDS = 120.0
_PROGRAMS = (
    "nvidia-smi",
    "nvidia-ctk",
    "nvidia-container-cli",
    "nvidia-container-runtime",
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
)
_PROGRAM_FOLDERS = ("usr/bin", "usr/local/bin", "usr/sbin", "usr/local/sbin", "bin", "usr/local/nvidia/toolkit")
_LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "usr/local/cuda/lib64/stubs",
    "usr/local/cuda/compat",
    "run/opengl-driver/lib",
)
_DRIVER_VERSION = re.compile(r"\b(\d{3}\.\d{2,3}(?:\.\d{2,3})?)\b")


def _read(path: Path) -> str:
    """The file's text, or "" when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def probe(
    *,
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    engine: bool = True,
    python: str | None = None,
) -> HostFacts:
    """All facts of the host below ``root``. ``engine=False`` asks no engine; ``python``: an interpreter to look into.

    Takes at most about 25 s when a driver hangs, well under one second otherwise (plus imports for ``python``).
    """
    from envforge import host_engine

    env = dict(os.environ if environ is None else environ)
    version = _read(root / "proc/version")
    wsl = "microsoft" in version.lower()
    engine_facts = host_engine.probe(env, root=root, ask=engine)
    data_home = Path(env["ENVFORGE_HOME"]) if env.get("ENVFORGE_HOME") else paths.home()
    return HostFacts(
        system=platform.system(),
        machine=platform.machine(),
        kernel=_read(root / "proc/sys/kernel/osrelease").strip(),
        distribution=_distribution(root),
        glibc=platform.libc_ver()[1],
        wsl=wsl,
        wsl_library_path=wsl and _loader_knows(root, "/usr/lib/wsl/lib", env),
        in_container=_in_container(root),
        driver=driver(root, env),
        nvml=nvml(env),
        cuda_toolkits=tuple(_cuda_toolkits(root)),
        ld_library_path=_split(env.get("LD_LIBRARY_PATH", "")),
        toolkit=toolkit(root),
        engine=engine_facts,
        cdi=tuple(cdi_files(root, _cdi_folders(engine_facts.cdi_spec_dirs, engine_facts.daemon.cdi_spec_dirs))),
        storage=tuple(
            space
            for what, path in (("engine", engine_facts.root_dir), ("envforge", str(data_home)), ("temporary", "/tmp"))
            if path and (space := storage(what, Path(path)))
        ),
        python=platform.python_version(),
        python_bits=64 if sys.maxsize > 2**32 else 32,
        interpreter=interpreter(python, env) if python else None,
    )


def _split(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(":") if part)


def _distribution(root: Path) -> str:
    for line in _read(root / "etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip().strip('"')
    return ""


def _in_container(root: Path) -> bool:
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return True
    return bool(re.search(r"/(docker|kubepods|libpod|lxc)[/-]", _read(root / "proc/1/cgroup")))


def _loader_knows(root: Path, folder: str, env: Mapping[str, str]) -> bool:
    if folder in _split(env.get("LD_LIBRARY_PATH", "")):
        return True
    configured = [root / "etc/ld.so.conf", *sorted((root / "etc/ld.so.conf.d").glob("*.conf"))]
    return any(folder in _read(path).split() for path in configured)


# -- driver ----------------------------------------------------------------------------------------


def driver(root: Path, env: Mapping[str, str]) -> DriverFacts:
    """Kernel module, device nodes, the bus, and the driver's library files."""
    text = _read(root / "proc/driver/nvidia/version")
    found = re.search(r"NVRM version:[^\n]*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    modules = [line.split()[0] for line in _read(root / "proc/modules").splitlines() if line.strip()]
    nodes = _nodes(root)
    return DriverFacts(
        module_version=found[1] if found else None,
        open_module="Open Kernel Module" in text,
        modules=tuple(sorted(name for name in modules if name.startswith("nvidia") or name == "nouveau")),
        nodes=nodes,
        pci=tuple(_pci(root)),
        libraries=tuple(_libraries(root, env)),
        char_links_missing=tuple(_missing_links(root, nodes)),
        secure_boot=_secure_boot(root),
    )


def _nodes(root: Path) -> tuple[str, ...]:
    """Names below /dev: nvidia0, nvidiactl, nvidia-uvm, nvidia-caps/nvidia-cap1, dxg."""
    folder = root / "dev"
    found = [path.name for path in folder.glob("nvidia*") if path.name != "nvidia-caps"]
    found += [f"nvidia-caps/{path.name}" for path in folder.glob("nvidia-caps/*")]
    if (folder / "dxg").exists():
        found.append("dxg")
    return tuple(sorted(found))


def _missing_links(root: Path, nodes: Sequence[str]) -> Iterator[str]:
    for name in nodes:
        try:
            status = (root / "dev" / name).stat()
        except OSError:
            continue
        if not stat.S_ISCHR(status.st_mode):
            continue
        if not (root / "dev/char" / f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}").exists():
            yield name


def _pci(root: Path) -> Iterator[PciGpu]:
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if _read(device / "vendor").strip() != "0x10de" or not _read(device / "class").startswith("0x03"):
            continue
        bound = device / "driver"
        yield PciGpu(address=device.name, bound=bound.resolve().name if bound.exists() else "")


def _secure_boot(root: Path) -> bool | None:
    for path in (root / "sys/firmware/efi/efivars").glob("SecureBoot-*"):
        try:
            return path.read_bytes()[-1:] == b"\x01"
        except OSError:
            return None
    return None


def _libraries(root: Path, env: Mapping[str, str]) -> Iterator[LibraryFile]:
    """libnvidia-ml and libcuda, each real file once, also those that LD_LIBRARY_PATH names."""
    folders = [root / folder for folder in _LIBRARY_FOLDERS]
    folders += [root / part.lstrip("/") for part in _split(env.get("LD_LIBRARY_PATH", ""))]
    folders += sorted((root / "usr/local").glob("cuda-*/compat"))
    seen: set[Path] = set()
    for folder in folders:
        for pattern in ("libnvidia-ml.so*", "libcuda.so*"):
            for path in sorted(folder.glob(pattern)):
                real = path.resolve()
                if real in seen or not real.is_file():
                    continue
                seen.add(real)
                version = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", real.name)
                stub = "stubs" in real.parts or "stubs" in path.parts
                shown = "/" + str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
                yield LibraryFile(
                    path=shown, version=version[1] if version else "", size=real.stat().st_size, stub=stub
                )


def nvml(env: Mapping[str, str]) -> NvmlFacts:
    """NVML's answer, asked in a child process with a time limit."""
    script = Path(__file__).with_name("nvml_probe.py")
    outcome = process.run([sys.executable, script], env=env, timeout=NVML_SECONDS)
    if outcome.timed_out:
        return NvmlFacts(status="timeout", text=f"NVML did not answer within {NVML_SECONDS:.0f} s")
    try:
        found = json.loads(outcome.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        text = outcome.stderr.strip().splitlines()[-1:] or [""]
        return NvmlFacts(status="crashed", code=outcome.code, text=text[0])
    return NvmlFacts(
        status=found["status"],
        code=found["code"],
        text=found["text"],
        driver=found.get("driver"),
        cuda=found.get("cuda"),
        library=found.get("library", ""),
        through=found["through"],
        gpus=tuple(_gpu(row) for row in found["gpus"]),
    )


def _gpu(row: Mapping[str, Any]) -> GpuFacts:
    mig = row.get("mig") or {}
    return GpuFacts(
        index=row["index"],
        uuid=row.get("uuid", ""),
        name=row.get("name", ""),
        capability=row.get("capability", ""),
        memory_bytes=row.get("memory_bytes"),
        used_bytes=row.get("used_bytes"),
        mig=mig.get("enabled"),
        mig_instances=tuple(mig.get("instances", ())),
        error=row.get("error"),
        error_text=row.get("error_text", ""),
    )


def _cuda_toolkits(root: Path) -> Iterator[tuple[str, str]]:
    """CUDA toolkits installed under /usr/local, from their own version file."""
    seen: set[Path] = set()
    for folder in sorted((root / "usr/local").glob("cuda*")):
        real = folder.resolve()
        if real in seen or not (real / "bin/nvcc").exists():
            continue
        seen.add(real)
        try:
            version = json.loads(_read(real / "version.json"))["cuda"]["version"]
        except (ValueError, KeyError, TypeError):
            found = re.search(r"CUDA Version (\d+\.\d+(?:\.\d+)?)", _read(real / "version.txt"))
            version = found[1] if found else ""
        yield "/" + str(folder.relative_to(root)), version


# -- toolkit, CDI, storage -------------------------------------------------------------------------


def toolkit(root: Path) -> ToolkitFacts:
    """The NVIDIA Container Toolkit; its version from the package database, else from the program itself."""
    programs = []
    for name in _PROGRAMS:
        for folder in _PROGRAM_FOLDERS:
            if (root / folder / name).exists():
                programs.append((name, f"/{folder}/{name}"))
                break
    config = _read(root / "etc/nvidia-container-runtime/config.toml")
    setting = re.search(r"(?m)^\s*no-cgroups\s*=\s*(true|false)", config)
    return ToolkitFacts(
        programs=tuple(programs),
        version=_toolkit_version(root, dict(programs)),
        no_cgroups=setting[1] == "true" if setting else None,
    )


def _toolkit_version(root: Path, programs: Mapping[str, str]) -> str | None:
    status = _read(root / "var/lib/dpkg/status")
    found = re.search(
        r"^Package: nvidia-container-toolkit\n(?:.+\n)*?Version: (\d+(?:\.\d+)*)", status, re.MULTILINE
    )
    if found:
        return found[1]
    if root == Path("/") and "nvidia-ctk" in programs:
        said = process.run([programs["nvidia-ctk"], "--version"], timeout=10)
        number = re.search(r"(\d+\.\d+\.\d+)", said.stdout)
        return number[1] if number else None
    return None


def _cdi_folders(said: Sequence[str], written: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*said, *written, "/etc/cdi", "/var/run/cdi", "/run/cdi"]))


def cdi_files(root: Path, folders: Sequence[str]) -> Iterator[CdiFile]:
    """Every CDI spec of these folders (each real file once)."""
    seen: set[Path] = set()
    for folder in folders:
        base = root / folder.lstrip("/")
        for path in sorted([*base.glob("*.yaml"), *base.glob("*.yml"), *base.glob("*.json")]):
            real = path.resolve()
            if real not in seen:
                seen.add(real)
                yield _cdi_file(root, path, f"{folder.rstrip('/')}/{path.name}")


def _cdi_file(root: Path, path: Path, shown: str) -> CdiFile:
    import yaml

    try:
        spec = yaml.safe_load(path.read_text(encoding="utf-8"))
        kind, rows = str(spec["kind"]), list(spec["devices"])
        edits = [row.get("containerEdits") or {} for row in rows] + [spec.get("containerEdits") or {}]
        wanted = [node.get("hostPath") or node["path"] for edit in edits for node in edit.get("deviceNodes") or ()]
        wanted += [mount["hostPath"] for edit in edits for mount in edit.get("mounts") or ()]
        names = tuple(str(row["name"]) for row in rows)
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        return CdiFile(path=shown, error=f"{type(error).__name__}: {error}".splitlines()[0])
    missing = tuple(sorted({name for name in wanted if not os.path.lexists(root / str(name).lstrip("/"))}))
    versions = {found for name in wanted for found in _DRIVER_VERSION.findall(Path(str(name)).name)}
    return CdiFile(path=shown, kind=kind, devices=names, missing=missing, driver_versions=tuple(sorted(versions)))


def storage(what: str, path: Path) -> Space | None:
    """Free space where ``path`` is or would be made; None when it cannot be told (a remote engine's folder)."""
    try:
        place = path
        while not place.exists() and place != place.parent:
            place = place.parent
        usage = shutil.disk_usage(place)
        inodes = os.statvfs(place)
    except OSError:
        return None
    percent = 100.0 * inodes.f_favail / inodes.f_files if inodes.f_files else None
    return Space(what=what, path=str(path), free=usage.free, total=usage.total, inodes_free_percent=percent)


# -- interpreter -----------------------------------------------------------------------------------


def interpreter(python: str, env: Mapping[str, str]) -> InterpreterFacts:
    """What ``python`` holds, by running a script of the standard library in it, once more for each framework."""
    found, error = _ask_interpreter(python, env)
    if found is None:
        return InterpreterFacts(path=python, error=error)
    return InterpreterFacts(
        path=python,
        version=found["version"],
        bits=found["bits"],
        abiflags=found["abiflags"],
        glibc=found["glibc"],
        prefix=found["prefix"],
        in_venv=found["in_venv"],
        packages=tuple((name, version) for name, version in found["packages"]),
        duplicates=tuple((name, tuple(places)) for name, places in found["duplicates"]),
        ld_library_path=_split(env.get("LD_LIBRARY_PATH", "")),
        frameworks=tuple(_framework(python, env, name) for name in found["frameworks"]),
    )


def _ask_interpreter(
    python: str, env: Mapping[str, str], *words: str, heard: list[str] | None = None
) -> tuple[dict[str, Any] | None, str]:
    """The probe's JSON, or None and why not. ``heard`` collects what was printed on stderr."""
    script = Path(__file__).with_name("interpreter_probe.py")
    try:
        outcome = process.run([python, script, *words], env=env, timeout=INTERPRETER_SECONDS)
    except OSError as error:
        return None, f"cannot be started: {error.strerror or error}"
    if heard is not None:
        heard.append(outcome.stderr)
    if outcome.timed_out:
        return None, f"did not end within {INTERPRETER_SECONDS:.0f} s"
    try:
        return dict(json.loads(outcome.stdout.splitlines()[-1])), ""
    except (ValueError, IndexError, TypeError):
        said = " ".join(outcome.tail(3))[-400:]
        return None, f"ended with code {outcome.code}" + (f": {said}" if said else "")


def _framework(python: str, env: Mapping[str, str], name: str) -> FrameworkFacts:
    # Nobody wants a look to take the whole GPU's memory.
    quiet = {**env, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    heard: list[str] = []
    row, error = _ask_interpreter(python, quiet, name, heard=heard)
    output = "".join(heard)[-4000:]
    if row is None:
        return FrameworkFacts(name=name, error=error, output=output)
    return FrameworkFacts(
        name=name,
        version=row["version"],
        cuda=row["cuda"],
        cudnn=row["cudnn"],
        devices=row["devices"],
        kernels=tuple(row["kernels"]),
        cxx11_abi=row["cxx11_abi"],
        libraries=tuple(row["libraries"]),
        error=row["error"],
        output=row["output"] + output,
    )
