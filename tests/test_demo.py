"""`make demo` after its installation: a real server, the official client, and nothing left running."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "scripts" / "demo.py"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the project's examples, and none of whatever lies beside the project."""
    folder = tmp_path / "project"
    shutil.copytree(ROOT / "examples", folder / "examples")
    return folder


def start(project: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(DEMO)],
        cwd=project,
        env=dict(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def listening_url(shown: str) -> str:
    return shown.partition("Listening on ")[2].split()[0]


def is_served(url: str) -> bool:
    try:
        return httpx.get(url + "/health").status_code == 200
    except httpx.ConnectError:
        return False


def test_it_streams_an_answer_runs_the_samples_and_stops_its_server(project: Path) -> None:
    samples = project.parent / "shared" / "samples"
    samples.mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "conversation.py", samples)
    (samples / "long.py").write_text("for number in range(1000): print('line', number)\n", encoding="utf-8")
    (samples / "wide.py").write_text("print('x' * 5000)\n", encoding="utf-8")
    process = start(project)
    shown, _ = process.communicate(timeout=240)
    assert process.returncode == 0, shown
    assert "line 5\n   ... 994 more lines, 8,847 characters, not shown\n" in shown
    assert "line 6" not in shown
    assert "x\n   ... 1 more line, 4,520 characters, not shown\n" in shown
    assert "tokens/s, by the server's own record]" in shown
    assert '"Explain in three sentences why the sky is blue."' in shown
    assert re.search(r"tokens, seed -?\d+, \d+\.\d tokens/s, by the", shown)
    assert "conversation.py, unmodified" in shown
    assert shown.count("server: tier default: prompt=") == 1 + 3
    assert [command for command in ("chat", "doctor", "serve") if f".venv/bin/ultrafast {command}" not in shown] == []
    assert not is_served(listening_url(shown))


def test_a_failing_program_is_one_line_and_the_server_stops(project: Path) -> None:
    (project / "examples" / "stream.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    process = start(project)
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert shown.endswith("error: examples/stream.py ended with exit code 3\n")
    assert not is_served(listening_url(shown))


def test_an_interrupt_stops_the_server_and_the_program(project: Path) -> None:
    (project / "examples" / "stream.py").write_text("import time\ntime.sleep(600)\n", encoding="utf-8")
    process = start(project)
    assert process.stdout is not None
    shown = ""
    for line in process.stdout:
        shown += line
        if "== examples/stream.py" in line:
            break
    time.sleep(0.5)
    assert is_served(listening_url(shown))
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert not is_served(listening_url(shown))
