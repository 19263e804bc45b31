/* One read into several buffers, and one write of them in another order:
 * scatter SOCKET FILE COPY
 *
 * Takes a head, a middle and a tail of FILE, which lie apart in memory, and writes them to COPY
 * from the tail to the head. */

#include <inttypes.h>

#include "check.h"

enum { PARTS = 3 };

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: scatter SOCKET FILE COPY\n");
        return 64;
    }
    static const size_t lengths[PARTS] = {100, 8192, 4096};
    piped_client *client = NULL;
    piped_handle *file = NULL, *copy = NULL;
    piped_queue *queue = NULL;
    piped_buffer *parts[PARTS], *turned[PARTS];
    piped_buffers *forth = NULL, *back = NULL;
    piped_result result;
    CHECK(piped_connect(argv[1], NULL, &client));
    CHECK(piped_open_file(client, argv[2], PIPED_READ, &file));
    CHECK(piped_open_file(client, argv[3], PIPED_WRITE | PIPED_CREATE, &copy));
    CHECK(piped_queue_create(client, &queue));
    for (int at = 0; at < PARTS; at++) {
        CHECK(piped_buffer_allocate(client, lengths[at], &parts[at]));
        turned[PARTS - 1 - at] = parts[at];
    }
    /* Two lists of the same buffers; a request borrows them all. */
    CHECK(piped_buffers_create(client, parts, PARTS, &forth));
    CHECK(piped_buffers_create(client, turned, PARTS, &back));

    CHECK(piped_read_buffers(queue, file, 0, forth, NULL, &result));
    printf("read %" PRIu64 " bytes", result.bytes);
    /* Between requests each buffer is its own. */
    for (int at = 0; at < PARTS; at++)
        printf(", %d", ((const unsigned char *)bytes_of(parts[at]))[0]);
    CHECK(piped_write_buffers(queue, copy, 0, back, NULL, &result));
    printf("\nwrote %" PRIu64 " bytes\n", result.bytes);

    piped_buffers_free(forth);
    piped_buffers_free(back);
    for (int at = 0; at < PARTS; at++)
        piped_buffer_free(parts[at]);
    piped_queue_free(queue);
    piped_handle_free(copy);
    piped_handle_free(file);
    piped_client_free(client);
    return 0;
}
