"""What the images' tests say where they cannot run."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.containers import TOOLS, ToolsMissing, install_tools


def test_missing_tools_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without apt-get, so that nothing is installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolsMissing, match="apt-get install podman buildah"):
        install_tools()
    for tool in TOOLS:
        (tmp_path / tool).touch(mode=0o755)
    install_tools()  # nothing to do
