"""Where the key of another server comes from, and that nothing shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.test_upstream import KEY
from ultrafast.backends.settings import UpstreamSettings
from ultrafast.backends.upstream import UpstreamBackend, read_key
from ultrafast.errors import ConfigurationError


def test_where_the_key_is(tmp_path: Path) -> None:
    path = tmp_path / "key"
    in_file = UpstreamSettings(url="http://x/v1", model="m", key_file=str(path))
    in_variable = UpstreamSettings(url="http://x/v1", model="m", key_variable="OTHER")
    assert read_key(UpstreamSettings(url="http://x/v1", model="m"), {}) is None
    assert read_key(in_variable, {"OTHER": KEY}) == KEY
    for bad in ("", "with space", "ü"):
        with pytest.raises(ConfigurationError, match="OTHER"):
            read_key(in_variable, {"OTHER": bad})
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_key(in_file, {})
    path.write_text(KEY + "\n")
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="can be read by others"):
        read_key(in_file, {})
    path.chmod(0o600)
    assert read_key(in_file, {}) == KEY
    backend = UpstreamBackend("other", in_file, environment={})
    assert backend.same_as(in_file, KEY)
    assert not backend.same_as(in_file, KEY + "x")
    assert not backend.same_as(in_variable, KEY)
    assert KEY not in repr(backend) + repr(vars(backend)["_client"].headers)
