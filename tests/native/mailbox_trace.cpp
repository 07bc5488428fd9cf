// A mailbox at work among native threads; prints what was asked and answered. Build with traced headers.
//
// `mailbox_trace lock-free | mutex PRODUCERS OPERATIONS SEED`: each producer and the consumer does so many
// operations, of all kinds; one producer quiesces the mailbox in the middle of the last tenth. Nobody runs far
// ahead of the others, so that operations overlap on a busy machine too.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string_view>
#include <thread>

#include "pillarbox_inbox.h"
#include "pillarbox_mailbox.h"

using namespace pillarbox;

constexpr double SLICE = 0.005;  // seconds
constexpr std::size_t BACKLOG = 20;
constexpr std::size_t LEFT = 6;

// Waits for all threads of the run; then all begin at once.
void meet(std::atomic<int>& missing) {
    missing.fetch_sub(1);
    while (missing.load() > 0) std::this_thread::yield();
}

template <class Inbox>
void produce(Mailbox<Inbox>& mailbox, std::vector<mail_t>& mails, int operations, bool quiesces, unsigned seed) {
    std::mt19937 numbers(seed);
    std::size_t used = 0;
    for (int operation = 0; operation < operations; ++operation) {
        void* armed = nullptr;
        if (quiesces && operation == operations - operations / 20) mailbox.quiesce(&armed);
        const std::size_t count = numbers() % 8 == 0 ? 3 : 1;
        chain_t chain;
        for (std::size_t number = 0; number < count; ++number) {
            mail_t& mail = mails[used + number];
            mail.claim();
            mail.priority = static_cast<int>(numbers() % 2);
            mail.flags = static_cast<unsigned char>((numbers() % 6 == 0 ? URGENT : 0) | (numbers() % 5 == 0 ? DEFERRABLE : 0));
            chain.add(&mail);
        }
        used += count;
        mailbox.put(chain, &armed);
        while (mailbox.waiting() > BACKLOG) std::this_thread::yield();
    }
}

template <class Inbox>
void consume(Mailbox<Inbox>& mailbox, unsigned seed) {
    std::mt19937 numbers(seed);
    MailList list;
    while (mailbox.inbox().state() == OPEN) {
        state_t seen = OPEN;
        mail_t* mail = nullptr;
        // With an even seed something is left when the mailbox is quiesced.
        if (seed % 2 == 0 && mailbox.waiting() < LEFT) {
            std::this_thread::yield();
            continue;
        }
        switch (numbers() % 12) {
            case 0:
                mailbox.create_batch();
                break;
            case 1:
            case 2:
                mail = mailbox.take_from_batch();
                break;
            case 3:
                if (numbers() % 8 == 0 && seed % 2 != 0) mailbox.drain(list);
                break;
            case 4:
                mail = mailbox.take(static_cast<int>(numbers() % 2), DEFERRABLE, &seen);
                break;
            default:
                mail = mailbox.take(numbers() % 4 == 0 ? 1 : MIN_PRIORITY, 0, &seen);
                if (mail == nullptr && seen == OPEN) mailbox.park(SLICE);
        }
        if (mail != nullptr) list.append(mail);
        while (mail_t* out = list.pop_first()) out->release();
    }
    // What is left is of the batch, and later.
    state_t seen = OPEN;
    mailbox.create_batch();
    if (mail_t* mail = mailbox.take(MIN_PRIORITY, 0, &seen)) mail->release();
    void* armed = nullptr;
    mailbox.close(list, &armed);
    while (mail_t* out = list.pop_first()) out->release();
}

template <class Inbox>
void run(int producers, int operations, unsigned seed) {
    Mailbox<Inbox> mailbox;
    mailbox.set_urgent_burst(4);
    std::vector<std::vector<mail_t>> mails;
    for (int number = 0; number < producers; ++number) mails.emplace_back(static_cast<std::size_t>(operations) * 3);
    std::vector<std::thread> threads;
    std::atomic<int> missing{producers + 1};
    for (int number = 0; number < producers; ++number) {
        threads.emplace_back([&, number] {
            meet(missing);
            produce(mailbox, mails[static_cast<std::size_t>(number)], operations, number == 0, seed + 1 + static_cast<unsigned>(number));
        });
    }
    meet(missing);
    consume(mailbox, seed);
    for (std::thread& thread : threads) thread.join();
    std::fputs(TraceLogs::all().take().c_str(), stdout);
}

int main(int count, char** words) {
    if (count != 5) return std::puts("mailbox_trace lock-free | mutex PRODUCERS OPERATIONS SEED"), 2;
    const int producers = std::atoi(words[2]), operations = std::atoi(words[3]);
    const auto seed = static_cast<unsigned>(std::atoi(words[4]));
    std::string_view(words[1]) == "mutex" ? run<MutexInbox>(producers, operations, seed)
                                          : run<LockFreeInbox>(producers, operations, seed);
    return 0;
}
