"""torch.compiler's markers, what libraries ask to find out whether they are compiled, TorchScript
and torch.compile inside and around."""

from __future__ import annotations

import functools
import sys

import pytest
import torch
from torch import nn

import tracer_core
from tests.support.counting_backend import CountingBackend
from tests.support.eager_reference import compare_with_eager, same
from tracer_core.errors import MarkedSizeError, OptionError
from tracer_core.testing import CaptureCounter

X, Y = torch.randn(3, 4), torch.randn(3, 4)


@torch.compiler.disable
def disabled(x):
    return x * 2


@torch.compiler.disable(recursive=False)
def disabled_alone(x):
    return inner(x)


@torch.compiler.disable(reason="it talks to hardware")
def disabled_with_a_reason(x):
    return x * 2


@torch.compiler.allow_in_graph
def allowed(x):
    return torch.add(x, 1) * 2


@torch.compiler.assume_constant_result
def constant():
    return 3


@torch.jit.script
def scripted(x):
    return x.relu() * 2


@torch.jit.ignore
def ignored(x):
    return x * 2


@torch.jit.export
def exported(x):
    return x * 3


@torch.jit.script_if_tracing
def script_if_tracing(x):
    return x * 2


def inner(x):
    return x * 2 if torch.compiler.is_compiling() else x + x


def wrapped(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) + 1

    return wrapper


@wrapped
@torch.compiler.disable
def wrapped_disabled(x):
    return x * 2


class Scripted(nn.Module):
    def forward(self, x):
        return x * 2


SCRIPTED = torch.jit.script(Scripted())
TRACED = torch.jit.trace(lambda x: x * 3, X)


def annotated(x):
    y = torch.jit.annotate(torch.Tensor, x)
    if (
        torch.jit.is_scripting()
        or torch.jit.is_tracing()
        or not torch.jit.isinstance(y, torch.Tensor)
    ):
        return x
    return y * 2


def checked(x):
    torch._check(x.shape[0] == 3)
    torch._check(x.shape[0] == 3, lambda: "never")
    torch._assert(x.shape[0] == 3, "never")
    return x * 2


def asserted(x):
    torch._assert_async((x == x).all())
    return x * 2


def of_transformers(x):
    from transformers.utils import is_torchdynamo_compiling
    from transformers.utils.import_utils import is_torch_fx_proxy

    return x * 2 if is_torchdynamo_compiling() or not is_torch_fx_proxy(x) else x + x


QUESTIONS = {
    "is_compiling": lambda x: inner(x) + 1,
    "is_dynamo_compiling": lambda x: x * 2 if torch.compiler.is_dynamo_compiling() else x + x,
    "is_exporting": lambda x: x if torch.compiler.is_exporting() else x * 2,
    "is_torchdynamo_compiling": of_transformers,
    "tracer_core.is_compiling": lambda x: x * 2 if tracer_core.is_compiling() else x + x,
    "annotate, is_scripting, is_tracing": annotated,
    "fx proxies": lambda x: x if isinstance(x, torch.fx.Proxy) else x * 2,
    "has_torch_function": lambda x: x if torch.overrides.has_torch_function((x,)) else x * 2,
    "ignore, export": lambda x: ignored(x) + exported(x),
    "script_if_tracing": lambda x: script_if_tracing(x) + 1,
    "check": checked,
    "assert_async": asserted,
    "assume_constant_result": lambda x: x * constant(),
    "allow_in_graph": lambda x: allowed(x) + 1,
    "cuda.is_available": lambda x: x * 2 if torch.cuda.is_available() else x * 3,
    "a wrapper of wraps": wrapped(lambda x: x * 2),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_question(name):
    same(QUESTIONS[name], (X,), (Y,), graphs=1)


BREAKING = {
    "disable": (lambda x: disabled(x + 1) + 1, "disabled"),
    "disable, not recursive": (lambda x: disabled_alone(x + 1) + 1, "disabled"),
    "disable under a wrapper": (lambda x: wrapped_disabled(x * 3) * 2, "disabled"),
    "scripted module": (lambda x: SCRIPTED(x + 1) + 1, "unknown_native"),
    "graph_break": (lambda x: (x := x + 1, torch._dynamo.graph_break(), x * 2)[2], "requested"),
}


@pytest.mark.parametrize("function", [scripted, TRACED], ids=["scripted", "traced"])
def test_functions_of_torch_jit(function):
    same(lambda x: function(x + 1) + 1, (X,), (Y,), graphs=1, breaks=0)


@pytest.mark.parametrize("name", BREAKING)
def test_break(name):
    function, kind = BREAKING[name]
    same(function, (X,), (Y,), graphs=2, breaks=1, kinds=(kind,))


@pytest.mark.parametrize("name", ["mark_dynamic", "set_stance", "reset"])
def test_call_of_torch_compiler_inside(name):
    def f(x):
        x = x + 1
        if name == "set_stance":
            with torch.compiler.set_stance("default"):
                x = x * 2
        elif name == "mark_dynamic":
            torch._dynamo.mark_dynamic(x, 0)
        else:
            getattr(torch.compiler, name)()
        return x * 2

    same(f, (X,), (Y,), kinds=("native_python",))


def test_the_reason_of_disable_is_told():
    seen = same(lambda x: disabled_with_a_reason(x) + 1, (X,), (Y,), kinds=("disabled",))
    assert "it talks to hardware" in seen.counter.breaks[0][1]


def test_check_that_fails():
    def f(x):
        torch._check(x.shape[0] == 3, lambda: f"{x.shape[0]} rows")
        return x * 2

    same(f, (X,), (torch.ones(2, 4),), (Y,), kinds=None)


def test_our_allow_in_graph_is_one_node():
    """torch.compiler.allow_in_graph leaves no mark that can be read (decision 0003); such a
    function is followed.
    """

    @tracer_core.allow_in_graph
    def ours(x):
        return torch.add(x, 1) * 2

    report = tracer_core.explain(lambda x: ours(x) + 1)(X)
    assert report.graph_count == 1 and any(
        node.target is ours for node in report.graphs[0].graph.nodes
    )
    same(lambda x: ours(x) + 1, (X,), (Y,), graphs=1)


# -- torch.compile inside and around --


def linear():
    torch.manual_seed(0)
    return nn.Linear(4, 4)


def test_torch_compile_inside():
    function = torch.compile(lambda x: x * 2, backend="eager")
    module = torch.compile(linear(), backend="eager")
    same(lambda x: function(x + 1) + 1, (X,), (Y,), graphs=2, breaks=1, kinds=("native_python",))
    same(lambda x: module(x + 1) + 1, (X,), (Y,), graphs=2, breaks=1, kinds=("native_python",))


def test_compile_of_a_torch_compiled_function():
    def f(x):
        return x.sin() * 2

    compare_with_eager(
        lambda: (torch.compile(f, backend="eager"), None), (X,), (Y,), graphs=1, breaks=0
    )


def test_compile_of_a_decorated_torch_compiled_function():
    """functools.wraps copies torch.compile's attributes; the decorator is not to be passed over."""
    function = wrapped(torch.compile(lambda x: x * 2, backend="eager"))
    same(function, (X,), (Y,), kinds=("native_python",))


def test_compile_of_a_torch_compiled_module():
    def make():
        m = torch.compile(linear(), backend="eager")
        return m, m

    seen = compare_with_eager(
        make, (X,), (Y,), lambda m: m.weight.data.mul_(2), (X,), graphs=1, breaks=0
    )
    assert list(seen.compiled.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]


def test_torch_compiled_submodule():
    def make():
        m = nn.Sequential(nn.Tanh(), torch.compile(linear(), backend="eager"), nn.ReLU())
        return m, m

    compare_with_eager(make, (X,), (Y,), kinds=None)


def test_module_compiled_in_place():
    def make():
        m = nn.Sequential(linear())
        m.compile(backend="eager")
        return m, m

    compare_with_eager(make, (X,), (Y,), graphs=1, breaks=0)


def test_compiled_under_torch_compile():
    ours = tracer_core.compile(lambda x: x * 2, backend="eager")
    outer = torch.compile(lambda x: ours(x + 1) + 1, backend="eager")
    for x in (X, Y):
        torch.testing.assert_close(outer(x), (x + 1) * 2 + 1)


def test_compiled_in_compiled():
    ours = tracer_core.compile(lambda x: x * 2, backend="eager")
    compiled = tracer_core.compile(lambda x: ours(x + 1) + 1, backend="eager")
    with CaptureCounter() as counter:
        for x in (X, Y):
            torch.testing.assert_close(compiled(x), (x + 1) * 2 + 1)
    assert len(counter.graphs) == 1 and not counter.breaks


def test_compiled_under_jit_trace():
    compiled = tracer_core.compile(lambda x: x * 2 + 1, backend="eager")
    compiled(X)
    traced = torch.jit.trace(compiled, X)
    torch.testing.assert_close(traced(Y), Y * 2 + 1)


def _mask(x: torch.Tensor) -> torch.Tensor | None:
    """As masking_utils of transformers 5.17: a mask that hides nothing is left out, unless
    compiled.
    """
    return None if not torch.compiler.is_compiling() else torch.ones(6, 6)


def _checks_its_mask(x: torch.Tensor) -> torch.Tensor:
    mask = _mask(x)
    if mask is not None and mask.shape[-1] != x.shape[-1]:
        raise ValueError(f"the mask has {mask.shape[-1]} columns")
    return x * 2


def _adds_its_mask(x: torch.Tensor) -> torch.Tensor:
    mask = _mask(x)
    x = x * 2
    return x if mask is None else x + mask


def _asks_again_after_a_break(x: torch.Tensor) -> torch.Tensor:
    x = _adds_its_mask(x)
    tracer_core.graph_break()
    return _adds_its_mask(x) if tracer_core.is_compiling() is False else x


@pytest.mark.parametrize("fn", [_checks_its_mask, _adds_its_mask, _asks_again_after_a_break])
def test_a_program_that_fails_where_it_is_told_that_it_is_compiled(fn, caplog):
    """It runs as in eager, captured, and that is said once."""
    compiled = tracer_core.compile(fn, backend="eager")
    with CaptureCounter() as counter:
        for size in (3, 3, 4):
            x = torch.randn(2, size)
            torch.testing.assert_close(compiled(x), fn(x))
    assert counter.graphs
    messages = [
        record.getMessage()
        for record in caplog.records
        if "is_compiling() says False" in record.getMessage()
    ]
    assert len(messages) == 1 and ("the mask has 6 columns" in messages[0] or "add" in messages[0])
    assert f"{__file__.rpartition('/')[2]}" in messages[0]


def test_a_program_that_fails_either_way_is_still_told_that_it_is_compiled(caplog):
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2 if torch.compiler.is_compiling() else x + x + 0
        if x.shape[0] == 3:
            raise ValueError("three rows")
        return y @ torch.ones(4, 4)

    compiled = tracer_core.compile(fn, backend="eager")
    for x, error in ((torch.ones(3, 4), ValueError), (torch.ones(2, 5), RuntimeError)):
        with pytest.raises(error) as want:
            fn(x)
        with pytest.raises(error) as got:
            compiled(x)
        assert str(want.value) == str(got.value)
    with CaptureCounter() as counter:
        compiled(torch.ones(2, 4))
    (graph,) = counter.graphs
    assert "says False" not in caplog.text


def test_allow_in_graph_of_torch_makes_a_node():
    """`sys.intern` would break the graph."""

    @torch.compiler.allow_in_graph
    def opaque(x, *, scale=1.0):
        sys.intern("a" + str(len(x)))
        return torch.sin(x) * scale

    x = torch.randn(3, requires_grad=True)
    fast = tracer_core.compile(lambda x: opaque(x + 1, scale=3.0) * 2, fullgraph=True)
    fast(x).sum().backward()
    expected = torch.autograd.grad((torch.sin(x + 1) * 6).sum(), x)[0]
    assert torch.allclose(x.grad, expected)
    (graph,) = tracer_core.explain(fast)(x).graphs
    assert any(node.target is opaque for node in graph.graph.nodes)


def test_disallow_in_graph_of_torch_breaks():
    torch._dynamo.disallow_in_graph(torch.sinh)
    try:
        same(lambda x: torch.sinh(x + 1) * 2, (X,), (Y,), breaks=1, kinds=("disabled",))
    finally:
        torch._dynamo.allow_in_graph(torch.sinh)
        torch._dynamo.trace_rules._allowed_callable_ids.remove(id(torch.sinh))
    same(lambda x: torch.sinh(x + 1) * 2, (X,), (Y,), graphs=1, breaks=0)


def test_a_message_of_torch_s_graph_break_is_told():
    def f(x):
        x = x + 1
        torch._dynamo.graph_break(msg="here")
        return x * 2

    seen = same(f, (X,), (Y,), breaks=1)
    assert seen.counter.breaks[0][:2] == ("requested", "here")


@pytest.mark.parametrize("mark", [
    lambda x: torch._dynamo.mark_dynamic(x, 0),
    lambda x: torch._dynamo.maybe_mark_dynamic(x, 0),
    lambda x: torch._dynamo.decorators.mark_unbacked(x, 0),
], ids=["mark_dynamic", "maybe_mark_dynamic", "mark_unbacked"])  # fmt: skip
def test_marks_of_torch_on_tensors(mark):
    first, counter = torch.randn(5, 2), CountingBackend()
    mark(first)
    fast = tracer_core.compile(lambda x: x * 2 + x.shape[0], backend=counter)
    for x in (first, torch.randn(7, 2), torch.randn(2, 2)):
        assert torch.equal(fast(x), x * 2 + x.shape[0])
    assert counter.n_graphs == 1


def test_mark_unbacked_serves_size_1_and_has_bounds():
    x, counter = torch.randn(5), CountingBackend()
    torch._dynamo.decorators.mark_unbacked(x, 0)
    fast = tracer_core.compile(lambda x: x * 2, backend=counter)
    fast(x), fast(torch.randn(1))
    assert counter.n_graphs == 1
    y = torch.randn(5)
    torch._dynamo.decorators.mark_unbacked(y, 0, min=3, max=9)
    fast = tracer_core.compile(lambda x: x * 3, backend=counter)
    fast(y), fast(torch.randn(9))
    assert counter.n_graphs == 2
    fast(torch.randn(10))
    assert counter.n_graphs == 3


def test_maybe_mark_dynamic_may_be_specialized():
    x, y = torch.randn(5), torch.randn(5)
    torch._dynamo.maybe_mark_dynamic(x, 0), torch._dynamo.mark_dynamic(y, 0)
    fast = tracer_core.compile(lambda x: x.view(5) * 2, backend="eager")
    assert torch.equal(fast(x), x * 2)
    with pytest.raises(MarkedSizeError):
        tracer_core.compile(lambda x: x.view(5) * 3, backend="eager")(y)


def native_count(values, wanted):
    sys._getframe()  # ends a graph
    return list(values).count(wanted)


def test_substitute_in_graph():
    @tracer_core.substitute_in_graph(native_count)
    def count(values, wanted):
        return 100 + sum(value == wanted for value in values)

    fast = tracer_core.compile(lambda x: x + native_count([1, 2, 1], 1), fullgraph=True)
    assert fast(torch.zeros(1)).tolist() == [102.0], "the substitute is traced"
    assert native_count([1, 2, 1], 1) == 2
    with pytest.raises(OptionError, match="substitute_in_graph needs a function"):
        tracer_core.substitute_in_graph(lambda: 1)(3)
    with pytest.raises(OptionError, match="is already marked disallow_in_graph"):
        tracer_core.substitute_in_graph(tracer_core.disallow_in_graph(lambda: 1))(count)
