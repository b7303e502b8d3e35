"""`gradproj completion`: a script for the shell that completes what can be typed."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from gradproj.experiments.cli import catalogue
from gradproj.experiments.cli.commands import COMMANDS, make_parser
from gradproj.experiments.data.registry import SOURCES
from gradproj.experiments.reports.figures import FIGURES
from gradproj.experiments.runs import preset_tables as presets

__all__ = ["configure", "execute", "make_script"]

SCRIPT = """\
_gradproj() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="%(commands)s"
    else
        case "${COMP_WORDS[1]} $previous" in
%(values)s
        *)
            case "${COMP_WORDS[1]}" in
%(options)s
            esac ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _gradproj gradproj
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "shell",
        choices=("bash", "zsh"),
        help="bash: write the output to ~/.local/share/bash-completion/completions/gradproj; zsh: "
        "write it to a file, and source that file in ~/.zshrc after compinit",
    )


def execute(args: argparse.Namespace) -> int:
    """Print the script."""
    # zsh runs the functions of bash after this line.
    print("autoload -U +X bashcompinit && bashcompinit\n" * (args.shell == "zsh") + make_script())
    return 0


def make_script() -> str:
    """Write the script for bash, with all names as they are now."""
    methods = [each.name for each in catalogue.methods()]
    positional: dict[str, Iterable[str]] = {
        "run": presets.available(),
        "list": ["benchmarks", "methods", "networks", "presets", *methods],
        "data": ["list", "where", "fetch", "verify", *SOURCES],
        "figure": FIGURES,
        "completion": ["bash", "zsh"],
    }
    named = {"--benchmark": catalogue.benchmarks(), "--method": methods}
    values, options = [], []
    for name, command in _commands().items():
        flags = []
        for action in command._actions:
            flags += [flag for flag in action.option_strings if action.help != argparse.SUPPRESS]
            for flag in action.option_strings:
                words = named.get(flag) or action.choices
                if words:
                    values.append(f'        "{name} {flag}") words="{" ".join(words)}" ;;')
        words = [*positional.get(name, ()), *flags]
        options.append(f'            {name}) words="{" ".join(words)}" ;;')
    commands = " ".join([*COMMANDS, "--help", "--version"])
    return SCRIPT % {
        "commands": commands,
        "values": "\n".join(values),
        "options": "\n".join(options),
    }


def _commands() -> dict[str, argparse.ArgumentParser]:
    parser = make_parser(list(COMMANDS))
    (subparsers,) = (
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    return dict(subparsers.choices)
