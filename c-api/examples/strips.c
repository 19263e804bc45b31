/* Computation beside communication, without buffers and waits by hand:
 * strips SOCKET [PEER SOCKET_OF_PEER]
 *
 * One client offers room for numbers. Another writes squares there in strips, each of which travels
 * while the next one is computed, and adds them up in strips, each of which comes while the one
 * before is added. With PEER it does so from another node. */

#include <inttypes.h>

#include "check.h"

enum { NUMBERS = 1 << 17, BYTES = NUMBERS * sizeof(uint64_t) };

int main(int argc, char **argv) {
    if (argc != 2 && argc != 4) {
        fprintf(stderr, "usage: strips SOCKET [PEER SOCKET_OF_PEER]\n");
        return 64;
    }
    const char *peer = argc == 4 ? argv[2] : NULL;
    piped_client *owner = NULL;
    piped_buffer *memory = NULL;
    piped_region *exported = NULL;
    CHECK(piped_connect(argc == 4 ? argv[3] : argv[1], NULL, &owner));
    CHECK(piped_buffer_allocate(owner, BYTES, &memory));
    CHECK(piped_region_export(owner, "numbers", memory, PIPED_READ | PIPED_WRITE, &exported));

    piped_client *client = NULL;
    piped_handle *numbers = NULL;
    piped_queue *queue = NULL;
    CHECK(piped_connect(argv[1], NULL, &client));
    CHECK(piped_open_region(client, peer, "numbers", PIPED_READ | PIPED_WRITE, &numbers));
    CHECK(piped_queue_create(client, &queue));
    const struct piped_strips_options options = {.size = sizeof options, .grain = sizeof(uint64_t)};
    struct piped_strip strip;
    piped_strips *strips = NULL;
    uint64_t written = 0;

    CHECK(piped_strips_write(client, numbers, 0, BYTES, &options, &strips));
    for (;;) {
        CHECK(piped_strips_next(strips, queue, &strip));
        if (!strip.data)
            break;
        uint64_t *squares = strip.data, first = strip.offset / sizeof *squares;
        for (size_t at = 0; at < strip.length / sizeof *squares; at++)
            squares[at] = (first + at) * (first + at);
    }
    CHECK(piped_strips_finish(strips, queue, &written));
    printf("%" PRIu64 " bytes of squares\n", written);

    uint64_t sum = 0;
    CHECK(piped_strips_read(client, numbers, 0, BYTES, &options, &strips));
    for (;;) {
        CHECK(piped_strips_next(strips, queue, &strip));
        if (!strip.data)
            break;
        const uint64_t *squares = strip.data;
        for (size_t at = 0; at < strip.length / sizeof *squares; at++)
            sum += squares[at];
    }
    piped_strips_free(strips);
    printf("their sum is %" PRIu64 "\n", sum);

    piped_queue_free(queue);
    piped_handle_free(numbers);
    piped_client_free(client);
    CHECK(piped_region_close(exported));
    piped_buffer_free(memory);
    piped_client_free(owner);
    return 0;
}
