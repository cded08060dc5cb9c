"""Write reference.npz: logits of transformers, float32, over real English text.

    python -m tests.golden.make_reference_golden MODEL.gguf     (needs transformers, torch; run from the root)

The weights are dequantised by transformers from the same file. Kept for every position: the 16 largest logits with
their ids, the logits of 32 fixed ids, and the log of the sum of all exponentials.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.data import ENGLISH, GOLDEN_DIRECTORY

LENGTHS = (300, 128, 96, 64)  # tokens of each sequence
STARTS = (180, 40_000, 81_000, 120_000)  # where in the text each begins, in letters
TOP = 16
SAMPLE = 32


def main(model: str) -> None:
    path = Path(model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    network = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert network.config._attn_implementation == "eager"
    vocabulary = network.config.vocab_size
    sample_ids = (np.arange(SAMPLE, dtype=np.int64) * 1_543 + 7) % vocabulary
    tokens, rows = [], []
    for start, length in zip(STARTS, LENGTHS, strict=True):
        ids = tokenizer(ENGLISH[start : start + 8 * length], add_special_tokens=False).input_ids[:length]
        assert len(ids) == length
        with torch.inference_mode():
            rows.append(network(torch.tensor([ids])).logits[0])
        tokens += ids
    logits = torch.cat(rows)
    assert logits.dtype == torch.float32
    top = logits.topk(TOP, dim=-1)
    np.savez_compressed(
        GOLDEN_DIRECTORY / "reference.npz",
        made_by=np.array(f"transformers {transformers.__version__}, torch {torch.__version__}, float32, eager"),
        lengths=np.array(LENGTHS, np.int32),
        tokens=np.array(tokens, np.int32),
        top_ids=top.indices.numpy().astype(np.int32),
        top_logits=top.values.numpy(),
        sample_ids=sample_ids.astype(np.int32),
        sample_logits=logits[:, sample_ids].numpy(),
        log_sum_exp=torch.logsumexp(logits.double(), dim=-1).numpy(),
    )
    print(len(tokens), "positions")


if __name__ == "__main__":
    main(sys.argv[1])
