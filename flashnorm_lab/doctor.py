"""What the lab finds on this machine, what is missing, and what to do about it.

Each probe looks at one thing and returns a `Finding`. A probe that fails in a way it did not foresee (a
package whose import breaks, a driver that raises) becomes a finding too: the doctor always comes to its end.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any, Literal

from .errors import LabError

Status = Literal["ok", "missing", "optional"]

OLDEST_PYTHON = (3, 11)
PROBED_BY_NAME = {
    "cupy-cuda13x",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "pocl-binary-distribution",
    "pyopencl",
    "torch",
}
"""Requirements with a probe of their own; in a conda environment some of them go by other names."""

NVRTC_TEST = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }'


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        name: what was looked for.
        status: "ok"; "missing" if the lab cannot run without it; "optional" if it can.
        detail: what was found, in one line.
        advice: what to do about it, in one line; empty where there is nothing to do.
    """

    name: str
    status: Status
    detail: str
    advice: str = ""


def probe_python() -> Finding:
    """The interpreter, and whether it is recent enough."""
    detail = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Finding("Python", "missing", detail, "install Python 3.11 to 3.14 and run `make setup` again")
    return Finding("Python", "ok", detail)


def probe_machine() -> Finding:
    """Operating system, processor and the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding("machine", "ok", f"{platform.platform()}, {cores} core{'s' * (cores != 1)}")


def probe_packages() -> Finding:
    """The lab's Python requirements that have no probe of their own: present, and of a fitting version."""
    from packaging.requirements import Requirement

    try:
        required = [Requirement(line) for line in metadata.requires("flashnorm-lab") or []]
    except metadata.PackageNotFoundError:
        return Finding("packages", "missing", "flashnorm-lab itself is not installed", "run `make setup`")
    absent, unfit, versions = [], [], []
    for requirement in required:
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not applies or requirement.name in PROBED_BY_NAME:
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            absent.append(requirement.name)
            continue
        versions.append(f"{requirement.name} {version}")
        if not requirement.specifier.contains(version, prereleases=True):
            unfit.append(f"{requirement.name} is {version}, expected {requirement.specifier}")
    if absent:
        return Finding("packages", "missing", f"not installed: {', '.join(absent)}", "run `make setup`")
    if unfit:
        return Finding("packages", "optional", "; ".join(unfit), "run `make setup` for the tested versions")
    return Finding("packages", "ok", ", ".join(versions))


def probe_torch() -> Finding:
    """torch, and the CUDA that it was built for."""
    torch = import_module("torch")
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for the CPU alone"
    return Finding("torch", "ok", f"{torch.__version__}, {built}, {torch.get_num_threads()} threads")


def probe_cupy() -> Finding:
    """CuPy imports; it needs no GPU for that."""
    if sys.platform == "darwin":
        return Finding("CuPy", "optional", "there is none for macOS: no GPU of a Mac runs CUDA")
    cupy = import_module("cupy")
    return Finding("CuPy", "ok", cupy.__version__)


def probe_nvrtc() -> Finding:
    """NVRTC compiles a small kernel to machine code for compute capability 7.5; it needs no GPU for that."""
    if sys.platform == "darwin":
        return Finding("NVRTC", "optional", "there is none for macOS")
    nvrtc = import_module("cupy.cuda").nvrtc
    major, minor = nvrtc.getVersion()
    program = nvrtc.createProgram(NVRTC_TEST, "twice.cu", [], [])
    nvrtc.compileProgram(program, ["--gpu-architecture=sm_75"])
    size = len(nvrtc.getCUBIN(program))
    return Finding("NVRTC", "ok", f"{major}.{minor}; a test kernel compiles to {size} bytes of machine code")


def probe_gpu() -> Finding:
    """A GPU that the lab can use, or why there is none."""
    reason = import_module("flashnorm_lab.devices.cuda").unusable()
    if reason is None:
        runtime = import_module("cupy").cuda.runtime
        properties = runtime.getDeviceProperties(runtime.getDevice())
        name = properties["name"].decode()
        capability = f"{properties['major']}.{properties['minor']}"
        driver = runtime.driverGetVersion()
        driver = f"{driver // 1000}.{driver % 1000 // 10}"
        return Finding("GPU", "ok", f"{name}, compute capability {capability}, driver for CUDA {driver}")
    return Finding("GPU", "optional", reason, _gpu_advice())


def _gpu_advice() -> str:
    if sys.platform == "darwin":
        return "nothing to do: the lab runs on the CPU"
    try:
        devices = import_module("cupy").cuda.runtime.getDeviceCount()
        torch = import_module("torch")
    except Exception:
        devices = 0
    if devices and torch.version.cuda is None:
        version = torch.__version__.partition("+")[0]
        return f"there is a GPU, but torch is a build for the CPU: install torch {version} for CUDA 13"
    return "without a GPU nothing: the lab runs on the CPU; with one, NVIDIA's driver 580 or newer (CUDA 13)"


def _opencl_devices() -> list[tuple[Any, Any]]:
    """Every (platform, device) that pyopencl sees; empty where there is no platform."""
    cl = import_module("pyopencl")
    try:
        platforms = cl.get_platforms()
    except cl.Error:  # the ICD loader raises where it finds no driver at all
        return []
    found = []
    for one in platforms:
        try:
            found += [(one, device) for device in one.get_devices()]
        except cl.Error:  # a platform without devices
            continue
    return found


def _opencl_advice() -> str:
    if sys.platform == "linux" and platform.machine() == "x86_64":
        return "run `make setup`: it brings PoCL, which runs OpenCL on any x86-64 CPU"
    if sys.platform == "linux":
        return "install PoCL from the distribution (Debian, Ubuntu: apt install pocl-opencl-icd)"
    if sys.platform == "win32":
        return "install Intel's OpenCL runtime for CPUs (pip install intel-opencl-rt)"
    return "use environment.yml (conda) less its CUDA lines: its PoCL runs OpenCL on a Mac's CPU"


def probe_opencl() -> Finding:
    """OpenCL platforms and devices. Not needed where a GPU is usable, so never "missing" by itself."""
    found = _opencl_devices()
    if not found:
        return Finding("OpenCL", "optional", "no OpenCL device was found", _opencl_advice())
    each = []
    for one, device in found:
        driver = f"{one.name.strip()}, {_one_line(one.version)}"
        each.append(f"{device.name.strip()} with {device.max_compute_units} units ({driver})")
    return Finding("OpenCL", "ok", "; ".join(each))


def probe_halves() -> Finding:
    """Whether an OpenCL CPU device splits in two: one part the matrix unit, the other the vector unit."""
    name = "two halves"
    cl = import_module("pyopencl")
    cpus = [device for _, device in _opencl_devices() if device.type & cl.device_type.CPU]
    if not cpus:
        return Finding(name, "optional", "no OpenCL device is a CPU, so there is nothing to split")
    cores = cpus[0].max_compute_units
    if cores < 2:
        detail = "the CPU device has one core: the streams share it, and races by chance are rare"
        return Finding(name, "optional", detail, "use --force to see a race every time")
    counts = [cores - cores // 2, cores // 2]
    try:
        cpus[0].create_sub_devices([cl.device_partition_property.BY_COUNTS, *counts, 0])
    except cl.Error as error:
        detail = f"{cpus[0].name.strip()} does not split ({error}): the streams share its {cores} cores"
        return Finding(name, "optional", detail, "PoCL's CPU device splits: " + _opencl_advice())
    return Finding(name, "ok", f"{cpus[0].name.strip()} splits into {counts[0]} + {counts[1]} cores")


def probe_oclgrind() -> Finding:
    """Oclgrind, with which the tests check the kernels for races and bad accesses."""
    path = shutil.which("oclgrind")
    if path is None:
        advice = "only the kernel checks in the tests need it (Debian, Ubuntu: apt install oclgrind)"
        return Finding("Oclgrind", "optional", "not found on PATH", advice)
    return Finding("Oclgrind", "ok", path)


def probe_chromium() -> Finding:
    """Chromium, in which the tests drive JupyterLab."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        advice = "only the browser tests need it (Debian: apt install chromium)"
        return Finding("Chromium", "optional", "not found on PATH", advice)
    return Finding("Chromium", "ok", path)


def probe_kernels() -> Finding:
    """The folder of CUDA C sources."""
    folder = import_module("flashnorm_lab.resources").kernels_folder()
    names = sorted(path.stem for path in folder.glob("*.cu"))
    if not names:
        return Finding(
            "kernels", "missing", f"{folder} holds no .cu file", "install the lab again, from a full clone"
        )
    return Finding("kernels", "ok", f"{folder}: {', '.join(names)}")


def probe_cache() -> Finding:
    """The folder that keeps the language model once it was fetched, and whether it can be written."""
    folder = import_module("flashnorm_lab.models").cache_folder()
    standing = folder
    while not standing.exists() and standing != standing.parent:
        standing = standing.parent
    try:
        with tempfile.TemporaryFile(dir=standing):
            pass
    except OSError:
        advice = "make it writable, or set FLASHNORM_LAB_CACHE to a folder that is"
        return Finding("model cache", "missing", f"{folder} cannot be written", advice)
    kept = sorted(path.parent.name for path in folder.glob("*/*.safetensors"))
    free = f"{shutil.disk_usage(standing).free / 1e9:.1f} GB free"
    if not kept:
        advice = "nothing: SmolLM2 is fetched on first use"
        return Finding("model cache", "optional", f"{folder}: no model yet, {free}", advice)
    return Finding("model cache", "ok", f"{folder}: {', '.join(dict.fromkeys(kept))}; {free}")


def probe_device() -> Finding:
    """The device that the lab picks when none is named, and why."""
    try:
        device = import_module("flashnorm_lab.devices").default()
    except LabError as error:
        return Finding("default device", "missing", _one_line(error), _opencl_advice())
    return Finding("default device", "ok", f"{device.kind}: {device.name} ({device.reason})")


# What becomes of a probe that fails in a way it did not foresee: is the lab lost without it?
PROBES: tuple[tuple[str, Callable[[], Finding], Status], ...] = (
    ("Python", probe_python, "missing"),
    ("machine", probe_machine, "optional"),
    ("packages", probe_packages, "missing"),
    ("torch", probe_torch, "missing"),
    ("CuPy", probe_cupy, "optional"),
    ("NVRTC", probe_nvrtc, "optional"),
    ("GPU", probe_gpu, "optional"),
    ("OpenCL", probe_opencl, "optional"),
    ("two halves", probe_halves, "optional"),
    ("Oclgrind", probe_oclgrind, "optional"),
    ("Chromium", probe_chromium, "optional"),
    ("kernels", probe_kernels, "missing"),
    ("model cache", probe_cache, "missing"),
    ("default device", probe_device, "missing"),
)


def _one_line(error: BaseException | str) -> str:
    return " ".join(str(error).split())


def guarded(name: str, probe: Callable[[], Finding], otherwise: Status) -> Finding:
    """Run one probe; whatever it raises becomes a Finding of status `otherwise`."""
    try:
        return probe()
    except LabError as error:
        return Finding(name, otherwise, _one_line(error))
    except ModuleNotFoundError as error:
        return Finding(name, otherwise, f"not installed ({_one_line(error)})", "run `make setup`")
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), "no message")
        advice = "run `make clean setup`; if it stays, that message is where to start"
        return Finding(name, otherwise, f"does not work: {type(error).__name__}: {_one_line(first)}", advice)


def examine(probes: Iterable[tuple[str, Callable[[], Finding], Status]] = PROBES) -> list[Finding]:
    """Run the probes, one after the other: seconds, since torch is imported. Nothing found makes it raise."""
    return [guarded(*probe) for probe in probes]


def can_run(findings: Sequence[Finding]) -> bool:
    """Whether the lab can run: nothing that it needs is missing."""
    return all(finding.status != "missing" for finding in findings)


def report(findings: Sequence[Finding]) -> str:
    """The findings as text: one line each, the advice under it, and the verdict at the end."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:<8}  {finding.name:<{width}}  {finding.detail}")
        if finding.advice:
            lines.append(f"{'':<8}  {'':<{width}}  -> {finding.advice}")
    missing = [finding.name for finding in findings if finding.status == "missing"]
    verdict = "The lab can run here."
    if missing:
        verdict = f"The lab cannot run yet; missing: {', '.join(missing)}."
    return "\n".join([*lines, "", verdict])


def as_dict(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings as one JSON-ready object: version, can_run, findings (name, status, detail, advice)."""
    return {
        "version": import_module("flashnorm_lab").__version__,
        "can_run": can_run(findings),
        "findings": [vars(finding) for finding in findings],
    }
