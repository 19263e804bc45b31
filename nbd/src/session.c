#include "session.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "options.h"

#define SECOND_NS UINT64_C(1000000000)
/* For a session, a handle or more memory; a daemon that is there answers in far less. */
#define CONNECT_NS (5 * SECOND_NS)

#define BUFFER_BYTES_MIN (UINT32_C(64) << 10)

/* A client is made by one thread, while others take and give back seats. */
static pthread_mutex_t connecting = PTHREAD_MUTEX_INITIALIZER;
/* Under `connecting` until it is there; then it stays until the end. */
static piped_client *client;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t given_back = PTHREAD_COND_INITIALIZER;
/* Under `lock`. */
static unsigned seat_count;
/* The daemon lets a session have no more queues, as far as is known. */
static bool is_full;
/* The seat that was used last comes first: its memory is warm. */
static struct seat *idle;

static piped_status connect_to(piped_client **to) {
    const struct piped_connect_options how = {
        .size = sizeof how,
        .depth = 16,
        .arena_bytes = UINT64_C(4) << 20,
        .timeout_ns = CONNECT_NS,
        /* Whoever asks looks again, and hears of the end of nbdkit meanwhile. */
        .reconnect_ns = SECOND_NS,
        .request_class = options.class,
        .weight = options.weight,
    };
    return piped_connect(options.socket, &how, to);
}

static struct seat *make_seat(piped_status *status) {
    pthread_mutex_lock(&connecting);
    if (client == NULL)
        *status = connect_to(&client);
    pthread_mutex_unlock(&connecting);
    struct seat *seat = NULL;
    if (*status == PIPED_OK && (seat = calloc(1, sizeof *seat)) == NULL)
        *status = PIPED_SYSTEM;
    if (*status == PIPED_OK)
        *status = piped_queue_create(client, &seat->queue);
    if (*status == PIPED_OK)
        return seat;
    free(seat);
    return NULL;
}

struct seat *seat_take(piped_status *status) {
    struct seat *seat = NULL;
    *status = PIPED_OK;
    pthread_mutex_lock(&lock);
    for (;;) {
        if (idle != NULL) {
            seat = idle;
            idle = seat->next;
            break;
        }
        if (is_full || seat_count >= options.queues) {
            pthread_cond_wait(&given_back, &lock);
            continue;
        }
        seat_count++;
        pthread_mutex_unlock(&lock);
        seat = make_seat(status);
        pthread_mutex_lock(&lock);
        if (seat != NULL)
            break;
        seat_count--;
        if (*status != PIPED_WOULD_BLOCK || seat_count == 0)
            break;
        /* Fewer than wished for will do. */
        if (!is_full)
            nbdkit_debug("the daemon gives %u queues: see client.queues_max", seat_count);
        is_full = true;
        *status = PIPED_OK;
    }
    pthread_mutex_unlock(&lock);
    return seat;
}

void seat_give_back(struct seat *seat) {
    pthread_mutex_lock(&lock);
    seat->next = idle;
    idle = seat;
    pthread_cond_signal(&given_back);
    pthread_mutex_unlock(&lock);
}

piped_status seat_queue(struct seat *seat) {
    return seat->queue == NULL ? piped_queue_create(client, &seat->queue) : PIPED_OK;
}

piped_status seat_buffer(struct seat *seat, size_t bytes, void **data) {
    piped_status status = PIPED_OK;
    if (seat->buffer == NULL || seat->capacity < bytes) {
        size_t capacity = BUFFER_BYTES_MIN;
        while (capacity < bytes)
            capacity *= 2;
        piped_buffer_free(seat->buffer);
        seat->buffer = NULL;
        seat->capacity = capacity;
        status = piped_buffer_allocate(client, capacity, &seat->buffer);
    }
    if (status == PIPED_OK)
        status = piped_buffer_set_length(seat->buffer, bytes);
    return status == PIPED_OK ? piped_buffer_data(seat->buffer, data, NULL) : status;
}

void seat_mend(struct seat *seat) {
    piped_buffer_state state = PIPED_BUFFER_HERE;
    if (seat->buffer == NULL ||
        (piped_buffer_where(seat->buffer, &state) == PIPED_OK && state == PIPED_BUFFER_HERE))
        return;
    /* The buffer is lost with the queue, and can be freed then. */
    piped_queue_free(seat->queue);
    piped_buffer_free(seat->buffer);
    seat->queue = NULL;
    seat->buffer = NULL;
}

piped_client *session_client(void) {
    return client;
}

void session_reconnect(void) {
    pthread_mutex_lock(&lock);
    is_full = false;
    pthread_mutex_unlock(&lock);
    piped_reconnect(client, NULL, NULL);
}

uint64_t session_generation(void) {
    uint64_t generation = 0;
    piped_generation(client, &generation);
    return generation;
}

piped_status session_try(piped_status (*look)(piped_client *, piped_queue *)) {
    piped_client *once = NULL;
    piped_queue *queue = NULL;
    piped_status status = connect_to(&once);
    if (status == PIPED_OK)
        status = piped_queue_create(once, &queue);
    if (status == PIPED_OK)
        status = look(once, queue);
    piped_queue_free(queue);
    piped_client_free(once);
    return status;
}

void session_end(void) {
    while (idle != NULL) {
        struct seat *seat = idle;
        idle = seat->next;
        piped_queue_free(seat->queue);
        piped_buffer_free(seat->buffer);
        free(seat);
    }
    piped_client_free(client);
    client = NULL;
    seat_count = 0;
    is_full = false;
}
