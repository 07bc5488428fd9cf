// What the functions of pillarbox.h do, over the mailbox of pillarbox_mailbox.h.
//
// The contract, and which thread may call what, stands in pillarbox.h. What needs Python is given by the
// module that has it; here nothing knows Python, and a consumer of native mail never comes near it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>

#include "pillarbox.h"
#include "pillarbox_collector.h"
#include "pillarbox_inbox.h"
#include "pillarbox_mailbox.h"
#include "pillarbox_slab.h"

namespace pillarbox {
namespace native {

using Core = Mailbox<Inbox>;

// Each takes the GIL by itself, and throws nothing. Set once, before the table is given to anybody.
struct python_t {
    void (*call_back)(void* callback);  // calls a wake-up that the caller owns, and drops it
    void (*drop)(void* reference);      // gives up an owned reference
    int (*run)(mail_t* mail);           // runs an unlinked PYTHON mail: 0, or -1 if it raised
    void (*let_go)(mail_t* mail);       // releases an unlinked PYTHON mail
};
inline python_t python;

// A sleep without a limit is one of many days: the clock's arithmetic must not overflow.
constexpr double LONGEST_SLEEP = 1e6;

static_assert(PILLARBOX_URGENT == URGENT && PILLARBOX_DEFERRABLE == DEFERRABLE, "flags of C and C++ agree");
static_assert(PILLARBOX_MIN_PRIORITY == MIN_PRIORITY, "priorities of C and C++ agree");
static_assert(int{PILLARBOX_OPEN} == int{OPEN} && int{PILLARBOX_QUIESCED} == int{QUIESCED} &&
                  int{PILLARBOX_CLOSED} == int{CLOSED},
              "states of C and C++ agree");
static_assert(alignof(pillarbox_mail) == alignof(mail_t), "alignments of a mail agree");
static_assert(offsetof(pillarbox_mail, next) == offsetof(mail_t, next), "`next` is at one place");
static_assert(offsetof(pillarbox_mail, fn) == offsetof(mail_t, fn), "`fn` is at one place");
static_assert(offsetof(pillarbox_mail, number) == offsetof(mail_t, number), "`number` is at one place");
static_assert(offsetof(pillarbox_mail, priority) == offsetof(mail_t, priority), "`priority` is at one place");
static_assert(offsetof(pillarbox_mail, flags) == offsetof(mail_t, flags), "`flags` is at one place");
static_assert(offsetof(pillarbox_mail, queued) == offsetof(mail_t, queued), "`queued` is at one place");
static_assert(sizeof(mail_t::queued) == sizeof(pillarbox_mail::queued), "`queued` is one byte");
static_assert(sizeof(pillarbox_mail) == sizeof(mail_t), "sizes of a mail agree");
static_assert(sizeof(pillarbox_mail) == 32, "the size of a mail is part of the interface");

inline Core* core_of(pillarbox_mailbox* mailbox) noexcept { return reinterpret_cast<Core*>(mailbox); }
inline pillarbox_mailbox* handle_of(Core* core) noexcept {
    return reinterpret_cast<pillarbox_mailbox*>(core);
}
inline mail_t* node_of(pillarbox_mail* mail) noexcept { return reinterpret_cast<mail_t*>(mail); }
inline pillarbox_mail* mail_of(mail_t* node) noexcept { return reinterpret_cast<pillarbox_mail*>(node); }

// Whether C may put it. It may not put a mail of Python's: only Python claims it.
inline bool is_valid(const mail_t& node) noexcept {
    const bool has_address = reinterpret_cast<std::uintptr_t>(&node) >> LockFreeInbox::ADDRESS_BITS == 0;
    return has_address && node.fn != nullptr && node.priority >= MIN_PRIORITY &&
           (node.flags & ~(URGENT | DEFERRABLE)) == 0;
}

// Puts claimed nodes and calls the wake-up that was found.
inline state_t put_chain(Core* core, const chain_t& mails) noexcept {
    void* armed = nullptr;
    const state_t state = core->put(mails, &armed);
    if (armed != nullptr) python.call_back(armed);
    return state;
}

inline int put(pillarbox_mailbox* mailbox, pillarbox_mail* mail) noexcept {
    mail_t* const node = node_of(mail);
    if (!is_valid(*node)) return PILLARBOX_INVALID;
    if (!node->claim_alone()) return PILLARBOX_WAITS;
    chain_t chain;
    chain.add(node);
    const state_t state = put_chain(core_of(mailbox), chain);
    if (state != OPEN) node->release();
    return state;
}

inline int put_all(pillarbox_mailbox* mailbox, pillarbox_mail* const* mails, std::size_t count) noexcept {
    int answer = PILLARBOX_OPEN;
    for (std::size_t i = 0; i < count; ++i) {
        if (!is_valid(*node_of(mails[i]))) return PILLARBOX_INVALID;
    }
    std::size_t claimed = 0;
    chain_t chain;
    for (; claimed < count; ++claimed) {
        mail_t* const node = node_of(mails[claimed]);
        if (!node->claim_alone()) {
            answer = PILLARBOX_WAITS;
            break;
        }
        chain.add(node);
    }
    if (answer == PILLARBOX_OPEN) answer = put_chain(core_of(mailbox), chain);
    while (answer != PILLARBOX_OPEN && claimed != 0) node_of(mails[--claimed])->release();
    return answer;
}

// A function of `post`.
using post_fn_t = void (*)(void* arg, bool run);
inline void call_posted(mail_t* node, bool run) {
    posted_t* const posted = static_cast<posted_t*>(node);
    const post_fn_t call = posted->call;
    void* const arg = posted->arg;
    // Before the call: one that posts gets the memory that is warm.
    free_posted(posted);
    call(arg, run);
}

inline int post(pillarbox_mailbox* mailbox, post_fn_t fn, void* arg, int priority, int flags) noexcept {
    const bool known_flags = (flags & ~(URGENT | DEFERRABLE)) == 0;
    if (fn == nullptr || priority < MIN_PRIORITY || !known_flags) return PILLARBOX_INVALID;
    posted_t* const posted = allocate_posted();
    if (posted == nullptr) return PILLARBOX_NO_MEMORY;
    posted->fn = call_posted;
    posted->priority = priority;
    posted->flags = static_cast<unsigned char>(flags);
    posted->call = fn;
    posted->arg = arg;
    const int answer = put(mailbox, mail_of(posted));
    if (answer != PILLARBOX_OPEN) free_posted(posted);
    return answer;
}

inline int run_node(mail_t* node) noexcept {
    if (node->flags & PYTHON) return python.run(node);
    node->release();
    node->fn(node, true);
    return 0;
}

inline void drop_node(mail_t* node) noexcept {
    if (node->flags & PYTHON) {
        python.let_go(node);
    } else {
        node->release();
        node->fn(node, false);
    }
}

inline int run(pillarbox_mail* mail) noexcept { return run_node(node_of(mail)); }
inline void drop(pillarbox_mail* mail) noexcept { drop_node(node_of(mail)); }

inline void release(pillarbox_mail* mail) noexcept {
    mail_t* const node = node_of(mail);
    if ((node->flags & PYTHON) || node->fn == call_posted) {
        drop_node(node);
    } else {
        node->release();
    }
}

inline pillarbox_mail* take(
    pillarbox_mailbox* mailbox, int priority, int skip, double timeout, int* state) noexcept {
    Core* const core = core_of(mailbox);
    const auto flags = static_cast<unsigned char>(skip);
    state_t seen = OPEN;
    mail_t* node = core->take(priority, flags, &seen);
    if (node == nullptr && seen == OPEN && timeout != 0) {
        const double end =
            timeout < 0 ? std::numeric_limits<double>::infinity() : steady_seconds() + timeout;
        while (node == nullptr && seen == OPEN) {
            const double left = end - steady_seconds();
            if (!(left > 0)) break;
            core->park(left < LONGEST_SLEEP ? left : LONGEST_SLEEP);
            node = core->take(priority, flags, &seen);
        }
    }
    if (state != nullptr) *state = seen;
    return mail_of(node);
}

inline bool create_batch(pillarbox_mailbox* mailbox) noexcept { return core_of(mailbox)->create_batch(); }

inline pillarbox_mail* take_from_batch(pillarbox_mailbox* mailbox) noexcept {
    return mail_of(core_of(mailbox)->take_from_batch());
}

inline std::size_t run_batch(pillarbox_mailbox* mailbox) noexcept {
    Core* const core = core_of(mailbox);
    std::size_t ran = 0;
    core->create_batch();
    while (mail_t* node = core->take_from_batch()) {
        ++ran;
        run_node(node);
    }
    return ran;
}

inline void quiesce(pillarbox_mailbox* mailbox) noexcept {
    void* armed = nullptr;
    core_of(mailbox)->quiesce(&armed);
    if (armed != nullptr) python.call_back(armed);
}

inline pillarbox_mail* close(pillarbox_mailbox* mailbox) noexcept {
    void* armed = nullptr;
    MailList left;
    core_of(mailbox)->close(left, &armed);
    if (armed != nullptr) python.drop(armed);
    return mail_of(left.first());
}

inline int state(pillarbox_mailbox* mailbox) noexcept { return core_of(mailbox)->inbox().state(); }

inline std::size_t waiting(pillarbox_mailbox* mailbox) noexcept {
    return state(mailbox) == CLOSED ? 0 : core_of(mailbox)->waiting();
}

inline pillarbox_mailbox* create(int backend, std::size_t urgent_burst) noexcept {
    if (backend < 0 || backend >= Inbox::KINDS || urgent_burst == 0) return nullptr;
    Core* const core = new (std::nothrow) Core();
    if (core == nullptr) return nullptr;
    core->inbox().use(backend);
    core->set_urgent_burst(urgent_burst);
    return handle_of(core);
}

inline void destroy(pillarbox_mailbox* mailbox) noexcept {
    for (pillarbox_mail* mail = close(mailbox); mail != nullptr;) {
        pillarbox_mail* const next = mail->next;
        drop(mail);
        mail = next;
    }
    delete core_of(mailbox);
}

inline pillarbox_collector* handle_of(collected_t* node) noexcept {
    return reinterpret_cast<pillarbox_collector*>(node);
}

// The reference of the handle becomes the mail's.
inline bool collect(pillarbox_collector* handle, void* payload, make_result_t make) noexcept {
    collected_t* const node = reinterpret_cast<collected_t*>(handle);
    const Collected found = node->take();
    if (found != Collected::TAKEN) {
        node->payload = payload;
        node->make = make;
        chain_t chain;
        chain.add(node);
        // spec: Collector!PutMail
        if (put_chain(node->mailbox, chain) == OPEN) return found == Collected::FIRST;
    }
    node->count_late();
    if (make != nullptr) {
        make(payload, false);
    } else {
        python.drop(payload);
    }
    python.drop(node->owner);
    return false;
}

// The table, but for what needs Python: `of`, `begin_consuming`, `end_consuming`, `collector_of`.
inline void fill(pillarbox_functions& table) noexcept {
    table.version_major = PILLARBOX_VERSION_MAJOR;
    table.version_minor = PILLARBOX_VERSION_MINOR;
    table.size = sizeof(table);
    table.mail_size = sizeof(mail_t);
    table.create = create;
    table.destroy = destroy;
    table.put = put;
    table.put_all = put_all;
    table.post = post;
    table.take = take;
    table.create_batch = create_batch;
    table.take_from_batch = take_from_batch;
    table.run_batch = run_batch;
    table.run = run;
    table.drop = drop;
    table.release = release;
    table.quiesce = quiesce;
    table.close = close;
    table.state = state;
    table.waiting = waiting;
    table.collect = collect;
}

}  // namespace native
}  // namespace pillarbox
