"""Write requirements.lock from pyproject.toml (`make lock` calls this; it needs the package `uv`).

uv resolves runtime and dev dependencies once for every Python and platform that pyproject.toml admits, with
markers where they differ. What only torch's CUDA build for Linux requires is then left out: whoever gets that
build gets its exact requirements from its own metadata, and a CPU build is spared several gigabytes.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
HEADER = """\
# Every package of the lab, pinned: Python 3.11 to 3.14 on Linux (x86-64, aarch64), macOS (arm64) and Windows.
# Written by `make lock` (tools/lock.py) from pyproject.toml: change that file, then run it again. It keeps
# the pins that still fit; `make lock LOCK_ARGS=--upgrade` takes the newest of all.
# The NVIDIA libraries that only torch's CUDA build requires are left to torch's own metadata.
"""
# The names under which torch's CUDA build requires its libraries and compilers.
CUDA_NAMES = re.compile(r"(nvidia|cuda|triton)\b")
PIN = re.compile(r"([a-z0-9.-]+)==\S+")


def resolve(arguments: list[str]) -> str:
    """uv's universal resolution of pyproject.toml and its dev extra: a pin a line, then `# via ...`."""
    line = ["pip", "compile", "pyproject.toml", "--extra=dev", "--universal", "--python-version=3.11"]
    line += ["--fork-strategy=fewest", "--no-header", "--annotation-style=line", "--no-emit-index-url"]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / LOCK.name
        if LOCK.exists():
            output.write_text(LOCK.read_text())  # pins that still fit are kept
        line += ["--quiet", f"--output-file={output}"]
        run = subprocess.run([sys.executable, "-m", "uv", *line, *arguments], cwd=ROOT)
        if run.returncode:
            raise SystemExit("uv found no resolution; requirements.lock is as it was")
        return output.read_text()


def keep(resolution: str, direct: set[str]) -> list[str]:
    """The pins of `resolution`, less what only torch's CUDA build requires.

    Args:
        resolution: uv's output, one pin a line, followed on its line by `# via parent, parent`.
        direct: the names that pyproject.toml itself requires.
    """
    parents: dict[str, set[str]] = {}
    pins: dict[str, str] = {}
    for line in resolution.splitlines():
        pin, _, via = line.partition("# via ")
        match = PIN.match(pin)
        if match is None:
            raise SystemExit(f"tools/lock.py cannot read this line of uv's: {line!r}")
        name = match[1]
        pins[name] = pin.strip()
        parents[name] = {parent.strip() for parent in via.split(",")}
    dropped: set[str] = set()
    for _ in pins:  # a library's own libraries go with it, however deep
        for name in pins.keys() - dropped - direct:
            if CUDA_NAMES.match(name) and parents[name] <= dropped | {"torch"}:
                dropped.add(name)
    return [pins[name] for name in sorted(pins.keys() - dropped)]


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = project["dependencies"] + project["optional-dependencies"]["dev"]
    direct = {re.match(r"[A-Za-z0-9._-]+", line)[0].lower() for line in required}
    lines = keep(resolve(sys.argv[1:]), direct)
    LOCK.write_text(HEADER + "\n".join(lines) + "\n")
    print(f"requirements.lock: {len(lines)} packages")


if __name__ == "__main__":
    main()
