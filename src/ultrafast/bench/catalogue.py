"""The peers: which package in which version, and how it is built."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Environment:
    """One virtual environment: its pinned packages and how pip is to install them."""

    name: str
    requirements: tuple[str, ...]
    pip_options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict, hash=False)
    remark: str = "downloading"

    @property
    def override_variable(self) -> str:
        """The variable that names a Python interpreter to use instead of an environment made here."""
        return f"ULTRAFAST_BENCH_PEER_{self.name.replace('-', '_').upper()}"


@dataclass(frozen=True)
class Peer:
    """One runtime to measure against: its worker's module, its environment, a data type where it has several."""

    name: str
    module: str
    environment: Environment
    variant: str | None = None
    gives_logits: bool = True


_LLAMA_CPP = Environment(
    name="llama-cpp",
    requirements=("llama-cpp-python==0.3.36", "numpy==2.4.6"),
    # From source, so that the compiler uses this CPU's own instruction set: the peer at its best.
    pip_options=("--no-binary", "llama-cpp-python"),
    variables={"CMAKE_ARGS": "-DGGML_NATIVE=ON"},
    remark="compiling llama.cpp for this CPU, some minutes",
)
_TRANSFORMERS = Environment(
    name="transformers",
    requirements=("torch==2.13.0", "transformers==5.24.0", "accelerate==1.15.0", "gguf==0.19.0", "numpy==2.4.6"),
    remark="downloading PyTorch, large",
)
_OPENVINO_GENAI = Environment(name="openvino-genai", requirements=("openvino-genai==2026.4.1.0", "numpy==2.4.6"))

PEERS = {
    peer.name: peer
    for peer in (
        Peer("llama-cpp", "llama_cpp", _LLAMA_CPP),
        Peer("transformers-bfloat16", "transformers", _TRANSFORMERS, variant="bfloat16"),
        Peer("transformers-float32", "transformers", _TRANSFORMERS, variant="float32"),
        Peer("openvino-genai", "openvino_genai", _OPENVINO_GENAI, gives_logits=False),
    )
}
DEFAULT_PEERS = ("llama-cpp",)
