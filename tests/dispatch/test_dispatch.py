"""From a captured graph to a backend's call: the check of results, errors, fallbacks, modes."""

from __future__ import annotations

import timeit

import pytest
import torch

from tests.aot.programs import randn
from tracer_core import plugin_api
from tracer_core.aot.result_check import checked
from tracer_core.dispatch.compile_graph import compile_graph
from tracer_core.dispatch.validation import build_config
from tracer_core.errors import BackendError
from tracer_core.options import CompileConfig
from tracer_core.plugin_api import Backend, Training
from tracer_core.testing import CountingBackend, torch_graph


def interpreter(graph, spec):
    return lambda inputs: list(graph(*inputs))


def changed(change):
    """A backend whose first output went through `change`; inputs come second."""

    def compile_it(graph, spec):
        def run(inputs):
            items = list(inputs)
            outputs = list(graph(*inputs))
            return change(outputs, items)

        return run

    return Backend(name="faulty", compile=compile_it)


FAULTS = {
    "count": (lambda out, inputs: out[:1], r"returned 1 outputs, expected 2"),
    "no list": (lambda out, inputs: out[0], r"returned Tensor, expected a list of 2"),
    "type": (lambda out, inputs: [3, out[1]], r"output 0 of 2 has type int, expected a tensor"),
    "dtype": (
        lambda out, inputs: [out[0].double(), out[1]],
        r"dtype torch.float64, expected torch.float32",
    ),
    "shape": (
        lambda out, inputs: [out[0], out[1][:1]],
        r"output 1 of 2 has shape \(1, 4\), expected \(3, 4\)",
    ),
    "strides": (
        lambda out, inputs: [out[0].t().contiguous().t(), out[1]],
        r"strides \(1, 3\), expected \(4, 1\)",
    ),
    "device": (lambda out, inputs: [out[0].to("meta"), out[1]], r"device meta, expected cpu"),
    "input": (
        lambda out, inputs: [inputs[0], out[1]],
        r"output 0 shares its memory with input 0 \(arg_0\)",
    ),
    "each other": (
        lambda out, inputs: [out[0], out[0]],
        r"output 1 shares its memory with output 0",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_first_result_is_named(fault):
    change, message = FAULTS[fault]
    with torch.no_grad():
        captured = torch_graph(lambda x: (x + 1, x * 2), [randn(3, 4)])
        runner = compile_graph(captured, CompileConfig(changed(change)))
        with pytest.raises(BackendError, match=message) as caught:
            runner([randn(3, 4)])
    assert caught.value.backend == "faulty" and caught.value.stage == "first call"


def test_the_check_also_sees_inputs_of_a_runner_that_clears_its_list():
    def compile_it(graph, spec):
        def run(inputs):
            kept = inputs[0]
            inputs.clear()
            return [kept]

        return run

    with torch.no_grad():
        captured = torch_graph(lambda x: x + 1, [randn(3)])
        runner = compile_graph(captured, CompileConfig(Backend(name="boxed", compile=compile_it)))
        with pytest.raises(BackendError, match="shares its memory with input 0"):
            runner([randn(3)])


def test_after_the_first_call_the_check_is_only_a_call():
    spec = None
    captured = torch_graph(lambda x: x + 1, [randn(3)])
    with torch.no_grad():
        spec = plugin_api.lower(
            captured.gm, captured.real_inputs, Backend(name="b", compile=interpreter)
        ).spec
    outputs = [randn(3)]
    run = checked(lambda inputs: outputs, spec)
    run([randn(3)])
    calls = {cell.cell_contents for cell in run.__closure__ if callable(cell.cell_contents)}
    assert len(calls) == 1 and "checked" not in calls.pop().__qualname__
    assert (
        min(timeit.repeat(lambda: run(outputs), number=1000, repeat=5)) / 1000 < 1e-5
    )  # generous: busy machines


def test_a_backend_that_raises_is_named_and_its_error_kept():
    def compile_it(graph, spec):
        raise RuntimeError("no memory for plans")

    captured = torch_graph(lambda x: x + 1, [randn(3)])
    with pytest.raises(
        BackendError, match=r"'broken' failed in stage 'compile': graph_0: RuntimeError: no mem"
    ) as e:
        compile_graph(captured, CompileConfig(Backend(name="broken", compile=compile_it)))
    assert isinstance(e.value.__cause__, RuntimeError)


def test_with_a_debug_folder_the_error_says_where_the_graph_is(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACER_DEBUG", str(tmp_path))

    def compile_it(graph, spec):
        raise RuntimeError("no")

    captured = torch_graph(lambda x: x + 1, [randn(3)])
    with pytest.raises(BackendError) as caught:
        compile_graph(captured, CompileConfig(Backend(name="broken", compile=compile_it)))
    assert caught.value.dump is not None and caught.value.dump.startswith(str(tmp_path))
    texts = [path.read_text() for path in tmp_path.rglob("*lower.py")]
    assert len(texts) == 1 and "aten.add.Tensor" in texts[0]


def test_no_form_means_eager_and_is_said_once(caplog):
    fn = lambda x: x.t_()
    for _ in range(2):
        captured = torch_graph(fn, [randn(3, 2)])
        runner = compile_graph(
            captured, CompileConfig(Backend(name="aten_only", compile=interpreter))
        )
    x = randn(3, 2)
    assert runner([x])[0] is x and x.shape == (2, 3)
    assert runner.fallback.kind == "lowering"
    assert sum("t_ changes sizes" in record.message for record in caplog.records) == 1


def test_a_shape_that_depends_on_data_runs_eagerly():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.nonzero, (x,)),))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    runner = plugin_api.compile_graph(
        gm, [randn(4)], Backend(name="aten_only", compile=interpreter)
    )
    assert runner.fallback.kind == "lowering"
    torch.testing.assert_close(runner([torch.tensor([0.0, 2.0])])[0], torch.tensor([[1]]))


def test_where_gradients_are_needed_the_captured_graph_runs_under_autograd(caplog):
    weight = randn(3).requires_grad_()
    captured = torch_graph(lambda x: (x * weight).sum(), [randn(3)])
    assert captured.needs_grad
    runner = compile_graph(
        captured, CompileConfig(Backend(name="inference_backend", compile=interpreter))
    )
    assert runner.fallback.kind == "training"
    assert any(
        "inference_backend is for inference only" in record.message for record in caplog.records
    )
    x = randn(3)
    runner([x, weight])[0].backward()
    torch.testing.assert_close(weight.grad, x)


def test_eager_trains_without_a_fallback():
    weight = randn(3).requires_grad_()
    captured = torch_graph(lambda x: (x * weight).sum(), [randn(3)])
    runner = compile_graph(captured, build_config(backend="eager"))
    assert runner.fallback is None
    assert runner([randn(3), weight])[0].requires_grad


def test_parameters_that_require_grad_but_results_that_do_not():
    weight = randn(3).requires_grad_()
    captured = torch_graph(lambda x: (x * weight).sum(), [randn(3)])
    detached = type(captured)(captured.gm, captured.inputs, captured.real_inputs, False, "graph_0")
    runner = compile_graph(detached, CompileConfig(Backend(name="b", compile=interpreter)))
    assert not runner([randn(3), weight])[0].requires_grad


def test_an_aten_graph_is_not_cast_again_inside_autocast():
    seen = []

    def compile_it(graph, spec):
        return lambda inputs: (seen.append(torch.is_autocast_enabled("cpu")), list(graph(*inputs)))[
            1
        ]

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        captured = torch_graph(lambda x: x @ x, [randn(3, 3)])
        runner = compile_graph(captured, CompileConfig(Backend(name="b", compile=compile_it)))
        x = randn(3, 3)
        torch.testing.assert_close(runner([x])[0], x @ x)
    assert seen == [False]


def test_a_callable_gets_the_torch_level_graph_and_the_real_tensors():
    counter = CountingBackend()
    x = randn(3, 3)
    captured = torch_graph(lambda x: torch.nn.functional.linear(x, x).relu_(), [x])
    runner = compile_graph(captured, build_config(backend=counter))
    torch.testing.assert_close(runner([x])[0], torch.nn.functional.linear(x, x).relu())
    assert len(counter.graphs) == 1 and counter.graphs[0] is captured.gm
    assert counter.calls == 1 and counter.op_count == 2


def test_a_callable_that_drops_gradients_is_named():
    def detaching(gm, inputs):
        return lambda *args: [out.detach() for out in gm(*args)]

    weight = randn(3).requires_grad_()
    captured = torch_graph(lambda x: x * weight, [randn(3)])
    runner = compile_graph(captured, build_config(backend=detaching))
    with pytest.raises(BackendError, match="every output is detached"):
        runner([randn(3), weight])


def test_options_and_mode_reach_the_spec():
    seen = []

    def compile_it(graph, spec):
        seen.append(spec)
        return interpreter(graph, spec)

    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Options:
        """One option."""

        level: int = 1

    backend = Backend(
        name="b", compile=compile_it, options=Options, modes={"default": "", "fast": ""}
    )
    gm = torch.fx.symbolic_trace(lambda x: (x + 1,))
    plugin_api.compile_graph(
        gm, [randn(3)], backend, options={"level": 2}, mode="fast", name="mine"
    )
    (spec,) = seen
    assert (spec.options, spec.mode, spec.name, spec.backend) == (Options(2), "fast", "mine", "b")
    assert spec.device.type == "cpu"


def test_a_torch_level_backend_gets_its_graph_and_spec():
    seen = []

    def compile_it(graph, spec):
        seen.append((graph, spec))
        return interpreter(graph, spec)

    backend = Backend(name="b", compile=compile_it, ir="torch", training=Training.INFERENCE_ONLY)
    with torch.no_grad():
        captured = torch_graph(lambda x: (x + 1, x), [randn(3)])
        runner = compile_graph(captured, CompileConfig(backend))
        x = randn(3)
        assert runner([x])[1] is x
    ((graph, spec),) = seen
    assert graph is captured.gm


def test_a_torch_level_backend_must_keep_aliases():
    def compile_it(graph, spec):
        return lambda inputs: [out.clone() for out in graph(*inputs)]

    backend = Backend(name="cloning", compile=compile_it, ir="torch")
    with torch.no_grad():
        runner = compile_graph(
            torch_graph(lambda x: (x + 1, x[1:]), [randn(3)]), CompileConfig(backend)
        )
        with pytest.raises(
            BackendError, match="output 1 has memory of its own, expected that of input 0"
        ):
            runner([randn(3)])


def test_a_torch_level_spec_tells_aliases():
    seen = []

    def compile_it(graph, spec):
        seen.append(spec)
        return interpreter(graph, spec)

    with torch.no_grad():
        captured = torch_graph(lambda x: (x + 1, x), [randn(3)])
        compile_graph(captured, CompileConfig(Backend(name="b", compile=compile_it, ir="torch")))
    (spec,) = seen
    assert [output.alias_of_input for output in spec.outputs] == [None, 0]
