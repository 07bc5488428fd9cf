// The thread of pillarbox_http.h under load: requests that are answered, cancelled, refused and ended by the stop,
// against a server in this program. Each comes back once, with the answer that is its own.
//
// Called with the path of a library that is linked with libcurl.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "pillarbox_http.h"

namespace {

using namespace pillarbox;

constexpr int ROUNDS = 4;
constexpr int REQUESTS = 1500;
constexpr int IN_FLIGHT = 48;
constexpr int MOST_MS = 30000;
constexpr int NOSIGNAL = 99;  // an option of libcurl

// Answers `POST /NUMBER` with the number and the body; never answers one whose number ends with 7, and closes the
// connection at one that ends with 93.
class Server {
public:
    Server() : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof(address);
        require(::bind(listener_, reinterpret_cast<sockaddr*>(&address), length) == 0, "no port");
        require(::listen(listener_, 256) == 0, "nothing listens");
        require(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) == 0, "no name");
        port_ = ntohs(address.sin_port);
        acceptor_ = std::thread([this] { accept_all(); });
    }
    ~Server() {
        ::shutdown(listener_, SHUT_RDWR);
        acceptor_.join();
        ::close(listener_);
        for (std::thread& each : connections_) each.join();
    }
    int port() const { return port_; }

private:
    void accept_all() {
        while (true) {
            const int connection = ::accept(listener_, nullptr, nullptr);
            if (connection < 0) return;
            connections_.emplace_back([connection] { serve(connection); });
        }
    }

    static void serve(int connection) {
        const int yes = 1;
        ::setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
        std::string received;
        char part[4096];
        while (true) {
            const std::size_t head = received.find("\r\n\r\n");
            const std::size_t said = received.find("Content-Length: ");
            const std::size_t body = said < head ? std::strtoul(received.c_str() + said + 16, nullptr, 10) : 0;
            if (head == std::string::npos || received.size() < head + 4 + body) {
                const ssize_t count = ::recv(connection, part, sizeof(part), 0);
                if (count <= 0) break;
                received.append(part, static_cast<std::size_t>(count));
                continue;
            }
            const std::size_t slash = received.find('/');
            const std::string number = received.substr(slash + 1, received.find(' ', slash) - slash - 1);
            const std::string content = number + ":" + received.substr(head + 4, body);
            received.erase(0, head + 4 + body);
            if (number.size() > 1 && number.compare(number.size() - 2, 2, "93") == 0) break;
            if (number.back() == '7') continue;
            const std::string answer =
                "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(content.size()) + "\r\n\r\n" + content;
            if (::send(connection, answer.data(), answer.size(), MSG_NOSIGNAL) < 0) break;
        }
        ::close(connection);
    }

    int listener_;
    int port_ = 0;
    std::thread acceptor_;
    std::vector<std::thread> connections_;
};

struct sent_t {
    http::request_t request;
    http::order_t cancel;
    std::string url;
    std::string body;
    int number = 0;
    int came_back = 0;
    bool is_cancelled = false;
    bool cancel_came_back = false;
};

// Takes what has come back. Returns how many requests.
int take_all(http::Driver& driver) {
    int found = 0;
    while (http::order_t* const order = driver.take()) {
        sent_t& sent = *static_cast<sent_t*>(order->owner);
        if (order->cancels != nullptr) {
            require(!sent.cancel_came_back, "a cancel came back twice");
            sent.cancel_came_back = true;
            continue;
        }
        ++found;
        ++sent.came_back;
        if (sent.request.code != 0) continue;
        const std::string expected = std::to_string(sent.number) + ":" + sent.body;
        require(sent.request.status == 200, "a status is another one");
        const Buffer& answer = sent.request.answer;
        require(std::string(answer.data(), answer.size()) == expected, "an answer is another's");
    }
    return found;
}

void try_round(const libcurl::functions_t& curl, int port, unsigned seed) {
    std::vector<std::unique_ptr<sent_t>> all;
    http::Driver driver(curl);
    require(driver.open(), "the driver does not open");
    require(driver.set_number(NOSIGNAL, 1) == 0, "an option is refused");
    driver.start();
    int in_flight = 0;
    while (all.size() < REQUESTS) {
        while (in_flight < IN_FLIGHT && all.size() < REQUESTS) {
            all.push_back(std::make_unique<sent_t>());
            sent_t& sent = *all.back();
            sent.number = static_cast<int>(all.size());
            sent.url = "http://127.0.0.1:" + std::to_string(port) + "/" + std::to_string(sent.number);
            sent.body = std::string(static_cast<std::size_t>(sent.number % 300), 'b');
            sent.request.owner = sent.cancel.owner = &sent;
            sent.request.url = sent.url.c_str();
            sent.request.method = sent.number % 3 ? "POST" : "PUT";
            sent.request.proxy = "";
            sent.request.body = sent.body.data();
            sent.request.body_nbytes = sent.body.size();
            driver.add(&sent.request);
            ++in_flight;
            // Some before they were put, some after their answer; all that get no answer.
            seed = seed * 1103515245u + 12345u;
            sent.is_cancelled = sent.number % 10 == 7 || (seed >> 16) % 9 == 0;
            if (!sent.is_cancelled) continue;
            if ((seed >> 20) % 3 != 0) driver.flush();
            if ((seed >> 24) % 3 == 0) std::this_thread::yield();
            sent.cancel.cancels = &sent.request;
            driver.add(&sent.cancel);
        }
        driver.flush();
        pollfd ready{driver.results_ready(), POLLIN, 0};
        require(::poll(&ready, 1, MOST_MS) == 1, "nothing comes back");
        driver.read_results_ready();
        in_flight -= take_all(driver);
    }
    driver.stop();
    driver.stop();
    take_all(driver);
    int answered = 0;
    for (const auto& sent : all) {
        require(sent->came_back == 1, "a request did not come back once");
        require(sent->cancel_came_back == sent->is_cancelled, "a cancel did not come back");
        answered += sent->request.code == 0;
        if (sent->number % 10 == 7) require(sent->request.code < 0, "what was not answered has an answer");
        if (sent->number % 100 == 93) require(sent->request.code != 0, "a closed connection answered");
    }
    require(answered > REQUESTS / 2, "most are not answered");
}

}  // namespace

int main(int count, char** words) {
    require(count == 2, "give the path of a library");
    libcurl::functions_t curl;
    const char* const missing = curl.load(words[1]);
    if (missing != nullptr) {
        std::printf("%s is missing\n", missing);
        return 1;
    }
    Server server;
    for (int round = 0; round < ROUNDS; ++round) try_round(curl, server.port(), static_cast<unsigned>(round) + 1);
    std::puts("ok");
    return 0;
}
