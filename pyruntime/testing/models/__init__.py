"""Reference models: what each operation of the kernel means, in plain Python and without the kernel.

A model is a value that never changes; an operation gives the model after it and the result. Any thread.
"""

from pillarbox.testing.models.handover import HandoverModel
from pillarbox.testing.models.mailbox import MailboxModel, choose
from pillarbox.testing.models.model import Model
from pillarbox.testing.models.ordered import OrderedModel
from pillarbox.testing.models.queue import QueueModel
from pillarbox.testing.models.unordered import UnorderedModel

__all__ = [
    "HandoverModel",
    "MailboxModel",
    "Model",
    "OrderedModel",
    "QueueModel",
    "UnorderedModel",
    "choose",
]
