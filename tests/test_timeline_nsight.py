"""Nsight Systems exports: the real ones where they are at hand, each figure derived twice, and made ones."""

import json
import sqlite3
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from flashnorm_lab import timeline
from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline.nsight import from_nsight, row_at
from flashnorm_lab.timeline.nsys import Export
from flashnorm_lab.timeline.reading import details

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases" / "nsys"
real = pytest.mark.skipif(not CASES.is_dir(), reason="the real exports of ../shared/cases/nsys are not here")
NAMES = (
    "nsys_2021_driver_api",
    "nsys_2022_2_duplicate_correlations",
    "nsys_2023_2_no_kernel_table",
    "nsys_2026_1_four_streams",
    "nsys_2026_2_two_processes",
)
ACTIVITY = "CUPTI_ACTIVITY_KIND_"
WORK = {"KERNEL": "kernel", "MEMCPY": "copy", "MEMSET": "fill", "GRAPH_TRACE": "graph"}


def case(name):
    return CASES / f"{name}.sqlite"


def rows(path, table):
    """Every row of a table as a dict; none where the table is missing."""
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    database.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in database.execute(f"SELECT * FROM {table}")]
    except sqlite3.OperationalError:
        return []
    finally:
        database.close()


def slow_work(path):
    """(kind, row) of all that ran, from the tables."""
    return [(kind, row) for table, kind in WORK.items() for row in rows(path, ACTIVITY + table)]


def slow_union(intervals):
    covered, last = 0, None
    for start, end in sorted(intervals):
        if last is None or start > last:
            covered, last = covered + end - start, end
        elif end > last:
            covered, last = covered + end - last, end
    return covered


def union(t, spans):
    return slow_union(zip(t.start_ns[spans].tolist(), t.end_ns[spans].tolist(), strict=True))


# Real exports


@real
@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_told_of(name):
    t = from_nsight(case(name))
    told = len(t) + sum(t.meta.get("rows", {}).values()) + sum(t.meta.get("left_out", {}).values())
    assert told == t.meta["events"]
    tables = [f"{ACTIVITY}{kind}" for kind in ("RUNTIME", "SYNCHRONIZATION", "OVERHEAD", "CUDA_EVENT", *WORK)]
    assert t.meta["events"] == sum(len(rows(case(name), table)) for table in (*tables, "NVTX_EVENTS"))


@real
@pytest.mark.parametrize("name", NAMES)
def test_work_is_what_the_tables_say(name):
    t = from_nsight(case(name))
    slow = slow_work(case(name))
    spans = t.operations()
    assert Counter(timeline.CATEGORIES[c] for c in t.category[spans]) == Counter(kind for kind, _ in slow)
    found = zip(t.start_ns[spans].tolist(), t.end_ns[spans].tolist(), strict=True)
    assert Counter(found) == Counter((row["start"], row["end"]) for _, row in slow)
    streams = defaultdict(list)
    for _, row in slow:
        streams[row["globalPid"], row["deviceId"], row["contextId"], row["streamId"]].append(
            (row["start"], row["end"])
        )
    busy = [union(t, spans[t.lane[spans] == lane]) for lane in np.unique(t.lane[spans])]
    assert sorted(busy) == sorted(slow_union(intervals) for intervals in streams.values())


@real
@pytest.mark.parametrize("name", NAMES)
def test_launches_are_counted_within_processes(name):
    t = from_nsight(case(name))
    calls = {(r["globalTid"] >> 24, r["correlationId"]) for r in rows(case(name), f"{ACTIVITY}RUNTIME")}
    slow = Counter(
        kind for kind, row in slow_work(case(name)) if (row["globalPid"] >> 24, row["correlationId"]) in calls
    )
    linked = t.launches()[:, 1]
    assert Counter(timeline.CATEGORIES[c] for c in t.category[linked]) == slow


@real
@pytest.mark.parametrize("name", NAMES)
def test_a_call_launches_work_of_its_own_process_and_number(name):
    t = from_nsight(case(name))
    pairs = t.launches()
    for call, work in pairs[:: max(1, len(pairs) // 20)].tolist():
        made, ran = details(t, call), details(t, work)
        assert made["correlationId"] == ran["correlationId"]
        assert made["globalTid"] >> 24 == ran["globalPid"] >> 24


@real
@pytest.mark.parametrize("name", NAMES)
def test_nvtx_text_is_inline_or_by_number(name):
    t = from_nsight(case(name))
    texts = {row["id"]: row["value"] for row in rows(case(name), "StringIds")}
    events = rows(case(name), "NVTX_EVENTS")
    domains = {row["domainId"]: row["text"] for row in events if row["eventType"] == 75}
    slow = Counter()
    for row in events:
        if row["eventType"] == 59:
            text = row["text"] or texts[row["textId"]]
            domain = domains.get(row["domainId"])
            slow[f"{domain}:{text}" if domain else text, row["start"], row["end"]] += 1
    spans = t.spans(category="range")
    found = zip(
        (t.names[n] for n in t.name[spans]), t.start_ns[spans].tolist(), t.end_ns[spans].tolist(), strict=True
    )
    assert Counter(found) == slow


@real
def test_the_two_processes():
    t = from_nsight(case("nsys_2026_2_two_processes"))
    kernels = t.spans(category="kernel")
    assert len(kernels) == 3587
    linked = t.launches()[:, 1]
    assert np.isin(kernels, linked).sum() == 3577
    assert {t.lanes[lane].process for lane in t.lane[kernels]} == {"148", "149"}
    assert {t.lanes[lane].device for lane in t.lane[kernels]} == {"0", "1"}
    assert t.meta["edges_unknown"] == 180  # the table of records is empty
    assert set(t.meta["streams"].values()) == {"non-blocking"}


@real
def test_the_two_processes_share_correlation_numbers():
    path = case("nsys_2026_2_two_processes")
    numbers = defaultdict(set)
    for row in rows(path, f"{ACTIVITY}RUNTIME"):
        numbers[row["correlationId"]].add(row["globalTid"] >> 24)
    t = from_nsight(path)
    host = t.spans(category="launch")
    assert any(len(processes) > 1 for processes in numbers.values())
    assert len(np.unique(t.launch[host])) == len(host)


@real
def test_2021():
    t = from_nsight(case("nsys_2021_driver_api"))
    assert len(t.spans(category="kernel")) == 2254
    assert len(t.spans(name="cuLaunchKernel", category="launch")) == 2254
    assert t.meta["device"] == "Tesla V100-PCIE-32GB"
    assert t.meta["streams"] == {"stream 7": "legacy"}  # all flags of the others are 0: not known
    assert "versions" not in t.meta
    assert [lane.name for lane in t.lanes] == ["host", "stream 7", "stream 15"]


@real
def test_2022_counts_a_call_once_that_is_recorded_twice():
    path = case("nsys_2022_2_duplicate_correlations")
    slow = Counter(row["correlationId"] for row in rows(path, f"{ACTIVITY}RUNTIME"))
    twice = sum(count - 1 for count in slow.values())
    t = from_nsight(path)
    assert t.meta["versions"] == {"nsight_systems": "2022.2.1.31", "schema": "2.9.1"}
    assert any(f"recorded twice, with one correlation number: {twice}" in note for note in t.notes)
    assert len(t.spans(category="launch")) == len(t.spans(category="kernel")) == 5
    host = np.flatnonzero(~t.on_device() & t.is_category("launch", "copy", "call"))
    assert len(host) == len(slow) == 57
    assert t.meta["rows"] == {"NVTX names of threads, domains, categories and the like": 2}
    assert any(name.startswith("MPI:") for name in t.names)


@real
def test_2023_opens_with_what_it_has_and_says_what_lacks():
    t = from_nsight(case("nsys_2023_2_no_kernel_table"))
    assert not len(t.operations())
    assert any(
        "192 launches, but no kernel" in n and "no table CUPTI_ACTIVITY_KIND_KERNEL" in n for n in t.notes
    )
    device = np.flatnonzero(t.on_device())
    assert Counter(t.names[n] for n in t.name[device]) == {"Context Sync": 48, "Event Sync": 33}
    kinds = Counter(timeline.CATEGORIES[c] for c in t.category[device])
    assert kinds == {"synchronize": 80, "other": 1}  # a query waits for nothing
    assert any("'Event Sync' that belong to cudaDeviceSynchronize: 48" in note for note in t.notes)


@real
def test_2026_with_four_streams():
    t = from_nsight(case("nsys_2026_1_four_streams"))
    assert [len(t.spans(category=c)) for c in ("kernel", "mark")] == [4, 0]
    copies = np.intersect1d(t.operations(), t.spans(category="copy"))
    assert len(copies) == 12
    assert len(np.unique(t.lane[t.operations()])) == 4
    listed = rows(case("nsys_2026_1_four_streams"), "TARGET_INFO_CUDA_STREAM")
    flags = {row["streamId"]: row["flag"] for row in listed}
    words = {1: "blocking", 2: "non-blocking", 3: "legacy"}
    assert t.meta["streams"] == {f"stream {stream}": words[flag] for stream, flag in flags.items()}
    assert set(flags.values()) == {1, 2, 3}
    assert len(t.spans(lane="host", category="other")) == 3  # the profiler's overhead
    assert t.meta["versions"]["nsight_systems"] == "2026.1.1.204"


@real
def test_the_real_file_is_left_alone():
    path = case("nsys_2026_2_two_processes")
    before = sorted((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in path.parent.iterdir())
    from_nsight(path)
    assert sorted((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in path.parent.iterdir()) == before


# Made exports

PID, TID = 500, 501
PROCESS, THREAD = PID << 24, (PID << 24) + TID
COMMON = "start, end, deviceId, contextId, streamId, correlationId, globalPid"
TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT",
    f"{ACTIVITY}RUNTIME": "start, end, globalTid, correlationId, nameId, returnValue",
    f"{ACTIVITY}KERNEL": f"{COMMON}, demangledName, shortName",
    f"{ACTIVITY}MEMCPY": f"{COMMON}, copyKind, srcKind, dstKind",
    f"{ACTIVITY}SYNCHRONIZATION": f"{COMMON}, syncType, eventId",
    f"{ACTIVITY}CUDA_EVENT": "deviceId, contextId, streamId, correlationId, globalPid, eventId",
    "NVTX_EVENTS": "start, end, eventType, rangeId, text, globalTid, textId, domainId",
}


class Made:
    """A small export; time goes on by 10 ns a call, and work runs as soon as it is issued."""

    def __init__(self, path, *, without=(), renamed=None, tickets=False):
        self.path, self.renamed = path, renamed or {}
        self.database = sqlite3.connect(path)
        self.now, self.correlation, self.texts = 1000, 0, {}
        for table, columns in TABLES.items():
            if tickets and table in (f"{ACTIVITY}SYNCHRONIZATION", f"{ACTIVITY}CUDA_EVENT"):
                columns += ", eventSyncId"
            if table not in without:
                self.database.execute(f"CREATE TABLE {self.renamed.get(table, table)} ({columns})")

    def text(self, text):
        if text not in self.texts:
            self.texts[text] = len(self.texts) + 1
            self.row("StringIds", self.texts[text], text)
        return self.texts[text]

    def row(self, table, *values):
        marks = ", ".join("?" * len(values))
        self.database.execute(f"INSERT INTO {self.renamed.get(table, table)} VALUES ({marks})", values)

    def table(self, name, columns, *rows):
        self.database.execute(f"CREATE TABLE {name} ({columns})")
        for values in rows:
            self.row(name, *values)

    def call(self, name, *, thread=THREAD, returned=0, start=None, end=None, correlation=None):
        self.now += 10
        self.correlation += 1
        number = self.correlation if correlation is None else correlation
        start = self.now if start is None else start
        end = start + 5 if end is None else end
        self.row(f"{ACTIVITY}RUNTIME", start, end, thread, number, self.text(name), returned)
        return number

    def kernel(
        self, name, stream=7, *, call="cudaLaunchKernel_v7000", process=PROCESS, device=0, context=1, **more
    ):
        number = self.call(call, thread=process + TID, **more) if call else self.correlation
        start, end = self.now + 6, self.now + 9
        where = (start, end, device, context, stream, number, process)
        self.row(f"{ACTIVITY}KERNEL", *where, self.text(name), self.text("short"))
        return number

    def record(self, stream, event, *ticket, call=True):
        number = self.call("cudaEventRecord_v3020") if call else 999
        self.row(f"{ACTIVITY}CUDA_EVENT", 0, 1, stream, number, PROCESS, event, *ticket)
        return number

    def wait(self, stream, event, *ticket, kind=2):
        number = self.call("cudaStreamWaitEvent_v3020")
        where = (self.now, self.now + 1, 0, 1, stream, number, PROCESS, kind, event)
        self.row(f"{ACTIVITY}SYNCHRONIZATION", *where, *ticket)
        return number

    def save(self):
        self.database.commit()
        self.database.close()
        return self.path

    def open(self):
        return from_nsight(self.save())


@pytest.fixture
def made(tmp_path):
    return Made(tmp_path / "report.sqlite")


def nvtx(made, start, end, kind=59, text="range", thread=THREAD, number=None, domain=0):
    made.row("NVTX_EVENTS", start, end, kind, None, text, thread, number, domain)


def test_the_smallest_export(made):
    made.kernel("gemm")
    t = made.open()
    assert [lane.name for lane in t.lanes] == ["host", "stream 7"]
    assert [t.names[n] for n in t.name] == ["cudaLaunchKernel", "gemm"]
    assert t.launches().tolist() == [[0, 1]]
    assert t.launch.tolist() == [1, 1]
    assert (t.start_ns.tolist(), t.duration_ns.tolist()) == ([1010, 1016], [5, 3])
    assert t.meta["provenance"] == "recorded"
    assert t.meta["file"]["bytes"] == made.path.stat().st_size
    assert "notes" not in t.meta


@pytest.mark.parametrize("table", [t for t in TABLES if t != f"{ACTIVITY}RUNTIME"])
def test_a_missing_table_is_an_empty_one(tmp_path, table):
    made = Made(tmp_path / "report.sqlite", without=("StringIds", table) if table != "StringIds" else ())
    if table == "StringIds":
        made.database.execute("DROP TABLE StringIds")
    made.row(f"{ACTIVITY}RUNTIME", 10, 20, THREAD, 1, 5, 0)
    t = made.open()
    assert [t.names[n] for n in t.name] == ["call 5"]


def test_columns_that_are_not_there(tmp_path):
    made = Made(tmp_path / "report.sqlite", without=(f"{ACTIVITY}KERNEL", f"{ACTIVITY}RUNTIME"))
    made.table(f"{ACTIVITY}KERNEL", "start, end, shortName", (5, 9, made.text("gemm")))
    t = made.open()
    assert [lane.name for lane in t.lanes] == ["no stream"]
    assert t.launch.tolist() == [-1]
    assert any("without a correlation number: 1" in note for note in t.notes)
    assert any("no call of the runtime or driver" in note for note in t.notes)


def test_tables_with_a_version_behind_their_names(tmp_path):
    renamed = {name: f"{name}_V3" for name in TABLES if name != "StringIds"}
    made = Made(tmp_path / "report.sqlite", renamed=renamed)
    made.kernel("gemm")
    nvtx(made, 5, 2000, text="inference")
    t = made.open()
    assert [t.names[n] for n in t.name] == ["cudaLaunchKernel", "gemm", "inference"]


@pytest.mark.parametrize(
    ("table", "columns", "category"),
    [
        ("NVTX_RANGES", "start, end, text, globalTid", "range"),
        ("NVTX_PUSHPOP_RANGES", "start, end, message, globalTid", "range"),
        ("NVTX_MARKS", "start, end, name, globalTid", "mark"),
    ],
)
def test_renamed_tables_of_nvtx(tmp_path, table, columns, category):
    made = Made(tmp_path / "report.sqlite", without=("NVTX_EVENTS",))
    made.kernel("gemm")
    made.table(table, columns, (900, 990, "here", THREAD))
    t = made.open()
    (span,) = t.spans(name="here")
    assert timeline.CATEGORIES[t.category[span]] == category
    assert t.duration_ns[span] == (90 if category == "range" else 0)


@pytest.mark.parametrize("kind", [59, 60, 70, 71])
def test_ranges(made, kind):
    made.kernel("gemm")
    nvtx(made, 100, 2000, kind)
    t = made.open()
    (span,) = t.spans(category="range")
    assert t.duration_ns[span] == 1900
    assert t.lanes[t.lane[span]].name == ("started ranges" if kind in (60, 71) else "host")


def test_text_inline_comes_before_text_by_number(made):
    number = made.text("by number")
    for text, by in (("inline", number), ("", number), (None, number), (None, None), (None, 999)):
        nvtx(made, 100, 200, text=text, number=by)
    t = made.open()
    assert [t.names[n] for n in t.name] == ["inline", "by number", "by number", "unnamed", "unnamed"]


@pytest.mark.parametrize("kind", [34, 65])
def test_marks_last_no_time(made, kind):
    made.kernel("gemm")
    nvtx(made, 1500, None, kind, text="here")
    t = made.open()
    (span,) = t.spans(category="mark")
    assert (t.start_ns[span], t.duration_ns[span]) == (1500, 0)
    assert not t.notes


def test_types_are_read_from_the_files_own_table(made):
    made.table(
        "ENUM_NSYS_EVENT_TYPE", "id, name, label", (7, "NvtxPushPopRange", "x"), (59, "SomethingNew", "x")
    )
    nvtx(made, 100, 200, 7, text="range")
    nvtx(made, 100, 200, 59, text="what")
    t = made.open()
    assert [t.names[n] for n in t.name] == ["range"]
    assert t.meta["left_out"] == {"rows of NVTX_EVENTS of type 59 (SomethingNew)": 1}


def test_names_are_no_ranges(made):
    made.kernel("gemm")
    made.call("cudaFree", thread=PROCESS + 502)
    nvtx(made, 5, None, 39, text="rank 0")
    nvtx(made, 5, None, 75, text="lab", domain=3)
    nvtx(made, 5, None, 33, text="category", domain=3)
    nvtx(made, 5, None, 76, text="lab", domain=3)
    nvtx(made, 1000, 2000, 59, text="step 4", domain=3)
    t = made.open()
    assert [lane.name for lane in t.lanes] == ["rank 0", "host 502", "stream 7"]
    assert [t.names[n] for n in t.name[t.spans(category="range")]] == ["lab:step 4"]
    assert t.meta["rows"] == {"NVTX names of threads, domains, categories and the like": 4}
    assert t.steps == (4,)


def test_a_range_without_an_end_is_drawn_to_the_end_of_its_thread(made):
    made.kernel("gemm")
    made.call("cudaFree", thread=PROCESS + 502, start=5000)
    nvtx(made, 1000, None, text="open")
    nvtx(made, 1000, 0, text="open too")
    t = made.open()
    assert t.end_ns[t.spans(category="range")].tolist() == [1015, 1015]
    assert any("without an end: 2 (the first is 'open')" in note for note in t.notes)


def test_steps_of_calls_and_of_their_work(made):
    for step in range(2):
        nvtx(made, made.now + 5, made.now + 18, text=f"ProfilerStep#{step + 3}")
        made.kernel("gemm")
        made.now += 20
    made.kernel("after")
    t = made.open()
    assert t.step[t.spans(category="launch")].tolist() == [3, 4, -1]
    assert t.step[t.spans(category="kernel")].tolist() == [3, 4, -1]
    assert t.step[t.spans(category="range")].tolist() == [3, 4]


def test_steps_of_one_process_are_not_those_of_another(made):
    made.kernel("gemm")
    made.kernel("gemm", process=600 << 24)
    nvtx(made, 900, 5000, text="step 1")
    t = made.open()
    assert t.step[t.spans(category="kernel")].tolist() == [1, -1]


def test_correlations_count_within_a_process(made):
    for process in (PROCESS, 600 << 24):
        made.correlation = 0
        made.kernel(f"gemm of {process >> 24}", process=process)
    t = made.open()
    for call, work in t.launches().tolist():
        assert t.lanes[t.lane[call]].process == t.lanes[t.lane[work]].process
    assert len(t.launches()) == 2
    assert {lane.process for lane in t.lanes} == {"500", "600"}
    assert len({lane.name for lane in t.lanes}) == 4


def test_huge_correlation_numbers_of_several_processes(made):
    for process in (PROCESS, 600 << 24):
        made.correlation = 2**62
        made.kernel("gemm", process=process)
    t = made.open()
    assert len(t.launches()) == 2
    assert len(np.unique(t.launch)) == 2


@pytest.mark.parametrize("number", [0, 0xFFFFFFFF])
def test_numbers_that_stand_for_an_unknown_one(made, number):
    made.kernel("gemm", correlation=number)
    t = made.open()
    assert t.launch.tolist() == [-1, -1]
    assert any("without a correlation number: 1" in note for note in t.notes)


def test_work_without_a_process_belongs_to_the_one_that_calls(made):
    made.call("cudaLaunchKernel_v7000")
    made.row(f"{ACTIVITY}KERNEL", 5000, 5010, 0, 1, 7, 1, None, made.text("gemm"), None)
    t = made.open()
    assert len(t.launches()) == 1
    assert t.lanes[1].process == "500"


def test_work_without_a_process_where_several_call(made):
    for process in (PROCESS, 600 << 24):
        made.correlation = 0
        made.call("cudaLaunchKernel_v7000", thread=process + 1)
    made.row(f"{ACTIVITY}KERNEL", 5000, 5010, 0, 1, 7, 1, None, made.text("gemm"), None)
    t = made.open()
    assert not len(t.launches())
    assert any("without a process, where several make calls: 1" in note for note in t.notes)


def test_processes_and_threads_have_names(made):
    made.table("PROCESSES", "globalPid, pid, name", (PROCESS, PID, "/usr/bin/python3"))
    made.table("ThreadNames", "nameId, priority, globalTid", (made.text("loader"), None, PROCESS + 502))
    made.kernel("gemm")
    made.call("cudaFree", thread=PROCESS + 502)
    t = made.open()
    assert [(lane.name, lane.process) for lane in t.lanes] == [
        ("host 501", "python3 500"),
        ("loader", "python3 500"),
        ("stream 7", "python3 500"),
    ]


def test_streams_of_several_devices_and_contexts(made):
    made.kernel("a", 7, device=0, context=1)
    made.kernel("b", 7, device=1, context=2)
    made.kernel("c", 7, device=1, context=3)
    t = made.open()
    assert [lane.name for lane in t.lanes[1:]] == [
        "device 0 stream 7",
        "device 1 context 2 stream 7",
        "device 1 context 3 stream 7",
    ]
    assert [lane.device for lane in t.lanes[1:]] == ["0", "1", "1"]


def test_the_context_says_which_device_a_synchronization_is_on(made):
    made.kernel("a", 7, device=0, context=1)
    made.kernel("b", 15, device=1, context=2)
    number = made.call("cudaStreamSynchronize_v3020")
    made.row(f"{ACTIVITY}SYNCHRONIZATION", 1, 2, 0, 2, 15, number, PROCESS, 3, None)
    t = made.open()
    (span,) = np.flatnonzero(t.on_device() & t.is_category("synchronize"))
    assert t.lane[span] == t.lane[t.spans(name="b")[0]]
    assert len(t.lanes) == 3


def test_a_process_numbers_its_devices_itself(made):
    made.table("TARGET_INFO_CUDA_DEVICE", "gpuId, cudaId, pid", (0, 0, PID), (3, 0, 600))
    made.kernel("a")
    made.kernel("b", process=600 << 24)
    t = made.open()
    assert [lane.name for lane in t.lanes if lane.kind == "device"] == [
        "device 0 stream 7",
        "device 3 stream 7",
    ]


def test_several_machines(made):
    made.kernel("a")
    made.kernel("b", process=PROCESS + (1 << 48))
    t = made.open()
    lanes = [lane for lane in t.lanes if lane.kind == "device"]
    assert len({lane.device for lane in lanes}) == len({lane.process for lane in lanes}) == 2
    assert len(t.launches()) == 2


def test_graphs_by_their_kernels(made):
    made.database.execute(f"ALTER TABLE {ACTIVITY}KERNEL ADD COLUMN graphNodeId")
    number = made.call("cudaGraphLaunch_v10000")
    for i, name in enumerate(("gemm", "norm")):
        where = (2000 + i, 2001 + i, 0, 1, 7, number, PROCESS, made.text(name), None)
        made.row(f"{ACTIVITY}KERNEL", *where, 40 + i)
    t = made.open()
    assert [t.names[t.name[call]] for call, _ in t.launches().tolist()] == ["cudaGraphLaunch"] * 2
    assert len(t.spans(category="graph")) == 1


def test_graphs_as_a_whole(made):
    number = made.call("cudaGraphLaunch_v10000")
    made.table(
        f"{ACTIVITY}GRAPH_TRACE",
        "start, end, deviceId, contextId, streamId, correlationId, globalPid, graphId, graphExecId",
        (2000, 2900, 0, 1, 7, number, PROCESS, 12, 13),
        (3000, 3900, 0, 1, 7, number, PROCESS, None, 13),
    )
    t = made.open()
    (call, work), _ = t.launches().tolist()
    assert t.names[t.name[call]] == "cudaGraphLaunch"
    assert [t.names[n] for n in t.name[t.operations()]] == ["graph 12", "graph 13"]
    assert t.duration_ns[work] == 900
    assert t.is_category("graph")[[call, work]].all()
    assert not t.notes


def test_overhead_stands_on_the_thread(made):
    made.kernel("gemm")
    made.table("ENUM_CUPTI_OVERHEAD_TYPE", "id, name, label", (3, "FLUSH", "Buffer flush"))
    made.table(
        f"{ACTIVITY}OVERHEAD",
        "start, end, globalTid, correlationId, nameId, overheadType",
        (10, 20, THREAD, 1, made.text("flush"), 3),
        (30, 40, THREAD, 1, None, 3),
        (50, 60, THREAD, 1, None, 9),
    )
    t = made.open()
    spans = t.spans(lane="host", category="other")
    assert [t.names[n] for n in t.name[spans]] == ["flush", "Buffer flush", "profiler overhead"]
    assert t.launch[spans].tolist() == [-1, -1, -1]


def test_other_tables_are_counted(made):
    made.kernel("gemm")
    made.table("OSRT_API", "start, end", (1, 2), (3, 4))
    made.table("CUDNN_EVENTS", "start, end")
    made.table("TARGET_INFO_SYSTEM_ENV", "name, value", ("a", "b"))
    made.table(f"{ACTIVITY}MEMSET", "end, streamId", (5, 7))
    t = made.open()
    assert t.meta["left_out"] == {"rows of OSRT_API": 2, f"rows of {ACTIVITY}MEMSET": 1}
    assert t.meta["events"] == len(t) + 3


def test_rows_without_times(made):
    made.kernel("gemm")
    name = made.text("odd")
    for start, end in ((None, 9), (100, None), (100, 90)):
        made.row(f"{ACTIVITY}KERNEL", start, end, 0, 1, 7, 1, PROCESS, name, name)
    t = made.open()
    assert t.duration_ns[t.spans(name="odd")].tolist() == [0, 0]
    assert t.meta["left_out"] == {f"rows of {ACTIVITY}KERNEL without a start": 1}
    assert any("without an end (the first is row 2)" in note for note in t.notes)
    assert any("end before they start (the first is row 3)" in note for note in t.notes)


@pytest.mark.parametrize(("value", "told"), [("soon", "'soon'"), (1.5, "1.5"), (b"\x01", "b'\\x01'")])
def test_what_is_no_whole_number(made, value, told):
    made.kernel("gemm")
    made.row(f"{ACTIVITY}KERNEL", value, 9, 0, 1, 7, 1, PROCESS, 1, 1)
    with pytest.raises(LabError) as error:
        made.open()
    assert f"report.sqlite, table {ACTIVITY}KERNEL, row 1: start is {told}" in str(error.value)
    assert "\n" not in str(error.value)


def test_names_of_all_kinds(made):
    made.database.execute(f"ALTER TABLE {ACTIVITY}RUNTIME ADD COLUMN name")
    made.row(f"{ACTIVITY}RUNTIME", 1, 2, THREAD, 1, made.text("cuLaunchKernel_v2"), 0, None)
    made.row(f"{ACTIVITY}RUNTIME", 3, 4, THREAD, 2, None, 0, "cudaFree_v3020")
    made.row(f"{ACTIVITY}RUNTIME", 5, 6, THREAD, 3, 99, 0, None)
    made.row(f"{ACTIVITY}RUNTIME", 5, 6, THREAD, 3, None, 0, None)
    for demangled, short in ((made.text("void gemm()"), 1), (99, made.text("gemm")), (98, 99), (None, None)):
        made.row(f"{ACTIVITY}KERNEL", 1, 2, 0, 1, 7, 1, PROCESS, demangled, short)
    made.row(f"{ACTIVITY}MEMCPY", 1, 2, 0, 1, 7, 1, PROCESS, 1, 1, 2)
    made.row(f"{ACTIVITY}MEMCPY", 1, 2, 0, 1, 7, 1, PROCESS, None, None, None)
    t = made.open()
    assert [t.names[n] for n in t.name] == [
        "cuLaunchKernel_v2",
        "cudaFree",
        "call 99",
        "call",
        "void gemm()",
        "gemm",
        "kernel 98",
        "kernel",
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy of unknown kind (? -> ?)",
    ]


@pytest.mark.parametrize("table", ["EXPORT_META_DATA", "META_DATA_EXPORT"])
def test_the_version_and_the_start(made, table):
    made.kernel("gemm")
    made.table(table, "name, value", ("EXPORT_PRODUCT_VERSION", "2025.3"), ("EXPORT_SCHEMA_VERSION", "3.9"))
    made.table("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", (1_700_000_000_123_456_789,))
    made.table("TARGET_INFO_GPU", "id, name", (0, "A made-up GPU"), (1, "A made-up GPU"))
    t = made.open()
    assert t.meta["versions"] == {"nsight_systems": "2025.3", "schema": "3.9"}
    assert t.meta["session_start_ns"] == 1_700_000_000_123_456_789
    assert t.meta["device"] == "A made-up GPU"


def test_the_profilers_own_warnings_are_repeated(made):
    made.kernel("gemm")
    made.table(
        "ENUM_DIAGNOSTIC_SEVERITY_LEVEL", "id, name, label", (1, "INFO", "Info"), (2, "WARN", "Warning")
    )
    rows_ = [(2, "events\nwere lost")] * 2 + [(2, f"warning {i}") for i in range(4)] + [(1, "all is well")]
    made.table("DIAGNOSTIC_EVENT", "severity, text", *rows_)
    t = made.open()
    assert t.notes[0] == "Nsight Systems warned (2 times): events were lost"
    assert t.notes[-1] == "Nsight Systems gave 2 more warnings (table DIAGNOSTIC_EVENT)"


def test_the_kinds_of_streams(made):
    made.kernel("gemm", 20)
    made.table(
        "TARGET_INFO_CUDA_STREAM", "processId, contextId, streamId, flag",
        (PID, 1, 20, 1), (PID, 1, 24, 2), (PID, 1, 28, 0), (PID, 1, 32, 1), (PID, 1, 32, 2), (77, 1, 36, 2),
    )  # fmt: skip
    made.table("TARGET_INFO_CUDA_NULL_STREAM", "processId, contextId, streamId", (PID, 1, 7))
    t = made.open()
    assert t.meta["streams"] == {"stream 7": "legacy", "stream 20": "blocking", "stream 24": "non-blocking"}


@pytest.mark.parametrize("told", [True, False])
def test_exports_of_several_ranks_count_from_the_first_recording(tmp_path, told):
    paths = []
    for rank in range(2):
        made = Made(tmp_path / f"rank{rank}.sqlite")
        made.kernel("gemm")
        if told:
            made.table(
                "TARGET_INFO_SESSION_START_TIME", "utcEpochNs", (1_700_000_000_000_000_000 + 300 * rank,)
            )
        paths.append(made.save())
    t = timeline.open(*paths)
    assert t.start_ns[t.operations()].tolist() == ([1016, 1316] if told else [1016, 1016])
    notes = [note for note in t.notes if "counts from the start of its recording" in note]
    assert len(notes) == (0 if told else 2)
    assert details(t, int(t.operations()[1]))["start"] == 1016


# Waits


def edges(t):
    return [
        (t.names[t.name[s]], t.names[t.name[d]], t.names[n])
        for s, d, n in zip(t.edge_source, t.edge_target, t.edge_name, strict=True)
    ]


def test_a_wait_is_for_the_latest_record_of_its_event(made):
    made.kernel("early", 20)
    made.record(20, 9)
    made.kernel("gemm", 20)
    made.record(20, 9)
    made.kernel("late", 20)
    made.wait(24, 9)
    made.kernel("norm", 24)
    t = made.open()
    assert edges(t) == [("gemm", "norm", "event 9")]
    assert "edges_unknown" not in t.meta
    assert t.meta["rows"] == {"event records, of which the calls are spans": 2}


def test_the_wait_counts_as_one_whatever_its_type_says(made):
    made.kernel("gemm", 20)
    made.record(20, 9)
    made.wait(24, 9, kind=1)
    made.kernel("norm", 24)
    t = made.open()
    assert edges(t) == [("gemm", "norm", "event 9")]
    assert [t.names[n] for n in t.name[t.spans(category="wait")]] == [
        "cudaStreamWaitEvent",
        "Stream Wait Event",
    ]


def test_a_ticket_tells_the_record(tmp_path):
    made = Made(tmp_path / "report.sqlite", tickets=True)
    made.kernel("gemm", 20)
    made.record(20, 9, 41)
    made.kernel("other", 28)
    made.record(28, 9, 42)
    made.wait(24, 9, 41)
    made.kernel("norm", 24)
    t = made.open()
    assert edges(t) == [("gemm", "norm", "event 9")]


def unnamed_record_between(made):
    made.call("cudaEventRecord_v3020")


def record_without_a_call(made):
    made.record(28, 9, call=False)


def capture_begins(made):
    made.call("cudaStreamBeginCapture_v10000")


def record_in_another_context(made):
    made.row(f"{ACTIVITY}CUDA_EVENT", 0, 2, 20, made.call("cudaEventRecord_v3020"), PROCESS, 9)


@pytest.mark.parametrize(
    "between", [unnamed_record_between, record_without_a_call, capture_begins, record_in_another_context]
)
def test_what_makes_a_wait_unsure_makes_no_edge(made, between):
    made.kernel("gemm", 20)
    made.record(20, 9)
    between(made)
    made.wait(24, 9)
    made.kernel("norm", 24)
    t = made.open()
    assert edges(t) == []
    assert t.meta["edges_unknown"] == 1


def test_waits_of_which_too_little_is_told(made):
    made.kernel("gemm", 20)
    made.call("cudaStreamWaitEvent_v3020")  # no entry
    made.wait(24, 5)  # recorded nowhere
    made.wait(0xFFFFFFFF, 5)  # on no stream
    made.row(f"{ACTIVITY}SYNCHRONIZATION", 1, 2, 0, 1, 24, 777, PROCESS, 2, 5)  # no call
    made.call("cudaStreamWaitEvent_v3020", returned=1)  # failed: waits for nothing
    made.kernel("norm", 24)
    t = made.open()
    assert edges(t) == []
    assert t.meta["edges_unknown"] == 4


def test_a_record_of_which_the_call_is_gone_is_left_out(made):
    made.kernel("gemm", 20)
    made.record(20, 9, call=False)
    t = made.open()
    assert t.meta["left_out"] == {"event records of which the call is not in the file, or failed": 1}


@pytest.mark.parametrize(
    ("call", "kind", "word", "category"),
    [
        ("cudaDeviceSynchronize_v3020", 1, "Context Sync", "synchronize"),
        ("cuCtxSynchronize", 2, "Context Sync", "synchronize"),
        ("cudaStreamSynchronize_v3020", 4, "Stream Sync", "synchronize"),
        ("cudaEventSynchronize_v3020", 2, "Event Sync", "synchronize"),
        ("cudaEventQuery_v3020", 2, "Event Sync", "other"),
        ("cudaStreamWaitEvent_v3020", 3, "Stream Wait Event", "wait"),
    ],
)
def test_the_call_says_what_a_synchronization_is(made, call, kind, word, category):
    number = made.call(call)
    for correlation in (number, 777):  # no call has the second number, and the type is wrong elsewhere
        made.row(f"{ACTIVITY}SYNCHRONIZATION", 1, 2, 0, 1, 7, correlation, PROCESS, kind, 0xFFFFFFFF)
    t = made.open()
    own, lone = np.flatnonzero(t.on_device()).tolist()
    assert (t.names[t.name[own]], timeline.CATEGORIES[t.category[own]]) == (word, category)
    assert (t.names[t.name[lone]], timeline.CATEGORIES[t.category[lone]]) == ("Synchronization", "other")
    assert any("the call's name decides" in note for note in t.notes)


def test_types_that_are_right_are_trusted(made):
    number = made.call("cudaStreamSynchronize_v3020")
    for correlation in (number, 777):
        made.row(f"{ACTIVITY}SYNCHRONIZATION", 1, 2, 0, 1, 7, correlation, PROCESS, 3, 0xFFFFFFFF)
    made.row(f"{ACTIVITY}SYNCHRONIZATION", 1, 2, 0, 1, 7, made.call("cudaMemcpy_v3020"), PROCESS, 0, None)
    t = made.open()
    device = np.flatnonzero(t.on_device())
    assert [t.names[n] for n in t.name[device]] == ["Stream Sync", "Stream Sync", "Synchronization"]
    assert t.is_category("synchronize")[device].tolist() == [True, True, False]
    assert not t.notes


# Back to the file


def test_details_of_a_span(made):
    made.kernel("gemm")
    nvtx(made, 1, 2, text="range")
    t = made.open()
    assert details(t, 1)["table"] == f"{ACTIVITY}KERNEL"
    assert details(t, 1)["streamId"] == 7
    assert details(t, 2) | {"text": "range", "eventType": 59} == details(t, 2)
    with pytest.raises(LabError, match="there is no span 3"):
        details(t, 3)


def test_details_are_found_whatever_indices_there_are(made):
    for i in range(5):
        made.kernel(f"kernel {i}", 20 - i)
    made.database.execute(
        f"CREATE INDEX fast ON {ACTIVITY}KERNEL (streamId, {COMMON.replace('streamId, ', '')})"
    )
    t = made.open()
    for span in t.spans(category="kernel").tolist():
        assert details(t, span)["start"] == t.start_ns[span]


def test_details_of_a_file_that_changed(made):
    made.kernel("gemm")
    t = made.open()
    database = sqlite3.connect(made.path)
    database.execute("CREATE TABLE more (x)")
    database.commit()
    database.close()
    with pytest.raises(LabError, match="was changed since it was read"):
        details(t, 0)


def test_details_of_other_timelines():
    builder = timeline.TimelineBuilder()
    builder.span("a", "stream", 0, 1, "kernel")
    with pytest.raises(LabError, match="stands for no event of a trace file"):
        details(builder.build(), 0)


def test_a_row_that_is_not_there(made):
    made.kernel("gemm")
    t = made.open()
    assert row_at(t.meta["file"], 1)["table"] == f"{ACTIVITY}KERNEL"
    with pytest.raises(LabError, match="there is no row 2"):
        row_at(t.meta["file"], 2)


def test_the_lossless_export_holds_it(made, tmp_path):
    made.kernel("gemm", 20)
    made.record(20, 9)
    made.wait(24, 9)
    made.kernel("norm", 24)
    nvtx(made, 5, 9, text="step 2")
    t = made.open()
    t.export_chrome(tmp_path / "out.json")
    assert timeline.open(tmp_path / "out.json").equals(t)


# Files that are none


def one_line(path, match):
    with pytest.raises(LabError, match=match) as error:
        from_nsight(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS pointer.*git lfs pull"),
        (b'{"traceEvents": []}', "no SQLite database, or an encrypted one"),
        (bytes(range(256)) * 20, "no SQLite database, or an encrypted one"),
        (b"SQLite format 3\0 and no more", "damaged or cut off"),
        (b"SQLite format 3\0" + b"\0" * 200, "damaged or cut off"),
    ],
)
def test_what_is_no_database(tmp_path, data, match):
    path = tmp_path / "t.sqlite"
    path.write_bytes(data)
    one_line(path, match)


def test_no_file_and_a_folder(tmp_path):
    one_line(tmp_path / "nowhere.sqlite", "there is no such file")
    one_line(tmp_path, "cannot be read")


@pytest.mark.parametrize("suffix", [".nsys-rep", ".qdrep"])
def test_a_report_gets_the_command_that_exports_it(tmp_path, suffix):
    path = tmp_path / f"my report{suffix}"
    path.write_bytes(b"anything")
    told = f"nsys export --type sqlite --output '{tmp_path}/my report.sqlite' '{path}'"
    with pytest.raises(LabError) as error:
        from_nsight(path)
    assert told in str(error.value)


def test_other_databases(tmp_path):
    for name, table, match in (
        ("other", "users", r"no export of Nsight Systems \(tables: users\)"),
        ("nvprof", "StringTable", "a profile of nvprof"),
    ):
        database = sqlite3.connect(tmp_path / f"{name}.sqlite")
        database.execute(f"CREATE TABLE {table} (x)")
        database.close()
        one_line(tmp_path / f"{name}.sqlite", match)
    database = sqlite3.connect(tmp_path / "bare.sqlite")
    database.execute("PRAGMA user_version = 1")
    database.commit()
    database.close()
    one_line(tmp_path / "bare.sqlite", "without any table")


def test_an_export_of_nothing(made):
    made.table("OSRT_API", "start, end", (1, 2))
    one_line(made.save(), r"nothing to show \(tables with rows: OSRT_API\).*--trace=cuda,nvtx")


@pytest.mark.parametrize("part", [0.02, 0.3, 0.7, 0.95])
def test_an_export_that_was_cut_off(made, part):
    for i in range(400):
        made.kernel(f"kernel number {i}")
    data = made.save().read_bytes()
    made.path.write_bytes(data[: int(len(data) * part)])
    one_line(made.path, "damaged or cut off")


def test_an_export_with_damaged_pages(made):
    for i in range(400):
        made.kernel(f"kernel number {i}")
    data = bytearray(made.save().read_bytes())
    for page in range(1, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    made.path.write_bytes(data)
    one_line(made.path, "damaged or cut off")


def test_a_log_that_is_not_merged_yet(made):
    made.kernel("gemm")
    made.database.commit()
    made.database.execute("PRAGMA journal_mode = WAL")
    made.kernel("norm")
    made.database.commit()
    one_line(made.path, r"write-ahead log report\.sqlite-wal is not merged.*PRAGMA wal_checkpoint")
    made.database.close()
    assert len(from_nsight(made.path).operations()) == 2


def test_meta_is_plain(made):
    made.kernel("gemm")
    assert json.loads(json.dumps(made.open().meta))["provenance"] == "recorded"


def test_a_name_that_is_no_text(made):
    made.database.execute("INSERT INTO StringIds VALUES (50, CAST(? AS TEXT))", (b"\xff\xfe gemm",))
    made.row(f"{ACTIVITY}KERNEL", 1, 2, 0, 1, 7, 1, PROCESS, 50, None)
    assert made.open().names == ("\ufffd\ufffd gemm",)


def test_the_reader_closes_what_it_opened(made):
    made.kernel("gemm")
    with Export(made.save()) as export:
        assert export.count("StringIds") == 3
    with pytest.raises(sqlite3.ProgrammingError):
        export._database.execute("SELECT 1")
