"""Threads and streams of an Nsight Systems export: which there are, what they are called, who is on which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from ..nsys import STREAM_KINDS, Export
from ..table import Lane
from .tables import APART, DEVICE, HOST

Key = tuple[int, ...]
Place = tuple[int, int, int, int]
"""Process, device, context and stream, -1 for what is not known."""


def keys_of(columns: Mapping[str, np.ndarray], here: np.ndarray, *names: str) -> tuple[list[Key], np.ndarray]:
    """The distinct values of these columns in the rows ``here``, and which of them each of those rows has."""
    code = np.zeros(len(here), dtype=np.int64)
    for name in names:
        values, which = np.unique(columns[name][here], return_inverse=True)
        code = np.unique(code * len(values) + which, return_inverse=True)[1]
    first = np.full(int(code.max()) + 1 if len(code) else 0, 0, dtype=np.int64)
    first[code[::-1]] = here[::-1]
    return list(zip(*(columns[name][first].tolist() for name in names), strict=True)), code


@dataclass
class Lanes:
    """lane int64 [rows]; lanes; ``places``: each stream's lane; ``devices``: (process, context) to device."""

    lane: np.ndarray
    lanes: list[Lane]
    places: dict[Place, int]
    devices: dict[tuple[int, int], int]

    def stream_kinds(self, export: Export) -> dict[str, str]:
        """Lane's name to the stream's kind; with one context, of streams that did nothing too.

        The tables have plain process numbers, which say which process is meant where no two processes (on two
        machines) share one. Two kinds for one stream say nothing.
        """
        owners: dict[int, set[int]] = {}
        for process, *_ in self.places:
            owners.setdefault(process & 0xFFFFFF, set()).add(process)
        listed = export.rows("TARGET_INFO_CUDA_STREAM", "processId", "contextId", "streamId", "flag")
        null = [
            *export.rows("TARGET_INFO_CUDA_NULL_STREAM", "processId", "contextId", "streamId"),
            *export.rows("TARGET_INFO_CUDA_CONTEXT_INFO", "processId", "contextId", "nullStreamId"),
        ]
        said: dict[tuple[int, int, int], set[str]] = {}
        for pid, context, stream, flag in [*listed, *((*row, 3) for row in null)]:
            own = owners.get(pid, set())
            known = flag in STREAM_KINDS and isinstance(context, int) and isinstance(stream, int)
            if known and len(own) == 1:
                said.setdefault((next(iter(own)), context, stream), set()).add(STREAM_KINDS[flag])
        names = {(process, context, stream): i for (process, _, context, stream), i in self.places.items()}
        one_context = len({key[:2] for key in names}) == 1
        kinds = {}
        for key, told in sorted(said.items()):
            if len(told) == 1 and (key in names or one_context):
                name = self.lanes[names[key]].name if key in names else f"stream {key[2]}"
                kinds[name] = next(iter(told))
        return kinds


def lanes_of(columns: Mapping[str, np.ndarray], export: Export, threads: Mapping[int, str]) -> Lanes:
    """The lanes of these rows. ``threads``: names by serialized global identifier."""
    devices = _correct_devices(columns)
    maker = _Maker(columns, export, threads)
    lane = np.full(len(columns["start"]), -1, dtype=np.int64)
    keys: list[Key] = []
    lanes: list[Lane] = []
    for side, names, make in (
        (HOST, ("process", "thread"), maker.threads),
        (APART, ("process",), maker.apart),
        (DEVICE, ("process", "device", "context", "stream"), maker.streams),
    ):
        here = np.flatnonzero(columns["side"] == side)
        new, which = keys_of(columns, here, *names)
        made = make(new, which, here) if new else []
        order = sorted(range(len(made)), key=lambda i: made[i][0])
        rank = np.empty(len(made), dtype=np.int64)
        rank[order] = np.arange(len(lanes), len(lanes) + len(made))
        lanes += [made[i][1] for i in order]
        keys += [new[i] for i in order]
        lane[here] = rank[which] if new else lane[here]
    places = {(*key,): i for i, key in enumerate(keys) if len(key) == 4}
    return Lanes(lane, _told_apart(lanes, keys), places, devices)


def _correct_devices(columns: Mapping[str, np.ndarray]) -> dict[tuple[int, int], int]:
    """Synchronizations name the wrong device here and there; their context says which it is."""
    work = np.flatnonzero((columns["side"] == DEVICE) & ~columns["sync"] & (columns["context"] >= 0))
    keys, _ = keys_of(columns, work, "process", "context", "device")
    devices = {(process, context): device for process, context, device in keys}
    syncs = np.flatnonzero(columns["sync"])
    if len(syncs):
        keys, which = keys_of(columns, syncs, "process", "context", "device")
        right = [devices.get((process, context), device) for process, context, device in keys]
        columns["device"][syncs] = np.array(right, dtype=np.int64)[which]
    return devices


class _Maker:
    """Makes lanes of keys: what they are sorted by, and the lane itself."""

    def __init__(self, columns: Mapping[str, np.ndarray], export: Export, threads: Mapping[int, str]) -> None:
        self.c, self.export = columns, export
        processes = np.unique(columns["process"][columns["process"] >= 0])
        self.several_machines = len(np.unique(processes >> 24)) > 1
        texts = export.texts()
        named = {
            thread: texts.get(name, "")
            for thread, name in export.rows("ThreadNames", "globalTid", "nameId")
            if isinstance(thread, int)
        }
        self.names = {(t >> 24, t & 0xFFFFFF): text for t, text in (named | dict(threads)).items()}
        self.programs = {
            pid: PurePath(str(name)).name for pid, name in export.rows("PROCESSES", "pid", "name") if name
        }
        told: dict[tuple[int, int], set[int]] = {}
        for gpu, device, pid in export.rows("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid"):
            told.setdefault((pid, device), set()).add(gpu)
        # A process numbers its devices itself; this table tells which they are.
        self.gpus = {key: next(iter(gpus)) for key, gpus in told.items() if len(gpus) == 1}

    def process(self, process: int) -> str:
        """A process in words: its program's name and its number."""
        if process < 0:
            return ""
        pid = process & 0xFFFFFF
        words = (f"machine {process >> 24}" * self.several_machines, self.programs.get(pid, ""), str(pid))
        return " ".join(word for word in words if word)

    def threads(self, keys: list[Key], which: np.ndarray, here: np.ndarray) -> list[tuple[Key, Lane]]:
        start, calls = self.c["start"][here], self.c["call"][here]
        late = np.iinfo(np.int64).max
        first, first_call = np.full(len(keys), late), np.full(len(keys), late)
        np.minimum.at(first, which, start)
        np.minimum.at(first_call, which[calls], start[calls])
        calling = np.zeros(len(keys), dtype=bool)
        calling[which[calls]] = True
        made = []
        for i, (process, thread) in enumerate(keys):
            if len(keys) == 1 or (calling[i] and calling.sum() == 1):
                name = "host"
            elif thread < 0:
                name = "no thread"
            else:
                name = self.names.get((process, thread)) or f"host {thread}"
            lane = Lane(name, "host", "", self.process(process))
            made.append(((int(not calling[i]), int(first_call[i]), int(first[i])), lane))
        return made

    def apart(self, keys: list[Key], which: np.ndarray, here: np.ndarray) -> list[tuple[Key, Lane]]:
        return [(key, Lane("started ranges", "host", "", self.process(key[0]))) for key in keys]

    def streams(self, keys: list[Key], which: np.ndarray, here: np.ndarray) -> list[tuple[Key, Lane]]:
        numbers = [self._gpu(process, device) for process, device, *_ in keys]
        machines = [process >> 24 if self.several_machines else 0 for process, *_ in keys]
        several = len(set(zip(machines, numbers, strict=True))) > 1
        contexts = Counter((process, device, stream) for process, device, _, stream in keys)
        made = []
        for (process, device, context, stream), number, machine in zip(keys, numbers, machines, strict=True):
            told = f"machine {machine} " * (self.several_machines and process >= 0)
            words = [f"{told}device {number}"] * (several and number >= 0)
            words += [f"context {context}"] * (contexts[process, device, stream] > 1 and context >= 0)
            words.append(f"stream {stream}" if stream >= 0 else "no stream")
            gpu = f"{told}device {number}" if told else str(number)
            lane = Lane(" ".join(words), "device", gpu if number >= 0 else "", self.process(process))
            made.append(((machine, number, process, context, int(stream < 0), stream), lane))
        return made

    def _gpu(self, process: int, device: int) -> int:
        number = self.gpus.get((process & 0xFFFFFF, device)) if process >= 0 else None
        return device if number is None else number


def _told_apart(lanes: list[Lane], keys: list[Key]) -> list[Lane]:
    """The lanes, with as much added to equal names as tells them apart: thread, process, or a number."""
    for add in (
        lambda key: key[1] if len(key) == 2 else -1,
        lambda key: key[0] & 0xFFFFFF if key[0] >= 0 else -1,
    ):
        counts = Counter(lane.name for lane in lanes)
        for i, (lane, key) in enumerate(zip(lanes, keys, strict=True)):
            more = add(key)
            if counts[lane.name] > 1 and more >= 0 and str(more) not in lane.name.split():
                lanes[i] = _renamed(lane, f"{lane.name} · {more}")
    taken: set[str] = set()
    for i, lane in enumerate(lanes):
        name, number = lane.name, 2
        while name in taken:
            name, number = f"{lane.name} ({number})", number + 1
        taken.add(name)
        lanes[i] = _renamed(lane, name)
    return lanes


def _renamed(lane: Lane, name: str) -> Lane:
    return Lane(name, lane.kind, lane.device, lane.process)
