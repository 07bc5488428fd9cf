// Measures the kernel without Python, a chunk at a time: `chunks WORK [KIND] [NUMBER]`.
//
// Reads how many operations the next chunk has, one number a line, and answers with what they took, one
// number a line: nanoseconds, or bytes. So another program can measure in turn with this one. Prints "ready"
// first. A second thread sleeps meanwhile, since the C library makes locks cheaper in a process that has
// only one.
#include <string>

#include "bounded_work.h"
#include "mail_work.h"
#include "moodycamel.h"
#include "queue_work.h"

using namespace bench;

template <class Box>
std::unique_ptr<Work> mail_work(const std::string& name, int number) {
    if (name == "single") return std::make_unique<SingleMails<Box>>();
    if (name == "batch") return std::make_unique<BatchedMails<Box>>();
    if (name == "producers") return std::make_unique<ProducedMails<Box>>(number);
    if (name == "chains") return std::make_unique<ProducedMails<Box>>(1, number);
    if (name == "thereandback") return std::make_unique<ThereAndBack<Box>>(number);
    if (name == "bytes") return std::make_unique<BytesOfMails<Box>>();
    return nullptr;
}

// What a queue without priorities is not asked.
template <class Box>
std::unique_ptr<Work> mailbox_work(const std::string& name, int number) {
    if (name == "past") return std::make_unique<PastWaiting<Box>>(number);
    if (name == "among") return std::make_unique<AmongWaiting<Box>>(number);
    return mail_work<Box>(name, number);
}

std::unique_ptr<Work> queue_work(const std::string& name, const std::string& kind, int number) {
    // "ordered", "unordered"; with "-owner", completed by their owner alone.
    const bool ordered = kind.rfind("ordered", 0) == 0;
    const bool owner = kind.size() > 6 && kind.compare(kind.size() - 6, 6, "-owner") == 0;
    const auto completers = owner ? pillarbox::Completers::OWNER : pillarbox::Completers::ANY;
    if (!ordered && kind.rfind("unordered", 0) != 0) return nullptr;
    if (name == "steady") return std::make_unique<SteadyQueue>(ordered, completers, number);
    if (name == "rounds") return std::make_unique<QueueRounds>(ordered, completers, number);
    return nullptr;
}

std::unique_ptr<Work> work_of(const std::string& name, const std::string& kind, int number) {
    if (name == "handover") return std::make_unique<BoundedItems>(number);
    if (name == "deadline") return std::make_unique<ArmedAndCancelled>(number);
    if (kind == "lock-free") return mailbox_work<LockFree>(name, number);
    if (kind == "mutex") return mailbox_work<WithMutex>(name, number);
#ifdef BENCH_MOODYCAMEL
    if (kind == "moodycamel") return mail_work<Moodycamel>(name, number);
#endif
    return queue_work(name, kind, number);
}

int main(int count, char** words) {
    const std::string name = count > 1 ? words[1] : "";
    const std::string kind = count > 2 ? words[2] : "";
    const std::unique_ptr<Work> work = work_of(name, kind, count > 3 ? std::atoi(words[3]) : 0);
    if (work == nullptr) {
        std::fprintf(stderr,
                     "chunks single|batch|bytes lock-free|mutex|moodycamel\n"
                     "chunks producers|chains|thereandback lock-free|mutex|moodycamel NUMBER\n"
                     "chunks past|among lock-free|mutex NUMBER\n"
                     "chunks handover|deadline lock-free NUMBER\n"
                     "chunks steady|rounds ordered|ordered-owner|unordered|unordered-owner NUMBER\n");
        return 2;
    }
    std::mutex forever;
    forever.lock();
    std::thread second([&] { std::lock_guard<std::mutex> held(forever); });
    std::puts("ready");
    std::fflush(stdout);
    long long operations;
    while (std::scanf("%lld", &operations) == 1) {
        std::printf("%lld\n", work->chunk(operations));
        std::fflush(stdout);
    }
    forever.unlock();
    second.join();
    return 0;
}
