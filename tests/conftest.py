"""Settings of every test run: strict mode, all verifiers on, a cache folder of the run's own, nothing
kept of one test for another, long files first.

They are set when pytest loads this file, before any test module imports tracer_core, and reach the
processes that tests start.
"""

from __future__ import annotations

import atexit
import collections
import functools
import gc
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

os.environ["TRACER_STRICT"] = "1"
os.environ["TRACER_CHECK"] = "1"
# Tests count captures and look at their stages; what one keeps another would find.
os.environ.setdefault("TRACER_KEEP", "0")
# Threads that wait sleep: several processes with as many threads as processors each would spend
# most of their time at barriers (ten steps of a convolution and its normalization in a busy
# machine: 1.3 processor seconds, asleep 0.13).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
os.environ.pop("TRACER_LOGS", None)
os.environ.pop("TRACER_DEBUG", None)
os.environ.pop("TRACER_LIMITS", None)

if (
    "PYTEST_XDIST_WORKER" not in os.environ
):  # the workers share the folder of the process that starts them
    _CACHE = tempfile.mkdtemp(prefix="tracer-tests-")
    os.environ["TRACER_CACHE_DIR"] = _CACHE
    atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)

if not os.path.exists("/dev/nvidia0"):
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is imported

import torch

import tracer_core  # noqa: F401  (after the environment is set)
from tests.support import progress, sweeps, torchvision_ops
from tracer_core.torch_private import settings

torchvision_ops.define()

# Each `reset()` forgets what is installed, and reading the entry points of a hundred distributions
# again costs as much as a short test. Nothing is installed into this process: the tests of
# discovery start others (tests/plugin).
_discovery = sys.modules["tracer_core.registry.discovery"]
_discovery.entry_points = functools.cache(_discovery.entry_points)
for _entry in _discovery.entry_points(group=_discovery.PROJECT):
    # read from the distribution's file at each access otherwise
    vars(_entry).update(dist=SimpleNamespace(name=_entry.dist.name, version=_entry.dist.version))

#: Files that take more than twelve seconds when all their tests run, the longest first.
LONG = """
mutation_tests/test_mutations execution/test_generate engines/test_tvm distributed/test_ddp
aot/test_fused_optimizers inductor/test_rounding_where_it_shows distributed/test_placed
aot/test_writes_across_parts inductor/test_quantized_weights inductor/test_freeze
inductor/test_native_library execution/test_memory execution/test_persistent_cache_libraries
debug/test_logs_and_events torch_private/test_missing_names triton_kernels/test_channels_last
inductor/test_vectors opinfo/test_sample inductor/test_training inductor/test_random
inductor/test_decoding_attention distributed/test_sharded execution/test_persistent_cache_changes
triton_kernels/test_architectures triton_kernels/test_flex_attention
execution/test_persistent_cache storage/test_store_faults inductor/test_cpu_level
execution/test_persistent_cache_processes benchmarks/test_gradients trace/test_training_changes
inductor/test_recurrent engines/test_engines conformance/test_backends inductor/test_vector_widths
inductor/test_sampling core/test_implementation inductor/test_changing_numbers
conformance/test_writing_a_backend cudagraphs/test_limits distributed/test_agreement
triton_kernels/test_offline conformance/test_kit fx_capture/test_data_sizes
inductor/test_operators opinfo/test_found inductor/test_slices core/test_fullgraph_and_folders
trace/test_training_optimizers inductor/test_dropout inductor/test_scatter_scan
inductor_runtime/test_compilers inductor/test_scan_loops inductor/test_branches storage/test_store
triton_kernels/test_flex_attention_backward inductor/test_flex_attention core/test_doctor
fx_capture/test_torch_attention trace/test_tensor_subclasses fx_capture/test_nested_tensors
limits/test_restless fx_capture/test_higher_order_forms core/test_hostile_names limits/test_beyond
engines/test_value_checks trace/test_numbers_in_containers inductor/test_extreme_values
aot/test_written_with_gradients background/test_background trace/test_module_backward_hooks
""".split()


# torch.manual_seed notes the stack for each kind of device that is not initialized.
_set_seed = (
    torch.manual_seed if os.path.exists("/dev/nvidia0") else torch.default_generator.manual_seed
)


def _seed(node: pytest.Collector | pytest.Item) -> None:
    _set_seed(zlib.crc32(node.nodeid.encode()))


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> None:
    """Gives tensors that a test module draws when it is imported the same values in every run,
    whichever modules were imported before."""
    if isinstance(collector, pytest.Module):
        _seed(collector)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share",
        type=int,
        default=1,
        metavar="N",
        help="run one in N of the tests marked full, drawn by their names",
    )
    parser.addoption(
        "--progress",
        action="store_true",
        help="a line every 20 seconds: the share of the time that is over, in place of letters",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Names each failure as it comes, in the process that prints."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    config.pluginmanager.register(progress.NamedFailures(config))
    if config.getoption("--progress"):
        several = bool(config.getoption("numprocesses", None))
        config.pluginmanager.register(progress.Progress(config, LONG, several))


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what -m does not want
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the samples of sweeps and draws the share; sorts long files first, then those of few tests.

    A long file that is begun last leaves the other processes idle."""
    sweeps.mark_the_rest(items)
    if left_out := sweeps.leave_out(items, config.getoption("share")):
        config.hook.pytest_deselected(items=left_out)
    below, tests = Path(__file__).parent, collections.Counter(item.path for item in items)
    turns = {below / f"{name}.py": number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: (turns.get(item.path, len(LONG)), tests[item.path], item.path))


def pytest_collection_finish() -> None:
    """Leaves torch and the collected tests, 840,000 objects that stay, out of garbage collection.

    Each full collection takes 0.45 seconds with them, and tests need hundreds."""
    gc.collect()
    gc.freeze()


def _settings() -> dict[str, object]:
    return {"threads": torch.get_num_threads(), **settings.of_kernels()}


@pytest.fixture(autouse=True)
def _settings_stay(request: pytest.FixtureRequest) -> Iterator[None]:
    """Gives a test the same random numbers wherever it runs; fails one that leaves torch set otherwise
    than it was: later tests of the process meet it."""
    threads, before = torch.get_num_threads(), _settings()
    _seed(request.node)
    yield
    changed = {
        name: (before[name], now) for name, now in _settings().items() if now != before[name]
    }
    torch.set_num_threads(threads)
    assert not changed, f"the test left settings of torch changed: {changed}"


@pytest.fixture
def fresh_cache(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty cache folder for one test; its path."""
    folder = os.path.join(tmp_path, "cache")
    monkeypatch.setenv("TRACER_CACHE_DIR", folder)
    yield folder
