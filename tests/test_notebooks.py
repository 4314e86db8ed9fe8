"""Every notebook, as it lies in git and as it runs: from top to bottom, with no GPU, in an empty folder."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import time

import nbformat
import pytest
from conftest import ROOT
from nbclient import NotebookClient

NOTEBOOKS = ROOT / "notebooks"
NAMES = (
    "00_start_here",
    "01_the_algebra",
    "02_thirty_three_launches",
    "03_the_kernels",
    "04_two_streams_and_a_missing_edge",
    "05_the_model_that_spoke_backwards",
    "06_timelines",
    "07_races_in_your_own_code",
)
WITH_MODEL = ("02", "05", "06")
NOTEBOOK_S = 900
"""Far more than any takes: what is still running then hangs."""


def read(name):
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def prose(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]


def strip_notebooks():
    spec = importlib.util.spec_from_file_location("strip_notebooks", ROOT / "tools" / "strip_notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_these_are_all_there_are():
    assert tuple(sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_the_sources_is_in_git(name):
    text = (NOTEBOOKS / f"{name}.ipynb").read_text("utf-8")
    notebook = json.loads(text)
    nbformat.validate(notebook)
    assert strip_notebooks().stripped(notebook) == notebook, "run tools/strip_notebooks.py"
    assert notebook["metadata"]["kernelspec"] == {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    }


def test_strip_takes_out_what_running_and_looking_leave(tmp_path):
    notebook = json.loads((NOTEBOOKS / "01_the_algebra.ipynb").read_text("utf-8"))
    cell = next(c for c in notebook["cells"] if c["cell_type"] == "code")
    cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}]
    cell["execution_count"] = 3
    cell["metadata"] = {"collapsed": True}
    notebook["metadata"] = {"widgets": {}}
    path = tmp_path / "one.ipynb"
    path.write_text(json.dumps(notebook), "utf-8")
    strip_notebooks().main([str(path)])
    assert json.loads(path.read_text("utf-8")) == json.loads(
        (NOTEBOOKS / "01_the_algebra.ipynb").read_text("utf-8")
    )


@pytest.mark.parametrize("name", NAMES)
def test_each_begins_with_what_it_shows_and_leads_on(name):
    texts = prose(read(name))
    number = name[:2]
    assert texts[0].startswith(f"# {number} · ")
    first = texts[0].split("\n\n")[1]
    assert 1 <= len(re.findall(r"[.!?](?=\s|$)", first)) <= 4, "a sentence or two on what is to be seen"
    assert texts[-1].count("**Try this:**") == 1
    following = NAMES[(NAMES.index(name) + 1) % len(NAMES)]
    assert f"]({following}.ipynb)" in texts[-1]


@pytest.mark.parametrize("name", NAMES)
def test_links_between_notebooks_lead_somewhere(name):
    links = [link for text in prose(read(name)) for link in re.findall(r"\]\(([^)]+)\)", text)]
    for link in links:
        assert link.startswith("https://") or (NOTEBOOKS / link).is_file(), link


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_short(name):
    for cell in read(name).cells:
        if cell.cell_type == "code":
            lines = [
                line for line in cell.source.splitlines() if line and not line.startswith(("from", "import"))
            ]
            assert 1 <= len(lines) <= 5, cell.source


@pytest.fixture(scope="module")
def model_is_here():
    """The model is in the cache, so that no notebook draws a progress bar in this test."""
    from flashnorm_lab import models

    models.smollm2(progress=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.model if n[:2] in WITH_MODEL else ()) for n in NAMES]
)
def test_each_runs_from_top_to_bottom(name, tmp_path, request, monkeypatch):
    if name[:2] in WITH_MODEL:
        request.getfixturevalue("model_is_here")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    # Spinning threads of torch make every step several times slower where other work keeps the cores busy.
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    notebook = read(name)
    end = time.monotonic() + NOTEBOOK_S
    NotebookClient(
        notebook,
        timeout_func=lambda cell: max(1, round(end - time.monotonic())),
        kernel_name="python3",
        resources={"metadata": {"path": tmp_path}},
    ).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        for output in cell.outputs:
            assert output.output_type != "error", cell.source
            assert output.get("name") != "stderr", output.get("text")
        if re.search(r"Sliders\(|Panel\(", cell.source.splitlines()[-1]):
            assert any("image/png" in output.get("data", {}) for output in cell.outputs), cell.source
        assert cell.outputs, f"nothing to see: {cell.source}"
    look = globals().get(f"see_{name[:2]}")
    if look is not None:
        look(code, tmp_path)


def text_of(cell):
    parts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "".join(parts)


def figure_of(cell):
    (figure,) = [
        output["data"]["application/vnd.plotly.v1+json"]
        for output in cell.outputs
        if "application/vnd.plotly.v1+json" in output.get("data", {})
    ]
    return figure


def labels_of(cell):
    """The bars of a figure, by label."""
    (bars,) = figure_of(cell)["data"]
    return dict(zip(bars["y"], bars["x"], strict=True)) if isinstance(bars["x"], list) else list(bars["y"])


def measured(cell):
    return "measured on" in figure_of(cell)["layout"]["title"]["subtitle"]["text"]


def see_00(code, folder):
    assert "reason" in text_of(code[0])
    assert "The lab can run here." in text_of(code[1])
    names = [trace["name"] for trace in figure_of(code[2])["data"] if "name" in trace]
    assert "stale" in names
    assert measured(code[2])


def see_01(code, folder):
    assert float(re.search(r"\((.*)\)", text_of(code[0]))[1]) < 1e-10


def see_02(code, folder):
    launches = labels_of(code[0])
    assert launches["Llama-3.2-1B"] == 33
    assert launches["SmolLM2-135M"] == 61
    assert measured(code[2])
    assert measured(code[3])


def see_03(code, folder):
    assert "barrier(CLK_LOCAL_MEM_FENCE)" in text_of(code[2])
    assert text_of(code[4]).count("launches, off by") == 4
    assert measured(code[5])


def see_04(code, folder):
    told = text_of(code[1]).splitlines()
    assert [line.split(":")[0] for line in told] == ["RAW on y", "WAR on x"]
    assert all(line.endswith("Repair: join_matrix.") for line in told)
    counts = ast.literal_eval(text_of(code[3]))
    assert list(counts) == ["fresh", "stale", "torn", "early"]
    assert sum(counts.values()) == 32


def see_05(code, folder):
    """What the prose says of checks and wirings is what the checks said."""
    assert "all 20 tokens are the reference's" in text_of(code[0])
    assert "is the first that is not the reference's" in text_of(code[3])
    assert "19 of 1159" in text_of(code[3])
    assert "19 of 1159" in text_of(code[4])
    rows = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in text_of(code[6]).splitlines()[1:])
    verdicts = {check: re.findall(r"passes|fails", told) for check, told in rows.items()}
    assert verdicts["unit check"] == ["passes"] * 3
    assert verdicts["perplexity, one pass"] == ["passes"] * 3
    assert verdicts["perplexity, step by step"] == ["fails", "fails", "passes"]
    assert verdicts["first divergence"] == ["fails", "fails", "passes"]
    assert verdicts["one-step lag"][1:] == ["fails", "passes"]
    assert len(verdicts) == 6  # three checks, and the three signals of long generation
    assert all("passes" in row for row in verdicts.values())
    assert text_of(code[7]).count(": passes.") == 2


def see_06(code, folder):
    from flashnorm_lab import timeline

    assert measured(code[0])
    for question in timeline.metrics.report(timeline.open(folder / "deferred_step.json")).questions:
        assert question.share is not None
        assert question.question in text_of(code[1])
    assert "matrix and vector ran together for" in text_of(code[3])
    assert "the trace has no operation of a device" in text_of(code[7])
    assert text_of(code[-1]) == "True"
    assert len(timeline.open(folder / "mine.json.gz")) > 0
    assert "<html" in (folder / "deferred_step.html").read_text("utf-8")
    assert "<svg" in (folder / "deferred_step.svg").read_text("utf-8")


def see_07(code, folder):
    from flashnorm_lab import hazards, schedule_file

    assert "use may read y before make has written it" in str(figure_of(code[0])["layout"])
    assert "main.wait_event(make_done)" in text_of(code[1])
    recorded, repaired = text_of(code[3]), text_of(code[4])
    assert "2 launches, 1 hazard" in recorded
    assert "cl.enqueue_barrier(main, wait_for=[make_done])" in recorded
    assert "2 launches, no hazard" in repaired
    assert "not answered yet" in text_of(code[5])
    assert "use read in y what was there at the start instead of what make wrote" in text_of(code[6])
    assert "every launch observed what it should" in text_of(code[6])
    saved = schedule_file.load(folder / "mine.json")
    assert [h.kind for h in hazards.find(saved)] == ["RAW"]
