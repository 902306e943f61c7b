# SPDX-License-Identifier: Apache-2.0
import contextlib
import gc
import os
import shutil
import tempfile
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # one process per core: more threads would only spin
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

pytest.register_assert_rewrite("support")  # a failed assertion there shows the values that it compared, as in a test

gc.disable()  # until all tests are collected: what is made up to then stays
from support import answers, backends, collector, paths, rule_cases, specialisations, tally, tiers  # noqa: E402


def _params(names):
    """Return the backends that can run here. The summary lists the others with the reasons."""
    return [name for name in names if not backends.why_not(name)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    """In every other worker, import the test files from the last to the first, before they are collected.

    In a fresh clone each file that is imported must be compiled first, and the workers start together: in one order,
    each worker would compile all of them. The order of the tests is not changed.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    if int(worker.removeprefix("gw")) % 2 and [Path(x).resolve() for x in session.config.args] == [paths.TESTS]:
        for path in sorted(paths.TESTS.rglob("test_*.py"), reverse=True):
            with contextlib.suppress(Exception, pytest.skip.Exception):  # its collection reports this
                _ = pytest.Module.from_parent(session, path=path).obj


def pytest_collection_finish(session):
    collector.leave_out_what_is_there()
    session.config.add_cleanup(gc.unfreeze)


@pytest.hookimpl(tryfirst=True)  # before -m selects by these marks
def pytest_collection_modifyitems(config, items):
    for item in items:
        if backend := tiers.backend_of(item):
            item.add_marker("on_backend")
            if backend in tiers.SIMULATED:
                item.add_marker("simulated")
    kept = set(map(id, tiers.select(items)))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]


def _ready(request):
    """Yield the backend's name. While the test runs, it is the current backend of the tally."""
    request.node.user_properties.append(("backend", request.param))
    tally.running = request.param
    yield request.param
    tally.running = None


def pytest_configure(config):
    """Make this run's folder for the reference's results. xdist's workers find it in their environment."""
    if answers.FOLDER not in os.environ:
        os.environ[answers.FOLDER] = tempfile.mkdtemp(prefix="specdec-answers-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(answers.FOLDER)))


@pytest.fixture(params=_params(backends.NAMES))
def backend(request):
    """Every backend, with the float64 reference if it was asked for."""
    yield from _ready(request)


@pytest.fixture(params=_params(name for name in backends.NAMES if name != "reference"))
def op_backend(request):
    """Every backend except the reference: with the wrapper's errors, float32 results and an entry in the dispatcher."""
    yield from _ready(request)


@pytest.fixture(scope="module")
def one_thread():
    """Use one thread: small models run faster with one, and times do not depend on the load of the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=_params(name for name in backends.NAMES if name not in rule_cases.SLOW))
def sweep_backend(request):
    """Every backend that runs thousands of requests under a rule in seconds."""
    yield from _ready(request)


@pytest.fixture(
    params=_params(n for name in backends.NAMES if name != "reference" for n in backends.instruction_sets(name))
)
def isa_backend(request):
    """Every backend except the reference, with the CPU once per instruction set."""
    yield from _ready(request)


@pytest.fixture
def verify(op_backend):
    """verify_chain on every backend except the reference."""
    return backends.call("verify_chain", op_backend)


@pytest.fixture
def sweep(sweep_backend):
    return backends.call("verify_chain", sweep_backend)


# ---- counts of the whole session: with xdist, workers send theirs to the process that reports ----


def pytest_runtest_logreport(report):
    name = dict(report.user_properties).get("backend")
    if name:
        tally.tests[name] += report.when == "call"
        tally.seconds[name] += report.duration


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    if "tally" in getattr(node, "workeroutput", {}):
        tally.merge(node.workeroutput["tally"])
        specialisations.merge(node.workeroutput["ran"])


def pytest_sessionfinish(session):
    if session.exitstatus != pytest.ExitCode.INTERRUPTED:  # then a worker may still be in a call
        specialisations.merge(backends.ran())
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput |= {"tally": tally.state(), "ran": specialisations.state()}
    elif tally.over_the_cap() or (_whole(session.config) and specialisations.never_ran()):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def _whole(config):
    """Return whether the session ran everything of its tier and backends, so that every kernel should have run."""
    chosen = [Path(x).resolve() for x in config.args] == [paths.TESTS] and tiers.TIER != "check"
    marked = config.getoption("markexpr") in ("", "on_backend", "simulated")
    less = ("keyword", "lf", "collectonly", "deselect", "ignore", "ignore_glob")
    return chosen and marked and not any(config.getoption(name, False) for name in less)


def pytest_terminal_summary(terminalreporter, config):
    for name in backends.NAMES:
        if reason := backends.why_not(name):
            terminalreporter.write_line(f"not collected: tests on {name}: {reason}")
    for name, (ran, compiled) in specialisations.counts().items():
        terminalreporter.write_line(f"{name}: ran {ran} of the {compiled} kernel specialisations that are compiled")
    if tally.tests:
        terminalreporter.section("agreement with the float64 reference, by backend")
        for line in tally.lines():
            terminalreporter.write_line(line)
    if tally.notes:
        terminalreporter.section("measured")
        for line in sorted(tally.notes):
            terminalreporter.write_line(line)


def pytest_unconfigure(config):
    """Print, as the last lines, why a session failed in which no test failed."""
    if hasattr(config, "workeroutput"):
        return
    for name in tally.over_the_cap():
        print(f"FAILED: {name}: more flips than the cap allows")
    for line in specialisations.never_ran() if _whole(config) else ():
        print(f"FAILED: a kernel never ran: {line}")
