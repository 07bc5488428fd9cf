"""Reference models: what each operation of the kernel means, in plain Python and without the kernel.

A model is a value that never changes; an operation gives the model after it and the result. Any thread.
"""

from pillarbox.testing.models.handover import HandoverModel
from pillarbox.testing.models.mailbox import MailboxModel, choose
from pillarbox.testing.models.model import BLOCKED, Model, Raised, kind_of, outcome_of
from pillarbox.testing.models.queue import OrderedModel, QueueModel, UnorderedModel

__all__ = [
    "BLOCKED",
    "HandoverModel",
    "MailboxModel",
    "Model",
    "OrderedModel",
    "QueueModel",
    "Raised",
    "UnorderedModel",
    "choose",
    "kind_of",
    "outcome_of",
]
