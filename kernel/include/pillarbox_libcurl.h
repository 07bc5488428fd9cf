// The functions of libcurl that the kernel calls, found in the library that is loaded already.
//
// libcurl's interface is stable since its version 7: numbers of options and answers never change their meaning
// (https://curl.se/libcurl/abi.html). So neither its headers are needed nor anything to link with; the wheel of
// pycurl holds the library, and Python's constants are those of pycurl.
#pragma once

#include <dlfcn.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

#include "pillarbox_inflate.h"

namespace pillarbox {
namespace libcurl {

using easy_t = void;
using multi_t = void;
struct slist_t;

struct message_t {
    int kind;
    easy_t* easy;
    union {
        void* data;
        int code;
    };
};

struct address_t {
    int family;
    int type;
    int protocol;
    unsigned int length;
    sockaddr address;
};

// Options of an easy handle.
enum : int {
    WRITEDATA = 10001,
    URL = 10002,
    PROXY = 10004,
    READDATA = 10009,
    ERRORBUFFER = 10010,
    HTTPHEADER = 10023,
    HEADERDATA = 10029,
    CUSTOMREQUEST = 10036,
    POST = 47,
    FRESH_CONNECT = 74,
    HTTPGET = 80,
    PRIVATE = 10103,
    CONNECT_TO = 10243,
    NOPROXY = 10177,
    OPENSOCKETDATA = 10164,
    CLOSESOCKETDATA = 10209,
    WRITEFUNCTION = 20011,
    READFUNCTION = 20012,
    HEADERFUNCTION = 20079,
    OPENSOCKETFUNCTION = 20163,
    CLOSESOCKETFUNCTION = 20208,
    POSTFIELDSIZE_LARGE = 30120,
};
// Options of a multi handle.
enum : int {
    SOCKETDATA = 10002,
    TIMERDATA = 10005,
    SOCKETFUNCTION = 20001,
    TIMERFUNCTION = 20004,
};
// What is asked of an easy handle.
enum : int {
    INFO_PRIVATE = 0x100015,
    INFO_RESPONSE_CODE = 0x200002,
    INFO_REQUEST_SIZE = 0x20000C,
    INFO_CONNECT_CODE = 0x200016,
    INFO_OS_ERRNO = 0x200019,
    INFO_NUM_CONNECTS = 0x20001A,
    INFO_TOTAL_TIME = 0x300003,
    INFO_PRETRANSFER_TIME = 0x300006,
    INFO_CONTENT_LENGTH = 0x60000F,
};
constexpr int POLL_IN = 1;
constexpr int POLL_OUT = 2;
constexpr int POLL_REMOVE = 4;
constexpr int SELECT_IN = 1;
constexpr int SELECT_OUT = 2;
constexpr int SOCKET_TIMEOUT = -1;
constexpr int MESSAGE_DONE = 1;
constexpr std::size_t ERROR_SIZE = 256;
constexpr int OUT_OF_MEMORY = 27;

struct functions_t {
    easy_t* (*easy_init)();
    easy_t* (*easy_duphandle)(easy_t*);
    int (*easy_setopt)(easy_t*, int, ...);
    int (*easy_getinfo)(easy_t*, int, ...);
    void (*easy_cleanup)(easy_t*);
    const char* (*easy_strerror)(int);
    multi_t* (*multi_init)();
    int (*multi_setopt)(multi_t*, int, ...);
    int (*multi_add_handle)(multi_t*, easy_t*);
    int (*multi_remove_handle)(multi_t*, easy_t*);
    int (*multi_socket_action)(multi_t*, int, int, int*);
    message_t* (*multi_info_read)(multi_t*, int*);
    int (*multi_cleanup)(multi_t*);
    slist_t* (*slist_append)(slist_t*, const char*);
    void (*slist_free_all)(slist_t*);
    zlib::functions_t inflating;  // may be missing

    // Finds them in the library at `path` or in those that it is linked with, and keeps it loaded. Returns null, or
    // what is missing.
    const char* load(const char* path) noexcept {
        void* const library = dlopen(path, RTLD_NOW);
        if (library == nullptr) return path;
#define PILLARBOX_FIND(name)                                                             \
    name = reinterpret_cast<decltype(name)>(dlsym(library, "curl_" #name));              \
    if (name == nullptr) return "curl_" #name
        PILLARBOX_FIND(easy_init);
        PILLARBOX_FIND(easy_duphandle);
        PILLARBOX_FIND(easy_setopt);
        PILLARBOX_FIND(easy_getinfo);
        PILLARBOX_FIND(easy_cleanup);
        PILLARBOX_FIND(easy_strerror);
        PILLARBOX_FIND(multi_init);
        PILLARBOX_FIND(multi_setopt);
        PILLARBOX_FIND(multi_add_handle);
        PILLARBOX_FIND(multi_remove_handle);
        PILLARBOX_FIND(multi_socket_action);
        PILLARBOX_FIND(multi_info_read);
        PILLARBOX_FIND(multi_cleanup);
        PILLARBOX_FIND(slist_append);
        PILLARBOX_FIND(slist_free_all);
#undef PILLARBOX_FIND
        (void)inflating.find_in(library);
        return nullptr;
    }
};

}  // namespace libcurl
}  // namespace pillarbox
