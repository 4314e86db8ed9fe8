"""README.md: what it shows can be done, and what it points at is there."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys

import pytest
from conftest import ROOT

from flashnorm_lab import cli, hazards, program, timeline

TEXT = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
COMMANDS = [
    line.removeprefix("$ ")
    for _, block in BLOCKS
    for line in block.splitlines()
    if line.startswith(("$ ", "make "))
]


RECORDED, LAB = [block for language, block in BLOCKS if language == "python"]
MY_STEP = """
import pyopencl as cl
from flashnorm_lab import devices
context = devices.get("opencl").context
loader, main = cl.CommandQueue(context), cl.CommandQueue(context)
x, y, z = (cl.Buffer(context, cl.mem_flags.READ_WRITE, 64) for _ in range(3))
def my_step():
    cl.enqueue_copy(loader, y, x)
    cl.enqueue_copy(main, z, y)
    loader.finish()
"""


def run(program, folder):
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_block_that_records_does_so(tmp_path):
    told = run(MY_STEP + RECORDED, tmp_path)
    assert "RAW: " in told
    assert "y" in told
    assert "cl.enqueue_barrier(" in told


def test_the_verdict_that_is_shown_is_what_the_analysis_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = next(block for _, block in BLOCKS if block.startswith("RAW: "))
    code = re.findall(r"^ +\| (.*)$", shown, re.MULTILINE)
    (tmp_path / "train.py").write_text("\n" * 11 + code[1] + "\n" * 8 + code[0])
    steps = (
        program.Launch("upload", "loader", (program.writes("x", 0, 64),), source="train.py:12"),
        program.Launch("forward", "default", (program.reads("x", 0, 64),), source="train.py:20"),
    )
    streams = {"loader": program.Stream("non-blocking"), "default": program.Stream("legacy")}
    (hazard,) = hazards.find(program.Program(steps, streams, {"x": 64}))
    assert hazard.report() == shown.rstrip("\n")


def test_the_block_on_the_labs_own_schedules_runs_as_it_stands(tmp_path):
    *told, counts = run(LAB, tmp_path).splitlines()
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
