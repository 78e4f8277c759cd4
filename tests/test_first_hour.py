"""The first hour of somebody new: each thing that was tried, and the test that holds what came of it.

The numbers are those of the sections of `../shared/newcomer.md`.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROWS = {
    "1 a line for each input": "cli/test_cli_warnings.py::test_right_data_give_no_warning_and_a_line_for_each_input",
    "1 values beyond the calibrated ones": "cli/test_cli_warnings.py::"
    "test_verify_says_that_a_model_was_calibrated_on_other_values",
    "1 below 10 dB fails": "cli/test_cli_warnings.py::test_verify_below_10_db_fails_without_thresholds",
    "1 wrong normalization at quantize": "cli/test_cli_warnings.py::test_quantize_names_each_mistake",
    "1 bytes into floats": "data/test_examine.py::test_pictures_in_8_bit_that_were_converted_are_named",
    "2 a folder of photos": "data/test_picture_source.py::test_a_folder_of_pictures",
    "2 a file of sentences": "data/test_text_source.py::test_each_sentence_has_its_own_length",
    "2 a folder of recordings": "data/test_sound_source.py::test_a_recording_is_cut_into_windows",
    "2 a quoted pattern": "data/test_advice.py::test_what_cannot_be_read_is_named_with_what_to_do",
    "2 a line of Python that saves samples": "data/test_advice.py::test_the_line_of_python_runs",
    "2 files left out": "data/test_picture_files.py::test_what_is_left_out_is_said",
    "3 one sample": "data/test_examine.py::test_one_sample_is_few",
    "3 equal samples": "data/test_examine.py::test_equal_samples_are_named",
    "3 constant samples": "data/test_examine.py::test_constant_samples_are_named_even_where_they_differ",
    "4 slower than float": "report/test_result_warnings.py::test_slower_than_float",
    "4 gains from size only": "report/test_result_warnings.py::test_gains_from_size_only",
    "4 saturation": "report/test_result_warnings.py::test_saturation_on_a_family",
    "4 the processor in the page": "report/test_report_html.py::"
    "test_the_page_begins_with_a_verdict_and_has_a_table_of_processors",
    "4 reasons that name no place": "test_first_hour.py::test_no_reason_says_what_is_faster_here",
    "4 random numbers say nothing of accuracy": "report/test_result_warnings.py::"
    "test_accuracy_on_random_numbers_says_nothing",
    "5 one bar for the run": "cli/test_progress_bar.py::test_the_bar_is_one_line_on_any_terminal",
    "5 a line for each step in a log": "cli/test_progress_bar.py::"
    "test_a_log_has_a_line_for_each_step_of_a_long_run_and_the_time_in_all",
    "5 no escape code in a log": "cli/test_cli_logs.py::"
    "test_no_escape_code_goes_into_a_log_whatever_the_environment_says",
    "5 an estimate of the whole where copies share the work": "pipeline/test_schedule.py::"
    "test_copies_of_the_process_share_the_work",
    "5 trials of copies are counted": "runtime/test_fork.py::test_what_is_told_is_followed_and_tasks_are_not",
    "5 time waited for a copy": "runtime/test_fork.py::test_the_time_that_a_copy_is_waited_for_is_work_of_its_kind",
    "5 an estimate on a slow computer": "test_progress.py::"
    "test_the_speed_of_the_computer_is_learnt_before_the_prices_of_kinds",
    "5 an estimate where results are poor": "test_progress.py::"
    "test_work_for_poor_results_is_expected_once_they_are_known",
    "5 samples of a function are counted": "cli/test_cli_quantize.py::test_samples_of_a_function_are_counted",
    "5 the share never falls": "test_progress.py::test_the_share_never_falls",
    "5 the total at the end": "cli/test_progress_bar.py::"
    "test_a_log_has_a_line_for_each_step_of_a_long_run_and_the_time_in_all",
    "5 a bar that does not stand still": "pipeline/test_schedule.py::test_a_decoder_is_expected_to_go_on_with_texts",
    "5 quiet": "cli/test_progress_bar.py::test_quiet_says_nothing",
    "6 models in parallel": "project/test_project_jobs.py::test_the_bytes_are_those_of_one_process",
    "6 Ctrl-C says what was built": "cli/test_cli_project.py::test_ctrl_c_leaves_what_is_complete_and_nothing_else",
    "6 a line for each model with its latency, and a summary": "cli/test_cli_project.py::test_a_life",
    "6 one that fails, and the others": "project/test_project_build.py::test_one_that_fails_does_not_stop_the_others",
    "6 a model of the project by its entry": "cli/test_cli_project_entry.py::test_the_entry_counts",
    "6 missing verify-data": "project/test_project_check.py::test_data_to_verify_with_that_are_missing_are_a_finding",
    "6 a patch release": "project/test_project_check.py::test_another_version_of_onnxq",
    "6 codes switched off": "project/test_project_check.py::test_findings_are_switched_off",
    "6 thresholds that are met": "project/test_project_check.py::"
    "test_limits_that_a_model_keeps_to_do_not_make_it_stale",
    "6 versions and processor in the record": "project/test_project_build.py::"
    "test_a_record_names_the_processor_only_where_figures_depend_on_it",
    "6 hooks": "project/test_pre_commit.py::test_the_environment_that_pre_commit_makes_by_itself",
    "6 a first project file": "cli/test_cli_init.py::test_a_first_project_file_and_what_comes_next",
    "7 classes in [1, 1000, 1, 1]": "verification/test_compare.py::test_the_only_axis_beside_the_batch_holds_classes",
    "8 never 0 %": "test_text.py::test_a_share_is_never_nothing",
    "8 one direction": "test_text.py::test_a_ratio_has_one_direction",
    "8 equal decimals": "test_text.py::test_latencies_of_a_row_have_equal_decimals",
    "8 what 20 dB are, and the next command": "cli/test_cli_quantize.py::test_the_table",
    "8 narrow terminals": "cli/test_cli_tables.py::test_nothing_is_lost_at_any_width",
    "9 another format": "ir/test_formats.py::test_the_format_is_named_and_so_is_the_way_to_onnx",
    "9 a weight that is NaN": "cli/test_cli_mistakes.py::"
    "test_a_weight_that_is_not_finite_is_named_by_quantize_and_verify",
    "9 --target gpu; -; -o -; globs; numbers; did you mean": "cli/test_cli_mistakes.py::"
    "test_a_mistake_is_named_with_what_was_meant",
    "9 mydata.py:photos, mydata.py": "data/test_advice.py::test_what_cannot_be_read_is_named_with_what_to_do",
    "9 one array for three inputs": "data/test_advice.py::test_one_array_for_a_model_of_several_inputs",
    "9 NHWC": "data/test_layouts.py::test_files_say_the_transpose_of_the_array_that_is_in_them",
    "9 swapped models": "cli/test_cli_mistakes.py::test_models_that_are_swapped_are_noticed",
    "9 -o x.txt": "cli/test_cli_mistakes.py::test_an_odd_ending_is_noted",
    "9 onnxq version, onnxq help": "cli/test_cli_mistakes.py::test_help_and_version_are_commands_as_elsewhere",
    "9 samples in Python": "data/test_advice.py::test_samples_in_python_are_named_as_there",
    "9 a report on a full disk": "cli/test_cli_mistakes.py::"
    "test_a_report_that_cannot_be_written_leaves_the_model_and_says_so",
    "10 a sample without its batch axis": "data/test_advice.py::test_a_sample_without_its_batch_axis_is_told_so",
    "10 hints in the words of Python": "api/test_api_words.py::test_errors_name_keywords",
    "10 a ModelProto": "api/test_api_models.py::test_a_proto_gives_a_proto_and_no_file",
    "10 a metric as a function": "api/test_api_models.py::test_a_metric_is_a_function",
    "10 every command is callable": "test_public_names.py::test_every_command_has_a_function",
    "10 a wrong shape for evaluate": "api/test_api_models.py::test_what_is_no_model_is_refused",
    "10 a page of the API": "test_docs.py::test_the_api_page_describes_every_public_name_once",
    "10 misspelt names": "test_public_names.py::test_a_misspelt_name_fails_a_type_check_and_right_ones_pass",
    "10 types of signatures": "test_public_names.py::test_every_type_in_a_public_signature_is_public",
    "10 docstrings with examples": "api/test_api_examples.py::test_the_example_of_a_function_runs",
    "10 observer": "api/test_api_models.py::test_progress_is_followed_from_python",
    "11 nothing cut at any width": "report/test_report_browser.py::test_filter_sort_and_layout",
    "11 names on hover, other widths and colours": "report/test_report_browser.py::test_filter_sort_and_layout",
    "11 histograms of activations": "cli/test_cli_quantize.py::test_a_full_report_has_layers_and_histograms",
    "11 a verdict, processors and kernels": "report/test_report_html.py::"
    "test_the_page_begins_with_a_verdict_and_has_a_table_of_processors",
    "11 what each node adds": "report/test_report_html.py::test_what_each_node_adds_to_the_outputs",
    "11 date, command and limits": "report/test_report_html.py::test_the_page_says_when_how_and_within_which_limits",
    "11 time by operator, size by layer": "report/test_report_details.py::test_a_full_report_has_them",
    "11 worst samples": "report/test_report_details.py::test_the_samples_that_are_off_most_are_named",
    "own: dashes, folders, addresses": "cli/test_cli_mistakes.py::test_a_mistake_is_named_with_what_was_meant",
    "own: a name with a dash": "cli/test_cli_mistakes.py::test_a_name_that_begins_with_a_dash_can_be_pasted",
    "own: a glob that matches nothing": "cli/test_cli_mistakes.py::test_a_glob_that_matches_nothing_is_a_warning",
    "own: two float models": "cli/test_cli_mistakes.py::test_layers_of_two_float_models_are_those_of_both",
    "own: links back to a folder": "data/test_picture_files.py::test_a_link_back_gives_no_picture_twice",
    "own: a closed folder": "data/test_picture_files.py::test_a_folder_below_that_cannot_be_read_is_named",
    "own: the wrong tokenizer": "data/test_text_doubts.py::test_the_tokenizer_of_another_model_is_named",
    "own: a language that is not the tokenizer's": "data/test_text_doubts.py::test_unknown_tokens_are_counted",
    "own: a table without names": "data/test_text_doubts.py::test_a_table_without_names_is_noticed",
    "own: a state given twice": "data/test_recurrent_states.py::test_states_that_are_in_the_data_as_well",
    "own: agreement of a detector": "verification/test_class_axes.py::test_such_an_output_has_no_agreement",
    "own: normalize by an option": "data/test_output_checks.py::test_the_remedy_for_pictures_is_an_option",
    "own: a project file in another encoding": "project/test_project_file.py::test_another_encoding_is_named",
    "own: a photo or a submodule that changed": "project/test_project_file.py::"
    "test_the_hooks_pass_on_whatever_may_belong_to_a_model",
    "own: the whole disk": "project/test_project_new.py::test_a_whole_disk_is_refused",
    "own: classes of a table": "data/test_text_doubts.py::test_classes_of_a_table_score_a_classifier",
    "own: silent recordings": "data/test_sound_source.py::test_silence_is_named_where_a_state_varies",
    "own: a line without text": "data/test_sentences.py::test_a_line_whose_text_is_missing_is_named",
    "own: a tilde in a project file": "project/test_project_build.py::"
    "test_a_path_with_a_tilde_is_told_that_shells_replace_it",
    "own: what the web needs": "data/test_remote.py::test_what_the_web_needs_is_named_with_its_extra",
    "own: a size without its unit": "cli/test_cli_mistakes.py::test_a_size_without_its_unit_is_refused_before_any_work",
    "own: text without token ids": "cli/test_cli_mistakes.py::"
    "test_text_for_a_model_whose_inputs_are_not_named_like_token_ids",
    "own: paths of Windows": "project/test_project_file.py::test_a_path_of_windows_is_told_to_use_slashes",
    "own: no work that is expected and not done": "pipeline/test_schedule.py::"
    "test_a_half_that_codes_were_chosen_on_is_not_fitted_again",
    "own: texts of a length that a model does not take": "data/test_examine.py::"
    "test_sizes_that_have_to_be_multiples_are_named",
    "own: a project file on a full disk": "project/test_project_new.py::test_a_full_disk_leaves_no_file",
    "own: a log on a full disk": "cli/test_cli_logs.py::test_a_log_on_a_full_disk_is_no_reason_to_stop",
    "8 titles of stacked figures": "cli/test_cli_tables.py::test_figures_of_a_narrow_terminal_have_their_titles",
    "own: nothing to quantize": "cli/test_cli_mistakes.py::test_nothing_to_quantize_has_its_remedy",
    "own: samples in columns": "data/test_layouts.py::test_files_say_the_transpose_of_the_array_that_is_in_them",
    "own: blanks around a name": "cli/test_cli_mistakes.py::test_blanks_around_a_name_are_no_other_name",
    "own: a model in a submodule that was not cloned": "cli/test_cli_mistakes.py::"
    "test_a_mistake_is_named_with_what_was_meant",
    "own: text without quotes in a project file": "project/test_project_file.py::"
    "test_what_is_wrong_is_said_with_a_hint",
    "own: Ctrl-C while a report is written": "cli/test_cli_mistakes.py::"
    "test_ctrl_c_while_a_report_is_written_says_what_there_is",
    "own: statistics given as data": "data/test_advice.py::test_statistics_are_no_samples",
    "own: photos beside arrays that fit": "project/test_project_find_data.py::"
    "test_arrays_come_before_what_is_made_to_fit_unless_it_has_the_model_s_name",
    "own: bytes beside floats": "project/test_project_new.py::test_bytes_serve_only_where_there_are_no_floats",
    "own: keys of another tool's settings": "project/test_project_file.py::test_what_is_wrong_is_said_with_a_hint",
    "own: a bar that moves while a decoder is judged": "pipeline/test_schedule.py::"
    "test_a_decoder_is_expected_to_go_on_with_texts",
    "own: token ids below zero": "data/test_examine.py::test_token_ids_below_zero_are_named",
    "own: one huge sample": "data/test_examine.py::test_one_huge_sample_makes_no_others_equal",
    "own: nodes by the names of other programs": "explanation/test_explain.py::test_names_that_nothing_has",
    "own: a project's model in other letters": "project/test_project_check.py::test_a_missing_float_model",
    "own: a file of a project that is not there": "cli/test_cli_project.py::"
    "test_a_file_that_is_not_there_is_named_with_what_was_meant",
    "own: file names in the C locale": "cli/test_cli_interrupt.py::test_file_names_in_the_c_locale_are_readable",
    "own: signs that an encoding lacks": "test_text.py::test_a_sign_that_an_encoding_lacks_is_written_in_ascii",
    "own: grey pictures": "data/test_layouts.py::test_files_say_the_transpose_of_the_array_that_is_in_them",
    "own: a misspelt function": "data/test_samples.py::test_a_function_of_a_module_in_the_current_folder",
    "own: doubts about samples beside an error": "cli/test_cli_warnings.py::"
    "test_what_is_wrong_with_samples_is_said_with_an_error_too",
    "own: a share in place of a percentage": "cli/test_cli_mistakes.py::test_a_mistake_is_named_with_what_was_meant",
    "own: more jobs than processors": "targets/test_host.py::test_a_limit_above_all_processors_is_theirs",
    "own: float models that give nothing but NaN": "cli/test_cli_mistakes.py::"
    "test_an_output_of_nothing_but_nan_is_not_called_equal",
    "own: a misspelt operator": "cli/test_cli_mistakes.py::"
    "test_an_operator_that_is_misspelt_is_named_with_what_was_meant",
    "own: sequences, optionals, bfloat16": "cli/test_cli_mistakes.py::test_an_input_that_cannot_be_fed_is_named",
    "own: sparse initializers": "cli/test_cli_mistakes.py::test_weights_in_a_sparse_initializer_are_named",
    "own: a model that git converted as text": "ir/test_formats.py::test_a_model_that_was_converted_as_text_is_told_so",
    "own: samples without a seed": "data/test_examine.py::test_a_function_that_gives_other_samples_each_time_is_named",
    "own: tensors that are trained or elsewhere": "data/test_samples.py::"
    "test_what_gives_no_array_is_told_how_a_tensor_becomes_one",
    "own: ids and masks exchanged": "data/test_examine.py::test_a_mask_of_other_numbers_than_0_and_1_is_named",
    "own: words for True in Python": "api/test_api_arguments.py::test_quantize_names_what_does_not_fit",
    "own: settings of data without data": "cli/test_cli_mistakes.py::test_a_mistake_is_named_with_what_was_meant",
    "own: names of recipes in a project file": "project/test_project_file.py::"
    "test_what_no_model_can_be_built_with_is_refused_before_the_first",
    "completion": "cli/test_cli_completion.py::test_what_was_typed_is_completed",
}


@cache
def names_of(path: Path) -> set[str]:
    """The names of the tests of a file."""
    return {node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS)
def test_each_row_has_its_test(row: str) -> None:
    path, _, name = ROWS[row].partition("::")
    assert name in names_of(TESTS / path)


def test_no_reason_says_what_is_faster_here() -> None:
    """Kernel times are those of a family of processors, unless they were measured."""
    package = TESTS.parent / "onnxq"
    found = [
        f"{path.name}: {node.value}"
        for folder in ("planning", "ops/forms")
        for path in sorted((package / folder).glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "faster here" in node.value
    ]
    assert found == []
