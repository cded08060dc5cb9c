"""``ultrafast bench serving``: the promises about tiers, measured over HTTP on real servers."""

from ultrafast.bench.serving.parts import PARTS
from ultrafast.bench.serving.run import ServingOptions, run_serving
from ultrafast.bench.serving.stage import Sizes

__all__ = ["PARTS", "ServingOptions", "Sizes", "run_serving"]
