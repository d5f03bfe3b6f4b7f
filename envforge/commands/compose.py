"""`envforge compose NAME`: a Compose file for Jupyter, TensorBoard, training or serving."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from envforge.console import Console
from envforge.errors import EXIT_OK, EngineError, UsageError

EXAMPLE = "envforge compose torch-cu124 --service train --gpus all -o compose.yaml -- python train.py"
TAKES_COMMAND = True  # of the train service


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", help="environment name with @variant, or image")
    services = ["jupyter", "tensorboard", "train", "serving"]
    add("--service", action="append", choices=services, default=[], help="repeatable (default: jupyter)")
    add("--gpus", default="auto", help="none | all | COUNT | device=0,2 (default: all when the spec has CUDA)")
    add("--cdi", action="store_true", help="reserve by CDI names (Docker 25 or later)")
    add("--server", choices=["tensorflow", "triton", "onnxruntime"], default="triton", help="for serving")
    add("--server-image", metavar="REF", help="the server's image; with @sha256:… it is pinned")
    add("--model", default="./model", metavar="DIR", help="exported model (default: ./model)")
    add("--model-name", default="model", metavar="NAME")
    add("--logs", default="./logs", metavar="DIR", help="TensorBoard's log folder (default: ./logs)")
    add("--shm-size", default="8g", metavar="SIZE")
    add("--env", action="append", default=[], metavar="K=V")
    add("--profile", action="append", default=[], metavar="P", help="a run profile; repeatable")
    add("--port", action="append", default=[], metavar="SERVICE=PORT", help="port on this machine")
    add("--open", action="store_true", help="reachable from other machines (default: this machine only)")
    add("-o", "--output", type=Path, metavar="FILE", help="write here (default: standard output)")


def run(args: argparse.Namespace, console: Console) -> int:
    from envforge import compose_files, passthrough, paths, profiles, runner

    image, local, workdir, cuda = _image(args.name, console)
    gpus = passthrough.parse_gpus(args.gpus)
    if gpus.kind == "auto":
        gpus = passthrough.parse_gpus("all" if cuda else "none")
    request = compose_files.ComposeRequest(
        name=args.name,
        image=image,
        services=tuple(args.service) or ("jupyter",),
        gpus=gpus,
        cdi=args.cdi,
        local_image=local,
        workdir=workdir,
        logs=args.logs,
        model=args.model,
        model_name=args.model_name,
        server=args.server,
        command=args.command or ("python", "train.py"),
        server_image=args.server_image,
        shm_size=f"{runner.parse_size(args.shm_size) >> 20}mb",
        env=profiles.environment(args.profile) | runner.parse_env(args.env, os.environ),
        address="0.0.0.0" if args.open else "127.0.0.1",
        ports=_ports(args.port),
        uid=os.getuid(),
        gid=os.getgid(),
    )
    text = compose_files.render(request)
    pinned = "@sha256:" in (request.server_image or "")
    if "serving" in request.services and not pinned:
        console.warn("the server's image is named by tag, which can move; pin it with --server-image REF@sha256:…")
    if args.open:
        console.warn("the ports are open to the network")
    if args.output:
        paths.write_atomic(args.output, text.encode())
        console.note(f"wrote {args.output}; start it with: docker compose -f {args.output} up -d")
    else:
        console.result(text.rstrip("\n"))
    console.document(
        {
            "schema": 1,
            "name": args.name,
            "services": list(request.services),
            "image": image,
            "file": str(args.output) if args.output else None,
            "compose": text,
        }
    )
    return EXIT_OK


def _ports(words: list[str]) -> dict[str, int]:
    found = {}
    for word in words:
        service, _, port = word.partition("=")
        if service not in ("jupyter", "tensorboard", "serving") or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError("bad-port", f"--port {word!r} is no SERVICE=PORT", hint="for example jupyter=9000")
        found[service] = int(port)
    return found


def _image(name: str, console: Console) -> tuple[str, bool, str, bool]:
    """(image reference, only in this engine, working folder, has CUDA). Digest first, then tag."""
    from envforge import runner
    from envforge.docker_engine import DockerEngine
    from envforge.spec import load

    cuda = False
    workdir = "/work"
    try:
        spec = load(name)
        cuda, workdir = spec.cuda is not None, spec.workdir
        tag = runner.locked_tag(spec.full_name)
    except EngineError:
        raise
    except Exception:
        spec, tag = None, None
    try:
        engine = DockerEngine.connect()
        found = runner.find(engine, name)
    except EngineError as error:
        if spec is None or tag is None:
            raise
        console.warn(f"{error.message}; the file names the image that `envforge build {name}` will make")
        return f"envforge/{spec.full_name.replace('@', '-')}:{tag}", True, workdir, cuda
    if found.remark:
        console.warn(found.remark)
    info = found.image
    if info.repo_digests:
        return info.repo_digests[0], False, engine.workdir(info.image), cuda
    return (info.tags[0] if info.tags else info.image), True, engine.workdir(info.image), cuda
