"""The command line as a whole: help, bad use in one line, what `lab` hands to JupyterLab."""

from __future__ import annotations

import argparse
import inspect
import re
import socket
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from flashnorm_lab import __version__, cli
from flashnorm_lab.cli_verbs import lab
from flashnorm_lab.errors import LabError


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What was written to standard error, which must be one line, with nothing on standard output."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err


def status(*argv: str) -> int:
    """The exit status, whether returned or raised as argparse does."""
    try:
        return cli.main(argv)
    except SystemExit as leaving:
        return leaving.code


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A verb of the tests' own; set its `run`."""
    module = types.SimpleNamespace(
        __doc__="Do nothing.", arguments=lambda parser: None, run=lambda options: 0
    )
    monkeypatch.setattr(cli, "verbs", lambda: {"nothing": module})
    return module


def test_version_and_help(capsys):
    assert status("--version") == 0
    assert capsys.readouterr().out == f"flashnorm-lab {__version__}\n"
    assert status("--help") == 0
    text = capsys.readouterr().out
    for name, module in cli.verbs().items():
        assert name in text
        assert status(name, "--help") == 0
        assert inspect.cleandoc(module.__doc__).splitlines()[0] in capsys.readouterr().out


@pytest.mark.parametrize("name", cli.VERBS)
def test_every_verb_is_whole_and_documents_its_options(name):
    module = cli.verbs()[name]
    assert inspect.signature(module.run).return_annotation in (int, "int")
    parser = cli.Parser(prog=name)
    module.arguments(parser)
    for action in parser._actions:
        assert action.help, f"{name} {action.option_strings or action.dest} has no help"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), "VERB"),
        (("dance",), "'dance'"),
        (("doctor", "--jsn"), "'--jsn'"),
        (("doctor", "--js"), "'--js'"),
        (("doctor", "more"), "'more'"),
        (("--nothing", "doctor"), "'--nothing'"),
    ],
)
def test_bad_use_is_one_line_and_status_2(capsys, argv, words):
    assert status(*argv) == 2
    line = one_line(capsys)
    assert line.startswith("flashnorm-lab")
    assert words in line
    assert "--help" in line


def test_errors_of_a_verb_are_one_line_and_status_2(capsys, verb):
    def fail(options):
        raise LabError("tokens=0: expected\n  at least 1")

    verb.run = fail
    assert status("nothing") == 2
    assert one_line(capsys) == "flashnorm-lab: tokens=0: expected at least 1\n"


def test_errors_of_an_options_type_are_one_line_and_status_2(capsys, verb):
    def edge(text: str) -> str:
        raise LabError(f"there is no edge {text!r}")

    verb.arguments = lambda parser: parser.add_argument("--drop", type=edge)
    assert status("nothing", "--drop", "x") == 2
    assert one_line(capsys) == "flashnorm-lab: there is no edge 'x'\n"


def test_status_of_a_verb_and_of_an_interrupt(capsys, verb):
    def interrupted(options):
        raise KeyboardInterrupt

    verb.run = lambda options: 1
    assert status("nothing") == 1
    verb.run = interrupted
    assert status("nothing") == 130
    assert one_line(capsys) == "flashnorm-lab: interrupted\n"


def test_other_errors_are_not_hidden(verb):
    def broken(options):
        raise ZeroDivisionError

    verb.run = broken
    with pytest.raises(ZeroDivisionError):
        cli.main(["nothing"])


def test_a_reader_that_goes_away_is_no_error():
    program = (
        "import sys, types; from flashnorm_lab import cli;"
        "run = lambda options: print('x' * 1_000_000) or 0;"
        "verb = types.SimpleNamespace(__doc__='Talk.', arguments=lambda parser: None, run=run);"
        "cli.verbs = lambda: {'talk': verb}; sys.exit(cli.main(['talk']))"
    )
    talk = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    talk.stdout.read(10)
    talk.stdout.close()
    with talk.stderr:
        assert talk.stderr.read() == b""
    assert talk.wait(timeout=30) == 0


def test_help_imports_nothing_heavy():
    program = (
        "import sys; from flashnorm_lab import cli; cli.parser();"
        "heavy = {'numpy', 'torch', 'cupy', 'pyopencl', 'plotly', 'ipywidgets', 'pandas', 'jupyterlab'};"
        "print(*sorted(heavy & sys.modules.keys()))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "\n"), run.stderr


# --- lab ---

NOTEBOOKS = Path("/clone/notebooks")
FIRST = "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_full_disk_behind_standard_output_is_told_in_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "flashnorm_lab", "race", "--steps=2", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (
        2,
        "flashnorm-lab: the disk is full, so the answer is not whole; free some space\n",
    )


@pytest.mark.parametrize("verb", [["race", "--export"], ["speak", "--export"], ["export", "--out"]])
@pytest.mark.parametrize(
    ("path", "told"), [("", "no file name"), ("/dev/full", "a device"), ("/nowhere/x.json", "does not exist")]
)
def test_a_bad_place_for_an_export_is_told_before_any_work(verb, path, told, capsys):
    assert cli.main([*verb, path]) == 2
    assert told in one_line(capsys)


def test_an_empty_prompt_and_too_many_threads_are_told_before_the_model_is_loaded(capsys, monkeypatch):
    from flashnorm_lab import models

    monkeypatch.setattr(models, "smollm2", lambda *_: pytest.fail("the model was loaded"))
    assert cli.main(["speak", "--prompt", " "]) == 2
    assert "the prompt is empty" in one_line(capsys)
    assert cli.main(["speak", "--threads", "99999"]) == 2
    assert "--threads 99999: give a whole number from 1 to" in one_line(capsys)


def test_lab_serves_this_machine_only():
    assert lab.command(NOTEBOOKS, ["--port=8899"], root=False) == [
        "--ServerApp.root_dir=/clone",
        FIRST,
        "--ServerApp.ip=127.0.0.1",
        "--port=8899",
    ]


def test_lab_adds_what_root_needs_once():
    assert "--allow-root" in lab.command(NOTEBOOKS, [], root=True)
    assert lab.command(NOTEBOOKS, ["--allow-root"], root=True).count("--allow-root") == 1


def test_lab_leaves_out_what_the_user_sets():
    line = lab.command(NOTEBOOKS, ["--ip=0.0.0.0", "--LabApp.default_url=/lab"], root=False)
    assert line == ["--ServerApp.root_dir=/clone", "--ip=0.0.0.0", "--LabApp.default_url=/lab"]
    line = lab.command(NOTEBOOKS, ["--notebook-dir=/"], root=False)
    assert line == ["--ServerApp.ip=127.0.0.1", "--notebook-dir=/"]


def test_lab_opens_a_notebook_that_is_there():
    assert (lab.notebooks_folder() / lab.FIRST_NOTEBOOK).is_file()


def page(address):
    """A page of a server that may still be starting: it tells its address a moment before it listens."""
    limit = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(address, timeout=20) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.1)


def test_lab_starts_for_real():
    """Jupyter answers on this machine's own address, asks for its token, and opens the first notebook."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [sys.executable, "-m", "flashnorm_lab", "lab", "--no-browser", f"--port={port}"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            found = (re.search(r"http://127\S+token=\w+", text) for text in server.stdout)
            address = next(m[0] for m in found if m)
            assert address.startswith(
                f"http://127.0.0.1:{port}/lab/tree/notebooks/00_start_here.ipynb?token="
            )
            assert "apputils-extension:announcements" in page(address)  # no question about news
            with pytest.raises(urllib.error.HTTPError, match="403"):
                page(f"http://127.0.0.1:{port}/api/contents")
        finally:
            server.terminate()


def test_lab_hands_unknown_options_on_in_their_order(monkeypatch, capsys, tmp_path):
    labapp = pytest.importorskip("jupyterlab.labapp")
    started: list[list[str]] = []
    monkeypatch.setattr(labapp.LabApp, "launch_instance", started.append)
    monkeypatch.setattr(lab, "notebooks_folder", lambda: tmp_path)
    (tmp_path / lab.FIRST_NOTEBOOK).touch()
    monkeypatch.setattr(lab.os, "geteuid", lambda: 0, raising=False)
    assert cli.main(["lab", "--no-browser", "--port", "8899", "--ServerApp.token=abc"]) == 0
    (line,) = started
    assert line[-4:] == ["--no-browser", "--port", "8899", "--ServerApp.token=abc"]
    assert lab.FIRST_NOTEBOOK in line[1]
    assert "--allow-root" in line
    assert "You are root" in capsys.readouterr().out


def test_lab_without_its_notebooks_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(lab, "notebooks_folder", lambda: tmp_path)
    with pytest.raises(LabError, match=r"git checkout notebooks"):
        lab.run(argparse.Namespace(extra=[]))
