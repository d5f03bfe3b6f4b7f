"""The out-of-memory guide: each cause is reached from measured values, and stays silent without them."""

from __future__ import annotations

import pytest

from envforge import oom

M, G = 1 << 20, 1 << 30

CASES: dict[str, dict[str, object]] = {
    "oom-zombie": {"zombie_processes": 3 * G},
    "oom-preallocation": {"preallocated_by_other_framework": 18 * G, "gpu_total": 24 * G},
    "oom-other-processes": {"other_processes": 10 * G, "gpu_total": 24 * G},
    "oom-fragmentation": {"allocated": 14 * G, "reserved": 22 * G, "requested": 2 * G, "largest_free_block": G},
    "oom-leak": {"allocated_by_step": [4 * G, 5 * G, 6 * G, 7 * G]},
    "oom-evaluation-gradients": {"evaluating": True, "gradients_recorded": True},
    "oom-input-length": {"failed_at_step": 900, "peak_first_step": 8 * G, "allocated": 20 * G},
    "oom-model-too-large": {"weights": 26 * G, "gpu_total": 24 * G},
    "oom-optimizer": {"weights": 5 * G, "gradients": 5 * G, "optimizer_state": 11 * G, "gpu_total": 24 * G},
    "oom-activations": {"activations": 15 * G, "gpu_total": 24 * G},
    "oom-workspace": {"workspace": 4 * G, "gpu_total": 24 * G},
    "oom-contexts": {"cuda_contexts": 8, "context_bytes": 400 * M, "gpu_total": 24 * G},
    "oom-mig-slice": {"mig_slice": True, "gpu_total": 5 * G},
    "oom-uneven-devices": {"bytes_by_device": [20 * G, 6 * G]},
    "oom-shm": {"shm_total": 64 * M, "shm_free": 60 * M, "loader_workers": 4},
    "oom-loader-workers": {"loader_workers": 32, "loader_worker_bytes": 2 * G, "host_total": 64 * G},
    "oom-page-cache": {"host_used": 16 * G, "host_limit": 16 * G, "page_cache": 12 * G},
    "oom-container-limit": {"host_used": 16 * G, "host_limit": 16 * G, "page_cache": G},
    "oom-pinned": {"pinned": 40 * G, "host_total": 128 * G},
    "oom-host": {"host_free": G, "host_total": 128 * G},
}

# The same measurements on the harmless side of each rule.
CONTROLS: dict[str, dict[str, object]] = {
    "oom-zombie": {"zombie_processes": 0},
    "oom-preallocation": {"preallocated_by_other_framework": G, "gpu_total": 24 * G},
    "oom-other-processes": {"other_processes": G, "gpu_total": 24 * G},
    "oom-fragmentation": {"allocated": 14 * G, "reserved": 15 * G, "requested": 2 * G},
    "oom-leak": {"allocated_by_step": [4 * G, 5 * G, 4 * G, 5 * G]},
    "oom-evaluation-gradients": {"evaluating": True, "gradients_recorded": False},
    "oom-input-length": {"failed_at_step": 1, "peak_first_step": 8 * G, "allocated": 20 * G},
    "oom-model-too-large": {"weights": 14 * G, "gpu_total": 24 * G},
    "oom-optimizer": {"weights": G, "gradients": G, "optimizer_state": 2 * G, "gpu_total": 24 * G},
    "oom-activations": {"activations": G, "gpu_total": 24 * G},
    "oom-workspace": {"workspace": 100 * M, "gpu_total": 24 * G},
    "oom-contexts": {"cuda_contexts": 1, "context_bytes": 400 * M, "gpu_total": 24 * G},
    "oom-mig-slice": {"mig_slice": False, "gpu_total": 5 * G},
    "oom-uneven-devices": {"bytes_by_device": [20 * G, 19 * G]},
    "oom-shm": {"shm_total": 8 * G, "shm_free": 7 * G, "loader_workers": 4},
    "oom-loader-workers": {"loader_workers": 4, "loader_worker_bytes": G, "host_total": 64 * G},
    "oom-page-cache": {"host_used": 16 * G, "page_cache": G},
    "oom-container-limit": {"host_used": 8 * G, "host_limit": 16 * G},
    "oom-pinned": {"pinned": G, "host_total": 128 * G},
    "oom-host": {"host_free": 60 * G, "host_total": 128 * G},
}


@pytest.mark.parametrize("reference", CASES)
def test_cause_is_named_alone(reference: str) -> None:
    found = oom.judge(oom.read(CASES[reference]))
    assert [cause.reference for cause in found] == [reference]
    assert found[0].cause and found[0].fix and found[0].evidence


@pytest.mark.parametrize("reference", CONTROLS)
def test_control_is_silent(reference: str) -> None:
    assert [cause.reference for cause in oom.judge(oom.read(CONTROLS[reference]))] == []


def test_every_cause_is_covered_and_nothing_is_said_of_nothing() -> None:
    assert [rule[0] for rule in oom._RULES] == list(CASES) == list(CONTROLS)
    assert len(CASES) >= 12
    assert oom.judge(oom.Measured()) == ()


def test_several_causes_in_order_of_certainty() -> None:
    both = {**CASES["oom-activations"], **CASES["oom-other-processes"]}
    assert [cause.reference for cause in oom.judge(oom.read(both))] == ["oom-other-processes", "oom-activations"]


@pytest.mark.parametrize(
    ("value", "words"),
    [([], "no object"), ({"memory": 1}, "unknown measurement 'memory'"), ({"weights": "5 GB"}, "weights is no")],
)
def test_bad_measurements(value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        oom.read(value)


def test_template_names_every_measurement() -> None:
    rows = {row["name"] for row in oom.template()}
    assert rows == set(oom.Measured.__dataclass_fields__)
