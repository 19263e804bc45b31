/* Read a local file block by block: read_file SOCKET FILE
 *
 * The whole of a program that uses piped: connect, open, take a queue, lend a buffer to each read.
 * */

#include <inttypes.h>

#include "check.h"

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: read_file SOCKET FILE\n");
        return 64;
    }
    piped_client *client = NULL;
    piped_handle *file = NULL;
    piped_queue *queue = NULL;
    piped_buffer *buffer = NULL;
    CHECK(piped_connect(argv[1], NULL, &client));
    CHECK(piped_open_file(client, argv[2], PIPED_READ, &file));
    CHECK(piped_queue_create(client, &queue));
    CHECK(piped_buffer_allocate(client, 64 * 1024, &buffer));

    const unsigned char *data = bytes_of(buffer);
    uint64_t offset = 0, sum = 0;
    for (;;) {
        piped_result result;
        CHECK(piped_read(queue, file, offset, buffer, NULL, &result));
        if (result.bytes == 0)
            break;
        for (uint64_t at = 0; at < result.bytes; at++)
            sum += data[at];
        offset += result.bytes;
    }
    printf("%" PRIu64 " bytes, sum %" PRIu64 "\n", offset, sum);

    piped_buffer_free(buffer);
    piped_queue_free(queue);
    piped_handle_free(file);
    piped_client_free(client);
    return 0;
}
