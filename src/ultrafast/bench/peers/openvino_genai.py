"""Worker for OpenVINO GenAI, which reads GGUF files itself."""

from __future__ import annotations

import time
from importlib.metadata import version

import numpy as np
import openvino
import openvino_genai

from .protocol import LoadOptions, LoadReport, Timing, serve


class OpenVinoGenAi:
    """An ``LLMPipeline`` on the CPU."""

    def __init__(self, options: LoadOptions) -> None:
        self._pipeline = openvino_genai.LLMPipeline(
            options.model_path, "CPU", {"INFERENCE_NUM_THREADS": options.threads}
        )

    def decode(self, prompt: list[int], count: int) -> Timing:
        """See :class:`Runtime`. The runtime's own clock gives the time of the first token and of the whole."""
        result = self._generate(prompt, count + 1)
        milliseconds = result.perf_metrics.get_generate_duration().mean - result.perf_metrics.get_ttft().mean
        return Timing(milliseconds / 1000, list(result.tokens[0]))

    def prefill(self, prompt: list[int]) -> Timing:
        """See :class:`Runtime`."""
        start = time.perf_counter()
        result = self._generate(prompt, 1)
        return Timing(time.perf_counter() - start, list(result.tokens[0]))

    def score(self, tokens: list[int], path: str) -> None:
        """See :class:`Runtime`."""
        raise NotImplementedError("OpenVINO GenAI gives no logits")

    def close(self) -> None:
        """The pipeline is freed with the process."""

    def _generate(self, prompt: list[int], count: int) -> openvino_genai.EncodedResults:
        ids = np.array([prompt], dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        configuration = openvino_genai.GenerationConfig()
        configuration.max_new_tokens = configuration.min_new_tokens = count
        configuration.ignore_eos = True
        configuration.do_sample = False
        configuration.apply_chat_template = False
        return self._pipeline.generate(inputs, configuration)


def load(options: LoadOptions) -> tuple[OpenVinoGenAi, LoadReport]:
    """Convert the file in memory and compile it."""
    start = time.perf_counter()
    runtime = OpenVinoGenAi(options)
    return runtime, LoadReport(
        load_seconds=time.perf_counter() - start,
        versions={"openvino-genai": version("openvino-genai"), "openvino": openvino.get_version()},
        threads=options.threads,
        detail="LLMPipeline",
    )


def main() -> None:
    """Run the worker."""
    serve(load)
