"""conda-lock.yml and pixi.lock: the packages of one platform. Pure."""

from __future__ import annotations

from envforge.importers import packages
from envforge.importers.records import Draft
from envforge.lockers import conda_import
from envforge.spec import CONDA


def read(draft: Draft, text: str) -> None:
    """The lock is the authority: exact versions and builds, what it declares is compared with it."""
    from envforge.importers.records import fits

    platform = "linux-aarch64" if draft.platform.endswith("arm64") else "linux-64"
    virtual = draft.read("virtual-packages.yml") or ""
    import re

    declared = re.search(r"__cuda:\s*[\"']?(\d+\.\d+)", virtual)
    found = conda_import.read(
        text, place=draft.place, platform=platform, declared_cuda=declared[1] if declared else None
    )
    lines = text.splitlines()
    draft.channels += [name.rstrip("/").removeprefix(conda_import.CHANNEL_HOST) for name in found.channels]
    for note in found.notes:
        draft.note("warning", "conda-lock", note)
    for item in found.conda:
        number = next((i for i, row in enumerate(lines, 1) if item.name in row), 1)
        body = f"{item.name}={item.version}={item.build}"
        draft.line(number, body, *(packages.conda(draft, body) if fits(CONDA, body) else ("not-understood", "")))
    for package in found.pip:
        number = next((i for i, row in enumerate(lines, 1) if package.name in row), 1)
        body = f"{package.name}=={package.version}"
        draft.line(number, body, *packages.requirement(draft, body))
    others = [text for text in found.platforms if text != platform]
    if others:
        draft.line(1, f"platforms: {', '.join(others)}", "ignored", "other platforms: import again with --platform")
