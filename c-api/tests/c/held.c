/* Buffers that outlast their requests: held SOCKET FILE
 *
 * The test plays the daemon: it holds the buffers of all reads, releases those of the first after
 * "held" and of the second after "several held", and ends after "held again". */

#include <stdint.h>

#include "check.h"

static void expect_at(int line, int found, int wanted) {
    if (found != wanted) {
        fprintf(stderr, "line %d: %s, not %s\n", line, piped_status_text(found),
                piped_status_text(wanted));
        exit(EXIT_FAILURE);
    }
}

#define EXPECT(call, wanted) expect_at(__LINE__, (int)(call), (int)(wanted))

int main(int argc, char **argv) {
    if (argc != 3)
        return 64;
    piped_client *client = NULL;
    piped_handle *file = NULL;
    piped_queue *queue = NULL;
    piped_buffer *buffer = NULL;
    piped_buffer_state state;
    piped_result result;
    uint64_t request = 0;
    void *data = NULL;
    CHECK(piped_connect(argv[1], NULL, &client));
    CHECK(piped_open_file(client, argv[2], PIPED_READ, &file));
    CHECK(piped_queue_create(client, &queue));
    CHECK(piped_buffer_allocate(client, 4096, &buffer));

    struct piped_request_options options = {.size = sizeof options, .tag = 42};
    CHECK(piped_submit_read(queue, file, 0, buffer, &options, &request));
    CHECK(piped_wait(queue, request, -1, &result));
    EXPECT(result.status, PIPED_DEADLINE_EXCEEDED);
    EXPECT(result.buffer_state, PIPED_BUFFER_HELD);
    EXPECT(piped_buffer_data(buffer, &data, NULL), PIPED_HELD);
    EXPECT(piped_buffer_free(buffer), PIPED_HELD);
    EXPECT(piped_read(queue, file, 0, buffer, NULL, NULL), PIPED_HELD);
    EXPECT(piped_wait_released(queue, 0, &result), PIPED_UNDERWAY);
    puts("held");
    fflush(stdout);
    CHECK(piped_wait_released(queue, -1, &result));
    EXPECT(result.buffer_state, PIPED_BUFFER_HERE);
    EXPECT(result.request == request, 1);
    EXPECT(result.tag, 42);
    EXPECT(result.buffer == buffer, 1);
    CHECK(piped_buffer_data(buffer, &data, NULL));
    EXPECT(piped_wait_released(queue, -1, &result), PIPED_IDLE);

    /* Several buffers are held, and released, together. */
    piped_buffer *parts[2] = {NULL};
    piped_buffers *both = NULL;
    CHECK(piped_buffer_allocate(client, 4096, &parts[0]));
    CHECK(piped_buffer_allocate(client, 100, &parts[1]));
    CHECK(piped_buffers_create(client, parts, 2, &both));
    EXPECT(piped_read_buffers(queue, file, 0, both, NULL, &result), PIPED_DEADLINE_EXCEEDED);
    EXPECT(result.buffer_state, PIPED_BUFFER_HELD);
    EXPECT(result.buffers == both, 1);
    EXPECT(piped_buffer_data(parts[1], &data, NULL), PIPED_HELD);
    EXPECT(piped_buffer_free(parts[0]), PIPED_HELD);
    EXPECT(piped_buffers_free(both), PIPED_HELD);
    EXPECT(piped_read_buffers(queue, file, 0, both, NULL, NULL), PIPED_HELD);
    EXPECT(piped_read(queue, file, 0, parts[0], NULL, NULL), PIPED_HELD);
    puts("several held");
    fflush(stdout);
    CHECK(piped_wait_released(queue, -1, &result));
    EXPECT(result.buffer_state, PIPED_BUFFER_HERE);
    EXPECT(result.buffers == both && result.buffer == NULL, 1);
    CHECK(piped_buffer_data(parts[0], &data, NULL));
    CHECK(piped_buffer_data(parts[1], &data, NULL));
    EXPECT(piped_read_buffers(queue, file, 0, both, NULL, &result), PIPED_DEADLINE_EXCEEDED);
    EXPECT(result.buffer_state, PIPED_BUFFER_HELD);

    EXPECT(piped_read(queue, file, 0, buffer, NULL, &result), PIPED_DEADLINE_EXCEEDED);
    EXPECT(result.buffer_state, PIPED_BUFFER_HELD);
    puts("held again");
    fflush(stdout);
    for (int lost = 0; lost < 2; lost++) {
        CHECK(piped_wait_released(queue, -1, &result));
        EXPECT(result.status, PIPED_LOST);
        EXPECT(result.buffer_state, PIPED_BUFFER_LOST);
    }
    CHECK(piped_buffer_where(buffer, &state));
    EXPECT(state, PIPED_BUFFER_LOST);
    EXPECT(piped_buffer_data(buffer, &data, NULL), PIPED_LOST);
    EXPECT(piped_nop(queue, NULL, NULL), PIPED_DISCONNECTED);

    EXPECT(piped_buffer_data(parts[1], &data, NULL), PIPED_LOST);
    CHECK(piped_buffers_free(both));
    CHECK(piped_buffer_free(parts[0]));
    CHECK(piped_buffer_free(parts[1]));
    CHECK(piped_buffer_free(buffer));
    CHECK(piped_queue_free(queue));
    CHECK(piped_handle_free(file));
    CHECK(piped_client_free(client));
    return 0;
}
