"""An operator program and how a seed makes one.

In: a seed. Out: a `Program`: the text of a function, what makes its inputs, its calls, what is
written to its results and inputs after each call. What always holds: eager ran every statement, for
every call, when it was made; `rules` hold of the operands of each.
"""

from __future__ import annotations

import ast
import random
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tests.operator_programs.forms import NUMBERS, TABLES, Form
from tests.operator_programs.inputs import SIZES, filled, input_text
from tests.operator_programs.outcome import outcomes
from tests.operator_programs.rules import writable
from tests.opinfo.judge import Outcome
from tests.random_programs.minimise import Edit
from tests.triton_kernels.random_graphs.program import result_edits as result_edits

#: Programs whose seeds lie in one block are compiled as one, and so have one mode.
BLOCK = 40
#: Elements and dimensions of a value at most.
MAX_ELEMENTS, DIMS = 600, 5
#: How often a program is made anew because eager refuses its backward.
_TRIES = 10
_SPACE = {"torch": torch, "F": torch.nn.functional}
#: Numbers of programs that float32 has not.
_INEXACT = ("1e-30", "3e38", "3e+38", "1e-3", "0.001", "0.3")
#: Functions of torch whose result lies on the default device unless they are told.
_MAKING = frozenset(
    {"arange", "empty", "eye", "full", "linspace", "ones", "tensor", "tril_indices", "zeros"}
)


@dataclass(frozen=True, slots=True)
class Mode:
    """How the programs of a block are compiled and called."""

    backend: str = "inductor"
    dynamic: bool = False
    gradients: bool = False
    device: str = "cpu"


#: Modes, and of how many blocks in a hundred.
MODES = (
    (Mode(), 50), (Mode(gradients=True), 20), (Mode(dynamic=True), 14),
    (Mode(dynamic=True, gradients=True), 4), (Mode("aten_eager"), 3), (Mode("eager"), 3),
    (Mode("aten_eager", gradients=True), 2), (Mode("eager", dynamic=True), 2),
    (Mode("aten_eager", dynamic=True), 2),
)  # fmt: skip


def mode_of(seed: int) -> Mode:
    modes, weights = zip(*MODES, strict=True)
    chosen: Mode = random.Random(f"mode {seed // BLOCK}").choices(modes, weights)[0]
    return chosen


@dataclass(frozen=True, slots=True)
class Program:
    """inputs: text of each, over the sizes s0, s1, s2 and the inputs before it; source: the function.
    steps: its calls: the sizes, and before how many elements of their memory the inputs begin.
    later: statements after each call, on inputs and results ``r``. raises: eager's last statement
    raises."""

    seed: int
    mode: Mode
    inputs: tuple[str, ...]
    source: str
    steps: tuple[tuple[int, int, int, int], ...]
    later: tuple[str, ...] = ()
    raises: bool = False

    def with_source(self, source: str) -> Program:
        return replace(self, source=source)

    def function(self, wide: bool = False, rounded: bool = False) -> Callable[..., Any]:
        """wide: in double precision. rounded: with its numbers as float32 has them."""
        text = self.source
        for number in _INEXACT if rounded else ():
            text = text.replace(number, repr(torch.tensor(float(number)).item()))
        if wide:
            text = re.sub(r"torch\.(float32|bfloat16|float16)\b", "torch.float64", text)
            text = text.replace("torch.complex64", "torch.complex128")
        scope: dict[str, Any] = dict(_SPACE)
        if self.mode.device != "cpu" and not wide:
            text = ast.unparse(_OnDevice(self.mode.device).visit(ast.parse(text)))
        exec(compile(text, f"<operator program {self.seed}>", "exec"), scope)
        return scope["program"]  # type: ignore[no-any-return]

    def arguments(self, call: int, device: str | None = None) -> list[torch.Tensor]:
        """device: of the tensors, where it is not the mode's."""
        *sizes, begin = self.steps[call]
        generator = torch.Generator().manual_seed(self.seed * 7 + call)

        def made(dtype: str, values: str, *sizes: int) -> torch.Tensor:
            result = filled(generator, dtype, values, sizes, begin)
            if (wanted := device or self.mode.device) == "cpu":
                return result
            full = result.as_strided((begin + result.numel(),), (1,), 0).to(wanted)
            return full[begin:].view(result.shape)

        scope: dict[str, Any] = {f"s{k}": size for k, size in enumerate(sizes)} | {"filled": made}
        found = []
        for number, text in enumerate(self.inputs):
            scope[f"i{number}"] = eval(text, scope)
            found.append(scope[f"i{number}"])
        if self.mode.gradients:
            found = [x.requires_grad_() if x.is_floating_point() else x for x in found]
        return found

    def outcomes(self, function: Callable[..., Any], arguments: list[Any]) -> list[Outcome]:
        """What a call of the program leaves: `outcome.outcomes` of this one alone."""
        return outcomes(
            lambda inputs: [function(*inputs[0])], [arguments], self.mode.gradients, [self.later]
        )

    @property
    def alone(self) -> bool:
        """Whether it is compiled by itself: it raises, or a whole graph may run eagerly because of
        it (inputs that share memory, a view as another type)."""
        shared = any(re.search(r"\bi\d", text) for text in self.inputs)
        return self.raises or shared or ".view(torch." in self.source

    def __str__(self) -> str:
        inputs = "\n".join(f"# i{k} = {text}" for k, text in enumerate(self.inputs))
        after = "".join(f"# later: {line}\n" for line in self.later)
        return (
            f"# seed {self.seed}, {self.mode}, calls {self.steps}\n{inputs}\n{self.source}{after}"
        )


class _OnDevice(ast.NodeTransformer):
    """Makes new tensors of a program on a device."""

    def __init__(self, device: str) -> None:
        self.device = device

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _MAKING:
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "torch":
                node.keywords.append(ast.keyword("device", ast.Constant(self.device)))
        return node


def changed(program: Program, backend: str | None, device: str = "cpu") -> Program:
    """The program for another backend, and its own where that is None, on a device."""
    mode = replace(program.mode, backend=backend or program.mode.backend, device=device)
    return replace(program, mode=mode)


def later_edits(program: Program) -> Iterator[Edit]:
    """The program without one of the statements after its calls."""
    for place in range(len(program.later)):
        yield (
            lambda p, place=place: replace(  # type: ignore[misc]
                p, later=p.later[:place] + p.later[place + 1 :]
            )
        )


def generate(seed: int) -> Program:
    rng, mode = random.Random(f"operators {seed}"), mode_of(seed)
    symbols = [max(rng.choice(SIZES), 2 if mode.dynamic else 1) for _ in range(3)]
    steps = [(*symbols, 0), (*symbols, rng.choice((0, 0, 1, 3)))]
    if mode.dynamic:
        grown = [max(size + rng.choice((-1, 0, 1, 6)), 2) for size in symbols]
        steps[1] = (*grown, rng.choice((0, 0, 1, 3)))
    inputs: list[str] = []
    for number in range(rng.choice((1, 2, 2, 3))):
        known = [f"i{k}" for k in range(number)]
        inputs.append(input_text(rng, symbols, mode.gradients, known))
        if not _made(
            replace(_EMPTY, seed=seed, mode=mode, inputs=tuple(inputs), steps=tuple(steps))
        ):
            inputs[-1] = "filled('float32', 'exact', s0)"
    program = replace(_EMPTY, seed=seed, mode=mode, inputs=tuple(inputs), steps=tuple(steps))
    with warnings.catch_warnings(), torch.set_grad_enabled(mode.gradients):
        warnings.simplefilter("ignore")
        for _ in range(_TRIES):
            result = Making(rng, program).finish()
            if _accepted(result):
                break
        return result


def _accepted(program: Program) -> bool:
    """Whether eager takes it, backward included, or refuses it as it is meant to."""
    function = program.function()
    for call in range(len(program.steps)):
        (outcome,) = program.outcomes(function, program.arguments(call))
        if (outcome.error is not None) != program.raises:
            return False
    return True


def _made(program: Program) -> bool:
    try:
        return all(
            x.numel() <= MAX_ELEMENTS and x.dim() <= DIMS
            for call in range(len(program.steps))
            for x in program.arguments(call)
        )
    except (RuntimeError, IndexError):
        return False


_EMPTY = Program(0, Mode(), (), "", ())


@dataclass
class Making:
    """Mutable: a program being made. worlds: for each call, name -> tensor."""

    rng: random.Random
    program: Program
    lines: list[str] = field(default_factory=list)
    worlds: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.replay()

    def replay(self) -> None:
        """Makes the worlds anew: a statement that failed may have written to them."""
        self.worlds = []
        for call in range(len(self.program.steps)):
            arguments = self.program.arguments(call)
            world = {f"i{k}": x for k, x in enumerate(arguments)}
            for line in self.lines:
                exec(line, dict(_SPACE), world)
            self.worlds.append({n: x for n, x in world.items() if isinstance(x, torch.Tensor)})

    def finish(self) -> Program:
        for _ in range(self.rng.randint(2, 6)):
            self.statement()
        raises = self.rng.random() < 0.02 and self.refused()
        names = [name for name in self.worlds[0] if name.startswith("t")] or ["i0"]
        results = self.rng.sample(names, min(len(names), self.rng.randint(1, 4)))
        if names[-1] not in results:
            results.append(names[-1])
        if self.rng.random() < 0.1:
            results.append("i0")
        inputs = ", ".join(f"i{k}" for k in range(len(self.program.inputs)))
        body = "\n    ".join([*self.lines, f"return ({', '.join(results)},)"])
        source = f"def program({inputs}):\n    {body}\n"
        later = () if raises or self.program.mode.gradients else self.later(results)
        return replace(self.program, source=source, later=later, raises=raises)

    def statement(self) -> None:
        """One more, or none where nothing fits."""
        for _ in range(25):
            (forms,) = self.rng.choices([f for _, f in TABLES], [weight for weight, _ in TABLES])
            line, written, operands = self.written_out(self.rng.choice(forms))
            if line is None:
                continue
            try:
                result = [self.executed(line, world) for world in self.worlds]
                if result[0] is not None and result.count(result[0]) == len(result):
                    self.lines += [line, *result[0]]
                    return
            except Exception as error:  # eager refuses it: the next
                del error
            if written or not line.startswith("t"):
                self.replay()
            for world in self.worlds:
                for name in [n for n in world if re.match(rf"t{len(self.lines)}(_|$)", n)]:
                    del world[name]

    def written_out(self, form: Form) -> tuple[str | None, bool, list[str]]:
        """The text of a statement, whether it writes to operands, and their names; None where no
        operands fit."""
        names: list[str] = []
        for kind in form.kinds:
            fitting = [n for n, x in self.worlds[0].items() if kind(x)]
            if not fitting:
                return None, False, []
            late = fitting[-4:] if self.rng.random() < 0.7 else fitting
            names.append(self.rng.choice(late))
        dims = self.worlds[0][names[0]].dim()
        parts = dict(zip("abc", names)) | {
            "d": str(self.rng.randrange(-dims, dims) if dims else 0),
            "e": str(self.rng.randrange(dims) if dims else 0),
            "k": self.rng.choice(NUMBERS), "l": self.rng.choice(NUMBERS),
        }  # fmt: skip
        text, target = form.text.format(**parts), names[0] if form.writes else None
        if form.function:
            text, target = self.variant(text, names[0])
        for world in self.worlds:
            operands = [world[name] for name in names]
            if not all(rule(operands) for rule in form.rules):
                return None, False, []
            if target is not None and not form.writes:
                if not writable([world[target], *operands]):
                    return None, False, []
        if form.writes:
            return text, True, names
        return f"t{len(self.lines)} = {text}", target is not None, names

    def variant(self, call: str, first: str) -> tuple[str, str | None]:
        """A function, the method in place, or with ``out=``; what it writes to."""
        drawn = self.rng.random()
        name, _, arguments = call.partition("(")
        if drawn < 0.15:
            rest = arguments.removeprefix(first).removeprefix(", ")
            return f"{first}.{name}_({rest}", first
        if drawn < 0.3:
            out = self.rng.choice(
                (*self.outs(), f"torch.zeros_like({first})", "torch.empty(0)",
                 f"torch.zeros_like({first}.T).T", f"torch.zeros_like({first}, dtype=torch.float64)",
                 f"torch.zeros_like({first}, dtype=torch.bool)")
            )  # fmt: skip
            return f"torch.{call[:-1]}, out={out})", out if out in self.worlds[0] else None
        return f"torch.{call}", None

    def outs(self) -> list[str]:
        """Names of tensors that ``out=`` may be: torch differentiates none."""
        return [name for name, x in self.worlds[0].items() if not x.requires_grad][-3:]

    def executed(self, line: str, world: dict[str, Any]) -> list[str] | None:
        """Runs a statement that gives tensors, or tuples of them, which more statements take apart;
        None where it gives anything else, or too much to carry on with."""
        sizes = {name: x.shape for name, x in world.items() if f"out={name})" in line and x.numel()}
        exec(line, dict(_SPACE), world)
        if any(world[name].shape != shape for name, shape in sizes.items()):
            return None  # to resize what has elements is deprecated
        name, more = line.partition(" = ")[0], []
        if re.fullmatch(r"t\d+", name) and isinstance(world[name], (tuple, list)):
            parts = world.pop(name)
            for number, part in enumerate(parts[:2]):
                world[f"{name}_{number}"] = part
                more.append(f"{name}_{number} = {name}[{number}]")
            if not more:
                return None
        fit = (
            isinstance(x, torch.Tensor) and x.numel() <= MAX_ELEMENTS and x.dim() <= DIMS
            for x in world.values()
        )
        return more if all(fit) else None

    def refused(self) -> bool:
        """Adds a statement that eager refuses in every call, if one is found."""
        for _ in range(40):
            (forms,) = self.rng.choices([f for _, f in TABLES], [weight for weight, _ in TABLES])
            line, _, _ = self.written_out(self.rng.choice(forms))
            if line is None:
                continue
            errors = []
            for world in self.worlds:
                try:
                    exec(line, dict(_SPACE), dict(world))
                except (NotImplementedError, AttributeError):  # no kernel: a compiler may have one
                    break
                except (RuntimeError, TypeError, IndexError, ValueError) as error:
                    errors.append(type(error))
            if len(errors) == len(self.worlds) and len(set(errors)) == 1:
                self.lines.append(line)
                return True
            self.replay()
        return False

    def later(self, results: list[str]) -> tuple[str, ...]:
        """Writes to results and inputs after the call: what shares memory in eager has to share it."""
        lines: list[str] = []
        for _ in range(self.rng.choice((0, 1, 1, 2))):
            names = [f"r[{k}]" for k in range(len(results))]
            names += [f"i{k}" for k in range(len(self.program.inputs))]
            name = self.rng.choice(names)
            tensors = [self.after(world, results, name) for world in self.worlds]
            if any(x.requires_grad or not x.numel() or not writable([x]) for x in tensors):
                continue
            change = "logical_not_()" if tensors[0].dtype is torch.bool else "mul_(2)"
            if "uint" in str(tensors[0].dtype) and tensors[0].dtype is not torch.uint8:
                change = "zero_()"
            lines.append(f"{name}.{change}")
        return tuple(lines)

    @staticmethod
    def after(world: dict[str, Any], results: list[str], name: str) -> Any:
        actual = world[results[int(name[2:-1])]] if name.startswith("r") else world[name]
        return actual
