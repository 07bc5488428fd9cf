"""A mailbox in a storm: many producers, urgent mail, mails that raise, finalizers that put, signals, and
consumers that die.
"""

import contextlib
import random
import threading
from collections.abc import Callable

import pytest

from pillarbox.kernel import Mail, MailboxClosedError, TaskMailbox
from tests.kernel.test_mailbox_threads import run_script, run_together

pytestmark = pytest.mark.usefixtures("each_backend", "short_switches")

MAILS = 1920  # of all producers together


class PoisonError(Exception):
    """Raised by some mails."""


class Storm:
    """Producers that put their share, some of it urgent, some of it raising, until they are refused."""

    def __init__(self, mailbox: TaskMailbox, producers: int, seed: int) -> None:
        self.mailbox = mailbox
        self.each = MAILS // producers
        self.accepted = [0] * producers
        self.came: list[tuple[bool, int, int]] = []  # urgent, producer, number
        self.random = random.Random(seed)
        self.threads = run_together(*[self.producer(producer) for producer in range(producers)])

    def producer(self, producer: int) -> Callable[[], None]:
        mine = random.Random(self.random.random())

        def produce() -> None:
            for number in range(self.each):
                urgent = mine.random() < 0.5
                arguments = (urgent, producer, number)
                if not self.mailbox.try_put(Mail(self.arrive, arguments, urgent=urgent)):
                    return
                self.accepted[producer] += 1

        return produce

    def arrive(self, arguments: tuple[bool, int, int]) -> None:
        self.came.append(arguments)
        if arguments[2] % 13 == 0:
            raise PoisonError(arguments)

    def consume(self, most: int) -> None:
        """Takes in all ways until so many have come; what a mail raises ends nothing."""
        while len(self.came) < most:
            try:
                if self.random.random() < 0.5:
                    mail = self.mailbox.take(timeout=30)
                    assert mail is not None
                    mail.run()
                else:
                    self.mailbox.run_batch(1 + self.random.randrange(20))
            except PoisonError:
                pass

    def check(self) -> None:
        """Everything accepted has come, once; what one producer puts of one kind in its order."""
        for thread in self.threads:
            thread.join()
        for producer, accepted in enumerate(self.accepted):
            mine = [(urgent, number) for urgent, who, number in self.came if who == producer]
            assert sorted(number for _, number in mine) == list(range(accepted))
            for kind in (True, False):
                numbers = [number for urgent, number in mine if urgent == kind]
                assert numbers == sorted(numbers)
        assert self.mailbox.statistics().put == sum(self.accepted)


@pytest.fixture(params=[1, 2, 4, 8, 64])
def producers(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


@pytest.mark.contract("Mail that many producers put at once comes out once.")
def test_a_storm_that_is_used_up_comes_out_once(producers: int) -> None:
    storm = Storm(TaskMailbox(urgent_burst=3), producers, seed=1)
    storm.consume(MAILS)
    storm.check()
    assert sum(storm.accepted) == MAILS


def test_what_a_storm_puts_before_a_quiesce_comes_out_once(producers: int) -> None:
    mailbox = TaskMailbox(urgent_burst=3)
    storm = Storm(mailbox, producers, seed=2)
    storm.consume(MAILS // 3)
    mailbox.quiesce()
    while True:
        try:
            storm.consume(MAILS)
            break
        except MailboxClosedError:
            if not mailbox.has_mail():
                break
    storm.check()


@pytest.mark.contract("Mail that many producers put before a close comes out or is returned, once.")
def test_what_a_storm_puts_before_a_close_comes_out_or_is_returned_once(producers: int) -> None:
    mailbox = TaskMailbox(urgent_burst=3)
    storm = Storm(mailbox, producers, seed=3)
    storm.consume(MAILS // 3)
    storm.came += [mail.args[0] for mail in mailbox.close()]
    storm.check()


@pytest.mark.contract
def test_another_thread_goes_on_where_a_consumer_died(producers: int) -> None:
    mailbox = TaskMailbox(urgent_burst=3)
    storm = Storm(mailbox, producers, seed=4)
    last: threading.Thread | None = None

    def consume_and_die(before: threading.Thread | None) -> None:
        mailbox.adopt(ended=before)
        with contextlib.suppress(PoisonError):
            while len(storm.came) < MAILS // 2:
                mailbox.run_batch()

    deaths = 0
    while len(storm.came) < MAILS // 2:
        consumer = threading.Thread(target=consume_and_die, args=(last,))
        consumer.start()
        consumer.join()
        last = consumer
        deaths += 1
    mailbox.adopt(ended=last)
    storm.consume(MAILS)
    storm.check()
    assert deaths > 10


@pytest.mark.contract
def test_urgent_mail_without_end_does_not_keep_ordinary_mail_waiting() -> None:
    mailbox, burst = TaskMailbox(urgent_burst=5), 5
    over = threading.Event()
    mailbox.put_all(Mail(int) for _ in range(50))

    def flood() -> None:
        while not over.is_set():
            if len(mailbox) < 500:
                mailbox.put_all(Mail(int, urgent=True) for _ in range(20))

    threads = run_together(flood, flood)
    came: list[Mail] = []
    for _ in range(50):
        for _ in range(burst + 1):
            mail = mailbox.try_take()
            assert mail is not None
            came.append(mail)
            if not mail.urgent:
                break
        assert not came[-1].urgent
    over.set()
    for thread in threads:
        thread.join()
    mailbox.close()


class PutsWhenReleased:
    """Puts a mail when the last reference to it goes, in whatever thread that is."""

    def __init__(self, mailbox: TaskMailbox, said: list[bool]) -> None:
        self.mailbox, self.said = mailbox, said

    def __del__(self) -> None:
        self.said.append(self.mailbox.try_put(Mail(int)))


def test_finalizers_that_put_while_mail_is_released_in_several_threads() -> None:
    mailbox, said, producers, each = TaskMailbox(), list[bool](), 4, 500

    def produce() -> None:
        for _ in range(each):
            # Refused mails are released here, the others by the consumer, or by close.
            mailbox.try_put(Mail(id, (PutsWhenReleased(mailbox, said),)))

    threads = run_together(*[produce for _ in range(producers)])
    taken = 0
    while taken < producers * each // 2:
        mail = mailbox.take(timeout=30)
        assert mail is not None
        taken += 1
        del mail
    returned = len(mailbox.close())
    for thread in threads:
        thread.join()
    assert len(said) == producers * each
    assert mailbox.statistics().put == taken + returned
    assert len(mailbox) == 0


@pytest.mark.contract
def test_signals_among_waits_and_puts_lose_nothing(request: pytest.FixtureRequest) -> None:
    backend = request.node.callspec.params["each_backend"]
    script = f"""
import signal, threading, time
from pillarbox.kernel import Mail, TaskMailbox
mailbox, signals, came = TaskMailbox(backend={backend!r}), 0, 0
def handle(*_):
    global signals
    signals += 1
    mailbox.put(Mail(int))
def produce():
    for _ in range(100):
        mailbox.put(Mail(int))
        idle.wait(0.001)
idle = threading.Event()
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
threads = [threading.Thread(target=produce) for _ in range(3)]
for thread in threads:
    thread.start()
while came < 300 or signals < 20:
    assert mailbox.take(timeout=30) is not None
    came += 1
signal.setitimer(signal.ITIMER_REAL, 0)
for thread in threads:
    thread.join()
came += len(mailbox.drain())
assert came == 300 + signals == mailbox.statistics().put, (came, signals, mailbox.statistics())
print("ok")
"""
    done = run_script(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
