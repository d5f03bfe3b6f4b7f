"""Every error a person can meet: a reference, a message, where it happened, what to do, and an exit code.

The exit codes are a contract (docs/errors.md). Code 1 is kept for bugs: an exception that is not an
:class:`EnvforgeError` reached the command line.
"""

from __future__ import annotations

from typing import Any, ClassVar

EXIT_OK = 0
EXIT_BUG = 1
EXIT_USAGE = 2
EXIT_SPEC = 3
EXIT_CONFLICT = 4
EXIT_LOCK = 5
EXIT_ENGINE = 6
EXIT_BUILD = 7
EXIT_SMOKE = 8
EXIT_NOTHING_SELECTED = 9
EXIT_DIFFERENCES = 10
EXIT_NETWORK = 11
EXIT_BUDGET = 12
EXIT_INTERRUPTED = 130


class EnvforgeError(Exception):
    """Base of all errors shown to a person.

    ``reference`` is a stable kebab-case name (a paragraph of docs/errors.md), ``message`` says what is
    wrong and where, ``context`` holds detail lines (log tail, all problems), ``hint`` is the next step.
    """

    exit_code: ClassVar[int] = EXIT_BUG

    def __init__(self, reference: str, message: str, *, hint: str = "", context: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reference = reference
        self.message = message
        self.hint = hint
        self.context = context

    def document(self) -> dict[str, Any]:
        """The ``error`` value of the JSON error document."""
        found: dict[str, Any] = {
            "reference": self.reference,
            "message": self.message,
            "hint": self.hint,
            "exit_code": self.exit_code,
        }
        if self.context:
            found["context"] = list(self.context)
        return found


class UsageError(EnvforgeError):
    """The command line cannot be understood."""

    exit_code = EXIT_USAGE


class SpecError(EnvforgeError):
    """A spec, matrix, fleet or configuration file is wrong; ``context`` lists every problem with its place."""

    exit_code = EXIT_SPEC


class ConflictError(EnvforgeError):
    """No working combination; ``context`` names who needs what, the hint the nearest one that works."""

    exit_code = EXIT_CONFLICT


class LockError(EnvforgeError):
    """A lock is missing, stale, foreign, or cannot be made."""

    exit_code = EXIT_LOCK


class EngineError(EnvforgeError):
    """No engine, a promised GPU is absent, no disk, or the engine was lost."""

    exit_code = EXIT_ENGINE


class GpuUnavailable(EngineError):
    """A GPU was promised and cannot be delivered; the reference names the cause."""


class BuildError(EnvforgeError):
    """A build step, an index answer or a hash inside the build failed."""

    exit_code = EXIT_BUILD


class SmokeError(EnvforgeError):
    """The smoke tests could not be passed."""

    exit_code = EXIT_SMOKE


class NothingSelected(EnvforgeError):
    """A selector matches nothing."""

    exit_code = EXIT_NOTHING_SELECTED


class DifferencesError(EnvforgeError):
    """Verify or compare found differences."""

    exit_code = EXIT_DIFFERENCES


class NetworkError(EnvforgeError):
    """An index or registry cannot be reached or answers with an error."""

    exit_code = EXIT_NETWORK


class BudgetError(EnvforgeError):
    """A size or time budget of the spec is exceeded."""

    exit_code = EXIT_BUDGET


class Interrupted(EnvforgeError):
    """Ctrl-C or SIGTERM; what was under way has been cleaned up."""

    exit_code = EXIT_INTERRUPTED

    def __init__(self, message: str = "interrupted; nothing partial was left behind") -> None:
        super().__init__("interrupted", message)
