"""Fleets: strict reading, one verdict per host, plans that hold when each of their claims is judged again."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envforge import fleet
from envforge.cli import main
from envforge.compat import Tables, load
from envforge.console import Console
from envforge.errors import SpecError
from envforge.verdict import FrameworkRequest, Request, judge

CASES = Path(__file__).resolve().parents[1] / "cases" / "fleet"
EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "fleet.yaml"


@pytest.fixture(scope="module")
def tables() -> Tables:
    return load()


@pytest.fixture(scope="module")
def mixed(tables: Tables) -> fleet.Fleet:
    return fleet.load(CASES / "mixed.yaml", tables)


@pytest.fixture(scope="module")
def planned(mixed: fleet.Fleet, tables: Tables) -> dict[str, Any]:
    return fleet.plan(mixed, tables)


def torch(version: str, cuda: str) -> Request:
    return Request(name="t", cuda=cuda, frameworks=(FrameworkRequest(name="torch", version=version),))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema: 1\nhosts: []\n", "at least one host"),
        ("schema: 2\nhosts:\n  - {name: a}\n", "fleet schema 1, not 2"),
        ("schema: 1\nhosts:\n  - {name: a}\n  - {name: a}\n", "stands twice"),
        ("schema: 1\nhosts:\n  - {name: a, driver: 535}\n", "driver"),
        ("schema: 1\nhosts:\n  - {name: a, gpus: [Radeon RX 7900]}\n", "not supported"),
        ("schema: 1\nhosts:\n  - {name: a, gpus: [A9999]}\n", "no such NVIDIA GPU"),
        ("schema: 1\nhosts:\n  - {name: a, mig: [1g.10gb]}\n", "MIG needs"),
        ("schema: 1\nhosts:\n  - {name: a, gpu: [A100]}\n", "gpus"),  # unknown key, with a guess
        ("schema: 1\nhosts:\n  - {name: 'a; reboot'}\n", "host name"),
        ("schema: 1\nhosts:\n  - {name: a}\nwishes:\n  - {frameworks: [pytoch]}\n", "no framework"),
        ("schema: 1\nhosts:\n  - {name: a}\nwishes:\n  - {frameworks: []}\n", "at least one framework"),
    ],
)
def test_faults_of_a_fleet_file_are_named(text: str, said: str, tables: Tables) -> None:
    with pytest.raises(SpecError) as error:
        fleet.loads(text, source="fleet.yaml", tables=tables)
    assert error.value.exit_code == 3
    assert any(said in line and "fleet.yaml" in line for line in error.value.context), error.value.context


def test_all_faults_come_at_once(tables: Tables) -> None:
    text = "schema: 1\nhosts:\n  - {name: a, gpus: [A9999]}\n  - {name: a, mig: [1g.10gb]}\n"
    with pytest.raises(SpecError) as error:
        fleet.loads(text, source="f", tables=tables)
    assert len(error.value.context) == 3


def test_a_missing_file_is_an_error_with_its_place(tables: Tables, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nowhere\.yaml"):
        fleet.load(tmp_path / "nowhere.yaml", tables)


def test_check_gives_each_host_its_own_answer(tables: Tables) -> None:
    answer = fleet.check(torch("2.6.0", "12.4"), CASES / "mixed.yaml", tables)
    rows = {row["name"]: row for row in answer["hosts"]}
    assert {name: row["verdict"] == "conflict" for name, row in rows.items()} == {
        "ampere": False,
        "volta": True,
        "blackwell": True,
        "cpu": False,
    }
    assert rows["ampere"]["driver"]["answer"] == "minor-version"
    # A data-centre GPU: the forward-compatibility package would help, and the spec does not ask for it.
    assert rows["volta"]["driver"]["answer"] == "forward-compat"
    assert rows["blackwell"]["gpus"][0]["answer"] == "none"
    assert rows["cpu"]["driver"]["answer"] == "not-needed"
    assert rows["cpu"]["verdict"] == "ok-with-limits"
    assert "host-without-gpu" in {item["reference"] for item in rows["cpu"]["findings"]}
    assert (answer["verdict"], answer["runs_on"], answer["machines"]) == ("conflict", 4, 6)
    assert rows["volta"]["nearest"], "a host that cannot run it is told what would"


def test_check_agrees_with_the_verdict_of_a_single_machine(tables: Tables) -> None:
    request = torch("2.10.0", "12.8")
    answer = fleet.check(request, CASES / "mixed.yaml", tables)
    alone = judge(replace(request, driver="535.104.05", gpus=("A100",)), tables).document()
    row = answer["hosts"][0]
    assert (row["driver"], row["gpus"]) == (alone["driver"], alone["gpus"])


def test_what_the_machine_adds(tables: Tables, mixed: fleet.Fleet) -> None:
    by_name = {host.name: host for host in mixed.hosts}
    request = torch("2.7.1", "11.8")

    def references(name: str) -> set[str]:
        host = by_name[name]
        return {item["reference"] for item in fleet.host_findings(host, fleet.on_host(request, host, tables), tables)}

    assert references("volta") == {"no-container-toolkit"}
    assert references("blackwell") == {"mig-not-possible"}
    assert references("ampere") == set()
    sliced = replace(by_name["ampere"], mig=("1g.10gb",), toolkit="1.11.0", driver=None)
    found = fleet.host_findings(sliced, fleet.on_host(request, sliced, tables), tables)
    assert {item["reference"] for item in found} == {"mig", "toolkit-without-cdi", "host-driver-unknown"}


def test_plan_covers_what_can_be_covered(planned: dict[str, Any]) -> None:
    torch_row = planned["wishes"][0]
    assert torch_row["everywhere"] is None
    assert len(torch_row["images"]) == 2
    assert torch_row["uncovered"] == []
    volta = next(row for row in torch_row["hosts"] if row["host"] == "volta")
    assert torch_row["images"][volta["image"]]["cuda"] == "11.8"


def test_a_cpu_only_framework_runs_everywhere(planned: dict[str, Any]) -> None:
    row = planned["wishes"][1]
    assert row["everywhere"]["cuda"] is None
    assert len(row["images"]) == 1 and row["upgrades"] == []


def candidate(row: dict[str, Any]) -> Request:
    asked = tuple(
        FrameworkRequest(name=i["name"], version=i["version"], accelerator="cuda" if row["cuda"] else "cpu")
        for i in row["frameworks"]
    )
    return Request(python=row["python"], cuda=row["cuda"], frameworks=asked)


def test_each_claim_of_a_plan_holds_when_judged_again(
    mixed: fleet.Fleet, planned: dict[str, Any], tables: Tables
) -> None:
    hosts = {host.name: host for host in mixed.hosts}
    good = {"ok", "ok-with-limits"}
    for wish in planned["wishes"]:
        for row in wish["hosts"]:
            image = candidate(wish["images"][row["image"]])
            assert fleet.on_host(image, hosts[row["host"]], tables).verdict in good
        for item in wish["upgrades"]:
            host = hosts[item["host"]]
            unlocked = candidate(item["unlocks"])
            assert fleet.on_host(unlocked, host, tables).verdict not in good, "not unlocked: it ran before"
            assert fleet.on_host(unlocked, replace(host, driver=item["to"]), tables).verdict in good


def test_no_smaller_set_of_images_would_do(mixed: fleet.Fleet, planned: dict[str, Any], tables: Tables) -> None:
    """By brute force: no single candidate runs on every host."""
    found = fleet.candidates(mixed.wishes[0], tables)
    assert len(found) > 50
    assert not any(all(c.runs_on(host) for host in mixed.hosts) for c in found)
    # Control: without the two extremes one image is enough, and it is the newest that fits.
    part = [host for host in mixed.hosts if host.name in ("ampere", "cpu")]
    alone = fleet.plan(fleet.Fleet(hosts=tuple(part), wishes=mixed.wishes[:1]), tables)["wishes"][0]
    first = next(c for c in found if all(c.runs_on(host) for host in part))
    assert alone["everywhere"] == first.document()


def test_an_upgrade_that_lets_one_image_run_everywhere_is_marked(tables: Tables) -> None:
    text = (
        "schema: 1\nhosts:\n  - {name: old, driver: '470.57.02', gpus: [A100]}\n"
        "  - {name: new, driver: '580.65.06', gpus: [RTX 5090]}\nwishes:\n  - {frameworks: [torch]}\n"
    )
    found = fleet.plan(fleet.loads(text, source="f", tables=tables), tables)["wishes"][0]
    marks = [(item["host"], item["everywhere"] is not None) for item in found["upgrades"]]
    assert ("old", True) in marks


def test_upgrades_stop_at_the_last_driver_of_a_gpu(tables: Tables) -> None:
    text = "schema: 1\nhosts:\n  - {name: p, driver: '535.104.05', gpus: [P100]}\nwishes:\n  - {frameworks: [torch]}\n"
    found = fleet.plan(fleet.loads(text, source="f", tables=tables), tables)["wishes"][0]
    assert all(item["to"].split(".")[0] <= "580" for item in found["upgrades"])


def test_version_bounds_of_wishes_are_kept(tables: Tables) -> None:
    old = fleet.candidates(fleet.Wish(frameworks=("torch==2.6.0",)), tables)
    assert {c.request.frameworks[0].version for c in old} == {"2.6.0"}
    least = fleet.candidates(fleet.Wish(frameworks=("torch>=2.10",)), tables)
    assert {c.request.frameworks[0].version for c in least} >= {"2.10.0"}
    assert "2.9.1" not in {c.request.frameworks[0].version for c in least}


def test_frameworks_of_one_wish_share_one_cuda(tables: Tables) -> None:
    found = fleet.candidates(fleet.Wish(frameworks=("torch", "jax")), tables)
    assert found
    assert all(item.accelerator == "cuda" for c in found for item in c.request.frameworks)


def test_command_prints_one_document_and_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["fleet", "plan", str(CASES / "mixed.yaml"), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0 and document["schema"] == 1
    assert [row["wish"] for row in document["wishes"]] == ["torch", "mindspore"]


def test_uncovered_hosts_are_exit_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(
        "schema: 1\nhosts:\n  - {name: a, driver: '390.48', gpus: [RTX 5090]}\nwishes:\n  - {frameworks: [torch]}\n"
    )
    assert main(["fleet", "plan", str(path)]) == 4
    assert "nothing known runs on a" in capsys.readouterr().out


def test_the_example_of_the_documentation_is_read(tables: Tables) -> None:
    found = fleet.load(EXAMPLE, tables)
    assert len(found.hosts) == 5 and len(found.wishes) == 3


def test_human_output_is_for_people(mixed: fleet.Fleet, planned: dict[str, Any]) -> None:
    from envforge.commands import fleet as command

    out = io.StringIO()
    command._show(planned["wishes"][0], Console(stdout=out, color=False))
    assert "no single image runs on every host; 2 cover" in out.getvalue()
