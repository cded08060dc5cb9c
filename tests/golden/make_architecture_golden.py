"""Write architectures.npz: logits of transformers, float32, for the tiny random checkpoint of every architecture.

    python -m tests.golden.make_architecture_golden     (needs transformers, torch and gguf; run from the root)

Kept for every case of tests/models/checkpoints.py: all logits of the whole sequence, and of its beginning where another
length gives others (longrope).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.data import GOLDEN_DIRECTORY
from tests.models.checkpoints import CASES, SHORT_TOKENS, TOKENS, tokens, write_directory


def main() -> None:
    golden = {
        "made_by": np.array(f"transformers {transformers.__version__}, torch {torch.__version__}, float32, eager")
    }
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            directory = write_directory(Path(folder) / case, case)
            network, loading = transformers.AutoModelForCausalLM.from_pretrained(
                directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
            )
            problems = [loading[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")]
            assert not any(problems), (case, problems)
            assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
            assert network.config._attn_implementation == "eager"
            for count in (TOKENS, SHORT_TOKENS) if "longrope" in case else (TOKENS,):
                with torch.inference_mode():
                    logits = network.eval()(torch.tensor([tokens(count)])).logits[0]
                golden[case if count == TOKENS else f"{case}/short"] = logits.numpy()
                print(f"{case}: {count} positions, logits of deviation {logits.std().item():.2f}")
    np.savez_compressed(GOLDEN_DIRECTORY / "architectures.npz", **golden)


if __name__ == "__main__":
    main()
