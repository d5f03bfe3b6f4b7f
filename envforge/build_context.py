"""The context tar of an image build, and what this host adds to it for the build only.

Host settings travel in the folder ``build/`` of the context, which a Dockerfile bind-mounts (BuildKit) or
copies into a builder stage that is thrown away (plain form); they never become a layer:

* ``build/ca.pem``     the host's CA bundle (empty: nothing special)
* ``build/index-url``  URL of the default package index, possibly with credentials (empty: the tool's own)
* ``build/apt-mirror`` URL of a Debian mirror (empty: the base image's own)
* ``build/netrc``      credentials for indexes named by the lock (empty: none)
* ``build/index-url.LABEL`` URL that replaces that of an index the lock names (only when the config has one)
* ``build/fresh``      when it is there, nothing is taken from the package cache of earlier builds
* ``build/offline/…``  packages of an offline bundle, when one is used

The reader of these files is ``build/host.sh`` (see envforge.render). Build arguments would be simpler, but Docker
writes them into the image history (see docs/decisions/0001-buildkit-through-the-sdk.md). Only the proxy variables
are arguments: Docker knows them by name and keeps them out of the history.
"""

from __future__ import annotations

import configparser
import io
import os
import re
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from envforge.config import Config
from envforge.engine import BuildOptions
from envforge.errors import UsageError
from envforge.plan import Rendered

PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
CA_NAMES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
INDEX_NAMES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")


@dataclass(frozen=True, kw_only=True, slots=True)
class HostInputs:
    """What this host's network asks of a build. ``secrets``: texts to mask in logs and never to leave in an image."""

    ca_bundle: bytes = b""
    index_url: str = ""
    apt_mirror: str = ""
    netrc: bytes = b""
    indexes: Mapping[str, str] = field(default_factory=dict)
    proxies: Mapping[str, str] = field(default_factory=dict)

    @property
    def secrets(self) -> tuple[str, ...]:
        found = []
        for url in (self.index_url, self.apt_mirror, *self.indexes.values(), *self.proxies.values()):
            parts = urlsplit(url)
            if parts.password:
                found.append(parts.password)
        return tuple(found)

    def files(self) -> dict[str, bytes]:
        """The files of ``build/``; the first four always, so that a mount of the folder never fails."""
        return {
            "build/ca.pem": self.ca_bundle,
            "build/index-url": self.index_url.encode(),
            "build/apt-mirror": self.apt_mirror.encode(),
            "build/netrc": self.netrc,
            **{f"build/index-url.{label}": url.encode() for label, url in sorted(self.indexes.items())},
        }


def host_inputs(options: BuildOptions, config: Config, environ: Mapping[str, str] | None = None) -> HostInputs:
    """Options first, then the config file, then the usual environment variables and tool settings.

    Raises UsageError ``ca-bundle`` when the bundle named cannot be read or holds no certificate.
    """
    env = os.environ if environ is None else environ
    return HostInputs(
        ca_bundle=_ca_bundle(options.ca_bundle or config.ca_bundle_path(), env),
        index_url=options.index_url or config.default_index or default_index(env) or "",
        apt_mirror=config.apt_mirror or "",
        netrc=_netrc(env),
        indexes=dict(config.indexes),
        proxies=dict(options.environment) or proxies(env),
    )


def _ca_bundle(chosen: Path | None, env: Mapping[str, str]) -> bytes:
    asked = chosen is not None
    path = chosen
    if path is None:
        named = next((env[name] for name in CA_NAMES if env.get(name)), None)
        path = Path(named) if named else None
    if path is None:
        return b""
    try:
        content = path.read_bytes()
    except OSError as error:
        if not asked:
            return b""  # a stale environment variable: the tools on this host ignore it too
        raise UsageError("ca-bundle", f"the CA bundle {path} cannot be read: {error.strerror}") from error
    if b"-----BEGIN CERTIFICATE-----" not in content:
        if not asked:
            return b""
        raise UsageError("ca-bundle", f"{path} holds no PEM certificate", hint="give a file of PEM certificates")
    return content


def _netrc(env: Mapping[str, str]) -> bytes:
    """The file named by NETRC; the one in the home folder is not sent without being asked for."""
    named = env.get("NETRC")
    try:
        return Path(named).read_bytes() if named else b""
    except OSError:
        return b""


def proxies(env: Mapping[str, str]) -> dict[str, str]:
    """Proxy variables, in both spellings because tools disagree which they read."""
    found: dict[str, str] = {}
    for name in PROXY_NAMES:
        value = env.get(name) or env.get(name.lower())
        if value:
            found[name] = found[name.lower()] = value
    return found


def default_index(env: Mapping[str, str]) -> str | None:
    """The default package index as uv or pip on this host know it; None: they use their own default."""
    for name in INDEX_NAMES:
        if env.get(name):
            return env[name]
    return _uv_toml_index(env) or _pip_conf_index(env)


def _home(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME") or "/nonexistent")


def _config_home(env: Mapping[str, str]) -> Path:
    return Path(env.get("XDG_CONFIG_HOME") or _home(env) / ".config")


def _uv_toml_index(env: Mapping[str, str]) -> str | None:
    import tomllib

    for path in (_config_home(env) / "uv" / "uv.toml", Path("/etc/uv/uv.toml")):
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        for row in content.get("index", ()):
            if isinstance(row, dict) and row.get("default") and row.get("url"):
                return str(row["url"])
        if content.get("index-url"):
            return str(content["index-url"])
    return None


def _pip_conf_index(env: Mapping[str, str]) -> str | None:
    named = env.get("PIP_CONFIG_FILE")
    places = [Path(named)] if named else []
    places += [_config_home(env) / "pip" / "pip.conf", _home(env) / ".pip" / "pip.conf", Path("/etc/pip.conf")]
    for path in places:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, configparser.Error):
            continue
        if parser.has_option("global", "index-url"):
            return parser.get("global", "index-url").strip()
    return None


def reaches_loopback(urls: Iterable[str]) -> bool:
    """Whether a URL means this very machine, so that the build has to share its network."""
    return any((urlsplit(url).hostname or "") in ("localhost", "127.0.0.1", "::1") for url in urls)


def declared_args(dockerfile: str) -> set[str]:
    """Names of ``ARG`` lines: an argument that is not declared must not be passed."""
    return set(re.findall(r"(?mi)^\s*ARG\s+([A-Za-z_][A-Za-z0-9_]*)", dockerfile))


def from_images(dockerfile: str) -> tuple[str, ...]:
    """Images named by FROM and COPY --from that are neither stages nor ``scratch``, in order, each once."""
    stages: set[str] = {"scratch"}
    found: list[str] = []
    for line in dockerfile.splitlines():
        match = re.match(r"(?i)\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?\s*$", line)
        if match:
            if match[1].lower() not in stages and match[1] not in found:
                found.append(match[1])
            if match[2]:
                stages.add(match[2].lower())
            continue
        copied = re.match(r"(?i)\s*COPY\s+(?:--\S+\s+)*?--from=(\S+)", line)
        if copied and copied[1].lower() not in stages and not copied[1].isdigit() and copied[1] not in found:
            found.append(copied[1])
    return tuple(found)


def write_tar(rendered: Rendered, extra: Mapping[str, bytes], offline: Path | None, target: IO[bytes]) -> None:
    """The context as a tar: Dockerfile, its files, the host's ``build/`` files. Sorted, times and owners zero.

    BuildKit keys its cache by content, the classic builder also by mode: everything is 0644.
    """
    files = {"Dockerfile": rendered.dockerfile.encode(), **rendered.files, **extra}
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(files[name]), 0o644, 0
            archive.addfile(member, io.BytesIO(files[name]))
        if offline is not None:
            for path in sorted(offline.rglob("*")):
                if path.is_file():
                    member = tarfile.TarInfo(f"build/offline/{path.relative_to(offline).as_posix()}")
                    member.size, member.mode, member.mtime = path.stat().st_size, 0o644, 0
                    with path.open("rb") as stream:
                        archive.addfile(member, stream)
