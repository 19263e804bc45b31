/* Go on after the daemon was restarted: reconnect SOCKET FILE
 *
 * The client is told to reconnect, and each read to outlive the daemon: the same handle, queue and
 * buffer serve as long as some daemon comes back in time. Reads the file's beginning, waits for a
 * line of input, and reads it again. */

#include <inttypes.h>

#include "check.h"

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: reconnect SOCKET FILE\n");
        return 64;
    }
    struct piped_connect_options connect = {
        .size = sizeof connect,
        .reconnect_ns = UINT64_C(20000000000), /* how long the daemon may be away */
    };
    struct piped_request_options options = {.size = sizeof options, .flags = PIPED_RESUBMIT};
    piped_client *client = NULL;
    piped_handle *file = NULL;
    piped_queue *queue = NULL;
    piped_buffer *buffer = NULL;
    CHECK(piped_connect(argv[1], &connect, &client));
    CHECK(piped_open_file(client, argv[2], PIPED_READ, &file));
    CHECK(piped_queue_create(client, &queue));
    CHECK(piped_buffer_allocate(client, 4096, &buffer));

    piped_result result;
    for (int round = 0; round < 2; round++) {
        CHECK(piped_read(queue, file, 0, buffer, &options, &result));
        /* The buffer may lie elsewhere after a reconnect. */
        const unsigned char *bytes = bytes_of(buffer);
        printf("%" PRIu64 " bytes, the first is %d\n", result.bytes, *bytes);
        fflush(stdout);
        if (round == 0)
            getchar();
    }

    piped_buffer_free(buffer);
    piped_queue_free(queue);
    piped_handle_free(file);
    piped_client_free(client);
    return 0;
}
