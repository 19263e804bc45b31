/* A queue in an event loop: epoll_loop SOCKET REQUESTS
 *
 * The completion descriptor is an ordinary one. The order is: take everything, arm, wait, drain. */

#include <inttypes.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "check.h"

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: epoll_loop SOCKET REQUESTS\n");
        return 64;
    }
    const uint64_t requests = strtoull(argv[2], NULL, 10);
    piped_client *client = NULL;
    piped_queue *queue = NULL;
    int fd = -1;
    CHECK(piped_connect(argv[1], NULL, &client));
    CHECK(piped_queue_create(client, &queue));
    CHECK(piped_queue_fd(queue, &fd));
    const int events = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event interest = {.events = EPOLLIN};
    if (events < 0 || epoll_ctl(events, EPOLL_CTL_ADD, fd, &interest) != 0) {
        perror("epoll");
        return EXIT_FAILURE;
    }

    uint64_t submitted = 0, ended = 0;
    while (ended < requests) {
        for (; submitted < requests && submitted - ended < 8; submitted++) {
            struct piped_request_options options = {
                .size = sizeof options,
                .flags = PIPED_DETACHED,
                .tag = submitted,
            };
            struct piped_request nop;
            piped_prep_nop(&nop);
            CHECK(piped_submit(queue, &nop, &options, NULL));
        }
        piped_result result;
        while (piped_next(queue, 0, &result) == PIPED_OK) {
            check_at("nop", result.status);
            ended++;
        }
        /* Not armed: something ended in between, so take that first. With nothing under way there
         * is nothing to wait for. */
        bool armed = false;
        CHECK(piped_queue_arm(queue, &armed));
        if (ended < submitted && armed) {
            struct epoll_event ready;
            epoll_wait(events, &ready, 1, -1);
            /* Timers and sockets of the application would be served here, too. */
        }
        CHECK(piped_queue_drain(queue));
    }
    printf("%" PRIu64 " requests ended\n", ended);

    close(events);
    piped_queue_free(queue);
    piped_client_free(client);
    return 0;
}
