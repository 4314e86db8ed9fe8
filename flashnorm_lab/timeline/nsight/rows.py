"""From the tables of an Nsight Systems export to columns of spans in the making, table by table."""

from __future__ import annotations

import re

import numpy as np

from ..kineto.words import call_category
from ..nsys import ACTIVITY, MISSING, SYNCS, Export, copy_name, fill_name
from .tables import APART, CODE, DEVICE, HOST, NONE, Rows, Tables, global_id, known

_VERSION = re.compile(r"_v\d{4,5}$")

NVTX_TYPES = {
    33: "NvtxCategory",
    34: "NvtxMark",
    39: "NvtxThread",
    59: "NvtxPushPopRange",
    60: "NvtxStartEndRange",
    64: "NvtxtCategory",
    65: "NvtxtMark",
    70: "NvtxtPushPopRange",
    71: "NvtxtStartEndRange",
    72: "NvtxtMetaThread",
    73: "NvtxtMetaProcess",
    74: "NvtxtMetaFileDisplay",
    75: "NvtxDomainCreate",
    76: "NvtxDomainDestroy",
    97: "NvtxNameCudaDevice",
    98: "NvtxNameCudaContext",
    99: "NvtxNameCudaStream",
}
"""Of ENUM_NSYS_EVENT_TYPE, which a file may bring along: what rows of the NVTX table are. Ranges that are
pushed and popped, or started and ended; marks; the rest gives names to things."""
_PUSHED, _STARTED = ("NvtxPushPopRange", "NvtxtPushPopRange"), ("NvtxStartEndRange", "NvtxtStartEndRange")
_MARKS = ("NvtxMark", "NvtxtMark")
_NAMING = tuple(word for word in NVTX_TYPES.values() if word not in (*_PUSHED, *_STARTED, *_MARKS))


class Reader(Tables):
    """Reads the tables that hold what happened; `read` hands back the rows."""

    def __init__(self, export: Export) -> None:
        super().__init__(export)
        self.domains: dict[tuple[int, int], str] = {}

    def read(self) -> Rows:
        """The rows of every table that is known here; ``read_tables`` says which those are."""
        for table in self.export.find(f"{ACTIVITY}RUNTIME", f"{ACTIVITY}DRIVER"):
            self._calls(table)
        for table in self.export.find(f"{ACTIVITY}KERNEL", f"{ACTIVITY}CONCURRENT_KERNEL"):
            self._work(table, "kernel")
        for table in self.export.find(f"{ACTIVITY}MEMCPY"):
            self._work(table, "copy")
        for table in self.export.find(f"{ACTIVITY}MEMSET"):
            self._work(table, "fill")
        for table in self.export.find(f"{ACTIVITY}GRAPH_TRACE"):
            self._work(table, "graph")
        for table in self.export.find(f"{ACTIVITY}SYNCHRONIZATION"):
            self._syncs(table)
        for table in self.export.find(f"{ACTIVITY}OVERHEAD", "PROFILER_OVERHEAD"):
            self._overhead(table)
        for table in self.export.columns:
            if re.match(r"NVTX_(?!PAYLOAD)", table, re.IGNORECASE):
                self._nvtx(table)
        for table in self.export.find(f"{ACTIVITY}CUDA_EVENT"):
            self._records(table)
        return self.found

    # Tables

    def _calls(self, table: str) -> None:
        got = self._get(table, "start", "end", "globalTid", "correlationId", "returnValue")
        if got is None:
            return
        start, end, thread, correlation, returned = got
        name = self._named(table, ("name",), ("nameId",), "call", _unversioned)
        kinds = self._by_name(name, call_category)
        process, tid = global_id(thread)
        failed = (returned != MISSING) & (returned != 0)
        self._add(
            table, start, end, name=name, category=kinds, side=HOST, process=process, thread=tid,
            correlation=known(correlation, 1), call=True, failed=failed,
        )  # fmt: skip

    def _work(self, table: str, category: str) -> None:
        common = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
        got = self._get(table, *common)
        if got is None:
            return
        start, end, device, context, stream, correlation, pid = got
        if category == "kernel":
            name = self._named(table, (), ("demangledName", "shortName", "mangledName"), "kernel")
        elif category == "copy":
            name = self._worded(table, copy_name, "copyKind", "srcKind", "dstKind")
        elif category == "fill":
            name = self._worded(table, fill_name, "memKind")
        else:
            name = self._worded(table, _graph_name, "graphId", "graphExecId")
        self._add(
            table, start, end, name=name, category=CODE[category], side=DEVICE, process=global_id(pid)[0],
            device=known(device), context=known(context), stream=known(stream),
            correlation=known(correlation, 1),
        )  # fmt: skip

    def _syncs(self, table: str) -> None:
        common = (
            "start",
            "end",
            "deviceId",
            "contextId",
            "streamId",
            "correlationId",
            "globalPid",
            "syncType",
        )
        got = self._get(table, *common, "eventId", "eventSyncId")
        if got is None:
            return
        start, end, device, context, stream, correlation, pid, what, event, ticket = got
        name = self._coded(what, lambda number: SYNCS.get(number, "Synchronization"))
        process = global_id(pid)[0]
        self._add(
            table, start, end, name=name, category=CODE["other"], side=DEVICE, process=process,
            device=known(device), context=known(context), stream=known(stream),
            correlation=known(correlation, 1), event=known(event), ticket=known(ticket, 1), sync=True,
        )  # fmt: skip

    def _overhead(self, table: str) -> None:
        got = self._get(table, "start", "end", "globalTid", "overheadType")
        if got is None:
            return
        start, end, thread, kind = got
        labels = dict(self.export.rows("ENUM_CUPTI_OVERHEAD_TYPE", "id", "label"))
        said = self._coded(kind, lambda number: str(labels.get(number) or "profiler overhead"))
        name = self._named(table, (), ("nameId",), "")
        process, tid = global_id(thread)
        self._add(
            table, start, end, name=np.where(name >= 0, name, said), category=CODE["other"], side=HOST,
            process=process, thread=tid,
        )  # fmt: skip

    def _records(self, table: str) -> None:
        common = ("deviceId", "contextId", "streamId", "correlationId", "globalPid", "eventId", "eventSyncId")
        device, context, stream, correlation, pid, event, ticket = self.export.integers(table, *common)
        self._numbered(table, len(device))
        self.found.recorded += len(device)
        self.found.records.append(
            {
                "process": global_id(pid)[0],
                "device": known(device),
                "context": known(context),
                "stream": known(stream),
                "correlation": known(correlation, 1),
                "event": known(event),
                "ticket": known(ticket, 1),
            }
        )

    def _nvtx(self, table: str) -> None:
        inline = tuple(c for c in ("text", "message", "name") if self.export.has(table, c))
        if not inline and not self.export.has(table, "textId"):
            return  # a table of schemas or the like: counted with all the others
        got = self._get(table, "start", "end", "eventType", "globalTid", "domainId")
        if got is None:
            return
        start, end, number, thread, domain = got
        words = {n: str(word) for n, word in self.export.rows("ENUM_NSYS_EVENT_TYPE", "id", "name")}
        kinds, kind = np.unique(number, return_inverse=True)
        told = [words.get(k) or NVTX_TYPES.get(k) or _unworded(table, k) for k in kinds.tolist()]
        name = self._named(table, inline, ("textId",), "")
        process, tid = global_id(thread)
        self._name_things(name, kind, told, process, thread, domain)
        bare = name
        name = self._in_domain(name, process, domain)
        for i, word in enumerate(told):
            here = kind == i
            if word in (*_PUSHED, *_STARTED, *_MARKS):
                continue
            if word in _NAMING:
                self.found.rows["NVTX names of threads, domains, categories and the like"] += int(here.sum())
            else:
                self.found.left_out[f"rows of {table} of type {kinds[i]} ({word})"] += int(here.sum())
        is_word = np.array(
            [[word in group for group in (_PUSHED, _STARTED, _MARKS)] for word in told], dtype=bool
        )
        pushed, started, mark = is_word.reshape(-1, 3)[kind].T
        unnamed = (name < 0) & (pushed | started | mark)
        name = np.where(unnamed, self.found.names.code("unnamed"), name) if unnamed.any() else name
        missing = ~mark & ((end == MISSING) | ((end == 0) & (start > 0)))
        self._add(
            table, start, np.where(mark | missing, start, end), name=name,
            side=np.where(started, APART, HOST), category=np.where(mark, CODE["mark"], CODE["range"]),
            process=process, thread=tid,
            bare=np.where(mark, NONE, bare), open=missing, among=pushed | started | mark,
        )  # fmt: skip

    def _name_things(
        self, name: np.ndarray, kind: np.ndarray, told: list[str], process: np.ndarray,
        thread: np.ndarray, domain: np.ndarray,
    ) -> None:  # fmt: skip
        """Domains' and threads' names, from the rows that give them."""
        texts = list(self.found.names.codes)
        for i, word in enumerate(told):
            if word not in ("NvtxDomainCreate", "NvtxThread", "NvtxtMetaThread"):
                continue
            for row in np.flatnonzero((kind == i) & (name >= 0)).tolist():
                if word == "NvtxDomainCreate":
                    self.domains[int(process[row]), int(domain[row])] = texts[name[row]]
                elif thread[row] != MISSING:
                    self.found.threads[int(thread[row])] = texts[name[row]]

    def _in_domain(self, name: np.ndarray, process: np.ndarray, domain: np.ndarray) -> np.ndarray:
        """The names with their domain before them, as Nsight's own reports write it: "MPI:MPI_Barrier"."""
        if not self.domains:
            return name
        name, texts = name.copy(), list(self.found.names.codes)
        for (owner, number), said in self.domains.items():
            here = np.flatnonzero((process == owner) & (domain == number) & (name >= 0))
            plain, which = np.unique(name[here], return_inverse=True)
            coded = [self.found.names.code(f"{said}:{texts[code]}") for code in plain.tolist()]
            name[here] = np.array(coded, dtype=np.int64)[which]
        return name

    # Parts


def _unversioned(name: str) -> str:
    """A runtime call's name without the version of CUDA that it has had this form since: ``_v7000``."""
    return _VERSION.sub("", name)


def _graph_name(graph: int | None, executable: int | None) -> str:
    number = graph if graph is not None else executable
    return "graph" if number is None else f"graph {number}"


def _unworded(table: str, number: int) -> str:
    """What the rows of a table without types are, by its name."""
    if number != MISSING:
        return "unknown"
    if "MARK" in table.upper():
        return "NvtxMark"
    return "NvtxStartEndRange" if "START" in table.upper() else "NvtxPushPopRange"
