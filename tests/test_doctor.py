"""The doctor: each probe alone, with the machine bent into shape, and the verb as a person runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from flashnorm_lab import doctor
from flashnorm_lab.doctor import Finding
from flashnorm_lab.errors import LabError


def stand_in(monkeypatch: pytest.MonkeyPatch, **modules: object) -> None:
    """Let the doctor import these instead of the modules of that name; an exception is raised on import."""
    real = doctor.import_module

    def import_module(name: str):
        replacement = modules.get(name.replace(".", "_"))
        if replacement is None:
            return real(name)
        if isinstance(replacement, Exception):
            raise replacement
        return replacement

    monkeypatch.setattr(doctor, "import_module", import_module)


class FakeDevice:
    def __init__(self, name: str = "a CPU", units: int = 2, kind: int = 2, splits: bool = True):
        self.name, self.max_compute_units, self.type, self.splits = name, units, kind, splits
        self.asked: list[int] = []

    def create_sub_devices(self, properties: list[int]) -> list[FakeDevice]:
        if not self.splits:
            raise FakeCL.Error("INVALID_VALUE")
        self.asked = properties
        return [FakeDevice(units=count) for count in properties[1:-1]]


class FakeCL:
    class Error(Exception):
        pass

    device_type = types.SimpleNamespace(CPU=2, GPU=4)
    device_partition_property = types.SimpleNamespace(BY_COUNTS=0x1087)

    def __init__(self, *devices: FakeDevice, fails: bool = False):
        self.devices, self.fails = devices, fails

    def get_platforms(self) -> list:
        if self.fails:
            raise self.Error("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")
        name = "Portable Computing Language"
        get = lambda: list(self.devices)  # noqa: E731
        return [types.SimpleNamespace(name=name, version="OpenCL 3.0  PoCL", get_devices=get)]


def test_python_that_is_too_old_is_missing(monkeypatch):
    assert doctor.probe_python().status == "ok"
    monkeypatch.setattr(doctor, "OLDEST_PYTHON", (9, 0))
    assert doctor.probe_python().status == "missing"


def test_packages_are_compared_with_the_projects_requirements(monkeypatch):
    versions = {"numpy": "2.4.6", "pandas": "1.0"}

    def version(name: str) -> str:
        if name not in versions:
            raise doctor.metadata.PackageNotFoundError(name)
        return versions[name]

    required = ["numpy>=2.4", "torch==9", "other; sys_platform == 'nowhere'", "tool; extra == 'dev'"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: required)
    monkeypatch.setattr(doctor.metadata, "version", version)
    assert doctor.probe_packages() == Finding("packages", "ok", "numpy 2.4.6")

    required.append("pandas>=3.1")
    finding = doctor.probe_packages()
    assert finding.status == "optional"
    assert "pandas is 1.0, expected >=3.1" in finding.detail

    required.append("plotly>=7")
    finding = doctor.probe_packages()
    assert (finding.status, finding.detail) == ("missing", "not installed: plotly")
    assert "make setup" in finding.advice


def test_no_opencl_platform_is_told_with_advice(monkeypatch):
    for broken in (FakeCL(fails=True), FakeCL()):
        stand_in(monkeypatch, pyopencl=broken)
        finding = doctor.probe_opencl()
        assert (finding.status, finding.detail) == ("optional", "no OpenCL device was found")
        assert finding.advice
        assert doctor.probe_halves().status == "optional"


@pytest.mark.parametrize(
    ("system", "machine", "word"),
    [
        ("linux", "x86_64", "make setup"),
        ("linux", "aarch64", "pocl-opencl-icd"),
        ("win32", "AMD64", "intel-opencl-rt"),
        ("darwin", "arm64", "environment.yml"),
    ],
)
def test_opencl_advice_fits_the_system(monkeypatch, system, machine, word):
    monkeypatch.setattr(doctor.sys, "platform", system)
    monkeypatch.setattr(doctor.platform, "machine", lambda: machine)
    assert word in doctor._opencl_advice()


def test_cpu_device_splits_in_two(monkeypatch):
    device = FakeDevice(units=5)
    stand_in(monkeypatch, pyopencl=FakeCL(FakeDevice("a GPU", kind=4), device))
    finding = doctor.probe_halves()
    assert (finding.status, finding.detail) == ("ok", "a CPU splits into 3 + 2 cores")
    assert device.asked == [FakeCL.device_partition_property.BY_COUNTS, 3, 2, 0]
    assert "a GPU" in doctor.probe_opencl().detail


@pytest.mark.parametrize(
    ("device", "words"), [(FakeDevice(units=1), "one core"), (FakeDevice(splits=False), "does not split")]
)
def test_cpu_device_that_does_not_split(monkeypatch, device, words):
    stand_in(monkeypatch, pyopencl=FakeCL(device))
    finding = doctor.probe_halves()
    assert finding.status == "optional"
    assert words in finding.detail
    assert finding.advice


def test_gpu_is_told_with_its_reason(monkeypatch):
    cuda = types.SimpleNamespace(unusable=lambda: "no NVIDIA driver")
    stand_in(monkeypatch, flashnorm_lab_devices_cuda=cuda, cupy=ImportError("libcudart"))
    finding = doctor.probe_gpu()
    assert (finding.status, finding.detail) == ("optional", "no NVIDIA driver")
    assert "driver" in finding.advice


def test_gpu_beside_a_cpu_torch_is_told_apart(monkeypatch):
    runtime = types.SimpleNamespace(getDeviceCount=lambda: 1)
    cupy = types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime))
    torch = types.SimpleNamespace(__version__="2.13.0+cpu", version=types.SimpleNamespace(cuda=None))
    cuda = types.SimpleNamespace(unusable=lambda: "torch is a CPU build")
    stand_in(monkeypatch, flashnorm_lab_devices_cuda=cuda, cupy=cupy, torch=torch)
    assert "install torch 2.13.0 for CUDA 13" in doctor.probe_gpu().advice


def test_usable_gpu_is_named(monkeypatch):
    runtime = types.SimpleNamespace(
        getDevice=lambda: 0,
        getDeviceProperties=lambda _: {"name": b"NVIDIA Thing", "major": 9, "minor": 0},
        driverGetVersion=lambda: 13010,
    )
    cupy = types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime))
    stand_in(monkeypatch, flashnorm_lab_devices_cuda=types.SimpleNamespace(unusable=lambda: None), cupy=cupy)
    assert doctor.probe_gpu().detail == "NVIDIA Thing, compute capability 9.0, driver for CUDA 13.1"


def test_nvrtc_really_compiles():
    if sys.platform == "darwin":
        pytest.skip("CuPy has no wheel for macOS")
    finding = doctor.probe_nvrtc()
    assert finding.status == "ok"
    assert "bytes of machine code" in finding.detail


@pytest.mark.parametrize("probe", [doctor.probe_oclgrind, doctor.probe_chromium])
def test_programs_are_optional(monkeypatch, tmp_path, probe):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probe().status == "optional"
    for name in ("oclgrind", "chromium"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert probe().status == "ok"
    assert str(tmp_path) in probe().detail


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FLASHNORM_LAB_CACHE", str(tmp_path / "deep" / "cache"))
    finding = doctor.probe_cache()
    assert finding.status == "optional"
    assert "no model yet" in finding.detail

    (tmp_path / "deep/cache/SomeModel").mkdir(parents=True)
    (tmp_path / "deep/cache/SomeModel/model.safetensors").touch()
    finding = doctor.probe_cache()
    assert finding.status == "ok"
    assert "SomeModel" in finding.detail

    (tmp_path / "a-file").touch()
    monkeypatch.setenv("FLASHNORM_LAB_CACHE", str(tmp_path / "a-file" / "cache"))
    finding = doctor.probe_cache()
    assert finding.status == "missing"
    assert "FLASHNORM_LAB_CACHE" in finding.advice

    monkeypatch.setenv("FLASHNORM_LAB_CACHE", str(tmp_path))

    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    assert doctor.probe_cache().status == "missing"


def test_kernels_that_are_absent_are_missing(monkeypatch, tmp_path):
    assert doctor.probe_kernels().status == "ok"
    stand_in(monkeypatch, flashnorm_lab_resources=types.SimpleNamespace(kernels_folder=lambda: tmp_path))
    assert doctor.probe_kernels().status == "missing"


def test_device_is_missing_when_none_can_be_used(monkeypatch):
    def default():
        raise LabError("no device can be used: CUDA: no driver;\nOpenCL: no platform")

    stand_in(monkeypatch, flashnorm_lab_devices=types.SimpleNamespace(default=default))
    finding = doctor.probe_device()
    assert finding.status == "missing"
    assert finding.detail == "no device can be used: CUDA: no driver; OpenCL: no platform"
    device = types.SimpleNamespace(kind="opencl", name="a CPU", reason="no GPU")
    stand_in(monkeypatch, flashnorm_lab_devices=types.SimpleNamespace(default=lambda: device))
    assert doctor.probe_device().detail == "opencl: a CPU (no GPU)"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            ImportError("libcuda.so.1: cannot open it\nmore of it"),
            "ImportError: libcuda.so.1",
        ),
        (ModuleNotFoundError("No module named 'cupy'"), "not installed"),
        (RuntimeError(), "RuntimeError: no message"),
        (LabError("two\nlines"), "two lines"),
    ],
)
def test_any_failure_becomes_a_finding(monkeypatch, error, words):
    stand_in(monkeypatch, cupy=error, torch=error)
    for name, probe, otherwise in (
        ("CuPy", doctor.probe_cupy, "optional"),
        ("torch", doctor.probe_torch, "missing"),
    ):
        finding = doctor.guarded(name, probe, otherwise)
        assert (finding.name, finding.status) == (name, otherwise)
        assert words in finding.detail
        assert "\n" not in finding.detail


def test_report_says_what_is_missing():
    good = Finding("one", "ok", "there")
    less = Finding("two", "optional", "not there", "get it")
    bad = Finding("three", "missing", "gone", "fetch it")
    assert doctor.can_run([good, less])
    assert not doctor.can_run([good, bad])
    assert doctor.report([good, less]).splitlines() == [
        "ok        one  there",
        "optional  two  not there",
        "               -> get it",
        "",
        "The lab can run here.",
    ]
    assert doctor.report([good, bad]).endswith("The lab cannot run yet; missing: three.")
    assert json.loads(json.dumps(doctor.as_dict([bad])))["findings"] == [
        {"name": "three", "status": "missing", "detail": "gone", "advice": "fetch it"}
    ]


def run_doctor(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    line = [sys.executable, "-m", "flashnorm_lab", "doctor", *arguments]
    return subprocess.run(line, capture_output=True, text=True, env={**os.environ, **variables})


def test_doctor_finds_that_the_lab_can_run_here():
    run = run_doctor("--json")
    found = json.loads(run.stdout)
    assert run.returncode == 0, run.stdout
    assert found["can_run"] is True
    assert [finding["name"] for finding in found["findings"]] == [name for name, _, _ in doctor.PROBES]
    (device,) = [f for f in found["findings"] if f["name"] == "default device"]
    assert device["status"] == "ok"


def test_doctor_comes_to_its_end_with_broken_packages(tmp_path: Path):
    for name in ("cupy", "pyopencl", "torch"):
        (tmp_path / f"{name}.py").write_text("raise OSError('a library of it does not load')\n")
    run = run_doctor(PYTHONPATH=str(tmp_path))
    assert run.returncode == 1
    assert "Traceback" not in run.stdout + run.stderr
    assert "OSError: a library of it does not load" in run.stdout
    assert run.stdout.splitlines()[-1].startswith("The lab cannot run yet; missing:")
