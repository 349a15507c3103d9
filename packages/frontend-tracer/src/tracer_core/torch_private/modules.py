"""Names of torch's private modules and their functions, grouped by how the tracer treats them."""

from __future__ import annotations

#: Python modules whose functions are operators.
OPERATOR_MODULES = frozenset(
    f"torch.{value}"
    for value in ("_linalg_utils", "_lowrank", "_meta_registrations", "_refs", "_tensor")
)
#: The package of Python's reference implementations.
REFERENCES = "torch._refs"
#: The module that defines `torch.Tensor`.
TENSOR_MODULE = "torch._tensor"
#: C modules whose functions are operators.
C_OPERATOR_MODULES = frozenset(
    f"torch._C.{value}"
    for value in ("_nn", "_fft", "_linalg", "_special", "_sparse", "_nested", "_VariableFunctions")
)
#: The modules of C that say of functions neither their own name nor another.
C_MODULES = ("torch._C._nn", "torch._C")

#: Packages of functions that take functions, and of torch's own compilers.
HIGHER_ORDER_PACKAGES = ("torch._functorch", "torch._higher_order_ops")
COMPILER_PACKAGES = ("torch._dynamo", "torch._inductor", "torch._library")
#: Modules and functions in these packages that are Python like any other.
UNHOOKED_MODULES = frozenset(
    {
        "torch._functorch.apis",
        "torch._functorch.functional_call",
        "torch.fx._pytree",
        "torch.export._tree_utils",
        "torch.distributed._functional_collectives",
        "torch.distributed.tensor.parallel.style",
    }
)
UNHOOKED_FUNCTIONS = (
    "torch._library.custom_ops.CustomOpDef.__call__", "torch._functorch.vmap._check_randomness_arg",
    # calls of the module of an exported program
    "torch.export._unlift._create_stateful_graph_module.<locals>.<lambda>",
    "torch.export._unlift._check_input_constraints_pre_hook",
    *(f"torch.export._unlift.{name}" for name in (
        "_check_inputs_match", "_check_input_constraints_for_graph", "_get_codegen",
        "_check_inputs_match.<locals>.<lambda>", "eq_spec", "eq_spec.<locals>.<lambda>",
        "eq_spec.<locals>._normalize_type", "eq_spec.<locals>._match_normalized_structure",
        "eq_spec.<locals>._match_normalized_structure.<locals>.<genexpr>",
    )),
    "torch._dynamo.external_utils.is_compiling",  # asks torch.compiler's
    *(f"torch._dynamo.{name}" for name in (  # what decorators make around a function
        "external_utils.wrap_numpy.<locals>.wrap",
        "external_utils.wrap_numpy.<locals>.wrap.<locals>.<lambda>",
        "decorators.nonstrict_trace.<locals>.wrapped")),
    # a DTensor's mesh and placements, and the hooks of modules whose parameters are DTensors
    *(f"torch.distributed.tensor._api.{name}" for name in (
        "DTensor.device_mesh", "DTensor.placements", "distribute_module.<locals>.<lambda>")),
    "torch.distributed.tensor.placement_types._MaskPartial.__eq__",
    # marks on tensors, which are attributes of theirs
    *(f"torch._dynamo.decorators.{name}" for name in ("maybe_mark_dynamic", "mark_static_address")),
)  # fmt: skip

#: Functions of torch's own compilers that tell these what the tracer decides by itself.
MARKS_ONLY = frozenset({"torch._dynamo.decorators.mark_static"})

#: The attribute of a torch.compiler.nested_compile_region with the function itself.
MARKED_REGION = "__marked_compile_region_fn__"

#: The module of `fully_shard`'s per-module state.
FULLY_SHARD = "torch.distributed.fsdp._fully_shard._fsdp_state"
#: The logger of operators that fail on fakes.
FAKES_LOG = "torch._subclasses.fake_tensor"


def is_distributed(module: str) -> bool:
    """Returns whether a module is the C part of torch.distributed."""
    return module.startswith("torch._C._distributed")
