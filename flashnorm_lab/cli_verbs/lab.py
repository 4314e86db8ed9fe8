"""Open JupyterLab on the first notebook, on this machine only, with Jupyter's token.

Options that are not listed here go to JupyterLab as they are, for instance --no-browser or --port=8899.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import LabError
from ..resources import notebooks_folder

EXTRA = True
FIRST_NOTEBOOK = "00_start_here.ipynb"
JUPYTER_CONFIG = Path(__file__).parent.parent / "jupyter_config"
"""Read by JupyterLab after the user's own settings: it turns off the question about news at a first start."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The verb has no options of its own."""
    parser.usage = "flashnorm-lab lab [JupyterLab's options]"


def command(notebooks: Path, extra: Sequence[str], *, root: bool) -> list[str]:
    """The arguments for JupyterLab: what the lab sets, where `extra` does not set it itself, then `extra`.

    Args:
        notebooks: the notebooks folder; the folder above it is where JupyterLab's file browser starts.
        extra: the user's own JupyterLab options, for instance ["--no-browser", "--port=8899"].
        root: whether the process runs as root, which JupyterLab refuses without --allow-root.
    """
    given = {option.partition("=")[0] for option in extra}
    result = []
    if not given & {"--notebook-dir", "--ServerApp.root_dir", "--ServerApp.notebook_dir"}:
        result.append(f"--ServerApp.root_dir={notebooks.parent}")
        if not given & {"--LabApp.default_url", "--ServerApp.default_url"}:
            result.append(f"--LabApp.default_url=/lab/tree/{notebooks.name}/{FIRST_NOTEBOOK}")
    if not given & {"--ip", "--ServerApp.ip"}:
        result.append("--ServerApp.ip=127.0.0.1")
    if root and not given & {"--allow-root", "--ServerApp.allow_root"}:
        result.append("--allow-root")
    return result + list(extra)


def run(options: argparse.Namespace) -> int:
    """Start JupyterLab and stay until it is stopped.

    Raises:
        LabError: this is not a clone (a wheel has no notebooks), or JupyterLab is not installed.
    """
    notebooks = notebooks_folder()
    if not (notebooks / FIRST_NOTEBOOK).is_file():
        raise LabError(f"{notebooks} has no {FIRST_NOTEBOOK}: `git checkout notebooks` brings it back")
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    line = command(notebooks, options.extra, root=root)
    if "--allow-root" in line and "--allow-root" not in options.extra:
        print("You are root: adding --allow-root, without which JupyterLab does not start.", flush=True)
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(
        filter(None, [os.environ.get("JUPYTER_CONFIG_PATH"), str(JUPYTER_CONFIG)])
    )
    try:
        from jupyterlab.labapp import LabApp
    except ImportError as error:
        raise LabError(f"JupyterLab cannot be imported ({error}): run `make setup` in the clone") from error
    LabApp.launch_instance(line)
    return 0
