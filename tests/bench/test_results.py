from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from ultrafast.bench.catalogue import PEERS
from ultrafast.bench.fidelity import bars
from ultrafast.bench.plot import plot_speed
from ultrafast.bench.results import (
    FidelityResult,
    SpeedResult,
    read_result,
    write_result,
)
from ultrafast.bench.tables import fidelity_table, speed_table
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


def test_bars_are_kept_or_missed() -> None:
    def met(ratio: float, kl: float) -> list[bool]:
        runtimes = [runtime_fidelity("ultrafast", ratio, kl), runtime_fidelity("llama-cpp", 1.0, 0.0030)]
        return [bar.met for bar in bars(runtimes)]

    assert met(1.0059, 0.00314) == [True, True]
    assert met(0.9939, 0.0030) == [False, True]
    assert met(1.0061, 0.0032) == [False, False]
    assert len(bars([runtime_fidelity("ultrafast", 1.0, 0.003)])) == 1


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


def test_every_peer_is_pinned() -> None:
    for name, peer in PEERS.items():
        assert peer.name == name
        assert all(requirement.count("==") == 1 for requirement in peer.environment.requirements)
        assert peer.environment.override_variable.replace("_", "").isalnum()
