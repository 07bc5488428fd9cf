// The workloads with mails: one thread, one or two producers, a mailbox in which others wait, and memory.
//
// `Box` is a mailbox with an inbox of one kind. Mails are made beforehand and put again and again, so that a
// figure is the mailbox's and not the allocator's; bytes are the exception.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "mails.h"
#include "work.h"

namespace bench {

// A mail that must be there.
template <class Box>
Mail* take_one(Box& mailbox, int priority) noexcept {
    Mail* const mail = try_take(mailbox, priority);
    require(mail != nullptr, "a mail that was put is not there");
    return mail;
}

// One thread: put a mail, take it, run it.
template <class Box>
class SingleMails : public Work {
public:
    long long chunk(long long operations) override {
        const long long begin = nanoseconds();
        for (long long number = 0; number < operations; ++number) {
            put(mailbox_, mails_[0]);
            run(take_one(mailbox_, ANY));
        }
        return nanoseconds() - begin;
    }

private:
    long long counted_ = 0;
    std::unique_ptr<Mail[]> mails_ = make_mails(1, 0, &counted_);
    Box mailbox_;
};

// One thread: put a thousand mails, make a batch of them, run it.
template <class Box>
class BatchedMails : public Work {
public:
    long long chunk(long long operations) override {
        const long long before = counted_;
        const long long begin = nanoseconds();
        for (long long round = 0; round < operations / ROUND; ++round) {
            for (int index = 0; index < ROUND; ++index) put(mailbox_, mails_[index]);
            run_batch(mailbox_);
        }
        const long long time = nanoseconds() - begin;
        require(counted_ - before == operations / ROUND * ROUND, "a batch is not what was put");
        return time;
    }

private:
    static constexpr int ROUND = 1000;
    long long counted_ = 0;
    std::unique_ptr<Mail[]> mails_ = make_mails(ROUND, 0, &counted_);
    Box mailbox_;
};

// Producers put as fast as they can, another thread takes and runs, a batch at a time, and sleeps when there
// is nothing. From the first put to the last run.
template <class Box>
class ProducedMails : public Work {
public:
    // `together`: mails that a producer puts at a time.
    explicit ProducedMails(int producers, int together = 1) : producers_(producers), together_(together) {
        for (int producer = 0; producer < producers; ++producer) {
            begun_.push_back(0);
            threads_.emplace_back(&ProducedMails::produce, this, producer);
        }
    }

    ~ProducedMails() override {
        open_gate(-1);
        for (std::thread& thread : threads_) thread.join();
    }

    long long chunk(long long operations) override {
        const long long share = operations / producers_;
        if (share != share_) {
            share_ = share;
            mails_ = make_mails(static_cast<std::size_t>(share * producers_), 0, &counted_);
        }
        const long long before = counted_;
        open_gate(share);
        for (long long left = share * producers_; left > 0; --left) {
            run(take(mailbox_, ANY));
            left -= run_batch(mailbox_);
        }
        const long long end = nanoseconds();
        require(counted_ - before == share * producers_, "what was run is not what was put");
        wait_for_all();
        return end - *std::min_element(begun_.begin(), begun_.end());
    }

private:
    void produce(int producer) {
        for (long long chunk = 1;; ++chunk) {
            {
                std::unique_lock<std::mutex> held(lock_);
                changed_.wait(held, [&] { return chunk_ >= chunk; });
                if (open_for_ < 0) return;
            }
            Mail* const mine = &mails_[static_cast<std::size_t>(producer * share_)];
            begun_[static_cast<std::size_t>(producer)] = nanoseconds();
            if (together_ == 1) {
                for (long long number = 0; number < share_; ++number) put(mailbox_, mine[number]);
            }
            for (long long number = 0; together_ != 1 && number < share_; number += together_) {
                put_all(mailbox_, mine + number, std::min<long long>(together_, share_ - number));
            }
            std::lock_guard<std::mutex> held(lock_);
            ++done_;
            changed_.notify_all();
        }
    }

    void open_gate(long long share) {
        std::lock_guard<std::mutex> held(lock_);
        ++chunk_;
        open_for_ = share;
        done_ = 0;
        changed_.notify_all();
    }

    // The last producer may still be on its way out of its last put.
    void wait_for_all() {
        std::unique_lock<std::mutex> held(lock_);
        changed_.wait(held, [&] { return done_ == producers_; });
    }

    const int producers_;
    const int together_;
    long long share_ = 0;
    long long counted_ = 0;
    std::unique_ptr<Mail[]> mails_;
    Box mailbox_;

    std::mutex lock_;
    std::condition_variable changed_;
    long long chunk_ = 0;
    long long open_for_ = 0;
    int done_ = 0;
    std::vector<long long> begun_;
    std::vector<std::thread> threads_;
};

// A mail goes to another thread, which sends it back: both sleep in between, where the mailbox lets them. What the
// given percentage of the journeys takes at most, times their number.
template <class Box>
class ThereAndBack : public Work {
public:
    explicit ThereAndBack(int percentage) : percentage_(percentage) {}

    ~ThereAndBack() override {
        over_ = true;
        put(there_, mails_[0]);
        other_.join();
    }

    long long chunk(long long operations) override {
        std::vector<long long> times(static_cast<std::size_t>(operations));
        for (long long& time : times) {
            const long long begin = nanoseconds();
            put(there_, mails_[0]);
            run(take(here_, ANY));
            time = nanoseconds() - begin;
        }
        return percentile(times, percentage_) * operations;
    }

private:
    void send_back() {
        for (;;) {
            run(take(there_, ANY));
            if (over_) return;
            put(here_, mails_[0]);
        }
    }

    const int percentage_;
    long long counted_ = 0;
    std::unique_ptr<Mail[]> mails_ = make_mails(1, 0, &counted_);
    Box here_;
    Box there_;
    bool over_ = false;
    std::thread other_{&ThereAndBack::send_back, this};
};

// So many mails of priority 0 wait. Put one of priority 1, take it past them, run it.
template <class Box>
class PastWaiting : public Work {
public:
    explicit PastWaiting(int waiting)
        : waiting_(make_mails(static_cast<std::size_t>(waiting), 0, &counted_)) {
        for (int index = 0; index < waiting; ++index) put(mailbox_, waiting_[index]);
    }

    ~PastWaiting() override { close(mailbox_); }

    long long chunk(long long operations) override {
        const long long begin = nanoseconds();
        for (long long number = 0; number < operations; ++number) {
            put(mailbox_, mail_[0]);
            run(take_one(mailbox_, 1));
        }
        return nanoseconds() - begin;
    }

private:
    long long counted_ = 0;
    std::unique_ptr<Mail[]> mail_ = make_mails(1, 1, &counted_);
    std::unique_ptr<Mail[]> waiting_;
    Box mailbox_;
};

// So many mails wait. Put one behind them, take the oldest, run it.
template <class Box>
class AmongWaiting : public Work {
public:
    explicit AmongWaiting(int waiting)
        : waiting_(waiting), mails_(make_mails(static_cast<std::size_t>(waiting) + 1, 0, &counted_)) {
        for (int index = 0; index < waiting; ++index) put(mailbox_, mails_[index]);
    }

    ~AmongWaiting() override { close(mailbox_); }

    long long chunk(long long operations) override {
        const long long begin = nanoseconds();
        for (long long number = 0; number < operations; ++number) {
            put(mailbox_, mails_[out_]);
            run(take_one(mailbox_, ANY));
            out_ = out_ == waiting_ ? 0 : out_ + 1;
        }
        return nanoseconds() - begin;
    }

private:
    const int waiting_;
    int out_ = waiting_;  // the one mail that does not wait
    long long counted_ = 0;
    std::unique_ptr<Mail[]> mails_;
    Box mailbox_;
};

// Bytes of resident memory that so many more waiting mails take, made for the purpose.
template <class Box>
class BytesOfMails : public Work {
public:
    ~BytesOfMails() override { close(mailbox_); }

    long long chunk(long long operations) override {
        const auto count = static_cast<std::size_t>(operations);
        const long long before = resident();
        made_.push_back(make_mails(count, 0, &counted_));
        for (std::size_t index = 0; index < count; ++index) put(mailbox_, made_.back()[index]);
        // Fetched as well, or what the mailbox thread keeps of a mail would not be seen.
        fetch(mailbox_);
        return resident() - before;
    }

private:
    static long long resident() {
        long long total = 0, pages = 0;
        std::FILE* file = std::fopen("/proc/self/statm", "r");
        require(file != nullptr, "the bytes of mails are read from /proc/self/statm, which is not here");
        const int fields = std::fscanf(file, "%lld %lld", &total, &pages);
        std::fclose(file);
        require(fields == 2, "/proc/self/statm does not hold two numbers");
        return pages * sysconf(_SC_PAGESIZE);
    }

    long long counted_ = 0;
    std::vector<std::unique_ptr<Mail[]>> made_;
    Box mailbox_;
};

}  // namespace bench
