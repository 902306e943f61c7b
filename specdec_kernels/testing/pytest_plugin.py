# SPDX-License-Identifier: Apache-2.0
"""Fixtures for pytest: ``pytest_plugins = ["specdec_kernels.testing.pytest_plugin"]`` in the top conftest.py, or
``-p specdec_kernels.testing.pytest_plugin``.

- ``verification_case``: each of ``testing.cases()`` in turn.
- ``assert_verifier``, ``assert_law``: the functions of ``specdec_kernels.testing``. The end of the test run
  lists every comparison, with the smallest shift that it detects.

The plugin is not registered as an entry point, which would import torch into every pytest run of the environment.
"""

import pytest

from specdec_kernels import testing

from .statistics import passed

SECTION = "joint distributions"


def pytest_generate_tests(metafunc):
    if "verification_case" in metafunc.fixturenames:
        metafunc.parametrize("verification_case", testing.cases(), ids=lambda case: case.name)


def asserted(request, check):
    """Run check(), keep its report for the end of the run, and raise if it failed."""

    def call(*args, **options):
        report = check(*args, **options)
        request.node.user_properties.append((SECTION, report.summary))
        return passed(report)

    return call


@pytest.fixture
def assert_law(request):
    return asserted(request, testing.check_law)


@pytest.fixture
def assert_verifier(request):
    return asserted(request, testing.check_verifier)


def pytest_terminal_summary(terminalreporter):
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.getreports(outcome)]
    lines = [
        f"{report.nodeid}: {text}"
        for report in reports
        if report.when == "call"
        for name, text in report.user_properties
        if name == SECTION
    ]
    if lines:
        terminalreporter.section(SECTION)
        for line in lines:
            terminalreporter.write_line(line)
