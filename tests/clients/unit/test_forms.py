"""The search for the form that a service answers in, call by call."""

from __future__ import annotations

import asyncio
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from pillarbox.clients.forms import IN_VAIN, LOOK_AFTER, SUSPECT_AFTER, Forms
from pillarbox.clients.transport import HttpStatusError
from tests.search import examples

KINDS = ("json_schema", "json_object", "prompt")
REFUSED = HttpStatusError("no", 400, {}, b"{}")


def test_looks_become_rarer_while_they_find_nothing() -> None:
    async def job() -> list[int]:
        forms = Forms(KINDS, first_look=1)
        forms.answered(1)
        looks = []
        for row in range(3 * LOOK_AFTER + 2):
            walk = forms.walk()
            if walk.form == 0:
                looks.append(row)
                assert await walk.refused(REFUSED) is None
            assert walk.form == 1
            walk.answered()
            walk.end()
        return looks

    assert asyncio.run(job()) == [0, LOOK_AFTER, 3 * LOOK_AFTER]


def test_a_call_that_leads_and_is_cancelled_leaves_it_to_the_next() -> None:
    async def job() -> None:
        forms = Forms(KINDS, first_look=1)
        first, second = forms.walk(), forms.walk()
        assert await first.refused(REFUSED) is None
        waiting = asyncio.ensure_future(second.refused(REFUSED))
        await asyncio.sleep(0)
        assert not waiting.done()
        first.end()
        assert await waiting is None
        assert second.form == 1
        second.answered()
        second.end()
        assert (forms.known, forms.leader) == (1, None)

    asyncio.run(job())


def test_calls_on_another_loop_do_not_wait() -> None:
    forms = Forms(KINDS, first_look=1)
    began, ended = threading.Event(), threading.Event()

    async def lead() -> None:
        walk = forms.walk()
        assert await walk.refused(REFUSED) is None
        began.set()
        await asyncio.to_thread(ended.wait)
        walk.end()

    async def follow() -> int:
        walk = forms.walk()
        assert await walk.refused(REFUSED) is None
        walk.end()
        return walk.form

    thread = threading.Thread(target=asyncio.run, args=(lead(),))
    thread.start()
    assert began.wait(30)
    try:
        assert asyncio.run(follow()) == 1
    finally:
        ended.set()
        thread.join()


def test_a_form_that_was_forgotten_leaves_the_row_to_the_known_one() -> None:
    async def job() -> None:
        forms = Forms(KINDS, first_look=1)
        late = forms.walk()
        forms.answered(2)
        assert await late.refused(REFUSED) is None
        assert late.form == 2
        # It is the row, then, and this is its error.
        own = HttpStatusError("too long", 400, {}, b"{}")
        assert await late.refused(own) is own

    asyncio.run(job())


def refusal(words: bytes, status: int = 400) -> HttpStatusError:
    return HttpStatusError("no", status, {}, b'{"error": {"message": "%s"}}' % words)


def test_where_forms_are_refused_for_several_causes_the_last_one_is_told() -> None:
    async def job() -> None:
        walk = Forms(("base64", "float")).walk()
        assert await walk.refused(refusal(b"no base64")) is None
        own = refusal(b"too long")
        assert await walk.refused(own) is own

    asyncio.run(job())


def test_an_overload_in_a_form_is_the_error_of_the_call() -> None:
    async def job() -> None:
        walk = Forms(KINDS).walk()
        assert await walk.refused(REFUSED) is None
        overload = refusal(b"slow down", 429)
        assert await walk.refused(overload) is overload

    asyncio.run(job())


def test_a_form_that_worked_and_is_given_up_has_the_better_ones_tried_too() -> None:
    async def job() -> None:
        forms = Forms(KINDS)
        forms.answered(2)
        for time in range(SUSPECT_AFTER):
            walk = forms.walk()
            assert walk.form == 2
            assert (await walk.refused(REFUSED) is None) == (time == SUSPECT_AFTER - 1)
        assert walk.form == 0
        walk.answered()
        assert forms.known == 0

    asyncio.run(job())


def test_a_form_given_up_that_others_do_not_replace_is_not_walked_from_for_each_call() -> None:
    async def job() -> int:
        forms = Forms(KINDS)
        forms.answered(0)
        asked = 0
        for _ in range(100):
            walk, failed = forms.walk(), None
            while failed is None:
                asked += 1
                failed = await walk.refused(REFUSED)
            walk.end()
        return asked

    # Of those that are in vain each eighth goes through all three.
    assert asyncio.run(job()) <= 100 + 2 * (IN_VAIN + 100 // 8 + 1)


def test_a_form_that_is_ignored_is_gone_on_from_and_not_begun_with() -> None:
    forms = Forms(("float16", "base64", "float"))
    for _ in range(2):
        walk = forms.walk()
        assert (walk.form, walk.ignored(), walk.form) == (0, True, 1)
    assert forms.walk().form == 1


def test_an_error_that_was_paid_for_is_no_refusal() -> None:
    async def job() -> None:
        paid = refusal(b"response_format")
        paid.usage = 1.0  # type: ignore[attr-defined]
        assert await Forms(KINDS).walk().refused(paid) is paid

    asyncio.run(job())


@settings(max_examples=examples(200), deadline=None)
@given(
    # What the service does in each form, by 10 calls: obeys, ignores or refuses it.
    does=st.lists(
        st.tuples(*[st.sampled_from(["obeys", "refuses", "ignores"])] * 2, st.sampled_from(["obeys"])),
        min_size=1,
        max_size=5,
    ),
    bad=st.sets(st.integers(0, 49)),
    at_once=st.integers(1, 8),
    first_look=st.sampled_from([1, 2, LOOK_AFTER]),
)
def test_each_good_call_is_answered_but_few_that_are_refused_in_a_form_that_worked(
    does: list[tuple[str, ...]], bad: set[int], at_once: int, first_look: int
) -> None:
    forms = Forms(KINDS, first_look=first_look)
    lost: list[int] = []
    asked = 0

    async def call(number: int) -> None:
        nonlocal asked
        walk = forms.walk()
        try:
            while True:
                asked += 1
                await asyncio.sleep(0)
                what = does[number // 10 % len(does)][walk.form]
                if what == "ignores" and number not in bad:
                    if not walk.ignored():
                        lost.append(number)
                        return
                elif what == "obeys" and number not in bad:
                    walk.answered()
                    return
                else:
                    words = b"no such form" if what == "refuses" else b"too long"
                    if await walk.refused(refusal(words)) is not None:
                        lost.append(number)
                        return
        finally:
            walk.end()

    async def job() -> None:
        for first in range(0, 50, at_once):
            await asyncio.gather(*(call(number) for number in range(first, min(50, first + at_once))))

    asyncio.run(job())
    assert bad <= set(lost)
    if len(does) == 1:
        assert set(lost) == bad
    # Three in a row, each time that the service becomes another one; and calls that were in flight then.
    assert len(set(lost) - bad) <= (len(does) > 1) * 5 * (SUSPECT_AFTER + at_once)
    assert asked <= 50 * (len(KINDS) + 1)
