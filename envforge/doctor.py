"""Judges a host: facts in, findings out. Pure; `host` looks, this module decides and explains.

The order is that of the chain a GPU takes: driver → CUDA → container toolkit → engine → CDI → storage →
Python → framework. The first error in that order is the one to repair first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from envforge import passthrough
from envforge.compat import Floors
from envforge.hostfacts import CdiFile, HostFacts, Space
from envforge.versions import is_version, key

Area = Literal["driver", "cuda", "toolkit", "engine", "cdi", "storage", "python", "framework"]
Severity = Literal["ok", "info", "warning", "error"]
AREAS: tuple[Area, ...] = ("driver", "cuda", "toolkit", "engine", "cdi", "storage", "python", "framework")

GIB = 1 << 30
# A torch CUDA image takes 6 GB and its build cache as much again.
SPACE_WARNING, SPACE_ERROR = 20 * GIB, 5 * GIB
_MISMATCH, _NOT_LOADED, _NO_PERMISSION, _LOST, _UNKNOWN = 18, 9, 4, 15, 999


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One judgement: what was seen (``evidence``), what it means (``message``), what to do (``hint``).

    ``commands`` are shell lines a person may run to repair it; envforge never runs them.
    """

    area: Area
    reference: str
    severity: Severity
    evidence: str
    message: str
    hint: str = ""
    commands: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "area": self.area,
            "reference": self.reference,
            "severity": self.severity,
            "evidence": self.evidence,
            "message": self.message,
            "hint": self.hint,
            "commands": list(self.commands),
        }


def judge(facts: HostFacts, floors: Sequence[Floors]) -> tuple[Finding, ...]:
    """Every finding, in the order of the chain. ``floors``: one row per CUDA series."""
    from envforge import doctor_python

    found = [
        *driver(facts),
        *cuda(facts, floors),
        *toolkit(facts),
        *engine(facts),
        *cdi(facts),
        *storage(facts),
        *doctor_python.python(facts),
        *doctor_python.framework(facts, floors),
    ]
    return tuple(sorted(found, key=lambda finding: AREAS.index(finding.area)))


def driver_version(facts: HostFacts) -> str | None:
    """The driver in use: NVML's word, else the loaded module's."""
    return facts.nvml.driver or facts.driver.module_version


# -- driver ----------------------------------------------------------------------------------------


def driver(facts: HostFacts) -> Iterator[Finding]:
    """Hardware, kernel module, NVML, device nodes, MIG, library files."""
    if not facts.gpu_hardware and facts.driver.module_version is None and facts.nvml.status == "library-missing":
        evidence = "no NVIDIA device on the bus, no /dev/nvidia*, no libnvidia-ml"
        if facts.wsl:
            yield Finding(
                area="driver", reference="wsl-no-gpu", severity="warning", evidence="WSL without /dev/dxg",
                message="WSL shows no GPU", hint="update the Windows driver and WSL itself", commands=("wsl --update",),
            )
            return
        yield Finding(
            area="driver", reference="no-gpu", severity="info", evidence=evidence,
            message="no NVIDIA GPU on this host; CPU environments work here",
            hint="GPU checks are reported as unavailable on this host",
        )
        return
    yield from _module(facts)
    yield from _nvml(facts)
    yield from _gpus(facts)
    yield from _libraries(facts)
    yield from _wsl(facts)


def _module(facts: HostFacts) -> Iterator[Finding]:
    """The kernel module, where NVML could not be asked or has no driver."""
    if facts.wsl or facts.driver.module_version is not None or facts.nvml.status == "ok":
        return
    if facts.nvml.status == "error" and facts.nvml.code != _NOT_LOADED:
        return  # NVML reached a driver and names the trouble itself
    bound = {gpu.bound for gpu in facts.driver.pci}
    evidence = f"{len(facts.driver.pci)} GPU(s) on the bus, no /proc/driver/nvidia/version"
    if "nouveau" in bound:
        yield Finding(
            area="driver", reference="driver-nouveau", severity="error", evidence=f"{evidence}; bound to nouveau",
            message="the open nouveau driver holds the GPU; CUDA needs NVIDIA's own",
            hint="install NVIDIA's driver, which switches nouveau off, and reboot",
            commands=("sudo apt install nvidia-driver", "sudo reboot"),
        )
    elif bound and bound <= {"vfio-pci"}:
        yield Finding(
            area="driver", reference="driver-vfio", severity="error", evidence=f"{evidence}; bound to vfio-pci",
            message="the GPU is set aside for a virtual machine",
            hint="use it in that machine, or unbind it from vfio-pci",
        )
    elif facts.driver.libraries:
        secure = "; Secure Boot is on, so the module must be signed" if facts.driver.secure_boot else ""
        yield Finding(
            area="driver", reference="driver-not-loaded", severity="error", evidence=evidence + secure,
            message="the driver is installed, but its kernel module is not loaded (often after a kernel upgrade)",
            hint="rebuild and load the module for the running kernel",
            commands=("sudo dkms autoinstall", "sudo modprobe nvidia"),
        )
    else:
        yield Finding(
            area="driver", reference="driver-missing", severity="error", evidence=evidence,
            message="an NVIDIA GPU is there and no driver is installed",
            hint="install the driver on the host; containers use the host's",
            commands=("sudo apt install nvidia-driver", "sudo reboot"),
        )


def _nvml(facts: HostFacts) -> Iterator[Finding]:
    nvml, module = facts.nvml, facts.driver.module_version
    if nvml.status == "ok":
        return
    seen = f"NVML: {nvml.text} (code {nvml.code})"
    if nvml.status == "timeout":
        yield Finding(
            area="driver", reference="nvml-hangs", severity="error", evidence=nvml.text,
            message="the driver does not answer; a GPU may have fallen off the bus",
            hint="look for NVRM and Xid lines in the kernel log; usually only a reboot helps",
            commands=("sudo dmesg | grep -i -E 'nvrm|xid'",),
        )
    elif nvml.status == "crashed":
        yield Finding(
            area="driver", reference="nvml-crashed", severity="error",
            evidence=f"asking NVML ended with code {nvml.code}: {nvml.text}",
            message="the driver's NVML library crashes",
            hint="reinstall the driver's libraries in the module's version",
        )
    elif nvml.status == "library-missing":
        if module is not None:
            where = "this container was started without the driver's libraries" if facts.in_container else (
                "the kernel module is loaded, but the driver's libraries are not installed"
            )
            yield Finding(
                area="driver", reference="driver-library-missing", severity="error",
                evidence=f"module {module} is loaded, libnvidia-ml.so.1 is not found", message=where,
                hint="start the container with --gpus, or install the driver's compute libraries of the same version",
            )
    elif nvml.code == _MISMATCH:
        files = sorted({row.version for row in facts.driver.libraries if row.version and not row.stub})
        yield Finding(
            area="driver", reference="driver-library-mismatch", severity="error",
            evidence=f"{seen}; module {module or 'unknown'}, libraries {', '.join(files) or 'unknown'}",
            message="the driver's libraries were upgraded while the old kernel module is still loaded",
            hint="reboot (or reload the nvidia modules with nothing using them); hold the package to stop surprises",
            commands=("sudo reboot",),
        )
    elif nvml.code == _UNKNOWN and facts.in_container:
        yield Finding(
            area="driver", reference="gpu-lost-access", severity="error", evidence=seen,
            message="this container lost its permission to use the GPU (the host is usually fine)",
            hint="start a new container; lasting: /dev/char links or CDI on the host",
        )
    elif nvml.code == _NOT_LOADED:
        if module is not None or not facts.driver.pci:
            yield Finding(
                area="driver", reference="driver-not-loaded", severity="error", evidence=seen,
                message="NVML finds no loaded driver", hint="load the kernel module and look at the kernel log",
                commands=("sudo modprobe nvidia",),
            )
    elif nvml.code == _NO_PERMISSION:
        yield Finding(
            area="driver", reference="nvml-no-permission", severity="error", evidence=seen,
            message="this user may not open the GPU's device files",
            hint="compare the rights of /dev/nvidia* with your groups (often video or render)",
            commands=("ls -l /dev/nvidia*", "id"),
        )
    else:
        yield Finding(
            area="driver", reference="nvml-error", severity="error", evidence=seen,
            message="NVML cannot be used", hint="look for NVRM lines in the kernel log; a reboot often helps",
            commands=("sudo dmesg | grep -i nvrm",),
        )


def _gpus(facts: HostFacts) -> Iterator[Finding]:
    """What NVML counts, each GPU's own trouble, MIG, the UVM node."""
    nvml = facts.nvml
    if nvml.status != "ok":
        return
    if not nvml.gpus:
        yield Finding(
            area="driver", reference="no-devices", severity="error" if facts.gpu_hardware else "info",
            evidence=f"driver {nvml.driver}, 0 GPUs",
            message="the driver runs and sees no GPU",
            hint="a GPU that is on the bus and not counted is too new for the driver or has failed: see the kernel log",
        )
        return
    for gpu in nvml.gpus:
        if gpu.error is not None:
            lost = gpu.error == _LOST
            yield Finding(
                area="driver", reference="gpu-lost" if lost else "gpu-error", severity="error",
                evidence=f"GPU {gpu.index}: {gpu.error_text or 'error'} (code {gpu.error})",
                message=f"GPU {gpu.index} does not answer any more" if lost else f"GPU {gpu.index} cannot be asked",
                hint="look for Xid lines in the kernel log; check power and cooling; reboot",
            )
        elif gpu.mig and not gpu.mig_instances:
            yield Finding(
                area="driver", reference="mig-no-instances", severity="error",
                evidence=f"GPU {gpu.index} ({gpu.name}): MIG on, 0 instances",
                message=f"GPU {gpu.index} is in MIG mode without instances: CUDA sees no device on it",
                hint="create instances, or switch MIG off",
                commands=(f"sudo nvidia-smi mig -i {gpu.index} -lgip", f"sudo nvidia-smi -i {gpu.index} -mig 0"),
            )
        elif gpu.mig:
            yield Finding(
                area="driver", reference="mig-on", severity="info",
                evidence=f"GPU {gpu.index}: {len(gpu.mig_instances)} MIG instance(s)",
                message="ask for an instance by its id; one process can use one instance",
                hint=f"--gpus device={gpu.mig_instances[0]}",
            )
    usable = [gpu for gpu in nvml.gpus if gpu.error is None]
    if usable:
        models = sorted({f"{gpu.name}{f' (sm_{gpu.capability})' if gpu.capability else ''}" for gpu in usable})
        yield Finding(
            area="driver", reference="driver-ok", severity="ok",
            evidence=f"driver {nvml.driver}, {len(usable)} GPU(s): {', '.join(models)}",
            message="the driver answers through NVML",
        )
    if facts.driver.nodes and not facts.wsl and "nvidia-uvm" not in facts.driver.nodes:
        yield Finding(
            area="driver", reference="uvm-missing", severity="warning", evidence="/dev/nvidia-uvm is not there",
            message="CUDA needs the nvidia-uvm module and its device node; NVML does not",
            hint="load it; nvidia-modprobe creates the node", commands=("sudo nvidia-modprobe -u -c=0",),
        )


def _libraries(facts: HostFacts) -> Iterator[Finding]:
    """Stub, empty and differing library files."""
    stubs = [folder for folder in facts.ld_library_path if "stubs" in folder.split("/")]
    if stubs or "/stubs/" in facts.nvml.library:
        yield Finding(
            area="driver", reference="stub-library", severity="error",
            evidence=f"LD_LIBRARY_PATH holds {', '.join(stubs)}" if stubs else f"loaded: {facts.nvml.library}",
            message="a toolkit's stub library hides the driver's own; stubs can link programs, not run them",
            hint="take the stubs folder off LD_LIBRARY_PATH at run time",
        )
    empty = [row.path for row in facts.driver.libraries if row.size == 0]
    if empty:
        yield Finding(
            area="driver", reference="empty-library", severity="warning", evidence=", ".join(empty),
            message="empty library files: mount points left over from a committed container",
            hint="build images from Dockerfiles instead of committing containers; remove the empty files",
        )
    compat = [folder for folder in facts.ld_library_path if folder.rstrip("/").endswith("compat")]
    if compat:
        yield Finding(
            area="driver", reference="compat-library", severity="warning",
            evidence=f"LD_LIBRARY_PATH holds {', '.join(compat)}",
            message="a forward-compatibility libcuda comes before the driver's; it works on data-centre GPUs only "
            "and hides a newer driver",
            hint="use it only where `envforge check` answers forward-compat",
        )
    versions = sorted({row.version for row in facts.driver.libraries if _plain(row.path) and row.version})
    module = facts.driver.module_version
    differing = len(versions) > 1 or (module is not None and versions not in ([], [module]))
    if differing and facts.nvml.code != _MISMATCH and not facts.wsl:
        yield Finding(
            area="driver", reference="several-driver-versions", severity="warning",
            evidence=f"module {module or 'unknown'}, library files {', '.join(versions)}",
            message="driver libraries of more than one version, or of another version than the module, are installed",
            hint="remove the one that is not the module's, then run ldconfig", commands=("sudo ldconfig",),
        )


def _plain(path: str) -> bool:
    return not any(part in path for part in ("stubs", "compat", "/wsl/"))


def _wsl(facts: HostFacts) -> Iterator[Finding]:
    if not facts.wsl:
        return
    own = [row.path for row in facts.driver.libraries if row.version and "/wsl/" not in row.path and _plain(row.path)]
    if own:
        yield Finding(
            area="driver", reference="wsl-linux-driver", severity="error", evidence=", ".join(own),
            message="a Linux driver is installed inside WSL and hides the one from Windows",
            hint="remove the Linux driver packages; WSL uses the Windows driver alone",
            commands=("sudo apt purge 'nvidia-driver-*' 'libnvidia-*'",),
        )
    if not facts.wsl_library_path:
        yield Finding(
            area="driver", reference="wsl-library-path", severity="error" if facts.nvml.status != "ok" else "warning",
            evidence="/usr/lib/wsl/lib stands in no ld.so.conf file and not in LD_LIBRARY_PATH",
            message="the loader does not know where the Windows driver puts its libraries",
            hint="tell it",
            commands=("echo /usr/lib/wsl/lib | sudo tee /etc/ld.so.conf.d/ld.wsl.conf", "sudo ldconfig"),
        )


# -- CUDA ------------------------------------------------------------------------------------------


def support(version: str, floors: Sequence[Floors]) -> dict[str, str]:
    """CUDA series -> ``native``, ``minor-version`` or ``too-old`` for this driver, oldest series first."""
    answers = {}
    for row in sorted(floors, key=lambda row: key(row.cuda)):
        if key(version) >= key(row.native):
            answers[row.cuda] = "native"
        elif key(version) >= key(row.minor):
            answers[row.cuda] = "minor-version"
        else:
            answers[row.cuda] = "too-old"
    return answers


def cuda(facts: HostFacts, floors: Sequence[Floors]) -> Iterator[Finding]:
    """What the driver's CUDA number means, and toolkits on the host."""
    version = driver_version(facts)
    if version is not None and is_version(version):
        answers = support(version, floors)
        native = [series for series, answer in answers.items() if answer == "native"]
        minor = [series for series, answer in answers.items() if answer == "minor-version"]
        old = [series for series, answer in answers.items() if answer == "too-old"]
        if native:
            said = f"; NVML says {facts.nvml.cuda}" if facts.nvml.cuda else ""
            yield Finding(
                area="cuda", reference="cuda-supported", severity="ok",
                evidence=f"driver {version} → CUDA {native[-1]}{said}",
                message=f"the driver supports CUDA up to {facts.nvml.cuda or native[-1]}: that is what it can run, "
                "not what is installed; environments bring their own CUDA libraries",
            )
        else:
            first = min(floors, key=lambda row: key(row.cuda)) if floors else None
            yield Finding(
                area="cuda", reference="driver-very-old", severity="error", evidence=f"driver {version}",
                message="the driver is older than every CUDA in the tables"
                + (f" (CUDA {first.cuda} needs {first.native})" if first else ""),
                hint="update the driver",
            )
        if minor:
            yield Finding(
                area="cuda", reference="cuda-minor-version", severity="info",
                evidence=f"driver {version}: {', '.join(minor)}",
                message="these run by minor-version compatibility only: code compiled at run time (newer PTX) may fail",
                hint="update the driver when an environment needs run-time compilation",
            )
        if old:
            need = {row.cuda: row.minor for row in floors}
            yield Finding(
                area="cuda", reference="cuda-too-new", severity="info",
                evidence=", ".join(f"CUDA {series} needs driver {need[series]}" for series in old),
                message="environments for these CUDA versions do not run with this driver",
                hint="envforge check NAME --host answers for one environment",
            )
        if facts.nvml.cuda and native and key(facts.nvml.cuda) > key(native[-1]) and facts.nvml.cuda in answers:
            yield Finding(
                area="cuda", reference="cuda-number-differs", severity="warning",
                evidence=f"driver {version} belongs to CUDA {native[-1]}, NVML says {facts.nvml.cuda}",
                message="a forward-compatibility library answers in place of the driver's own",
                hint="see which libcuda comes first on the loader path",
            )
    for folder, toolkit_version in facts.cuda_toolkits:
        yield Finding(
            area="cuda", reference="cuda-toolkit", severity="info",
            evidence=f"{folder}: CUDA {toolkit_version or 'of unknown version'}",
            message="a CUDA toolkit is installed here; environments do not need it, compiling on the host does",
        )


# -- toolkit, engine, CDI --------------------------------------------------------------------------


def _cdi_works(facts: HostFacts) -> bool:
    """The engine can do CDI and a sound GPU spec is where it looks."""
    return _cdi_engine(facts) and any(_sound(row) for row in facts.cdi)


def _cdi_engine(facts: HostFacts) -> bool:
    head = facts.engine.version.partition(".")[0]
    new = head.isdigit() and int(head) >= 25 and facts.engine.daemon.cdi is not False
    return facts.engine.flavour == "podman" or new


def _sound(row: CdiFile) -> bool:
    return row.kind == passthrough.CDI_KIND and not row.error and not row.missing


def toolkit(facts: HostFacts) -> Iterator[Finding]:
    """The NVIDIA Container Toolkit; only of interest where there is a GPU and an engine."""
    if not facts.gpu_hardware or not facts.engine.reachable:
        return
    kit, host_engine = facts.toolkit, facts.engine
    programs = ", ".join(name for name, _ in kit.programs if name != "nvidia-smi") or "none of its programs found"
    if host_engine.desktop:
        return
    if not kit.installed:
        if _cdi_works(facts):
            return
        message, _hint = passthrough.CAUSES["gpu-no-toolkit"]
        yield Finding(
            area="toolkit", reference="toolkit-missing", severity="error", evidence=programs, message=message,
            hint="install it, register it with the engine, restart the engine",
            commands=(
                "sudo apt install nvidia-container-toolkit",
                "sudo nvidia-ctk runtime configure --runtime=docker",
                "sudo systemctl restart docker",
            ),
        )
        return
    listed = "nvidia" in host_engine.daemon.runtimes
    if host_engine.rootless and kit.no_cgroups is not True and not _cdi_works(facts):
        message, hint = passthrough.CAUSES["gpu-rootless"]
        yield Finding(
            area="toolkit", reference="rootless-cgroups", severity="error",
            evidence=f"rootless engine, no-cgroups {'false' if kit.no_cgroups is False else 'not set'}, "
            f"toolkit {kit.version or 'of unknown version'}",
            message=message, hint=hint,
            commands=("nvidia-ctk cdi generate --output=$HOME/.config/cdi/nvidia.yaml",),
        )
    if "nvidia" in host_engine.runtimes or _cdi_works(facts):
        yield Finding(
            area="toolkit", reference="toolkit-ok", severity="ok",
            evidence=f"{programs}{f'; version {kit.version}' if kit.version else ''}",
            message="the toolkit is installed and the engine can use it",
        )
    elif host_engine.flavour == "docker" and not host_engine.snap:
        reference = "engine-restart-needed" if listed else "toolkit-not-registered"
        cause = "gpu-engine-restart" if listed else "gpu-toolkit-unregistered"
        message, hint = passthrough.CAUSES[cause]
        steps = ("sudo systemctl restart docker",)
        yield Finding(
            area="toolkit", reference=reference, severity="error",
            evidence=f"{programs}; engine runtimes: {', '.join(host_engine.runtimes) or 'none'}",
            message=message, hint=hint,
            commands=steps if listed else ("sudo nvidia-ctk runtime configure --runtime=docker", *steps),
        )


def engine(facts: HostFacts) -> Iterator[Finding]:
    """The container engine: there, of what kind, configured how, and the GPU test's answer."""
    host_engine = facts.engine
    if host_engine.daemon.error:
        yield Finding(
            area="engine", reference="daemon-json-broken", severity="error",
            evidence=f"{host_engine.daemon.path}: {host_engine.daemon.error}",
            message="the engine's configuration cannot be read; the engine will not start with it",
            hint="repair the JSON", commands=(f"python3 -m json.tool {host_engine.daemon.path}",),
        )
    if not host_engine.reachable:
        denied = "permission denied" in host_engine.error
        yield Finding(
            area="engine", reference="engine-no-permission" if denied else "engine-missing", severity="warning",
            evidence=host_engine.error or host_engine.address,
            message="this user may not use the engine" if denied else "no container engine answers; "
            "envforge uses its local engine (--engine local)",
            hint="join the docker group (as powerful as root) or use a rootless engine" if denied
            else "start Docker or Podman, or set DOCKER_HOST, to build images",
            commands=("sudo usermod -aG docker $USER",) if denied else (),
        )
        return
    kind = "Podman" if host_engine.flavour == "podman" else "Docker"
    yield Finding(
        area="engine", reference="engine-ok", severity="ok",
        evidence=f"{kind} {host_engine.version} at {host_engine.address}"
        f"{' (rootless)' if host_engine.rootless else ''}, storage {host_engine.storage_driver or 'unknown'}",
        message="the engine answers",
    )
    if host_engine.snap:
        message, hint = passthrough.CAUSES["gpu-engine-snap"]
        yield Finding(
            area="engine", reference="engine-snap", severity="error" if facts.gpu_hardware else "warning",
            evidence=f"data folder {host_engine.root_dir}", message=message, hint=hint,
            commands=("sudo snap remove docker", "sudo apt install docker.io"),
        )
    if host_engine.desktop:
        yield Finding(
            area="engine", reference="engine-desktop", severity="info", evidence=host_engine.system,
            message="Docker Desktop runs containers in its own machine; GPUs need its WSL 2 engine on Windows",
        )
    if host_engine.address.startswith(("tcp:", "ssh:", "http:")):
        yield Finding(
            area="engine", reference="engine-remote", severity="info", evidence=host_engine.address,
            message="the engine runs on another machine: driver, toolkit and disk here are this machine's",
        )
    if host_engine.storage_driver == "vfs":
        yield Finding(
            area="engine", reference="storage-vfs", severity="warning", evidence="storage driver vfs",
            message="vfs copies every layer in full: images take many times their size",
            hint="use overlay2 (or fuse-overlayfs for rootless engines)",
        )
    yield from _cgroups(facts)
    for text in host_engine.warnings:
        yield Finding(
            area="engine", reference="engine-warning", severity="info", evidence=text, message="the engine warns"
        )
    yield from _gpu_test(facts)


def _cgroups(facts: HostFacts) -> Iterator[Finding]:
    """The set-up in which running containers lose the GPU at the next daemon reload."""
    host_engine, missing = facts.engine, facts.driver.char_links_missing
    if host_engine.cgroup_driver == "systemd" and missing and not _cdi_works(facts):
        yield Finding(
            area="engine", reference="gpu-may-be-lost", severity="warning",
            evidence=f"cgroup driver systemd; no /dev/char link for {', '.join(missing)}",
            message="running containers will lose the GPU at the next `systemctl daemon-reload` "
            "(NVML then says: Unknown Error)",
            hint="create the links at boot, or use CDI, or the cgroupfs driver",
            commands=("sudo nvidia-ctk system create-dev-char-symlinks --create-all",),
        )


def _gpu_test(facts: HostFacts) -> Iterator[Finding]:
    for test in facts.gpu_tests:
        if test.delivered and not test.error:
            yield Finding(
                area="engine", reference="gpu-test-passed", severity="ok",
                evidence=f"{test.form}: {', '.join(test.delivered)}",
                message="a tiny container got the GPU",
            )
            return
    tried = [test for test in facts.gpu_tests if test.form]
    if tried:
        reference = passthrough.name_cause(tried[0].error, facts, cdi=tried[0].form != "nvidia")
        message, hint = passthrough.CAUSES[reference]
        yield Finding(
            area="engine", reference=reference, severity="error",
            evidence="; ".join(f"{test.form}: {test.error or 'started without the GPU'}" for test in tried),
            message=f"a tiny container did not get the GPU: {message}", hint=hint,
        )


def cdi(facts: HostFacts) -> Iterator[Finding]:
    """CDI specs: sound, stale, where the engine looks."""
    if not facts.engine.reachable or not _cdi_engine(facts):
        return
    ours = [row for row in facts.cdi if row.kind == passthrough.CDI_KIND or row.error]
    again = ("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",)
    if not ours and facts.gpu_hardware:
        message, hint = passthrough.CAUSES["gpu-cdi-missing"]
        registered = "nvidia" in facts.engine.runtimes
        places = ", ".join(facts.engine.cdi_spec_dirs) or "/etc/cdi, /var/run/cdi"
        yield Finding(
            area="cdi", reference="cdi-missing", severity="info" if registered else "warning",
            evidence=f"no {passthrough.CDI_KIND} spec in {places}",
            message=message + ("; the NVIDIA runtime is used instead" if registered else ""), hint=hint, commands=again,
        )
    current = driver_version(facts)
    for row in ours:
        if row.error:
            yield Finding(
                area="cdi", reference="cdi-broken", severity="error", evidence=f"{row.path}: {row.error}",
                message="a CDI spec cannot be read", hint="write it anew", commands=again,
            )
        elif row.missing or (current and row.driver_versions and current not in row.driver_versions):
            why = f"missing: {', '.join(row.missing[:4])}" if row.missing else (
                f"made for driver {', '.join(row.driver_versions)}, the host has {current}"
            )
            message, hint = passthrough.CAUSES["gpu-cdi-stale"]
            yield Finding(
                area="cdi", reference="cdi-stale", severity="error", evidence=f"{row.path}: {why}", message=message,
                hint=hint, commands=again,
            )
        elif facts.engine.cdi_spec_dirs and row.path.rpartition("/")[0] not in facts.engine.cdi_spec_dirs:
            yield Finding(
                area="cdi", reference="cdi-elsewhere", severity="warning",
                evidence=f"{row.path}; the engine reads {', '.join(facts.engine.cdi_spec_dirs)}",
                message="the CDI spec lies where the engine does not look",
                hint="move it, or name its folder in cdi-spec-dirs",
            )
        else:
            yield Finding(
                area="cdi", reference="cdi-ok", severity="ok",
                evidence=f"{row.path}: {', '.join(row.devices[:9])}", message="the engine can use CDI devices",
            )


# -- storage ---------------------------------------------------------------------------------------


def storage(facts: HostFacts) -> Iterator[Finding]:
    """Free space and inodes where images, prefixes and temporary files go; one finding per file system state."""
    for space in facts.storage:
        yield _space(space)
        if space.inodes_free_percent is not None and space.inodes_free_percent < 2:
            yield Finding(
                area="storage", reference="inodes-low", severity="warning",
                evidence=f"{space.path}: {space.inodes_free_percent:.1f} % of the inodes free",
                message="the file system can take few more files, however much space is free",
                hint="remove old prefixes and caches: envforge clean",
            )


def _space(space: Space) -> Finding:
    evidence = f"{space.what} {space.path}: {space.free / GIB:.0f} of {space.total / GIB:.0f} GiB free"
    if space.free >= SPACE_WARNING:
        return Finding(area="storage", reference="space-ok", severity="ok", evidence=evidence, message="enough space")
    severe = space.free < SPACE_ERROR and space.what != "temporary"
    return Finding(
        area="storage", reference="space-low", severity="error" if severe else "warning", evidence=evidence,
        message="a CUDA image takes about 6 GB, its build cache as much again",
        hint="see what can go: envforge clean --dry-run; docker system df",
        commands=("envforge clean --dry-run", "docker builder prune"),
    )
