"""The user's or project's settings: mirrors, base images, CA bundle, default engine. Never part of an identity.

Looked for at ``$ENVFORGE_CONFIG``, then ``./envforge.config.yaml`` (project), then
``$XDG_CONFIG_HOME/envforge/config.yaml`` (user). The first found is used, alone: settings never mix.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from envforge.errors import SpecError

PROJECT_FILE = "envforge.config.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """One config file. Hosts and images are matched whole.

    ``registries``: registry host -> host (and path prefix) to ask instead, e.g. ``docker.io: registry.lab/hub``.
    ``bases``: image as a spec names it -> image to use instead. ``indexes``: index label -> URL.
    """

    schema: int = 1
    registries: Mapping[str, str] = field(default_factory=dict)
    bases: Mapping[str, str] = field(default_factory=dict)
    indexes: Mapping[str, str] = field(default_factory=dict)
    default_index: str | None = None
    apt_mirror: str | None = None
    ca_bundle: str | None = None
    engine: Literal["auto", "docker", "local"] = "auto"
    path: str | None = None

    def ca_bundle_path(self) -> Path | None:
        """``ca_bundle``, relative to the config file."""
        if self.ca_bundle is None:
            return None
        here = Path(self.path).parent if self.path else Path()
        return here / Path(self.ca_bundle).expanduser()


def locate(environ: Mapping[str, str] | None = None, folder: Path | None = None) -> Path | None:
    """The config file in force. SpecError ``config-missing`` when ENVFORGE_CONFIG names one that is not there."""
    env = os.environ if environ is None else environ
    named = env.get("ENVFORGE_CONFIG")
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise SpecError("config-missing", f"ENVFORGE_CONFIG names {path}, which is not a file")
        return path
    home = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME") or "~").expanduser() / ".config")
    for path in ((folder or Path.cwd()) / PROJECT_FILE, home / "envforge" / "config.yaml"):
        if path.is_file():
            return path
    return None


def _rules(config: Config) -> Iterable[tuple[str, str]]:
    if config.schema != 1:
        yield "schema", f"is {config.schema}; this envforge knows schema 1"
    if config.path is not None:
        yield "path", "cannot be set"
    for group, mapping in (("registries", config.registries), ("bases", config.bases)):
        for name, value in mapping.items():
            if not name.strip() or not value.strip() or any(mark in value for mark in ("://", " ")):
                yield f"{group}.{name}", f"{value!r} is no image reference or registry host (write it without https://)"
    for label in config.indexes:
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", label):
            yield f"indexes.{label}", "an index label is small letters, digits, dots and dashes"
    urls = [("default_index", config.default_index), ("apt_mirror", config.apt_mirror)]
    urls += [(f"indexes.{label}", url) for label, url in config.indexes.items()]
    for place, url in urls:
        if url is not None and not url.startswith(("https://", "http://", "file://")):
            yield place, f"{url!r} is no URL"


def load(environ: Mapping[str, str] | None = None, folder: Path | None = None) -> Config:
    """The settings in force; all defaults when there is no file. SpecError names every problem with its line."""
    path = locate(environ, folder)
    if path is None:
        return Config()
    from dataclasses import replace

    from envforge.yamlmodel import load_model

    try:
        content = path.read_bytes()
    except OSError as error:
        raise SpecError("config-unreadable", f"{path} cannot be read: {error.strerror}") from error
    found = load_model(content, Config, source=str(path), what="configuration file", check=_rules)
    return replace(found, path=str(path))
