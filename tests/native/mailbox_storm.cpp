// A whole mailbox in a storm: `mailbox_storm lock-free | mutex PRODUCERS`. Prints "ok", or what went wrong.
//
// Producers put single mails and chains of them, urgent and not, of three priorities, as fast as they can. The
// consumer takes in all ways, and parks. In the middle another thread quiesces, or the consumer closes, or it dies:
// its thread ends with mail left, and another one goes on. One more thread reads the counts all the time.
// What was accepted must come out, each mail once, and those of one producer and one kind in their order.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "check.h"
#include "pillarbox_inbox.h"
#include "pillarbox_mailbox.h"

using namespace pillarbox;

namespace {

constexpr int MAILS = 6400;  // of all producers together
constexpr int KINDS = 6;     // three priorities, urgent or not
constexpr int LONGEST_CHAIN = 4;
constexpr int ROUNDS = 20;
constexpr std::size_t BURST = 3;

struct Item : mail_t {
    int producer = 0;
    int place = 0;  // among the mails of its producer
};

enum class End { USED_UP, QUIESCED, CLOSED, CONSUMER_DIES };

template <class Inbox>
class Storm {
public:
    Storm(int producers, End end, unsigned seed) : producers_(producers), each_(MAILS / producers), end_(end), seed_(seed) {
        mailbox_.set_urgent_burst(BURST);
        last_.assign(static_cast<std::size_t>(producers * KINDS), -1);
    }

    void run() {
        std::vector<std::thread> threads;
        for (int producer = 0; producer < producers_; ++producer) {
            threads.emplace_back(&Storm::produce, this, producer);
        }
        std::thread watcher(&Storm::watch, this);
        std::thread quiescer(&Storm::quiesce_in_the_middle, this);
        // Each dies after a while, and the next one goes on.
        for (int life = 0; !done_; ++life) {
            std::thread consumer(&Storm::consume, this, life);
            consumer.join();
        }
        for (std::thread& thread : threads) thread.join();
        quiescer.join();
        over_ = true;
        watcher.join();
        finish();
    }

private:
    void produce(int producer) {
        std::minstd_rand random(seed_ + static_cast<unsigned>(producer));
        const int first = producer * each_;
        for (int number = 0; number < each_;) {
            const int most = std::min(LONGEST_CHAIN, each_ - number);
            const int size = 1 + static_cast<int>(random() % static_cast<unsigned>(most));
            chain_t chain;
            for (int i = 0; i < size; ++i) {
                Item& item = items_[first + number + i];
                item.producer = producer;
                item.place = number + i;
                item.priority = static_cast<int>(random() % 3);
                item.flags = random() % 2 == 0 ? URGENT : 0;
                require(item.claim_alone(), "a fresh mail waits already");
                chain.add(&item);
            }
            begun_.fetch_add(static_cast<std::size_t>(size));
            void* armed = nullptr;
            if (mailbox_.put(chain, &armed) != OPEN) break;
            accepted_.fetch_add(size);
            number += size;
        }
        if (++ended_ == producers_) {
            void* armed = nullptr;
            mailbox_.quiesce(&armed);
        }
    }

    void quiesce_in_the_middle() {
        if (end_ != End::QUIESCED) return;
        while (accepted_ < MAILS / 2 && ended_ < producers_) std::this_thread::yield();
        void* armed = nullptr;
        mailbox_.quiesce(&armed);
    }

    // Counts never fall, and are never more than was begun.
    void watch() {
        std::size_t before = 0;
        while (!over_) {
            const std::size_t taken = mailbox_.taken();
            const std::size_t now = mailbox_.inbox().accepted();
            require(now >= before, "the count of accepted mails has fallen");
            require(now >= taken, "more mails were taken than accepted");
            require(now <= begun_, "more mails were accepted than put");
            before = now;
            std::this_thread::yield();
        }
    }

    void consume(int life) {
        std::minstd_rand random(seed_ + 1000u + static_cast<unsigned>(life));
        for (int turn = 0;; ++turn) {
            if (end_ == End::CONSUMER_DIES && turn == 40) return;
            if (end_ == End::CLOSED && out_ > MAILS / 3) {
                close();
                done_ = true;
                return;
            }
            state_t seen = OPEN;
            if (random() % 2 == 0) {
                mail_t* const mail = mailbox_.take(MIN_PRIORITY, 0, &seen);
                if (mail != nullptr) {
                    took(mail);
                } else if (seen != OPEN) {
                    done_ = true;
                    return;
                } else {
                    mailbox_.park(0.05);
                    mailbox_.fetch();
                }
            } else if (mailbox_.create_batch()) {
                while (mail_t* mail = mailbox_.take_from_batch()) took(mail);
            }
        }
    }

    void took(mail_t* mail) {
        Item& item = *static_cast<Item*>(mail);
        const int kind = item.priority * 2 + (item.flags & URGENT);
        int& last = last_[static_cast<std::size_t>(item.producer * KINDS + kind)];
        require(last < item.place, "a mail came twice, or before an older one of its kind");
        last = item.place;
        ++out_;
        mail->release();
    }

    void close() {
        void* armed = nullptr;
        MailList left;
        mailbox_.close(left, &armed);
        while (mail_t* mail = left.pop_first()) took(mail);
    }

    void finish() {
        const bool closed = mailbox_.inbox().state() == CLOSED;
        if (!closed) require(mailbox_.waiting() == 0, "something waits in a mailbox that was used up");
        close();
        require(out_ == accepted_, "what came out is not what was accepted");
        require(mailbox_.inbox().accepted() == static_cast<std::size_t>(out_), "the count is not what was accepted");
        require(end_ == End::QUIESCED || end_ == End::CLOSED || out_ == producers_ * each_, "a mail was refused");
    }

    const int producers_;
    const int each_;
    const End end_;
    const unsigned seed_;
    Mailbox<Inbox> mailbox_;
    std::unique_ptr<Item[]> items_{new Item[MAILS]};
    std::vector<int> last_;
    int out_ = 0;
    std::atomic<int> accepted_{0};
    std::atomic<std::size_t> begun_{0};
    std::atomic<int> ended_{0};
    std::atomic<bool> done_{false};
    std::atomic<bool> over_{false};
};

template <class Inbox>
void all(int producers) {
    unsigned seed = 1;
    for (int round = 0; round < ROUNDS; ++round) {
        for (const End end : {End::USED_UP, End::QUIESCED, End::CLOSED, End::CONSUMER_DIES}) {
            Storm<Inbox>(producers, end, seed++).run();
        }
    }
}

}  // namespace

int main(int count, char** words) {
    const int producers = count == 3 ? std::atoi(words[2]) : 0;
    if (producers < 1 || producers > MAILS) fail("mailbox_storm lock-free | mutex PRODUCERS");
    std::string_view(words[1]) == "mutex" ? all<MutexInbox>(producers) : all<LockFreeInbox>(producers);
    std::puts("ok");
    return 0;
}
