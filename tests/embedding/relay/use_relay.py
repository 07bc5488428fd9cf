"""Uses the modules of this project: mails moved between mailboxes, and numbers posted without the GIL."""

from poster import post_up_to, sums
from relay import relay

from pillarbox.kernel import Mail, TaskMailbox

said: list[int] = []
source, target = TaskMailbox(), TaskMailbox()
source.put_all([Mail(said.append, n, urgent=n == 2) for n in range(3)])
assert relay(source, target) == (3, 1)
assert (len(source), len(target)) == (0, 3)
while (mail := target.try_take()) is not None:
    mail.run()
assert said == [2, 0, 1]

assert post_up_to(target, 100) == 100
assert target.run_batch() == 100
assert post_up_to(target, 10) == 10
del target, mail
assert sums() == (5050, 55)

refusal = ""
try:
    post_up_to("no mailbox", 1)
except TypeError as error:
    refusal = str(error)
assert refusal == "mailbox must be a TaskMailbox, not 'no mailbox'"
print("relay: done")
