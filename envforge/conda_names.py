"""How conda calls things: platforms, addresses, the installer, virtual packages. Pure; used by lock and render."""

from __future__ import annotations

from collections.abc import Mapping

from envforge.lock import LockedConda
from envforge.resolve import Resolution

CHANNEL_HOST = "https://conda.anaconda.org"
SUBDIRS = {"linux/amd64": "linux-64", "linux/arm64": "linux-aarch64"}
# The py-rattler that installs a conda lock inside an image.
INSTALLER_VERSION = "0.28.0"


def channel_url(channel: str, base: str | None = None) -> str:
    """The address of a channel: names live under the channel host, whole URLs are left alone."""
    return channel.rstrip("/") if "://" in channel else f"{(base or CHANNEL_HOST).rstrip('/')}/{channel}"


def package_url(package: LockedConda, base: str | None = None) -> str:
    """Where a locked package is fetched from."""
    return f"{channel_url(package.channel, base)}/{package.subdir}/{package.filename}"


def environment(resolution: Resolution) -> Mapping[str, str]:
    """Variables that give conda tools inside the image the same virtual packages as the lock."""
    found = {"CONDA_OVERRIDE_GLIBC": resolution.glibc}
    if resolution.cuda is not None:
        found["CONDA_OVERRIDE_CUDA"] = resolution.cuda.version
    return found
