"""The README's figures are those of the committed results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ultrafast.bench.results import FidelityResult, ServingResult, SpeedResult, write_result

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "scripts" / "generate_figures.py"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def test_the_readme_shows_the_committed_results() -> None:
    done = run(ROOT, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_figures_follow_the_results(
    tmp_path: Path, speed_result: SpeedResult, fidelity_result: FidelityResult, serving_result: ServingResult
) -> None:
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- figures:begin (generated) -->\n<!-- figures:end -->\nafter\n")
    assert run(tmp_path).returncode == 0
    assert "No results are committed yet." in page.read_text()

    results = tmp_path / "benchmarks" / "results"
    write_result(speed_result, results / "speed.json")
    write_result(fidelity_result, results / "fidelity.json")
    write_result(serving_result, results / "serving.json")
    stale = run(tmp_path, "--check")
    assert stale.returncode == 1
    assert "stale" in stale.stdout
    assert run(tmp_path).returncode == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| llama-cpp 1.0 | 50.0 | 50 | 50000 | 2.00 (2.00–2.00) |" in text
    assert "| ultrafast  | 20.060 | +0.30% | 0.00300 | 96.7% |" in text
    assert "| seconds that the gateway adds to TTFT | 0.0015 | ≤ 0.003 |" in text
    assert "| seconds to refuse when full, p99 | 0.02 | ≤ 0.01 |" in text
    assert speed_result.provenance.machine.cpu_model in text
    assert run(tmp_path, "--check").returncode == 0
