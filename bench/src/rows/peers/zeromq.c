/* The C side of bench/src/rows/peers/zeromq.rs: zeromq answer PORT | zeromq ask PORT BYTES
 *
 * Answering, it sends every message back as it came. Asking, it reads a number of nanoseconds from each line of input,
 * sends messages for so long, one at a time, and answers with the median time there and back in nanoseconds. */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <zmq.h>

enum { LATENCIES = 1 << 18 };

static uint64_t latencies[LATENCIES];

static void check(const char *what, int ok) {
    if (!ok) {
        fprintf(stderr, "%s: %s\n", what, zmq_strerror(zmq_errno()));
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

static void answer(void *socket) {
    for (;;) {
        zmq_msg_t message;
        zmq_msg_init(&message);
        check("receive", zmq_msg_recv(&message, socket, 0) >= 0);
        /* The message's memory is sent, not a copy. */
        check("send", zmq_msg_send(&message, socket, 0) >= 0);
    }
}

static void ask(void *socket, size_t bytes) {
    char *out = malloc(bytes), *in = malloc(bytes);
    memset(out, 0x5a, bytes);
    uint64_t duration;
    while (scanf("%" SCNu64, &duration) == 1) {
        size_t count = 0;
        const uint64_t start = now();
        uint64_t end = start;
        while (end - start < duration) {
            const uint64_t begun = now();
            check("send", zmq_send(socket, out, bytes, 0) == (int)bytes);
            check("receive", zmq_recv(socket, in, bytes, 0) == (int)bytes);
            end = now();
            if (count < LATENCIES)
                latencies[count++] = end - begun;
        }
        qsort(latencies, count, sizeof latencies[0], compare);
        printf("%" PRIu64 "\n", latencies[count / 2]);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 64;
    char address[64];
    snprintf(address, sizeof address, "tcp://127.0.0.1:%s", argv[2]);
    void *context = zmq_ctx_new();
    const int answers = strcmp(argv[1], "answer") == 0;
    void *socket = zmq_socket(context, answers ? ZMQ_REP : ZMQ_REQ);
    check("socket", socket != NULL);
    check("address", (answers ? zmq_bind(socket, address) : zmq_connect(socket, address)) == 0);
    if (answers)
        answer(socket);
    else if (argc == 4)
        ask(socket, strtoull(argv[3], NULL, 10));
    return 0;
}
