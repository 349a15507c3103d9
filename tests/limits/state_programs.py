"""Programs whose size goes through a limit of state, branches on data, guards or inputs."""

from __future__ import annotations

from typing import Any

import torch

from tests.limits.registered import FUSES, X, case

# -- state


def _with_state(buffer, condition):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", buffer.clone())

        def forward(self, x):
            return x * 2 if condition(self.state) else x - 1

    return Layer()


@case("MAX_STATE_ELEMENTS", under=64, over=65)
def a_branch_on_a_buffer(n):
    return _with_state(torch.ones(n), lambda state: bool(state.sum() > 3))


@case("MAX_STATE_OPERATORS", under=5, over=30)
def a_long_condition_on_a_buffer(n):
    def condition(state):
        for _ in range(n):
            state = state * 0.9
        return bool(state.sum() > 3)

    return _with_state(torch.ones(4), condition)


@case("MAX_STATE_VALUES", limits=(40, 1), settles=16,
      calls=lambda n: [(torch.ones(2 + i // 2 % 3),) for i in range(24)],
      options={"backend": "eager", "dynamic": False})  # fmt: skip
def a_counter_in_a_buffer(n):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("step", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            self.step += 1
            return x * 2 if self.step % 2 == 0 else x - 1

    return Layer()


# -- branches and numbers that depend on data


def _source(text, **names):
    made: dict[str, Any] = dict(names)
    exec(compile(text, "<tests.limits>", "exec"), made)
    return made["f"]


@case("MAX_SPECULATED_BRANCHES", under=32, over=33, says="[data_dependent_branch]", options=FUSES)
def many_branches(n):
    lines = [f"    if x.sum() > {i}: x = x * 0.9" for i in range(n)]
    return _source("\n".join(["def f(x):", *lines, "    return x"]))


@case("MAX_SPECULATIONS_OF_BRANCH", under=8, over=9, says="[data_dependent_branch]", settles=16,
      calls=lambda n: [(X,)] * 24, options=FUSES)  # fmt: skip
def a_loop_until_convergence(n):
    def f(x):
        for _ in range(n):
            if x.sum() > 2:
                x = x * 0.9
        return x

    return f


@case("MAX_SPECULATED_LOOP_NODES", under=100, over=140, says="[data_dependent_branch]",
      options=FUSES)  # fmt: skip
def a_long_loop_until_convergence(n):
    def f(x):
        while x.abs().max() > 0.5:
            for _ in range(n):
                x = x * 0.995
        return x

    return f


VALUES = torch.linspace(0, 1, 16).reshape(4, 4)


@case("MAX_SPECULATED_NUMBERS", limit=8, under=8, over=9, says="[data_dependent", options=FUSES)
def lookups_in_a_table(n):
    def f(x):
        total = x * 0
        for i in range(n):
            total = total + VALUES[:, (x * i).sum().long() % 4]
        return total

    return f


@case(
    "MAX_DATA_VIOLATIONS",
    limits=(40, 1),
    calls=lambda n: [(X * i,) for i in range(20)],
    settles=15,
    options=FUSES,
)
def a_branch_that_goes_both_ways(n):
    def f(x):
        if x.sum() > 12:
            return x - 1
        return x * 2

    return f


# -- guards and code regions


@case("MAX_LEARNED_TENSORS", limits=(8, 1), calls=lambda n: [(torch.ones(2, 3).t(),)] * 6)
def other_tensors_in_each_call(n):
    return lambda x: x * 2


def _breaks(n):
    lines = [f"    x = x + {i}\n    print(end='', flush=[])" for i in range(n)]
    return _source("\n".join(["def f(x):", *lines, "    return x"]))


@case("MAX_REGIONS", limit=8, under=6, over=12, says="more than")
def many_graph_breaks(n):
    return _breaks(n)


@case("MAX_REGIONS_WITHOUT_GRAPH", limit=10, under=5, over=40)
def logging_in_a_loop(n):
    def f(x):
        for _ in range(n):
            print(end="", flush=[])
        return x + 1

    return f


@case("MAX_RESUMED_INSTRUCTIONS", limits=(48, 3), settles=4)
def bookkeeping_between_graphs(n):
    def f(x):
        y = x + 1
        print(end="", flush=[])
        a, b, c, d = 1, 2, 3, 4
        total = a + b + c + d
        rows = [a, b, c, d, total]
        return y * total + len(rows)

    return f


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __deepcopy__(self, memo):
        return self


SCALES = [Scale(i + 0.5) for i in range(5)]
#: Objects of three kinds each, which share cache entries by their kind.
KINDS = [[Scale(kind) for kind in ("a", "bb", "ccc")] for _ in range(12)]


@case(
    "MAX_RECENT_ENTRIES", limit=2, under=2, over=3, settles=12,
    calls=lambda n: [(KINDS[i % 12][i % 12 % n], X) for i in range(36)],
)  # fmt: skip
def objects_of_some_kinds(n):
    return lambda scale, x: x * len(scale.factor)


@case("MAX_CACHE_ENTRIES", limit=3, under=2, over=5, settles=9, says="was compiled 3 times",
      calls=lambda n: [(SCALES[i % n], X) for i in range(20)],
      options={"backend": "eager", "dynamic": False})  # fmt: skip
def many_objects_in_turn(n):
    return lambda scale, x: x * scale.factor


@case("MAX_SHORT_LIVED_OBJECTS", limits=(8, 1), settles=9,
      calls=lambda n: [(Layer(), X) for _ in range(12)])  # fmt: skip
def an_object_a_call(n):
    return lambda layer, x: x * layer.factor


class Layer:
    factor = 2.0


@case("MAX_FAILED_LOOKUPS", limits=(8, 1), settles=9,
      calls=lambda n: [(X, f"word{i}") for i in range(20)])  # fmt: skip
def words(n):
    return lambda x, word: x * len(word)


@case("MAX_RECOMPILES", is_compared=False, under=8, over=12, settles=8, says="kept changing",
      calls=lambda n: [(X, f"word{i % n}") for i in range(3 * n)])  # fmt: skip
def words_in_turn(n):
    return lambda x, word: x * len(word)


# -- inputs


def _written(n):
    return [(torch.ones(n), torch.tensor([0, 1, 9 if i == 4 else 2])) for i in range(8)]


@case("MAX_SNAPSHOT_BYTES", limit=400, under=100, over=101, calls=_written)
def a_write_before_an_error(n):
    def f(x, index):
        x[:4].mul_(2)
        return x[:4][index] + 1

    return f


@case("MAX_SNAPSHOT_BYTES_ALWAYS", limit=400, under=100, over=101, calls=_written)
def a_write_before_errors(n):
    return a_write_before_an_error(n)
