"""In which order a mailbox gives its mails: put order, urgency, priority, batches, deferrable mails."""

import random

import pytest

from pillarbox.kernel import MAX_PRIORITY, MIN_PRIORITY, Mail, TaskMailbox

pytestmark = pytest.mark.usefixtures("each_backend")


def nothing() -> None:
    pass


def plain(count: int) -> list[Mail]:
    return [Mail(nothing) for _ in range(count)]


def urgent(count: int) -> list[Mail]:
    return [Mail(nothing, urgent=True) for _ in range(count)]


@pytest.mark.contract(convicts=["fetch_in_reverse"])
def test_mails_are_taken_in_put_order() -> None:
    mailbox, mails = TaskMailbox(), plain(100)
    for mail in mails:
        mailbox.put(mail)
    assert [mailbox.try_take() for _ in mails] == mails


@pytest.mark.contract(convicts=["priority_excluded"])
def test_a_priority_selects_and_does_not_reorder() -> None:
    mailbox = TaskMailbox()
    mails = [Mail(nothing, priority=p) for p in (1, 3, 2, MIN_PRIORITY, MAX_PRIORITY)]
    mailbox.put_all(mails)
    assert mailbox.try_take(2) is mails[1]
    assert mailbox.try_take(2) is mails[2]
    assert mailbox.try_take(MAX_PRIORITY) is mails[4]
    assert mailbox.drain() == [mails[0], mails[3]]


def test_what_a_take_left_behind_stays_before_what_was_put_later() -> None:
    mailbox, mails = TaskMailbox(), plain(3)
    mailbox.put(mails[0])
    assert mailbox.try_take(5) is None
    mailbox.put(mails[1])
    assert mailbox.try_take(5) is None
    mailbox.put(mails[2])
    assert mailbox.drain() == mails


@pytest.mark.contract(convicts=["urgent_not_first"])
def test_urgent_mails_come_first_and_in_put_order_however_many_fetches_lie_between() -> None:
    mailbox, ordinary, fast = TaskMailbox(), plain(2), urgent(3)
    mailbox.put_all([ordinary[0], fast[0]])
    assert mailbox.try_take(5) is None
    mailbox.put(fast[1])
    assert mailbox.try_take(5) is None
    mailbox.put_all([ordinary[1], fast[2]])
    assert mailbox.drain() == [*fast, *ordinary]


def test_an_urgent_mail_that_the_take_does_not_accept_waits() -> None:
    mailbox = TaskMailbox()
    slow, fast = Mail(nothing, priority=2), Mail(nothing, priority=1, urgent=True)
    mailbox.put_all([slow, fast])
    assert mailbox.try_take(2) is slow
    assert mailbox.try_take(2) is None
    assert mailbox.try_take(1) is fast


@pytest.mark.contract(convicts=["urgent_starves", "burst_too_long"])
def test_after_a_burst_of_urgent_mails_one_ordinary_mail_is_taken() -> None:
    mailbox, ordinary, fast = TaskMailbox(urgent_burst=3), plain(2), urgent(8)
    mailbox.put_all([*ordinary, *fast])
    assert mailbox.drain() == [*fast[:3], ordinary[0], *fast[3:6], ordinary[1], *fast[6:]]


@pytest.mark.contract(
    "Urgent mails count for the burst however each was taken, also as the only one to arrive.",
    convicts=["direct_take_uncounted"],
)
@pytest.mark.parametrize("take", ["take", "try_take", "try_take_from_batch", "drain"])
def test_an_urgent_mail_counts_for_the_burst_however_it_was_taken(take: str) -> None:
    mailbox, fast, slow = TaskMailbox(urgent_burst=3), urgent(5), plain(2)
    for mail in fast[:3]:
        mailbox.put(mail)
        got = getattr(mailbox, take)()
        assert got == [mail] if take == "drain" else got is mail
    mailbox.put_all([fast[3], slow[0]])
    mailbox.put_all([slow[1], fast[4]])
    assert mailbox.drain() == [slow[0], fast[3], fast[4], slow[1]]


def test_the_burst_is_sixty_four_unless_said_otherwise() -> None:
    mailbox, ordinary, fast = TaskMailbox(), plain(1), urgent(70)
    mailbox.put_all([*ordinary, *fast])
    assert mailbox.drain().index(ordinary[0]) == 64


def test_urgent_mails_go_on_after_a_burst_if_no_ordinary_one_is_accepted() -> None:
    mailbox, fast = TaskMailbox(urgent_burst=2), [Mail(nothing, priority=1, urgent=True) for _ in range(5)]
    late = Mail(nothing, priority=0)
    mailbox.put_all([late, *fast])
    assert [mailbox.try_take(1) for _ in range(6)] == [*fast, None]
    # The burst is still owed: the ordinary one comes before the next urgent one.
    more = urgent(1)
    mailbox.put_all(more)
    assert mailbox.drain() == [late, *more]


@pytest.mark.contract(convicts=["batch_grows"])
def test_a_mail_put_after_the_batch_was_made_is_not_in_it_an_urgent_one_excepted() -> None:
    mailbox, mails, fast = TaskMailbox(), plain(4), urgent(1)
    mailbox.put_all(mails[:2])
    assert mailbox.create_batch()
    mailbox.put_all([mails[2], *fast])
    assert mailbox.try_take_from_batch() is fast[0]
    assert mailbox.try_take_from_batch() is mails[0]
    mailbox.put(mails[3])
    assert mailbox.try_take_from_batch() is mails[1]
    assert mailbox.try_take_from_batch() is None
    assert mailbox.create_batch()
    assert [mailbox.try_take_from_batch() for _ in range(3)] == [*mails[2:], None]


def test_a_take_does_not_add_to_the_batch() -> None:
    mailbox, mails = TaskMailbox(), plain(3)
    mailbox.put(mails[0])
    mailbox.create_batch()
    mailbox.put_all(mails[1:])
    assert mailbox.try_take(5) is None
    assert mailbox.statistics()[1:3] == (1, 2)
    assert [mailbox.try_take_from_batch(), mailbox.try_take_from_batch()] == [mails[0], None]


@pytest.mark.contract
def test_a_take_gets_the_batch_before_what_came_later() -> None:
    mailbox, mails = TaskMailbox(), plain(3)
    mailbox.put(mails[0])
    mailbox.create_batch()
    mailbox.put_all(mails[1:])
    assert [mailbox.try_take(), mailbox.try_take_from_batch(), mailbox.try_take()] == [
        mails[0],
        None,
        mails[1],
    ]


def test_a_second_batch_comes_behind_what_is_left_of_the_first() -> None:
    mailbox, mails = TaskMailbox(), plain(3)
    mailbox.put_all(mails[:2])
    mailbox.create_batch()
    mailbox.put(mails[2])
    mailbox.create_batch()
    assert [mailbox.try_take_from_batch() for _ in range(4)] == [*mails, None]


@pytest.mark.contract
def test_a_mail_that_puts_itself_again_does_not_make_the_batch_endless() -> None:
    mailbox = TaskMailbox()
    mail = Mail(nothing)
    mailbox.put(mail)
    mailbox.create_batch()
    assert mailbox.try_take_from_batch() is mail
    mailbox.put(mail)
    assert mailbox.try_take_from_batch() is None
    assert len(mailbox) == 1


@pytest.mark.contract(convicts=["deferrable_not_skipped"])
def test_deferrable_mails_are_skipped_by_a_take_that_asks_for_that_and_keep_their_place() -> None:
    mailbox = TaskMailbox()
    later = [Mail(nothing, deferrable=True), Mail(nothing, deferrable=True, urgent=True)]
    now = plain(2)
    mailbox.put_all([later[0], now[0], later[1], now[1]])
    assert mailbox.try_take(skip_deferrable=True) is now[0]
    assert mailbox.take(timeout=0, skip_deferrable=True) is now[1]
    assert mailbox.try_take(skip_deferrable=True) is None
    assert mailbox.take(timeout=0, skip_deferrable=True) is None
    assert mailbox.has_mail()
    assert mailbox.try_take() is later[1]
    assert mailbox.try_take() is later[0]


@pytest.mark.contract(convicts=["drain_skips_deferrable"])
@pytest.mark.parametrize("way", ["take", "batch", "drain", "close"])
def test_deferrable_mails_are_seen_by_everything_that_does_not_ask_to_skip_them(way: str) -> None:
    mailbox, mail = TaskMailbox(), Mail(nothing, deferrable=True)
    mailbox.put(mail)
    mailbox.create_batch()
    seen = {
        "take": lambda: [mailbox.take()],
        "batch": lambda: [mailbox.try_take_from_batch()],
        "drain": mailbox.drain,
        "close": mailbox.close,
    }[way]()
    assert seen == [mail]


def test_statistics_count_each_mail_once() -> None:
    mailbox = TaskMailbox()
    mailbox.put_all([*plain(2), *urgent(2)])
    mailbox.try_take()
    mailbox.drain()
    mailbox.put_all(plain(3))
    mailbox.close()
    assert not mailbox.try_put(Mail(nothing))
    statistics = mailbox.statistics()
    assert (statistics.put, statistics.taken, statistics.urgent_taken, statistics.rejected) == (7, 4, 2, 1)
    with pytest.raises(AttributeError):
        statistics.put = 1  # type: ignore[misc]


@pytest.mark.contract(convicts=["shared_lane_forgotten"])
def test_a_take_finds_its_mail_among_more_kinds_than_have_a_lane_of_their_own() -> None:
    mailbox, numbers = TaskMailbox(), random.Random(1)
    waiting: list[Mail] = []
    for _ in range(3000):
        if numbers.random() < 0.55:
            mail = Mail(nothing, priority=numbers.randrange(60), deferrable=numbers.random() < 0.5)
            waiting.append(mail)
            mailbox.put(mail)
            continue
        p, skip = numbers.randrange(-1, 60), numbers.random() < 0.3
        accepted = [mail for mail in waiting if mail.priority >= p and not (skip and mail.deferrable)]
        taken = mailbox.try_take(p, skip_deferrable=skip)
        assert taken is (accepted[0] if accepted else None)
        if taken is not None:
            waiting.remove(taken)
    assert len({(mail.priority, mail.deferrable) for mail in waiting}) > 32
    assert mailbox.drain() == waiting


def test_a_mail_of_a_kind_that_waited_in_the_shared_lane_comes_before_a_later_one_with_a_lane() -> None:
    mailbox = TaskMailbox()
    first = [Mail(nothing, priority=priority) for priority in range(40)]
    mailbox.put_all(first)
    assert mailbox.try_take() is first[0]  # its lane is free for another kind now
    later = Mail(nothing, priority=39)
    mailbox.put(later)
    assert mailbox.try_take(39) is first[39]
    assert mailbox.try_take(39) is later
