"""``envforge completion``: a completion script for bash, zsh or fish, made from the parsers themselves."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from envforge.console import Console
from envforge.errors import EXIT_OK

EXAMPLE = "envforge completion bash > ~/.local/share/bash-completion/completions/envforge"


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """What can follow one command: options, values of options with choices, subcommands or choices, spec names."""

    help: str
    options: tuple[str, ...]
    values: Mapping[str, tuple[str, ...]]
    choices: tuple[str, ...]
    takes_name: bool


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell to complete in")


def words() -> dict[str, Words]:
    """Every command of this installation with its words."""
    from envforge.cli import available, build_parser

    found = {}
    for name, (_, text) in sorted(available().items()):
        options: list[str] = []
        values: dict[str, tuple[str, ...]] = {}
        choices: list[str] = []
        takes_name = False
        for action in build_parser(name)._actions:
            options += action.option_strings
            listed = tuple(str(choice) for choice in action.choices or ())
            if action.option_strings and listed:
                values |= dict.fromkeys(action.option_strings, listed)
            elif not action.option_strings:
                choices += listed
                takes_name = takes_name or "NAME" in str(action.metavar or "")
        found[name] = Words(
            help=text, options=tuple(options), values=values, choices=tuple(choices), takes_name=takes_name
        )
    return found


def bash(found: Mapping[str, Words], names: tuple[str, ...]) -> str:
    """A bash completion function."""
    lines = [
        "# bash completion for envforge",
        "_envforge() {",
        '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words=""',
        "  COMPREPLY=()",
        '  if [ "$COMP_CWORD" -eq 1 ]; then',
        f'    COMPREPLY=($(compgen -W {shlex.quote(" ".join([*found, "--help", "--version"]))} -- "$cur")); return',
        "  fi",
        '  case "${COMP_WORDS[1]} $prev" in',
    ]
    for name, item in found.items():
        for option, listed in item.values.items():
            lines.append(f"    {shlex.quote(f'{name} {option}')}) words={shlex.quote(' '.join(listed))} ;;")
    lines += ["  esac", '  if [ -z "$words" ]; then', '    case "${COMP_WORDS[1]}" in']
    for name, item in found.items():
        own = [*item.options, *item.choices, *(names if item.takes_name else ())]
        lines.append(f"      {name}) words={shlex.quote(' '.join(own))} ;;")
    lines += [
        "    esac",
        "  fi",
        '  COMPREPLY=($(compgen -W "$words" -- "$cur"))',
        "}",
        "complete -o default -F _envforge envforge",
    ]
    return "\n".join(lines) + "\n"


def zsh(found: Mapping[str, Words], names: tuple[str, ...]) -> str:
    """A zsh completion function."""
    lines = [
        "#compdef envforge",
        "_envforge() {",
        "  local -a words_",
        "  if (( CURRENT == 2 )); then",
        "    words_=(",
    ]
    lines += [f"      {shlex.quote(f'{name}:{item.help}')}" for name, item in found.items()]
    lines += [
        "    )",
        "    _describe command words_; return",
        "  fi",
        '  case "${words[2]} ${words[CURRENT-1]}" in',
    ]
    for name, item in found.items():
        for option, listed in item.values.items():
            quoted = " ".join(shlex.quote(choice) for choice in listed)
            lines.append(f"    {shlex.quote(f'{name} {option}')}) compadd -- {quoted}; return ;;")
    lines += ["  esac", '  case "${words[2]}" in']
    for name, item in found.items():
        own = [*item.options, *item.choices, *(names if item.takes_name else ())]
        lines.append(f"    {name}) compadd -- {' '.join(shlex.quote(word) for word in own)} ;;")
    lines += [
        "  esac",
        "  _files",
        "}",
        'if [ "$funcstack[1]" = "_envforge" ]; then _envforge "$@"; else compdef _envforge envforge; fi',
    ]
    return "\n".join(lines) + "\n"


def fish(found: Mapping[str, Words], names: tuple[str, ...]) -> str:
    """fish completion lines."""
    lines = ["# fish completion for envforge"]
    for name, item in found.items():
        lines.append(f"complete -c envforge -n __fish_use_subcommand -a {name} -d {shlex.quote(item.help)}")
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        for option in item.options:
            flag = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            listed = item.values.get(option)
            extra = f" -x -a {shlex.quote(' '.join(listed))}" if listed else ""
            lines.append(f"complete -c envforge {seen} {flag}{extra}")
        own = [*item.choices, *(names if item.takes_name else ())]
        if own:
            lines.append(f"complete -c envforge {seen} -a {shlex.quote(' '.join(own))}")
    return "\n".join(lines) + "\n"


def run(args: argparse.Namespace, console: Console) -> int:
    from envforge.spec import names

    make = {"bash": bash, "zsh": zsh, "fish": fish}[args.shell]
    text = make(words(), names())
    console.document({"schema": 1, "shell": args.shell, "script": text})
    console.result(text.rstrip("\n"))
    return EXIT_OK
