// The header in C++, with what C++ programs do about freeing: plus SOCKET FILE

#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "piped.h"

namespace {

void check(piped_status status) {
    if (status != PIPED_OK)
        throw std::runtime_error(piped_last_message());
}

template <auto free> struct Free {
    template <typename T> void operator()(T *object) const { free(object); }
};

using Client = std::unique_ptr<piped_client, Free<piped_client_free>>;
using Handle = std::unique_ptr<piped_handle, Free<piped_handle_free>>;
using Queue = std::unique_ptr<piped_queue, Free<piped_queue_free>>;
using Buffer = std::unique_ptr<piped_buffer, Free<piped_buffer_free>>;

} // namespace

int main(int argc, char **argv) try {
    if (argc != 3)
        return 64;
    piped_client *client = nullptr;
    check(piped_connect(argv[1], nullptr, &client));
    const Client owned_client(client);
    piped_handle *file = nullptr;
    check(piped_open_file(client, argv[2], PIPED_READ, &file));
    const Handle owned_file(file);
    piped_queue *queue = nullptr;
    check(piped_queue_create(client, &queue));
    const Queue owned_queue(queue);
    piped_buffer *buffer = nullptr;
    check(piped_buffer_allocate(client, 4096, &buffer));
    const Buffer owned_buffer(buffer);
    piped_request_options options{};
    options.size = sizeof options;
    options.request_class = PIPED_CLASS_BULK;
    piped_result result;
    check(piped_read(queue, file, 0, buffer, &options, &result));
    std::printf("%llu bytes\n", static_cast<unsigned long long>(result.bytes));
    return 0;
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
