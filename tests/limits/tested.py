"""The limits that have a test: a program beside this file, or a test elsewhere."""

from __future__ import annotations

from tests.cudagraphs.test_beyond_limits import BEYOND as SIMULATED
from tests.limits import programs, state_programs  # noqa: F401  (they register)
from tests.limits.kernel_programs import CASES as KERNELS
from tests.limits.registered import CASES as PROGRAMS
from tests.limits.test_stored import LIMITS as STORED

#: Limit -> the test in another file that goes beyond it.
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(SIMULATED, "cudagraphs/test_beyond_limits.py::test_a_limit"),
    **dict.fromkeys(
        ("MAX_FAILED_CAPTURES", "MAX_SILENT_FAILED_CAPTURES"),
        "execution/test_steps_at_size.py::test_captures_that_give_nothing_become_rare",
    ),
    "MAX_COMPILED_FIRST_STEP": "execution/test_second_use.py::test_the_first_step_runs_as_captured",
    "MAX_SINGLE_USES": "limits/test_restless.py::test_captures_end",
    "MAX_PACKAGE_TEXT_BYTES": "limits/test_packages.py::test_beyond",
    "MAX_PACKAGE_MEMBERS": "limits/test_packages.py::test_beyond",
    "MAX_COMBINED_KERNELS": "triton_kernels/test_horizontal_fusion.py::test_small_updates_of_several_sizes_share_launches",
    "MAX_COMBINED_BYTES": "triton_kernels/test_horizontal_fusion.py::test_which_kernels_share_a_launch",
    "MAX_CUTS": "aot/test_cut_around.py::test_inference",
    "MAX_FIRST_CALL_COPIES": "plugin/test_failing_backends.py::test_inputs_too_large_to_be_copied",
    "MAX_FROZEN_STATES": "limits/test_frozen.py::test_modules_that_share_a_graph",
    "MAX_COMPARISONS": "autoselect/test_auto_safety.py::test_weights_that_never_rest_are_named",
    "MAX_KERNEL_COMPILE_SECONDS": "triton_kernels/test_workers.py::test_where_a_process_hangs_threads_compile",
    "MAX_DECODED_QUERIES": "triton_kernels/test_decoding_attention.py"
    "::test_many_queries_and_several_that_share_no_keys_stay_with_aten",
    "MAX_HEAD_WIDTH": "triton_kernels/test_decoding_attention.py::test_wider_heads_stay_with_aten",
    "MAX_HISTORY": "reporting/test_report.py::test_the_oldest_records_go",
    "MAX_LOCK_SECONDS": "storage/test_store.py::test_a_suspended_process_is_not_waited_for_for_ever",
    "MAX_PROFILED_CALLS": "fx_capture/test_profiled_branches.py::test_branches_that_go_both_ways_are_not_expected",
    "MAX_PROFILED_OUTCOMES": "fx_capture/test_profiled_branches.py::test_a_loop_until_it_converges",
    "MAX_RECAPTURES": "execution/test_profitability_of_captures.py::test_a_program_that_captures_in_every_call_gives_way",
    "MAX_SPECULATION_BYTES": "fx_capture/test_speculated_branches.py::test_large_intermediates_are_not_kept",
    "MAX_TURN_SECONDS": "autoselect/test_auto.py::test_a_call_waits_for_one_timed_call_at_most",
    "MAX_UNKNOWN_BACKWARDS": "execution/test_persistent_cache_training.py"
    "::test_backwards_that_are_compiled_later_are_written_too",
    "MAX_DEVICE_BOUND_CALLS": "cudagraphs/test_pacing.py::test_a_size_whose_pace_the_device_set_is_timed_once_more",
    "MAX_UNPAID_CALLS": "cudagraphs/test_pacing.py::test_parameters_in_new_memory_in_each_call",
    "MAX_VERDICT_USES": "execution/test_persistent_cache_keys.py::test_what_runs_natively_does_so_at_once_in_a_later_process",
    "MAX_WARMUP_ROUNDS": "background/test_warmup.py::test_arguments_that_never_settle_are_an_error",
    "MAX_WRONG_ENTRIES": "storage/test_fleet.py::test_noise_is_not_asked_for_again",
    "MIN_CALLS_OF_A_SIZE": "triton_kernels/test_captured.py::test_sizes_that_change_are_not_recorded_at_once",
    "MIN_EQUAL_OUTCOMES": "execution/test_branch_prediction.py::test_too_few_outcomes_are_not_predicted",
    "MIN_EQUAL_PROFILES": "fx_capture/test_profiled_branches.py::test_branches_that_go_both_ways_are_not_expected",
    "MIN_FREE_MEMORY": "cudagraphs/test_pacing.py::test_not_recorded_where_memory_is_short",
    "MIN_KEY_BYTES": "storage/test_fleet.py::test_wrong_settings_are_errors_of_compile",
}

TESTED = [*PROGRAMS, *KERNELS, *STORED, *ELSEWHERE]
