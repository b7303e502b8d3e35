"""The command line as a whole: version, help texts, completion, unknown commands."""

import argparse
import shutil
import subprocess
import sys
from importlib.metadata import version

import pytest

from gradproj.experiments import cli
from gradproj.experiments.cli.commands import COMMANDS, make_parser
from gradproj.experiments.cli.completion import make_script
from gradproj.experiments.runs import presets


def parsers():
    parser = make_parser(list(COMMANDS))
    (commands,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return commands.choices


@pytest.mark.parametrize("option", ["--version"])
def test_python_m_gradproj_is_the_command(option):
    command = [sys.executable, "-m", "gradproj", option]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"gradproj {version('gradproj')}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_is_explained_with_its_default(command):
    parser = parsers()[command]
    formatter = parser._get_formatter()
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        text = formatter._expand_help(action)
        assert text
        flag = action.nargs == 0
        required = not action.option_strings and action.nargs is None
        # Presets are needed unless --benchmark and --method are given.
        if not (flag or required or action.dest == "presets"):
            assert "default: " in text, action.dest


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["rum"], "gradproj: command 'rum' is not known; did you mean run? (see gradproj --help)"),
        (["xyz"], "gradproj: command 'xyz' is not known; use one of run, list, data, report"),
        ([], "gradproj: the following arguments are required: COMMAND (see gradproj --help)"),
        (
            ["run", "--sedes", "1"],
            "gradproj run: argument '--sedes' is not known; did you mean --seeds? (see",
        ),
        (
            ["demo", "here"],
            "gradproj demo: 'here' is one argument too many; leave it out",
        ),
        (["list", "--all"], "gradproj list: argument '--all' is not known; use one of --help"),
        (["--versoin"], "gradproj: argument '--versoin' is not known; did you mean --version?"),
        (["data", "lst"], "gradproj data: argument action: 'lst' is not known; did you mean list?"),
        (
            ["run", "a/b", "--executor", "rya"],
            "gradproj run: argument --executor: 'rya' is not known; did you mean ray?",
        ),
    ],
)
def test_a_wrong_command_is_one_line(argv, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(message)


@pytest.mark.parametrize(
    "argv", [["demo", "--out", "{}/file/folder"], ["figure", "time", "--out", "{}/file/a.png"]]
)
def test_a_folder_that_cannot_be_made_is_found_before_the_first_run(argv, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert cli.main([each.format(tmp_path) for each in argv]) == 2
    out = capsys.readouterr()
    (line,) = (out.out + out.err).splitlines()
    assert line.startswith(f"gradproj: --out: folder {tmp_path}/file")


def test_a_pattern_without_a_match_does_not_list_hundreds_of_presets(capsys):
    assert cli.main(["run", "nothing/*"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert len(line) < 200
    assert "see `gradproj list`" in line


COMPLETE = """
source /dev/stdin <<'SCRIPT'
{script}
SCRIPT
COMP_WORDS=({words} "{current}")
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_gradproj
printf '%s\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "current", "expected"),
    [
        ("gradproj", "re", ["report"]),
        ("gradproj run", "permuted-digits/preserve-r", None),
        ("gradproj run --executor", "", ["processes", "ray"]),
        ("gradproj run --method", "gp", ["gpm"]),
        ("gradproj inspect --benchmark", "rotated-d", ["rotated-digits"]),
        ("gradproj inspect", "--mo", ["--moments"]),
        ("gradproj data", "fetch", ["fetch"]),
        ("gradproj figure", "k-", ["k-sweep"]),
    ],
)
def test_bash_completes(words, current, expected):
    code = COMPLETE.format(script=make_script(), words=words, current=current)
    done = subprocess.run(["bash"], input=code, capture_output=True, text=True, check=True)
    if expected is None:
        expected = [name for name in presets.available() if name.startswith(current)]
        assert len(expected) > 1
    assert done.stdout.split() == expected


def test_the_script_of_zsh_loads_the_functions_of_bash_first(capsys):
    assert cli.main(["completion", "zsh"]) == 0
    zsh = capsys.readouterr().out
    assert cli.main(["completion", "bash"]) == 0
    assert zsh == "autoload -U +X bashcompinit && bashcompinit\n" + capsys.readouterr().out
