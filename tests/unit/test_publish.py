"""What may be published, where to, under which tags, and what a registry's refusal means. No engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envforge import base, publish, registry
from envforge.config import Config
from envforge.engine import ImageInfo
from envforge.errors import EnvforgeError, NetworkError, SmokeError, UsageError
from envforge.resolve import BaseChoice
from tests.fakes import FakeEngine

DIGEST = "sha256:" + "ab" * 32
FIXED = "ab" * 6
LABELS = {
    "envforge.name": "case",
    "envforge.inputs-digest": DIGEST,
    "envforge.python": "3.11",
    "envforge.frameworks": "torch=2.6.0+cu124 jax=0.4.38",
    "envforge.cuda": "12.4",
}
RECORD = {"image": "sha256:1", "inputs_digest": DIGEST, "status": "passed", "tag": f"envforge/case:{FIXED}"}


def info(**changes: Any) -> ImageInfo:
    fields: dict[str, Any] = {
        "image": "sha256:1", "tags": (f"envforge/case:{FIXED}",), "labels": LABELS, "env": {}, "user": "1000",
        "size_bytes": 1, "created": "",
    }  # fmt: skip
    return ImageInfo(**(fields | changes))


def test_a_passed_record_of_this_image_is_enough() -> None:
    assert publish.require_tested(info(), [RECORD]) is RECORD
    podman = info(tags=(f"localhost/envforge/case:{FIXED}",))
    assert publish.require_tested(podman, [RECORD]) is RECORD


@pytest.mark.parametrize(
    ("found", "records", "reference"),
    [
        (info(), [], "not-tested"),
        (info(labels={}), [RECORD], "not-tested"),
        (info(image="sha256:2"), [RECORD], "not-tested"),
        (info(tags=()), [RECORD], "not-tested"),
        (info(tags=("other/case:1",)), [RECORD], "not-tested"),
        (info(), [RECORD | {"inputs_digest": "sha256:0"}], "not-tested"),
        (info(), [RECORD | {"tag": None}], "not-tested"),
        (info(), [RECORD, RECORD | {"status": "failed"}], "tests-failed"),
        (info(), [RECORD, RECORD | {"status": "error"}], "tests-failed"),
    ],
)
def test_everything_else_stays(found: ImageInfo, records: list[dict[str, Any]], reference: str) -> None:
    with pytest.raises(SmokeError) as caught:
        publish.require_tested(found, records)
    assert (caught.value.reference, caught.value.exit_code) == (reference, 8)
    assert "envforge build" in caught.value.hint


def test_a_later_pass_counts_and_names_the_failed_checks() -> None:
    failed = RECORD | {"status": "failed", "checks": [{"name": "training.mlp", "outcome": "failed"}]}
    with pytest.raises(SmokeError) as caught:
        publish.require_tested(info(), [RECORD, failed])
    assert caught.value.context == ("training.mlp",)
    assert publish.require_tested(info(), [failed, RECORD]) is RECORD


def test_only_a_run_on_a_gpu_of_this_image_counts() -> None:
    gpu = RECORD | {"gpu_tested": True}
    assert publish.tested_on_gpu(info(), [RECORD, gpu])
    assert not publish.tested_on_gpu(info(), [RECORD])
    assert not publish.tested_on_gpu(info(image="sha256:2"), [gpu])
    assert not publish.tested_on_gpu(info(), [gpu | {"status": "failed"}])


def test_the_notice_is_for_nvidias_files() -> None:
    plain = info(labels={"envforge.name": "case"})
    assert publish.notice(plain, ["numpy", "jax"]) == ""
    assert "CUDA and cuDNN files" in publish.notice(plain, ["nvidia-cudnn-cu12"])
    assert "CUDA files" in publish.notice(info(), [])
    base = {"envforge.cuda": "11.8", "org.opencontainers.image.base.name": "nvidia/cuda:11.8.0-cudnn8-runtime"}
    assert "cuDNN" in publish.notice(info(labels=base), [])


@pytest.mark.parametrize(
    ("image", "to", "repository"),
    [
        ("case", "registry.lab:5000/ml/case", "registry.lab:5000/ml/case"),
        ("case", "registry.lab/ml/", "registry.lab/ml/case"),
        ("case", "me/case", "me/case"),
        ("registry.lab/x/y:1", None, "registry.lab/x/y"),
    ],
)
def test_targets(image: str, to: str | None, repository: str) -> None:
    assert publish.target(image, "case", to) == repository


@pytest.mark.parametrize("to", [None, "https://registry.lab/x", "lab/x:tag", "Lab/X", "lab/x y", "lab/$(id)", "-x"])
def test_targets_that_are_none(to: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        publish.target("case", "case", to)
    assert caught.value.reference == "push-target"


def test_tags() -> None:
    version = "torch2.6.0_cu124-jax0.4.38-cu124-py3.11"
    assert publish.tags(info(), ["stable", "stable"], "version") == (FIXED, version, "stable")
    assert publish.tags(info(), [], "fixed") == (FIXED,)
    assert publish.tags(info(), [FIXED], "fixed") == (FIXED,)
    for wrong in ("a b", "a:b", "-x", "x" * 129, "0123456789ab"):
        with pytest.raises(UsageError):
            publish.tags(info(), [wrong], "fixed")


@pytest.mark.parametrize(
    ("text", "reference", "again"),
    [
        ("denied: requested access to the resource is denied", "registry-refused", False),
        ("no basic auth credentials", "registry-refused", False),
        ("unauthorized: authentication required", "registry-refused", False),
        ('Put "http://r/v2/x/manifests/1": EOF', "push-interrupted", True),
        ("read tcp 1->2: read: connection reset by peer", "push-interrupted", True),
        ("received unexpected HTTP status: 502 Bad Gateway", "push-interrupted", True),
        ("toomanyrequests: slow down", "push-interrupted", True),
        ("dial tcp: lookup registry.lab on 1.1.1.1:53: no such host", "registry-unreachable", False),
        ("dial tcp 127.0.0.1:9: connect: connection refused", "registry-unreachable", True),
        ("http: server gave HTTP response to HTTPS client", "registry-unreachable", False),
        ("x509: certificate signed by unknown authority", "registry-unreachable", False),
        ("write /var/lib/x: no space left on device", "disk-full", False),
        ("name unknown: The repository does not exist", "registry-refused", False),
    ],
)
def test_what_refusals_mean(text: str, reference: str, again: bool) -> None:
    error, retry = publish.failure("registry.lab/x:1", text)
    assert (error.reference, retry) == (reference, again)
    assert error.hint and text[:20] in error.context[0]


class Engine:
    """Pushes into a dictionary; ``faults`` are raised first, one per try."""

    def __init__(self, faults: list[EnvforgeError] | None = None, *, again: bool = True) -> None:
        self.names: dict[str, str] = {}
        self.held: dict[str, registry.Published] = {}
        self.faults, self.again = faults or [], again
        self.pushes: list[str] = []

    def has(self, reference: str) -> bool:
        return reference in self.names

    def inspect(self, image: str) -> ImageInfo:
        return info(image=self.names[image])

    def tag(self, image: str, repository: str, tag: str) -> None:
        self.names[f"{repository}:{tag}"] = image

    def remove(self, image: str) -> None:
        del self.names[image]

    def push(self, repository: str, tag: str, progress: object = None) -> str:
        self.pushes.append(tag)
        if self.faults:
            raise publish.Interrupted(self.faults.pop(0), again=self.again)
        image = self.names[f"{repository}:{tag}"]
        self.held[f"{repository}:{tag}"] = registry.Published(digest=f"manifest-of-{image}", config=image)
        return f"manifest-of-{image}"


WANTED = publish.Publication(
    name="case", image="sha256:1", repository="lab/x", tags=(FIXED, "stable"), tested_on_gpu=False, notice=""
)
BROKEN = NetworkError("push-interrupted", "the connection broke", context=("EOF",))


def run(engine: Engine, monkeypatch: pytest.MonkeyPatch, **options: Any) -> publish.Pushed:
    monkeypatch.setattr(registry, "published", engine.held.get)
    return publish.publish(
        engine, WANTED, note=lambda text: None, sleep=options.pop("sleep", lambda s: None), **options
    )


def test_the_fixed_tag_goes_first_and_waits_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, waits = Engine([BROKEN, BROKEN]), list[float]()
    done = run(engine, monkeypatch, sleep=waits.append)
    assert engine.pushes == [FIXED, FIXED, FIXED, "stable"]
    assert (waits, done.retries, done.confirmed, done.moved) == ([1.0, 2.0], 2, True, {})
    assert done.reference == "lab/x@manifest-of-sha256:1" and engine.names == {}


def test_a_refusal_is_not_tried_again_and_leaves_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine([NetworkError("registry-refused", "no", context=("denied",))], again=False)
    with pytest.raises(NetworkError) as caught:
        run(engine, monkeypatch)
    assert (caught.value.reference, engine.pushes, engine.names) == ("registry-refused", [FIXED], {})


def test_a_name_that_was_there_before_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.names = {"lab/x:stable": "sha256:other"}
    run(engine, monkeypatch)
    assert engine.names == {"lab/x:stable": "sha256:other"}


def test_another_image_under_the_fixed_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.held[f"lab/x:{FIXED}"] = registry.Published(digest="old", config="sha256:9")
    with pytest.raises(NetworkError) as caught:
        run(engine, monkeypatch)
    assert (caught.value.reference, engine.pushes) == ("fixed-tag-taken", [])
    assert run(engine, monkeypatch, replace_fixed=True).digest == "manifest-of-sha256:1"


def test_what_is_there_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.held["lab/x:stable"] = registry.Published(digest="old", config="sha256:9")
    assert run(engine, monkeypatch).moved == {"stable": "old"}
    engine.pushes.clear()
    assert run(engine, monkeypatch).already_there and engine.pushes == []


def test_a_registry_that_says_something_else_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([None, None, registry.Published(digest="else", config="")])
    monkeypatch.setattr(registry, "published", lambda reference: next(answers))
    with pytest.raises(NetworkError) as caught:
        publish.publish(Engine(), WANTED, note=lambda text: None)
    assert caught.value.reference == "digest-differs"


def test_a_registry_only_the_engine_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(reference: str) -> registry.Published:
        raise NetworkError("registry-unreachable", "no way")

    monkeypatch.setattr(registry, "published", unreachable)
    done = publish.publish(Engine(), WANTED, note=lambda text: None)
    assert (done.confirmed, done.digest) == (False, "manifest-of-sha256:1")


def test_a_withdrawn_tag_is_named_with_the_live_one() -> None:
    assert "nvidia/cuda:11.1.1-cudnn8-runtime-ubuntu18.04" in registry.live_name(
        "nvidia/cuda:11.1-cudnn8-runtime-ubuntu18.04"
    )
    assert registry.live_name("python:3.11-slim-bookworm") == ""


def test_a_build_on_a_withdrawn_base_names_the_live_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent(FakeEngine):
        def pull(self, reference: str, progress: object = None) -> None:
            raise NetworkError("image-not-found", f"the registry has no image {reference}")

    gone = "nvidia/cuda:11.1-cudnn8-runtime-ubuntu18.04"
    wanted = BaseChoice(image=gone, digest=None, system="ubuntu:18.04", glibc="2.27", python_from="uv")
    with pytest.raises(NetworkError) as caught:
        base.choose(Absent(tmp_path), wanted, Config())
    assert "use nvidia/cuda:11.1.1-cudnn8-runtime-ubuntu18.04" in caught.value.hint
