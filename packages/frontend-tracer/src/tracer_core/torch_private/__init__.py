"""The only gateway to torch's private names: plain functions over FakeTensor, ShapeEnv,
functionalization, dispatch and autograd, one module per subject.

No other code in this package imports a private torch name, so check a new torch release here first.
`releases.TESTED` lists the tested releases. Tables look names up through `names`; functions look
them up when they run.
"""

from __future__ import annotations

from tracer_core.torch_private.ambient import (
    DEVICE_PROPERTIES,
    TorchState,
    autocast_off,
    autocast_state,
    device_constructors,
    kernel_choices,
    settings_restored,
    torch_state,
)
from tracer_core.torch_private.autograd import (
    FREED,
    backward_on_this_thread,
    created,
    creation,
    direct_apply,
    grad_mode_without_graph,
    gradient_node,
    gradients_of,
    is_accumulator_held,
    is_freed,
    is_out_of_memory,
    leaves_behind,
    let_go_of_saved_tensors,
    next_sequence_number,
    nodes_behind,
    once_differentiable,
    raised_by_saved_tensors_hook,
    replace_backward,
    running_sequence_number,
    saved_tensors_unseen,
)
from tracer_core.torch_private.capturing import KernelInvocation, capture_mode
from tracer_core.torch_private.dispatch import (
    core_aten_table,
    decompositions,
    default_torch_function,
    dispatch_keys,
    duals_active,
    inside_transforms,
    is_batched,
    is_composite,
    is_transform,
    no_python_dispatch,
    outside_modes,
    outside_recording,
    outside_transforms,
    outside_vmap,
    overload_of,
    python_dispatcher,
    transforms_active,
    without_symbols,
)
from tracer_core.torch_private.distributed import (
    active_replica,
    buckets_of,
    communicates,
    default_group,
    default_group_name,
    group_name,
    group_rank_and_size,
    rank_within,
    reduction_name,
    share_module_state,
)
from tracer_core.torch_private.dtensors import (
    LOCAL_PART,
    MASKING,
    described_mesh,
    described_spec,
    dispatcher_settings,
    dispatches_in_c,
    forget_shardings,
    holds_state,
    is_dtensor,
    is_mesh,
    is_placement,
    replaced_tangent,
    sets_up_rng,
    tangent_context,
    waited,
)
from tracer_core.torch_private.fakes import (
    data_dependent_failures,
    device_of_fake,
    fake_class,
    fake_failures,
    fake_like,
    fake_mode_of,
    fake_tensor_mode,
    fake_without_subclass,
    forget_data_sizes,
    has_symbols,
    is_fake,
    is_fake_without_subclass,
    is_simple_fake,
    join_storage,
    leave_modes,
    meta_failures_unlogged,
    new_fake_like_real,
    no_fakes,
    to_fake,
    to_symbolic_fake,
    wrap_meta,
)
from tracer_core.torch_private.functional_tensors import (
    functional,
    functional_value,
    functionalization,
    functionalization_again,
    functionalization_off,
    has_data_mutation,
    has_metadata_mutation,
    is_functional,
    replaced,
)
from tracer_core.torch_private.jagged import (
    JAGGED_PARTS,
    NESTED_VALUES,
    attends_in_parts,
    is_jagged,
    is_nested_int,
    jagged_over,
    jagged_rank,
    jagged_values,
    jagged_view,
)
from tracer_core.torch_private.memory_layout import (
    convolution_format,
    elementwise_strides,
    is_dense,
    memory_range,
    storage_id,
    suggested_memory_format,
)
from tracer_core.torch_private.names import MissingName, not_found
from tracer_core.torch_private.own_fakes import corrected_states as corrected_states
from tracer_core.torch_private.own_fakes import fake_result as fake_result
from tracer_core.torch_private.own_fakes import takes_objects as takes_objects
from tracer_core.torch_private.own_fakes import without_cache as without_cache
from tracer_core.torch_private.python_side import (
    before_tagging,
    checkpoint_options,
    forget_source_with,
    scripted_source,
    undecorated_checkpoint,
    unshielded,
)
from tracer_core.torch_private.releases import TESTED, is_tested, refusal, remark
from tracer_core.torch_private.shape_envs import (
    GuardLocations,
    fact_of,
    guard_locations,
    is_bool_expr,
    new_shape_env,
    raw_symbol,
)
from tracer_core.torch_private.size_nodes import memoizing_size
from tracer_core.torch_private.sizes_of_one import (
    known_fakes,
    may_be_one,
    sizes_of_one_queried,
)
from tracer_core.torch_private.subclasses import (
    BASE_TENSOR_TYPES,
    DEFAULT_FUNCTION,
    MAKE_SUBCLASS,
    MAKE_WRAPPER,
    any_wrapper,
    as_class,
    behind_shields,
    count_write,
    detached_without_class,
    flattened,
    functions_are_on,
    functions_off,
    handled,
    has_dispatch,
    has_function,
    is_infrastructure,
    is_subclass,
    is_traceable,
    is_wrapper,
    layout_of,
    leaf,
    number_of,
    overloads,
    refused_subclass,
    requires_grad_now,
    results_without_class,
    set_version,
    storage_offset,
    unflattened,
    versions_of,
    with_class,
    without_class,
    without_shields,
    without_torch_functions,
    written_arguments,
)
from tracer_core.torch_private.symbols import (
    finite_bounds,
    hint_or_guess,
    holds,
    implied,
    input_source,
    least,
    narrow,
    new_number,
    python_source,
    sym_sqrt,
    symbol_range,
)
