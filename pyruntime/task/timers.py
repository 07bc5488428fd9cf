"""Processing-time timers of one operator: registered on the mailbox thread, fired there, as mail.

Only the clock is read elsewhere: an alarm puts the mail in which what is due then fires.
"""

# Why timers fire in mail, and not in the thread of the alarm. A callback touches the operator's state,
# which belongs to the mailbox thread; in another thread it would need a lock around everything.
#
# Why not one mail for each timer. A hundred thousand windows that end together would be as many mails, each
# with its own look at the clock, and a checkpoint put meanwhile would wait behind all of them. Why not one
# mail for all that are due: the same checkpoint would wait for all of them as well. So a mail fires some,
# and what is left is mail again, behind what has come meanwhile. It is ordinary mail: an operator that
# yields may wait for a timer, which nobody can know, and mail that it skipped would need a second alarm.
#
# Why the next mail is put before the first timer of a mail is called. A callback may yield, and the timers
# that are due meanwhile must fire in that yield.
#
# Why the deadlines have a clock that stands still. `Deadlines` takes lengths; with a clock at 0 a length is
# a moment, so that timers of one timestamp are of one length and cost a constant, whenever they were
# registered.

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from pillarbox.kernel import Deadlines
from pillarbox.mailbox.processor import MailboxExecutor
from pillarbox.task.alarm import Alarm
from pillarbox.validate import check_callable, check_moment

MAX_TIMERS_PER_MAIL = 64
"""Timers that fire in one mail at most."""
MAX_MAIL_S = 0.001
"""Seconds after which a mail lets no further timer begin."""


class Timer:
    """Calls `callback(timestamp)` on the mailbox thread when the service's clock has come to `timestamp`."""

    __slots__ = ("_callback", "_handle", "_service", "timestamp")

    def __init__(
        self, service: ProcessingTimeService, timestamp: float, callback: Callable[[float], object]
    ) -> None:
        self.timestamp = timestamp
        """The moment at which it fires, or has fired, in seconds on the service's clock. Any thread."""
        self._service = service
        self._callback: Callable[[float], object] | None = callback
        self._handle = -1

    @property
    def done(self) -> bool:
        """True if no call will begin: it has begun, was cancelled, or the service has ended. Any thread."""
        return self._callback is None

    def cancel(self) -> bool:
        """Have it not fire any more. Mailbox thread. Returns False, without effect, if it was done."""
        return self._service._cancel(self)


class ProcessingTimeService:
    """The timers of one operator. Confined to the mailbox thread, but for `current_processing_time`.

    1. A timer fires once, when the clock has come to its timestamp, in a mail of the executor's priority.
       Timers fire in the order of their timestamps, those of one timestamp in the order of registration.
    2. A mail fires no more than `timers_a_mail` and lets none begin after a millisecond; what else is due
       fires in another mail, behind those that wait. So checkpoints, watermarks and input wait for one timer
       and a millisecond at most, however many are due.
    3. What a timer raises is raised by its mail, and so ends the task.
    4. `quiesce` forgets what is not due, and lets what is due fire; `timers_done()` is done after the last of
       them. After `shutdown`, or after the mailbox was closed, nothing fires.

    executor: of the operator. clock: gives seconds, any thread. With a clock that has `on_advance`, as
    `pillarbox.testing.clocks.FakeClock` has, timers become due when the clock is moved, and no thread is
    started; otherwise one daemon thread on first use. The idea is Flink's `ProcessingTimeService`.
    """

    def __init__(
        self,
        executor: MailboxExecutor,
        clock: Callable[[], float],
        *,
        timers_a_mail: int = MAX_TIMERS_PER_MAIL,
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._timers_a_mail = timers_a_mail
        self._deadlines = Deadlines(clock=float)
        self._alarm = Alarm(self._put_mail, clock, "pillarbox-timers")
        self._mail_waits = self._quiesced = False
        self._running = 0
        self._done: Future[None] = Future()
        # So that nobody can cancel it.
        self._done.set_running_or_notify_cancel()

    def current_processing_time(self) -> float:
        """Read the clock, in seconds. Any thread."""
        return self._clock()

    def timers_done(self) -> Future[None]:
        """A future, always the same, that is done when, after `quiesce`, every timer that had begun is done.

        Any thread, but the mailbox thread must not wait for it: it runs the mail in which they fire.
        """
        return self._done

    def register_timer(self, timestamp: float, callback: Callable[[float], object]) -> Timer:
        """Have `callback(timestamp)` called when the clock has come to `timestamp`, in seconds.

        Mailbox thread. A moment that has passed fires as soon as its mail runs, never within this call.
        After `quiesce` the timer is done at once and never fires. Raises TypeError and ValueError for what is
        no finite number or not callable, `WrongThreadError` from another thread.
        """
        check_callable("callback", callback)
        timer = Timer(self, check_moment("timestamp", timestamp), callback)
        if self._quiesced:
            self._executor.mailbox.check_is_mailbox_thread()
            timer._callback = None
            return timer
        before = self._deadlines.next_deadline()
        timer._handle = self._deadlines.arm(max(timestamp, 0.0), timer)
        # The mail that waits will look at all of them.
        if not self._mail_waits and (before is None or timestamp < before):
            try:
                self._alarm.reset(timestamp)
            except BaseException:
                # Its thread did not start. Who asked for the timer hears of it, and has none.
                self._cancel(timer)
                raise
        return timer

    def quiesce(self) -> None:
        """Forget the timers that are not due, and take no new ones; what is due still fires. Idempotent."""
        self._executor.mailbox.check_is_mailbox_thread()
        if self._quiesced:
            return
        self._keep_what_is_due()
        # The alarm may have put a mail already, or be about to; one too many finds nothing to do.
        if self._deadlines and not self._put_mail():
            self._forget_all()
        self._resolve_if_done()

    def shutdown(self) -> None:
        """Forget every timer and end the thread: nothing fires after this. Idempotent."""
        self._executor.mailbox.check_is_mailbox_thread()
        self._quiesced = True
        self._forget_all()
        try:
            self._alarm.close()
        finally:
            self._resolve_if_done()

    def __len__(self) -> int:
        """Timers that wait. Any thread, as an estimate."""
        return len(self._deadlines)

    def _cancel(self, timer: Timer) -> bool:
        self._deadlines.cancel(timer._handle)
        was_done, timer._callback = timer.done, None
        self._resolve_if_done()
        return not was_done

    def _put_mail(self) -> bool:
        """Any thread; False once the mailbox takes no mail."""
        # Before the mail can run, which takes it back.
        self._mail_waits = True
        return self._executor.try_execute(self._fire, description="fire the timers that are due")

    def _fire(self) -> None:
        # spec: Yielding!Fired
        self._mail_waits = False
        begin = now = self._clock()
        timer = self._take_due(now)
        moment = self._deadlines.next_deadline()
        # Where the mailbox takes no mail any more all fire in this one.
        is_limited = True
        if moment is None or moment > now:
            self._alarm.reset(moment)
        else:
            is_limited = self._put_mail()
        if not is_limited:
            self._keep_what_is_due()
        left = self._timers_a_mail
        while timer is not None:
            callback, timer._callback = timer._callback, None
            assert callback is not None, "a timer that is done is not armed"
            self._running += 1
            try:
                callback(timer.timestamp)
            finally:
                self._running -= 1
                self._resolve_if_done()
            left -= 1
            now = self._clock()
            if is_limited and (left <= 0 or now - begin >= MAX_MAIL_S):
                # The alarm, or the mail that waits, goes on.
                return
            timer = self._take_due(now)

    def _take_due(self, now: float) -> Timer | None:
        first = self._deadlines.peek()
        if first is None or first[1] > now:
            return None
        timer: Timer = first[0]
        self._deadlines.cancel(timer._handle)
        return timer

    def _keep_what_is_due(self) -> None:
        self._quiesced = True
        now = self._clock()
        for timer in self._deadlines.clear():
            if timer.timestamp <= now:
                timer._handle = self._deadlines.arm(max(timer.timestamp, 0.0), timer)
            else:
                timer._callback = None

    def _forget_all(self) -> None:
        for timer in self._deadlines.clear():
            timer._callback = None

    def _resolve_if_done(self) -> None:
        if self._quiesced and not self._running and not self._deadlines and not self._done.done():
            self._done.set_result(None)
