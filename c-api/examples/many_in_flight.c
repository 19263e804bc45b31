/* Keep a number of reads under way: many_in_flight SOCKET FILE DEPTH
 *
 * Detached requests come back in the order they end; each buffer goes straight into the next
 * request. In the steady state this makes no system call and no allocation. */

#include <inttypes.h>

#include "check.h"

enum { BLOCK_BYTES = 16 * 1024 };

static void submit(piped_queue *queue, piped_handle *file, uint64_t block, piped_buffer *buffer) {
    struct piped_request_options options = {
        .size = sizeof options,
        .flags = PIPED_DETACHED,
        .tag = block,
    };
    struct piped_request read;
    piped_prep_read(&read, file, block * BLOCK_BYTES, buffer);
    CHECK(piped_submit(queue, &read, &options, NULL));
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: many_in_flight SOCKET FILE DEPTH\n");
        return 64;
    }
    struct piped_connect_options options = {
        .size = sizeof options,
        .depth = (uint32_t)strtoul(argv[3], NULL, 10),
    };
    piped_client *client = NULL;
    piped_handle *file = NULL;
    piped_queue *queue = NULL;
    uint64_t length = 0;
    CHECK(piped_connect(argv[1], &options, &client));
    CHECK(piped_open_file(client, argv[2], PIPED_READ, &file));
    CHECK(piped_handle_length(file, &length));
    CHECK(piped_queue_create(client, &queue));

    const uint64_t blocks = (length + BLOCK_BYTES - 1) / BLOCK_BYTES;
    uint64_t next = 0, total = 0;
    for (; next < blocks && next < options.depth; next++) {
        piped_buffer *buffer = NULL;
        CHECK(piped_buffer_allocate(client, BLOCK_BYTES, &buffer));
        submit(queue, file, next, buffer);
    }
    piped_result result;
    while (piped_next(queue, -1, &result) == PIPED_OK) {
        check_at("a read", result.status);
        /* Block number result.tag is in result.buffer. */
        total += result.bytes;
        if (next < blocks)
            submit(queue, file, next++, result.buffer);
        else
            piped_buffer_free(result.buffer);
    }
    printf("%" PRIu64 " bytes\n", total);

    piped_queue_free(queue);
    piped_handle_free(file);
    piped_client_free(client);
    return 0;
}
