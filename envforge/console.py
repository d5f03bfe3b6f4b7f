"""What people and programs see: results on stdout, everything else on stderr.

With ``--json`` exactly one JSON document stands on stdout. Colour follows the terminal and NO_COLOR.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}


class Console:
    """Prints results, notes and warnings for one command.

    ``verbosity``: -1 quiet (results and errors only), 0 normal, 1 verbose.
    """

    def __init__(
        self,
        *,
        json_mode: bool = False,
        verbosity: int = 0,
        color: bool | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self.json_mode = json_mode
        self.verbosity = verbosity
        # A closed stream (`>&-`) is None in Python: what would go there goes nowhere.
        self.stdout = stdout or sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        self.stderr = stderr or sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        self._color = color

    def _colored(self, stream: TextIO) -> bool:
        if self._color is not None:
            return self._color
        if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
            return False
        return stream.isatty()

    def style(self, text: str, *names: str, stream: TextIO | None = None) -> str:
        """``text`` in the given styles when the stream (default stdout) shows colour, else as it is."""
        if not names or not self._colored(stream or self.stdout):
            return text
        return f"\x1b[{';'.join(_STYLES[name] for name in names)}m{text}\x1b[0m"

    @property
    def is_terminal(self) -> bool:
        """Whether stderr, where progress goes, is a terminal."""
        return self.stderr.isatty()

    def result(self, text: str = "") -> None:
        """A line of the human result; silent with ``--json``."""
        if not self.json_mode:
            self.stdout.write(text + "\n")

    def document(self, value: dict[str, Any]) -> None:
        """The one JSON document of a command; silent without ``--json``."""
        if self.json_mode:
            json.dump(value, self.stdout, indent=2, ensure_ascii=False)
            self.stdout.write("\n")
            self.stdout.flush()

    def note(self, text: str) -> None:
        """A progress or information line (stderr; hidden by -q)."""
        if self.verbosity >= 0:
            self.stderr.write(text + "\n")
            self.stderr.flush()

    def detail(self, text: str) -> None:
        """A line shown only with -v."""
        if self.verbosity >= 1:
            self.stderr.write(self.style(text, "dim", stream=self.stderr) + "\n")
            self.stderr.flush()

    def warn(self, text: str) -> None:
        """A warning line; -q does not hide it."""
        self.stderr.write(self.style("warning: ", "yellow", stream=self.stderr) + text + "\n")
        self.stderr.flush()

    def error(self, reference: str, message: str, context: tuple[str, ...] = (), hint: str = "") -> None:
        """An error: first line, context lines indented, hint last."""
        write = self.stderr.write
        head = self.style(f"error[{reference}]", "red", "bold", stream=self.stderr)
        write(f"{head}: {message}\n")
        for line in context:
            write(f"  {line}\n")
        if hint:
            write(self.style("hint: ", "cyan", stream=self.stderr) + hint + "\n")
        self.stderr.flush()
