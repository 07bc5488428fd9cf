/*
 * Mailboxes and result queues for native code: threads that put and take mail, and that complete calls, without the
 * GIL, in C99 and in C++17.
 *
 * All is reached through one table of functions, so a module links with nothing: `pillarbox_import()` finds
 * the table, once, with the GIL held; then `pillarbox_api->put(mailbox, &mail)`. Both are there if Python.h
 * was included before; each file that includes this one has a `pillarbox_api` of its own. A file without
 * Python.h is given the table by another.
 *
 * No function needs the GIL, nor minds it, unless it says so here. "any" marks what any thread may call;
 * the rest is for the thread that consumes, one at a time. What is null or freed is not looked for. Nothing
 * here knows of forks: the child of one must make its own mailboxes.
 */
#ifndef PILLARBOX_H
#define PILLARBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of the interface below. A greater minor version has more functions, at the end of the table. */
#define PILLARBOX_VERSION_MAJOR 1
#define PILLARBOX_VERSION_MINOR 2

#if defined(_MSC_VER)
#define PILLARBOX_ALIGNED __declspec(align(16))
#else
#define PILLARBOX_ALIGNED __attribute__((aligned(16)))
#endif

/* How producers meet the consumer. The one with a mutex is in builds for tests only, as an oracle. */
enum { PILLARBOX_LOCK_FREE = 0, PILLARBOX_MUTEX = 1 };

/* Bits of a mail's flags. */
enum {
    PILLARBOX_URGENT = 1,    /* taken before all that are not urgent */
    PILLARBOX_DEFERRABLE = 2 /* skipped by a take that asks for that */
};

/* The least priority. A take that names it accepts every mail. */
enum { PILLARBOX_MIN_PRIORITY = -1 };

/* The states of a mailbox, which follow each other, and what a put answers: OPEN says that the mail is in. */
enum {
    PILLARBOX_OPEN = 0,
    PILLARBOX_QUIESCED = 1,
    PILLARBOX_CLOSED = 2,
    PILLARBOX_WAITS = 3, /* refused: the mail waits in a mailbox, or was taken and not let go of */
    PILLARBOX_NO_MEMORY = -1,
    PILLARBOX_INVALID = -2 /* refused: no function, a priority below the least, flags not named above, or an address */
};

/*
 * A mail, to be embedded in whatever it is about. It belongs to the mailbox from a put that is accepted
 * until `fn` is called, or until `release`; nobody else touches it then. Only `fn`, `priority` and `flags`
 * are for reading, and `next` in a chain from `close`. Aligned to sixteen bytes, as malloc does it on 64-bit
 * machines, at an address of 48 bits, as systems give it unless a program asks for others; anything else is
 * PILLARBOX_INVALID.
 *
 * `fn` is called once for each put that was accepted, if there is no `release`: with `run` to do the work, or
 * without it to let go, because the mailbox was closed or the mail dropped. Whoever runs or drops the mail
 * calls it; Python does so with the GIL held. It throws nothing. It may put the mail again, or free it.
 */
typedef struct PILLARBOX_ALIGNED pillarbox_mail {
    struct pillarbox_mail *next;
    void (*fn)(struct pillarbox_mail *mail, bool run);
    uint64_t number;
    int priority;
    unsigned char flags;
    unsigned char queued;
} pillarbox_mail;

typedef struct pillarbox_mailbox pillarbox_mailbox;

struct _object; /* PyObject */

/* Who consumes a Python TaskMailbox, from begin_consuming to end_consuming. */
typedef struct pillarbox_consumer {
    struct _object *mailbox;
    unsigned long owner; /* the number of the thread that was the mailbox thread before */
} pillarbox_consumer;

/* A result queue: entries go in when their calls begin, and come out with their results, bounded in number, in the
 * order of the puts or as they finish. One thread, the owner, puts and emits; any thread completes. Elements
 * and results are pointers that the queue owns from the call that takes them in to the call that hands them out. A
 * result is an even address; null is one, too. An odd one is refused as if it came too late. */
typedef struct pillarbox_queue pillarbox_queue;

enum { PILLARBOX_MAX_CAPACITY = 16777216 };

typedef struct pillarbox_pair {
    void *element;
    void *result;
} pillarbox_pair;

/* The collector of one call, for one completion by native code. */
typedef struct pillarbox_collector pillarbox_collector;

typedef struct pillarbox_functions {
    int version_major;
    int version_minor;
    size_t size;      /* of this struct */
    size_t mail_size; /* of a mail */

    /* any. A mailbox that only native code knows; `urgent_burst`, at least 1, is how many urgent mails in a
     * row come before one that is not. Null: no memory, or a bad argument. */
    pillarbox_mailbox *(*create)(int backend, size_t urgent_burst);

    /* Closes a mailbox from `create`, drops what waits, and frees it. No other thread may use it any more. */
    void (*destroy)(pillarbox_mailbox *mailbox);

    /* any, with the GIL. The mailbox in a pillarbox.kernel.TaskMailbox, to put into; valid while the caller
     * keeps the TaskMailbox alive. Null with TypeError, or with ForkedError. */
    pillarbox_mailbox *(*of)(struct _object *mailbox);

    /* With the GIL. The mailbox in a TaskMailbox, to be consumed by the calling thread, in any state: it
     * becomes the mailbox thread, and `consumer` holds a reference. Null with TypeError, with ForkedError, or
     * with WrongThreadError: another thread is the mailbox thread and has fetched mail that it has not taken,
     * or waits. */
    pillarbox_mailbox *(*begin_consuming)(struct _object *mailbox, pillarbox_consumer *consumer);

    /* With the GIL, by the thread that has begun. The former mailbox thread is the mailbox thread again, also
     * of the mail that was fetched and not taken; it may go on when it knows of that, as by a join. */
    void (*end_consuming)(pillarbox_consumer *consumer);

    /* any, but not two threads with one mail at the same time. Puts a mail: PILLARBOX_OPEN, or why not; then the
     * mail stays the caller's. Takes the GIL if a Python consumer has armed a wake-up, to call it. */
    int (*put)(pillarbox_mailbox *mailbox, pillarbox_mail *mail);

    /* any. As put, of `count` mails: all, adjacent and in order, or none. */
    int (*put_all)(pillarbox_mailbox *mailbox, pillarbox_mail *const *mails, size_t count);

    /* any. Puts a mail of the kernel's own that calls `fn(arg, run)` as a mail's `fn` is called. If it
     * answers anything but PILLARBOX_OPEN, `fn` is not called. */
    int (*post)(pillarbox_mailbox *mailbox, void (*fn)(void *arg, bool run), void *arg, int priority,
                int flags);

    /* The oldest mail of at least this priority that has none of the flags in `skip`, 0 or
     * PILLARBOX_DEFERRABLE. Waits `timeout` seconds for it; 0 does not wait, less than 0 has no limit; who
     * waits must not hold the GIL. Null: there was none. `*state`, if `state` is not null, becomes a state
     * that held then: after PILLARBOX_QUIESCED none comes any more. A mail that was taken goes into `run`,
     * `drop` or `release`, once, by any thread. */
    pillarbox_mail *(*take)(pillarbox_mailbox *mailbox, int priority, int skip, double timeout, int *state);

    /* Everything put before this call becomes the batch, behind what is left of the last one. Returns whether
     * there is anything to take. */
    bool (*create_batch)(pillarbox_mailbox *mailbox);

    /* As take, the next mail of the batch, or an urgent one; null: the batch is used up. Does not wait. */
    pillarbox_mail *(*take_from_batch)(pillarbox_mailbox *mailbox);

    /* Makes a batch, takes each of its mails and runs it. Returns how many have run. A mail may put, take,
     * close. */
    size_t (*run_batch)(pillarbox_mailbox *mailbox);

    /* any, for who has taken the mail. Calls `fn(mail, true)`. A mail that Python has put is run with the
     * GIL, which is taken; what it raises goes to sys.unraisablehook. 0, or -1 if it raised. */
    int (*run)(pillarbox_mail *mail);

    /* any, for who has taken the mail. Calls `fn(mail, false)`; releases a mail of Python's, with the GIL. */
    void (*drop)(pillarbox_mail *mail);

    /* any, for who has taken the mail. Calls nothing: the mail is the caller's, who may put it again or free
     * it. A mail of Python's, or of `post`, is dropped. */
    void (*release)(pillarbox_mail *mail);

    /* any. OPEN becomes QUIESCED: no more is taken in, and a take that waits ends. No effect in other states.
     * The GIL as in put. */
    void (*quiesce)(pillarbox_mailbox *mailbox);

    /* Becomes CLOSED. Returns every mail that was not taken, in the order of takes, linked by `next`; each
     * counts as taken. Read `next` before letting go of a mail. Takes the GIL if a wake-up is armed, to
     * release it. */
    pillarbox_mail *(*close)(pillarbox_mailbox *mailbox);

    /* any. PILLARBOX_OPEN, PILLARBOX_QUIESCED or PILLARBOX_CLOSED. */
    int (*state)(pillarbox_mailbox *mailbox);

    /* any. Mails that wait, those of the batch included; 0 when CLOSED. Exact for the thread that consumes; another
     * one gets at least what waits all through the call. A put in progress that takes the mails which have arrived
     * past 65,535 may be counted in part. */
    size_t (*waiting)(pillarbox_mailbox *mailbox);

    /* any. A queue that only native code knows, of at most `capacity` entries, watermarks included, 1 to
     * PILLARBOX_MAX_CAPACITY; `ordered`: emitted in the order of the puts, otherwise as they finish. The caller is
     * its owner. Null: no memory, or a bad argument. */
    pillarbox_queue *(*create_queue)(int capacity, bool ordered);

    /* Frees a queue from `create_queue`, after `release(payload)`, if that is not null, for each element and each
     * result that it still has, but for nulls. No other thread may use it any more. */
    void (*destroy_queue)(pillarbox_queue *queue, void (*release)(void *payload));

    /* any, with the GIL. The queue in a pillarbox.kernel.OrderedQueue or UnorderedQueue, for `complete` and nothing
     * else; valid while the caller keeps the Python object alive. Null with TypeError, with ValueError if only its
     * owner completes, or with ForkedError. */
    pillarbox_queue *(*queue_of)(struct _object *queue);

    /* Owner. Admits an element; `*handle` names its first attempt. False: the queue is full, and the element stays
     * the caller's. */
    bool (*put_entry)(pillarbox_queue *queue, void *element, int64_t *handle);

    /* Owner. Admits a watermark, which is emitted as this pair, and which no entry passes, in either direction. False as
     * put_entry. */
    bool (*put_watermark)(pillarbox_queue *queue, void *element, void *result);

    /* Owner. Begins a new attempt of the running entry whose present attempt `*handle` names; `*handle` becomes
     * that of the new one. False, without effect, if it names none. */
    bool (*renew)(pillarbox_queue *queue, int64_t *handle);

    /* any. Gives a running entry its result if the handle names its present attempt. False: it is too late, and the
     * result stays the caller's. The result for a queue of Python's is a reference (PyObject *) which becomes the
     * queue's. Nobody is woken: tell the owner by a mail. */
    bool (*complete)(pillarbox_queue *queue, int64_t handle, void *result);

    /* Owner. Moves what may leave, at most `most` pairs, to `out`. How many. May be unaware of a completion that
     * has not returned yet. */
    int (*emit)(pillarbox_queue *queue, pillarbox_pair *out, int most);

    /* Since 1.1. As create_queue, but `complete` is for the owner as well, and for nobody else: an entry then needs no
     * atomic operation. */
    pillarbox_queue *(*create_confined_queue)(int capacity, bool ordered);

    /* Since 1.2. any, with the GIL. A handle on the pillarbox.Collector that a function was handed, for one
     * `collect`, which has to follow; it holds a reference. Null with TypeError, or with ForkedError. */
    pillarbox_collector *(*collector_of)(struct _object *collector);

    /* Since 1.2. any. Completes the call that the collector is of, if nobody has before; returns whether. The handle
     * and `payload` are given away in any case. `make(payload, true)` is called once, with the GIL, on the mailbox
     * thread: it returns a new reference to the result, or null with a Python error set, with which the attempt fails.
     * `make(payload, false)` is called instead, once, by any thread, with the GIL or without, if nobody wants the
     * result: it lets go of the payload and returns null. A null `make`: the payload is a reference (PyObject *) to
     * the result. Takes the GIL to call an armed wake-up, as put, and to let go of references if it comes too late. */
    bool (*collect)(pillarbox_collector *collector, void *payload,
                    struct _object *(*make)(void *payload, bool wanted));
} pillarbox_functions;

/* Makes a mail, before its first put; any thread. A mail that was taken and released is not made again. */
static inline void pillarbox_mail_init(pillarbox_mail *mail, void (*fn)(pillarbox_mail *mail, bool run),
                                       int priority, int flags) {
    mail->next = NULL;
    mail->fn = fn;
    mail->number = 0;
    mail->priority = priority;
    mail->flags = (unsigned char)flags;
    mail->queued = 0;
}

#ifdef Py_PYTHON_H

static const pillarbox_functions *pillarbox_api;

/* Finds the table. To be called once, with the GIL, before all else: in the module's initialization. Returns
 * 0, or -1 with ImportError if pillarbox.kernel is not there or has another version than this file. */
static inline int pillarbox_import(void) {
    const pillarbox_functions *found;
    PyObject *capsule;
    PyObject *module = PyImport_ImportModule("pillarbox.kernel.capi");
    if (module == NULL) return -1;
    capsule = PyObject_GetAttrString(module, "table");
    Py_DECREF(module);
    if (capsule == NULL) return -1;
    found = (const pillarbox_functions *)PyCapsule_GetPointer(capsule, "pillarbox.kernel.capi.table");
    Py_DECREF(capsule); /* The table does not end with it. */
    if (found == NULL) return -1;
    if (found->version_major != PILLARBOX_VERSION_MAJOR || found->version_minor < PILLARBOX_VERSION_MINOR ||
        found->size < sizeof(pillarbox_functions)) {
        PyErr_Format(PyExc_ImportError,
                     "this module was built for version %d.%d of Pillarbox's C interface (%zu bytes), "
                     "pillarbox.kernel has version %d.%d (%zu bytes): build it with the pillarbox that it "
                     "runs with",
                     PILLARBOX_VERSION_MAJOR, PILLARBOX_VERSION_MINOR, sizeof(pillarbox_functions),
                     found->version_major, found->version_minor, found->size);
        return -1;
    }
    if (found->mail_size != sizeof(pillarbox_mail)) {
        PyErr_Format(PyExc_ImportError,
                     "this module was built for mails of %zu bytes, pillarbox.kernel has mails of %zu bytes: "
                     "it is a build for checks",
                     sizeof(pillarbox_mail), found->mail_size);
        return -1;
    }
    pillarbox_api = found;
    return 0;
}

#endif

#endif
