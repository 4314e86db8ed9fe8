"""Which kernel is ordered before which, from a profiler's trace of any program.

::

    from flashnorm_lab import trace_order

    trace = trace_order.load("trace.json.gz")       # of torch.profiler, or an Nsight Systems .sqlite export
    print(trace_order.answer(trace, "gemm", "norm"))   # yes, no, or what the trace does not say
    print("\\n".join(trace.unseen))                  # all that the trace leaves out

A timeline shows what happened once: A ended before B started, in forty of forty steps, and still nothing may
guarantee it. What guarantees it are records, waits and synchronizations, and a trace has those that the
profiler knew. `load` makes a `flashnorm_lab.program.Program` of them, which `flashnorm_lab.hazards` reads
too; what the profiler did not know never becomes an order, and is listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

from .answer import Answer, Pair, answer, answer_for
from .build import build
from .raw import read
from .trace import Gap, Loose, TraceProgram

__all__ = ["Answer", "Gap", "Loose", "Pair", "TraceProgram", "answer", "answer_for", "load"]


def load(path: str | PathLike[str], kinds: Mapping[str, str] | None = None) -> TraceProgram:
    """The host's calls and the work that they gave to streams, from a trace; no buffers.

    ``path``: a Kineto or other Chrome trace (JSON, plain or gzip), or an SQLite export of Nsight Systems.
    ``kinds``: what the profiler may not know, but you do: a stream's name ("stream 20", or "*" for all that
    are not named) to "blocking", "non-blocking", "per-thread" or "legacy".

    Steps are in the order in which the host's calls started, launches under their kernels' names, copies with
    whether the host waited for them. A wait is a step only where it is sure which record it is for. Raises
    ``LabError``, in one line, for a file that is broken, no trace, or without any device work.
    """
    path = Path(path)
    return build(read(path), path.name, kinds or {})
