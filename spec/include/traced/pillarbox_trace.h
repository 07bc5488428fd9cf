// What a mailbox was asked and what it answered, recorded: in builds for tests that are traced.
//
// A ticket is drawn when an operation begins and another when it ends, so one that ended before another began has
// the smaller tickets: a checker may order only those that overlap. Each thread writes a log of its own.
// `pillarbox_trace_take()`, exported by a traced module, gives the lines; `spec/trace.py` reads them.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pillarbox_mail.h"
#include "pillarbox_state.h"

namespace pillarbox {

// All logs of this process, one a thread; they outlive their threads.
class TraceLogs {
public:
    static TraceLogs& all() {
        static TraceLogs* const logs = new TraceLogs;
        return *logs;
    }

    unsigned long long ticket() noexcept { return tickets_.fetch_add(1); }

    // Gives a mail a number for its put, which it has until it is put anew.
    unsigned long long name(const mail_t* mail) {
        const std::lock_guard<std::mutex> held(lock_);
        return names_[mail] = ++last_name_;
    }

    // The number that a mail has.
    unsigned long long name_of(const mail_t* mail) {
        const std::lock_guard<std::mutex> held(lock_);
        return names_[mail];
    }

    std::vector<std::string>& mine(int* thread) {
        thread_local std::pair<int, std::vector<std::string>*> log = added();
        *thread = log.first;
        return *log.second;
    }

    // Every line so far, which are then forgotten. While no traced operation runs.
    std::string take() {
        const std::lock_guard<std::mutex> held(lock_);
        std::string text;
        for (auto& log : logs_) {
            for (const std::string& line : *log) text += line;
            log->clear();
        }
        return text;
    }

private:
    std::pair<int, std::vector<std::string>*> added() {
        const std::lock_guard<std::mutex> held(lock_);
        logs_.push_back(std::make_unique<std::vector<std::string>>());
        return {static_cast<int>(logs_.size()), logs_.back().get()};
    }

    std::mutex lock_;
    std::vector<std::unique_ptr<std::vector<std::string>>> logs_;
    std::unordered_map<const mail_t*, unsigned long long> names_;
    unsigned long long last_name_ = 0;
    std::atomic<unsigned long long> tickets_{0};
};

// One operation of one mailbox, from construction to destruction. A line is: mailbox, thread, first ticket, last
// ticket, operation, result, then arguments, or the mails that came out. A mail goes in as
// number/priority/flags and comes out as its number.
class Trace {
public:
    Trace(const void* mailbox, const char* operation) : mailbox_(mailbox), operation_(operation), begin_(next()) {}

    Trace(const void* mailbox, const char* operation, const chain_t& mails)
        : mailbox_(mailbox), operation_(operation) {
        // The last link of a chain means nothing yet.
        std::vector<std::string> newest_first;
        mail_t* mail = mails.newest;
        for (std::size_t left = mails.count; left != 0; mail = mail->next, --left) {
            newest_first.push_back(' ' + std::to_string(TraceLogs::all().name(mail)) + '/' +
                                   std::to_string(mail->priority) + '/' +
                                   std::to_string(mail->flags & (URGENT | DEFERRABLE)));
        }
        for (auto word = newest_first.rbegin(); word != newest_first.rend(); ++word) words_ += *word;
        begin_ = next();
    }

    Trace(const void* mailbox, const char* operation, int priority, unsigned char skip) : Trace(mailbox, operation) {
        words_ = ' ' + std::to_string(priority) + ' ' + std::to_string(skip);
    }

    Trace(const Trace&) = delete;

    ~Trace() {
        const unsigned long long end = next();
        int thread = 0;
        std::vector<std::string>& log = TraceLogs::all().mine(&thread);
        log.push_back(std::to_string(reinterpret_cast<std::uintptr_t>(mailbox_)) + ' ' + std::to_string(thread) + ' ' +
                      std::to_string(begin_) + ' ' + std::to_string(end) + ' ' + operation_ + ' ' + result_ + words_ + '\n');
    }

    state_t state(state_t state) {
        result_ = name(state);
        return state;
    }

    mail_t* mail(mail_t* mail, state_t seen) {
        result_ = mail != nullptr ? std::to_string(TraceLogs::all().name_of(mail)) : name(seen);
        return mail;
    }

    bool flag(bool flag) {
        result_ = flag ? "true" : "false";
        return flag;
    }

    void mails(const MailList& list) {
        for (mail_t* mail = list.first(); mail != nullptr; mail = mail->next) {
            words_ += ' ' + std::to_string(TraceLogs::all().name_of(mail));
        }
    }

private:
    // Now and then others go on between a ticket and the operation: it overlaps with theirs on one core too.
    static unsigned long long next() {
        const unsigned long long ticket = TraceLogs::all().ticket();
        if (ticket % YIELDS == 0) std::this_thread::yield();
        return ticket;
    }
    static const char* name(state_t state) { return state == OPEN ? "OPEN" : state == QUIESCED ? "QUIESCED" : "CLOSED"; }

    static constexpr unsigned YIELDS = 8;  // the share of tickets

    const void* mailbox_;
    const char* operation_;
    unsigned long long begin_ = 0;
    std::string result_ = "-";
    std::string words_;
};

// For whoever loads the traced module: the lines so far, to be freed with free().
extern "C" __attribute__((visibility("default"), used)) inline char* pillarbox_trace_take() {
    return ::strdup(TraceLogs::all().take().c_str());
}

}  // namespace pillarbox
