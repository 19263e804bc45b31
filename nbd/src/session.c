#include "session.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "options.h"

#define SECOND_NS UINT64_C(1000000000)
#define BUFFER_BYTES_MIN (UINT32_C(64) << 10)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t given_back = PTHREAD_COND_INITIALIZER;
/* Under `lock`. Once there is a seat there is a client, until the end. */
static piped_client *client;
static unsigned seat_count;
/* The daemon lets a session have no more queues. */
static bool is_full;
/* The seat that was used last comes first: its memory is warm. */
static struct seat *idle;

static piped_status connect_to(piped_client **to) {
    const struct piped_connect_options how = {
        .size = sizeof how,
        .depth = 4,
        .arena_bytes = UINT64_C(4) << 20,
        .timeout_ns = options.timeout_s * SECOND_NS,
        /* A request looks again itself, and so hears of the end of nbdkit. */
        .reconnect_ns = SECOND_NS,
        .request_class = options.class,
        .weight = options.weight,
    };
    return piped_connect(options.socket, &how, to);
}

/* Under `lock`. */
static struct seat *make_seat(piped_status *status) {
    if (client == NULL)
        *status = connect_to(&client);
    if (*status != PIPED_OK)
        return NULL;
    struct seat *seat = calloc(1, sizeof *seat);
    *status = seat == NULL ? PIPED_SYSTEM : piped_queue_create(client, &seat->queue);
    if (*status == PIPED_OK) {
        seat_count++;
        return seat;
    }
    free(seat);
    /* Fewer than wished for will do. */
    is_full = *status == PIPED_WOULD_BLOCK && seat_count > 0;
    return NULL;
}

struct seat *seat_take(piped_status *status) {
    struct seat *seat = NULL;
    *status = PIPED_OK;
    pthread_mutex_lock(&lock);
    while (seat == NULL) {
        if (idle != NULL) {
            seat = idle;
            idle = seat->next;
        } else if (is_full || seat_count >= options.queues) {
            pthread_cond_wait(&given_back, &lock);
        } else if ((seat = make_seat(status)) == NULL && !is_full) {
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (seat != NULL)
        *status = PIPED_OK;
    return seat;
}

void seat_give_back(struct seat *seat) {
    pthread_mutex_lock(&lock);
    seat->next = idle;
    idle = seat;
    pthread_cond_signal(&given_back);
    pthread_mutex_unlock(&lock);
}

piped_status seat_prepare(struct seat *seat, size_t bytes, void **data) {
    piped_status status = PIPED_OK;
    if (seat->queue == NULL)
        status = piped_queue_create(client, &seat->queue);
    if (status == PIPED_OK && (seat->buffer == NULL || seat->capacity < bytes)) {
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
    piped_reconnect(client, NULL, NULL);
}

uint64_t session_generation(void) {
    uint64_t generation = 0;
    piped_generation(client, &generation);
    return generation;
}

piped_status session_try(piped_status (*look)(piped_client *, piped_queue *, void *context),
                         void *context) {
    piped_client *once = NULL;
    piped_queue *queue = NULL;
    piped_status status = connect_to(&once);
    if (status == PIPED_OK)
        status = piped_queue_create(once, &queue);
    if (status == PIPED_OK)
        status = look(once, queue, context);
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
}
