"""What a call of the CUDA or HIP runtime or driver does, by its name."""

from __future__ import annotations

import re

from .raw import Work

RECORD = re.compile(r"^(?:cuda|cu|hip)EventRecord(?:WithFlags)?$")
WAIT = re.compile(r"StreamWaitEvent")
HOST_WAIT = re.compile(r"(?:Stream|Event|Device|Ctx|Context|Thread)Synchronize$")
QUERY = re.compile(r"^(?:cuda|cu|hip)(?:Stream|Event)Query$|EventElapsedTime")
HIDDEN_WAIT = re.compile(r"WaitValue|BatchMemOp|WaitExternalSemaphore")
CALLBACK = re.compile(r"LaunchHostFunc|StreamAddCallback")
GIVES_WORK = re.compile(r"GraphLaunch|^(?!\w*Graph)\w*(?:Launch|Mem(?:cpy|set))")
UNORDERED = re.compile(r"GraphLaunch|Mem(?:cpy|set)\w*Batch")
EARLY = re.compile(r"LaunchKernelEx")
CAPTURE = re.compile(r"Stream(Begin|End)Capture")
MEMORY = re.compile(
    r"^(?:cuda|cu|hip)(?:Free|Malloc|MemAlloc|MemFree|MemHost|Host(?:Alloc|Free|Malloc|Register|Unregister))"
    r"(?!\w*Async)"
)


def blocking(call: str, work: Work) -> str:
    """What CUDA promises of a piece of work: "blocks", the host waits for it; "before", the host waits for
    what its stream had before; "unknown"; or "", the host does not wait.

    From CUDA's documents on how copies synchronize. To the host: the call returns when the copy is done, if
    it is a synchronous one or the memory is pageable. From the host: a synchronous call returns when it is
    done if the memory is pinned, and waits for the stream first if it is pageable. Within the device: no call
    waits. HIP promises as much only of synchronous copies to the host.
    """
    name = work.name
    if work.category != "copy":
        return ""
    synchronous = "Async" not in call and "Batch" not in call
    cuda = not call.startswith("hip")
    if " DtoH" in name and "managed" not in name:
        if synchronous:
            return "blocks"
        if "Pinned" in name:
            return ""
        return "blocks" if "Pageable" in name and cuda else "unknown"
    if not synchronous or " DtoD" in name:
        return ""
    if " HtoD" in name and "managed" not in name and cuda:
        return "blocks" if "Pinned" in name else "before" if "Pageable" in name else "unknown"
    return "unknown"
