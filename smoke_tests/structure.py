"""Level 0: what can be seen without importing any framework. Every function takes the plan and returns a detail."""

import errno
import os
import pwd
import re
import sys
import sysconfig
import tempfile

from envforge_smoke.outcome import Failed, Unavailable

# Packages that a base image or a virtual environment brings by itself; they count only when the lock names them.
_FROM_THE_BASE = ("pip", "setuptools", "wheel")

_CUDA_LIBRARY = re.compile(
    r"^(lib(?:cudart|cublas|cublasLt|cudnn\w*|cufft|curand|cusolver|cusparse|cusparseLt|nccl|nvrtc|nvJitLink|cupti))"
    r"(?:-[0-9a-f]{6,})?\.so(?:[.\d]*)$"
)


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def installed():
    """Normalised distribution name → version of everything this interpreter can import."""
    try:
        from importlib import metadata
    except ImportError:  # Python 3.7
        import pkg_resources

        return {normal(d.project_name): d.version for d in pkg_resources.working_set}
    found = {}
    for distribution in metadata.distributions():
        try:
            name = distribution.metadata["Name"]
        except Exception:
            name = None
        if name:
            found.setdefault(normal(name), distribution.version)  # the first on the path is the one imported
    return found


def packages(plan):
    expected = plan.get("packages")
    if expected is None:
        raise Unavailable("no lock to compare with")
    have, problems = installed(), []
    for name in sorted(expected):
        if name not in have:
            problems.append("{0} {1} is locked but not installed".format(name, expected[name]))
        elif have[name] != expected[name]:
            problems.append("{0} is {1}, the lock says {2}".format(name, have[name], expected[name]))
    if not plan.get("packages_partial"):
        for name in sorted(set(have) - set(expected)):
            if name not in _FROM_THE_BASE:
                problems.append("{0} {1} is installed but not locked".format(name, have[name]))
    if problems:
        raise Failed("; ".join(problems[:20]), "lock-mismatch")
    return "{0} packages as locked".format(len(expected))


def files(plan):
    wanted = plan.get("files") or []
    if not wanted:
        raise Unavailable("the plan names no files")
    missing = [path for path in wanted if not os.path.exists(path)]
    if missing:
        raise Failed("missing: {0}".format(", ".join(missing)), "missing-file")
    return "{0} paths present".format(len(wanted))


def env(plan):
    wanted = plan.get("env")
    if not wanted:
        raise Unavailable("the plan sets no environment variables")
    wrong = [
        "{0} is {1!r}, expected {2!r}".format(key, os.environ.get(key), wanted[key])
        for key in sorted(wanted)
        if os.environ.get(key) != wanted[key]
    ]
    if wrong:
        raise Failed("; ".join(wrong), "wrong-env")
    return "{0} variables as planned".format(len(wanted))


def labels(plan):
    wanted, seen = plan.get("labels_expected"), plan.get("labels_seen")
    if not wanted or seen is None:
        raise Unavailable("no image, so no labels")
    wrong = [
        "label {0} is {1!r}, expected {2!r}".format(key, seen.get(key), wanted[key])
        for key in sorted(wanted)
        if seen.get(key) != wanted[key]
    ]
    if wrong:
        raise Failed("; ".join(wrong), "wrong-label")
    return "{0} labels as planned".format(len(wanted))


def _writable(path):
    """'yes', 'by its mode' (the root is mounted read-only for the test) or a reason why not."""
    try:
        handle, name = tempfile.mkstemp(dir=path)
        os.close(handle)
        os.unlink(name)
        return "yes"
    except OSError as error:
        if error.errno != errno.EROFS:
            return "uid {0} cannot write in {1}: {2}".format(os.geteuid(), path, error.strerror)
    status = os.stat(path)
    if os.geteuid() == 0:
        return "by its mode"
    groups = set(os.getgroups()) | {os.getegid()}
    if status.st_uid == os.geteuid():
        allowed = status.st_mode & 0o300 == 0o300
    elif status.st_gid in groups:
        allowed = status.st_mode & 0o030 == 0o030
    else:
        allowed = status.st_mode & 0o003 == 0o003
    if allowed:
        return "by its mode"
    return "uid {0} may not write in {1} (owner {2}:{3}, mode {4:o})".format(
        os.geteuid(), path, status.st_uid, status.st_gid, status.st_mode & 0o7777
    )


def user(plan):
    wanted = plan.get("user")
    if not wanted:
        raise Unavailable("the plan names no user")
    problems, details = [], []
    if wanted.get("uid") is not None and os.geteuid() != wanted["uid"]:
        problems.append("the process runs as uid {0}, planned is {1}".format(os.geteuid(), wanted["uid"]))
    for path in wanted.get("writable") or []:
        if path == "~":  # the home folder of the image's user, not the one the isolated run sets
            path = pwd.getpwuid(os.geteuid()).pw_dir
        path = os.path.expandvars(path)
        if not os.path.isdir(path):
            problems.append("{0} is not there".format(path))
            continue
        answer = _writable(path)
        if answer not in ("yes", "by its mode"):
            problems.append(answer)
        details.append("{0} writable{1}".format(path, "" if answer == "yes" else " by its mode (read-only test run)"))
    if problems:
        raise Failed("; ".join(problems), "ownership")
    return "; ".join(["uid {0}".format(os.geteuid())] + details)


def library_folders(whole_system=True):
    """Folders where a CUDA library may lie. An image is one whole; of a plain interpreter's host only what its
    library path names counts: a toolkit beside it is no fault."""
    found = [os.path.join(p, "lib") for p in os.environ.get("CONDA_PREFIX", "").split() if p]
    found += [p for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p]
    if not whole_system:
        return [path for path in found if os.path.isdir(path)]
    for base in ("/usr/local", "/opt"):
        if os.path.isdir(base):
            for name in sorted(os.listdir(base)):
                if name.startswith("cuda"):
                    found += [os.path.join(base, name, "lib64"), os.path.join(base, name, "extras", "CUPTI", "lib64")]
    found += ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"]
    return [path for path in found if os.path.isdir(path)]


def _private(folder, name):
    """Folders whose libraries are loaded by their full path, one at a time, and by nobody else: Triton's profiler
    library and MindSpore's plug-ins, one per CUDA line."""
    if name in ("include", "__pycache__"):
        return True
    return (name == "cupti" and "triton" in folder) or (name == "plugin" and folder.endswith("mindspore/lib"))


def cuda_copies(folders, trees):
    """Library stem → sorted real paths. ``folders`` are looked into flatly, ``trees`` with all that is below."""
    found = {}

    def look(folder, names):
        for name in names:
            match = _CUDA_LIBRARY.match(name)
            if match and os.sep + "stubs" not in folder:
                real = os.path.realpath(os.path.join(folder, name))
                if os.path.isfile(real):
                    found.setdefault(match.group(1), set()).add(real)

    for folder in folders:
        look(folder, os.listdir(folder))
    for tree in trees:
        for folder, below, names in os.walk(tree):
            below[:] = [name for name in below if not _private(folder, name)]
            look(folder, names)
    return {stem: sorted(paths) for stem, paths in found.items()}


def site_folders():
    paths = {sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]}
    paths |= {p for p in sys.path if p.endswith(("site-packages", "dist-packages"))}
    return sorted({os.path.realpath(p) for p in paths if os.path.isdir(p)})


def cuda_libraries(plan):
    copies = cuda_copies(library_folders(plan.get("scope") == "image"), site_folders())
    double = ["{0}: {1}".format(stem, " and ".join(copies[stem])) for stem in sorted(copies) if len(copies[stem]) > 1]
    if double:
        raise Failed("more than one copy of {0}".format("; ".join(double)), "second-cuda-library")
    if not copies:
        return "no CUDA library here" if not plan.get("cuda") else "no CUDA library outside the framework's own files"
    return "one copy each of {0}".format(", ".join(sorted(copies)))


def _linker_folders():
    found = []
    try:
        for name in sorted(os.listdir("/etc/ld.so.conf.d")):
            with open(os.path.join("/etc/ld.so.conf.d", name), errors="replace") as stream:
                found += [line.strip() for line in stream if line.strip().startswith("/")]
    except OSError:
        pass
    return found


def stub_driver(plan):
    """A stub libcuda on the library path answers in place of the driver and every GPU call fails."""
    problems = []
    for origin, folders in (
        ("LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)),
        ("/etc/ld.so.conf.d", _linker_folders()),
        (
            "the system's library folders",
            ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib"],
        ),
    ):
        for folder in folders:
            if not folder or not os.path.isdir(folder):
                continue
            for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1"):
                path = os.path.join(folder, name)
                if os.path.lexists(path) and "/stubs" in os.path.realpath(path):
                    problems.append("{0} (through {1})".format(path, origin))
    if problems:
        raise Failed("stub driver on the library path: {0}".format(", ".join(problems)), "stub-driver")
    return "no stub driver on the library path"


CHECKS = {
    "structure.files": files,
    "structure.env": env,
    "structure.user": user,
    "structure.labels": labels,
    "structure.packages": packages,
    "structure.cuda_libraries": cuda_libraries,
    "structure.stub_driver": stub_driver,
}
