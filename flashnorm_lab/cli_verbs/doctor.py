"""Tell what was found on this machine, what is missing, and what to do about it.

Exit status: 0 if the lab can run, 1 if something that it needs is missing.
"""

import argparse
import json

from .. import doctor


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(options: argparse.Namespace) -> int:
    """Examine the machine and print what was found; returns 0 if the lab can run, else 1."""
    findings = doctor.examine()
    print(json.dumps(doctor.as_dict(findings), indent=2) if options.json else doctor.report(findings))
    return 0 if doctor.can_run(findings) else 1
