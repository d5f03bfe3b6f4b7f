"""A program inside an environment, wherever that is: a built image, a local prefix, or an interpreter of this host.

`compare` and `bench` send the shipped suite and a job in, and read marked lines and collected files back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envforge import smoke
from envforge.errors import EngineError, NothingSelected

if TYPE_CHECKING:
    from envforge.console import Console
    from envforge.engine import Engine, GpuRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What a run left: marked lines, the last other lines, collected files, and how it ended ("" is well)."""

    lines: tuple[dict[str, Any], ...]
    noise: tuple[str, ...]
    collected: Mapping[str, bytes]
    ended: str
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Where to run: ``engine`` and ``image``, or ``python``. ``found`` is the probe's answer."""

    name: str
    engine: Engine | None = None
    image: str = ""
    python: Path | None = None
    found: Mapping[str, Any] = field(default_factory=dict)

    @property
    def frameworks(self) -> dict[str, str]:
        """Framework → version, in the order they are looked for."""
        have = {item["name"]: str(item.get("version") or "") for item in self.found.get("frameworks", ())}
        return {name: have[name] for name in smoke.known_checks()["frameworks"] if name in have}

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "engine": self.engine.name if self.engine is not None else "python",
            "image": self.image or str(self.python),
            "python": self.found.get("python"),
            "frameworks": self.frameworks,
        }

    def run(
        self,
        script: str,
        job: Mapping[str, Any],
        *,
        files: Mapping[str, bytes] | None = None,
        collect: tuple[str, ...] = (),
        gpus: GpuRequest,
        timeout: float,
        on_line: Callable[[str], None] | None = None,
    ) -> Said:
        """Run ``smoke_tests/SCRIPT job.json`` there, isolated. Raises EngineError."""
        sent = {**smoke.suite(), **(files or {}), "job.json": json.dumps(job, indent=1).encode()}
        if self.python is not None:
            return _on_host(self.python, script, sent, collect, gpus, timeout, on_line)
        from envforge.engine import RunRequest

        assert self.engine is not None
        request = RunRequest(
            argv=("python", f"/envforge/smoke_tests/{script}", "/envforge/job.json"),
            files=sent,
            collect=collect,
            gpus=gpus,
            shm_bytes=1 << 30,
            timeout=timeout,
            on_line=on_line,
        )
        result = self.engine.run(self.image, request)
        lines, noise = smoke.parse(result.stdout + "\n" + result.stderr)
        ended = "stopped at its time limit" if result.timed_out else ""
        if not ended and (result.oom_killed or result.code == 137):
            ended = "killed for memory"
        if not ended and result.code:
            ended = f"ended with exit code {result.code}"
        return Said(
            lines=tuple(lines),
            noise=tuple(noise[-40:]),
            collected=result.collected,
            ended=ended,
            seconds=result.seconds,
        )


def _on_host(
    python: Path,
    script: str,
    sent: Mapping[str, bytes],
    collect: tuple[str, ...],
    gpus: GpuRequest,
    timeout: float,
    on_line: Callable[[str], None] | None,
) -> Said:
    import tempfile

    from envforge import process

    with tempfile.TemporaryDirectory(prefix="envforge-inside-") as name:
        folder = Path(name)
        for path, content in sent.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        try:
            outcome = process.run(
                [python, folder / "smoke_tests" / script, folder / "job.json"],
                env=smoke._python_env(folder, gpus),
                cwd=folder,
                timeout=timeout,
                on_line=on_line,
            )
        except OSError as error:
            raise EngineError("no-interpreter", f"{python} cannot be started: {error.strerror}") from error
        lines, noise = smoke.parse(outcome.stdout + "\n" + outcome.stderr)
        collected = {item: (folder / item).read_bytes() for item in collect if (folder / item).is_file()}
    ended = "stopped at its time limit" if outcome.timed_out else ""
    if not ended and outcome.code:
        ended = f"ended with exit code {outcome.code}"
    return Said(lines=tuple(lines), noise=tuple(noise[-40:]), collected=collected, ended=ended, seconds=outcome.seconds)


def find(name: str | None, *, python: Path | None, engine: str, console: Console) -> Environment:
    """The environment a person means, probed. An older build of NAME is used when the present lock has none.

    Raises EngineError when nothing fits or it does not answer, NothingSelected when it holds no known framework.
    """
    from dataclasses import replace

    from envforge import runner, subject

    found = subject.find(name, engine=engine, python=python, console=console)
    if found.python is not None:
        # Not resolved: the link of a virtual environment is what makes it one.
        environment = Environment(name=name or str(python), python=found.python.absolute())
    elif found.engine is not None and found.info is not None:
        environment = Environment(name=found.name, engine=found.engine, image=found.info.image)
    else:
        one: Any = runner.connect(engine, found.name, console)
        older = runner.find(one, found.name)
        if older.remark:
            console.warn(older.remark)
        environment = Environment(name=found.name, engine=one, image=older.image.image)
    probed = replace(environment, found=_probe(environment))
    if not probed.frameworks:
        raise NothingSelected(
            "no-framework", f"{environment.name} holds none of {', '.join(smoke.known_checks()['frameworks'])}"
        )
    return probed


def _probe(environment: Environment) -> dict[str, Any]:
    if environment.python is not None:
        return smoke.probe_python(environment.python)
    from envforge.engine import RunRequest

    assert environment.engine is not None
    answer = environment.engine.run(
        environment.image,
        RunRequest(argv=("python", "/envforge/smoke_tests/run.py", "--probe"), files=smoke.suite(), timeout=120),
    )
    found = smoke.parse(answer.stdout)[0]
    if not found:
        raise EngineError(
            "no-interpreter",
            f"{environment.name} has no `python` that answers",
            context=tuple((answer.stdout + answer.stderr).splitlines()[-10:]),
        )
    return found[-1]
