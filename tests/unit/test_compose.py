"""Compose files: valid by the specification's schema, exact GPU reservations, no injection, review of foreign files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from envforge import compose_files
from envforge.compose_files import SERVICES, ComposeRequest, Reservation
from envforge.errors import UsageError
from envforge.passthrough import parse_gpus

SCHEMA = json.loads((Path(__file__).parents[1] / "cases" / "compose" / "compose-spec.json").read_text())


def made(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"name": "torch-cu124", "image": "envforge/torch-cu124:abc", "services": SERVICES}
    document: dict[str, Any] = yaml.safe_load(compose_files.render(ComposeRequest(**(values | changes))))
    return document


def errors(document: dict[str, Any]) -> list[str]:
    return [error.message for error in Draft7Validator(SCHEMA).iter_errors(document)]


@pytest.mark.parametrize("server", compose_files.SERVERS)
@pytest.mark.parametrize("gpus", ["none", "all", "2", "device=0,3"])
@pytest.mark.parametrize("cdi", [False, True])
def test_valid_by_the_specification(server: compose_files.Server, gpus: str, cdi: bool) -> None:
    document = made(server=server, gpus=parse_gpus(gpus), cdi=cdi, env={"A": "1"})
    assert errors(document) == []
    assert list(document["services"]) == list(SERVICES)
    assert [row for row in compose_files.review(document) if row.severity == "error"] == []


def test_the_schema_notices_a_fault() -> None:
    document = made(services=("train",))
    document["services"]["train"]["deploy"] = {"resources": {"reservations": {"devices": [{"count": 1}]}}}
    assert any("capabilities" in message for message in errors(document))
    document["services"]["train"]["shmsize"] = "1g"
    assert any("shmsize" in message for message in errors(document))


@pytest.mark.parametrize(
    ("gpus", "cdi", "expected"),
    [
        ("all", False, {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}),
        ("auto", False, {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}),
        ("2", False, {"driver": "nvidia", "count": 2, "capabilities": ["gpu"]}),
        ("device=0,3", False, {"driver": "nvidia", "device_ids": ["0", "3"], "capabilities": ["gpu"]}),
        ("all", True, {"driver": "cdi", "device_ids": ["nvidia.com/gpu=all"], "capabilities": ["gpu"]}),
        (
            "2",
            True,
            {"driver": "cdi", "device_ids": ["nvidia.com/gpu=0", "nvidia.com/gpu=1"], "capabilities": ["gpu"]},
        ),
    ],
)
def test_reservations_are_exact(gpus: str, cdi: bool, expected: dict[str, Any]) -> None:
    document = made(services=("train",), gpus=parse_gpus(gpus), cdi=cdi)
    assert document["services"]["train"]["deploy"]["resources"]["reservations"]["devices"] == [expected]


def test_no_gpu_no_reservation() -> None:
    assert "deploy" not in made(services=("train",), gpus=parse_gpus("none"))["services"]["train"]


@pytest.mark.parametrize("values", [{"count": 1, "device_ids": ("0",)}, {}])
def test_count_and_ids_exclude_each_other(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        Reservation(driver="nvidia", **values)
    assert caught.value.reference == "compose-count-and-ids"


def test_values_cannot_leave_their_place() -> None:
    nasty = 'x"\n    privileged: true\n# ${HOME} $(id) {{ 7*7 }}'
    document = made(env={"A": nasty}, project=nasty, command=("sh", nasty), model_name=nasty, server="tensorflow")
    train = document["services"]["train"]
    assert "privileged" not in train
    assert train["environment"]["A"] == nasty.replace("$", "$$")
    assert train["command"] == ["sh", nasty.replace("$", "$$")]
    assert train["volumes"][0]["source"] == nasty.replace("$", "$$")
    assert errors(document) == []


def test_jupyter_needs_a_token_and_stays_on_this_machine() -> None:
    jupyter = made(services=("jupyter",))["services"]["jupyter"]
    assert jupyter["environment"]["JUPYTER_TOKEN"].startswith("${JUPYTER_TOKEN:?")
    assert jupyter["ports"] == ["127.0.0.1:8888:8888"]
    assert "root" not in jupyter["user"]
    assert jupyter["shm_size"] == "8gb"
    opened = made(services=("jupyter",), address="0.0.0.0", ports={"jupyter": 9000})["services"]["jupyter"]
    assert opened["ports"] == ["0.0.0.0:9000:8888"]


def test_every_long_running_service_has_a_health_check() -> None:
    for server in compose_files.SERVERS:
        services = made(server=server)["services"]
        for name in ("jupyter", "tensorboard", "serving"):
            assert services[name]["healthcheck"]["test"][0] == "CMD"


def test_local_images_are_never_pulled_and_digests_are_kept() -> None:
    assert made(services=("train",))["services"]["train"]["pull_policy"] == "never"
    reference = "registry.example.org/torch@sha256:" + "a" * 64
    pushed = made(services=("train",), image=reference, local_image=False)["services"]["train"]
    assert (pushed["image"], pushed["pull_policy"]) == (reference, "missing")
    pinned = made(services=("serving",), server_image=reference)["services"]["serving"]
    assert pinned["image"] == reference


def test_same_request_same_text() -> None:
    request = ComposeRequest(name="a", image="b", services=SERVICES, env={"B": "2", "A": "1"})
    assert compose_files.render(request) == compose_files.render(request)
    assert compose_files.render(request).index("A:") < compose_files.render(request).index("B:")


def test_no_service() -> None:
    with pytest.raises(UsageError, match="no service"):
        compose_files.render(ComposeRequest(name="a", image="b", services=()))


def _device(**row: Any) -> dict[str, Any]:
    return {"services": {"a": {"deploy": {"resources": {"reservations": {"devices": [row]}}}}}}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (_device(capabilities=["gpu"], count=1, device_ids=["0"]), {"compose-count-and-ids", "compose-small-shm"}),
        (_device(count=1), {"compose-no-capabilities", "compose-small-shm"}),
        (_device(capabilities=["gpu"]), {"compose-implicit-gpus", "compose-small-shm"}),
        (_device(capabilities=["gpu"], count="all"), {"compose-small-shm"}),
        ({"services": {"a": {"environment": {"JUPYTER_TOKEN": "${JUPYTER_TOKEN}"}}}}, {"compose-empty-token"}),
        ({"services": {"a": {"environment": ["JUPYTER_TOKEN="]}}}, {"compose-empty-token"}),
        ({"services": {"a": {"environment": ["JUPYTER_TOKEN=${JUPYTER_TOKEN:?no}"]}}}, set()),
        ({"services": {"a": {"user": "root", "environment": {"GRANT_SUDO": "yes"}}}}, {"compose-root-sudo"}),
        ({"services": {"a": {"user": "1000", "environment": {"GRANT_SUDO": "yes"}}}}, set()),
        ({}, set()),
    ],
)
def test_review(document: dict[str, Any], expected: set[str]) -> None:
    assert {row.reference for row in compose_files.review(document)} == expected


def test_reported_bc57() -> None:
    """gpu-jupyter's file: capabilities only, root with sudo, a token without default, no shm_size."""
    service = {
        "user": "root",
        "environment": {"NB_UID": "${JUPYTER_UID:-1000}", "JUPYTER_TOKEN": "${JUPYTER_TOKEN}", "GRANT_SUDO": "yes"},
        "volumes": ["./data:/home/jovyan/work"],
        "deploy": {"resources": {"reservations": {"devices": [{"capabilities": ["gpu"]}]}}},
    }
    found = {row.reference for row in compose_files.review({"services": {"gpu-jupyter": service}})}
    assert found == {"compose-implicit-gpus", "compose-small-shm", "compose-empty-token", "compose-root-sudo"}
