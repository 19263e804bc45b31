/* The C side of bench/src/rows/c_client.rs: gets SOCKET PEER REGION BLOCK
 *
 * For each line of input, a number of nanoseconds, it does gets at random places for so long, one at a time, and answers
 * with their median in nanoseconds: the loop of bench/src/load.rs. */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "piped.h"

enum { LATENCIES = 1 << 18 };

static uint64_t latencies[LATENCIES];

static void check(const char *what, piped_status status) {
    if (status != PIPED_OK) {
        fprintf(stderr, "%s: %s\n", what, piped_last_message());
        exit(EXIT_FAILURE);
    }
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static int compare(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 64;
    const uint64_t block = strtoull(argv[4], NULL, 10);
    struct piped_connect_options connect = {
        .size = sizeof connect,
        .arena_bytes = 16 << 20,
        .wait_policy = PIPED_WAIT_CUSTOM,
    };
    piped_client *client = NULL;
    piped_handle *region = NULL;
    piped_queue *queue = NULL;
    piped_buffer *buffer = NULL;
    uint64_t length = 0;
    check("connect", piped_connect(argv[1], &connect, &client));
    check("open", piped_open_region(client, argv[2], argv[3], PIPED_READ, &region));
    check("length", piped_handle_length(region, &length));
    check("queue", piped_queue_create(client, &queue));
    check("pin", piped_queue_pin_to_shard(queue, NULL));
    check("allocate", piped_buffer_allocate(client, block, &buffer));
    const uint64_t blocks = length / block;

    const struct piped_request_options options = {.size = sizeof options, .flags = PIPED_DETACHED};
    uint64_t duration, random = 1;
    while (scanf("%" SCNu64, &duration) == 1) {
        size_t count = 0;
        const uint64_t start = now();
        uint64_t end = start;
        while (end - start < duration) {
            random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            const uint64_t offset = (random >> 33) % blocks * block;
            const uint64_t begun = now();
            piped_result result;
            check("submit", piped_submit_read(queue, region, offset, buffer, &options, NULL));
            check("flush", piped_queue_flush(queue));
            check("next", piped_next(queue, -1, &result));
            check("get", result.status);
            end = now();
            if (count < LATENCIES)
                latencies[count++] = end - begun;
        }
        qsort(latencies, count, sizeof latencies[0], compare);
        printf("%" PRIu64 "\n", latencies[count / 2]);
        fflush(stdout);
    }
    piped_buffer_free(buffer);
    piped_queue_free(queue);
    piped_handle_free(region);
    piped_client_free(client);
    return 0;
}
