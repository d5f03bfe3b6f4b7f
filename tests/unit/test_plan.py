"""The plan: tag, labels, base and its substitute."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envforge.errors import LockError
from envforge.lock import Lock, LockedBase, seal
from envforge.plan import make_plan, repository
from tests.resolutions import resolution

DIGEST = "sha256:" + "d" * 64


def lock(name: str = "case", digest: str | None = DIGEST) -> Lock:
    found = resolution(name=name)
    made = Lock(
        name=name,
        resolution_digest="",
        inputs_digest="",
        python="3.11",
        platform="linux/amd64",
        base=LockedBase(image=found.base.image, digest=digest, reason="" if digest else "none known"),
        pip=(),
    )
    return seal(made, found)


def test_tag_labels_and_base_of_a_locked_environment() -> None:
    made = make_plan(resolution(), lock())
    labels = dict(made.labels)
    assert made.tag == lock().inputs_digest.removeprefix("sha256:")[:12]
    assert labels["envforge.inputs-digest"] == lock().inputs_digest
    assert made.base == f"debian:bookworm@{DIGEST}" == labels["envforge.base"]
    assert labels["org.opencontainers.image.base.digest"] == DIGEST
    assert "envforge.base-substituted" not in labels and not made.substituted
    assert list(labels) == sorted(labels)


def test_a_substitute_is_labelled_and_never_carries_the_originals_digest() -> None:
    made = make_plan(resolution(), lock(), base="envforge/base:bookworm-py3.11")
    labels = dict(made.labels)
    assert (made.base, made.substituted) == ("envforge/base:bookworm-py3.11", True)
    assert labels["envforge.base-substituted"] == "envforge/base:bookworm-py3.11"
    assert labels["envforge.base"] == f"debian:bookworm@{DIGEST}"
    assert "org.opencontainers.image.base.digest" not in labels


def test_a_copy_in_another_registry_is_no_substitute() -> None:
    made = make_plan(resolution(), lock(), base=f"registry.lab/hub/debian:bookworm@{DIGEST}")
    assert not made.substituted and "envforge.base-substituted" not in dict(made.labels)
    other = make_plan(resolution(), lock(), base="registry.lab/notdebian:bookworm")
    assert other.substituted


def test_without_a_lock_there_is_no_identity() -> None:
    made = make_plan(resolution(), None)
    assert made.tag == "unlocked" and "envforge.inputs-digest" not in dict(made.labels)


def test_a_foreign_lock_is_refused() -> None:
    with pytest.raises(LockError) as caught:
        make_plan(resolution(), lock("other"))
    assert caught.value.reference == "lock-foreign"


def test_untested_is_labelled() -> None:
    assert dict(make_plan(resolution(untested=True, verdict="unverified"), None).labels)["envforge.untested"] == "true"
    assert "envforge.untested" not in dict(make_plan(resolution(), None).labels)


def test_variants_have_a_repository_docker_accepts() -> None:
    assert repository("torch-cu118@py312") == "envforge/torch-cu118-py312"
    assert make_plan(resolution(name="a@b"), None).repository == "envforge/a-b"


def test_the_words_of_a_spec_do_not_change_the_identity() -> None:
    one, two = resolution(), replace(resolution(), description="words")
    assert seal(lock(), one).inputs_digest == seal(lock(), two).inputs_digest
