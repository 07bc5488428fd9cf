/*
 * Native threads that put mail, and one that takes it: none of them touches the GIL.
 *
 * `count(producers, each, close_after)` starts them, waits without the GIL, and returns what was
 * counted.
 */
#include <Python.h>

#include <pillarbox.h>
#include <pthread.h>
#include <stdlib.h>

/* The consumer's, who is the only one to call what mails say: no lock. */
typedef struct {
    pillarbox_mailbox *mailbox;
    size_t close_after; /* mails, or 0: never before the end */
    size_t ran, dropped, out_of_order;
} consumer_t;

typedef struct {
    consumer_t *consumer;
    size_t each, accepted, refused;
    size_t last; /* number of the mail of this producer that was taken last; the consumer's */
    struct item *items;
    pthread_t thread;
} producer_t;

/* What the mail is about has the mail in it. */
typedef struct item {
    pillarbox_mail mail;
    producer_t *producer;
    size_t number;
} item_t;

static void look_at(item_t *item, bool run) {
    consumer_t *consumer = item->producer->consumer;
    if (item->number <= item->producer->last) consumer->out_of_order += 1;
    item->producer->last = item->number;
    if (run) {
        consumer->ran += 1;
    } else {
        consumer->dropped += 1;
    }
}

static void mail_arrived(pillarbox_mail *mail, bool run) { look_at((item_t *)mail, run); }
static void item_arrived(void *item, bool run) { look_at((item_t *)item, run); }

static void tell(producer_t *producer, int answer, size_t mails) {
    if (answer == PILLARBOX_OPEN) {
        producer->accepted += mails;
    } else {
        producer->refused += mails;
    }
}

/* Of four items one is posted, one is put, and two are put together. */
static void *produce(void *arg) {
    producer_t *producer = (producer_t *)arg;
    pillarbox_mailbox *mailbox = producer->consumer->mailbox;
    size_t i;
    for (i = 0; i < producer->each; ++i) {
        item_t *item = &producer->items[i];
        item->producer = producer;
        item->number = i + 1;
        pillarbox_mail_init(&item->mail, mail_arrived, 0, 0);
    }
    for (i = 0; i + 4 <= producer->each; i += 4) {
        item_t *item = &producer->items[i];
        pillarbox_mail *both[2];
        both[0] = &item[2].mail;
        both[1] = &item[3].mail;
        tell(producer, pillarbox_api->post(mailbox, item_arrived, &item[0], 0, 0), 1);
        tell(producer, pillarbox_api->put(mailbox, &item[1].mail), 1);
        tell(producer, pillarbox_api->put_all(mailbox, both, 2), 2);
    }
    return NULL;
}

static void *consume(void *arg) {
    consumer_t *consumer = (consumer_t *)arg;
    pillarbox_mailbox *mailbox = consumer->mailbox;
    pillarbox_mail *mail;
    /* Waits for one, runs it and whatever else is there. Null: quiesced, and nothing is left. */
    while ((mail = pillarbox_api->take(mailbox, PILLARBOX_MIN_PRIORITY, 0, -1, NULL)) != NULL) {
        pillarbox_api->run(mail);
        if (consumer->close_after != 0 && consumer->ran >= consumer->close_after) break;
        pillarbox_api->run_batch(mailbox);
    }
    for (mail = pillarbox_api->close(mailbox); mail != NULL;) {
        pillarbox_mail *next = mail->next; /* A mail may be freed when it is let go of. */
        pillarbox_api->drop(mail);
        mail = next;
    }
    return NULL;
}

/* Without the GIL. Returns whether all threads could be started. */
static bool run_all(consumer_t *consumer, producer_t *producers, size_t count) {
    pthread_t thread;
    size_t started = 0, i;
    if (pthread_create(&thread, NULL, consume, consumer) != 0) return false;
    for (; started < count; ++started) {
        producer_t *producer = &producers[started];
        if (pthread_create(&producer->thread, NULL, produce, producer) != 0) break;
    }
    for (i = 0; i < started; ++i) pthread_join(producers[i].thread, NULL);
    pillarbox_api->quiesce(consumer->mailbox);
    pthread_join(thread, NULL);
    return started == count;
}

static PyObject *count(PyObject *module, PyObject *args) {
    consumer_t consumer = {NULL, 0, 0, 0, 0};
    producer_t *producers = NULL;
    size_t accepted = 0, refused = 0, i;
    Py_ssize_t many, each, close_after;
    bool done = false;
    (void)module;
    if (!PyArg_ParseTuple(args, "nnn", &many, &each, &close_after)) return NULL;
    consumer.close_after = (size_t)close_after;
    consumer.mailbox = pillarbox_api->create(PILLARBOX_LOCK_FREE, 64);
    producers = (producer_t *)calloc((size_t)many, sizeof(producer_t));
    if (consumer.mailbox != NULL && producers != NULL) {
        done = true;
        for (i = 0; i < (size_t)many; ++i) {
            producers[i].consumer = &consumer;
            producers[i].each = (size_t)each;
            producers[i].items = (item_t *)calloc((size_t)each, sizeof(item_t));
            done = done && producers[i].items != NULL;
        }
        if (done) {
            Py_BEGIN_ALLOW_THREADS
            done = run_all(&consumer, producers, (size_t)many);
            Py_END_ALLOW_THREADS
        }
    }
    if (consumer.mailbox != NULL) pillarbox_api->destroy(consumer.mailbox);
    for (i = 0; producers != NULL && i < (size_t)many; ++i) {
        accepted += producers[i].accepted;
        refused += producers[i].refused;
        free(producers[i].items);
    }
    free(producers);
    if (!done) return PyErr_NoMemory();
    return Py_BuildValue("{s:n,s:n,s:n,s:n,s:n}", "accepted", (Py_ssize_t)accepted, "refused",
                         (Py_ssize_t)refused, "ran", (Py_ssize_t)consumer.ran, "dropped",
                         (Py_ssize_t)consumer.dropped, "out_of_order", (Py_ssize_t)consumer.out_of_order);
}

static PyMethodDef methods[] = {
    {"count", count, METH_VARARGS, "count(producers, each, close_after) -> dict of counts"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "native", "Mailboxes of native threads", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_native(void) {
    if (pillarbox_import() < 0) return NULL;
    return PyModule_Create(&definition);
}
