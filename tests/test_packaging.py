"""The project file, the lock, the conda environment and the wheel say and hold the same things."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CONDA_NAMES = {
    "cupy-cuda13x": "cupy",
    "huggingface-hub": "huggingface_hub",
    "nvidia-cuda-nvrtc": "cuda-nvrtc",
    "nvidia-cuda-runtime": "cuda-cudart-dev",
    "playwright": "playwright-python",
    "pocl-binary-distribution": "pocl",
    "torch": "pytorch",
}
"""The packages that conda-forge knows by another name than PyPI does."""

IMPORT_NAMES = {"cupy-cuda13x": ["cupy", "cupyx", "cupy_backends"], "pyyaml": ["yaml"], "pillow": ["PIL"],
                "protobuf": ["google"], "traceinsight": ["hta"]}  # fmt: skip
"""The packages that are imported by another name than they are installed by."""

PLATFORMS = {
    "Linux x86-64": {"sys_platform": "linux", "platform_machine": "x86_64", "os_name": "posix"},
    "Linux aarch64": {"sys_platform": "linux", "platform_machine": "aarch64", "os_name": "posix"},
    "Windows": {"sys_platform": "win32", "platform_machine": "AMD64", "os_name": "nt"},
    "macOS": {"sys_platform": "darwin", "platform_machine": "arm64", "os_name": "posix"},
}
CUDA_PACKAGES = {"cupy-cuda13x", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime"}


@pytest.fixture(scope="module")
def project(root: Path) -> dict:
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def requirements(project: dict) -> list[Requirement]:
    return [Requirement(r) for r in project["dependencies"] + project["optional-dependencies"]["dev"]]


@pytest.fixture(scope="module")
def lock(root: Path) -> dict[str, Requirement]:
    lines = (root / "requirements.lock").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    assert len({pin.name for pin in pins}) == len(pins)
    return {canonicalize_name(pin.name): pin for pin in pins}


def applies(requirement: Requirement, platform: str, python: str = "3.11") -> bool:
    versions = {"python_version": python, "python_full_version": f"{python}.0"}
    values = {**PLATFORMS[platform], **versions, "extra": ""}
    return requirement.marker is None or requirement.marker.evaluate(values)


def test_conda_environment_names_the_same_packages_and_versions(root, project, requirements):
    environment = yaml.safe_load((root / "environment.yml").read_text())
    assert environment["channels"] == ["conda-forge"]
    *listed, by_pip = environment["dependencies"]
    conda = {name: specifier for name, _, specifier in (d.partition(" ") for d in listed)}
    conda |= {r.name: str(r.specifier) for r in map(Requirement, by_pip["pip"])}
    assert len(conda) == len(listed) + len(by_pip["pip"])
    assert set(conda.pop("python").split(",")) == set(project["requires-python"].split(","))
    assert conda.pop("pip") == ""

    def parts(specifier: str) -> set[str]:
        return set(specifier.replace(" ", "").split(","))

    ours = {CONDA_NAMES.get(r.name, r.name): r for r in requirements}
    assert conda.keys() == ours.keys()
    for name, requirement in ours.items():
        assert parts(conda[name]) == parts(str(requirement.specifier)), name


@pytest.mark.parametrize("platform", PLATFORMS)
def test_lock_pins_what_the_project_requires(platform, requirements, lock):
    for requirement in requirements:
        if not applies(requirement, platform):
            continue
        pin = lock[canonicalize_name(requirement.name)]
        assert applies(pin, platform), f"{pin} is left out on {platform}"
        (specifier,) = pin.specifier
        assert specifier.operator == "=="
        assert requirement.specifier.contains(specifier.version), f"{pin} does not fit {requirement}"


def test_cuda_packages_are_left_out_on_macos_alone(lock):
    for name in CUDA_PACKAGES:
        assert [p for p in PLATFORMS if applies(lock[name], p)] == [
            "Linux x86-64",
            "Linux aarch64",
            "Windows",
        ]


def test_torch_is_pinned_and_its_cuda_libraries_are_left_to_it(root, requirements, lock):
    assert [str(r) for r in requirements if r.name == "torch"] == ["torch==2.13.0"]
    assert str(lock["torch"]) == "torch==2.13.0"
    theirs = {n for n in lock if re.match(r"(nvidia|cuda|triton)\b", n)} - CUDA_PACKAGES
    assert theirs <= {"cuda-pathfinder"}  # which CuPy requires by itself
    text = (root / "requirements.lock").read_text()
    assert "://" not in text
    assert "--" not in "".join(line for line in text.splitlines() if not line.startswith("#"))


def test_cuda_packages_share_the_major_of_torchs_build(lock):
    # torch 2.13.0 for Linux requires cuda-toolkit 13.0; where torch is a CUDA build it says so itself.
    torch = pytest.importorskip("torch")
    versions = {name: next(iter(lock[name].specifier)).version for name in CUDA_PACKAGES}
    assert versions["nvidia-cuda-nvrtc"].startswith("13.0.")
    assert versions["nvidia-cuda-runtime"].startswith("13.0.")
    if torch.version.cuda is not None:
        assert torch.version.cuda == "13.0"


def test_every_import_is_a_named_requirement(root, project):
    named = {"flashnorm_lab"}
    for line in project["dependencies"]:
        name = Requirement(line).name
        named.update(IMPORT_NAMES.get(name, [name.replace("-", "_")]))
    found: dict[str, Path] = {}
    for path in (root / "flashnorm_lab").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module or ""]
            else:
                continue
            for module in modules:
                found.setdefault(module.partition(".")[0], path)
    foreign = {name: path for name, path in found.items() if name not in sys.stdlib_module_names}
    assert foreign  # the walk sees imports at all
    assert {n: str(p) for n, p in foreign.items() if n not in named} == {}


def test_version_is_the_changelogs_newest(root):
    import flashnorm_lab

    newest = re.search(r"^## (\d+\.\d+\.\d+)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == flashnorm_lab.__version__


def test_import_is_light():
    program = (
        "import sys, time; start = time.perf_counter(); import flashnorm_lab;"
        "took = time.perf_counter() - start;"
        "heavy = {'numpy', 'torch', 'cupy', 'pyopencl', 'plotly', 'ipywidgets', 'pandas', 'transformers'};"
        "print(took, *sorted(heavy & sys.modules.keys()))"
    )
    line = [sys.executable, "-c", program]
    tries = [subprocess.run(line, capture_output=True, text=True) for _ in range(3)]
    assert [run.returncode for run in tries] == [0, 0, 0]
    assert [run.stdout.split()[1:] for run in tries] == [[], [], []]
    assert min(float(run.stdout.split()[0]) for run in tries) < 0.1


def test_submodules_are_loaded_on_first_use():
    program = "import flashnorm_lab; print(flashnorm_lab.resources.kernels_folder().name)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "kernels\n"), run.stderr
    import flashnorm_lab

    with pytest.raises(AttributeError, match="no attribute 'nothing_like_it'"):
        _ = flashnorm_lab.nothing_like_it


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    line = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    run = subprocess.run([*line, f"--wheel-dir={folder}", str(root)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_wheel_holds_the_kernels_and_the_data_once(root, wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for folder in ("kernels", "data"):
            files = {str(p.relative_to(root / folder)) for p in (root / folder).rglob("*") if p.is_file()}
            inside = {n.removeprefix(f"flashnorm_lab/_{folder}/") for n in names if f"/_{folder}/" in n}
            assert files == inside
        kernels = [n for n in names if n.endswith(".cu")]
        assert "flashnorm_lab/_kernels/projection.cu" in kernels
        assert all(n.startswith("flashnorm_lab/_kernels/") for n in kernels)
        (licence,) = [n for n in names if n.endswith("licenses/LICENSE")]
        assert "Apache License" in archive.read(licence).decode()
        for top in {n.partition("/")[0] for n in names}:
            assert top == "flashnorm_lab" or top.endswith(".dist-info")


@pytest.mark.slow
def test_an_unpacked_wheel_finds_its_kernels_and_says_that_notebooks_need_a_clone(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    program = (
        "from flashnorm_lab import kernels, resources; print(resources.kernels_folder());"
        "print(resources.data_folder()); print('__kernel' in kernels.load('projection').opencl_source())"
    )

    def python(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    run = python("-c", program)
    assert run.returncode == 0, run.stderr
    package = tmp_path / "flashnorm_lab"
    assert run.stdout.split() == [str(package / "_kernels"), str(package / "_data"), "True"]

    run = python("-m", "flashnorm_lab", "lab")
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert "clone" in run.stderr


# --- make ---


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """The files that `make setup` reads, in a folder of their own."""
    (tmp_path / "tools").mkdir()
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "tools/make_venv.sh"):
        (tmp_path / name).write_bytes((root / name).read_bytes())
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_make_says_in_one_line_that_python_is_too_old_or_absent(copy):
    old = script(copy / "old-python", "echo 'Python 3.9.2'; case $* in *sys.exit*) exit 1;; esac")
    for python, found in ((str(old), "Python 3.9.2"), ("no-such-python", "not there")):
        run = make(copy, "setup", f"PYTHON={python}")
        assert run.returncode != 0
        lines = [line for line in run.stderr.splitlines() if not line.startswith("make")]
        assert len(lines) == 1
        assert "3.11 to 3.14" in lines[0]
        assert f"{python} is {found}" in lines[0]


def test_make_says_in_one_line_that_venv_is_missing(copy):
    bare = script(copy / "bare-python", "case $* in *ensurepip*) exit 1;; esac")
    run = make(copy, "setup", f"PYTHON={bare}")
    assert run.returncode != 0
    lines = [line for line in run.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1
    assert "python3-venv" in lines[0]


def test_a_finished_setup_is_not_done_again_and_an_unfinished_one_is(copy):
    # Stands in for an environment: it writes down what it is asked, and fails to install when told so.
    (copy / ".venv/bin").mkdir(parents=True)
    fake = 'echo "$*" >> calls; case "$*" in *requirements*) test ! -e broken;; esac'
    script(copy / ".venv/bin/python", fake)

    def installs() -> int:
        return (copy / "calls").read_text().count("-r requirements.lock")

    (copy / "broken").touch()
    assert make(copy, "setup").returncode != 0
    assert installs() == 1
    (copy / "broken").unlink()
    assert make(copy, "setup").returncode == 0
    assert installs() == 2

    start = time.perf_counter()
    assert make(copy, "setup").returncode == 0
    assert time.perf_counter() - start < 5
    assert installs() == 2

    later = time.time() + 10
    os.utime(copy / "requirements.lock", (later, later))
    assert make(copy, "setup").returncode == 0
    assert installs() == 3

    moved = copy.rename(copy.with_name(copy.name + "-moved"))
    os.utime(moved / "requirements.lock", (0, 0))
    assert make(moved, "setup").returncode == 0
    assert (moved / "calls").read_text().count("-r requirements.lock") == 4


def test_lab_hands_its_arguments_on(copy):
    (copy / ".venv/bin").mkdir(parents=True)
    script(copy / ".venv/bin/python", "true")
    script(copy / ".venv/bin/flashnorm-lab", 'echo "called: $*"')
    run = make(copy, "lab", "LAB_ARGS=--no-browser --port=8899")
    assert run.returncode == 0, run.stderr
    assert "called: lab --no-browser --port=8899" in run.stdout
