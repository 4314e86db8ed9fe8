"""Tables for other programs: CSV and Parquet, one row a span.

Columns: name, lane, kind ("host" or "device"), device, process, category, step, start_ns, duration_ns,
launch, outcome, origin. Times are whole nanoseconds, absolute, as int64; step, launch and origin are -1 where
there is none.

Edges and counters have other columns, so they go to files of their own beside it, if there are any: for
``step.csv`` to ``step.edges.csv`` (source, target: numbers of rows of the first file, from 0; name; kind) and
``step.counters.csv`` (name, at_ns, value). The caller is told their names. A file of such a name that is
there already is written anew in any case, so that it does not stay from an earlier timeline.

**Parquet** keeps texts as they are, as dictionaries, and ``meta`` as JSON under the key "flashnorm_lab" of
the schema's metadata. ``pandas.read_parquet(path)`` gives the table, with texts as categoricals.

**CSV** is UTF-8 with ``\\n`` at line ends; every text stands in quotes, no number does. A spreadsheet would
take a text that begins with ``=``, ``+``, ``-`` or ``@`` for a formula, and run it: a trace could then act on
whoever opens its table. So such a text gets an apostrophe in front, as it is typed into a spreadsheet to say
that a text follows, and so does one that begins with an apostrophe already. What is read is then exactly the
timeline's texts less one apostrophe in front::

    spans = pandas.read_csv(path, keep_default_na=False)  # without it, a kernel of the name NA is missing
    spans["name"] = spans["name"].str.removeprefix("'")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from ..table import CATEGORIES, EDGE_KINDS, OUTCOMES, Timeline
from .files import REPLACED, check_target, unicode_text, whole

if TYPE_CHECKING:
    import pyarrow

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20", "'")
"""What a text begins with that gets an apostrophe in front in CSV: what a spreadsheet takes for the start of
a formula (the wide forms of the four signs too, and what it skips before one), and the apostrophe itself."""
ROWS = 1 << 16


def export_csv(timeline: Timeline, path: str | PathLike[str]) -> tuple[str, ...]:
    """Write the spans as CSV, and edges and counters beside it; with gzip where the name ends in ``.gz``.

    Returns what else was written and what is not as in the timeline, a line each. ``LabError`` when a file
    cannot be written. Each file is written whole or not at all.
    """
    return _export(timeline, path, _write_csv, _csv_text)


def export_parquet(timeline: Timeline, path: str | PathLike[str]) -> tuple[str, ...]:
    """Write the spans as Parquet, and edges and counters beside it; as `export_csv` does."""
    return _export(timeline, path, _write_parquet, unicode_text)


def _export(
    t: Timeline,
    path: str | PathLike[str],
    write: Callable[[pyarrow.Table, IO[bytes]], None],
    convert: Callable[[str], str],
) -> tuple[str, ...]:
    path = check_target(path)
    notes = []
    texts = (*t.names, *(text for lane in t.lanes for text in (lane.name, lane.device, lane.process)))
    if any(text != unicode_text(text) for text in texts):
        notes.append(REPLACED)
    for part, table in _tables(t, convert).items():
        beside = _beside(path, part) if part else path
        if not part or table.num_rows or beside.exists():
            with whole(beside) as file:
                write(table, file)
            if part:
                notes.append(f"{part}: {table.num_rows:,}, in {beside}")
    return tuple(notes)


def beside(path: str | PathLike[str]) -> tuple[Path, ...]:
    """The files that may be written beside a table of this name: of edges, and of counters."""
    return tuple(_beside(Path(path), part) for part in ("edges", "counters"))


def _beside(path: Path, part: str) -> Path:
    """step.csv.gz and "edges": step.edges.csv.gz."""
    endings = path.suffixes[-2:] if path.suffix.lower() == ".gz" else path.suffixes[-1:]
    ending = "".join(endings)
    return path.with_name(f"{path.name[: len(path.name) - len(ending)]}.{part}{ending}")


def _tables(t: Timeline, convert: Callable[[str], str]) -> dict[str, pyarrow.Table]:
    """The table of spans under "", those of edges and counters under their names."""
    import pyarrow as pa

    def texts(codes: np.ndarray, values: Iterable[str]) -> pa.DictionaryArray:
        # Two lanes of one device share its name: a dictionary holds each text once.
        places: dict[str, int] = {}
        place = [places.setdefault(convert(value), len(places)) for value in values]
        codes = np.array(place, dtype=np.int32)[codes] if place else codes.astype(np.int32)
        return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(list(places), pa.string()))

    spans = pa.table(
        {
            "name": texts(t.name, t.names),
            "lane": texts(t.lane, [lane.name for lane in t.lanes]),
            "kind": texts(t.lane, [lane.kind for lane in t.lanes]),
            "device": texts(t.lane, [lane.device for lane in t.lanes]),
            "process": texts(t.lane, [lane.process for lane in t.lanes]),
            "category": texts(t.category, CATEGORIES),
            "step": t.step,
            "start_ns": t.start_ns,
            "duration_ns": t.duration_ns,
            "launch": t.launch,
            "outcome": texts(t.outcome, OUTCOMES),
            "origin": t.origin,
        }
    )
    edges = pa.table(
        {
            "source": t.edge_source,
            "target": t.edge_target,
            "name": texts(t.edge_name, t.names),
            "kind": texts(t.edge_kind, EDGE_KINDS),
        }
    )
    counters = pa.table(
        {"name": texts(t.counter_name, t.names), "at_ns": t.counter_ns, "value": t.counter_value}
    )
    meta = {"flashnorm_lab": json.dumps({"meta": t.meta})}
    return {"": spans.replace_schema_metadata(meta), "edges": edges, "counters": counters}


def _csv_text(text: str) -> str:
    text = unicode_text(text)
    return f"'{text}" if text.startswith(FORMULA) else text


def _write_csv(table: pyarrow.Table, file: IO[bytes]) -> None:
    import pyarrow as pa
    from pyarrow import csv

    plain = pa.schema(
        [(f.name, pa.string() if pa.types.is_dictionary(f.type) else f.type) for f in table.schema]
    )
    with csv.CSVWriter(file, plain) as writer:
        # Some rows at a time: the texts of all rows, written out, could take gigabytes.
        for first in range(0, table.num_rows, ROWS):
            writer.write_table(table.slice(first, ROWS).cast(plain))


def _write_parquet(table: pyarrow.Table, file: IO[bytes]) -> None:
    from pyarrow import parquet

    parquet.write_table(table, file)
