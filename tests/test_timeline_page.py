"""A timeline as one HTML file: what is in it, without a browser."""

import base64
import hashlib
import json
import re
import zlib

import numpy as np
import pytest

from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline import TimelineBuilder
from flashnorm_lab.timeline.detail import Detail
from flashnorm_lab.timeline.metrics.layout import shown
from flashnorm_lab.timeline.writing import page, write
from flashnorm_lab.timeline.writing.page import write_page

BASE = 1_764_000_000_000_000_001
NAMES = (
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "a\u2028b\u2029c",
    "\ud800 alone",
    "\x1b[31mred",
    "a & b",
)


def recording(long=7):
    t = TimelineBuilder()
    t.lane("<b>host</b>", "host")
    for i, name in enumerate(NAMES):
        t.span(name, "<b>host</b>", BASE + 1000 * i, 100, "launch", launch=i, step=i // 2)
        t.span(name, "stream 7", BASE + 1000 * i + 300, long if i else 2**40 + 1, "kernel", launch=i)
        t.counter("memory & more", BASE + 10 * i, i / 3)
    t.edge(1, 3, "join")
    return t.build(
        source="<i>trace</i>.json", device="a & b", left_out={"<u>rows</u>": 1234}, notes=["<s>odd</s>"]
    )


def opened(text):
    """What page.js reads: the head, and the columns by name."""
    data = re.search(r'<script type="application/octet-stream" id="data">([A-Za-z0-9+/=]+)</script>', text)
    content = zlib.decompress(base64.b64decode(data[1]))
    size = int.from_bytes(content[:4], "little")
    assert (4 + size) % 8 == 0
    head = json.loads(content[4 : 4 + size])
    columns = {
        name: np.frombuffer(content, f"<{kind}", count, 4 + size + at)
        for name, kind, at, count in head["columns"]
    }
    return head, columns


def times(head, columns):
    start, length, long = [], [], list(columns["long"])
    for low, high in zip(head["bounds"], head["bounds"][1:], strict=False):
        end = 0
        for i in range(low, high):
            gap, size = int(columns["gap"][i]), int(columns["length"][i])
            start.append(end + (int(long.pop(0)) if gap == page.FOUR_BYTES else gap))
            length.append(int(long.pop(0)) if size == page.FOUR_BYTES else size)
            end = start[-1] + length[-1]
    assert not long
    return start, length


def test_nothing_is_lost_on_the_way_into_the_page(tmp_path):
    t = recording()
    write_page(t, tmp_path / "t.html")
    head, columns = opened((tmp_path / "t.html").read_text("utf-8"))
    order = Detail(t).order
    start, length = times(head, columns)
    assert start == (t.start_ns[order] - BASE).tolist()
    assert length == t.duration_ns[order].tolist()
    names = [head["names"][i] for i in columns["name"]]
    assert names == [shown(t.names[i]) for i in t.name[order]]
    assert columns["step"].tolist() == t.step[order].tolist()
    pairs = {(int(order[s]), int(order[e]), int(k)) for s, e, k in zip(
        columns["arrowFrom"], columns["arrowTo"], columns["arrowKind"], strict=True)}  # fmt: skip
    assert pairs == {(1, 3, 1), *((2 * i, 2 * i + 1, 0) for i in range(len(NAMES)))}
    assert columns["counterValue"].tolist() == [i / 3 for i in range(len(NAMES))]


@pytest.mark.parametrize("seed", range(5))
def test_times_of_any_length_come_back(seed):
    rng = np.random.default_rng(seed)
    length = rng.choice([0, 1, 2**32 - 2, 2**32 - 1, 2**32, 2**50], 40)
    gap = rng.choice([0, 5, 2**32 - 2, 2**32 - 1, 2**33], 40)
    bounds = np.array([0, 17, 17, 40])
    start = np.empty(40, dtype=np.int64)
    for low, high in ((0, 17), (17, 40)):
        ends = np.cumsum(gap[low:high] + length[low:high])
        start[low:high] = BASE + ends - length[low:high]
    columns = page._times(start, length, bounds, BASE)
    assert times({"bounds": bounds.tolist()}, columns) == ((start - BASE).tolist(), length.tolist())


def test_names_are_text_and_nothing_comes_from_elsewhere(tmp_path):
    write_page(recording(), tmp_path / "t.html", title="</title><script>alert(2)</script>")
    text = (tmp_path / "t.html").read_text("utf-8")
    scripts = re.findall(r"<script\b[^>]*>", text)
    assert scripts == ['<script type="application/octet-stream" id="data">', "<script>"]
    assert text.count("</script>") == 2
    for evil in (
        "<b>",
        "<i>",
        "<u>",
        "<s>",
        "<!--",
        "\u2028",
        "\x1b",
        "alert(1)</script>",
        "alert(2)</script>",
    ):
        assert evil not in text
    assert "&lt;s&gt;odd" in text
    assert "1,234 &lt;u&gt;rows" in text
    assert "\\x1b[31mred" in text
    assert not re.search(
        r"\b(src|href)=|@import|url\(|https?://|//cdn|innerHTML|outerHTML|insertAdjacent|\beval\b", text
    )
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    script = text.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    assert (
        policy
        == f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; base-uri 'none'"
    )


def test_a_window_is_written_and_said(tmp_path):
    t = recording()
    write_page(t, tmp_path / "t.html", window=(BASE + 2000, BASE + 3000))
    head, _ = opened((tmp_path / "t.html").read_text("utf-8"))
    assert head["info"]["parts"][0]["spans"] == 4  # the first kernel lasts so long; and its call
    assert "the part from" in (tmp_path / "t.html").read_text("utf-8")


def test_what_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "t.html"
    path.write_text("before")
    with pytest.raises(LabError, match="no span touches it"):
        write_page(recording(), path, window=(0, 5))
    monkeypatch.setattr(page, "MOST_SPANS", 11)
    with pytest.raises(LabError, match=r"12 spans are too many for a page.*give a window of time"):
        write_page(recording(), path)
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["t.html"]


def test_a_page_of_nothing(tmp_path):
    write_page(TimelineBuilder().build(), tmp_path / "t.html")
    head, columns = opened((tmp_path / "t.html").read_text("utf-8"))
    assert head["info"]["parts"][0]["lanes"] == []
    assert len(columns["gap"]) == 0


def test_folders_of_the_reader_are_not_told(tmp_path):
    build = TimelineBuilder()
    build.lane("host", "host")
    build.span("call", "host", BASE, 100, "launch")
    for source in ("/home/me/secret/trace.json", "C:\\me\\secret\\trace.json"):
        t = build.build(source=source)
        for name in ("t.html", "t.svg", "t.png"):
            write(t, tmp_path / name)
            assert b"secret" not in (tmp_path / name).read_bytes()
        text = (tmp_path / "t.html").read_text("utf-8")
        assert "<h1>trace.json</h1>" in text
        assert "1 span on 1 lane, edges: 0; of unstated origin; source: trace.json" in text
        assert "secret" not in json.dumps(opened(text)[0])


def test_a_page_of_a_window_opens_on_it(tmp_path):
    t = recording()
    write_page(t, tmp_path / "all.html")
    head, _ = opened((tmp_path / "all.html").read_text("utf-8"))
    assert head["view"] == head["info"]["extent"]
    for wide, seen in ((600, 600), (3, 20)):
        write_page(t, tmp_path / "part.html", (BASE + 1000, BASE + 1000 + wide))
        head, _ = opened((tmp_path / "part.html").read_text("utf-8"))
        assert head["view"] == [1000, 1000 + seen]
        assert head["info"]["extent"][1] > 2**39  # a kernel that crosses the window stays whole


def test_a_name_of_ten_thousand_characters_does_not_fill_the_page(tmp_path):
    build = TimelineBuilder()
    build.lane("stream 7", "device")
    build.span("a" * 5000 + "<b>" + "c" * 5000, "stream 7", BASE, 100, "kernel")
    write_page(build.build(), tmp_path / "t.html")
    text = (tmp_path / "t.html").read_text("utf-8")
    assert re.search("<td>a+…c+</td>", text)
    assert "a" * 400 not in text
