"""Objects of the kernel in the words of the state graphs: what `spec.conformance` leads along the edges."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pillarbox.kernel import (
    WATERMARK,
    CapacityError,
    Handover,
    HandoverClosedError,
    Mail,
    MailboxClosedError,
    OrderedQueue,
    QueueClosedError,
    QueueRestoringError,
    TaskMailbox,
    UnorderedQueue,
)

MARK = 9


def nothing() -> None:
    """Do nothing: the body of a mail of these subjects."""


class MailboxSubject:
    """A TaskMailbox with four mails, by their numbers in `MailboxGraph`."""

    def __init__(self, backend: str) -> None:
        self.mailbox = TaskMailbox(urgent_burst=1, backend=backend)
        self.mails = {
            1: Mail(nothing),
            2: Mail(nothing, priority=1, deferrable=True),
            3: Mail(nothing, priority=1, urgent=True),
            4: Mail(nothing, urgent=True),
        }
        self.calls = 0
        mailbox = self.mailbox
        self.confined = (
            mailbox.try_take,
            lambda: mailbox.take(timeout=0),
            mailbox.create_batch,
            mailbox.try_take_from_batch,
            mailbox.has_mail,
            mailbox.drain,
            mailbox.close,
            lambda: mailbox.arm_wakeup(nothing),
        )

    def do(self, name: str, arguments: Any) -> Any:
        before = self.calls
        try:
            answer = self.answer(name, arguments)
        except MailboxClosedError:
            answer = "closed"
        except ValueError as error:
            if "waits in a mailbox already" not in str(error):
                raise
            answer = "waits already"
        return [answer, self.calls > before]

    def answer(self, name: str, arguments: Any) -> Any:
        method = getattr(self.mailbox, name)
        match name:
            case "put" | "try_put":
                answer = method(self.mails[arguments[0]])
            case "put_all":
                answer = method([self.mails[number] for number in arguments])
            case "take":
                answer = method(arguments[0], 0, skip_deferrable=arguments[1])
            case "try_take":
                answer = method(arguments[0], skip_deferrable=arguments[1])
            case "arm_wakeup":
                answer = method(self.called)
            case _:
                answer = method()
        return self.number(answer)

    def number(self, answer: Any) -> Any:
        if isinstance(answer, list):
            return [self.number(mail) for mail in answer]
        if isinstance(answer, Mail):
            return next(number for number, mail in self.mails.items() if mail is answer)
        return "none" if answer is None else answer

    def called(self) -> None:
        self.calls += 1

    def shown(self) -> Any:
        mailbox = self.mailbox
        return mailbox.state.name, len(mailbox), mailbox.has_mail(), mailbox.statistics().batch

    def expected(self, state: dict[str, Any]) -> Any:
        lanes = state["lanes"]
        count = len(lanes["urgent"]) + len(lanes["batch"]) + len(lanes["later"])
        return state["state"], count, count > 0, len(lanes["batch"])


class QueueSubject:
    """A result queue of capacity 3. A handle is, as in `ResultQueueGraph`, an element and its attempt."""

    def __init__(self, ordered: bool, owner_completes: bool = False) -> None:
        self.queue = (OrderedQueue if ordered else UnorderedQueue)(3, owner_completes=owner_completes)
        self.handles: dict[tuple[int, int], int] = {}
        self.attempts: Counter[int] = Counter()
        queue = self.queue
        self.confined = (
            lambda: queue.put(1),
            lambda: queue.put_watermark(1),
            lambda: queue.renew(0),
            queue.has_completed,
            queue.emit,
            queue.emit_many,
            queue.snapshot,
            lambda: queue.restore([]),
            queue.admit_restored,
            queue.clear,
            queue.close,
            *([lambda: queue.complete(0, 1)] if owner_completes else []),
        )

    def given(self, element: int, handle: int) -> list[int]:
        self.attempts[element] += 1
        self.handles[element, self.attempts[element]] = handle
        return [element, self.attempts[element]]

    def do(self, name: str, arguments: Any) -> Any:
        try:
            return self.answer(name, arguments)
        except CapacityError:
            return "full"
        except QueueClosedError:
            return "closed"
        except QueueRestoringError:
            return "restoring"

    def answer(self, name: str, arguments: Any) -> Any:
        queue = self.queue
        match name:
            case "put":
                return self.given(arguments[0], queue.put(arguments[0]))
            case "put_watermark":
                queue.put_watermark(arguments[0])
                return "none"
            case "renew":
                return self.renew(*arguments)
            case "complete":
                return queue.complete(self.handles[tuple(arguments)], arguments[1])
            case "emit":
                pair = queue.emit()
                return "none" if pair is None else self.pair(pair)
            case "emit_many":
                return [self.pair(pair) for pair in queue.emit_many(arguments[0])]
            case "snapshot":
                return [self.entry(entry) for entry in queue.snapshot(arguments)]
            case "restore":
                return self.restore(arguments)
            case "admit_restored":
                admitted = queue.admit_restored()
                return "none" if admitted is None else self.given(admitted[1], admitted[0])
            case "has_completed":
                return queue.has_completed()
            case _:
                return getattr(queue, name)()

    def renew(self, element: int, attempt: int) -> Any:
        try:
            return self.given(element, self.queue.renew(self.handles[element, attempt]))
        except ValueError as error:
            if "present attempt" not in str(error):
                raise
            return "stale"

    def restore(self, triples: Any) -> str:
        entries = [
            (WATERMARK, True, element) if element == MARK else (element, done, result if done else None)
            for element, done, result in triples
        ]
        try:
            self.queue.restore(entries)
        except ValueError as error:
            said = str(error)
            return next(word for word in ("closed", "restoring", "empty") if word in said).replace(
                "empty", "not empty"
            )
        return "none"

    def pair(self, pair: tuple[Any, Any]) -> list[Any]:
        return [pair[1]] if pair[0] is WATERMARK else list(pair)

    def entry(self, entry: tuple[Any, bool, Any]) -> list[Any]:
        element, finished, result = entry
        return [MARK if element is WATERMARK else element, finished, 0 if result is None else result]

    def shown(self) -> Any:
        queue = self.queue
        return len(queue), queue.in_flight, queue.restoring, list(map(self.entry, queue.snapshot()))

    def expected(self, state: dict[str, Any]) -> Any:
        held, rest = state["queue"], state["rest"]
        entries = [[entry["pos"], entry["done"], entry["result"]] for entry in [*held, *rest]]
        return len(held), sum(not entry["done"] for entry in held), len(rest), entries


class HandoverSubject:
    """A hand-over of 2 items and 3 bytes. An item is the number of its bytes."""

    confined = ()

    def __init__(self) -> None:
        self.handover = Handover(2, 3)
        self.called = "nobody"

    def do(self, name: str, arguments: Any) -> Any:
        self.called = "nobody"
        try:
            answer = self.answer(name, arguments)
        except HandoverClosedError as error:
            answer = "raises" if "put" in name else "closed" if "closed" in str(error) else "ended"
        except OSError:
            answer = "failure"
        return ["none" if answer is None else answer, self.called]

    def answer(self, name: str, arguments: Any) -> Any:
        handover = self.handover
        match name:
            case "put":
                return handover.put(arguments[0], arguments[0], 0)
            case "try_put":
                return handover.try_put(arguments[0], arguments[0])
            case "fail":
                return handover.fail(OSError("the input has failed"))
            case "take_at_once":
                return handover.take(0)
            case "arm_wakeup_producer":
                return handover.arm_wakeup_producer(self.call_producer, arguments[0])
            case "arm_wakeup_consumer":
                return handover.arm_wakeup_consumer(self.call_consumer)
            case _:
                return getattr(handover, name)()

    def call_producer(self) -> None:
        self.called = "producer"

    def call_consumer(self) -> None:
        self.called = "consumer"

    def shown(self) -> Any:
        counts = self.handover.statistics()
        return len(self.handover), counts.nbytes, self.handover.ended

    def expected(self, state: dict[str, Any]) -> Any:
        items = state["items"]
        return len(items), sum(items), not items and state["end"] != "running"
