"""The TOML file of a configuration: read with errors that name the line, and written."""

from __future__ import annotations

import contextlib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn

import msgspec
from msgspec import inspect

from ultrafast.directories import CONFIGURATION_VARIABLE
from ultrafast.errors import ConfigurationError, UltrafastError
from ultrafast.gateway import toml_lines
from ultrafast.gateway.configuration import Configuration, EngineSettings, UpstreamSettings
from ultrafast.gateway.configuration_check import check, check_secrets, secrets_of
from ultrafast.gateway.configuration_overrides import Overrides, override
from ultrafast.gateway.configuration_values import choice_of, dotted, fits, key_text, value_text, words_of

MAXIMUM_FILE_BYTES: Final = 1 << 18
_LONG_NUMBER: Final = re.compile(r"(?<![0-9_])[0-9_]{4300}")  # Python converts no longer ones

# Tables whose entries add to the defaults or change them, one by one; any other table replaces its default.
_ADDED: Final = frozenset({("tiers",), ("prices", "models"), ("prices", "multiples")})

Node = toml_lines.Path


def configuration_path(option: Path | None, environment: Mapping[str, str]) -> Path | None:
    """The file to read: the one named by the option, else by ``ULTRAFAST_CONFIG``, else none."""
    if option is None and environment.get(CONFIGURATION_VARIABLE):
        return Path(environment[CONFIGURATION_VARIABLE])
    return option


def load_configuration(
    path: Path | None,
    environment: Mapping[str, str],
    overrides: Overrides | None = None,
    *,
    engine_models: Mapping[str, str] = MappingProxyType({}),
) -> Configuration:
    """Read the file (none: the defaults), apply ``overrides``, and check the whole, with its secrets.

    Raises ConfigurationError in one line, with the file's line where it is at fault.
    """
    configuration, source = read_configuration(path, overrides)
    check(configuration, source.fail, engine_models)
    check_secrets(configuration, environment, source.fail)
    return configuration


def read_configuration(path: Path | None, overrides: Overrides | None = None) -> tuple[Configuration, Source]:
    """The file's settings (none: the defaults) under ``overrides``, not yet checked as a whole, and where they stand.

    Raises ConfigurationError in one line, with the file's line.
    """
    configuration, source = (Configuration(), Source(None, "")) if path is None else _read(path)
    return configuration if overrides is None else override(configuration, overrides), source


def _read(path: Path) -> tuple[Configuration, Source]:
    if path.exists() and not path.is_dir() and not path.is_file():
        raise ConfigurationError(f"the configuration {path} is not a file")  # opening a pipe would wait for its writer
    try:
        with path.open("rb") as file:
            data = file.read(MAXIMUM_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"the configuration {path} cannot be read: {error.strerror}") from None
    if len(data) > MAXIMUM_FILE_BYTES:
        raise ConfigurationError(f"the configuration {path} has more than {MAXIMUM_FILE_BYTES >> 10} KiB")
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
        deep = toml_lines.line_of_deep_key(text)
        if deep is not None:
            most = toml_lines.MAXIMUM_KEY_PARTS
            raise ConfigurationError(f"{path}:{deep}: a key has more than {most} parts; no setting has so many")
        values = tomllib.loads(text)
        source = Source(path, text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(f"{path}:{line}: is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(_syntax_error(path, text, str(error))) from None
    except ValueError:  # of the conversion to a number
        long = _LONG_NUMBER.search(text)
        line = text.count("\n", 0, long.start() if long else None) + 1
        raise ConfigurationError(f"{path}:{line}: is no valid TOML: a number has too many digits") from None
    except RecursionError:
        raise ConfigurationError(f"{path}: is nested too deeply") from None
    configuration = source.read(values, inspect.type_info(Configuration), (), Configuration())
    assert isinstance(configuration, Configuration)
    return _beside(path.absolute().parent, configuration), source


def _beside(folder: Path, configuration: Configuration) -> Configuration:
    """Relative paths go by the file's folder, from wherever the server or a command on it is started."""

    def placed(text: str | None) -> str | None:
        text = None if text is None else os.path.expanduser(text)  # noqa: PTH111 - raises nothing
        return text if text is None or text.startswith(("/", "~")) else str(folder / text)

    backends: dict[str, EngineSettings | UpstreamSettings] = {}
    for name, one in configuration.backends.items():
        if isinstance(one, UpstreamSettings):
            backends[name] = msgspec.structs.replace(one, key_file=placed(one.key_file))
        else:
            model = placed(one.model) if _is_path(one.model, folder) else one.model
            backends[name] = msgspec.structs.replace(one, model=model, chat_template=placed(one.chat_template))
    directory = placed(configuration.data_directory)
    return msgspec.structs.replace(configuration, data_directory=directory, backends=backends)


def _is_path(model: str | None, folder: Path) -> bool:
    """Whether a model is named by its path, rather than by a name of ours or the hub's."""
    if model is None or model.startswith("hf:") or "://" in model:
        return False
    return "/" in model or model.endswith((".gguf", ".safetensors")) or (folder / model).exists()


def _syntax_error(path: Path, text: str, message: str) -> str:
    found = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
    line = int(found[1]) if found is not None and found[1] else text.count("\n") + 1
    words = message[: found.start()] if found is not None else message
    return f"{path}:{line}: is no valid TOML: {words[:200]}"


class Source:
    """A file's values on their way into structs, and where they stand."""

    def __init__(self, path: Path | None, text: str) -> None:
        self._path = path
        self._lines = toml_lines.lines_of(text)

    def fail(self, node: Node, message: str) -> NoReturn:
        """Raise ConfigurationError about the value at ``node``, or about the nearest thing above that is there."""
        above = (node[:length] for length in range(len(node), 0, -1))
        line = next((self._lines[found] for found in above if found in self._lines), None)
        place = "the configuration" if self._path is None else str(self._path)
        words = f"{dotted(node)} {message}" if node else message
        raise ConfigurationError(f"{place}{'' if line is None else f':{line}'}: {words}")

    @contextlib.contextmanager
    def naming(self, node: Node) -> Iterator[None]:
        """Let errors about what stands at ``node`` begin with the line, where the file says it."""
        try:
            yield
        except UltrafastError as error:
            if node in self._lines:
                error.args = (f"{self._path}:{self._lines[node]}: {dotted(node)}: {error}",)
            raise

    def read(self, value: object, kind: inspect.Type, node: Node, base: object = msgspec.NODEFAULT) -> object:
        """``value`` as ``kind``; what it leaves out is as in ``base``."""
        match kind:
            case inspect.Metadata():
                return self.read(value, kind.type, node, base)
            case inspect.UnionType():
                structs = [item for item in kind.types if isinstance(item, inspect.StructType)]
                if structs:
                    return self.read(value, self._tagged(value, structs, node), node)
                (only,) = (item for item in kind.types if not isinstance(item, inspect.NoneType))
                return self.read(value, only, node)  # TOML has no null: what is absent is None
            case inspect.StructType():
                return self._struct(value, kind, node, base)
            case inspect.DictType() | inspect.VarTupleType():
                return self._collection(value, kind, node, base)
            case _:
                if not fits(value, kind):
                    self.fail(node, f"must be {words_of(kind)}")
                return float(value) if isinstance(kind, inspect.FloatType) else value  # type: ignore[arg-type]

    def _collection(
        self, value: object, kind: inspect.DictType | inspect.VarTupleType, node: Node, base: object
    ) -> object:
        if isinstance(kind, inspect.VarTupleType):
            if not isinstance(value, list):
                self.fail(node, "must be a list")
            return tuple(self.read(item, kind.item_type, (*node, place)) for place, item in enumerate(value))
        added = base if node in _ADDED and isinstance(base, dict) else {}
        read = {
            key: self.read(item, kind.value_type, (*node, key), added.get(key, msgspec.NODEFAULT))
            for key, item in self._table(value, node).items()
        }
        return {**added, **read}

    def _table(self, value: object, node: Node) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fail(node, "must be a table")
        return value

    def _tagged(self, value: object, kinds: list[inspect.StructType], node: Node) -> inspect.StructType:
        field = str(kinds[0].tag_field)
        known = {kind.tag: kind for kind in kinds}
        tag = self._table(value, node).get(field)
        if not isinstance(tag, str) or tag not in known:
            self.fail((*node, field), f"must be {choice_of(known)}")
        return known[tag]

    def _struct(self, value: object, kind: inspect.StructType, node: Node, base: object) -> object:
        given = dict(self._table(value, node))
        if kind.tag_field is not None:
            given.pop(kind.tag_field, None)
        fields = {field.name: field for field in kind.fields}
        for name in given:
            if name not in fields:
                known = ", ".join(([kind.tag_field] if kind.tag_field else []) + list(fields))
                self.fail((*node, name), f"is no field of this table (known: {known})")
        values: dict[str, object] = {}
        for name, field in fields.items():
            default = getattr(base, name, _default(field))
            if name in given:
                values[name] = self.read(given[name], field.type, (*node, name), default)
            elif default is msgspec.NODEFAULT:
                self.fail(node, f"needs {name}")
            else:
                values[name] = default
        return kind.cls(**values)


def _default(field: inspect.Field) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def show(configuration: Configuration, environment: Mapping[str, str]) -> str:
    """The configuration as TOML, with every default; of secrets it has where each one is, and whether it is there."""
    notes = {
        node: f"  # {words if problem is None else problem}"
        for node, (words, problem) in secrets_of(configuration, environment).items()
    }
    lines: list[str] = []
    _write(msgspec.to_builtins(configuration), (), lines, notes)
    return "\n".join(lines).strip() + "\n"


def _write(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str], notes: Mapping[Node, str]) -> None:
    """Values first, then tables: TOML would count them to the table before."""
    tables = {name: value for name, value in table.items() if _is_table(value)}
    plain = {name: value for name, value in table.items() if name not in tables}
    lines += [
        f"{key_text(name)} = {value_text(value)}{notes.get((*path, name), '')}"
        for name, value in plain.items()
        if value is not None
    ]
    for name, value in tables.items():
        header = ".".join(map(key_text, (*path, name)))
        if isinstance(value, dict):
            # A table of tables needs no header, nor does one whose values are all absent; an empty one does.
            if not value or any(inner is not None and not _is_table(inner) for inner in value.values()):
                lines += ["", f"[{header}]"]
            _write(value, (*path, name), lines, notes)
            continue
        for item in value:
            lines += ["", f"[[{header}]]"]
            _write(item, (*path, name), lines, notes)


def _is_table(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list | tuple) and any(map(_is_table, value)))
