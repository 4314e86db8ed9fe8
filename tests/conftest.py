"""What all tests share: where things are, and a reasoned skip of what this machine cannot run."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path

import pytest

# Torch's idle threads would spin on the cores that the other process of the run needs. Read when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout's top folder."""
    return ROOT


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium for Playwright's `executable_path`."""
    path = _chromium()
    assert path is not None
    return path


@functools.cache
def _chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@functools.cache
def _no_gpu() -> str | None:
    from flashnorm_lab.devices import cuda

    return cuda.unusable()


def pytest_make_parametrize_id(val: object) -> str | None:
    """The processes of one run must agree on a test's name, and packed bytes hold the time of packing."""
    return "gzip" if isinstance(val, bytes) and val.startswith(b"\x1f\x8b") else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        reason = _no_gpu()
        if reason is not None:
            pytest.skip(f"no usable GPU: {reason}")
    # Continuous integration installs a browser, so there its absence is a failure of the set-up.
    if item.get_closest_marker("browser") and _chromium() is None and not os.environ.get("CI"):
        pytest.skip("no Chromium on PATH (Debian: apt install chromium)")
