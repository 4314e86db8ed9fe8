"""Write again what docs/timelines.md shows of the code: the example's report, and every definition.

.venv/bin/python tools/timelines_doc.py            write docs/timelines.md again
.venv/bin/python tools/timelines_doc.py sample.json   write the example's trace to that file instead

A test compares, so that the page says what the code does.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from flashnorm_lab.timeline import Timeline, cutting, from_kineto, metrics, ordering
from flashnorm_lab.timeline.answer import Answer
from flashnorm_lab.timeline.metrics.layout import wrapped

PAGE = Path(__file__).resolve().parent.parent / "docs" / "timelines.md"
HOST = {"pid": 4242, "tid": 4242}
SAMPLE = "decode.json"
"""The name of the example's file, as the page shows it."""
NORM = "void vllm::rms_norm_kernel<c10::Half, 8>(c10::Half*, c10::Half const*, c10::Half const*, float, int)"
GEMM = "ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_tn"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half>, "
    "std::array<char*, 3ul>>(int, at::native::CUDAFunctor_add<c10::Half>, std::array<char*, 3ul>)"
)


def sample() -> dict[str, Any]:
    """A small made-up trace in the form of torch.profiler: five decode steps of one layer on two streams."""
    events: list[dict[str, Any]] = []
    number = 0

    def add(name: str, category: str, at: float, lasts: float, place: dict[str, int], **args: Any) -> None:
        times = {"ts": round(at, 3), "dur": round(lasts, 3)}
        events.append({"ph": "X", "cat": category, "name": name, **times, **place, "args": args})

    def call(name: str, at: float, lasts: float) -> int:
        nonlocal number
        number += 1
        add(name, "cuda_runtime", at, lasts, HOST, correlation=number)
        return number

    def work(name: str, stream: int, at: float, lasts: float, launch: int, category: str = "kernel") -> None:
        place = {"pid": 0, "tid": stream}
        add(name, category, at, lasts, place, device=0, stream=stream, correlation=launch)

    begins = 1000.0
    for step in range(5):
        late = 180.0 if step == 0 else 0.0  # the first step loads its kernels
        t = begins
        add(f"ProfilerStep#{step}", "user_annotation", t, 108 + late, HOST)
        add("aten::rms_norm", "cpu_op", t + 2, 11 + late, HOST)
        launch = call("cudaLaunchKernel", t + 4, 5.204 + late)
        t += late
        work(NORM, 7, t + 12.001, 2.912, launch)
        add("aten::linear", "cpu_op", t + 14, 9, HOST)
        longer = 14.08 if step == 0 else 0.0  # and finds its weights in no cache
        work(GEMM, 7, t + 24.33, 30.976 + longer, call("cudaLaunchKernel", t + 16, 4.818))
        add("aten::linear", "cpu_op", t + 23, 9, HOST)
        work(GEMM, 13, t + 31.007, 25.6 + longer, call("cudaLaunchKernel", t + 25, 4.79))
        record = call("cudaEventRecord", t + 33, 0.9)
        wait = call("cudaStreamWaitEvent", t + 35, 0.8)
        seen = {"stream": 7, "wait_on_stream": 13, "wait_on_cuda_event_record_corr_id": record}
        t += longer
        place = {"pid": 0, "tid": 7}
        add("Stream Wait Event", "cuda_sync", t + 55.306, 0, place, correlation=wait, device=0, **seen)
        add("aten::add", "cpu_op", t + 37, 8, HOST)
        work(ADD, 7, t + 57.215, 2.208, call("cudaLaunchKernel", t + 38, 5.1))
        add("aten::rms_norm", "cpu_op", t + 60, 9, HOST)
        work(NORM, 7, t + 69.1, 2.944, call("cudaLaunchKernel", t + 62, 5.05))
        copy = call("cudaMemcpyAsync", t + 72, 6)
        work("Memcpy DtoH (Device -> Pinned)", 7, t + 80.25, 1.472, copy, "gpu_memcpy")
        call("cudaStreamSynchronize", t + 79, 22)
        begins = t + 110
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "A made-up GPU"}],
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1_764_547_200_000_000_000,
        "traceEvents": events,
    }


def shown_report(t: Timeline) -> str:
    """The beginning of the example's report: what the file is, checks, the short answers, two answers."""
    told = metrics.report(t)
    first = [name for name in told.answers if name not in ("busy", "gaps")]
    whole = told.text()
    rest = told.answers[first[0]].title.upper()
    return whole[: whole.index(f"\n\n\n{rest}\n")]


def definitions(t: Timeline) -> list[tuple[str, str]]:
    """The title and the definition of every answer there is."""
    unmarked = t.with_steps([-1] * len(t))
    repeated = metrics.steps(cutting.choose(unmarked, ~t.is_category("range")))
    names = [t.names[i] for i in t.name[t.operations()][:2]]
    by_name = metrics.kernels(t, "name")
    answers: list[Answer] = [
        metrics.check(t),
        metrics.busy(t),
        metrics.gaps(t),
        metrics.launching(t),
        metrics.operators(t),
        metrics.overlap(t, "gemm", "norm"),
        metrics.overlaps(t),
        metrics.concurrency(t),
        metrics.norm_share(t),
        by_name,
        *(metrics.kernels(t, by) for by in metrics.kinds.BY[1:]),
        metrics.steps(t),
        repeated,
        ordering.edges(t),
        ordering.order(t, *names),
        metrics.diff(t, t),
    ]
    found = []
    for answer in answers:
        title, text = answer.title, answer.definition
        if answer is repeated:
            title += ", by repetition"
        elif answer is not by_name and text.startswith(by_name.definition):
            text = f"as by name{text.removeprefix(by_name.definition)}"
        found.append((title, text))
    return found


def written(page: str) -> str:
    """The page with the parts that come from the code written anew."""
    t = from_kineto(sample(), source=SAMPLE)
    parts = {
        "report": f"```\n$ flashnorm-lab timeline report {SAMPLE}\n{shown_report(t)}\n```",
        "rule": wrapped(f"{metrics.reporting.RULE}.", width=120),
        "definitions": "\n".join(
            wrapped(f"- **{title}**: {text}.", rest="  ", width=120) for title, text in definitions(t)
        ),
    }
    for name, text in parts.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        if len(block.findall(page)) != 1:
            raise SystemExit(f"{PAGE}: the marks of the part {name!r} are not there once")
        page = block.sub(lambda m, text=text: f"{m[1]}{text}\n{m[2]}", page)
    return page


def main(arguments: list[str]) -> None:
    """Write the page again, or the example's trace."""
    if arguments:
        Path(arguments[0]).write_text(json.dumps(sample(), indent=1) + "\n", "utf-8")
        return
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
