from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from ultrafast.bench.catalogue import PEERS
from ultrafast.bench.fidelity import bars
from ultrafast.bench.plot import plot_quantisations, plot_serving, plot_speed
from ultrafast.bench.results import (
    Bar,
    ClearMargins,
    FidelityResult,
    LoadResult,
    QuantisationResult,
    ServingResult,
    SpeedResult,
    read_result,
    write_result,
)
from ultrafast.bench.tables import (
    fidelity_table,
    load_table,
    parts_table,
    quantisation_table,
    serving_table,
    speed_table,
)
from ultrafast.errors import ConfigurationError

from .samples import runtime_fidelity


def rendered(table: object) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_results_survive_the_file(speed_result: SpeedResult, fidelity_result: FidelityResult, tmp_path: Path) -> None:
    write_result(speed_result, tmp_path / "new folder" / "speed.json")
    write_result(fidelity_result, tmp_path / "fidelity.json")
    assert read_result(tmp_path / "new folder" / "speed.json", SpeedResult) == speed_result
    assert read_result(tmp_path / "fidelity.json", FidelityResult) == fidelity_result


def test_results_of_file_types_and_of_loading_survive_the_file(
    quantisation_result: QuantisationResult, load_result: LoadResult, tmp_path: Path
) -> None:
    write_result(quantisation_result, tmp_path / "quantisations.json")
    write_result(load_result, tmp_path / "load.json")
    assert read_result(tmp_path / "quantisations.json", QuantisationResult) == quantisation_result
    assert read_result(tmp_path / "load.json", LoadResult) == load_result


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"kind": "fidelity"}', b"\xff"])
def test_a_file_that_holds_no_such_result_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match="no result of this kind"):
        read_result(tmp_path / "result.json", SpeedResult)
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_result(tmp_path / "absent.json", SpeedResult)


def test_a_result_that_cannot_be_kept_is_one_line(speed_result: SpeedResult, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot write the result"):
        write_result(speed_result, tmp_path / "file" / "speed.json")


def test_the_table_says_who_won_and_by_how_much(speed_result: SpeedResult) -> None:
    lines = rendered(speed_table(speed_result)).splitlines()
    ours = next(line for line in lines if "ultrafast" in line)
    theirs = next(line for line in lines if "llama-cpp" in line)
    assert "100.0 (99.0–101.0)" in ours
    assert "×" not in ours
    assert "50.0 (49.5–50.5)" in theirs
    assert "2.00 × (2.00–2.00)" in theirs
    assert "0.50 × (0.50–0.50)" in theirs  # TTFT: half the seconds is twice as good


def test_the_fidelity_table_shows_each_runtime(fidelity_result: FidelityResult) -> None:
    text = rendered(fidelity_table(fidelity_result))
    assert "+0.30%" in text
    assert "0.00310 ± 0.00001" in text
    assert "96.70%" in text
    assert "9,000 positions where the reference's top token leads by more than 1 logits" in " ".join(text.split())


def test_bars_are_kept_or_missed() -> None:
    def met(ratio: float, kl: float) -> list[bool]:
        runtimes = [runtime_fidelity("ultrafast", ratio, kl), runtime_fidelity("llama-cpp", 1.0, 0.0030)]
        return [bar.met for bar in bars(runtimes, clear(0, 0))]

    def clear(ours: int, theirs: int) -> ClearMargins:
        unlike = {"ultrafast": 0, "llama-cpp": theirs}
        return ClearMargins(1.0, 100, {}, unlike_reference={"ultrafast": ours, "llama-cpp": 0}, unlike_ours=unlike)

    assert met(1.0059, 0.00314) == [True] * 4
    assert met(0.9939, 0.0030) == [False, True, True, True]
    assert met(1.0061, 0.0032) == [False, True, False, True]
    both = [runtime_fidelity("ultrafast", 1.0, 0.003), runtime_fidelity("llama-cpp", 1.0, 0.003)]
    assert [bar.met for bar in bars(both, clear(1, 0))] == [True, False, True, True]
    assert [bar.met for bar in bars(both, clear(0, 1))] == [True, True, True, False]
    assert len(bars(both[:1], clear(0, 0))) == 2


def test_a_bar_may_be_a_lowest_value() -> None:
    assert Bar("ratio", 1.0, 1.0, at_least=True).met
    assert not Bar("ratio", 1.0, 0.99, at_least=True).met
    assert Bar("seconds", 5.0, 5.0).met
    assert not Bar("seconds", 5.0, 5.1).met


def test_every_file_type_is_listed_with_its_ratio_or_its_reason(quantisation_result: QuantisationResult) -> None:
    lines = rendered(quantisation_table(quantisation_result)).splitlines()

    def line(name: str) -> str:
        return next(line for line in lines if name in line)

    assert "2.00 × (2.00–2.00)" in line("Q4_K_M")
    assert "166×Q5_0 16×Q4_K" in line("Q4_K_M")
    assert "importances all equal" in line("IQ1_S")
    assert "llama.cpp: invalid output file type 39" in line("NVFP4")
    assert "a type that we do not run" in line("Q2_0")
    assert "llama-cpp: cannot load this file" in line("TQ1_0")
    assert [(bar.measured, bar.met) for bar in quantisation_result.bars] == [(1, False), (2.0, True)]


def test_the_load_table_compares_with_the_file(load_result: LoadResult) -> None:
    text = rendered(load_table(load_result))
    assert "3.00 (2.00–4.00)" in text
    assert "1.100" in text
    assert "2.000" in text
    assert [bar.met for bar in load_result.bars] == [True, True]


def test_the_plot_is_drawn_and_names_everyone(speed_result: SpeedResult, tmp_path: Path) -> None:
    plot_speed(speed_result, tmp_path / "speed.svg")
    drawing = (tmp_path / "speed.svg").read_text()
    assert all(name in drawing for name in ("ultrafast", "llama-cpp", "Decode", "Prefill", "TTFT", "A CPU"))
    again = tmp_path / "again.svg"
    plot_speed(speed_result, again)
    assert again.read_text() == drawing
    with pytest.raises(ConfigurationError, match=r"\.svg or \.png"):
        plot_speed(speed_result, tmp_path / "speed.exe")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot write the plot"):
        plot_speed(speed_result, tmp_path / "file" / "speed.svg")


def test_the_plot_of_file_types_shows_those_that_ran(quantisation_result: QuantisationResult, tmp_path: Path) -> None:
    plot_quantisations(quantisation_result, tmp_path / "quantisations.svg")
    drawing = (tmp_path / "quantisations.svg").read_text()
    assert all(text in drawing for text in ("Q4_K_M", "IQ1_S", "TQ1_0", "2.00 ×", "A CPU"))
    assert "NVFP4" not in drawing


def test_every_peer_is_pinned() -> None:
    for name, peer in PEERS.items():
        assert peer.name == name
        assert all(requirement.count("==") == 1 for requirement in peer.environment.requirements)
        assert peer.environment.override_variable.replace("_", "").isalnum()


def test_a_result_of_serving_survives_the_file_and_is_shown(serving_result: ServingResult, tmp_path: Path) -> None:
    write_result(serving_result, tmp_path / "serving.json")
    assert read_result(tmp_path / "serving.json", ServingResult) == serving_result
    lines = rendered(serving_table(serving_result)).splitlines()
    assert any("gateway" in line and "0.2 (0.1–0.3)" in line and "0.05" in line for line in lines)
    assert any("refusal seconds" in line and "0.004 (0.004–0.02)" in line and "100" in line for line in lines)
    assert any("gateway: the load of gateway." in line for line in lines)
    assert [bar.met for bar in serving_result.bars] == [True, False]


def test_the_plot_of_serving_shows_every_promise(serving_result: ServingResult, tmp_path: Path) -> None:
    plot_serving(serving_result, tmp_path / "serving.svg")
    drawing = (tmp_path / "serving.svg").read_text()
    assert all(bar.name in drawing for bar in serving_result.bars)
    assert "0.02, at most 0.01" in drawing
    assert "A CPU" in drawing


def test_parts_of_speed_survive_the_file_and_are_shown(speed_parts_result: SpeedResult, tmp_path: Path) -> None:
    write_result(speed_parts_result, tmp_path / "speed.json")
    assert read_result(tmp_path / "speed.json", SpeedResult) == speed_parts_result
    text = rendered(parts_table(speed_parts_result))
    assert "linear gmac per second" in text
    assert "60.5 (60–61)" in text
    assert "kernels: the load of kernels." in text
    assert [(bar.limit, bar.met) for bar in speed_parts_result.bars] == [(58.0, True), (27.0, False)]
    plot_speed(speed_parts_result, tmp_path / "speed.svg")
    drawing = (tmp_path / "speed.svg").read_text()
    assert all(bar.name in drawing for bar in speed_parts_result.bars)
    assert "25.5, at least 27" in drawing
