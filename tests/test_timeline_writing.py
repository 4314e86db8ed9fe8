"""What is written for other programs holds what the timeline holds, as those programs read it."""

import errno
import gzip
import itertools
import json
import math
import os
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict

import numpy as np
import pandas as pd
import pytest
from test_timeline import race_timeline
from test_timeline_roundtrip import HALVES, MARKUP, ODD, random_timeline

from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline import CATEGORIES, OUTCOMES, Lane, Timeline, TimelineBuilder, writing
from flashnorm_lab.timeline.table import EDGE_KINDS
from flashnorm_lab.timeline.writing import files, perfetto, pictures, tables, tracks

# Files: whole or not at all


@pytest.mark.parametrize("encoding", ["utf-8", None])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_file_is_written_whole(tmp_path, name, encoding):
    path = tmp_path / name
    content = "línea\n\u6838" if encoding else b"\x00\r\n\xff"
    for _ in range(2):
        with files.whole(path, encoding) as file:
            assert not path.exists() or path.read_bytes()  # the old one stays until the new one is whole
            file.write(content)
    data = path.read_bytes()
    data = gzip.decompress(data) if name.endswith(".gz") else data
    assert data == (content.encode() if encoding else content)
    assert os.listdir(tmp_path) == [name]


def test_equal_contents_are_equal_files(tmp_path):
    for name in ("a.json.gz", "b.json.gz"):
        race_timeline().export_chrome(tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("problem", [KeyError("mine"), OSError(errno.ENOSPC, "No space left on device")])
def test_what_goes_wrong_half_way_leaves_the_old_file_and_no_rest(tmp_path, name, problem):
    path = tmp_path / name
    path.write_text("old")

    def write():
        with files.whole(path) as file:
            file.write(b"new")
            raise problem

    with pytest.raises(KeyError if isinstance(problem, KeyError) else LabError):
        write()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == [name]


def test_a_long_name_can_be_written(tmp_path):
    path = tmp_path / ("n" * 250 + ".csv")
    writing.write(race_timeline(1).with_edges([]), path, "chrome")
    assert path.stat().st_size
    with pytest.raises(LabError, match=r"cannot be written \(File name too long\)"):
        writing.write(race_timeline(1), tmp_path / ("n" * 300 + ".json"))
    with pytest.raises(LabError, match="no file name"):
        files.check_target("a\0b.json")


def test_halves_of_pairs_become_replacement_characters():
    assert files.unicode_text("a\ud800b") == "a\ufffdb"
    assert files.unicode_text("\ud83d\ude00") == "\U0001f600"
    assert files.unicode_text("línea") == "línea"


# Tracks: rows on which spans nest


def check_nesting(start, end, sub):
    """By a stack for each track, as a viewer keeps one; the number of spans that cross one on their track."""
    crossing = 0
    stacks = defaultdict(list)
    for i in sorted(range(len(start)), key=lambda i: (start[i], -end[i])):
        stack = stacks[sub[i]]
        while stack and stack[-1][1] <= start[i] and stack[-1][0] < start[i]:
            stack.pop()
        crossing += bool(stack) and end[i] > stack[-1][1]
        stack.append((start[i], end[i]))
    return crossing


@pytest.mark.parametrize("seed", range(40))
def test_spans_of_a_track_nest(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 200))
    start = rng.integers(0, rng.choice([5, 100, 5000]), count).astype(np.uint64)
    end = start + rng.integers(0, rng.choice([2, 40, 1000]), count).astype(np.uint64)
    lane = rng.integers(0, 3, count)
    sub = tracks.layers(lane, start, end)
    for i in range(3):
        mine = [column[lane == i].tolist() for column in (start, end, sub)]
        assert check_nesting(*mine) == 0
        alone = check_nesting(mine[0], mine[1], [0] * len(mine[0]))
        assert (max(mine[2], default=0) > 0) == (alone > 0)  # one track where one is enough
        assert sorted(set(mine[2])) == list(range(max(mine[2], default=-1) + 1))


def test_very_deep_nests_and_very_many_crossings_are_laid_out():
    number = np.arange(5000, dtype=np.uint64)
    lane = np.zeros(5000, dtype=np.int64)
    assert not tracks.layers(lane, number, 20_000 - number).any()
    crossing = tracks.layers(lane, number, number + np.uint64(5000))
    assert sorted(crossing.tolist()) == list(range(5000))
    assert len(set(tracks.layers(lane, number, number + np.uint64(20)).tolist())) <= 22


# Perfetto


def unpack(path):
    """Slices, instants and samples of a Perfetto trace, and its flows, by the package's own classes.

    The package's trace processor would have to be fetched, so what it does is done here: begins and ends are
    matched by a stack for each track, names are looked up by number, flows lead from event to event.
    """
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

    data = path.read_bytes()
    trace = Trace()
    trace.ParseFromString(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    first = trace.packet[0]
    assert first.sequence_flags == 1  # SEQ_INCREMENTAL_STATE_CLEARED
    names, categories, notes = (
        {entry.iid: entry.name for entry in table}
        for table in (
            first.interned_data.event_names,
            first.interned_data.event_categories,
            first.interned_data.debug_annotation_names,
        )
    )
    described = {
        p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")
    }

    def place(uuid):
        track = described[uuid]
        return described[track.parent_uuid].process.process_name, track.name

    slices, instants, samples = [], [], []
    stacks, flows = defaultdict(list), {}
    newest = 0
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == first.trusted_packet_sequence_id
        if not packet.HasField("track_event"):
            continue
        assert packet.timestamp >= newest
        assert packet.sequence_flags == 2  # SEQ_NEEDS_INCREMENTAL_STATE
        newest = packet.timestamp
        event = packet.track_event
        if event.type == TrackEvent.TYPE_SLICE_END:
            begun = stacks[event.track_uuid].pop()
            slices.append((*begun[:3], packet.timestamp - begun[2], *begun[3:]))
            continue
        if event.type == TrackEvent.TYPE_COUNTER:
            assert described[event.track_uuid].HasField("counter")
            samples.append((described[event.track_uuid].name, packet.timestamp, event.double_counter_value))
            continue
        said = tuple(
            (notes[n.name_iid], n.string_value if n.HasField("string_value") else n.int_value)
            for n in event.debug_annotations
        )
        told = (
            place(event.track_uuid),
            names[event.name_iid],
            packet.timestamp,
            categories[event.category_iids[0]],
            said,
        )
        for number in event.terminating_flow_ids:
            flows[number] += (told[:3],)
        for number in event.flow_ids:
            assert number not in flows
            flows[number] = (told[:3],)
        if event.type == TrackEvent.TYPE_INSTANT:
            instants.append(told)
        else:
            assert event.type == TrackEvent.TYPE_SLICE_BEGIN
            stacks[event.track_uuid].append(told)
    assert not any(stacks.values())
    return slices, instants, samples, flows


def in_perfetto(t, i, arrows, shift):
    """A span as a slice of `unpack` is. ``arrows``: source and target of those that are drawn, else None."""
    lane = t.lanes[t.lane[i]]
    words = [f"device {lane.device}" if lane.device.isdigit() else lane.device, lane.process]
    process = ", ".join(word for word in words if word) or "a <b>device</b>, modelled"
    said = [
        (key, int(getattr(t, key)[i])) for key in ("step", "launch", "origin") if getattr(t, key)[i] != -1
    ]
    said += [("outcome", OUTCOMES[t.outcome[i]])] if t.outcome[i] else []
    arriving = [k for k, (source, target) in enumerate(arrows) if target == i and k < len(t.edge_name)]
    said += [("edge", files.unicode_text(t.names[t.edge_name[k]])) for k in arriving]
    return (
        (process, lane.name),
        files.unicode_text(t.names[t.name[i]]),
        int(t.start_ns[i]) + shift,
        int(t.duration_ns[i]),
        CATEGORIES[t.category[i]],
        frozenset(Counter(said).items()),
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("names", [ODD, (*ODD, *HALVES)])
@pytest.mark.parametrize("first", [1_763_000_000_123_456_789, 0, -(10**15)])
def test_perfetto_holds_every_span_mark_sample_and_flow(tmp_path, seed, names, first):
    t = random_timeline(seed, 200, names=names, first=first, width=20_000, longest=2_000)
    path = tmp_path / ("t.pftrace.gz" if seed % 2 else "t.pftrace")
    notes = perfetto.export_perfetto(t, path)
    slices, instants, samples, flows = unpack(path)
    shift = max(0, -int(min(t.start_ns.min(), t.counter_ns.min())))
    pairs = np.concatenate([np.stack([t.edge_source, t.edge_target], axis=1), t.launches()]).tolist()
    # By time; at one time the longest begins first, of equals the first, and what lasts 0 ns comes last.
    order = sorted(range(len(t)), key=lambda i: (t.start_ns[i], t.duration_ns[i] == 0, -t.duration_ns[i], i))
    place = {span: number for number, span in enumerate(order)}
    arrows = [pair if place[pair[0]] < place[pair[1]] else (None, None) for pair in pairs]
    everything = Counter((*s[:5], frozenset(Counter(s[5]).items())) for s in slices)
    everything += Counter((*i[:3], 0, i[3], frozenset(Counter(i[4]).items())) for i in instants)
    assert everything == Counter(in_perfetto(t, i, arrows, shift) for i in range(len(t)))
    marks = (t.category == CATEGORIES.index("mark")) & (t.duration_ns == 0)
    assert len(instants) == marks.sum()
    assert Counter(samples) == Counter(
        (files.unicode_text(t.names[n]), at + shift, v)
        for n, at, v in zip(t.counter_name, t.counter_ns.tolist(), t.counter_value.tolist(), strict=True)
    )
    expected = Counter(
        (in_perfetto(t, s, arrows, shift)[:3], in_perfetto(t, e, arrows, shift)[:3])
        for s, e in arrows
        if s is not None
    )
    assert Counter(flows.values()) == expected
    assert f"arrows that do not lead to a later event and are left out: {arrows.count((None, None))}" in notes
    assert (files.REPLACED in notes) == (names != ODD)
    assert (f"Perfetto knows no negative times: all times are shifted by {shift} ns" in notes) == (shift > 0)


def test_perfetto_of_nothing_and_of_counters_alone(tmp_path):
    build = TimelineBuilder()
    perfetto.export_perfetto(build.build(), tmp_path / "empty.pftrace")
    assert unpack(tmp_path / "empty.pftrace") == ([], [], [], {})
    build.counter("memory", 7, 2.5)
    perfetto.export_perfetto(build.build(), tmp_path / "one.pftrace")
    assert unpack(tmp_path / "one.pftrace")[2] == [("memory", 7, 2.5)]


def test_perfetto_refuses_times_that_it_cannot_hold(tmp_path):
    build = TimelineBuilder()
    build.span("late", "main", 2**63 - 10, 9, "kernel")
    perfetto.export_perfetto(build.build(), tmp_path / "t.pftrace")
    assert unpack(tmp_path / "t.pftrace")[0][0][1:4] == ("late", 2**63 - 10, 9)
    build.span("too late", "main", 2**63 - 10, 10, "kernel")
    with pytest.raises(LabError, match=r"ends 9223372036854775808 ns after zero.*write it as Chrome JSON"):
        perfetto.export_perfetto(build.build(), tmp_path / "u.pftrace")
    assert os.listdir(tmp_path) == ["t.pftrace"]


# Tables


TEXTS = dict.fromkeys(("name", "lane", "kind", "device", "process", "category", "outcome"), str)


def read_csv(path):
    """As the documentation of the tables says."""
    frame = pd.read_csv(path, keep_default_na=False, dtype=TEXTS)
    for column in set(TEXTS) & set(frame):
        frame[column] = frame[column].str.removeprefix("'")
    return frame


def rows(t):
    """What a table of spans holds, column by column."""
    lanes = [t.lanes[i] for i in t.lane]
    return {
        "name": [files.unicode_text(t.names[i]) for i in t.name],
        "lane": [lane.name for lane in lanes],
        "kind": [lane.kind for lane in lanes],
        "device": [lane.device for lane in lanes],
        "process": [lane.process for lane in lanes],
        "category": [CATEGORIES[i] for i in t.category],
        "step": t.step.tolist(),
        "start_ns": t.start_ns.tolist(),
        "duration_ns": t.duration_ns.tolist(),
        "launch": t.launch.tolist(),
        "outcome": [OUTCOMES[i] for i in t.outcome],
        "origin": t.origin.tolist(),
    }


@pytest.mark.parametrize(
    ("export", "read", "ending"),
    [
        (tables.export_csv, read_csv, ".csv"),
        (tables.export_csv, read_csv, ".csv.gz"),
        (tables.export_parquet, pd.read_parquet, ".parquet"),
    ],
)
@pytest.mark.parametrize("kind", [{}, {"first": -(2**63)}, {"spans": 0}, {"names": (*ODD, *HALVES)}])
def test_tables_hold_what_the_timeline_holds(tmp_path, monkeypatch, export, read, ending, kind):
    monkeypatch.setattr(tables, "ROWS", 64)
    t = random_timeline(5, **kind)
    notes = export(t, tmp_path / f"step{ending}")
    spans = read(tmp_path / f"step{ending}")
    assert {column: spans[column].tolist() for column in spans} == rows(t)
    if len(t):
        assert spans["start_ns"].dtype == spans["duration_ns"].dtype == np.int64
    samples = read(tmp_path / f"step.counters{ending}")
    assert samples["name"].tolist() == [files.unicode_text(t.names[i]) for i in t.counter_name]
    assert samples["at_ns"].tolist() == t.counter_ns.tolist()
    assert samples["value"].tolist() == t.counter_value.tolist()
    told = [files.REPLACED] if "names" in kind else []
    if len(t):
        edges = read(tmp_path / f"step.edges{ending}")
        assert edges["source"].tolist() == t.edge_source.tolist()
        assert edges["target"].tolist() == t.edge_target.tolist()
        assert edges["name"].tolist() == [files.unicode_text(t.names[i]) for i in t.edge_name]
        assert edges["kind"].tolist() == [EDGE_KINDS[i] for i in t.edge_kind]
        told.append(f"edges: {len(t.edge_source)}, in {tmp_path / f'step.edges{ending}'}")
    told.append(f"counters: 20, in {tmp_path / f'step.counters{ending}'}")
    assert list(notes) == told
    assert len(os.listdir(tmp_path)) == len(told) + 1 - ("names" in kind)


def test_no_cell_of_a_csv_begins_a_formula(tmp_path):
    starts = ("=", "+", "-", "@", "\t=", "\r=", "\n=", "\uff1d", "\uff0b", "\uff0d", "\uff20", "'=", "'")
    build = TimelineBuilder()
    lane = build.lane("=lane()", device="@device", process="+process")
    for text in starts:
        build.span(f"{text}1+1", lane, 0, 1, "kernel")
    build.edge(0, 1, "=edge")
    build.counter("-counter", 0, -1.5)
    tables.export_csv(build.build(), tmp_path / "t.csv")
    for name in ("t.csv", "t.edges.csv", "t.counters.csv"):
        frame = pd.read_csv(tmp_path / name, keep_default_na=False, dtype=TEXTS)
        for column in set(TEXTS) & set(frame):
            assert not any(cell.startswith(starts[:-2]) for cell in frame[column])
    assert read_csv(tmp_path / "t.csv")["name"].tolist() == [f"{text}1+1" for text in starts]
    assert read_csv(tmp_path / "t.csv")["lane"].tolist() == ["=lane()"] * len(starts)


def test_tables_of_an_earlier_timeline_do_not_stay_beside_a_new_one(tmp_path):
    tables.export_csv(race_timeline(), tmp_path / "t.csv")
    assert len(read_csv(tmp_path / "t.edges.csv")) == 6
    build = TimelineBuilder()
    build.span("alone", "main", 0, 1, "kernel")
    assert tables.export_csv(build.build(), tmp_path / "t.csv") == (
        f"edges: 0, in {tmp_path / 't.edges.csv'}",
    )
    assert read_csv(tmp_path / "t.edges.csv").empty
    assert sorted(os.listdir(tmp_path)) == ["t.csv", "t.edges.csv"]


def test_parquet_keeps_texts_once_and_meta_as_json(tmp_path):
    from pyarrow import parquet

    t = race_timeline()
    tables.export_parquet(t, tmp_path / "t.parquet")
    schema = parquet.read_schema(tmp_path / "t.parquet")
    assert json.loads(schema.metadata[b"flashnorm_lab"]) == {"meta": t.meta}
    assert str(schema.field("name").type).startswith("dictionary<values=string, indices=int32")
    assert str(schema.field("start_ns").type) == "int64"


# Pictures


def svg_texts(path):
    root = ElementTree.parse(path).getroot()
    return ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_a_picture_says_what_it_shows(tmp_path):
    assert writing.write(race_timeline(), tmp_path / "t.svg") == ()
    texts = svg_texts(tmp_path / "t.svg")
    assert "Timeline: deferred, a made-up device" in texts
    assert "modelled · 22 spans on 4 lanes · 147.001 µs shown" in texts
    assert "µs from the first span's start" in texts
    assert {"host", "main", "matrix", "vector"} <= set(texts)
    assert {"stale: post_scale", "torn: post_scale", "stale", "torn"} <= set(texts)
    assert {"projection", "inv_rms", "edge: waits for", "launch to start"} <= set(texts)


def test_lane_names_do_not_run_into_each_other():
    build = TimelineBuilder()
    for i in range(12):
        build.span("k", f"a rather long name of a lane, number {i}, on device 0", 10 * i, 5, "kernel")
    figure = pictures.picture(build.build())
    figure.canvas.draw()
    axes = figure.axes[0]
    names = [text for text in axes.texts if text.get_text().startswith("a rather")]
    boxes = sorted((text.get_window_extent() for text in names), key=lambda box: box.y0)
    assert len(boxes) == 12
    for low, high in itertools.pairwise(boxes):
        assert low.y1 <= high.y0
    assert all(box.x0 >= 0 and box.x1 < axes.get_window_extent().x0 for box in boxes)


def test_a_window_is_drawn_alone(tmp_path):
    t = race_timeline(3)
    start = int(t.start_ns.min())
    writing.write(t, tmp_path / "t.svg", window=(start + 107_000, start + 112_000), title="A part")
    texts = svg_texts(tmp_path / "t.svg")
    assert "A part" in texts
    assert "modelled · 4 spans on 3 lanes · 5 µs shown · from 107 µs after the first span" in texts
    assert "µs from the start of this view" in texts
    assert "main" not in texts  # nothing is on it then
    with pytest.raises(LabError, match="it must end after it starts"):
        writing.write(t, tmp_path / "u.svg", window=(5, 5))
    assert os.listdir(tmp_path) == ["t.svg"]


def test_a_picture_of_very_many_spans_merges_them_and_says_so(tmp_path):
    count = 100_000
    rng = np.random.default_rng(0)
    nothing = np.empty(0, dtype=np.int64)
    t = Timeline(
        names=("a", "b"),
        lanes=(Lane("one"), Lane("two")),
        name=rng.integers(0, 2, count),
        lane=rng.integers(0, 2, count),
        start_ns=np.arange(count) * 100,
        duration_ns=rng.integers(1, 100, count),
        launch=np.full(count, -1),
        category=np.full(count, CATEGORIES.index("kernel")),
        step=np.full(count, -1),
        outcome=np.zeros(count, dtype=np.int64),
        edge_source=nothing,
        edge_target=nothing,
        edge_name=nothing,
    )
    for kind in ("svg", "png"):
        writing.write(t, tmp_path / f"t.{kind}")
        assert (tmp_path / f"t.{kind}").stat().st_size < 10**6
    about = next(text for text in svg_texts(tmp_path / "t.svg") if "spans on" in text)
    assert "100,000 spans on 2 lanes" in about
    assert "100,000 too short for this scale are merged" in about


def test_of_very_many_rows_the_important_ones_are_drawn_and_the_others_counted():
    build = TimelineBuilder()
    for depth in range(70):
        build.span(f"f{depth}", "host", depth, 1000 - 2 * depth, "op")
    for i in range(30):
        build.span("k", f"stream {i}", 10 * i, 100, "kernel")
    detailed = pictures.picture(build.build())
    about = next(text.get_text() for text in detailed.texts if "spans on" in text.get_text())
    assert "100 spans on" not in about
    assert "80 spans on 31 lanes" in about
    assert "not shown, nested or on lanes with little in them: 20" in about


def test_counters_are_drawn_below_the_lanes(tmp_path):
    build = TimelineBuilder()
    build.span("k", "main", 0, 1000, "kernel")
    for i in range(6):
        for at in range(0, 1000, 100):
            build.counter(f"counter {i}", at, at * i)
    notes = writing.write(build.build(), tmp_path / "t.svg")
    assert notes == ("counters not shown: 2",)
    assert {f"counter {i}" for i in range(4)} <= set(svg_texts(tmp_path / "t.svg"))


def test_pictures_of_nothing(tmp_path):
    for kind in ("svg", "png"):
        writing.write(TimelineBuilder().build(), tmp_path / f"t.{kind}")
    assert "no spans here" in svg_texts(tmp_path / "t.svg")


@pytest.mark.parametrize("seed", range(4))
def test_any_timeline_can_be_drawn(tmp_path, seed):
    t = random_timeline(seed, names=(*ODD, *HALVES))
    for kind in ("svg", "png"):
        writing.write(t, tmp_path / f"t.{kind}")
    assert (tmp_path / "t.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert any(f"{len(t)} spans on" in text for text in svg_texts(tmp_path / "t.svg"))


# Names are text, in every output


@pytest.mark.parametrize("name", MARKUP)
def test_names_are_text_and_never_markup(tmp_path, name):
    build = TimelineBuilder()
    lane = build.lane(name, device=name, process=name)
    span = build.span(name, lane, 0, 1000, "kernel", outcome="stale")
    build.span(name, lane, 2000, 1000, "kernel")
    build.edge(span, span + 1, name)
    build.counter(name, 5, 1.5)
    t = build.build(device=name, provenance="recorded")
    paths = {kind: tmp_path / f"t{endings[0]}" for kind, endings in writing.KINDS.items()}
    for path in paths.values():
        writing.write(t, path)

    events = json.loads(paths["chrome"].read_text())["traceEvents"]
    assert [e["name"] for e in events if e["ph"] == "X" and e["cat"] == "kernel"] == [name, name]
    assert unpack(paths["perfetto"])[0][0][1] == name
    assert read_csv(paths["csv"])["name"].tolist() == [name, name]
    assert pd.read_parquet(paths["parquet"])["lane"].tolist() == [name, name]

    drawn = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    texts = svg_texts(paths["svg"])
    assert drawn in texts  # the lane, or the counter
    assert f"Timeline: {drawn}" in texts
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(paths["svg"]).getroot().iter()}
    about = {"metadata", "RDF", "Work", "type", "format", "creator", "Agent", "title"}
    assert tags <= about | {"svg", "defs", "style", "g", "path", "text", "use", "clipPath", "rect", "pattern"}
    page = paths["html"].read_text()
    if "<" in name:
        assert name not in page
    assert "\x1b" not in paths["svg"].read_text()


# Which kind


def test_an_ending_that_is_not_known_is_refused_in_one_line(tmp_path):
    t = race_timeline(1)
    for name, told in (
        ("t.txt", r"the ending '\.txt' is not known; there are \.json \(chrome\), \.pftrace \(perfetto\)"),
        ("t", "a name with no ending is not known"),
        ("t.svg.gz", r"the ending '\.svg\.gz' is not known"),
    ):
        with pytest.raises(LabError, match=told) as caught:
            writing.write(t, tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(LabError, match=r"kind 'doc' is not known; there are chrome, perfetto, csv"):
        writing.write(t, tmp_path / "t.json", "doc")
    assert os.listdir(tmp_path) == []
    writing.write(t, tmp_path / "t", "chrome")
    assert json.loads((tmp_path / "t").read_text())["otherData"]["version"] == 2


@pytest.mark.parametrize("name", ["T.JSON", "t.json.gz", "t.perfetto-trace", "t.CSV", "t.parquet"])
def test_a_window_of_any_kind(tmp_path, name):
    t = race_timeline(3)
    start = int(t.start_ns.min())
    writing.write(t, tmp_path / name, window=(start + 100_000, start + 199_999))
    counts = {
        "chrome": lambda path: len(Timeline.open(path)),
        "perfetto": lambda path: len(unpack(path)[0]),
        "csv": lambda path: len(read_csv(path)),
        "parquet": lambda path: len(pd.read_parquet(path)),
    }
    assert counts[writing.kind_of(tmp_path / name)](tmp_path / name) == 11


def test_the_page_and_the_readme_of_kinds_name_every_ending():
    documented = set(re.findall(r'"step(\.[\w.]+)"', writing.__doc__))
    assert documented == {".json.gz", ".pftrace", ".parquet", ".csv", ".html", ".svg", ".png"}
    assert documented <= {ending for endings in writing.KINDS.values() for ending in endings}


@pytest.mark.parametrize("values", [(1e308,), (1e308, -1e308), (math.nan, 1.0), (math.inf, 2.0)])
def test_a_counter_beyond_what_an_axis_holds_is_drawn_all_the_same(tmp_path, values):
    build = TimelineBuilder()
    build.lane("host", "host")
    build.span("call", "host", 0, 100, "launch")
    for i, value in enumerate(values):
        build.counter("memory", 20 * i, value)
    writing.write(build.build(), tmp_path / "t.svg")
    assert "memory" in svg_texts(tmp_path / "t.svg")


def test_a_window_with_nothing_in_it_is_refused_by_every_writer(tmp_path):
    t = race_timeline(1)
    for kind, endings in writing.KINDS.items():
        path = tmp_path / f"t{endings[0]}"
        with pytest.raises(LabError, match="no span touches it; this timeline goes from"):
            writing.write(t, path, kind, window=(0, 1))
        assert not path.exists()


def test_the_ending_of_a_link_is_that_of_its_own_name(tmp_path):
    (tmp_path / "latest.csv").symlink_to(tmp_path / "data")
    writing.write(race_timeline(1).with_edges([]), tmp_path / "latest.csv")
    assert (tmp_path / "latest.csv").is_symlink()
    assert (tmp_path / "data").read_text("utf-8").startswith('"name"')
