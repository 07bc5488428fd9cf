"""Every operation of TaskMailbox in every state, and on the wrong thread."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pillarbox.kernel import Mail, MailboxClosedError, MailboxState, TaskMailbox, WrongThreadError

OPEN, QUIESCED, CLOSED = MailboxState

pytestmark = pytest.mark.usefixtures("each_backend")


def nothing() -> None:
    pass


def mailbox_in(state: MailboxState, *mails: Mail) -> TaskMailbox:
    """A mailbox into which the mails were put while it was open."""
    mailbox = TaskMailbox()
    for mail in mails:
        mailbox.put(mail)
    if state is not OPEN:
        mailbox.quiesce()
    if state is CLOSED:
        mailbox.close()
    assert mailbox.state is state
    return mailbox


# ---- putting


@pytest.mark.contract
def test_put_accepts_while_open_and_the_mail_is_visible_to_every_later_take() -> None:
    mail = Mail(nothing)
    mailbox = mailbox_in(OPEN)
    mailbox.put(mail)
    assert mailbox.try_take() is mail


@pytest.mark.contract(
    "A put into a mailbox that is not open raises with the mail, and leaves nothing behind.",
    convicts=["mutex_push_when_quiesced"],
)
@pytest.mark.parametrize("state", [QUIESCED, CLOSED])
def test_put_raises_with_the_mail_and_leaves_nothing_behind(state: MailboxState) -> None:
    mailbox, mail = mailbox_in(state), Mail(nothing, description="the refused one")
    with pytest.raises(MailboxClosedError, match=f"{state.name}.*the refused one") as raised:
        mailbox.put(mail)
    assert raised.value.mail is mail
    assert raised.value.state == state.name
    assert len(mailbox) == 0
    assert mailbox.statistics().rejected == 1
    TaskMailbox().put(mail)


@pytest.mark.contract("Put_all accepts all mails, adjacent and in order.", convicts=["put_all_in_reverse"])
def test_put_all_accepts_all_adjacent_and_in_order() -> None:
    mails = [Mail(nothing) for _ in range(5)]
    mailbox = mailbox_in(OPEN)
    mailbox.put_all(iter(mails))
    assert mailbox.drain() == mails


@pytest.mark.contract
@pytest.mark.parametrize("state", [QUIESCED, CLOSED])
def test_put_all_raises_with_the_mails_and_leaves_none_behind(state: MailboxState) -> None:
    mailbox, mails = mailbox_in(state), (Mail(nothing), Mail(nothing))
    with pytest.raises(MailboxClosedError, match=state.name) as raised:
        mailbox.put_all(list(mails))
    assert raised.value.mail == mails
    assert len(mailbox) == 0
    assert mailbox.statistics().rejected == 2
    TaskMailbox().put_all(mails)


@pytest.mark.parametrize(("state", "accepted"), [(OPEN, True), (QUIESCED, False), (CLOSED, False)])
def test_try_put_says_whether_it_accepted(state: MailboxState, accepted: bool) -> None:
    mailbox, mail = mailbox_in(state), Mail(nothing)
    assert mailbox.try_put(mail) is accepted
    assert len(mailbox) == accepted
    assert TaskMailbox().try_put(Mail(nothing))
    if not accepted:
        TaskMailbox().put(mail)


def test_put_all_of_nothing_changes_nothing_and_is_refused_like_any_other() -> None:
    mailbox = mailbox_in(OPEN)
    mailbox.put_all([])
    assert len(mailbox) == 0
    mailbox.quiesce()
    with pytest.raises(MailboxClosedError):
        mailbox.put_all([])


# ---- taking


@pytest.mark.contract
@pytest.mark.parametrize("state", [OPEN, QUIESCED])
def test_try_take_gives_the_first_eligible_mail_or_none(state: MailboxState) -> None:
    low, high = Mail(nothing, priority=0), Mail(nothing, priority=2)
    mailbox = mailbox_in(state, low, high)
    assert mailbox.try_take(3) is None
    assert mailbox.try_take(1) is high
    assert mailbox.try_take(1) is None
    assert mailbox.try_take() is low
    assert mailbox.try_take() is None


@pytest.mark.parametrize("state", [OPEN, QUIESCED])
def test_take_gives_the_first_eligible_mail(state: MailboxState) -> None:
    low, high = Mail(nothing, priority=0), Mail(nothing, priority=2)
    mailbox = mailbox_in(state, low, high)
    assert mailbox.take(1) is high
    assert mailbox.take(timeout=0) is low


@pytest.mark.contract
def test_take_waits_while_open_until_its_time_is_over() -> None:
    mailbox = mailbox_in(OPEN, Mail(nothing, priority=0))
    assert mailbox.take(1, timeout=0) is None
    assert mailbox.take(1, timeout=0.01) is None
    assert len(mailbox) == 1


@pytest.mark.contract(convicts=["ended_take_waits"])
def test_take_raises_at_once_when_quiesced_and_nothing_is_eligible() -> None:
    mailbox = mailbox_in(QUIESCED, Mail(nothing, priority=0))
    with pytest.raises(MailboxClosedError, match="QUIESCED") as raised:
        mailbox.take(1)
    assert raised.value.mail is None
    assert len(mailbox) == 1


@pytest.mark.contract(convicts=["fetch_drops_state"])
def test_a_take_leaves_a_quiesced_mailbox_quiesced() -> None:
    first, second, late = (Mail(nothing) for _ in range(3))
    mailbox = TaskMailbox()
    mailbox.put_all([first, second])
    mailbox.quiesce()
    assert mailbox.try_take() is first
    assert not mailbox.try_put(late)
    assert mailbox.try_take() is second
    with pytest.raises(MailboxClosedError, match="QUIESCED"):
        mailbox.put(late)
    with pytest.raises(MailboxClosedError, match="QUIESCED"):
        mailbox.take(1)


@pytest.mark.contract
@pytest.mark.parametrize("state", [OPEN, QUIESCED])
def test_create_batch_says_whether_there_is_anything_in_it(state: MailboxState) -> None:
    assert not mailbox_in(state).create_batch()
    assert mailbox_in(state, Mail(nothing)).create_batch()
    assert mailbox_in(state, Mail(nothing, urgent=True)).create_batch()


@pytest.mark.parametrize("state", [OPEN, QUIESCED])
def test_try_take_from_batch_gives_the_batch_and_then_none(state: MailboxState) -> None:
    mails = [Mail(nothing), Mail(nothing)]
    mailbox = mailbox_in(state, *mails)
    assert mailbox.try_take_from_batch() is None
    mailbox.create_batch()
    assert [mailbox.try_take_from_batch() for _ in range(3)] == [*mails, None]


@pytest.mark.parametrize("state", [OPEN, QUIESCED])
def test_has_mail_and_len_count_batch_and_queue(state: MailboxState) -> None:
    assert not mailbox_in(state).has_mail()
    mailbox = mailbox_in(OPEN, Mail(nothing))
    mailbox.create_batch()
    mailbox.put_all([Mail(nothing), Mail(nothing, urgent=True)])
    if state is QUIESCED:
        mailbox.quiesce()
    assert mailbox.has_mail()
    assert len(mailbox) == 3
    assert mailbox.statistics()[:3] == (state, 1, 2)
    mailbox.drain()
    assert not mailbox.has_mail()
    assert len(mailbox) == 0


@pytest.mark.contract(convicts=["quiesce_drops_mail"])
@pytest.mark.parametrize("state", [OPEN, QUIESCED])
def test_drain_gives_everything_in_take_order(state: MailboxState) -> None:
    first, second, urgent = Mail(nothing), Mail(nothing), Mail(nothing, urgent=True)
    mailbox = mailbox_in(state, first, second, urgent)
    assert mailbox.drain() == [urgent, first, second]
    assert mailbox.drain() == []
    assert mailbox.statistics().taken == 3


CLOSED_TAKES: dict[str, Callable[[TaskMailbox], Any]] = {
    "try_take": lambda mailbox: mailbox.try_take(),
    "take": lambda mailbox: mailbox.take(),
    "take with a time-out": lambda mailbox: mailbox.take(timeout=0),
    "create_batch": lambda mailbox: mailbox.create_batch(),
    "try_take_from_batch": lambda mailbox: mailbox.try_take_from_batch(),
}


@pytest.mark.contract
@pytest.mark.parametrize("operation", CLOSED_TAKES)
def test_every_take_raises_when_closed(operation: str) -> None:
    mailbox = mailbox_in(CLOSED, Mail(nothing))
    with pytest.raises(MailboxClosedError, match="CLOSED") as raised:
        CLOSED_TAKES[operation](mailbox)
    assert raised.value.state == "CLOSED"


def test_a_closed_mailbox_is_empty_whatever_was_in_it() -> None:
    mailbox = mailbox_in(OPEN, Mail(nothing), Mail(nothing))
    mailbox.create_batch()
    mailbox.close()
    assert not mailbox.has_mail()
    assert len(mailbox) == 0
    assert mailbox.drain() == []
    assert mailbox.statistics()[:3] == (CLOSED, 0, 0)


# ---- ending


@pytest.mark.contract
@pytest.mark.parametrize(("before", "after"), [(OPEN, QUIESCED), (QUIESCED, QUIESCED), (CLOSED, CLOSED)])
def test_quiesce_goes_forward_or_has_no_effect(before: MailboxState, after: MailboxState) -> None:
    mailbox = mailbox_in(before)
    mailbox.quiesce()
    assert mailbox.state is after


@pytest.mark.contract(convicts=["close_forgets_batch", "close_forgets_arrived"])
@pytest.mark.parametrize("state", [OPEN, QUIESCED])
def test_close_returns_every_mail_not_taken_exactly_once(state: MailboxState) -> None:
    mails = [Mail(nothing) for _ in range(6)]
    mailbox = mailbox_in(OPEN, *mails[:3])
    mailbox.create_batch()
    assert mailbox.try_take_from_batch() is mails[0]
    mailbox.put_all(mails[3:5])
    assert mailbox.try_take(1) is None  # fetches, behind the batch
    mailbox.put(mails[5])
    if state is QUIESCED:
        mailbox.quiesce()
    assert mailbox.close() == mails[1:]
    assert mailbox.close() == []
    assert mailbox.state is CLOSED
    statistics = mailbox.statistics()
    assert (statistics.put, statistics.taken) == (6, 1)


def test_close_of_a_closed_mailbox_returns_nothing() -> None:
    assert mailbox_in(CLOSED, Mail(nothing)).close() == []


# ---- threads

CONFINED: dict[str, Callable[[TaskMailbox], Any]] = {
    **CLOSED_TAKES,
    "has_mail": lambda mailbox: mailbox.has_mail(),
    "drain": lambda mailbox: mailbox.drain(),
    "close": lambda mailbox: mailbox.close(),
    "arm_wakeup": lambda mailbox: mailbox.arm_wakeup(nothing),
    "check_is_mailbox_thread": lambda mailbox: mailbox.check_is_mailbox_thread(),
}


@pytest.mark.contract(convicts=["wrong_thread_mixed_up"])
@pytest.mark.parametrize("state", MailboxState)
@pytest.mark.parametrize("operation", CONFINED)
def test_a_confined_operation_names_both_threads_to_another_thread(
    operation: str, state: MailboxState, elsewhere: Callable[..., Any]
) -> None:
    mailbox = mailbox_in(state, Mail(nothing))
    before = mailbox.statistics()
    with pytest.raises(WrongThreadError) as raised:
        elsewhere(lambda: CONFINED[operation](mailbox))
    main = threading.current_thread()
    assert main.name in raised.value.expected and str(main.ident) in raised.value.expected
    assert "elsewhere" in raised.value.actual
    assert mailbox.statistics() == before


@pytest.mark.contract
@pytest.mark.parametrize("state", MailboxState)
def test_what_is_thread_safe_works_in_another_thread(
    state: MailboxState, elsewhere: Callable[..., Any]
) -> None:
    mailbox = mailbox_in(state)
    assert elsewhere(lambda: mailbox.try_put(Mail(nothing))) is (state is OPEN)
    assert elsewhere(lambda: len(mailbox)) == (state is OPEN)
    assert elsewhere(lambda: mailbox.state) is state
    assert elsewhere(lambda: mailbox.is_mailbox_thread) is False
    assert mailbox.is_mailbox_thread
    assert elsewhere(mailbox.statistics).state is state
    elsewhere(mailbox.quiesce)
    assert mailbox.state is not OPEN
    mailbox.check_is_mailbox_thread()


def test_the_mailbox_thread_may_be_given(elsewhere: Callable[..., Any]) -> None:
    assert TaskMailbox(threading.current_thread()).is_mailbox_thread
    assert TaskMailbox(threading.get_ident()).is_mailbox_thread
    assert elsewhere(lambda: TaskMailbox(threading.main_thread()).is_mailbox_thread) is False


def same_ident_again(first: Callable[[], object], second: Callable[[], object]) -> bool:
    """Run both, one after the other, in threads of the same ident; False if the system gives none again."""
    idents: list[int] = []

    def begin() -> None:
        idents.append(threading.get_ident())
        first()

    def go_on() -> None:
        idents.append(threading.get_ident())
        if idents[-1] == idents[-2]:
            second()

    for _ in range(1000):
        for body in (begin, go_on):
            thread = threading.Thread(target=body)
            thread.start()
            thread.join()
        if idents[-1] == idents[-2]:
            return True
    return False


@pytest.mark.contract
def test_a_thread_that_gets_the_ident_of_one_that_has_ended_is_not_the_mailbox_thread() -> None:
    boxes: list[TaskMailbox] = []
    outcomes: list[object] = []

    def use() -> None:
        outcomes.append(boxes[-1].is_mailbox_thread)
        try:
            boxes[-1].try_take()
        except WrongThreadError as error:
            outcomes.append(error.expected)

    if not same_ident_again(lambda: boxes.append(TaskMailbox()), use):
        pytest.skip("this system gives no ident again")
    assert outcomes[0] is False
    assert str(outcomes[1]).startswith("one that has ended (ident ")


@pytest.mark.contract
def test_a_thread_that_gets_the_ident_of_the_one_that_was_named_is_not_the_mailbox_thread() -> None:
    boxes: list[TaskMailbox] = []
    outcomes: list[object] = []

    def name() -> None:
        named = threading.current_thread()
        maker = threading.Thread(target=lambda: boxes.append(TaskMailbox(named)))
        maker.start()
        maker.join()

    if not same_ident_again(name, lambda: outcomes.append(boxes[-1].is_mailbox_thread)):
        pytest.skip("this system gives no ident again")
    assert outcomes == [False]


def test_a_thread_that_was_named_is_the_mailbox_thread_from_its_first_use() -> None:
    boxes: list[TaskMailbox] = []
    outcomes: list[object] = []
    made = threading.Event()

    def use() -> None:
        made.wait()
        for box in boxes:
            outcomes.append(box.try_take())
            outcomes.append(box.is_mailbox_thread)

    thread = threading.Thread(target=use)
    thread.start()
    boxes += [TaskMailbox(thread), TaskMailbox(thread.ident)]
    with pytest.raises(WrongThreadError):
        boxes[0].try_take()
    made.set()
    thread.join()
    assert outcomes == [None, True] * 2


def test_another_thread_adopts_a_mailbox_with_mail_that_nobody_has_looked_at(
    elsewhere: Callable[..., Any],
) -> None:
    mailbox, mail = TaskMailbox(), Mail(nothing)
    mailbox.put(mail)

    def take_over() -> Mail | None:
        mailbox.adopt()
        mailbox.adopt()
        return mailbox.try_take()

    assert elsewhere(take_over) is mail
    with pytest.raises(WrongThreadError):
        mailbox.try_take()
    mailbox.adopt()
    assert mailbox.try_take() is None


@pytest.mark.contract
@pytest.mark.parametrize("state", MailboxState)
def test_a_mailbox_that_is_in_use_or_ending_is_not_adopted(
    state: MailboxState, elsewhere: Callable[..., Any]
) -> None:
    mailbox = mailbox_in(state, Mail(nothing))
    if state is OPEN:
        mailbox.create_batch()
    with pytest.raises(WrongThreadError):
        elsewhere(mailbox.adopt)
    assert mailbox.is_mailbox_thread


@pytest.mark.contract
@pytest.mark.parametrize("state", [OPEN, QUIESCED])
def test_what_a_thread_that_has_ended_left_in_its_mailbox_is_for_who_adopts_it(state: MailboxState) -> None:
    left = [Mail(nothing), Mail(nothing), Mail(nothing)]
    boxes: list[TaskMailbox] = []

    def leave() -> None:
        boxes.append(TaskMailbox())
        boxes[0].put_all(left)
        boxes[0].create_batch()
        if state is QUIESCED:
            boxes[0].quiesce()

    owner = threading.Thread(target=leave)
    owner.start()
    owner.join()
    with pytest.raises(WrongThreadError):
        boxes[0].adopt()
    boxes[0].adopt(ended=owner)
    assert [boxes[0].try_take_from_batch() for _ in range(4)] == [*left, None]
    assert boxes[0].state is state


def test_only_the_owner_that_has_ended_is_accepted_as_such(elsewhere: Callable[..., Any]) -> None:
    mailbox = TaskMailbox()
    with pytest.raises(ValueError, match="has ended"):
        elsewhere(lambda: mailbox.adopt(ended=threading.main_thread()))
    with pytest.raises(ValueError, match="must be the owner"):
        elsewhere(lambda: mailbox.adopt(ended=threading.Thread()))
    with pytest.raises(TypeError, match="ended"):
        mailbox.adopt(ended=threading.get_ident())  # type: ignore[arg-type]
    assert mailbox.is_mailbox_thread


def test_the_next_thread_of_the_same_ident_is_not_robbed_of_its_mailbox() -> None:
    # The system gives the ident of a thread that has ended to a new one, often at once.
    for _ in range(1000):
        ended = threading.Thread(target=nothing)
        ended.start()
        ended.join()
        boxes: list[TaskMailbox] = []
        made, over = threading.Event(), threading.Event()

        def own(boxes: list[TaskMailbox] = boxes, made: Any = made, over: Any = over) -> None:
            boxes.append(TaskMailbox())
            made.set()
            over.wait()

        owner = threading.Thread(target=own)
        owner.start()
        made.wait()
        with pytest.raises(ValueError, match="must be the owner"):
            boxes[0].adopt(ended=ended)
        over.set()
        owner.join()
        if owner.ident == ended.ident:
            return
    pytest.skip("this system gives no ident again")


# ---- counts


@pytest.mark.contract(convicts=["beyond_stays"])
def test_mails_are_counted_also_beyond_what_the_word_of_the_inbox_counts() -> None:
    mailbox, many = TaskMailbox(), 65_535
    some = [Mail(nothing) for _ in range(many + 10)]
    mailbox.put_all(some[: many - 1])
    for number, mail in enumerate(some[many - 1 :], many):
        mailbox.put(mail)
        assert len(mailbox) == number
    assert mailbox.statistics()[1:4] == (0, many + 10, many + 10)
    assert mailbox.try_take() is some[0]
    assert len(mailbox) == many + 9
    mailbox.put_all(Mail(nothing) for _ in range(2 * many))
    assert len(mailbox) == 3 * many + 9
    mailbox.quiesce()
    assert not mailbox.try_put(Mail(nothing))
    assert len(mailbox.drain()) == 3 * many + 9
    assert (len(mailbox), mailbox.statistics().put) == (0, 3 * many + 10)


# ---- arguments


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), float("-inf")])
def test_a_negative_timeout_is_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match=f"timeout .*{timeout}"):
        TaskMailbox().take(timeout=timeout)


def test_arguments_of_a_wrong_kind_are_refused_by_name() -> None:
    mailbox = TaskMailbox()
    for call, name in [
        (lambda: mailbox.take(timeout="soon"), "timeout"),  # type: ignore[arg-type]
        (lambda: mailbox.try_take("high"), "priority"),  # type: ignore[arg-type]
        (lambda: mailbox.arm_wakeup(3), "callback"),  # type: ignore[arg-type]
        (lambda: mailbox.put_all([3]), "mails"),  # type: ignore[list-item]
        (lambda: mailbox.put(None), "mail"),  # type: ignore[arg-type]
        (lambda: TaskMailbox(urgent_burst=1.5), "urgent_burst"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(TypeError, match=name):
            call()
    for call, name in [
        (lambda: mailbox.try_take(-2), "priority .*-2"),
        (lambda: mailbox.take(2**31), "priority .*2147483648"),
        (lambda: mailbox.try_take(2**80), "priority"),
        (lambda: TaskMailbox(urgent_burst=0), "urgent_burst .*0"),
        (lambda: TaskMailbox(threading.Thread()), "thread"),
        (lambda: TaskMailbox("main"), "thread .*main"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(ValueError, match=name):
            call()
