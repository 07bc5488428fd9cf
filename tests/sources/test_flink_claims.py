"""The claims of Flink's tests of sources, each with the test here that holds it. Claims, not code.

Each is named for the Flink test class that makes it. Each test was read, and shows its claim; here is checked
only that it is there. A claim that a test shows no more is to be taken out.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

# By Flink's test class: what it claims, the file here and the test that holds it.
CLAIMS: dict[str, list[tuple[str, str, str]]] = {
    "SourceCoordinatorTest": [
        (
            "a started coordinator has its enumerator on a thread of its own",
            "enumerating",
            "test_each_has_a_thread_of_its_own_and_both_end",
        ),
        ("closing it closes its enumerator", "enumerating", "test_each_has_a_thread_of_its_own_and_both_end"),
        (
            "a reader that registers is known with its place",
            "coordinator",
            "test_the_enumerator_knows_its_readers_and_their_machines",
        ),
        (
            "a source event of a reader comes to the enumerator",
            "coordinator",
            "test_events_go_both_ways_in_order",
        ),
        (
            "a checkpoint restores the splits that nobody has",
            "coordinator",
            "test_a_checkpoint_is_json_and_another_parallelism_goes_on_from_it",
        ),
        (
            "a failed reader gives back what no complete checkpoint has",
            "assignment",
            "test_what_a_complete_checkpoint_counts_in_waits_for_the_reader_itself",
        ),
        (
            "what was read to its end before a complete checkpoint is not given back",
            "assignment",
            "test_what_was_finished_before_a_complete_checkpoint_does_not_come_back",
        ),
        (
            "what a complete checkpoint has is not given back",
            "assignment",
            "test_what_a_complete_checkpoint_counts_in_waits_for_the_reader_itself",
        ),
        (
            "readers are not restored with the coordinator",
            "flink_yardstick",
            "test_a_coordinator_that_was_restored_knows_no_reader_until_one_comes",
        ),
        (
            "an error while the enumerator starts fails the job",
            "enumerating",
            "test_what_making_the_enumerator_raises_start_raises",
        ),
        (
            "an error in the enumerator fails the job",
            "coordinator",
            "test_what_the_enumerator_raises_fails_every_reader_and_who_comes_later",
        ),
        (
            "close does not wait for ever for a call that blocks",
            "enumerating",
            "test_a_discovery_that_does_not_end_is_left_behind_and_said",
        ),
        (
            "a reader that restarts may ask for splits anew",
            "coordinator",
            "test_who_takes_the_place_of_another_has_what_that_one_had_and_it_is_heard_no_more",
        ),
        (
            "a state that nobody has written is refused",
            "coordinator",
            "test_a_state_that_nobody_has_written_is_refused",
        ),
        (
            "an event of a former attempt is not heard",
            "coordinator",
            "test_who_takes_the_place_of_another_has_what_that_one_had_and_it_is_heard_no_more",
        ),
        (
            "the end of the coordinator ends its readers",
            "coordinator",
            "test_the_end_of_the_coordinator_fails_its_readers",
        ),
    ],
    "SourceCoordinatorContextTest": [
        (
            "a reader that leaves is known no more",
            "flink_yardstick",
            "test_a_reader_that_has_left_is_not_known_to_the_enumerator_any_more",
        ),
        (
            "splits are assigned by the enumerator to whom it wants",
            "assignment",
            "test_the_enumerator_may_give_to_whom_it_wants_and_end_a_reader",
        ),
        (
            "a reader may be told early that no more come",
            "assignment",
            "test_the_enumerator_may_give_to_whom_it_wants_and_end_a_reader",
        ),
        (
            "a place that is none is refused",
            "assignment",
            "test_the_enumerator_may_give_to_whom_it_wants_and_end_a_reader",
        ),
        (
            "a call beside that fails is told",
            "enumerating",
            "test_a_first_discovery_that_fails_ends_it_and_everybody_is_told",
        ),
        (
            "a periodic call beside comes again after its interval",
            "enumerating",
            "test_what_is_new_is_found_while_it_runs_and_the_end_never_comes",
        ),
        (
            "and not before",
            "enumerating",
            "test_between_two_discoveries_the_interval_passes",
        ),
    ],
    "SplitAssignmentTrackerTest": [
        (
            "what was given since a checkpoint is told from what was given before",
            "assignment",
            "test_what_a_complete_checkpoint_counts_in_waits_for_the_reader_itself",
        ),
        (
            "what a complete checkpoint has is given anew to each life of its reader",
            "assignment",
            "test_a_reader_that_dies_twice_gets_what_it_had_once_each_time",
        ),
        (
            "a checkpoint that is given up counts nothing in",
            "assignment_ended",
            "test_a_checkpoint_that_is_given_up_ends_nothing",
        ),
        (
            "a checkpoint in which a reader dies is given up",
            "assignment",
            "test_a_checkpoint_during_which_a_reader_dies_is_given_up",
        ),
    ],
    "SourceCoordinatorAlignmentTest": [
        (
            "the limit is the lowest watermark and the drift",
            "coordinator",
            "test_event_times_are_kept_together",
        ),
        (
            "an idle reader is not waited for",
            "alignment",
            "test_an_idle_split_holds_nobody_and_counts_again_when_it_wakes",
        ),
        (
            "where all are idle there is no limit",
            "alignment",
            "test_when_all_are_idle_or_none_is_left_nobody_is_held",
        ),
        (
            "a limit that falls is told",
            "coordinator",
            "test_event_times_are_kept_together",
        ),
        (
            "who comes late is told the limit",
            "coordinator",
            "test_who_comes_late_is_told_the_limit_before_its_splits",
        ),
        ("a reader that dies holds nobody", "coordinator", "test_a_reader_that_dies_holds_nobody"),
        (
            "a reader that has not reported yet holds nobody",
            "alignment",
            "test_a_split_that_nobody_has_begun_holds_nobody",
        ),
    ],
    "SourceReaderBaseTest": [
        (
            "what a split reader raises ends the reader",
            "fetching",
            "test_a_failure_comes_after_the_rows_before_it_and_names_the_split",
        ),
        (
            "splits that end at different times are all read",
            "fetching",
            "test_each_row_comes_once_and_in_the_order_of_its_split",
        ),
        (
            "a snapshot has the positions of what was emitted",
            "fetching",
            "test_a_split_stands_where_the_rows_end_that_poll_has_given",
        ),
        (
            "a split is taken up while another is read",
            "fetching",
            "test_a_split_that_comes_while_a_fetch_blocks_is_taken_up_at_once",
        ),
        (
            "each split has a watermark of its own",
            "task_event_time",
            "test_the_lowest_watermark_is_emitted_behind_the_rows_that_it_is_of",
        ),
        (
            "a reader with nothing is available when rows come",
            "fetching",
            "test_the_future_is_done_when_there_is_something_to_poll",
        ),
        (
            "the future stays the same until it is done",
            "fetching",
            "test_the_future_is_done_when_there_is_something_to_poll",
        ),
        (
            "where nothing was fetched a poll gives nothing",
            "flink_yardstick",
            "test_a_reader_that_never_had_a_split_has_no_thread_and_is_closed",
        ),
        (
            "a finished split may come with its last rows or after",
            "flink_yardstick",
            "test_a_split_may_be_finished_with_its_last_rows_or_after_them",
        ),
    ],
    "SplitFetcherManagerTest": [
        (
            "an error of the first fetch is told",
            "fetch_ends",
            "test_a_close_that_raises_is_logged_and_the_failure_before_it_is_told",
        ),
        (
            "an error of a later fetch is told, after the rows before it",
            "fetching",
            "test_a_failure_comes_after_the_rows_before_it_and_names_the_split",
        ),
        (
            "an error in close is logged, and hides no other",
            "fetch_ends",
            "test_a_close_that_raises_is_logged_and_the_failure_before_it_is_told",
        ),
        (
            "a fetcher whose splits are finished ends",
            "fetching",
            "test_a_thread_for_each_split_has_a_client_of_its_own_and_ends_with_its_split",
        ),
        ("close has a time-out", "fetching", "test_a_fetch_that_does_not_heed_its_wake_up_is_abandoned"),
        (
            "a client that cannot be made ends the task",
            "fetching",
            "test_a_client_that_cannot_be_made_ends_the_task",
        ),
    ],
    "SplitFetcherTest": [
        (
            "wake-ups between fetches lose and repeat nothing",
            "fetch_orders",
            "test_orders_between_fetches_lose_nothing_and_repeat_nothing",
        ),
        (
            "close wakes a fetch that blocks",
            "fetching",
            "test_close_wakes_a_fetch_that_blocks_and_leaves_no_thread",
        ),
        ("close ends one that waits for room", "fetching", "test_close_ends_a_fetcher_that_waits_for_room"),
        ("the bound of the queue holds", "fetching", "test_nothing_is_fetched_ahead_beyond_the_bound"),
        (
            "a fetcher without splits fetches nothing",
            "flink_yardstick",
            "test_a_fetcher_whose_splits_are_gone_fetches_nothing_and_takes_up_the_next_one",
        ),
        (
            "a fetcher whose splits are finished is used for the next one",
            "flink_yardstick",
            "test_a_fetcher_whose_splits_are_gone_fetches_nothing_and_takes_up_the_next_one",
        ),
        (
            "one whose splits are all paused fetches nothing",
            "fetching",
            "test_all_splits_paused_means_that_nothing_is_fetched",
        ),
        (
            "one that is paused can be closed",
            "flink_yardstick",
            "test_a_reader_all_of_whose_splits_are_paused_is_closed_at_once",
        ),
    ],
    "SplitFetcherPauseResumeSplitReaderTest": [
        (
            "a paused split gives nothing and goes on without a gap",
            "fetching",
            "test_a_paused_split_gives_nothing_and_goes_on_without_a_gap",
        ),
        ("a reader that cannot pause is told", "fetching", "test_a_client_that_cannot_pause_splits_is_named"),
    ],
    "SourceOperatorTest": [
        (
            "splits are added to the reader once",
            "task_input",
            "test_the_same_splits_said_twice_are_read_once",
        ),
        ("source events go both ways", "task_input", "test_events_go_both_ways"),
        (
            "a snapshot has the reader's splits",
            "task_input",
            "test_a_checkpoint_amid_a_batch_holds_how_much_of_it_is_out",
        ),
        ("a bounded source ends the task", "task_input", "test_a_bounded_source_is_read_to_its_end"),
        (
            "a failure of the reader or the coordinator ends the task",
            "task_input",
            "test_a_failure_of_the_coordinator_or_of_the_reader_ends_the_task",
        ),
        (
            "it is restored before it is opened, or not",
            "task_input",
            "test_bad_arguments_and_late_restores_are_refused",
        ),
    ],
    "SourceOperatorAlignmentTest": [
        (
            "nothing beyond the limit is emitted",
            "task_event_time",
            "test_nothing_beyond_the_limit_is_emitted_but_the_batch_that_passed_it",
        ),
        (
            "idleness is said and ends with a row",
            "task_event_time",
            "test_idleness_is_said_when_all_are_idle_and_over_with_the_next_row",
        ),
        (
            "watermarks are reported now and then",
            "task_event_time",
            "test_what_has_changed_is_reported_now_and_then_and_the_last_change_in_any_case",
        ),
        (
            "without alignment nothing is reported",
            "task_event_time",
            "test_without_a_limit_of_drift_nothing_is_reported",
        ),
        ("the last watermark is said once", "task_event_time", "test_the_end_says_the_last_watermark_once"),
        (
            "who waits for the limit can be stopped",
            "flink_yardstick",
            "test_a_task_that_waits_for_the_limit_of_event_time_can_be_ended",
        ),
        (
            "a split that waits is idle for nobody",
            "event_time",
            "test_a_paused_split_does_not_become_idle",
        ),
    ],
}


@cache
def names_in(file: str) -> frozenset[str]:
    path = next(each for each in HERE.rglob(f"test_{file}.py"))
    tree = ast.parse(path.read_text())
    return frozenset(each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef))


@pytest.mark.parametrize(
    ("file", "test"),
    [
        pytest.param(file, test, id=f"{flink}: {claim}")
        for flink, claims in CLAIMS.items()
        for claim, file, test in claims
    ],
)
def test_a_claim_of_flinks_tests_is_held_by_a_test_here(file: str, test: str) -> None:
    assert test in names_in(file)
