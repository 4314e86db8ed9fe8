"""From a trace file to a table: flashnorm_lab beside traceinsight (HolisticTraceAnalysis) and plain json.

    .venv/bin/python tools/compare_loaders.py [FILE] [--events N] [--repeat N]

FILE is a Kineto trace with an object around its events, plain or gzip; without one, a synthetic trace of
``--events`` events is made (a million if not said). Each loader runs in a fresh process of its own, in turns;
of several runs the quickest counts. Reported are the seconds from the path to the loader's own table (passed,
and spent by the CPU, which tells more where others use the machine too), how far memory rose at most over
what the imports take, what it holds afterwards in bytes an event, and how many of the file's times (``ts``
and ``dur``) are still right to the nanosecond in it. The right ones come from Python's json with decimals, in
one more process. Memory is told on Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import gzip
import importlib.metadata
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
LOADERS = ("flashnorm_lab", "traceinsight", "json.loads")
NOT_THERE = int(np.iinfo(np.int64).min)


# In a process of its own


def load_ours(path: str) -> tuple[Callable[[], Any], Callable[[Any], tuple[np.ndarray, ...]]]:
    sys.path.insert(0, str(ROOT))
    from flashnorm_lab import timeline

    def times(t: Any) -> tuple[np.ndarray, ...]:
        kept = t.origin >= 0
        return t.origin[kept], t.start_ns[kept], t.duration_ns[kept]

    return lambda: timeline.open(path), times


def load_peer(path: str) -> tuple[Callable[[], Any], Callable[[Any], tuple[np.ndarray, ...]]]:
    from hta.common.trace_parser import parse_trace_dataframe
    from hta.configs.config import logger
    from hta.configs.parser_config import ParserConfig

    logging.disable(logging.WARNING)
    logger.setLevel(logging.ERROR)

    def times(parsed: Any) -> tuple[np.ndarray, ...]:
        meta, table, _ = parsed
        base = int(meta.get("baseTimeNanoseconds", 0))
        ts = np.array([round(Decimal(v) * 1000) for v in table["ts"].tolist()], dtype=np.int64)
        dur = np.array([round(Decimal(v) * 1000) for v in table["dur"].tolist()], dtype=np.int64)
        return table["index"].to_numpy(dtype=np.int64), ts + base, dur

    return lambda: parse_trace_dataframe(path, ParserConfig.get_default_cfg()), times


def load_plain(
    path: str, parse_float: Any = float
) -> tuple[Callable[[], Any], Callable[[Any], tuple[np.ndarray, ...]]]:
    def read() -> Any:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
            return json.loads(file.read(), parse_float=parse_float)

    def times(trace: Any) -> tuple[np.ndarray, ...]:
        events = trace["traceEvents"]
        base = int(trace.get("baseTimeNanoseconds", 0))
        ts = [nanoseconds(event.get("ts"), base) for event in events]
        dur = [nanoseconds(event.get("dur"), 0) for event in events]
        return np.arange(len(events)), np.array(ts, dtype=np.int64), np.array(dur, dtype=np.int64)

    return read, times


def nanoseconds(value: Any, base: int) -> int:
    return NOT_THERE if value is None else round(Decimal(value) * 1000) + base


def in_memory() -> tuple[int, int]:
    """Bytes that this process holds now, and at most so far (0, 0 where that is not to be had)."""
    with contextlib.suppress(OSError):
        told = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return tuple(int(told[key].split()[0]) * 1024 for key in ("VmRSS", "VmHWM"))  # type: ignore[return-value]
    return 0, 0


def give_back() -> None:
    """Have the allocator return what is free, so that what is held can be told."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def child(loader: str, path: str, out: str) -> None:
    prepare = {"flashnorm_lab": load_ours, "traceinsight": load_peer, "json.loads": load_plain}[loader]
    load, times = prepare(path)
    give_back()
    before, _ = in_memory()
    start, busy = time.perf_counter(), time.process_time()
    result = load()
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    _, peak = in_memory()
    give_back()
    rest, _ = in_memory()
    np.savez(out, *times(result))
    print(json.dumps({"seconds": seconds, "busy": busy, "peak": peak - before, "rest": rest - before}))


def reference(path: str, out: str) -> None:
    load, times = load_plain(path, Decimal)
    np.savez(out, *times(load()))


# The comparison


def measure(loader: str, path: str, folder: Path) -> dict[str, Any]:
    """One run of one loader, or of the reference, in a fresh process."""
    out = folder / f"{loader}.npz"
    command = [sys.executable, __file__, "--child", loader, path, str(out)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"{loader} did not read {path}: {run.stderr.strip().splitlines()[-1]}")
    with np.load(out) as arrays:
        found = {"times": [arrays[name] for name in arrays.files]}
    return found | (json.loads(run.stdout.splitlines()[-1]) if loader != "reference" else {})


def right(found: list[np.ndarray], true: list[np.ndarray]) -> tuple[int, int]:
    """How many of the times that a loader kept are right to the nanosecond, and how many it kept."""
    places = found[0]
    kept = equal = 0
    for mine, exact in zip(found[1:], true[1:], strict=True):
        there = exact[places] != NOT_THERE
        kept += int(there.sum())
        equal += int((mine[there] == exact[places][there]).sum())
    return equal, kept


def table(rows: dict[str, dict[str, Any]], true: list[np.ndarray], text_bytes: int) -> Iterator[str]:
    ours = rows[LOADERS[0]]
    yield (
        f"{'':14} {'seconds':>8} {'CPU s':>6} {'ratio':>6} {'peak MB':>8} {'of text':>8} {'ratio':>6} "
        f"{'bytes/event':>12} {'times right to the ns':>26}"
    )
    for loader, row in rows.items():
        equal, kept = right(row["times"], true)
        peak = row["peak"] / max(ours["peak"], 1)
        yield (
            f"{loader:14} {row['seconds']:8.2f} {row['busy']:6.2f} {row['seconds'] / ours['seconds']:6.1f} "
            f"{row['peak'] / 1e6:8.0f} {row['peak'] / text_bytes:8.2f} {peak:6.1f} "
            f"{row['rest'] / max(len(true[0]), 1):12.0f} {equal:>12,} of {kept:>10,}"
        )


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        loader, path, out = sys.argv[2:5]
        if loader == "reference":
            return reference(path, out)
        return child(loader, path, out)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", help="a Kineto trace; without one, a synthetic trace is made")
    parser.add_argument("--events", type=int, default=1_000_000, help="events of the synthetic trace")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each loader")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = asked.file or str(folder / "synthetic.json")
        if not asked.file:
            sys.path.insert(0, str(ROOT))
            from flashnorm_lab.bench_timelines import write_kineto

            write_kineto(Path(path), asked.events)
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
            text_bytes = sum(len(block) for block in iter(lambda: file.read(1 << 20), b""))
        true = measure("reference", path, folder)["times"]
        rows: dict[str, dict[str, Any]] = {}
        for _ in range(asked.repeat):
            for loader in LOADERS:
                row = measure(loader, path, folder)
                if loader not in rows or row["seconds"] < rows[loader]["seconds"]:
                    rows[loader] = row
    packages = ("traceinsight", "msgspec", "numpy")
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    print(f"{Path(path).name}: {len(true[0]):,} events, {text_bytes / 1e6:.1f} MB of text")
    print(f"Python {platform.python_version()}, {versions}; {os.cpu_count()} CPUs; best of {asked.repeat}")
    print("\n".join(table(rows, true, text_bytes)))
    return None


if __name__ == "__main__":
    main()
