"""`build --no-smoke` of a locked spec against two hand-written Dockerfiles, cold each time, in turn in one run.

    python benchmarks/bench_build.py --name jax-cpu --pairs 3
    python benchmarks/bench_build.py --name torch-cu124 --pairs 3

*good* is what a careful person writes: uv, a cache mount, one install step, exact pins. *naive* is plain
``pip install`` of the same pins. Every build starts from an empty build cache (only this script's own engine
should be used: the cache of the whole engine is pruned). Needs Docker and the network; downloads for every build.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

GOOD = """\
FROM {base} AS uv
RUN --mount=type=bind,source=build/ca.pem,target=/ca.pem \\
    python3 -m venv /uv && {ca} /uv/bin/pip install -q uv=={uv}
FROM {base}
RUN --mount=type=bind,from=uv,source=/uv,target=/uv --mount=type=cache,target=/root/.cache/uv \\
    --mount=type=bind,source=build/ca.pem,target=/ca.pem --mount=type=bind,source=req.txt,target=/req.txt \\
    python3 -m venv --without-pip /opt/env && \\
    {ca} UV_LINK_MODE=copy /uv/bin/uv pip install -q --python /opt/env/bin/python --no-deps --require-hashes -r /req.txt
ENV PATH=/opt/env/bin:$PATH
"""

NAIVE = """\
FROM {base}
COPY req.txt /req.txt
RUN --mount=type=bind,source=build/ca.pem,target=/ca.pem python3 -m venv /opt/env && \\
    {ca} /opt/env/bin/pip install -q -r /req.txt
ENV PATH=/opt/env/bin:$PATH
"""


def prune() -> None:
    """Empty the build cache of the engine: the next build is cold."""
    import docker

    client = docker.from_env(timeout=600)
    client.api.prune_builds(all=True)
    client.close()


def manual(text: str, files: dict[str, bytes]) -> tuple[float, int]:
    """Seconds and bytes of one hand-written build through the Engine API, as `docker build` would send it."""
    import io
    import tarfile

    import docker

    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in {"Dockerfile": text.encode(), **files}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    client = docker.from_env(timeout=1800)
    start = time.monotonic()
    answer = client.api._post(
        client.api._url("/build"),
        data=stream.getvalue(),
        params={"version": "2", "buildid": str(time.time_ns())},
        headers={"Content-Type": "application/x-tar"},
        stream=True,
    )
    image = ""
    for line in answer.iter_lines():
        row = json.loads(line)
        if "error" in row:
            raise SystemExit(f"the hand-written build failed: {row['error']}")
        if row.get("id") == "moby.image.id":
            image = row["aux"]["ID"]
    seconds = time.monotonic() - start
    size = int(client.images.get(image).attrs["Size"])
    client.images.remove(image, force=True)
    client.close()
    return seconds, size


def ours(name: str) -> tuple[float, int]:
    """Seconds (whole process) and bytes of ``envforge build NAME --no-smoke``."""
    import docker

    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "envforge", "build", name, "--engine", "docker", "--no-smoke", "--locked", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    seconds = time.monotonic() - start
    if done.returncode != 0:
        raise SystemExit(done.stderr + done.stdout)
    document = json.loads(done.stdout)
    client = docker.from_env(timeout=600)
    client.images.remove(document["image"], force=True)
    client.close()
    return seconds, int(document["size_bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="jax-cpu")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--naive", type=int, default=1, help="how many naive builds")
    args = parser.parse_args()
    from envforge import lock as lockfile

    lock = lockfile.read(args.name)
    if lock is None:
        raise SystemExit(f"{args.name} is not locked")
    files = lockfile.requirement_files(lock)
    bundle = Path(os.environ.get("SSL_CERT_FILE", "/dev/null")).read_bytes()
    ca = "SSL_CERT_FILE=/ca.pem PIP_CERT=/ca.pem" if bundle else ""
    context = {"req.txt": "".join(files.values()).encode(), "build/ca.pem": bundle}
    base = f"envforge/base:bookworm-py{lock.python}"
    words = {"base": base, "ca": ca, "uv": lock.tools["uv"].split()[0]}
    rows: dict[str, list[tuple[float, int]]] = {"envforge": [], "good": [], "naive": []}
    for number in range(args.pairs):
        for kind in ("envforge", "good") if number % 2 == 0 else ("good", "envforge"):
            prune()
            rows[kind].append(ours(args.name) if kind == "envforge" else manual(GOOD.format(**words), context))
    for _ in range(args.naive):
        prune()
        rows["naive"].append(manual(NAIVE.format(**words), context))
    ratio = statistics.median(a[0] / b[0] for a, b in zip(rows["envforge"], rows["good"], strict=True))
    result = {
        "name": args.name,
        "seconds": {kind: [round(row[0], 1) for row in found] for kind, found in rows.items()},
        "megabytes": {kind: round(found[0][1] / 1e6) for kind, found in rows.items() if found},
        "ratio_envforge_to_good_median": round(ratio, 3),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
