"""Lowering, as a backend sees it: the lowered graph, run operator by operator, is the program."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from tests.aot.programs import PROGRAMS, Program, randn
from tracer_core import plugin_api
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.plugin_api import Backend, Role
from tracer_core.testing import compare, compare_aliasing, torch_graph

aten = torch.ops.aten


def interpreter(graph, spec):
    return lambda inputs: list(graph(*inputs))


ATEN = Backend(name="reference", compile=interpreter, ir="aten", shapes="symbolic")
CORE = Backend(name="core_reference", compile=interpreter, ir="core_aten", shapes="symbolic")


def lowered(fn, *inputs, backend=ATEN, dynamic=False):
    with torch.no_grad():
        captured = torch_graph(fn, inputs, dynamic=dynamic)
        low = plugin_api.lower(
            captured.gm, captured.real_inputs, backend, input_specs=captured.inputs
        )
    return captured, low


def targets(low) -> list[str]:
    return [str(node.target) for node in low.graph.graph.nodes if node.op == "call_function"]


def run_both(program: Program, backend: Backend, calls: int = 2) -> None:
    captured, low = lowered(program.fn, *program.inputs(), backend=backend)
    runner = low.plan.bind(interpreter(low.graph, low.spec))
    extra = captured.real_inputs[len(program.inputs()) :]
    for _ in range(calls):
        ours, eager = program.inputs(), program.inputs()
        with torch.no_grad():
            torch.manual_seed(0)
            expected = program.fn(*eager)
            state = torch.get_rng_state()
            torch.manual_seed(0)
            actual = tuple(runner([*ours, *extra]))
        expected = tuple(expected) if isinstance(expected, (tuple, list)) else (expected,)
        compare(expected, actual)
        compare(eager, ours, path="inputs")
        compare_aliasing([eager, expected], [ours, actual])
        assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_lowered_program_is_the_program(program):
    run_both(program, ATEN)


CORE_DIFFERS = {
    "random numbers": "the core form of bernoulli draws another stream",
    "dropout of a transposed tensor": "likewise",
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_so_it_is_in_core_aten(program):
    if program.name in CORE_DIFFERS:
        pytest.skip(CORE_DIFFERS[program.name])
    run_both(program, CORE)


def test_writes_are_trailing_copies():
    _, low = lowered(lambda x, y: (x.add_(1), y.mul_(2), x + y)[2], randn(3), randn(3))
    assert low.spec.mutations == (0, 1)
    assert targets(low)[-2:] == ["aten.copy_.default"] * 2
    assert "aten.add_.Tensor" not in targets(low)


def test_composites_and_renamings_are_gone():
    _, low = lowered(
        lambda x, w: F.linear(x, w).detach().contiguous() + 1, randn(4, 3), randn(5, 3)
    )
    assert targets(low) == ["aten.t.default", "aten.mm.default", "aten.add.Tensor"]


def test_constants_become_stable_inputs():
    _, low = lowered(lambda x: x + torch.tensor([1.0, 2.0]), randn(3, 2))
    assert [(spec.role, spec.stable_address) for spec in low.spec.inputs] == [
        (Role.USER_INPUT, False),
        (Role.BUFFER, True),
    ]
    assert not low.graph.graph.find_nodes(op="get_attr")


def test_attributes_of_the_captured_module_become_inputs():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(randn(3))

        def forward(self, x):
            return (x * self.weight + self.weight,)

    gm = torch.fx.symbolic_trace(Model())
    x = randn(2, 3)
    low = plugin_api.lower(gm, [x], ATEN)
    assert [spec.role for spec in low.spec.inputs] == [Role.USER_INPUT, Role.PARAMETER]
    (result,) = low.plan.bind(interpreter(low.graph, low.spec))([x])
    torch.testing.assert_close(result, gm(x)[0])


def test_every_node_knows_the_users_line():
    _, low = lowered(lambda x: F.softmax(x, -1) + 1, randn(3, 2))
    frames = {
        node.meta["user_frame"] for node in low.graph.graph.nodes if node.op == "call_function"
    }
    assert len(frames) == 1 and frames.pop().startswith("test_lower.py:")


def test_autocast_nodes_act_while_lowering():
    enter, leave = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast
    graph = torch.fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    context = graph.call_function(enter, ("cpu", torch.bfloat16, True, False))
    y = graph.call_function(F.linear, (x, w))
    graph.call_function(leave, (context,))
    graph.output((y, graph.call_function(F.linear, (x, w))))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    low = plugin_api.lower(gm, [randn(4, 3), randn(5, 3)], ATEN)
    assert [spec.dtype for spec in low.spec.outputs] == [torch.bfloat16, torch.float32]
    assert not torch.is_autocast_enabled("cpu")


def test_grad_mode_nodes_disappear():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.output((graph.call_function(torch.sin, (x,)),))
    low = plugin_api.lower(torch.fx.GraphModule(torch.nn.Module(), graph), [randn(3)], ATEN)
    assert targets(low) == ["aten.sin.default"]


@pytest.mark.parametrize("method", ["resize_", "t_", "unsqueeze_"])
def test_changing_the_shape_of_an_input_is_refused_with_its_line(method):
    arguments = {"resize_": (2, 3), "t_": (), "unsqueeze_": (0,)}[method]
    with pytest.raises(
        LoweringUnsupported, match=rf"{method} changes sizes.*arg_0 \(at test_lower.py"
    ):
        lowered(lambda x: getattr(x, method)(*arguments), randn(3, 2))


def test_inputs_that_share_memory_may_be_read_but_not_written():
    base = randn(4)
    low = lowered(lambda x, y: x + y, base[:2], base[2:])[1]
    assert targets(low) == ["aten.add.Tensor"]
    with pytest.raises(LoweringUnsupported, match="shares memory with another"):
        lowered(lambda x, y: x.add_(1) + y, base[:3], base[1:])


def test_a_view_of_an_input_with_another_dtype_is_refused():
    with pytest.raises(LoweringUnsupported, match=r"float32 tensor as torch\.int32"):
        lowered(lambda x: x.view(torch.int32), randn(3))


def test_decompositions_and_keep_ops():
    def table():
        return {aten.gelu.default: lambda x, approximate="none": x * torch.sigmoid(1.702 * x)}

    own = Backend(name="own", compile=interpreter, decompositions=table)
    assert "aten.gelu.default" not in targets(lowered(F.gelu, randn(3), backend=own)[1])
    kept = Backend(
        name="kept",
        compile=interpreter,
        decompositions=table,
        preserved_ops=frozenset({"aten.gelu.default"}),
    )
    assert targets(lowered(F.gelu, randn(3), backend=kept)[1]) == ["aten.gelu.default"]


def test_a_write_whose_value_is_another_input_is_not_overtaken_by_a_write_to_that():
    def shift(y, x):
        x.copy_(y)
        return y.add_(1).sum()

    def table():
        return {
            aten.copy.default: lambda target, source, non_blocking=False: source.expand_as(target)
        }

    backend = Backend(name="own", compile=interpreter, decompositions=table)
    low = lowered(shift, randn(3), randn(4)[1:], backend=backend)[1]
    y, x = torch.zeros(3), torch.full((3,), 5.0)
    low.plan.bind(interpreter(low.graph, low.spec))([y, x])
    assert torch.equal(x, torch.zeros(3)) and torch.equal(y, torch.ones(3))


def test_keeping_a_composite_operator_is_refused():
    backend = Backend(
        name="kept", compile=interpreter, preserved_ops=frozenset({"aten.linear.default"})
    )
    with pytest.raises(LoweringUnsupported, match=r"aten\.linear\.default"):
        lowered(F.relu, randn(3), backend=backend)


def test_torch_level_graphs_are_untouched():
    backend = Backend(name="raw", compile=interpreter, ir="torch")
    captured, low = lowered(lambda x: F.linear(x, x).relu_(), randn(3, 3), backend=backend)
    assert low.graph is captured.gm


def test_the_cache_key_follows_content_not_names():
    def key(fn, *inputs, backend=ATEN):
        return lowered(fn, *inputs, backend=backend)[1].spec.cache_key

    x = randn(3, 2)
    base = key(lambda x: x.relu() + 1, x)
    assert base == key(lambda renamed: torch.relu(renamed) + 1, x.clone())
    others = [
        key(lambda x: x.relu() + 2, x),
        key(lambda x: x.relu() + 1.0, x),
        key(lambda x: x.relu() + 1, randn(2, 3)),
        key(lambda x: x.relu() + 1, randn(2, 3).t()),
        key(lambda x: x.relu() + 1, x.double()),
        key(lambda x: x.relu() + 1, x, backend=CORE),
    ]
    assert len({base, *others}) == 7


def test_lowering_leaves_inputs_and_modes_alone():
    x = randn(3, 2)
    before = copy.deepcopy(x)
    lowered(lambda x: x.add_(1).mul_(2), x)
    assert torch.equal(x, before) and x._version == 0
    assert torch.is_grad_enabled()


def test_the_number_of_inputs_is_checked():
    gm = torch.fx.symbolic_trace(lambda x, y: (x + y,))
    with pytest.raises(ValueError, match="2 placeholders, but 1 inputs"):
        plugin_api.lower(gm, [randn(2)], ATEN)
