# What other modules cimport: `cimport pillarbox.kernel`, or the module that has a layout by its own name.

from pillarbox.kernel.collector cimport Collector, CollectorFactory, collected_t
from pillarbox.kernel.deadlines cimport Deadlines
from pillarbox.kernel.handover cimport Handover
from pillarbox.kernel.mail cimport (
    DEFERRABLE, GREATEST_PRIORITY, LEAST_PRIORITY, PYTHON, URGENT, Mail, MailList, chain_t, mail_t
)
from pillarbox.kernel.mailbox cimport TaskMailbox
from pillarbox.kernel.mailbox_core cimport CLOSED, OPEN, QUIESCED, state_t
from pillarbox.kernel.queues cimport OrderedQueue, UnorderedQueue
from pillarbox.kernel.resultqueue cimport ResultQueue
