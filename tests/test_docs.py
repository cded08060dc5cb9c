"""The documentation is tested: what it lists exists, and what exists is listed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.routing import Route

from ultrafast import _native
from ultrafast.backends.engine_chat import EngineChat
from ultrafast.backends.local import LocalBackend
from ultrafast.gateway import schema
from ultrafast.gateway.app import Gateway
from ultrafast.gateway.assembly import build_routes
from ultrafast.gateway.configuration import LOCAL, Configuration
from ultrafast.gateway.hosts import HostPolicy
from ultrafast.gateway.records.store import Records
from ultrafast.gateway.service import Service
from ultrafast.models.architectures import ARCHITECTURES
from ultrafast.weights.gguf import TENSOR_TYPES
from ultrafast.weights.store import ModelLocation

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "ultrafast").rglob("*.py"))
PAGES = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md"))
# As `serve` and `bench` derive some names from others, a prefix stands for them in the page.
VARIABLE = re.compile(r"ULTRAFAST_(?:BENCH_PEER_|[A-Z]+(?:_[A-Z]+)*)")
FIGURE = re.compile(r"\d[\d.,]*\s*(?:tok(?:en)?s?/s|tokens per second|GB/s)")
FIGURES = re.compile(r"<!-- figures:begin.*?<!-- figures:end -->", re.DOTALL)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_pages_of_the_commands_are_their_help() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/generate_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_recorded_session_happens_again() -> None:
    """Ids, keys, times, dates and what is the machine's may differ; tokens, tiers, refusals and amounts may not."""
    done = subprocess.run(
        [sys.executable, "scripts/generate_session.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_environment_variable_is_documented_and_every_documented_one_exists() -> None:
    strings = {
        constant.value
        for path in SOURCES
        for constant in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    }
    used = {match for string in strings for match in VARIABLE.findall(string)}
    page = read("docs/configuration.md")
    assert used == set(VARIABLE.findall(page))


def test_every_architecture_is_documented() -> None:
    rows = re.findall(r"^\| (`.*?) \| (`.*?) \|", read("docs/models.md"), re.MULTILINE)
    listed = {tuple(sorted(re.findall(r"`(\w+)`", types))) for _, types in rows}
    assert listed == {tuple(sorted(kind.model_types)) for kind in ARCHITECTURES}
    assert {re.findall(r"`(\w+)`", name)[0] for name, _ in rows} == {kind.name for kind in ARCHITECTURES if kind.name}


def test_every_tensor_type_is_documented_with_its_size() -> None:
    rows = re.findall(r"^\| (\w+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", read("docs/models.md"), re.MULTILINE)
    assert rows == [
        (
            kind.name,
            str(kind.block_elements),
            f"{8 * kind.block_bytes / kind.block_elements:.4g}",
            f"{8 * _native.row_bytes(kind.name, kind.block_elements) / kind.block_elements:.4g}",
        )
        for kind in TENSOR_TYPES.values()
    ]


def test_every_route_is_documented(tmp_path: Path) -> None:
    location = ModelLocation("any", Path("any.gguf"), 0)
    engines = {LOCAL: EngineChat(LOCAL, LocalBackend(location), location)}
    configuration = Configuration()
    with Records.open(tmp_path) as records:
        service = Service(configuration, engines, build_routes(configuration, engines, {}), records)
        gateway = Gateway(service, require_key=True, hosts=HostPolicy("127.0.0.1"))
    routes = [route for route in gateway._router.routes if isinstance(route, Route)]
    served = {
        f"{method} {re.sub(r'{[^}]*}', '{id}', route.path)}"
        for route in routes
        for method in (route.methods or ())
        if method != "HEAD"
    }
    documented = set(re.findall(r"^\| `((?:GET|POST) [^`]+)`", read("docs/api.md"), re.MULTILINE))
    assert len(served) == len(routes) == 4
    assert documented == served


def test_every_parameter_is_documented() -> None:
    """The parameters are the names that the schema's readers ask for, and the two lists it goes through."""
    tree = ast.parse(Path(schema.__file__).read_text(encoding="utf-8"))
    asked = {
        call.args[0].value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in {"raw", "boolean", "integer", "number", "string", "choice", "object"}
        and call.args
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    }
    assert {"temperature", "messages", "stream"} <= asked
    asked |= {*schema._NOT_SERVED, *schema._WITHOUT_EFFECT, "service_tier", "reasoning_effort"}
    # Parts of a message that are only sent back, never asked for.
    asked -= {"refusal", "annotations"}
    page = read("docs/api.md")
    assert [name for name in sorted(asked) if f"`{name}`" not in page and f'"{name}"' not in page] == []


def test_every_error_code_is_documented() -> None:
    sources = [ROOT / "src/ultrafast/errors.py", *sorted((ROOT / "src/ultrafast/gateway").glob("*.py"))]
    used = {
        code
        for path in sources
        for code in re.findall(r'\bcode(?:: str(?: \| None)?)? ?= ?"(\w+)"', path.read_text(encoding="utf-8"))
    } | set(re.findall(r'default_code = "(\w+)"', read("src/ultrafast/errors.py")))
    assert {"invalid_value", "context_length_exceeded", "engine_error"} <= used
    page = read("docs/api.md")
    assert [code for code in sorted(used) if f"`{code}`" not in page] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (path.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "docs/api.md"])
def test_no_figure_of_speed_was_typed_by_hand(name: str) -> None:
    assert FIGURE.findall(FIGURES.sub("", read(name))) == []


def test_the_readme_runs_only_commands_that_exist() -> None:
    verbs = set(re.findall(r"^ultrafast ([a-z]+)|\| ultrafast ([a-z]+)", read("README.md"), re.MULTILINE))
    named = {first or second for first, second in verbs}
    assert {"run", "chat", "serve", "doctor"} <= named
    assert named <= set(re.findall(r"^## `ultrafast (\w+)`", read("docs/cli.md"), re.MULTILINE))
    targets = set(re.findall(r"^make (\w+)", read("README.md"), re.MULTILINE))
    assert targets <= set(re.findall(r"^(\w+):", read("Makefile"), re.MULTILINE))
