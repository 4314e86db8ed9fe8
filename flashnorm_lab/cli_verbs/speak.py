"""Let a model write a text through the lab's kernels, beside the text that it writes without them.

Every norm-projection of a decode step runs on the device. With --drop an edge is left out, everywhere or
at --sites, and the text goes wrong where the race is lost; what each site read is told afterwards.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from ..errors import LabError
from . import common


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the text's, the wiring's and the output's options."""
    add_speech_options(parser)
    parser.add_argument("--tokens", type=int, default=40, metavar="N", help="tokens to write (default: 40)")
    parser.add_argument("--schedule", default="deferred", help="sequential, fused or deferred (default)")
    common.add_race_options(parser)
    parser.add_argument(
        "--export", metavar="PATH", help="write the timeline of a decode step as Chrome JSON, for Perfetto"
    )
    parser.add_argument(
        "--export-token",
        type=int,
        default=1,
        metavar="N",
        help="the token whose decode step --export writes, from 1 (default: 1)",
    )


def add_speech_options(parser: argparse.ArgumentParser) -> None:
    """Add --prompt, --sites, --model and --threads."""
    parser.add_argument(
        "--prompt", metavar="TEXT", help="what the model goes on from (default: the lab's own prompt)"
    )
    parser.add_argument(
        "--sites",
        action="append",
        default=[],
        metavar="NAME",
        help="leave edges out at these sites only: head, layers.12.qkv, 'layers.*.gate_up'; "
        "repeat for more (default: all)",
    )
    parser.add_argument(
        "--model", metavar="MODEL", help="a Hugging Face id or a folder (default: SmolLM2-135M-Instruct)"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="torch's threads (default: its own choice)")


class Speaker:
    """A model attached to a device as the options say, and what it has written."""

    def __init__(self, options: argparse.Namespace) -> None:
        from .. import decoding, devices, models, schedule
        from ..devices.base import check_force

        if options.sites and not options.drop:
            raise LabError("--sites names where an edge is left out; say which with --drop, e.g. join_matrix")
        # Before a model is loaded, which takes seconds.
        wrong = schedule.build(options.schedule, 1, 1, 1, io="host").without(*options.drop)
        if options.force != "worst":
            check_force(wrong, options.force)
        self.prompt = decoding.PROMPT if options.prompt is None else options.prompt
        if not self.prompt.strip():
            raise LabError("the prompt is empty; give at least one word")
        self.threads = set_threads(options.threads)
        self.device = devices.get(options.device)
        self.model = models.smollm2(options.model)
        decoding.prompt_ids(self.model.tokenizer, self.prompt)
        decoding.move(self.model.model, self.device)
        self.attached = decoding.attach(
            self.model.model,
            self.device,
            options.schedule,
            drop=options.drop,
            sites=options.sites or "all",
            force=options.force,
            judge=True,
        )
        self.tally = decoding.Tally()
        self.timeline: Any = None

    def write(self, tokens: int, recorded: int | None, say: Callable[[str], None]) -> list[Any]:
        """Write through the device; ``recorded`` is the number of the token whose step is recorded."""
        from .. import decoding

        def keep(number: int, timeline: Any) -> None:
            self.timeline = timeline

        written = []
        for token in decoding.generate(
            self.model.model,
            self.model.tokenizer,
            self.prompt,
            tokens,
            attached=self.attached,
            record=keep,
            record_tokens=() if recorded is None else (recorded,),
        ):
            say(token.text)
            written.append(token)
            if token.number:  # token 0 comes from the prompt's pass, which runs through torch
                self.tally.add(token.judged, len(self.attached.sites))
        return written

    def reference(self, tokens: int, say: Callable[[str], None]) -> list[Any]:
        """Write the same without the device."""
        from .. import decoding

        written = []
        with self.attached.bypass():
            for token in decoding.generate(self.model.model, self.model.tokenizer, self.prompt, tokens):
                say(token.text)
                written.append(token)
        return written


def set_threads(threads: int | None) -> int:
    """Set torch's number of threads, where one is given; returns the number in use."""
    import torch

    if threads is not None:
        most = 4 * (os.cpu_count() or 1)
        if not 1 <= threads <= most:
            raise LabError(f"--threads {threads}: give a whole number from 1 to {most}")
        torch.set_num_threads(threads)
    return torch.get_num_threads()


def threads_text(threads: int) -> str:
    """ "2 threads"."""
    return f"{threads} thread{'s' * (threads != 1)}"


def tokens_per_second(written: list[Any]) -> float | None:
    """Decode steps over their seconds, without the prompt's pass; None where there was none."""
    steps = written[1:]
    return len(steps) / sum(t.seconds for t in steps) if steps else None


def run(options: argparse.Namespace) -> int:
    """Write both texts and tell where they part; returns 0."""
    from .. import decoding
    from ..timeline.writing.files import check_target

    decoding.check_tokens(options.tokens)
    if options.export is not None:
        check_target(options.export)
    recorded = options.export_token if options.export else None
    if recorded is not None and not 1 <= recorded < options.tokens:
        last = options.tokens - 1
        raise LabError(f"--export-token {recorded}: the decode steps of this text are numbered 1 to {last}")
    speaker = Speaker(options)

    def say(text: str) -> None:
        if not options.json:
            print(text, end="", flush=True)

    if not options.json:
        print(f"device     {speaker.device.name} (measured; {speaker.device.reason})")
        print(f"model      {speaker.model.name}, {threads_text(speaker.threads)}")
        print(f"wiring     {_wiring(speaker.attached)}")
        print(f"prompt     {speaker.prompt}\ntext      ", end="", flush=True)
    with speaker.attached:
        written = speaker.write(options.tokens, recorded, say)
        say("\nreference ")
        reference = speaker.reference(options.tokens, say)
        say("\n")
    divergence = decoding.first_divergence([t.id for t in written], [t.id for t in reference])
    if speaker.timeline is not None:
        speaker.timeline.export_chrome(options.export)
    elif options.export:
        print(
            f"flashnorm-lab: the text ended before token {recorded}; no timeline was written", file=sys.stderr
        )
    if options.json:
        print(json.dumps(_as_dict(speaker, written, reference, divergence)))
        return 0
    print(f"differs    {'nowhere' if divergence is None else f'from token {divergence} on (the first is 0)'}")
    not_finite = next((t.number for t in written if not t.finite), None)
    if not_finite is not None:
        print(f"overflow   from token {not_finite} on the logits are not finite numbers")
    print(f"speed      {_rate(written)} through the device, {_rate(reference)} without")
    print("\n" + _table(speaker.tally))
    if speaker.timeline is not None:
        print(f"\ntimeline   {options.export} (decode step of token {recorded})")
    return 0


def _as_dict(
    speaker: Speaker, written: list[Any], reference: list[Any], divergence: int | None
) -> dict[str, Any]:
    attached = speaker.attached
    built = next(iter(attached.sites.values())).schedule if attached.wrong is None else attached.wrong
    return {
        "device": speaker.device.describe(),
        "provenance": "measured",
        "model": speaker.model.name,
        "threads": speaker.threads,
        "schedule": {
            "name": built.name,
            "edges": [e for e in built.all_edges if e in built.edges],
            "dropped": list(built.dropped),
            "dropped_at": list(attached.chosen) if built.dropped else [],
        },
        "hazards": [h.as_dict() for h in attached.hazards],
        "forced": attached.force and {"hold": attached.force.hold, "until": attached.force.until},
        "prompt": speaker.prompt,
        "tokens": len(written),
        **speaker.tally.counts,
        "not_judged": speaker.tally.not_judged,
        "text": "".join(t.text for t in written),
        "reference": "".join(t.text for t in reference),
        "first_divergence": divergence,
        "not_finite": next((t.number for t in written if not t.finite), None),
        "tokens_per_s": tokens_per_second(written),
        "reference_tokens_per_s": tokens_per_second(reference),
        "sites": speaker.tally.wrong_sites,
        "kinds": speaker.tally.kinds,
    }


def _wiring(attached: Any) -> str:
    wrong = attached.wrong
    if not wrong.dropped:
        return f"{wrong.name}, " + ("all edges" if wrong.all_edges else "one stream, which needs no edges")
    text = f"{wrong.name} without {', '.join(wrong.dropped)}"
    text += f" at {len(attached.chosen)} of {len(attached.sites)} sites"
    if attached.force is not None:
        text += f"; {attached.force.hold} held until {attached.force.until} is done"
    return text


def _rate(written: list[Any]) -> str:
    rate = tokens_per_second(written)
    return "no decode step" if rate is None else f"{rate:.1f} tokens/s"


def _table(tally: Any) -> str:
    """Outcomes by kind of site, and which sites were wrong most often."""
    from .. import outcomes

    labels = outcomes.shown(tally.counts)
    lines = [f"{'what sites read':<16}" + "".join(f" {label:>7}" for label in labels)]
    for kind, counts in {**tally.kinds, "all": tally.counts}.items():
        lines.append(f"{kind:<16}" + "".join(f" {counts[label]:>7}" for label in labels))
    if tally.not_judged:
        lines.append(
            f"{tally.not_judged} times a site's own input had overflowed, and nothing could be compared"
        )
    wrong = sorted(tally.wrong_sites.items(), key=lambda item: -item[1]["stale"] - item[1]["torn"])
    if wrong:
        most = ", ".join(f"{name} ({counts['stale'] + counts['torn']})" for name, counts in wrong[:5])
        sites = "1 site:" if len(wrong) == 1 else f"{len(wrong)} sites, most often at"
        lines.append(f"wrong at {sites} {most}")
    return "\n".join(lines)
