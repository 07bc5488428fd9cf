// Measures the kernel without Python, a chunk at a time: `chunks WORK [BACKEND] [NUMBER]`.
//
// Reads how many operations the next chunk has, one number a line, and answers with what they took, one
// number a line: nanoseconds, or bytes. So another program can measure in turn with this one. Prints "ready"
// first. A second thread sleeps meanwhile, since the C library makes locks cheaper in a process that has
// only one.
#include <string>

#include "mail_work.h"
#include "queue_work.h"

using namespace bench;

template <class Box>
std::unique_ptr<Work> mail_work(const std::string& name, int number) {
    if (name == "single") return std::make_unique<SingleMails<Box>>();
    if (name == "batch") return std::make_unique<BatchedMails<Box>>();
    if (name == "producers") return std::make_unique<ProducedMails<Box>>(number);
    if (name == "past") return std::make_unique<PastWaiting<Box>>(number);
    if (name == "among") return std::make_unique<AmongWaiting<Box>>(number);
    if (name == "bytes") return std::make_unique<BytesOfMails<Box>>();
    return nullptr;
}

std::unique_ptr<Work> queue_work(const std::string& name, const std::string& kind, int number) {
    const bool ordered = kind == "ordered";
    if (!ordered && kind != "unordered") return nullptr;
    if (name == "steady") return std::make_unique<SteadyQueue>(ordered, number);
    if (name == "rounds") return std::make_unique<QueueRounds>(ordered, number);
    return nullptr;
}

std::unique_ptr<Work> work_of(const std::string& name, const std::string& kind, int number) {
    if (kind == "lock-free") return mail_work<LockFree>(name, number);
    if (kind == "mutex") return mail_work<WithMutex>(name, number);
    return queue_work(name, kind, number);
}

int main(int count, char** words) {
    const std::string name = count > 1 ? words[1] : "";
    const std::string kind = count > 2 ? words[2] : "";
    const std::unique_ptr<Work> work = work_of(name, kind, count > 3 ? std::atoi(words[3]) : 0);
    if (work == nullptr) {
        std::fprintf(stderr,
                     "chunks single|batch|bytes lock-free|mutex\n"
                     "chunks producers|past|among lock-free|mutex NUMBER\n"
                     "chunks steady|rounds ordered|unordered NUMBER\n");
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
