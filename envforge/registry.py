"""Asks a registry for the digest of a tag, without any engine: the Registry API over HTTPS.

Only the digest of an image *index* is worth keeping in a lock: that of one platform's manifest is withdrawn by
registries when the tag moves, and names another image on another platform.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envforge.base import map_image, split_reference
from envforge.config import Config
from envforge.errors import NetworkError

INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RegistryAnswer:
    """``is_index``: the digest covers all platforms and may be locked. ``reference``: where it was asked."""

    reference: str
    digest: str
    media_type: str

    @property
    def is_index(self) -> bool:
        return self.media_type in INDEX_TYPES


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """An image in a registry. ``config``: digest of its configuration, which is the image id of a classic engine."""

    digest: str
    config: str


def _host(registry: str) -> str:
    return "registry-1.docker.io" if registry == "docker.io" else registry


def _scheme(host: str) -> str:
    """Plain HTTP for this very machine, as Docker does; HTTPS for everything else."""
    return "http" if re.fullmatch(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", host) else "https"


def credentials(registry: str, environ: Mapping[str, str] | None = None) -> tuple[str, str] | None:
    """User and password of ``docker login`` from Docker's config file; credential helpers are not asked."""
    env = os.environ if environ is None else environ
    folder = Path(env.get("DOCKER_CONFIG") or Path(env.get("HOME", "")) / ".docker")
    try:
        rows = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("auths") or {}
    except (OSError, ValueError):
        return None
    names = (
        ("https://index.docker.io/v1/", "docker.io") if registry == "docker.io" else (registry, f"https://{registry}")
    )
    for name in names:
        packed = (rows.get(name) or {}).get("auth")
        if packed:
            user, _, password = base64.b64decode(packed).decode("utf-8", "replace").partition(":")
            return user, password
    return None


def challenge(header: str) -> dict[str, str]:
    """The parameters of ``WWW-Authenticate: Bearer realm="…",service="…",scope="…"``; {} for another scheme. Pure."""
    if not header.lower().startswith("bearer "):
        return {}
    return dict(re.findall(r'(\w+)="([^"]*)"', header))


def resolve_digest(image: str, config: Config | None = None, *, timeout: float = 15.0) -> RegistryAnswer:
    """The digest a tag has now, asked where the config file maps the image to.

    Raises NetworkError ``image-not-found``, ``registry-refused`` or ``registry-unreachable``.
    """
    reference, _ = map_image(image, config or Config())
    answer, host = _ask("HEAD", reference, timeout)
    return _answer(answer, reference, host, image)


def published(reference: str, *, timeout: float = 30.0) -> Published | None:
    """What a name holds in its registry now; None when the registry has no such image.

    Raises NetworkError ``registry-refused`` or ``registry-unreachable``.
    """
    answer, host = _ask("GET", reference, timeout)
    if answer.status_code == 404:
        return None
    found = _answer(answer, reference, host, reference)
    try:
        config = str((answer.json().get("config") or {}).get("digest") or "")
    except (ValueError, AttributeError):
        config = ""
    return Published(digest=found.digest, config=config)


def _ask(method: str, reference: str, timeout: float) -> tuple[Any, str]:
    """The registry's answer about a manifest, with this user's login when it asks for one; and its host."""
    import requests

    registry, path, tag, digest = split_reference(reference)
    host = _host(registry)
    url = f"{_scheme(host)}://{host}/v2/{path}/manifests/{digest or tag}"
    headers = {"Accept": ", ".join((*INDEX_TYPES, *_MANIFEST_TYPES))}
    try:
        with requests.Session() as session:
            answer = session.request(method, url, headers=headers, timeout=timeout, allow_redirects=True)
            if answer.status_code == 401:
                headers |= _authorize(session, answer.headers.get("WWW-Authenticate", ""), registry, timeout)
                answer = session.request(method, url, headers=headers, timeout=timeout, allow_redirects=True)
    except requests.RequestException as error:
        raise NetworkError(
            "registry-unreachable",
            f"the registry {host} cannot be reached",
            context=(str(error)[:300],),
            hint="map it to one that can in the config file (`registries`), or lock without a digest",
        ) from error
    return answer, host


def live_name(image: str) -> str:
    """What the tables know of a tag that its registry does not have: why it is gone, which one lives; "" if nothing."""
    from envforge import compat

    known = compat.load().base_image(image)
    parts = [known.note or "", f"use {known.instead}" if known.instead else ""]
    return "; ".join(part for part in parts if part)


def _answer(answer: Any, reference: str, host: str, image: str) -> RegistryAnswer:
    if answer.status_code == 404:
        raise NetworkError(
            "image-not-found",
            f"the registry {host} has no image {reference}",
            hint=live_name(image) or "check the tag",
        )
    if answer.status_code >= 400:
        raise NetworkError(
            "registry-refused",
            f"the registry {host} answers {answer.status_code} for {reference}",
            hint="log in with docker login, or map the registry in the config file",
        )
    digest = answer.headers.get("Docker-Content-Digest", "")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise NetworkError("registry-refused", f"the registry {host} gives no digest for {reference}")
    kind = answer.headers.get("Content-Type", "").partition(";")[0].strip()
    return RegistryAnswer(reference=reference, digest=digest, media_type=kind)


def _authorize(session: Any, header: str, registry: str, timeout: float) -> dict[str, str]:
    """The Authorization header the registry's challenge asks for; {} when there is nothing to offer."""
    login = credentials(registry)
    wanted = challenge(header)
    if not wanted.get("realm"):
        if login is None:
            return {}
        packed = base64.b64encode(":".join(login).encode()).decode()
        return {"Authorization": f"Basic {packed}"}
    params = {key: wanted[key] for key in ("service", "scope") if key in wanted}
    answer = session.get(wanted["realm"], params=params, auth=login, timeout=timeout)
    if answer.status_code != 200:
        return {}
    body = answer.json()
    token = body.get("token") or body.get("access_token") or ""
    return {"Authorization": f"Bearer {token}"} if token else {}
