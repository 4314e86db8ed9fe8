"""Checks of a timeline against itself, to be said before any figure is: what its own spans speak against."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..answer import Answer, Table, cut, told_share, told_time
from ..table import Timeline
from .faults import CHECKS
from .finding import SEVERITIES, Finding
from .layout import shortened, shown
from .working import NAME, plural, work_of


@dataclass(frozen=True, kw_only=True)
class Checks(Answer):
    """What was found, the worst first."""

    findings: tuple[Finding, ...]
    zero_ns: int

    @property
    def ok(self) -> bool:
        """Whether nothing was found but notes."""
        return all(found.severity == "note" for found in self.findings)

    def table(self, most: int | None = 20) -> Table | None:
        """A row for each finding."""
        rows = [
            (
                found.severity,
                shown(found.kind),
                f"{found.count:,}",
                f"{told_share(found.share)} of {found.of}" if found.of else "",
                self._example(found),
            )
            for found in self.findings
        ]
        return cut(rows, ("", "found", "count", "share", "for example"), most) if rows else None

    def summary(self) -> str:
        """How many findings of each severity."""
        counts = [sum(found.severity == severity for found in self.findings) for severity in SEVERITIES]
        told = [
            plural(count, word, many)
            for count, word, many in zip(
                counts, ("broken", "warning", "note"), ("broken", "warnings", "notes"), strict=True
            )
            if count
        ]
        return ", ".join(told) if told else "nothing speaks against the figures"

    def text(self, most: int | None = 20) -> str:
        """What every answer prints, and what each finding means."""
        lines = [f"{found.severity}: {shown(found.kind)}: {shown(found.meaning)}" for found in self.findings]
        return "\n".join([super().text(most), *lines])

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            **self.words(),
            "ok": self.ok,
            "findings": [
                asdict(found) | {"examples": list(map(list, found.examples))} for found in self.findings
            ],
        }

    def _example(self, found: Finding) -> str:
        if not found.examples:
            return ""
        name, lane, at = found.examples[0]
        return shown(f"{shortened(name, NAME)} on {lane} at +{told_time(at - self.zero_ns)}")


def check(t: Timeline) -> Checks:
    """Look for what the spans themselves speak against; see `Finding`. The worst comes first."""
    work = work_of(t)
    findings = [found for one in CHECKS for found in one(t, work)]
    findings.sort(key=lambda found: SEVERITIES.index(found.severity))
    return Checks(
        title="Checks",
        definition=(
            "each check looks at the spans alone and at what the reader of the file noted; share is of the "
            "spans that the check is about. broken: figures of time cannot be trusted; warning: to be read "
            "with care; note: good to know"
        ),
        denominator="the spans that each check is about, as named with it",
        findings=tuple(findings),
        zero_ns=int(t.start_ns.min()) if len(t) else 0,
    )
