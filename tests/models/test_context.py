"""What a loaded model costs: KV cache and rotary tables, which a memory budget pays for together, and no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.tiny import TinyShape, write_tiny_model
from ultrafast.errors import ConfigurationError
from ultrafast.models import load_model, resources

CLAIMED = 1 << 24
SHAPE = TinyShape(
    hidden_size=32, feed_forward_size=32, head_count=1, kv_head_count=1, head_size=32, layer_count=1,
    context_length=CLAIMED,
)  # fmt: skip
KV_BYTES = 2 * 32 * 2  # a token's keys and values, float16
ROTARY_BYTES = 2 * 16 * 4  # a position's cosines and sines, float32
BUDGET = 16_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "tiny.gguf", "F32", SHAPE)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def test_a_claimed_context_takes_no_more_than_the_budget(path: Path) -> None:
    before = resident_bytes()
    model = load_model(path, threads=1, memory_budget_bytes=BUDGET)
    grown = resident_bytes() - before
    assert BUDGET - 32 * (KV_BYTES + ROTARY_BYTES) < model.context * (KV_BYTES + ROTARY_BYTES) <= BUDGET
    assert model.context * ROTARY_BYTES + model.block_count * model.block_tokens * KV_BYTES <= BUDGET
    assert model.block_count * model.block_tokens >= model.context
    assert grown < 2 * BUDGET
    model.close()


def test_a_claimed_context_beyond_the_usual_must_be_asked_for(path: Path) -> None:
    assert load_model(path, threads=1, memory_budget_bytes=10 * BUDGET).context == 1 << 17
    assert load_model(path, threads=1, memory_budget_bytes=10 * BUDGET, context=200_000).context == 200_000


def test_the_default_budget_is_a_share_of_the_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "available_memory_bytes", lambda: 4 * BUDGET)
    model = load_model(path, threads=1)
    assert model.context == load_model(path, threads=1, memory_budget_bytes=BUDGET).context


def test_a_context_beyond_the_budget_is_refused(path: Path) -> None:
    # What fits where only the KV cache is counted.
    wanted = BUDGET // KV_BYTES
    with pytest.raises(
        ConfigurationError, match=r"needs 32\.0 MB of KV cache and rotary tables, the memory budget is 16\.0 MB"
    ) as caught:
        load_model(path, threads=1, context=wanted, memory_budget_bytes=BUDGET)
    assert str(caught.value).endswith("choose a smaller --context")


def test_a_small_context_leaves_the_rest_to_more_conversations(path: Path) -> None:
    model = load_model(path, threads=1, context=100, memory_budget_bytes=BUDGET)
    assert (model.context, model.block_count) == (100, 16 * 4)


def test_a_loaded_model_lets_go_of_its_file(path: Path) -> None:
    model = load_model(path, threads=1, context=32)
    # Its weights are laid out anew: pages of the file beside them would be the model's memory once more.
    assert str(path) not in Path("/proc/self/maps").read_text(encoding="utf-8")
    model.close()


def test_a_model_larger_than_the_memory_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_model(tmp_path / "large.gguf", "F16", TinyShape())
    monkeypatch.setattr(resources, "available_memory_bytes", lambda: 1000)
    with pytest.raises(ConfigurationError, match=r"needs 0\.0 GB of memory and 0\.0 GB is available: take a smaller"):
        load_model(path)
