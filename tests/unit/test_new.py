"""``new``: the newest that works, and nothing that does not."""

from __future__ import annotations

import pytest

from envforge import compat
from envforge.errors import ConflictError, UsageError
from envforge.new import from_packages, propose


def test_the_newest_that_works_is_proposed_with_reasons() -> None:
    found = propose("mylab", ["torch"], compat.load(), driver="535", gpus=["RTX 3090"])
    assert found.verdict.works and found.spec.cuda is not None
    assert int(found.spec.cuda.version.split(".")[0]) <= 12
    assert "535" in found.why["cuda.version"]
    newer = propose("mylab", ["torch"], compat.load(), driver="580", gpus=["RTX 3090"])
    assert newer.spec.cuda is not None and newer.spec.cuda.version != found.spec.cuda.version


def test_cpu_has_no_cuda() -> None:
    assert propose("mylab", ["torch"], compat.load(), cpu=True).spec.cuda is None


def test_nothing_works_or_is_known() -> None:
    with pytest.raises(ConflictError):
        propose("mylab", ["torch"], compat.load(), driver="390", gpus=["H100"])
    with pytest.raises(UsageError):
        propose("mylab", ["nothing"], compat.load())


def test_installed_packages_become_lines() -> None:
    assert from_packages("a", "3.11", [("pip", "25"), ("onnx", "1.17.0")]) == "python==3.11\nonnx==1.17.0\n"
