"""`flashnorm-lab`: the lab's verbs from a terminal.

Exit status: what the verb returns (0 when it ran), 2 with one line on standard error for bad use, 130 when
interrupted. flashnorm_lab/cli_verbs/__init__.py says how to add a verb.
"""

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from inspect import cleandoc
from types import ModuleType
from typing import NoReturn

from . import __version__
from .cli_verbs import VERBS
from .errors import LabError

PROG = "flashnorm-lab"


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that says what is wrong in one line instead of printing its usage first."""

    def __init__(self, *args, **kwargs):
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)

    def error(self, message: str, see: str = "--help") -> NoReturn:
        """Print `message` as one line on standard error, with where to look, and leave with status 2."""
        self.exit(2, f"{self.prog}: {_one_line(message)} (see {self.prog} {see})\n")


def _one_line(message: object) -> str:
    """The message on one line. It may hold names from a file: what acts on a terminal is written out."""
    text = " ".join(str(message).split())
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text
    )


def verbs() -> dict[str, ModuleType]:
    """The verb modules by name, in the order in which help lists them."""
    return {name: import_module(f"flashnorm_lab.cli_verbs.{name}") for name in VERBS}


def parser() -> Parser:
    """The parser of the whole command line, with one sub-parser for each verb."""
    top = Parser(prog=PROG, description="FlashNorm's algebra, kernels, streams and races.")
    top.add_argument("--version", action="version", version=f"flashnorm-lab {__version__}")
    group = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, module in verbs().items():
        description = cleandoc(module.__doc__)
        summary = description.splitlines()[0]
        module.arguments(group.add_parser(name, help=summary, description=description))
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. `argv` defaults to the process's own arguments; returns the exit status."""
    # Torch's idle threads would spin on the cores that run the lab's kernels. Read once, when torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names may have characters that the terminal's set has not
            stream.reconfigure(errors="backslashreplace")
    try:
        top = parser()
        options, extra = top.parse_known_args(argv)
        verb = verbs()[options.verb]
        if hasattr(verb, "EXTRA"):
            options.extra = extra
        elif extra:
            top.error(f"{options.verb} does not know {extra[0]!r}", f"{options.verb} --help")
        status = verb.run(options)
        sys.stdout.flush()
        return status
    except LabError as error:
        print(f"{PROG}: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{PROG}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader (`| head`) has gone
        _forget_output()
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(f"{PROG}: the disk is full, so the answer is not whole; free some space", file=sys.stderr)
        _forget_output()
        return 2


def _forget_output() -> None:
    """Let standard output lead nowhere, so that closing it cannot fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
