"""The rows of the contract (reference sections 1 to 9 and 11, the scenario groups, upstream's library rows L and
defects W, and the rows C and T of the compile front end and TVM) and the tests that prove each.

What proves a row are the tests named here: from `tests/` or, for Rust, from `crates/`. More of it is in every test whose
docstring begins with the row's id ("G8: ...", "3.6, 3.7: ..."), which is no proof by itself; an id that is no row is a
mistake, but for C and T, which begin ids of two lists: those count in this table alone. A row that nothing proves yet, or only in part, says in `missing` what and why; the printed figure counts it as
open. Not here: what the rows say in full; the words are labels.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Row:
    """One row: its label, the tests named for it, and what has none and why."""

    id: str
    label: str
    tests: tuple[str, ...] = ()
    missing: str = ""


SCHEMA = "library/test_schema.py::"
INFER = "library/test_inference.py::"
CONTRACT = "library/test_contract.py::"
REGISTER = "library/test_registration.py::"
DETAILS = "library/test_row_details.py::"
SAVING = "autograd/test_saving.py::"
UPSTREAM = "library/test_upstream_contract.py::"
RULES = "library/test_gradient_rules.py::"
FAULTS = "test_verify_faults.py::"
CHECK = "autograd/test_gradcheck.py::"
OPCHECK = "test_opcheck.py::"
HOSTILE = "test_hostile_calls.py::"
CALLBACKS = "test_callbacks.py::"
SIZES = "library/test_dynamic_sizes.py::"
RUNS = "compile/test_dynamic_sizes.py::"
INPUTS = "compile/test_input_sizes.py::"
COMPILED = "compile/test_compile.py::"
FRONT = "compile/test_front_end_rows.py::"
PLUGGED = "backends/test_plugged_backends.py::"
CHAINS = "compile/test_tvm_chains.py::"
OPTIONS = "compile/test_options.py::"
DEFECTS = "compile/test_upstream_defects.py::"
STATE = "compile/test_python_state_guards.py::"
SAVED = "compile/test_saved_programs.py::"
TOLD = "compile/test_observability.py::"
LAUNCH = "backends/test_triton.py::"
NAMES = "test_public_names.py::"
GRAMMAR = (f"{SCHEMA}test_what_the_grammar_has", f"{SCHEMA}test_what_the_grammar_refuses")
CORPUS = (
    f"{SCHEMA}test_the_corpus_prints_as_it_was_printed",
    "tp-dispatch/tests/schema_corpus.rs::probes_agree_with_torch_except_where_listed",
)


def _rows(text: str) -> Iterator[Row]:
    """Lines of `id | label | test, test | why missing`; a capital word before `::` is one of the names above."""
    for line in text.strip().splitlines():
        id, label, tests, *rest = (part.strip() for part in line.split("|"))
        found: list[str] = []
        for name in filter(None, (t.strip() for t in tests.split(","))):
            if name in ("GRAMMAR", "CORPUS"):
                found += globals()[name]
            else:
                prefix, _, test = name.partition("::")
                found.append(globals()[prefix] + test if prefix.isupper() else name)
        yield Row(id, label, tuple(found), rest[0] if rest else "")


ROWS: tuple[Row, ...] = tuple(
    _rows(
        """
1.1  | names and overload names        | GRAMMAR, tp-dispatch/tests/schema_errors.rs::names_obey_the_overload_rules
1.2  | identifiers and reserved words  | GRAMMAR, CORPUS
1.3  | argument lists                  | GRAMMAR, CORPUS
1.4  | returns                         | GRAMMAR, CORPUS
1.5  | white space and comments        | GRAMMAR, CORPUS
1.6  | base types                      | GRAMMAR, CORPUS
1.7  | type variables                  | GRAMMAR, SCHEMA::test_type_variables_and_repeated_names_are_no_definitions
1.8  | compound types                  | GRAMMAR, CORPUS
1.9  | keys of dicts                   | GRAMMAR, CORPUS
1.10 | sized lists                     | GRAMMAR, CORPUS
1.11 | custom classes                  | GRAMMAR, CORPUS
1.12 | alias sets                      | GRAMMAR, CORPUS
1.13 | where alias sets stand          | GRAMMAR, CORPUS
1.14 | a list that is written to       | SCHEMA::test_mutation_of_lists_is_answered_yes, tp-dispatch/tests/schema_model.rs::mutation_is_seen_in_lists_and_through_optional
1.15 | anonymous writes                | GRAMMAR, CORPUS
1.16 | checks of the whole             | GRAMMAR, SCHEMA::test_type_variables_and_repeated_names_are_no_definitions
1.17 | order of defaults               | GRAMMAR, tp-dispatch/tests/schema_errors.rs::a_default_follows_a_default_unless_keyword_only
1.18 | numbers as defaults             | GRAMMAR, tp-dispatch/tests/schema_model.rs::defaults_print_as_c_prints_them
1.19 | defaults of the wrong type      | GRAMMAR, tp-dispatch/tests/schema_errors.rs::defaults_have_to_fit_their_type
1.20 | lists as defaults               | GRAMMAR, CORPUS
1.21 | words as defaults               | GRAMMAR, CORPUS
1.22 | strings as defaults             | GRAMMAR, INFER::test_string_defaults_round_trip
1.23 | devices as defaults             | GRAMMAR, CORPUS
1.24 | where errors point              | SCHEMA::test_what_the_grammar_refuses, tp-dispatch/tests/schema_errors.rs::errors_point_at_the_offending_token
1.25 | equality, compatibility         | SCHEMA::test_equality_and_compatibility
2.1  | types of parameters             | INFER::test_builtin_generics_equal_the_typing_forms, INFER::test_numbers_and_returns
2.2  | what has no schema type         | INFER::test_an_optional_list_of_tensors, INFER::test_refusals_name_parameter_annotation_and_choice
2.3  | types of returns                | INFER::test_numbers_and_returns
2.4  | without annotations             | INFER::test_parameters_without_annotation
2.5  | kinds of parameters             | INFER::test_signatures_that_no_schema_has
2.6  | annotations as strings          | INFER::test_string_annotations_are_types, INFER::test_names_in_the_closure_are_found
2.7  | defaults                        | INFER::test_string_defaults_round_trip, INFER::test_float_defaults_round_trip, INFER::test_dtype_and_device_defaults_arrive_as_objects, INFER::test_defaults_that_are_large_or_no_text
2.8  | mutates_args                    | INFER::test_mutates_args_is_checked, INFER::test_mutated_lists_and_optionals, INFER::test_unknown_mutation_means_every_tensor
2.9  | partials, callable objects      | INFER::test_partials_and_callable_objects
2.10 | tags inplace and out            | INFER::test_tags_for_what_is_written_to_and_returned
3.1  | what a definition gives         | REGISTER::test_the_op_object, INFER::test_mutates_args_is_required
3.2  | names of ops                    | REGISTER::test_bad_names, REGISTER::test_reserved_namespaces, REGISTER::test_another_place_is_an_error
3.3  | redefinition                    | REGISTER::test_the_same_place_replaces_with_one_warning, REGISTER::test_a_notebook_cell_replaces
3.4  | a given schema                  | REGISTER::test_a_given_schema_is_checked_against_the_function
3.5  | keyword-only tensors            | library/test_lifetimes.py::test_a_keyword_only_tensor_is_no_input
3.6  | outputs that alias              | CONTRACT::test_a_returned_input_is_refused, CONTRACT::test_views_of_an_input_are_refused_under_no_grad_too, CONTRACT::test_one_tensor_returned_twice
3.7  | count and type of outputs       | CONTRACT::test_results_that_do_not_fit_a_pair, CONTRACT::test_results_that_do_not_fit_other_schemas
3.8  | types of inputs                 | CONTRACT::test_none_and_generators_are_no_tensors_and_lists
3.9  | what a kernel sees              | CONTRACT::test_what_a_kernel_sees
3.10 | wrong arguments                 | CONTRACT::test_argument_names_of_python_and_misspelt_keywords
3.11 | exceptions of kernels           | CONTRACT::test_exceptions_pass_through_and_modes_are_restored, DETAILS::test_every_mode_is_as_before_after_an_exception
3.12 | recursion                       | CONTRACT::test_recursion_ends_as_an_error, test_recursion.py::test_recursion_ends_as_an_error_on_a_small_stack, test_recursion.py::test_a_raised_recursion_limit_ends_at_the_end_of_the_stack
3.13 | default kernel                  | UPSTREAM::test_l01_the_body_is_the_default_kernel, UPSTREAM::test_l03_no_kernel
3.14 | ops without tensors             | REGISTER::test_devices_and_ops_without_tensors
3.15 | subclasses, parameters          | test_tensor.py::test_the_type_cannot_be_called_or_subclassed
3.16 | what a dropped op holds         | REGISTER::test_replacing_drops_what_was_registered
4.1  | devices of kernels              | REGISTER::test_a_kernel_must_take_the_arguments, UPSTREAM::test_l02_a_device_kernel_overrides_the_body
4.2  | switching kernels               | UPSTREAM::test_l22_set_kernel_enabled, REGISTER::test_disabled_before_it_is_registered
4.3  | one of several devices          | REGISTER::test_a_later_kernel_for_one_of_several_devices
4.4  | switches are the thread's       | REGISTER::test_switches_belong_to_the_thread
4.5  | kernels registered after capture | compile/test_registrations.py::test_a_kernel_registered_after_the_compile_is_noticed
4.6  | registering by name             | UPSTREAM::test_l28_top_level_define_and_impl
5.1  | role of a fake rule             | CONTRACT::test_a_fake_rule_is_used_and_the_body_is_not_run, CONTRACT::test_fake_from_body, DETAILS::test_a_fake_rule_that_reads_data_is_an_error
5.2  | no fake rule                    | CONTRACT::test_a_missing_fake_rule_is_said_with_the_fix, DETAILS::test_a_missing_fake_rule_is_an_error_where_it_is_needed_alone
5.3  | ops that need none              | library/test_rows.py::test_which_ops_need_a_fake_rule
5.4  | overriding a rule               | UPSTREAM::test_l07_register_fake_as_a_decorator, DETAILS::test_a_second_fake_rule_replaces_where_the_op_is_the_authors_own, DETAILS::test_a_second_fake_rule_of_another_op_is_an_error
5.5  | sizes that depend on data       | SIZES::test_there_is_a_context_in_a_fake_rule_and_nowhere_else, SIZES::test_a_fresh_size_is_a_symbol_with_a_range, SIZES::test_bounds_that_cannot_be, SIZES::test_tensors_on_meta_have_no_such_sizes
5.6  | guards on such sizes            | SIZES::test_branching_names_the_expression_and_the_line, SIZES::test_a_check_decides_later_comparisons, RUNS::test_one_graph_serves_every_size
5.7  | declared ranges                 | RUNS::test_a_size_outside_of_its_range_is_an_error_of_the_run, RUNS::test_outputs_that_share_a_size_agree, SIZES::test_verify_and_opcheck_know_such_sizes
5.8  | fake contexts of threads        | SIZES::test_threads_keep_their_contexts_apart, SIZES::test_a_context_does_not_cross_threads
5.9  | a wrong rule                    | CONTRACT::test_a_captured_run_holds_the_kernel_to_its_fake_rule, FAULTS::test_a_fake_rule_with_other_strides_is_found, FAULTS::test_a_fake_rule_with_another_shape_or_dtype_is_found
5.10 | real tensors among fakes        | library/test_rows.py::test_a_real_tensor_beside_one_without_data, HOSTILE::test_cpu_and_meta_do_not_mix, HOSTILE::test_what_may_mix
6.1  | setup_context                   | RULES::test_setup_context_gets_keywords, library/test_rows.py::test_setup_context_is_called_only_when_needed
6.2  | what backward gets              | library/test_rows.py::test_backward_gets_one_gradient_per_output
6.3  | how many gradients              | RULES::test_the_number_of_gradients
6.4  | which gradients                 | RULES::test_gradients_are_checked, library/test_rows.py::test_gradients_are_summed_and_cast_to_their_input
6.5  | lists of inputs                 | INFER::test_an_optional_list_of_tensors
6.6  | needs_input_grad                | RULES::test_defaults_reach_setup_and_backward
6.7  | saved tensors                   | RULES::test_a_saved_tensor_that_was_written_to
6.8  | materialized, marked            | library/test_rows.py::test_unused_gradients_and_marked_outputs
6.9  | rules that cannot be            | RULES::test_rules_that_cannot_be
6.10 | no rule                         | RULES::test_an_op_without_a_rule
6.11 | grad mode in a kernel           | RULES::test_grad_mode_is_off_in_a_kernel
6.12 | second derivatives              | RULES::test_second_derivatives_through_a_rule, func/test_grad.py::test_three_orders_by_nesting
6.13 | mutation and gradients          | library/test_rows.py::test_a_mutating_op_refuses_what_is_recorded
6.14 | forward mode                    | CHECK::test_options_in_the_order_of_torch
6.15 | functional transforms           | func/test_grad.py::test_a_custom_op_under_functional_grad
6.16 | registering again               | library/test_rows.py::test_the_last_rule_wins
6.17 | hooks and anomaly mode          | autograd/test_modes.py::test_detect_anomaly, SAVING::test_anomaly_mode_names_the_line_of_every_failure, SAVING::test_saved_tensors_are_kept_by_hooks, SAVING::test_tensor_hooks_see_and_replace_gradients, SAVING::test_a_checkpoint_keeps_nothing_and_runs_again
6.18 | threads                         | library/test_rows.py::test_threads_differentiate_on_their_own
6.19 | exceptions of rules             | library/test_rows.py::test_exceptions_of_rules_pass_unchanged
7.1  | counters of writes              | CONTRACT::test_declared_mutation_moves_the_version, library/test_rows.py::test_versions_of_lists_views_and_what_is_left_out
7.2  | shared counters, expanded writes | library/test_rows.py::test_versions_of_lists_views_and_what_is_left_out, DETAILS::test_a_declared_write_to_an_expanded_tensor_is_refused
8.1  | batching rules                  | func/test_vmap.py::test_a_registered_rule_is_used
8.2  | autocast                        | library/test_autocast.py::test_every_floating_tensor_is_cast_and_nothing_else
8.3  | torch_dispatch handlers         | | not built: there are no dispatch modes or subclasses to register for
8.4  | effects                         | CONTRACT::test_effects_are_kept_by_dead_code_removal, compile/test_compile.py::test_effects_decide_what_is_removed
8.5  | handles of kernels              | UPSTREAM::test_l23_get_kernel
9.1  | libraries                       | UPSTREAM::test_l11_libraries, UPSTREAM::test_l11_an_implementation_may_come_first, UPSTREAM::test_l11_a_library_ends_with_its_object, DETAILS::test_an_op_defined_twice_names_both_places
9.2  | calls after the end             | UPSTREAM::test_l11_lifetime
9.3  | packets and overloads           | UPSTREAM::test_overloads_have_names, REGISTER::test_ops_are_found_by_name, REGISTER::test_the_op_object
9.4  | order of layers                 | library/test_autocast.py::test_under_vmap_and_grad, tp-dispatch/src/key.rs::highest_wins
11.1 | test_schema                     | FAULTS::test_an_undeclared_write_through_raw_memory_is_found, FAULTS::test_a_returned_input_is_found, FAULTS::test_a_declared_write_that_never_happens_is_found
11.2 | test_autograd_registration      | OPCHECK::test_an_output_that_its_kernel_recorded_is_reported
11.3 | test_faketensor                 | FAULTS::test_a_fake_rule_with_another_shape_or_dtype_is_found, FAULTS::test_a_fake_rule_that_returns_its_input_is_found
11.4 | test_aot_dispatch               | OPCHECK::test_a_missing_formula_is_reported_where_a_gradient_is_asked_for, OPCHECK::test_the_static_test_can_be_asked_for, FAULTS::test_state_that_outlives_a_call_is_found
11.5 | false alarms                    | OPCHECK::test_a_setup_context_that_computes_is_no_leak, OPCHECK::test_a_noisy_backward_of_a_nondeterministic_op_passes, OPCHECK::test_outputs_that_hold_nan_are_no_failure
11.6 | what opcheck refuses            | OPCHECK::test_what_is_no_op_is_a_value_error, OPCHECK::test_several_overloads_are_listed, OPCHECK::test_tolerances_go_together, OPCHECK::test_the_first_failure_is_an_opcheckerror
11.7 | gradcheck                       | CHECK::test_right_gradients_pass, CHECK::test_options_in_the_order_of_torch, CHECK::test_fast_mode_looks_at_directions_and_finds_one_wrong_element, CHECK::test_overlapping_inputs_are_named
11.8 | gradgradcheck                   | CHECK::test_second_derivatives, CHECK::test_a_gradient_cut_off_the_tape_fails_beside_one_that_is_recorded
S1   | annotations as strings          | INFER::test_string_annotations_are_types
S2   | names of an enclosing function  | INFER::test_names_imported_in_the_enclosing_function_are_found
S3   | builtin generics                | INFER::test_builtin_generics_equal_the_typing_forms
S4   | optional list of tensors        | INFER::test_an_optional_list_of_tensors
S5   | tuple argument                  | INFER::test_a_tuple_argument_proposes_a_list
S6   | mutates_args as one string      | INFER::test_unknown_mutation_means_every_tensor, INFER::test_a_string_is_no_sequence_of_names
S10  | odd defaults                    | INFER::test_string_defaults_round_trip
A1   | a returned input                | CONTRACT::test_a_returned_input_is_refused
A2   | a view of a filled buffer       | CONTRACT::test_views_of_an_input_are_refused_under_no_grad_too
A4   | one tensor twice                | CONTRACT::test_one_tensor_returned_twice
A5   | optional mutated argument       | library/test_rows.py::test_an_optional_written_argument
A7   | writes to views of an input     | library/test_rows.py::test_compiled_writes_through_views_reach_the_caller
A8   | writes to overlapping views     | library/test_rows.py::test_compiled_writes_through_views_reach_the_caller
A10  | redefined as mutating           | library/test_rows.py::test_a_redefinition_that_writes_is_compiled_anew
A12  | a raw write to an input         | FAULTS::test_an_undeclared_write_through_raw_memory_is_found, RULES::test_a_saved_tensor_that_was_written_to
A13  | backward overwrites what it saved | FAULTS::test_a_backward_that_overwrites_what_it_saved_is_found
A15  | mutating a leaf or non-leaf     | compile/test_upstream_defects.py::test_mutating_a_leaf_is_refused, library/test_rows.py::test_a_mutating_op_refuses_what_is_recorded
F1   | strides on the CPU              | FAULTS::test_a_fake_rule_with_other_strides_is_found
F2   | a wrong shape behind a view     | compile/test_compile.py::test_fakes_are_held_to_their_promise_at_run_time
F4   | promised strides                | CONTRACT::test_a_captured_run_holds_the_kernel_to_its_fake_rule
F5   | a fake that returns its input   | CONTRACT::test_a_fake_rule_that_returns_its_input, FAULTS::test_a_fake_rule_that_returns_its_input_is_found
F7   | fake contexts of six threads    | CALLBACKS::test_captures_belong_to_their_thread, SIZES::test_threads_keep_their_contexts_apart
G1   | count of gradients              | RULES::test_the_number_of_gradients
G2   | one None too many               | RULES::test_the_number_of_gradients
G3   | defaults passed or not          | RULES::test_defaults_reach_setup_and_backward
G4   | functional grad of an op        | func/test_grad.py::test_a_custom_op_under_functional_grad
G5   | non-differentiable ops          | RULES::test_a_non_differentiable_op
G6   | no formula                      | RULES::test_an_op_without_a_rule
G7   | grad mode in a kernel           | RULES::test_grad_mode_is_off_in_a_kernel
G8   | outputs kept on ctx             | autograd/test_lifetime.py::test_an_output_kept_on_ctx_is_collected
G10  | broadcast gradients             | library/test_rows.py::test_gradients_of_broadcast_operands
G14  | autocast of custom ops          | library/test_autocast.py::test_every_floating_tensor_is_cast_and_nothing_else
H1   | callbacks hold no lock          | library/test_rows.py::test_callbacks_hold_no_lock, CALLBACKS::test_many_threads_register_call_capture_and_differentiate, DETAILS::test_kernels_are_removed_while_others_call
H3   | backward inside of a kernel     | autograd/test_silent_results.py::test_a_kernel_may_differentiate_what_it_makes
H4   | settings of threads             | REGISTER::test_switches_belong_to_the_thread, DETAILS::test_threads_compile_on_their_own
H5   | first launch in backward        | | shown with Triton's interpreter; a launch on a GPU needs the CUDA runtime
H7   | kernels that refer to their op  | library/test_rows.py::test_a_kernel_that_holds_its_op_is_collected
U1   | use after destruction           | UPSTREAM::test_l11_lifetime, OPCHECK::test_an_unregistered_op_is_named
U2   | too many results                | CONTRACT::test_results_that_do_not_fit_a_pair
U3   | argument names                  | CONTRACT::test_argument_names_of_python_and_misspelt_keywords
U4   | None and generators             | CONTRACT::test_none_and_generators_are_no_tensors_and_lists
K2   | the wheel                       | test_packaging.py::test_wheel_in_a_clean_environment
K3   | optional packages               | library/test_imports.py::test_importing_needs_no_optional_package, library/test_imports.py::test_capabilities
V1   | NaN in max, min, relu, clip     | CHAINS::test_nan_stays_nan
V3   | exp of integers                 | CHAINS::test_exp_of_integers
V5   | casts to int8                   | CHAINS::test_casts_are_one_definition
V7   | views, offsets, empty tensors   | CHAINS::test_every_layout_gives_the_right_values, CHAINS::test_empty_tensors_run_nothing, CHAINS::test_strides_of_a_row_survive
V8   | an op in the middle             | CHAINS::test_an_unknown_op_splits_the_chain
V9   | division of integers by zero    | CHAINS::test_integer_division_by_zero_is_an_error_not_a_crash
L01  | the body is the default kernel  | UPSTREAM::test_l01_the_body_is_the_default_kernel
L02  | a kernel of the device          | UPSTREAM::test_l02_a_device_kernel_overrides_the_body
L03  | no kernel                       | UPSTREAM::test_l03_no_kernel
L04  | bad names                       | REGISTER::test_bad_names
L05  | the same name again             | REGISTER::test_the_same_place_replaces_with_one_warning, REGISTER::test_another_place_is_an_error
L06  | mutates_args of another kind    | INFER::test_a_string_is_no_sequence_of_names, INFER::test_mutates_args_is_checked, INFER::test_mutates_args_of_another_kind
L07  | register_fake                   | UPSTREAM::test_l07_register_fake_as_a_decorator
L08  | setup_context, saved tensors    | UPSTREAM::test_l08_setup_context_and_saved_tensors
L09  | a rule from the gradient alone  | UPSTREAM::test_l09_a_rule_from_the_gradient_alone
L10  | no_grad                         | UPSTREAM::test_l10_no_history_under_no_grad
L11  | libraries                       | UPSTREAM::test_l11_libraries, UPSTREAM::test_l11_lifetime, UPSTREAM::test_l11_a_library_ends_with_its_object, UPSTREAM::test_l11_an_implementation_may_come_first
L12  | ops by attribute                | UPSTREAM::test_l12_ops_by_attribute
L14  | one node, replayed              | UPSTREAM::test_l14_capture_has_one_node_and_replays, COMPILED::test_capture_runs_no_body_and_keeps_one_node
L15  | compiled across the op          | UPSTREAM::test_l14_capture_has_one_node_and_replays, CHAINS::test_a_custom_op_is_a_boundary
L16  | a custom op in the native plan  | DEFECTS::test_a_custom_op_is_a_region_of_a_training_call, CHAINS::test_a_custom_op_is_a_boundary
L17  | gradients of a compiled call    | DEFECTS::test_a_custom_op_is_a_region_of_a_training_call, CHAINS::test_training_regions_reach_tvm
L18  | triton ops are told apart       | UPSTREAM::test_l18_triton_ops_are_told_apart
L19  | wrap_triton                     | UPSTREAM::test_l19_wrap_triton_takes_kernels_only, UPSTREAM::test_l19_a_launch_inside_a_capture_is_an_error
L20  | the function in second place    | UPSTREAM::test_l20_function_in_second_place
L21  | keywords reach the kernel       | UPSTREAM::test_l21_keywords_reach_the_kernel
L22  | switching kernels               | UPSTREAM::test_l22_set_kernel_enabled, UPSTREAM::test_the_default_kernel_cannot_be_switched_off
L23  | get_kernel                      | UPSTREAM::test_l23_get_kernel
L24  | register_vmap                   | UPSTREAM::test_l24_register_vmap
L25  | register_autocast               | library/test_autocast.py::test_every_floating_tensor_is_cast_and_nothing_else
L26  | infer_schema                    | INFER::test_a_call_of_infer_schema_with_a_name
L27  | opcheck                         | OPCHECK::test_the_first_failure_is_an_opcheckerror, FAULTS::test_an_undeclared_write_through_raw_memory_is_found, FAULTS::test_a_returned_input_is_found, FAULTS::test_a_fake_rule_with_another_shape_or_dtype_is_found
L28  | define and impl                 | UPSTREAM::test_l28_top_level_define_and_impl
L32  | one event, its body its own     | UPSTREAM::test_l32_a_call_is_one_event_and_its_body_is_its_own
W1   | chains that never reached TVM   | CHAINS::test_the_flagship_chain_reaches_tvm, CHAINS::test_scalars_and_division_reach_tvm
W2   | declared writes lost            | COMPILED::test_declared_mutation_survives, FRONT::test_a_destination_is_written_by_every_call
W3   | random calls merged             | COMPILED::test_random_calls_are_not_merged, COMPILED::test_effects_decide_what_is_removed
W4   | gradients not looked at         | RULES::test_gradients_are_checked, RULES::test_the_number_of_gradients, RULES::test_a_gradient_left_out_is_zero_and_verify_finds_it
W5   | keywords lost in setup_context  | UPSTREAM::test_l21_keywords_reach_the_kernel, RULES::test_setup_context_gets_keywords, RULES::test_defaults_reach_setup_and_backward
W6   | Python state not guarded        | STATE::test_every_change_of_reachable_state_is_noticed, STATE::test_a_guard_is_named_by_its_path_and_a_miss_says_what_was_found, COMPILED::test_closures_are_lifted_and_stay_live
W7   | TVM's numbers, lost structure   | CHAINS::test_int_with_a_python_float, CHAINS::test_nan_stays_nan, CHAINS::test_outputs_keep_their_structure
W8   | a returned input, written leaf  | DEFECTS::test_an_op_that_returns_its_input_is_refused_and_changes_nothing, DEFECTS::test_mutating_a_leaf_is_refused
W9   | tensors in keywords and lists   | UPSTREAM::test_w9_tensors_in_lists_choose_the_kernel, UPSTREAM::test_l21_keywords_reach_the_kernel
W10  | hidden fallbacks                | DEFECTS::test_keywords_numbers_lists_and_several_outputs_do_not_fall_back
W11  | fake rules that nobody asks     | CONTRACT::test_a_fake_rule_is_used_and_the_body_is_not_run, COMPILED::test_capture_runs_no_body_and_keeps_one_node
W12  | Triton without a GPU            | LAUNCH::test_defining_needs_no_triton, LAUNCH::test_a_launch_without_a_gpu_says_what_is_missing, UPSTREAM::test_l19_a_launch_inside_a_capture_is_an_error
W13  | TVM's crashes                   | DEFECTS::test_regions_that_upstream_crashed_on
W14  | several outputs, None, an int   | DEFECTS::test_keywords_numbers_lists_and_several_outputs_do_not_fall_back, DEFECTS::test_ops_that_return_nothing_or_a_number_are_compiled, UPSTREAM::test_w9_tensors_in_lists_choose_the_kernel
W15  | schemas as decoration           | SCHEMA::test_what_the_grammar_refuses, INFER::test_mutates_args_is_checked, REGISTER::test_a_given_schema_is_checked_against_the_function
W16  | a checker that looks at little  | DEFECTS::test_the_checker_compares_every_kernel_and_honours_tolerances, library/test_debug_mode.py::test_undeclared_writes_are_found
W17  | built-ins apart, objects bare   | REGISTER::test_reserved_namespaces, REGISTER::test_the_op_object, REGISTER::test_kernels_for_built_in_ops, NAMES::test_help_says_what_a_function_computes_and_what_comes_out
W18  | errors in terms of the inside   | COMPILED::test_guards_and_recompiles_are_named, COMPILED::test_a_recompile_names_a_guard_that_is_listed, TOLD::test_a_strict_fallback_names_node_and_cause, DEFECTS::test_a_default_argument_is_a_plain_value
C1   | calls with effects              | COMPILED::test_effects_decide_what_is_removed, CONTRACT::test_effects_are_kept_by_dead_code_removal
C02  | sizes, ranks, layouts           | INPUTS::test_one_graph_serves_every_size, INPUTS::test_sizes_of_0_and_1_have_entries_of_their_own, INPUTS::test_a_change_of_rank_or_layout_is_another_entry, INPUTS::test_branches_on_sizes_are_guarded_on_both_sides
C03  | markers of what ran             | FRONT::test_chains_of_any_length_and_linear_layers_run_native_and_say_so
C04  | a strict compile                | TOLD::test_a_strict_fallback_names_node_and_cause
C05  | mode and options                | FRONT::test_a_compile_that_is_switched_off_is_refused_with_what_to_do
C06  | branches on data                | COMPILED::test_data_dependent_reads_are_refused_with_the_line, compile/test_control_flow.py::test_one_node_runs_the_branch_that_the_bool_says
C07  | control flow on metadata        | INPUTS::test_branches_on_sizes_are_guarded_on_both_sides, INPUTS::test_a_size_that_is_needed_as_a_number_is_guarded_with_its_line, FRONT::test_the_graph_holds_the_taken_path_alone
C08  | keywords, defaults, None        | INPUTS::test_keywords_defaults_and_none_specialise_beside_symbols
C09  | destinations                    | FRONT::test_a_destination_is_written_by_every_call
C10  | live parameters                 | FRONT::test_parameters_stay_live_and_every_one_gets_its_gradient, compile/test_fetched_tensors.py::test_a_functional_training_loop_is_not_stale
C11  | unknown backends                | PLUGGED::test_an_unknown_name_is_a_value_error_with_the_nearest
C12  | entry points                    | PLUGGED::test_a_module_is_imported_when_its_backend_is_asked_for, PLUGGED::test_an_entry_point_cannot_take_the_name_of_a_built_in, PLUGGED::test_an_entry_point_that_does_not_load_is_named, PLUGGED::test_what_is_no_backend_is_a_type_error
C13  | debug backends                  | FRONT::test_there_are_no_debug_backends_and_the_error_says_what_to_do, COMPILED::test_a_division_by_zero_in_a_region_names_its_op
C15  | what a backend needs            | PLUGGED::test_what_a_backend_needs_is_asked_before_it
C16  | training through any backend    | FRONT::test_a_plain_backend_trains_and_infers, CHAINS::test_training_regions_reach_tvm
C17  | guards and recompiles           | COMPILED::test_guards_and_recompiles_are_named, COMPILED::test_a_recompile_names_a_guard_that_is_listed, compile/test_observability.py::test_loggers_are_pythons_own
C18  | the recompile limit             | COMPILED::test_the_recompile_limit_warns_once, COMPILED::test_the_recompile_limit_ends_in_eager_with_a_reason
C19  | equal calls beside a write      | FRONT::test_equal_calls_beside_a_write_are_not_merged
C21  | no torch, compile(disable=True) | PLUGGED::test_neither_import_nor_compile_imports_an_optional_package, FRONT::test_a_compile_that_is_switched_off_is_refused_with_what_to_do
C22  | checks, loops in one graph      | SIZES::test_a_check_decides_later_comparisons, RUNS::test_a_size_outside_of_its_range_is_an_error_of_the_run, compile/test_control_flow.py::test_a_loop_is_one_node_for_any_number_of_trips
T01  | TVM is absent                   | test_docs.py::test_quickstart_without_tvm_says_so_and_passes
T02  | tvm is listed                   | CHAINS::test_tvm_is_listed_whether_or_not_it_is_there
T03  | the flagship chain              | CHAINS::test_the_flagship_chain_reaches_tvm
T04  | numbers and division            | CHAINS::test_scalars_and_division_reach_tvm
T05  | a custom op as boundary         | CHAINS::test_a_custom_op_is_a_boundary
T06  | training regions                | CHAINS::test_training_regions_reach_tvm
T07  | another shape                   | CHAINS::test_another_shape_is_never_wrong, INPUTS::test_tvm_builds_once_for_all_sizes_of_inputs
T08  | the CUDA target                 | FRONT::test_a_target_that_is_no_processor_of_this_machine_is_refused | code for GPUs is not made: the adapter's target is a processor, and another one is refused by name
T09  | options                         | OPTIONS::test_an_unknown_option_is_named, OPTIONS::test_a_target_is_a_processor_that_this_machine_can_stand_in_for, OPTIONS::test_parallel_says_who_runs_long_loops
T10  | kernels of tvm_ffi              | backends/test_ffi_kernels.py::test_a_library_of_tvm_ffi_takes_our_tensors_without_a_copy, backends/test_ffi_kernels.py::test_a_kernel_of_tvm_ffi_is_the_body_of_a_custom_op
"""
    )
)

_ID = re.compile(r"(?:[SAFGHUKVLW]\d+|\d{1,2}\.\d{1,2})(?= ?[a-z]?[,:.])")


@cache
def python_tests() -> dict[str, str]:
    """Every test function by `file::name`, with its docstring."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT / "tests").as_posix()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[f"{name}::{node.name}"] = ast.get_docstring(node) or ""
    return found


@cache
def rust_tests() -> frozenset[str]:
    """Every `#[test]` function of the crates by `file::name`."""
    found = set()
    for path in (ROOT / "crates").rglob("*.rs"):
        text = path.read_text()
        if "#[test]" in text:
            names = re.findall(r"#\[test\]\s*(?:#\[[^\]]*\]\s*)*fn (\w+)", text)
            found |= {f"{path.relative_to(ROOT / 'crates').as_posix()}::{name}" for name in names}
    return frozenset(found)


def ids_of(docstring: str) -> set[str]:
    """Row ids that a docstring begins with: `A1, A2.` or `6.12, 6.15: text`."""
    head = re.match(r"((?:[A-Z]?\d+(?:\.\d+)?(?: [a-z])?(?:, |[:.]))+)", docstring)
    return set(_ID.findall(head[1])) if head else set()


def tests_of(row: Row) -> tuple[str, ...]:
    """The tests named for a row and those that name it."""
    own = tuple(test for test, text in python_tests().items() if row.id in ids_of(text))
    return tuple(dict.fromkeys((*row.tests, *own)))


def strange_ids() -> list[tuple[str, str]]:
    """Tests whose docstrings begin with the id of no row."""
    known = {row.id for row in ROWS}
    return [(test, id) for test, text in python_tests().items() for id in sorted(ids_of(text) - known)]


def unproved(row: Row, known: Collection[str]) -> bool:
    """Whether a test of the row is not among those that there are, or there never was one."""
    return not row.tests or not set(row.tests) <= set(known)


def open_rows() -> list[Row]:
    """Rows that no test proves, or only in part."""
    known = python_tests().keys() | rust_tests()
    return [row for row in ROWS if row.missing or unproved(row, known)]
