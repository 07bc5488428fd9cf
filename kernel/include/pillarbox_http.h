// HTTP by libcurl's multi-socket interface (https://curl.se/libcurl/c/libcurl-multi.html) on a thread of its own,
// which needs no GIL. Vectors are read on it, too. Linux.
//
// Requests go to the thread and come back by two mailboxes (pillarbox_mailbox.h, spec/Mailbox.tla): the thread
// consumes `commands_`, the owner, one thread too, consumes `results_`. Each sleeps in an epoll, and arms the eventfd
// that ends its sleep as its wake-up: a put calls it only for who is about to wait. An order is the owner's until it
// is put, the thread's until it is in `results_`, and then the owner's again.
//
// Only little things are allocated by what may throw; a process without memory for them ends.
#pragma once

#include <pthread.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "pillarbox_buffer.h"
#include "pillarbox_inbox.h"
#include "pillarbox_inflate.h"
#include "pillarbox_libcurl.h"
#include "pillarbox_mailbox.h"
#include "pillarbox_vectors.h"

namespace pillarbox {
namespace http {

class Driver;
struct handle_t;
struct request_t;

// What travels between the two threads.
struct order_t : mail_t {
    void* owner = nullptr;         // for the owner's use
    request_t* cancels = nullptr;  // the request that this order ends; null in a request
};

// `code` of a request that the end of the driver has ended, and of one that was cancelled.
constexpr int CLOSED_MEANWHILE = -1;
constexpr int CANCELLED = -2;
// Of an answer that ended within its headers or its compressed body, has a body above the bound, or one that does not
// decompress. libcurl takes the first for a success.
constexpr int BROKEN_OFF = -3;
constexpr int TOO_LARGE = -4;
constexpr int BADLY_CODED = -5;

// The content coding of an answer: none, one that the thread takes away, another one.
enum class coding_t { NONE, INFLATED, OTHER };

// What is pointed to must live until the request comes back.
struct request_t : order_t {
    // Written by the owner before the put.
    const char* url = nullptr;
    const char* method = nullptr;
    const char* proxy = nullptr;
    libcurl::slist_t* headers = nullptr;
    libcurl::slist_t* connect_to = nullptr;  // the address to connect to in place of the URL's host; null: none
    const char* body = nullptr;  // null: none
    std::size_t body_nbytes = 0;
    std::size_t vectors_wanted = 0;  // that the answer should hold in base64; 0: nothing is read
    bool is_fresh = false;           // on a new connection
    // Written by the thread before it comes back.
    int code = 0;  // 0 is success; a number of libcurl, or one of those above
    long status = 0;
    coding_t coding = coding_t::NONE;  // OTHER: the answer is as it came
    // Of errors only.
    long os_errno = 0;
    long request_nbytes = 0;  // sent
    long connect_code = 0;    // a proxy's answer to CONNECT
    bool is_reused = false;   // the connection had been kept
    double quiet_seconds = 0; // since all of the request was sent
    std::string message;
    Buffer head;
    Buffer answer;  // empty if it was read as vectors
    vectors_t vectors;
    bool has_vectors = false;
    // The thread's own.
    handle_t* handle = nullptr;
    std::size_t place = 0;  // among those in flight
    std::size_t body_sent = 0;
    double body_sent_at = 0;  // by steady_seconds(); 0: not yet
    bool head_is_whole = false;
    int fault = 0;  // a code of `receive`, which has ended the transfer
    bool ended = false;
};

// An easy handle, used for one request after another, with what is set on it.
struct handle_t {
    Driver* driver = nullptr;
    libcurl::easy_t* easy = nullptr;
    request_t* request = nullptr;
    std::string proxy;
    std::string method;     // of a request without a body
    bool is_fresh = false;  // takes new connections only
    bool has_place = false; // connects to another address than the URL's host
    Buffer spare;           // memory of an answer that was read as vectors, for the next
    Inflater inflater;
    char error[libcurl::ERROR_SIZE] = {};
};

constexpr std::size_t MAX_IDLE_HANDLES = 1024;
constexpr std::size_t MAX_EVENTS = 256;
// What a server says about the length of its answer is believed up to this.
constexpr std::int64_t MAX_RESERVED_BYTES = 1 << 26;
constexpr std::size_t MAX_SPARE_BYTES = 1 << 20;
constexpr long OK = 200;

class Driver {
public:
    explicit Driver(const libcurl::functions_t& curl) : curl_(curl), events_(MAX_EVENTS) {}
    Driver(const Driver&) = delete;
    Driver& operator=(const Driver&) = delete;

    // After `stop`.
    ~Driver() {
        for (handle_t* handle : idle_) free_handle(handle);
        if (multi_ != nullptr) curl_.multi_cleanup(multi_);
        if (template_ != nullptr) curl_.easy_cleanup(template_);
        for (int descriptor : {epoll_, commands_ready_, results_ready_}) {
            if (descriptor >= 0) ::close(descriptor);
        }
    }

    // ---- by the owner, before `start`

    // False: no memory or no descriptor.
    bool open() noexcept {
        multi_ = curl_.multi_init();
        template_ = curl_.easy_init();
        epoll_ = epoll_create1(EPOLL_CLOEXEC);
        commands_ready_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        results_ready_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (multi_ == nullptr || template_ == nullptr) return false;
        if (epoll_ < 0 || commands_ready_ < 0 || results_ready_ < 0) return false;
        curl_.multi_setopt(multi_, libcurl::SOCKETFUNCTION, watch);
        curl_.multi_setopt(multi_, libcurl::SOCKETDATA, this);
        curl_.multi_setopt(multi_, libcurl::TIMERFUNCTION, set_timer);
        curl_.multi_setopt(multi_, libcurl::TIMERDATA, this);
        curl_.easy_setopt(template_, libcurl::WRITEFUNCTION, receive);
        curl_.easy_setopt(template_, libcurl::HEADERFUNCTION, receive_head);
        curl_.easy_setopt(template_, libcurl::READFUNCTION, give_body);
        curl_.easy_setopt(template_, libcurl::OPENSOCKETFUNCTION, open_socket);
        curl_.easy_setopt(template_, libcurl::OPENSOCKETDATA, this);
        curl_.easy_setopt(template_, libcurl::CLOSESOCKETFUNCTION, close_socket);
        curl_.easy_setopt(template_, libcurl::CLOSESOCKETDATA, this);
        // The owner chooses the proxy. Without these libcurl would read the environment, which another thread
        // may be changing.
        curl_.easy_setopt(template_, libcurl::PROXY, "");
        curl_.easy_setopt(template_, libcurl::NOPROXY, "");
        epoll_event event{};
        // Edge-triggered: each write is an event, and nobody has to read it.
        event.events = EPOLLIN | EPOLLET;
        event.data.fd = commands_ready_;
        return epoll_ctl(epoll_, EPOLL_CTL_ADD, commands_ready_, &event) == 0;
    }

    // Options of every request. They return a code of libcurl.
    int set_number(int option, long value) noexcept { return curl_.easy_setopt(template_, option, value); }
    int set_text(int option, const char* value) noexcept { return curl_.easy_setopt(template_, option, value); }
    int set_of_all(int option, long value) noexcept { return curl_.multi_setopt(multi_, option, value); }
    // Bytes of an answer, decompressed.
    void set_max_answer(std::size_t nbytes) noexcept { max_answer_bytes_ = nbytes; }

    void start() {
        arm();
        // Signals are for Python's threads.
        sigset_t all;
        sigset_t before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            thread_ = std::thread([this] { run(); });
        } catch (...) {
            pthread_sigmask(SIG_SETMASK, &before, nullptr);
            throw;
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        pthread_setname_np(thread_.native_handle(), "pillarbox-http");
    }

    // ---- by the owner

    // Keeps an order for the next `flush`: one wake-up of the thread for many.
    void add(order_t* order) noexcept {
        order->claim_alone();
        waiting_.add(order);
    }
    // spec: Mailbox!PutAll
    void flush() noexcept { put(commands_, waiting_, commands_ready_); }

    // Becomes readable when something has come back.
    int results_ready() const noexcept { return results_ready_; }

    // Before the first `take` after that.
    void read_results_ready() noexcept {
        std::uint64_t count;
        (void)!::read(results_ready_, &count, sizeof(count));
    }

    // The next order that has come back; null if there is none, and the next will make `results_ready` readable.
    // spec: Mailbox!Take, Mailbox!TakeNothing, Mailbox!Arm, Mailbox!ArmRefused
    order_t* take() noexcept {
        do {
            if (order_t* const order = taken_from(results_, nullptr)) return order;
        } while (!arm());
        return nullptr;
    }

    // Ends all requests, which come back, and the thread. May be called again. Not with the GIL.
    // spec: Mailbox!Quiesce
    void stop() {
        if (!thread_.joinable()) return;
        flush();
        void* armed = nullptr;
        commands_.quiesce(&armed);
        wake(armed, commands_ready_);
        thread_.join();
    }

private:
    using Core = Mailbox<Inbox>;

    // A descriptor that libcurl has.
    struct socket_t {
        bool ours = false;          // opened by `open_socket`: its end is told to `close_socket`
        bool wanted = false;        // libcurl waits for an event of it
        std::uint32_t watched = 0;  // the events that the epoll knows of; 0: it does not know the descriptor
    };

    bool arm() noexcept {
        void* spare = nullptr;
        return results_.arm(&results_ready_, &spare);
    }

    static void wake(const void* armed, int ready) noexcept {
        const std::uint64_t one = 1;
        if (armed != nullptr) (void)!::write(ready, &one, sizeof(one));
    }

    // Puts a chain, which is empty afterwards.
    static void put(Core& mailbox, chain_t& chain, int ready) noexcept {
        if (chain.count == 0) return;
        void* armed = nullptr;
        mailbox.put(chain, &armed);
        chain = chain_t();
        wake(armed, ready);
    }

    static order_t* taken_from(Core& mailbox, state_t* state) noexcept {
        state_t seen = OPEN;
        mail_t* const mail = mailbox.take(MIN_PRIORITY, 0, &seen);
        if (state != nullptr) *state = seen;
        if (mail == nullptr) return nullptr;
        mail->release();
        return static_cast<order_t*>(mail);
    }

    // ---- the thread

    void run() noexcept {
        while (follow_commands()) {
            if (timer_due_ >= 0 && steady_seconds() >= timer_due_) {
                timer_due_ = -1;
                act(libcurl::SOCKET_TIMEOUT, 0);
            }
            collect();
            // spec: Mailbox!Arm, Mailbox!ArmRefused
            void* spare = nullptr;
            const bool armed = commands_.arm(&commands_ready_, &spare);
            const int timeout_ms = armed ? time_to_timer_ms() : 0;
            const int count = epoll_wait(epoll_, events_.data(), static_cast<int>(events_.size()), timeout_ms);
            for (int i = 0; i < count; ++i) handle_event(events_[static_cast<std::size_t>(i)]);
        }
        while (!in_flight_.empty()) end(in_flight_.back(), CLOSED_MEANWHILE);
        put(results_, returning_, results_ready_);
    }

    // False: no more can come.
    // spec: Mailbox!Take, Mailbox!TakeNothing, Mailbox!TakeEnded
    bool follow_commands() noexcept {
        state_t seen = OPEN;
        while (order_t* const order = taken_from(commands_, &seen)) {
            if (order->cancels == nullptr) {
                send(static_cast<request_t*>(order));
                continue;
            }
            if (!order->cancels->ended) end(order->cancels, CANCELLED);
            give_back(order);
        }
        return seen == OPEN;
    }

    int time_to_timer_ms() const noexcept {
        if (timer_due_ < 0) return -1;
        const double left = (timer_due_ - steady_seconds()) * 1000;
        // Not early: a turn of the loop for nothing.
        return left <= 0 ? 0 : left > 1e6 ? 1'000'000 : static_cast<int>(left) + 1;
    }

    void act(int descriptor, int mask) noexcept {
        int running = 0;
        curl_.multi_socket_action(multi_, descriptor, mask, &running);
    }

    void handle_event(const epoll_event& event) noexcept {
        const int descriptor = event.data.fd;
        if (descriptor == commands_ready_) return;
        socket_t& socket = socket_of(descriptor);
        if (!socket.wanted) {
            // The server has closed a kept connection. libcurl finds that when it takes it for a request.
            epoll_ctl(epoll_, EPOLL_CTL_DEL, descriptor, nullptr);
            socket.watched = 0;
            return;
        }
        // Errors and ends are found by reading.
        const bool in = (event.events & ~EPOLLOUT) != 0;
        const bool out = (event.events & EPOLLOUT) != 0;
        act(descriptor, (in ? libcurl::SELECT_IN : 0) | (out ? libcurl::SELECT_OUT : 0));
    }

    void send(request_t* request) noexcept {
        handle_t* const handle = free_or_new_handle();
        if (handle == nullptr) {
            request->code = libcurl::OUT_OF_MEMORY;
            request->ended = true;
            give_back(request);
            return;
        }
        libcurl::easy_t* const easy = handle->easy;
        request->handle = handle;
        request->place = in_flight_.size();
        in_flight_.push_back(request);
        handle->request = request;
        handle->error[0] = '\0';
        if (request->vectors_wanted != 0) request->answer.swap(handle->spare);
        curl_.easy_setopt(easy, libcurl::URL, request->url);
        curl_.easy_setopt(easy, libcurl::HTTPHEADER, request->headers);
        curl_.easy_setopt(easy, libcurl::WRITEDATA, request);
        curl_.easy_setopt(easy, libcurl::HEADERDATA, request);
        if (handle->is_fresh != request->is_fresh) {
            handle->is_fresh = request->is_fresh;
            curl_.easy_setopt(easy, libcurl::FRESH_CONNECT, request->is_fresh ? 1L : 0L);
        }
        if (handle->has_place || request->connect_to != nullptr) {
            // libcurl keeps the pointer, and not the lines.
            handle->has_place = request->connect_to != nullptr;
            curl_.easy_setopt(easy, libcurl::CONNECT_TO, request->connect_to);
        }
        if (handle->proxy != request->proxy) {
            handle->proxy = request->proxy;
            curl_.easy_setopt(easy, libcurl::PROXY, request->proxy);
        }
        if (request->body != nullptr) {
            const auto nbytes = static_cast<std::int64_t>(request->body_nbytes);
            curl_.easy_setopt(easy, libcurl::POST, 1L);
            curl_.easy_setopt(easy, libcurl::CUSTOMREQUEST, request->method);
            curl_.easy_setopt(easy, libcurl::POSTFIELDSIZE_LARGE, nbytes);
            curl_.easy_setopt(easy, libcurl::READDATA, request);
            handle->method.clear();
        } else if (handle->method != request->method) {
            curl_.easy_setopt(easy, libcurl::HTTPGET, 1L);
            curl_.easy_setopt(easy, libcurl::CUSTOMREQUEST, request->method);
            handle->method = request->method;
        }
        if (curl_.multi_add_handle(multi_, easy) != 0) end(request, libcurl::OUT_OF_MEMORY);
    }

    handle_t* free_or_new_handle() noexcept {
        if (!idle_.empty()) {
            handle_t* const idle = idle_.back();
            idle_.pop_back();
            return idle;
        }
        handle_t* const handle = new (std::nothrow) handle_t();
        if (handle == nullptr) return nullptr;
        handle->driver = this;
        handle->easy = curl_.easy_duphandle(template_);
        if (handle->easy == nullptr) {
            delete handle;
            return nullptr;
        }
        curl_.easy_setopt(handle->easy, libcurl::PRIVATE, handle);
        curl_.easy_setopt(handle->easy, libcurl::ERRORBUFFER, handle->error);
        return handle;
    }

    void free_handle(handle_t* handle) noexcept {
        curl_.easy_cleanup(handle->easy);
        delete handle;
    }

    // Ends the requests that libcurl has finished, and gives back all that have ended.
    void collect() noexcept {
        int left = 0;
        while (const libcurl::message_t* const message = curl_.multi_info_read(multi_, &left)) {
            if (message->kind != libcurl::MESSAGE_DONE) continue;
            char* found = nullptr;
            curl_.easy_getinfo(message->easy, libcurl::INFO_PRIVATE, &found);
            end(reinterpret_cast<handle_t*>(found)->request, message->code);
        }
        put(results_, returning_, results_ready_);
    }

    void end(request_t* request, int code) noexcept {
        handle_t* const handle = request->handle;
        libcurl::easy_t* const easy = handle->easy;
        if (code > 0) {
            read_error(*request, code);
            if (request->fault != 0) code = request->fault;
        } else if (code == 0) {
            // Of a stream that ends in its headers libcurl says nothing.
            const bool is_inflated = request->coding == coding_t::INFLATED;
            if (!request->head_is_whole || (is_inflated && !handle->inflater.is_whole())) code = BROKEN_OFF;
        }
        request->code = code;
        curl_.easy_getinfo(easy, libcurl::INFO_RESPONSE_CODE, &request->status);
        if (code == 0 && request->status == OK && request->vectors_wanted != 0) read_vectors(*request);
        curl_.multi_remove_handle(multi_, easy);
        in_flight_[request->place] = in_flight_.back();
        in_flight_[request->place]->place = request->place;
        in_flight_.pop_back();
        handle->request = nullptr;
        if (idle_.size() < MAX_IDLE_HANDLES) {
            idle_.push_back(handle);
        } else {
            free_handle(handle);
        }
        request->ended = true;
        give_back(request);
    }

    void read_error(request_t& request, int code) noexcept {
        handle_t* const handle = request.handle;
        libcurl::easy_t* const easy = handle->easy;
        long connections = 0;
        curl_.easy_getinfo(easy, libcurl::INFO_NUM_CONNECTS, &connections);
        request.is_reused = connections == 0;
        curl_.easy_getinfo(easy, libcurl::INFO_OS_ERRNO, &request.os_errno);
        curl_.easy_getinfo(easy, libcurl::INFO_REQUEST_SIZE, &request.request_nbytes);
        curl_.easy_getinfo(easy, libcurl::INFO_CONNECT_CODE, &request.connect_code);
        if (request.body_sent_at != 0) {
            request.quiet_seconds = steady_seconds() - request.body_sent_at;
        } else if (request.body_nbytes == 0) {
            double total = 0;
            double sent = 0;
            curl_.easy_getinfo(easy, libcurl::INFO_TOTAL_TIME, &total);
            curl_.easy_getinfo(easy, libcurl::INFO_PRETRANSFER_TIME, &sent);
            request.quiet_seconds = total - sent;
        }
        request.message = handle->error[0] != '\0' ? handle->error : curl_.easy_strerror(code);
    }

    static void read_vectors(request_t& request) noexcept {
        Buffer& answer = request.answer;
        VectorReader reader(answer.data(), answer.size());
        request.has_vectors = reader.read(request.vectors_wanted, request.vectors);
        if (!request.has_vectors) return;
        answer.clear();
        Buffer nothing;
        answer.swap(answer.capacity() <= MAX_SPARE_BYTES ? request.handle->spare : nothing);
    }

    void give_back(order_t* order) noexcept {
        order->claim_alone();
        returning_.add(order);
    }

    socket_t& socket_of(int descriptor) noexcept {
        const auto index = static_cast<std::size_t>(descriptor);
        if (index >= sockets_.size()) sockets_.resize(2 * index + 1);
        return sockets_[index];
    }

    // ---- called by libcurl, on the thread; the last two by the destructor, too

    static std::size_t receive(char* bytes, std::size_t size, std::size_t count, void* data) noexcept {
        request_t* const request = static_cast<request_t*>(data);
        const std::size_t given = size * count;
        request->fault = request->handle->driver->take_body(*request, bytes, given);
        return request->fault == 0 ? given : 0;
    }

    // 0, or the code of the request that ends so.
    int take_body(request_t& request, const char* bytes, std::size_t count) noexcept {
        Buffer& answer = request.answer;
        if (request.coding == coding_t::INFLATED) {
            const inflated_t done = request.handle->inflater.feed(bytes, count, answer, max_answer_bytes_);
            if (done == inflated_t::OK) return 0;
            if (done == inflated_t::TOO_LARGE) return TOO_LARGE;
            return done == inflated_t::BAD ? BADLY_CODED : libcurl::OUT_OF_MEMORY;
        }
        if (answer.size() == 0 && !reserve(request)) return TOO_LARGE;
        if (count > max_answer_bytes_ - answer.size()) return TOO_LARGE;
        return answer.append(bytes, count) ? 0 : libcurl::OUT_OF_MEMORY;
    }

    // Room for a whole answer, if its length is known. False: it is too long.
    bool reserve(request_t& request) noexcept {
        std::int64_t nbytes = 0;
        curl_.easy_getinfo(request.handle->easy, libcurl::INFO_CONTENT_LENGTH, &nbytes);
        if (nbytes <= 0) return true;
        if (static_cast<std::uint64_t>(nbytes) > max_answer_bytes_) return false;
        if (nbytes > MAX_RESERVED_BYTES) nbytes = MAX_RESERVED_BYTES;
        // Without memory for it the answer still grows, or fails, by itself.
        (void)request.answer.reserve(static_cast<std::size_t>(nbytes));
        return true;
    }

    static std::size_t receive_head(char* bytes, std::size_t size, std::size_t count, void* data) noexcept {
        request_t* const request = static_cast<request_t*>(data);
        const std::size_t given = size * count;
        request->handle->driver->read_line(*request, bytes, given);
        return request->head.append(bytes, given) ? given : 0;
    }

    // A line of the headers, or of the trailers behind the body.
    void read_line(request_t& request, const char* line, std::size_t length) noexcept {
        constexpr char NAME[] = "content-encoding:";
        constexpr std::size_t NAME_LENGTH = sizeof(NAME) - 1;
        if (length >= 5 && std::memcmp(line, "HTTP/", 5) == 0) {
            // Those of an interim answer came before.
            request.head_is_whole = false;
            request.coding = coding_t::NONE;
        } else if (request.head_is_whole) {
            return;
        } else if (line[0] == '\r' || line[0] == '\n') {
            request.head_is_whole = true;
        } else if (length > NAME_LENGTH && strncasecmp(line, NAME, NAME_LENGTH) == 0) {
            read_coding(request, line + NAME_LENGTH, length - NAME_LENGTH);
        }
    }

    void read_coding(request_t& request, const char* value, std::size_t length) noexcept {
        const auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
        while (length != 0 && is_blank(*value)) ++value, --length;
        while (length != 0 && is_blank(value[length - 1])) --length;
        const auto is = [=](const char* name) {
            return std::strlen(name) == length && strncasecmp(value, name, length) == 0;
        };
        if (length == 0 || is("identity")) return;
        const bool is_gzip = is("gzip") || is("x-gzip");
        const bool is_known = (is_gzip || is("deflate")) && curl_.inflating.are_there();
        const bool is_only = request.coding == coding_t::NONE;
        request.coding = coding_t::OTHER;
        if (is_known && is_only && request.handle->inflater.begin(curl_.inflating, is_gzip)) {
            request.coding = coding_t::INFLATED;
        }
    }

    // libcurl by itself sends a body again that it can begin again, if a kept connection breaks before the answer;
    // the service may have worked for the first. What comes from here cannot begin again: a request with a body
    // is sent once.
    static std::size_t give_body(char* to, std::size_t size, std::size_t count, void* data) noexcept {
        request_t* const request = static_cast<request_t*>(data);
        const std::size_t left = request->body_nbytes - request->body_sent;
        const std::size_t given = left < size * count ? left : size * count;
        std::memcpy(to, request->body + request->body_sent, given);
        request->body_sent += given;
        if (given == left) request->body_sent_at = steady_seconds();
        return given;
    }

    static int set_timer(libcurl::multi_t*, long milliseconds, void* data) noexcept {
        const double now = steady_seconds();
        static_cast<Driver*>(data)->timer_due_ =
            milliseconds < 0 ? -1.0 : now + static_cast<double>(milliseconds) / 1000;
        return 0;
    }

    // Which events of a descriptor libcurl waits for. A connection stays in the epoll while no request uses it, which
    // saves two system calls for each request.
    static int watch(libcurl::easy_t*, int descriptor, int what, void* data, void*) noexcept {
        Driver& driver = *static_cast<Driver*>(data);
        socket_t& socket = driver.socket_of(descriptor);
        socket.wanted = what != libcurl::POLL_REMOVE;
        if (!socket.wanted) {
            if (socket.ours || socket.watched == 0) return 0;
            epoll_ctl(driver.epoll_, EPOLL_CTL_DEL, descriptor, nullptr);
            socket.watched = 0;
            return 0;
        }
        epoll_event event{};
        if (what & libcurl::POLL_IN) event.events |= EPOLLIN;
        if (what & libcurl::POLL_OUT) event.events |= EPOLLOUT;
        if (socket.watched == event.events) return 0;
        event.data.fd = descriptor;
        const int operation = socket.watched == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
        socket.watched = event.events;
        return epoll_ctl(driver.epoll_, operation, descriptor, &event);
    }

    static int open_socket(void* data, int, libcurl::address_t* address) noexcept {
        const int type = address->type | SOCK_CLOEXEC | SOCK_NONBLOCK;
        const int descriptor = ::socket(address->family, type, address->protocol);
        if (descriptor < 0) return descriptor;
        socket_t& socket = static_cast<Driver*>(data)->socket_of(descriptor);
        socket = socket_t();
        socket.ours = true;
        return descriptor;
    }

    static int close_socket(void* data, int descriptor) noexcept {
        // Closing takes it out of the epoll.
        static_cast<Driver*>(data)->socket_of(descriptor) = socket_t();
        return ::close(descriptor);
    }

    const libcurl::functions_t& curl_;
    std::size_t max_answer_bytes_ = SIZE_MAX / 2;
    libcurl::multi_t* multi_ = nullptr;
    libcurl::easy_t* template_ = nullptr;
    int epoll_ = -1;
    int commands_ready_ = -1;
    int results_ready_ = -1;
    std::thread thread_;
    Core commands_;
    Core results_;
    chain_t waiting_;  // the owner's
    // The thread's.
    std::vector<epoll_event> events_;
    std::vector<handle_t*> idle_;
    std::vector<request_t*> in_flight_;
    std::vector<socket_t> sockets_;
    chain_t returning_;
    double timer_due_ = -1;  // by steady_seconds(); below 0: never
};

}  // namespace http
}  // namespace pillarbox
