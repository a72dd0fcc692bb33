"""Servers shared by configuration.

Tests name the configuration that they need with `@on(...)`. They are ordered, and with pytest-xdist
grouped (`--dist loadgroup`), so that each configuration's server is started once, by one worker,
and ended before that worker's next one starts.
"""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator

import pytest

from server.configurations import CONFIGURATIONS, kind_of
from server.launch import Server, serving


def pytest_configure() -> None:
    """End the running server on SIGTERM too; SIGINT is pytest's own."""
    signal.signal(signal.SIGTERM, lambda number, frame: pytest.exit("terminated", 143))


@pytest.fixture(scope="session")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """The running server of the configuration that `@on` names."""
    config = CONFIGURATIONS[request.param]
    log_path = tmp_path_factory.mktemp(config.name) / "server.log"
    with serving(config, log_path) as running:
        yield running


def configurations_of(item: pytest.Item) -> list[str]:
    """The configurations that `@on` names for a test, in its order; none without it."""
    return next(
        (
            [parameter.values[0] for parameter in mark.args[1]]
            for mark in item.iter_markers("parametrize")
            if mark.args[0] == "server" and mark.kwargs.get("indirect")
        ),
        [],
    )


def is_representative(item: pytest.Item) -> bool:
    """Whether a test's server stands for the others that the test names.

    It is the first; with the mark `each_kind` the first of each kind, with `every_server` any.
    """
    names = configurations_of(item)
    if not names or item.get_closest_marker("every_server"):
        return True
    own = item.callspec.params["server"]  # type: ignore[attr-defined]
    if item.get_closest_marker("each_kind"):
        kind = kind_of(CONFIGURATIONS[own])
        names = [name for name in names if kind_of(CONFIGURATIONS[name]) == kind]
    return bool(own == names[0])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests by configuration; those that need none come first.

    pytest's own ordering goes by a parameter's place in each test's list, not by its value.
    """
    order = {name: i for i, name in enumerate(CONFIGURATIONS)}

    def place(item: pytest.Item) -> int:
        named = configurations_of(item)
        return order[item.callspec.params["server"]] if named else -1  # type: ignore[attr-defined]

    items.sort(key=place)
    if config.getoption("representative"):
        config.hook.pytest_deselected(items=[one for one in items if not is_representative(one)])
        items[:] = filter(is_representative, items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the server's log beside a failure."""
    report = yield
    running = getattr(item, "funcargs", {}).get("server")
    if report.failed and isinstance(running, Server):
        report.sections.append(("server log", running.log_tail()))
    return report
