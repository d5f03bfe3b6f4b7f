"""What is known of a host: frozen facts without judgement. `host` fills them, `doctor` judges them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

NvmlStatus = Literal["ok", "library-missing", "error", "timeout", "crashed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuFacts:
    """One GPU as NVML reports it. ``mig`` None: the GPU knows no MIG, or it was not asked. ``error``: NVML code."""

    index: int
    uuid: str = ""
    name: str = ""
    capability: str = ""
    memory_bytes: int | None = None
    used_bytes: int | None = None
    mig: bool | None = None
    mig_instances: tuple[str, ...] = ()
    error: int | None = None
    error_text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NvmlFacts:
    """NVML's answer. ``code`` is its error code; ``cuda`` the newest CUDA the driver supports ("12.4")."""

    status: NvmlStatus = "library-missing"
    code: int = 0
    text: str = ""
    driver: str | None = None
    cuda: str | None = None
    library: str = ""
    through: str = ""
    gpus: tuple[GpuFacts, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryFile:
    """A driver library on disk; ``stub``: it lies in a toolkit's stubs folder; ``size`` 0: an empty mount point."""

    path: str
    version: str
    size: int
    stub: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PciGpu:
    """An NVIDIA display or 3D controller on the bus; ``bound`` names its kernel driver ("" when none)."""

    address: str
    bound: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverFacts:
    """The kernel side and the files. ``module_version`` is that of the loaded module, from /proc."""

    module_version: str | None = None
    open_module: bool = False
    modules: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    pci: tuple[PciGpu, ...] = ()
    libraries: tuple[LibraryFile, ...] = ()
    char_links_missing: tuple[str, ...] = ()
    secure_boot: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolkitFacts:
    """The NVIDIA Container Toolkit's programs by name, its version and its ``no-cgroups`` switch (None: not said)."""

    programs: tuple[tuple[str, str], ...] = ()
    version: str | None = None
    no_cgroups: bool | None = None

    def has(self, name: str) -> bool:
        return any(known == name for known, _ in self.programs)

    @property
    def installed(self) -> bool:
        """Whether anything is there that can put a GPU into a container."""
        return any(self.has(f"nvidia-{name}") for name in ("container-runtime-hook", "ctk", "container-toolkit"))


@dataclass(frozen=True, kw_only=True, slots=True)
class DaemonConfig:
    """daemon.json as written; ``error`` when it cannot be read or parsed, ``path`` "" when there is none."""

    path: str = ""
    error: str = ""
    runtimes: tuple[str, ...] = ()
    default_runtime: str = ""
    cdi: bool | None = None
    cdi_spec_dirs: tuple[str, ...] = ()
    cgroup_driver: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineFacts:
    """What the engine says of itself; ``error`` when it did not answer at ``address``."""

    address: str = ""
    reachable: bool = False
    error: str = ""
    version: str = ""
    api: str = ""
    flavour: str = "docker"  # docker, podman
    system: str = ""
    rootless: bool = False
    snap: bool = False
    desktop: bool = False
    cgroup_driver: str = ""
    cgroup_version: str = ""
    runtimes: tuple[str, ...] = ()
    cdi_spec_dirs: tuple[str, ...] = ()
    storage_driver: str = ""
    root_dir: str = ""
    warnings: tuple[str, ...] = ()
    daemon: DaemonConfig = DaemonConfig()


@dataclass(frozen=True, kw_only=True, slots=True)
class CdiFile:
    """A CDI spec file: its kind and device names, host paths it names that do not exist, driver versions it names."""

    path: str
    kind: str = ""
    devices: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    driver_versions: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """Free and total bytes, free inodes in percent (None: unknown), of the file system that holds ``path``."""

    what: str
    path: str
    free: int
    total: int
    inodes_free_percent: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class InterpreterFacts:
    """What an interpreter holds; ``frameworks`` come from importing there, each in a process of its own."""

    path: str
    error: str = ""
    version: str = ""
    bits: int = 64
    abiflags: str = ""
    glibc: str = ""
    prefix: str = ""
    in_venv: bool = False
    frameworks: tuple[FrameworkFacts, ...] = ()
    packages: tuple[tuple[str, str], ...] = ()
    duplicates: tuple[tuple[str, tuple[str, ...]], ...] = ()
    ld_library_path: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameworkFacts:
    """One framework after import. ``cuda`` None: a CPU build. ``devices`` -1: not asked or failed."""

    name: str
    version: str = ""
    cuda: str | None = None
    cudnn: str = ""
    devices: int = -1
    kernels: tuple[str, ...] = ()
    cxx11_abi: bool | None = None
    libraries: tuple[str, ...] = ()  # CUDA and driver libraries really loaded, full paths
    error: str = ""
    output: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuTest:
    """The answer of the tiny container, one per form tried; ``delivered`` holds what was seen inside."""

    form: str
    error: str = ""
    delivered: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFacts:
    """One host at one moment."""

    system: str = "Linux"
    machine: str = "x86_64"
    kernel: str = ""
    distribution: str = ""
    glibc: str = ""
    wsl: bool = False
    wsl_library_path: bool = False  # /usr/lib/wsl/lib is known to the loader
    in_container: bool = False
    driver: DriverFacts = DriverFacts()
    nvml: NvmlFacts = NvmlFacts()
    cuda_toolkits: tuple[tuple[str, str], ...] = ()  # (folder, version)
    ld_library_path: tuple[str, ...] = ()
    toolkit: ToolkitFacts = ToolkitFacts()
    engine: EngineFacts = EngineFacts()
    cdi: tuple[CdiFile, ...] = ()
    storage: tuple[Space, ...] = ()
    python: str = ""
    python_bits: int = 64
    interpreter: InterpreterFacts | None = None
    gpu_tests: tuple[GpuTest, ...] = field(default=())

    @property
    def gpu_hardware(self) -> bool:
        """Whether any sign of an NVIDIA GPU exists here, driver or not."""
        nodes = any(node.startswith("nvidia") and node[6:].isdigit() for node in self.driver.nodes)
        return bool(self.driver.pci) or nodes or bool(self.nvml.gpus) or (self.wsl and "dxg" in self.driver.nodes)
