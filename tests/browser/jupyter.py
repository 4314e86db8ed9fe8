"""JupyterLab on a free port with a folder of notebooks, and a page of it in headless Chromium."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-gpu",
)


@dataclass(frozen=True)
class Server:
    """A running JupyterLab."""

    address: str
    token: str

    def page(self, path: str) -> str:
        """The address of a notebook's page."""
        return f"{self.address}/lab/tree/{path}?reset&token={self.token}"

    def ask(self, what: str) -> object:
        """An answer of Jupyter's own interface, for instance to "sessions"."""
        with urllib.request.urlopen(f"{self.address}/api/{what}?token={self.token}", timeout=5) as answer:
            return json.load(answer)

    def kernel_is_ready(self) -> bool:
        """Whether a kernel is idle and a page is connected to it."""
        kernels = [s["kernel"] for s in self.ask("sessions")]
        return any(k["execution_state"] == "idle" and k["connections"] for k in kernels)


def chromium() -> str | None:
    """Path of a Chromium on this machine, or None."""
    return next((path for name in CHROMIUM if (path := shutil.which(name))), None)


@contextmanager
def server(folder: Path, env: dict[str, str] | None = None, timeout: float = 60.0) -> Iterator[Server]:
    """Serve ``folder`` with JupyterLab on 127.0.0.1, on a free port and with a token.

    Settings, workspaces and run-time files of the user are neither read nor written, and nothing is asked of
    the outside: no news, no extension list.
    """
    home = folder / ".jupyter-of-the-test"
    token = secrets.token_hex(16)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    places = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", f"--ServerApp.root_dir={folder}",
        "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={token}", "--LabApp.extension_manager=readonly",
    ]  # fmt: skip
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    settings = home / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    log = home / "jupyter.log"
    environment = os.environ | {name: str(home / place) for name, place in places.items()} | (env or {})
    environment["PYTHONPATH"] = os.pathsep.join(p for p in (str(ROOT), environment.get("PYTHONPATH")) if p)
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        address = f"http://127.0.0.1:{port}"
        end = time.monotonic() + timeout
        while True:
            try:
                urllib.request.urlopen(f"{address}/api/status?token={token}", timeout=2).close()
                break
            except (urllib.error.URLError, OSError):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}") from None
                time.sleep(0.1)
        yield Server(address, token)
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def browser_page(width: int = 1400, height: int = 1000) -> Iterator[Page]:
    """A page in headless Chromium."""
    from playwright.sync_api import sync_playwright

    flags = [*FLAGS, *(["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else [])]
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium(), args=flags)
        try:
            page = browser.new_page(viewport={"width": width, "height": height})
            page.set_default_timeout(30_000)
            yield page
        finally:
            browser.close()


def run_all(page: Page, server: Server, path: str, timeout: float = 60.0) -> Locator:
    """Open a notebook, run every cell and wait until the last one is done. Returns the notebook."""
    page.goto(server.page(path))
    notebook = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
    notebook.locator(".jp-CodeCell").first.wait_for()
    end = time.monotonic() + timeout
    while not server.kernel_is_ready():
        if time.monotonic() > end:
            raise RuntimeError(f"no kernel after {timeout:g} s: {server.ask('sessions')}")
        page.wait_for_timeout(100)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name=re.compile("^Run All Cells")).click()
    prompts: list[str] = []
    while time.monotonic() < end:
        prompts = [p.strip() for p in notebook.locator(".jp-CodeCell .jp-InputPrompt").all_text_contents()]
        if prompts and all(re.fullmatch(r"\[\d+\]:", p) for p in prompts):
            return notebook
        page.wait_for_timeout(100)
    raise RuntimeError(f"cells are not done after {timeout:g} s: {prompts}")
