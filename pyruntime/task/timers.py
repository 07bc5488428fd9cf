"""Processing-time timers of one operator: registered on the mailbox thread, fired there, as mail.

Only the clock is read elsewhere: an alarm puts the mail in which everything that is due then fires.
Confined to the mailbox thread, on which the service is made; `current_processing_time` and
`timers_done` are for any thread.
"""

# Why timers fire in mail, and not in the thread of the alarm. A callback touches the operator's state,
# which belongs to the mailbox thread; in another thread it would need a lock around everything.
#
# Why not one mail for each timer. A hundred thousand windows that end together would be as many mails, each
# with its own look at the clock, and a checkpoint put meanwhile would wait behind all of them. Why not one
# mail for all that are due: the same checkpoint would wait for all of them as well. So a mail fires some,
# and what is left is mail again, behind what has come meanwhile.
#
# Why that mail is deferrable, and only for a while. An operator that yields waits for something that is
# usually not a timer, and sees it sooner if timers stand back. If it does wait for a timer, which nobody
# can know, it must get there too: after 5 ms the alarm puts the mail that is not deferrable.
#
# Why the deadlines have a clock that stands still. `Deadlines` takes lengths; with a clock at 0 a length is
# a moment, so that timers of one timestamp are of one length and cost a constant, whenever they were
# registered.
#
# Why what comes next is settled before the first timer of a mail is called (`_prepare`). A callback may
# yield, and the timers that are due meanwhile must fire in that yield; were the alarm set afterwards, it
# would not ring until the callback had returned.

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from pillarbox.kernel import Deadlines
from pillarbox.mailbox.executor import MailboxExecutor
from pillarbox.task.alarm import Alarm
from pillarbox.validate import check_callable, check_moment, check_positive_int

MAX_TIMERS_PER_MAIL = 64
"""Timers that fire in one mail at most."""
MAX_MAIL_S = 0.001
"""Seconds after which a mail lets no further timer begin."""
MAX_DEFERRAL_S = 0.005
"""Seconds for which yields may skip the timers that are due and have not begun."""


NOT_ARMED = -1
"""A handle that names no timer of the kernel's `Deadlines`."""


def monotonic_epoch() -> Callable[[], float]:
    """A clock that never goes back: the seconds since the epoch, counted on by the monotonic clock."""
    return partial(_since, time.time() - time.monotonic())


def _since(start: float) -> float:
    return start + time.monotonic()


class Timer:
    """Calls `callback(timestamp)` on the mailbox thread when the service's clock has come to `timestamp`.

    Made by `ProcessingTimeService.register_timer`.
    """

    __slots__ = ("_callback", "_handle", "_service", "_timestamp")

    def __init__(
        self, service: ProcessingTimeService, timestamp: float, callback: Callable[[float], object]
    ) -> None:
        self._service = service
        self._timestamp = timestamp
        self._callback: Callable[[float], object] | None = callback
        self._handle = NOT_ARMED

    @property
    def timestamp(self) -> float:
        """The moment at which it fires, or has fired, in seconds on the service's clock. Any thread."""
        return self._timestamp

    @property
    def done(self) -> bool:
        """True if no call will begin: it has begun, was cancelled, or the service has ended. Any thread."""
        return self._callback is None

    def cancel(self) -> bool:
        """Have it not fire any more. Mailbox thread.

        Returns False, without effect, if it was done. Raises `WrongThreadError` from another thread.
        """
        return self._service._cancel(self)

    def __repr__(self) -> str:
        state = "done" if self.done else "waits"
        return f"<{type(self).__name__} at {self._timestamp!r} s, {state}>"


class ProcessingTimeService:
    """The timers of one operator. Confined to the mailbox thread, on which it is made.

    1. A timer fires once, when the clock has come to its timestamp, in a mail of the executor's priority.
       Timers fire in the order of their timestamps, those of one timestamp in the order of registration.
    2. A mail fires no more than `timers_a_mail` timers and lets none begin after a millisecond; what else is
       due fires in another mail, behind those that wait. So checkpoints, watermarks and input wait for one
       timer and a millisecond at most, however many are due.
    3. That other mail alone is deferrable, so a yield that does not ask for such mail skips it, and sees at
       once what it waits for; but no longer than 5 ms. So an operator that yields until a timer has
       fired, in a timer too, gets there, however many are due.
    4. What a timer raises is raised by its mail, and so ends the task; so does a clock that raises.
    5. `quiesce` forgets what is not due, and lets what is due fire; `timers_done()` is done after the last of
       them. Ask for it while the mailbox still accepts mail.
    6. After `shutdown`, or after the mailbox was closed, nothing fires.

    executor: of the operator; the mail has its priority. clock: gives seconds, 0 or more, any thread; None
    is `monotonic_epoch()`. With a clock that has `on_advance`, as `pillarbox.testing.clocks.FakeClock` has,
    timers become due when the clock is moved, and no thread is started; otherwise one daemon thread, called
    `name`, on first use.

    Raises ValueError for a clock that reads less than 0, and for `timers_a_mail` below 1. The idea is Flink's
    `ProcessingTimeService`.
    """

    __slots__ = (
        "_alarm",
        "_alarm_at",
        "_clock",
        "_deadlines",
        "_done",
        "_executor",
        "_quiesced",
        "_rest_waits",
        "_running",
        "_timers_a_mail",
    )

    def __init__(
        self,
        executor: MailboxExecutor,
        clock: Callable[[], float] | None = None,
        *,
        timers_a_mail: int = MAX_TIMERS_PER_MAIL,
        name: str = "pillarbox-timers",
    ) -> None:
        check_positive_int("timers_a_mail", timers_a_mail)
        self._clock = monotonic_epoch() if clock is None else clock
        check_callable("clock", self._clock)
        now = check_moment("clock()", self._clock())
        if now < 0.0:
            raise ValueError(f"clock={clock!r}: reads {now!r}, must read 0 or more")
        self._executor = executor
        self._timers_a_mail = timers_a_mail
        # Their own clock stands at 0, so that a length is a moment, exact to the bit; and timers of one
        # timestamp, such as the end of a window, share a lane, whenever they were registered.
        self._deadlines = Deadlines(clock=float)
        self._alarm = Alarm(self._put_mail, self._clock, name)
        self._alarm_at: float | None = None
        self._rest_waits = False
        self._running = 0
        self._quiesced = False
        self._done: Future[None] = Future()
        # So that nobody can cancel it.
        self._done.set_running_or_notify_cancel()

    # -- any thread ---------------------------------------------------------------------------

    def current_processing_time(self) -> float:
        """Read the clock, in seconds. Any thread."""
        return self._clock()

    def timers_done(self) -> Future[None]:
        """A future, always the same, that is done when, after `quiesce`, every timer that had begun is done.

        Any thread, but the mailbox thread must not wait for it: it runs the mail in which they fire.
        """
        return self._done

    # -- mailbox thread -----------------------------------------------------------------------

    def register_timer(self, timestamp: float, callback: Callable[[float], object]) -> Timer:
        """Have `callback(timestamp)` called when the clock has come to `timestamp`, in seconds.

        Mailbox thread. A moment that has passed fires as soon as its mail runs, never within this call.
        After `quiesce` the timer is done at once and never fires. Raises TypeError and ValueError for what is
        no finite number or not callable, `WrongThreadError` from another thread.
        """
        check_callable("callback", callback)
        timer = Timer(self, check_moment("timestamp", timestamp), callback)
        self._arm(timer)
        return timer

    def quiesce(self) -> None:
        """Forget the timers that are not due, and take no new ones; what is due still fires. Mailbox thread.

        Idempotent. Raises `WrongThreadError` from another thread.
        """
        self._check_thread()
        if self._quiesced:
            return
        self._keep_what_is_due()
        # The alarm may have put a mail already, or be about to; one too many finds nothing to do.
        if self._deadlines and not self._rest_waits and not self._put_mail():
            self._forget_all()
        self._resolve_if_done()

    def shutdown(self) -> None:
        """Forget every timer and end the thread: nothing fires after this. Mailbox thread. Idempotent.

        Raises `WrongThreadError` from another thread.
        """
        self._check_thread()
        self._quiesced = True
        self._forget_all()
        try:
            self._alarm.close()
        finally:
            self._resolve_if_done()

    def __len__(self) -> int:
        """Timers that wait. Any thread, as an estimate."""
        return len(self._deadlines)

    # -- inside -------------------------------------------------------------------------------

    def _arm(self, timer: Timer) -> None:
        if self._quiesced:
            self._check_thread()
            _end(timer)
            return
        moment = max(timer._timestamp, 0.0)
        timer._handle = self._deadlines.arm(moment, timer)
        try:
            # The alarm may stand for later by now. What is due waits with the rest, but no longer.
            if self._rest_waits and moment <= (now := self._clock()):
                moment = now + MAX_DEFERRAL_S
            self._bring_forward(moment)
        except BaseException:
            # The clock, or the thread that did not start. Who asked for the timer hears of it, and has none.
            self._deadlines.cancel(timer._handle)
            _end(timer)
            raise

    def _cancel(self, timer: Timer) -> bool:
        self._check_thread()
        if timer._callback is None:
            return False
        self._deadlines.cancel(timer._handle)
        _end(timer)
        self._resolve_if_done()
        return True

    def _check_thread(self) -> None:
        # The deadlines belong to the same thread, and raise the right error elsewhere.
        self._deadlines.cancel(NOT_ARMED)

    def _bring_forward(self, moment: float) -> None:
        if self._alarm_at is None or moment < self._alarm_at:
            self._alarm.bring_forward(moment)
            self._alarm_at = moment

    def _put_mail(self) -> bool:
        """Any thread; False once the mailbox takes no mail."""
        return self._executor.try_execute(self._fire, description="fire the timers that are due")

    def _put_rest(self) -> bool:
        """False once the mailbox takes no mail."""
        self._rest_waits = self._rest_waits or self._executor.try_execute(
            self._fire_rest, description="fire the rest of the timers that are due", deferrable=True
        )
        return self._rest_waits

    def _fire(self) -> None:
        """The mail of the alarm, which rings no more before this has set it again."""
        now = self._clock()
        timer, moment, accepted = self._prepare(now)
        self._alarm_at = moment
        self._alarm.reset(moment)
        self._call_due(timer, now, accepted)

    def _fire_rest(self) -> None:
        """The mail for what another one has left."""
        self._rest_waits = False
        now = self._clock()
        timer, moment, accepted = self._prepare(now)
        # If the alarm has rung meanwhile, its own mail sets it.
        if moment is not None:
            self._bring_forward(moment)
        self._call_due(timer, now, accepted)

    def _prepare(self, now: float) -> tuple[Timer | None, float | None, bool]:
        """The first timer that is due, the moment of the alarm, and whether there will be mail for the rest.

        What comes next is settled before the first call, for a call may yield, and then others must fire.
        """
        timer = self._take_due(now)
        moment = self._deadlines.next_deadline()
        if moment is None or moment > now:
            return timer, moment, True
        if self._put_rest():
            return timer, now + MAX_DEFERRAL_S, True
        self._keep_what_is_due()
        return timer, None, False

    def _take_due(self, now: float) -> Timer | None:
        first = self._deadlines.peek()
        if first is None or first[1] > now:
            return None
        timer: Timer = first[0]
        self._deadlines.cancel(timer._handle)
        timer._handle = NOT_ARMED
        return timer

    def _call_due(self, timer: Timer | None, begin: float, limited: bool) -> None:
        """Call `timer` and those that are due after it; if `limited`, leave some of them to the next mail."""
        left = self._timers_a_mail
        while timer is not None:
            self._call(timer)
            now = self._clock()
            left -= 1
            if limited and (left <= 0 or now - begin >= MAX_MAIL_S):
                return
            timer = self._take_due(now)

    def _call(self, timer: Timer) -> None:
        callback = timer._callback
        assert callback is not None, "a timer that is done is not armed"
        _end(timer)
        self._running += 1
        try:
            callback(timer._timestamp)
        finally:
            self._running -= 1
            if self._quiesced:
                self._resolve_if_done()

    def _keep_what_is_due(self) -> None:
        self._quiesced = True
        now = self._clock()
        for timer in self._deadlines.clear():
            if timer._timestamp <= now:
                timer._handle = self._deadlines.arm(max(timer._timestamp, 0.0), timer)
            else:
                _end(timer)

    def _forget_all(self) -> None:
        for timer in self._deadlines.clear():
            _end(timer)

    def _resolve_if_done(self) -> None:
        if self._quiesced and not self._running and not self._deadlines and not self._done.done():
            self._done.set_result(None)


def _end(timer: Timer) -> None:
    timer._callback = None
    timer._handle = NOT_ARMED
