/* Calls whose buffers outlast them: held_calls SOCKET FILE
 *
 * The test plays the daemon: it holds the buffer of each call, and releases it before it ends the
 * request that follows. The arena has room for 16 of them. */

#include "check.h"

int main(int argc, char **argv) {
    if (argc != 3)
        return 64;
    struct piped_connect_options options = {
        .size = sizeof options, .depth = 255, .arena_bytes = 16 * 4096};
    piped_client *client = NULL;
    piped_handle *file = NULL;
    piped_queue *queue = NULL;
    CHECK(piped_connect(argv[1], &options, &client));
    CHECK(piped_open_file(client, argv[2], PIPED_READ, &file));
    CHECK(piped_queue_create(client, &queue));
    for (int number = 0; number < 64; number++) {
        piped_file_info known;
        piped_status status = piped_stat(queue, file, "", &known);
        if (status != PIPED_DEADLINE_EXCEEDED) {
            fprintf(stderr, "call %d: %s\n", number, piped_last_message());
            return EXIT_FAILURE;
        }
        CHECK(piped_nop(queue, NULL, NULL));
    }
    CHECK(piped_queue_free(queue));
    CHECK(piped_handle_free(file));
    CHECK(piped_client_free(client));
    return 0;
}
