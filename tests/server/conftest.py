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


def configuration_of(item: pytest.Item) -> str | None:
    """The name of the configuration whose server a test needs."""
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("server") if callspec else None


def is_representative(item: pytest.Item) -> bool:
    """Whether a test's server is the first of its kind in the test's own list."""
    name = configuration_of(item)
    if name is None or item.get_closest_marker("every_server"):
        return True
    (names,) = (
        [parameter.values[0] for parameter in mark.args[1]]
        for mark in item.iter_markers("parametrize")
        if mark.args[0] == "server"
    )
    kind = kind_of(CONFIGURATIONS[name])
    return name == next(other for other in names if kind_of(CONFIGURATIONS[other]) == kind)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests by configuration; those that need none come first.

    pytest's own ordering goes by a parameter's place in each test's list, not by its value.
    """
    order = {name: i for i, name in enumerate(CONFIGURATIONS)}
    items.sort(key=lambda item: order.get(configuration_of(item) or "", -1))
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
