/* Read from another node's disk, and use what landed before all of it did:
 * remote_read SOCKET PEER EXPORT PATH BYTES */

#include <inttypes.h>

#include "check.h"

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: remote_read SOCKET PEER EXPORT PATH BYTES\n");
        return 64;
    }
    piped_client *client = NULL;
    piped_handle *file = NULL;
    piped_queue *queue = NULL;
    piped_buffer *buffer = NULL;
    CHECK(piped_connect(argv[1], NULL, &client));
    CHECK(piped_open_export(client, argv[2], argv[3], argv[4], PIPED_READ, &file));
    CHECK(piped_queue_create(client, &queue));
    CHECK(piped_buffer_allocate(client, strtoull(argv[5], NULL, 10), &buffer));

    struct piped_request_options options = {
        .size = sizeof options,
        .request_class = PIPED_CLASS_LATENCY,
        .deadline_ns = UINT64_C(10000000000),
    };
    uint64_t request = 0;
    CHECK(piped_submit_read(queue, file, 0, buffer, &options, &request));

    piped_result result;
    piped_status status;
    while ((status = piped_wait(queue, request, 1000000, &result)) == PIPED_UNDERWAY) {
        /* What is in place stays as it is: a reader can start on it. */
        unsigned char head[512];
        uint64_t landed = 0;
        size_t copied = 0;
        CHECK(piped_progress(queue, request, &landed));
        CHECK(piped_copy_landed(queue, request, 0, head, sizeof head, &copied));
        printf("%" PRIu64 " bytes are here, %zu of the head\n", landed, copied);
    }
    check_at("piped_wait", status);
    check_at("the read", result.status);

    const unsigned char *data = bytes_of(buffer);
    uint64_t sum = 0;
    for (uint64_t at = 0; at < result.bytes; at++)
        sum += data[at];
    printf("%" PRIu64 " bytes, sum %" PRIu64 "\n", result.bytes, sum);

    piped_buffer_free(buffer);
    piped_queue_free(queue);
    piped_handle_free(file);
    piped_client_free(client);
    return 0;
}
