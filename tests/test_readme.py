"""README.md: what it shows can be done, and what it points at is there."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys

import pytest
from conftest import ROOT

from flashnorm_lab import cli, timeline

TEXT = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
COMMANDS = [
    line.removeprefix("$ ")
    for _, block in BLOCKS
    for line in block.splitlines()
    if line.startswith(("$ ", "make "))
]


def test_the_python_block_runs_as_it_stands(tmp_path):
    (program,) = [block for language, block in BLOCKS if language == "python"]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    *told, counts = done.stdout.splitlines()
    assert sum("Repair: join_matrix." in line for line in told) == 2
    assert sum(ast.literal_eval(counts).values()) == 32
    assert len(timeline.open(tmp_path / "race.json")) > 0


@pytest.mark.parametrize("command", [c for c in COMMANDS if "flashnorm-lab" in c])
def test_every_command_is_one_that_the_parser_takes(command):
    program, *options = shlex.split(command, comments=True)
    assert program == ".venv/bin/flashnorm-lab"
    assert cli.parser().parse_args(options).verb == options[0]


def test_every_verb_but_the_lab_itself_is_shown():
    shown = {shlex.split(c)[1] for c in COMMANDS if "flashnorm-lab" in c}
    assert shown == set(cli.verbs()) - {"lab"}  # which is `make lab`


def test_every_make_target_is_there():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    named = re.findall(r"(?:^|`)make ([\w-]+)", TEXT, re.MULTILINE)
    assert {"lab", "test"} <= set(named) <= set(targets)


def test_every_link_and_image_leads_somewhere():
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert len(links) > 9
    for link in links:
        assert link.startswith("https://") or (ROOT / link).is_file(), link
