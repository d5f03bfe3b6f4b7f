"""BuildPlan -> Dockerfile text and context files. Pure: the same plan gives the same bytes on any machine.

What the engine and a Dockerfile agree on (``envforge.build_context`` is the other side):

* ``build/`` in the context holds what the building host adds: ``ca.pem``, ``index-url``, ``apt-mirror``, ``netrc``
  (rendered empty, so that the context builds as it is) and perhaps ``offline/``. BuildKit form: the folder is
  bind-mounted at ``/run/envforge/host`` in the steps that need it and is in no layer. Plain form (engines without
  BuildKit): it is copied into the ``uv`` stage, which is thrown away; apt in the final stage then uses the sources
  of the base.
* ``build/host.sh`` reads those files into the variables of uv, pip and apt; ``build/index-url.LABEL``, when the
  engine adds one, replaces the URL of an index the lock names (hashes are still checked).
* There is no build argument: Docker writes arguments into the image history. The proxy variables, which Docker
  keeps out of it by name, work as usual.
* ``locks/pip.LABEL.txt`` are the hash-checked requirements without comments, so that the layer changes only when
  a package does. ``files/N/…`` is own code (``envforge.sources``).

uv copies out of a cache mount (``UV_LINK_MODE=copy``: the cache is another file system) and does not compile
bytecode: it would cost a third of the install time and its files would hold times, so that two builds of one lock
differed.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envforge import resources
from envforge.errors import LockError
from envforge.lock import Lock, LockedConda, requirement_files, requirement_lines
from envforge.plan import BuildPlan, Rendered
from envforge.resolve import DEFAULT_INDEX, Resolution
from envforge.spec import FileSpec, HookSpec

HOST = "/run/envforge/host"
LOCKS = "/run/envforge/locks"
CACHE = "/run/envforge/cache"
INSTALLER = "/run/envforge/installer"
CONDA_INSTALLER = "/run/envforge/rattler"
PYTHON_DIR = "/opt/python"
_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

HOST_SCRIPT = f"""\
# Settings of the machine that builds: used in single steps, kept in no layer. Read with `.` by /bin/sh.
here={HOST}
if [ -s "$here/ca.pem" ]; then
  export SSL_CERT_FILE="$here/ca.pem" PIP_CERT="$here/ca.pem" CURL_CA_BUNDLE="$here/ca.pem"
fi
if [ -s "$here/index-url" ]; then
  UV_DEFAULT_INDEX="$(cat "$here/index-url")"
  PIP_INDEX_URL="$UV_DEFAULT_INDEX"
  export UV_DEFAULT_INDEX PIP_INDEX_URL
fi
if [ -s "$here/netrc" ]; then export NETRC="$here/netrc"; fi
if [ -d "$here/offline" ]; then
  export UV_OFFLINE=1 UV_FIND_LINKS="$here/offline" PIP_NO_INDEX=1 PIP_FIND_LINKS="$here/offline"
fi
# A build that is to prove something takes nothing from the cache of earlier ones.
if [ -e "$here/fresh" ]; then export UV_NO_CACHE=1; fi
# The URL of a labelled index: the lock's own, or the one this host puts in its place.
index_url() {{ if [ -s "$here/index-url.$1" ]; then cat "$here/index-url.$1"; else printf '%s' "$2"; fi; }}
# apt with the CA bundle and mirror of this host; $1 is the release name.
apt_settings() {{
  set --  "$1"
  if [ -s "$here/ca.pem" ]; then
    printf 'Acquire::https::CAInfo "%s";\\n' "$here/ca.pem" > /tmp/envforge-apt.conf
    export APT_CONFIG=/tmp/envforge-apt.conf
  fi
  if [ -s "$here/apt-mirror" ] && [ -n "$1" ]; then
    mirror="$(cat "$here/apt-mirror")"
    printf 'deb %s %s main\\ndeb %s %s-updates main\\n' "$mirror" "$1" "$mirror" "$1" > /tmp/envforge-apt.list
    printf 'Dir::Etc::sourcelist "/tmp/envforge-apt.list";\\nDir::Etc::sourceparts "-";\\n' >> /tmp/envforge-apt.conf
    export APT_CONFIG=/tmp/envforge-apt.conf
  fi
}}
# A pip to fetch the installer with: the base's own, or the one inside Python's ensurepip.
find_pip() {{
  python3 -m pip --version >/dev/null 2>&1 && return
  for wheel in /usr/share/python-wheels/pip-*.whl /usr/local/lib/python3*/ensurepip/_bundled/pip-*.whl \\
      /usr/lib/python3*/ensurepip/_bundled/pip-*.whl; do
    if [ -f "$wheel" ]; then export PYTHONPATH="$wheel"; return; fi
  done
  echo "envforge: this base has Python but neither pip nor ensurepip (Debian: python3-venv)" >&2
  return 1
}}
# The installer: copy out of the cache mount, compile nothing, fetch no interpreter, one answer per package.
export UV_CACHE_DIR={CACHE} UV_LINK_MODE=copy UV_COMPILE_BYTECODE=0 UV_NO_PROGRESS=1 UV_NO_CONFIG=1
export UV_PYTHON_INSTALL_DIR={PYTHON_DIR} PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
export DEBIAN_FRONTEND=noninteractive
"""

# nvidia/cuda images made before NVIDIA changed its signing key (2022-04-27) and not made again since.
_REBUILT = {"11.0.3", "11.1.1", "11.2.2", "11.4.3", "11.5.2", "11.6.2"}


def quote_value(text: str) -> str:
    """``text`` for ENV and LABEL: double-quoted, with nothing left that Docker would expand."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


def comment(text: str) -> str:
    """``text`` as it may stand in one comment line."""
    return " ".join(text.split())


def exec_form(words: Iterable[str]) -> str:
    """The JSON form of RUN and COPY: no shell sees it. Non-ASCII stays readable."""
    return json.dumps(list(words), ensure_ascii=False)


def render(plan: BuildPlan) -> Rendered:
    """The Dockerfile and the context of a plan. LockError when the environment needs something not rendered yet."""
    text = _environment().get_template("Dockerfile.j2").render(_view(plan))
    return Rendered(dockerfile=_tidy(text), files=_files(plan))


def context_tar(rendered: Rendered) -> bytes:
    """The whole context as a tar with fixed owner, mode, time and order."""
    import io

    from envforge.build_context import write_tar

    stream = io.BytesIO()
    write_tar(rendered, {}, None, stream)
    return stream.getvalue()


def _environment() -> Any:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.shipped("templates")),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )


def _tidy(text: str) -> str:
    """No trailing blanks, no double blank lines, one final newline."""
    lines = [line.rstrip() for line in text.splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n") + "\n"


# --- context files ------------------------------------------------------------------------------------------


def _bare(text: str) -> bytes:
    """Requirements without comments: a note that changes must not disturb the layer."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return ("\n".join(lines) + "\n").encode()


def _requirements(plan: BuildPlan) -> dict[str, bytes]:
    """Label -> requirements file; the default index first."""
    if plan.lock is not None:
        return {label: _bare(text) for label, text in requirement_files(plan.lock).items()}
    found = plan.resolution
    wanted: dict[str, list[str]] = {}
    for item in (*found.requirements, *found.constraints):
        wanted.setdefault(item.index, []).append(item.text)
    labels = sorted(wanted, key=lambda label: (label != DEFAULT_INDEX, label))
    return {label: ("\n".join(wanted[label]) + "\n").encode() for label in labels}


def _tools(lock: Lock | None) -> bytes:
    if lock is None:
        return b"uv\n"
    if lock.tool_packages:
        return _bare("\n".join("\n".join(requirement_lines(item)) for item in lock.tool_packages))
    return f"uv=={lock.tools['uv']}\n".encode() if lock.tools.get("uv") else b"uv\n"


def _files(plan: BuildPlan) -> dict[str, bytes]:
    files = {f"build/{name}": b"" for name in ("ca.pem", "index-url", "apt-mirror", "netrc")}
    files["build/host.sh"] = HOST_SCRIPT.encode()
    files["build/uv.txt"] = _tools(plan.lock)
    for label, content in _requirements(plan).items():
        files[f"locks/pip.{label}.txt"] = content
    if _conda_packages(plan):
        files |= _conda_files(plan)
    if not any(name.startswith("locks/") for name in files):
        files["locks/none"] = b""  # the folder is mounted, so it has to exist
    files[".dockerignore"] = b"# everything in this folder belongs to the build\n"
    return files


# --- the view the template sees: only finished text ---------------------------------------------------------


def _conda_packages(plan: BuildPlan) -> list[LockedConda]:
    """The conda packages of this platform, in the order of the lock."""
    if plan.lock is None or not plan.lock.conda:
        return []
    from envforge.conda_names import SUBDIRS

    wanted = (SUBDIRS.get(plan.resolution.platform, ""), "noarch")
    return [one for one in plan.lock.conda if one.subdir in wanted]


def _conda_files(plan: BuildPlan) -> dict[str, bytes]:
    """The explicit lock, the program that installs it and the pin of what that program uses."""
    from envforge.conda_names import INSTALLER_VERSION, package_url

    assert plan.lock is not None  # _conda_packages found some
    lines = [f"{package_url(one)}#sha256:{one.sha256}" for one in _conda_packages(plan)]
    program = Path(__file__).parent / "lockers" / "conda_install.py"
    version = plan.lock.tools.get("py-rattler", INSTALLER_VERSION)
    return {
        "locks/conda.txt": ("\n".join(["@EXPLICIT", *lines]) + "\n").encode(),
        "build/conda_install.py": program.read_bytes(),
        "build/rattler.txt": f"py-rattler=={version}\n".encode(),
    }


def _conda(plan: BuildPlan) -> dict[str, str] | None:
    """What conda.j2 needs; None without conda packages."""
    packages = _conda_packages(plan)
    if not packages:
        return None
    from envforge.conda_names import SUBDIRS, environment

    variables = [f"{key}={shlex.quote(value)}" for key, value in sorted(environment(plan.resolution).items())]
    words = ["python3", f"{HOST}/conda_install.py", f"{LOCKS}/conda.txt", plan.prefix, "--cache", f"{CACHE}/conda"]
    words += ["--platform", SUBDIRS[plan.resolution.platform]]
    if "conda" in plan.resolution.mirrors:
        words += ["--host", plan.resolution.mirrors["conda"]]
    command = " ".join([*variables, f"PYTHONPATH={CONDA_INSTALLER}", *(shlex.quote(word) for word in words)])
    mounts = (
        f"--mount=type=bind,source=locks,target={LOCKS} \\\n    "
        f"--mount=type=cache,target={CACHE},sharing=shared \\\n    "
    )
    return {
        "note": f"{len(packages)} packages of the explicit lock, each checked against its sha256",
        "installer": CONDA_INSTALLER,
        "flags": "",
        "mounts": "" if plan.form == "plain" else mounts,
        "command": f'{command} --folder "$(ls -d "$here/offline" 2>/dev/null || true)"',
    }


def _view(plan: BuildPlan) -> dict[str, Any]:
    found = plan.resolution
    plain = plan.form == "plain"
    owner = f"{found.user.uid}:{found.user.gid}"
    return {
        "name": found.name,
        "command": f"envforge render {found.name}" + ("" if plan.lock else " --unlocked"),
        "unlocked": plan.lock is None,
        "plain": plain,
        "reasons": [comment(f"{item.field}: {item.value} - {item.why}") for item in found.reasons],
        "base": plan.base,
        "base_note": comment(_base_note(plan)),
        "toolchain": _toolchain(found),
        "compat": _compat(found),
        "host": HOST,
        "locks": LOCKS,
        "cache": CACHE,
        "prefix": plan.prefix,
        "mount_host": "" if plain else f"--mount=type=bind,source=build,target={HOST} \\\n    ",
        "host_settings": f". {HOST}/host.sh && ",
        "apt_settings": f"apt_settings {shlex.quote(_release(found))} && ",
        "installer": INSTALLER,
        "uv_flags": "--require-hashes " if plan.lock and plan.lock.tool_packages else "",
        "python_missing": found.base.python_from != "image",
        "python_apt": _python_apt(found),
        "python_dir": PYTHON_DIR if found.base.python_from == "uv" else "",
        "install": _install(plan),
        "conda": _conda(plan),
        "apt_fix": _apt_fix(plan.base),
        "apt": _apt(plan),
        "variables": _pairs(_variables(plan)),
        "pip_note": _pip_note(plan),
        "user_env": _pairs(found.env),
        "user_note": comment(_user_note(found)),
        "user_command": _user_command(found),
        "owner": owner,
        "root": found.user.uid == 0,
        "files": [_file(plan, number, item) for number, item in enumerate(found.files)],
        "workdir": found.workdir,
        "labels": _pairs(plan.labels),
    } | {
        f"hooks_{place}": [_hook(hook, owner) for hook in found.hooks if hook.after == place]
        for place in ("base", "apt", "pip", "files")
    }


def _pairs(values: Iterable[tuple[str, str]]) -> str:
    """KEY="value" words for one ENV or LABEL instruction, a line each."""
    return " \\\n    ".join(f"{key}={quote_value(value)}" for key, value in values)


def _base_note(plan: BuildPlan) -> str:
    found = plan.resolution
    if plan.substituted:
        return f"stands in for {found.base.image} (same system and Python); said in the label envforge.base-substituted"
    if "@" in plan.base:
        return f"{found.base.system}, glibc {found.base.glibc}, fixed by digest"
    reason = plan.lock.base.reason if plan.lock is not None else "unlocked"
    return f"{found.base.system}, glibc {found.base.glibc}; no digest: {reason}"


def _release(found: Resolution) -> str:
    """The release name of a Debian base ("bookworm"); empty for other systems, whose apt sources stay as they are."""
    system, _, release = found.base.system.partition(":")
    return release if system == "debian" and re.fullmatch(r"[a-z]+", release) else ""


def _python_apt(found: Resolution) -> str:
    return f"python{found.python}" if found.base.python_from == "apt" else ""


def apt_packages(found: Resolution) -> list[str]:
    """The Debian packages an environment asks for: the spec's, and what its Python and toolchain need."""
    wanted = list(found.apt)
    if found.base.python_from == "apt":
        wanted.append(f"python{found.python}")
    if found.cuda is not None and found.cuda.toolchain != "none":
        wanted += ["gcc", "g++", "libc6-dev"]
    return sorted(dict.fromkeys(wanted))


def _apt(plan: BuildPlan) -> dict[str, Any] | None:
    found = plan.resolution
    packages = apt_packages(found)
    if not packages:
        return None
    snapshot = ""
    if found.apt_options.snapshot:
        from envforge.apt_lock import sources

        lines = " ".join(shlex.quote(line) for line in sources(found.base.system, found.apt_options.snapshot))
        snapshot = (
            f"printf '%s\\n' {lines} > /tmp/envforge-apt.list \\\n"
            ' && printf \'Dir::Etc::sourcelist "/tmp/envforge-apt.list";\\nDir::Etc::sourceparts "-";\\n\''
            " >> /tmp/envforge-apt.conf \\\n"
            " && export APT_CONFIG=/tmp/envforge-apt.conf \\\n && "
        )
    if plan.lock is not None and plan.lock.apt:
        exact = sorted(f"{name}={version}" for name, version in plan.lock.apt)
        return {
            "note": f"{len(exact)} packages in the exact versions of the lock",
            "packages": [shlex.quote(one) for one in exact],
            "snapshot": snapshot,
        }
    # Ubuntu and Debian move their archives' versions daily; exact ones come with apt.snapshot.
    note = "asked for by the spec; versions are those of the base's archive (DL3008)"
    return {"note": note, "packages": [shlex.quote(package) for package in packages], "snapshot": snapshot}


def _apt_fix(base: str) -> dict[str, str] | None:
    """What a base with NVIDIA's withdrawn signing key needs before its first `apt-get update`; None for others."""
    match = re.search(r"(?:^|/)nvidia/cuda:(\d+)\.(\d+)(?:\.(\d+))?-.*ubuntu(\d\d)\.(\d\d)", base)
    if match is None:
        return None
    version = ".".join(part for part in match.groups()[:3] if part)
    if (int(match[1]), int(match[2])) >= (11, 7) or version in _REBUILT:
        return None
    return {
        "note": f"this base (ubuntu{match[4]}{match[5]}) names NVIDIA's archive with a key withdrawn in April 2022; "
        "nothing is installed from there",
        "command": "rm -f /etc/apt/sources.list.d/cuda.list /etc/apt/sources.list.d/nvidia-ml.list",
    }


def _toolchain(found: Resolution) -> dict[str, Any] | None:
    cuda = found.cuda
    if cuda is None or cuda.toolchain == "none":
        return None
    series = ".".join(cuda.version.split(".")[:2])
    home = f"/usr/local/cuda-{series}"
    target = "sbsa-linux" if found.platform == "linux/arm64" else "x86_64-linux"
    links = [] if cuda.source == "base" else [f"ln -sfn {home} /usr/local/cuda"]
    if cuda.toolchain == "full":
        copied = [f"{home}/ {home}/"]
        note = f"the whole CUDA {series} toolkit is copied from here; the final image stays on its own base"
    else:
        libraries = f"{home}/targets/{target}/lib"
        copied = [f"{home}/{part}/ {home}/{part}/" for part in ("bin", "nvvm", f"targets/{target}/include")]
        copied.append(f"{libraries}/libcuda* {libraries}/")
        links.insert(0, f"ln -sfn targets/{target}/include {home}/include")
        note = f"nvcc, ptxas, headers and the runtime of CUDA {series} are copied from here, not the whole toolkit"
    copies = [f"COPY --from=toolchain {words}" for words in copied]
    if links:
        copies.append("RUN " + " && ".join(links))
    return {"image": cuda.toolkit_image, "note": comment(note), "copies": copies}


def _compat(found: Resolution) -> dict[str, str] | None:
    cuda = found.cuda
    if cuda is None or not cuda.compat:
        return None
    series = ".".join(cuda.version.split(".")[:2])
    if cuda.source == "base":
        return None  # nvidia/cuda images carry the package already
    return {
        "image": cuda.compat_image or "",
        "path": f"/usr/local/cuda-{series}/compat/ /usr/local/cuda/compat/",
        "note": f"the forward-compatibility package cuda-compat-{series.replace('.', '-')}; the NVIDIA toolkit puts it "
        "before the driver's libraries only when the driver is older, so it is not on LD_LIBRARY_PATH",
    }


def _variables(plan: BuildPlan) -> list[tuple[str, str]]:
    """Variables every environment has. Caches lie in /tmp: writable for any user id, also with a read-only root."""
    found = plan.resolution
    path = [f"{plan.prefix}/bin"]
    values: dict[str, str] = {}
    if found.cuda is not None:
        if found.cuda.source == "base" or found.cuda.toolchain != "none":
            path += ["/usr/local/nvidia/bin", "/usr/local/cuda/bin"]
            values["CUDA_HOME"] = "/usr/local/cuda"
        values |= {
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
            "CUDA_CACHE_PATH": "/tmp/envforge-cuda",
        }
    values |= {
        "PATH": ":".join((*path, *_PATH)),
        "VIRTUAL_ENV": plan.prefix,
        "LANG": "C.UTF-8",
        "HOME": _home(found),
        "XDG_CACHE_HOME": "/tmp/envforge-cache",
        "MPLCONFIGDIR": "/tmp/envforge-matplotlib",
        "NUMBA_CACHE_DIR": "/tmp/envforge-numba",
    }
    names = {item.name for item in found.frameworks}
    if "torch" in names:
        values |= {
            "TRITON_CACHE_DIR": "/tmp/envforge-triton",
            "TORCHINDUCTOR_CACHE_DIR": "/tmp/envforge-inductor",
        }
    if "jax" in names and found.cuda is not None:
        values["JAX_COMPILATION_CACHE_DIR"] = "/tmp/envforge-jax"
    return sorted(values.items())


def _home(found: Resolution) -> str:
    return "/root" if found.user.uid == 0 else f"/home/{found.user.name}"


def _pip_note(plan: BuildPlan) -> str:
    if plan.lock is None:
        return "UNLOCKED, versions are chosen now"
    return f"{len(plan.lock.pip)} packages, each checked against the hashes of the lock; uv is mounted, not installed"


def _install(plan: BuildPlan) -> str:
    """The one step that makes the environment: one layer, one command per package index."""
    found = plan.resolution
    uv = f"{INSTALLER}/bin/uv"
    downloads = "--managed-python" if found.base.python_from == "uv" else "--no-python-downloads"
    steps = [f"{uv} venv --quiet --no-project {downloads} --python {shlex.quote(found.python)} {plan.prefix}"]
    if _conda_packages(plan):
        steps = [f"{plan.prefix}/bin/python -V"]  # the conda prefix is the environment
    urls = plan.lock.indexes if plan.lock is not None else found.indexes
    flags = "--no-deps --require-hashes" if plan.lock is not None else ""
    for label in _requirements(plan):
        words = [uv, "pip", "install", "--python", f"{plan.prefix}/bin/python"]
        words += flags.split()
        where = _index_flag(label, urls, found.find_links)
        steps.append(" ".join([*words, *where, "-r", f"{LOCKS}/pip.{label}.txt"]))
    return " \\\n && ".join(steps)


def _index_flag(label: str, urls: Mapping[str, str], flat: Sequence[str]) -> list[str]:
    if label == DEFAULT_INDEX:
        return []
    if label not in urls:
        raise LockError("index-unknown", f"the lock names the index {label!r} but not its URL", hint="lock again")
    url = f'"$(index_url {shlex.quote(label)} {shlex.quote(urls[label])})"'
    return ["--no-index", "--find-links", url] if label in flat else ["--default-index", url]


def _hook(hook: HookSpec, owner: str) -> str:
    """A named extra step in exec form, as root or as the image's user."""
    lines = [f"# hook: {comment(hook.name)}"]
    switch = hook.user == "user" and not owner.startswith("0:")
    if switch:
        lines.append(f"USER {owner}")
    lines.append(f"RUN {exec_form(hook.command)}")
    if switch:
        lines.append("USER 0:0")
    return "\n".join(lines)


def _user_note(found: Resolution) -> str:
    if found.user.uid == 0:
        return "root, as the spec says"
    return "not root; home and working folder belong to it, everything else stays root's"


def _folders(found: Resolution) -> list[str]:
    """Folders that must belong to the user before anything is copied into them (COPY would make them root's)."""
    targets = [found.workdir] + [item.target.rstrip("/") for item in found.files if item.target.endswith("/")]
    parents = [item.target.rsplit("/", 1)[0] for item in found.files if not item.target.endswith("/")]
    return sorted({folder for folder in (*targets, *parents) if folder not in ("", "/")})


def _user_command(found: Resolution) -> str:
    user = found.user
    folders = " ".join(shlex.quote(folder) for folder in _folders(found))
    if user.uid == 0:
        return f"install -d {folders}"
    name, home = shlex.quote(user.name), _home(found)
    owned = f"install -d -o {user.uid} -g {user.gid} -m 0755 {home} {folders}"
    return (
        f"{{ getent group {user.gid} >/dev/null || groupadd --gid {user.gid} {name}; }} \\\n"
        f" && {{ id -u {name} >/dev/null 2>&1 \\\n"
        f"      || useradd --non-unique --no-log-init --uid {user.uid} --gid {user.gid} --home-dir {home} \\\n"
        f"           --no-create-home --shell /bin/sh {name}; }} \\\n"
        f" && {owned}"
    )


def _file(plan: BuildPlan, number: int, item: FileSpec) -> dict[str, str]:
    """COPY words of own code, and the command that installs it where asked."""
    name = item.source.rstrip("/").rsplit("/", 1)[-1]
    source = f"files/{number}/" if item.target.endswith("/") or name in ("", ".") else f"files/{number}/{name}"
    install = ""
    if item.install != "none":
        words = [
            f"{INSTALLER}/bin/uv",
            "pip",
            "install",
            "--python",
            f"{plan.prefix}/bin/python",
            "--no-deps",
        ]
        words += ["--editable"] if item.install == "editable" else []
        install = " ".join([*words, shlex.quote(item.target)])
    return {"line": exec_form([source, item.target]), "install": install}
