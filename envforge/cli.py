"""The command line: picks the command, sets up output, catches and prints errors. No logic of its own.

Each command lives in ``envforge/commands/<module>.py`` and is imported only when it is used, so that
starting up costs no more than the command itself needs. A command module has

* ``EXAMPLE``: one working command line, shown by ``--help``;
* ``arguments(parser)``: adds its options;
* ``run(args, console) -> int``: does the work and returns the exit code.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from envforge import __version__
from envforge.console import Console
from envforge.errors import EXIT_BUG, EXIT_USAGE, EngineError, EnvforgeError, Interrupted, UsageError

# name -> (module under envforge.commands, one line for the overview). Grouped as people meet them.
COMMANDS: dict[str, tuple[str, str]] = {
    "list": ("list_", "the catalogue of environments"),
    "show": ("show", "one spec fully expanded, each choice with its reason"),
    "choose": ("choose", "framework guide: which framework and export route for a task"),
    "new": ("new", "write a spec for a framework, driver and GPU"),
    "import": ("import_", "turn requirements.txt, environment.yml, Dockerfile … into a spec"),
    "check": ("check", "will it work, on which driver and GPU, and why not"),
    "fleet": ("fleet", "which images cover which hosts, and what an upgrade unlocks"),
    "lock": ("lock", "pin every file by hash"),
    "render": ("render", "write the Dockerfile and its context"),
    "build": ("build", "check, lock, render, build, test and record"),
    "smoke": ("smoke", "run the smoke tests in an image or an interpreter"),
    "run": ("run", "run a command in an environment"),
    "shell": ("shell", "open a shell in an environment"),
    "compose": ("compose", "Compose file for Jupyter, TensorBoard or serving"),
    "base": ("base", "base images where no registry can be reached"),
    "doctor": ("doctor", "look at this host: driver, CUDA, toolkit, engine, disk"),
    "diagnose": ("diagnose", "error text in, cause and fix out"),
    "compare": ("compare", "numbers across frameworks or versions"),
    "bench": ("bench", "latency and memory of the export routes"),
    "matrix": ("matrix", "plan, run and report many environments"),
    "refresh": ("refresh", "relock, rebuild, retest, show what moved"),
    "inspect": ("inspect", "what is in an image or prefix"),
    "diff": ("diff", "two images or locks, side by side"),
    "verify": ("verify", "is the image what the lock says"),
    "sbom": ("sbom", "software bill of materials"),
    "audit": ("audit", "licences and linked libraries"),
    "push": ("push", "publish a tested image"),
    "vendor": ("vendor", "everything needed to build without a network"),
    "export": ("export", "other tools' formats: apptainer, devcontainer, pylock …"),
    "decay": ("decay", "what has been withdrawn or reached its end of life"),
    "clean": ("clean", "remove what envforge made (shows sizes first)"),
    "completion": ("completion", "shell completion script"),
}


class _Parser(argparse.ArgumentParser):
    """argparse whose mistakes become our errors (exit code 2, JSON when asked)."""

    def error(self, message: str) -> NoReturn:
        hint = f"see: {self.prog} --help"
        if message.startswith("unrecognized arguments") and self.get_default("_takes_command"):
            hint = f"the command to run stands behind --, as in: {self.prog} NAME -- python train.py"
        raise UsageError("usage", f"{self.prog}: {message}", hint=hint)


def available() -> dict[str, tuple[str, str]]:
    """The commands of this installation: those whose module is present."""
    from envforge.resources import data

    folder = data("").parent / "commands"
    return {name: entry for name, entry in COMMANDS.items() if (folder / f"{entry[0]}.py").is_file()}


def _overview() -> str:
    lines = [
        "usage: envforge COMMAND [OPTIONS]",
        "",
        "Reproducible deep-learning environments: a verdict before the build, hash-checked locks, tested images.",
        "",
        "commands:",
    ]
    lines += [f"  {name:<12}{text}" for name, (_, text) in available().items()]
    lines += [
        "",
        "every command: --json  -q/--quiet  -v/--verbose  --help (with an example)",
        "start here:    envforge build jax-cpu",
        "version:       envforge --version",
    ]
    return "\n".join(lines)


def build_parser(name: str) -> argparse.ArgumentParser:
    """The parser of one command, with the options every command has."""
    module_name, text = COMMANDS[name]
    module = import_module(f"envforge.commands.{module_name}")
    parser = _Parser(
        prog=f"envforge {name}",
        description=text[0].upper() + text[1:] + ".",
        epilog=f"example: {module.EXAMPLE}",
        allow_abbrev=False,
    )
    common = parser.add_argument_group("every command")
    common.add_argument("--json", action="store_true", help="one JSON document on stdout, logs on stderr")
    common.add_argument("-q", "--quiet", action="store_true", help="results, warnings and errors only")
    common.add_argument("-v", "--verbose", action="count", default=0, help="more detail; tracebacks for bugs")
    module.arguments(parser)
    parser.set_defaults(_run=module.run, _takes_command=getattr(module, "TAKES_COMMAND", False))
    return parser


def _fail(console: Console, error: EnvforgeError) -> int:
    if console.json_mode:
        console.document({"schema": 1, "error": error.document()})
    console.error(error.reference, error.message, error.context, error.hint)
    return error.exit_code


#: what a host does to any program: a full disk, a quota, a read-only or forbidden folder, a lost disk
_HOST_FAULTS = {errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE}
_HOST_FAULTS |= {getattr(errno, "EDQUOT", errno.ENOSPC)}  # Windows has no quota error


def _host_fault(error: OSError) -> EngineError:
    where = f": {error.filename}" if error.filename else ""
    return EngineError(
        "host-refused-file",
        f"this host refused a read or write{where}: {error.strerror}",
        hint="look at the free space and the rights there; ENVFORGE_HOME=DIR moves envforge's own files",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code and never lets an exception through."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if words else EXIT_USAGE
    if words[0] in ("-V", "--version", "version"):
        print(f"envforge {__version__}")
        return 0
    # `run NAME -- CMD`: words after -- belong to CMD and must not switch our output.
    ours = words[: words.index("--")] if "--" in words else words
    verbose = sum(word.count("v") for word in ours if word in ("-v", "-vv", "-vvv")) + ours.count("--verbose")
    console = Console(
        json_mode="--json" in ours,
        verbosity=-1 if ("-q" in ours or "--quiet" in ours) else min(verbose, 2),
    )
    name = words[0]
    if os.environ.get("ENVFORGE_PARENT"):  # a cell of a matrix: end with the run that started it
        from envforge.matrix_run import watch_parent

        watch_parent()
    try:
        known = available()
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, 1)
            raise UsageError(
                "unknown-command",
                f"there is no command {name!r}",
                hint=f"did you mean `envforge {near[0]}`?" if near else "see: envforge --help",
            )
        parser = build_parser(name)
        if parser.get_default("_takes_command"):
            args = parser.parse_args(ours[1:], argparse.Namespace(command=tuple(words[len(ours) + 1 :])))
        else:
            args = parser.parse_args(words[1:])
        code: int = args._run(args, console)
        return code
    except EnvforgeError as error:
        return _fail(console, error)
    except KeyboardInterrupt:
        return _fail(console, Interrupted())
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _HOST_FAULTS:
            return _fail(console, _host_fault(error))
        if console.verbosity >= 1:
            import traceback

            traceback.print_exc()
        bug = EnvforgeError(
            "bug",
            f"{type(error).__name__}: {error}",
            hint="this is a fault of envforge; run again with -v for the traceback and report it",
        )
        assert bug.exit_code == EXIT_BUG
        return _fail(console, bug)
