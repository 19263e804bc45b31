/* Every misuse is a number and not a crash: misuse SOCKET FILE */

#define _POSIX_C_SOURCE 200809L /* setenv */

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static int failures;

static void expect_at(int line, const char *call, int status, int wanted) {
    if (status != wanted) {
        fprintf(stderr, "line %d: %s gave %d (%s: %s), not %d (%s)\n", line, call, status,
                piped_status_text(status), piped_last_message(), wanted, piped_status_text(wanted));
        failures++;
    }
}

#define EXPECT(call, wanted) expect_at(__LINE__, #call, (int)(call), (int)(wanted))

struct waiting {
    piped_queue *queue;
    piped_handle *mail;
    piped_buffer *buffer;
    piped_status status;
};

static void *receive(void *argument) {
    struct waiting *waiting = argument;
    struct piped_request_options any = {.size = sizeof any, .flags = PIPED_ANY_TAG};
    for (;;) {
        waiting->status = piped_receive(waiting->queue, waiting->mail, 0, waiting->buffer, &any,
                                        NULL);
        if (waiting->status != PIPED_BUSY)
            return NULL;
        sched_yield(); /* The other thread was looking just then. */
    }
}

struct inside {
    piped_tiles *tiles;
    uint64_t rows;
    piped_status again;
};

/* From inside its own loop. */
static void look(void *context, struct piped_tile *tile) {
    struct inside *inside = context;
    inside->rows += tile->end - tile->first;
    if (tile->before_x == NULL && tile->after_y == NULL)
        inside->again = piped_tiles_free(inside->tiles);
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 64;
    piped_client *client = NULL, *other = NULL;
    piped_handle *file = NULL, *foreign = NULL;
    piped_queue *queue = NULL, *second = NULL;
    piped_buffer *buffer = NULL, *theirs = NULL, *spare = NULL;
    piped_result result;
    uint64_t request = 0, number = 0;
    void *data = NULL;
    size_t length = 0;

    /* Connecting. */
    setenv("PIPED_CLIENT_SOCKET", "/nowhere/named.sock", 1);
    EXPECT(piped_connect(NULL, NULL, &client), PIPED_NOT_FOUND);
    EXPECT(strstr(piped_last_message(), "/nowhere/named.sock (as PIPED_CLIENT_SOCKET") != NULL, 1);
    setenv("PIPED_CLIENT_SOCKET", argv[1], 1);
    CHECK(piped_connect(NULL, NULL, &client));
    CHECK(piped_client_free(client));
    client = NULL;
    EXPECT(piped_connect(argv[1], NULL, NULL), PIPED_NULL);
    EXPECT(piped_connect("/nowhere/client.sock", NULL, &client), PIPED_NOT_FOUND);
    EXPECT(strstr(piped_last_message(), "/nowhere/client.sock") != NULL, 1);
    struct piped_connect_options connect = {.depth = 4};
    EXPECT(piped_connect(argv[1], &connect, &client), PIPED_ARGUMENT); /* no size */
    connect.size = sizeof connect;
    connect.request_class = 9;
    EXPECT(piped_connect(argv[1], &connect, &client), PIPED_ARGUMENT);
    connect.request_class = PIPED_CLASS_LATENCY;
    connect.wait_policy = 77;
    EXPECT(piped_connect(argv[1], &connect, &client), PIPED_ARGUMENT);
    connect.wait_policy = PIPED_WAIT_BALANCED;
    connect.weight = 256;
    EXPECT(piped_connect(argv[1], &connect, &client), PIPED_ARGUMENT);
    connect.weight = 1;
    struct {
        struct piped_connect_options known;
        uint64_t later;
    } newer = {.known = connect, .later = 1};
    newer.known.size = sizeof newer;
    EXPECT(piped_connect(argv[1], &newer.known, &client), PIPED_UNSUPPORTED);
    EXPECT(client == NULL, 1);
    newer.later = 0;
    CHECK(piped_connect(argv[1], &newer.known, &client));
    CHECK(piped_connect(argv[1], NULL, &other));
    EXPECT(piped_reconnect(client, NULL, NULL), PIPED_NOT_RECONNECTING);

    /* Opening. */
    EXPECT(piped_open_file(client, NULL, PIPED_READ, &file), PIPED_NULL);
    EXPECT(piped_open_file(client, argv[2], 0, &file), PIPED_ARGUMENT);
    EXPECT(piped_open_file(client, argv[2], PIPED_READ | 1024, &file), PIPED_UNSUPPORTED);
    EXPECT(piped_open_file(client, argv[2], PIPED_READ | PIPED_ATOMIC, &file), PIPED_UNSUPPORTED);
    EXPECT(piped_open_file(client, "/nowhere/file", PIPED_READ, &file), PIPED_NO_DIRECTORY);
    EXPECT(piped_open_file(client, "/nowhere/file", PIPED_WRITE | PIPED_CREATE, &file),
           PIPED_NO_DIRECTORY);
    EXPECT(piped_open_file(client, "/a file that nobody made", PIPED_READ, &file), PIPED_NOT_FOUND);
    EXPECT(piped_open_file(client, "/", PIPED_READ, &file), PIPED_IS_DIRECTORY);
    EXPECT(piped_open_file(client, "/", PIPED_WRITE, &file), PIPED_IS_DIRECTORY);
    EXPECT(piped_open_file(client, argv[2], PIPED_READ, NULL), PIPED_NULL);
    EXPECT(piped_open_fd(client, -1, PIPED_READ, &file), PIPED_ARGUMENT);
    EXPECT(piped_open_fd(client, 1000000, PIPED_READ, &file) != PIPED_OK, 1);
    EXPECT(piped_open_export(client, NULL, "no such export", "file", PIPED_READ, &file),
           PIPED_NO_EXPORT);
    EXPECT(piped_open_export(client, NULL, "\xff\xfe", "file", PIPED_READ, &file), PIPED_ARGUMENT);
    EXPECT(piped_open_region(client, NULL, "no such region", PIPED_READ, &file), PIPED_NOT_FOUND);
    EXPECT(file == NULL, 1);
    CHECK(piped_open_file(client, argv[2], PIPED_READ, &file));
    CHECK(piped_open_file(other, argv[2], PIPED_READ, &foreign));
    CHECK(piped_queue_create(client, &queue));
    CHECK(piped_queue_create(client, &second));

    /* Pointers that are no names of the kind. */
    EXPECT(piped_buffer_allocate(NULL, 1, &buffer), PIPED_NULL);
    EXPECT(piped_buffer_allocate((piped_client *)&number, 1, &buffer), PIPED_NOT_OURS);
    EXPECT(piped_buffer_allocate((piped_client *)queue, 1, &buffer), PIPED_WRONG_KIND);
    EXPECT(piped_buffer_allocate((piped_client *)((uintptr_t)client ^ UINT64_C(1) << 40), 1,
                                 &buffer), PIPED_STALE);
    EXPECT(piped_buffer_allocate((piped_client *)UINTPTR_MAX, 1, &buffer), PIPED_NOT_OURS);
    EXPECT(piped_buffer_allocate(client, 0, &buffer), PIPED_RANGE);
    EXPECT(piped_buffer_allocate(client, SIZE_MAX, &buffer), PIPED_RANGE);
    EXPECT(piped_buffer_allocate(client, 4096, NULL), PIPED_NULL);
    EXPECT(buffer == NULL, 1);
    CHECK(piped_buffer_allocate(client, 4096, &buffer));
    CHECK(piped_buffer_allocate(client, 4096, &spare));
    CHECK(piped_buffer_allocate(other, 4096, &theirs));
    EXPECT(piped_read(queue, (piped_handle *)buffer, 0, buffer, NULL, NULL), PIPED_WRONG_KIND);
    EXPECT(piped_read(queue, file, 0, (piped_buffer *)file, NULL, NULL), PIPED_WRONG_KIND);
    EXPECT(piped_read((piped_queue *)client, file, 0, buffer, NULL, NULL), PIPED_WRONG_KIND);
    EXPECT(piped_read(NULL, file, 0, buffer, NULL, NULL), PIPED_NULL);
    EXPECT(piped_read(queue, NULL, 0, buffer, NULL, NULL), PIPED_NULL);
    EXPECT(piped_read(queue, file, 0, NULL, NULL, NULL), PIPED_NULL);

    /* What belongs to another client. */
    EXPECT(piped_read(queue, foreign, 0, buffer, NULL, NULL), PIPED_FOREIGN);
    EXPECT(piped_read(queue, file, 0, theirs, NULL, NULL), PIPED_FOREIGN);

    /* Lengths and options. */
    EXPECT(piped_buffer_set_length(buffer, 4097), PIPED_RANGE);
    struct piped_request_options options = {.size = sizeof options, .piece_offset = 1,
                                            .piece_length = 4096};
    EXPECT(piped_read(queue, file, 0, buffer, &options, NULL), PIPED_RANGE);
    options.piece_offset = UINT64_MAX;
    EXPECT(piped_read(queue, file, 0, buffer, &options, NULL), PIPED_RANGE);
    options.piece_offset = 5000;
    options.piece_length = 0;
    EXPECT(piped_read(queue, file, 0, buffer, &options, NULL), PIPED_RANGE);
    EXPECT(piped_nop(queue, &options, NULL), PIPED_ARGUMENT);
    options.piece_offset = 0;
    options.flags = 1u << 31;
    EXPECT(piped_read(queue, file, 0, buffer, &options, NULL), PIPED_UNSUPPORTED);
    options.flags = PIPED_NOTIFY;
    EXPECT(piped_read(queue, file, 0, buffer, &options, NULL), PIPED_ARGUMENT);
    options.flags = PIPED_DETACHED;
    EXPECT(piped_read(queue, file, 0, buffer, &options, NULL), PIPED_ARGUMENT);
    options.flags = 0;
    options.request_class = 3;
    EXPECT(piped_read(queue, file, 0, buffer, &options, NULL), PIPED_ARGUMENT);
    options.request_class = 0;
    options.notify_id = 1;
    EXPECT(piped_read(queue, file, 0, buffer, &options, NULL), PIPED_ARGUMENT);
    options.notify_id = 0;
    EXPECT(piped_submit_read(queue, file, 0, buffer, NULL, NULL), PIPED_NULL);

    /* Requests filled by hand. */
    struct piped_request filled;
    EXPECT(piped_run(queue, NULL, NULL, NULL), PIPED_NULL);
    EXPECT(piped_submit(queue, NULL, NULL, &request), PIPED_NULL);
    piped_prep_read(&filled, file, 0, buffer);
    filled.size = 0;
    EXPECT(piped_run(queue, &filled, NULL, NULL), PIPED_ARGUMENT);
    filled.size = sizeof filled;
    filled.verb = PIPED_VERB_WRITE_BUFFERS + 1;
    EXPECT(piped_run(queue, &filled, NULL, NULL), PIPED_UNSUPPORTED);
    piped_prep_notify(&filled, file, 1);
    filled.operands[0] = UINT64_MAX;
    EXPECT(piped_run(queue, &filled, NULL, NULL), PIPED_ARGUMENT);
    piped_prep_read(&filled, file, 0, NULL);
    EXPECT(piped_run(queue, &filled, NULL, NULL), PIPED_NULL);

    EXPECT(piped_write(queue, file, 0, buffer, NULL, &result), PIPED_DENIED);
    EXPECT(result.status, PIPED_DENIED);
    EXPECT(piped_fetch_add(queue, file, 0, 1, NULL, NULL) != PIPED_OK, 1);
    /* None of that has taken the buffer. */
    CHECK(piped_read(queue, file, 0, buffer, NULL, &result));
    EXPECT(result.bytes, 4096);
    EXPECT(result.buffer == buffer, 1);

    /* A buffer and a request that are under way: nobody has sent yet. */
    piped_handle *mail = NULL;
    CHECK(piped_offer_channel(client, "misuse", &mail));
    CHECK(piped_submit_receive(queue, mail, 1, buffer, NULL, &request));
    piped_buffer_state state;
    CHECK(piped_buffer_where(buffer, &state));
    EXPECT(state, PIPED_BUFFER_UNDERWAY);
    EXPECT(piped_buffer_data(buffer, &data, &length), PIPED_UNDERWAY);
    EXPECT(piped_buffer_set_length(buffer, 1), PIPED_UNDERWAY);
    EXPECT(piped_buffer_free(buffer), PIPED_UNDERWAY);
    EXPECT(piped_read(queue, file, 0, buffer, NULL, NULL), PIPED_UNDERWAY);
    EXPECT(piped_read(second, file, 0, buffer, NULL, NULL), PIPED_UNDERWAY);
    piped_region *region = NULL;
    EXPECT(piped_region_export(client, "r", buffer, PIPED_READ, &region), PIPED_UNDERWAY);
    EXPECT(piped_wait(queue, request, 0, &result), PIPED_UNDERWAY);
    EXPECT(piped_wait(queue, request, 0, NULL), PIPED_NULL);
    EXPECT(piped_wait(second, request, 0, &result), PIPED_OTHER_QUEUE);
    EXPECT(piped_cancel(second, request, NULL), PIPED_OTHER_QUEUE);
    EXPECT(piped_wait(queue, 0, 0, &result), PIPED_NULL);
    EXPECT(piped_wait(queue, 12345, 0, &result), PIPED_NOT_OURS);
    EXPECT(piped_wait(queue, request + 1, 0, &result), PIPED_STALE);
    EXPECT(piped_next(queue, 0, &result), PIPED_IDLE);
    EXPECT(piped_wait_released(queue, 0, &result), PIPED_IDLE);
    CHECK(piped_detach(queue, request));
    EXPECT(piped_detach(queue, request), PIPED_DETACHED_REQUEST);
    EXPECT(piped_wait(queue, request, 0, &result), PIPED_DETACHED_REQUEST);
    EXPECT(piped_next(queue, 0, &result), PIPED_UNDERWAY);
    bool asked = false;
    CHECK(piped_cancel(queue, request, &asked));
    EXPECT(asked, true);
    CHECK(piped_next(queue, -1, &result));
    EXPECT(result.status, PIPED_CANCELLED);
    EXPECT(result.request == request, 1);
    EXPECT(piped_cancel(queue, request, &asked), PIPED_STALE);
    EXPECT(piped_progress(queue, request, &number), PIPED_STALE);
    CHECK(piped_buffer_data(buffer, &data, &length));

    /* Calls of files and directories. */
    struct piped_file_info known;
    struct piped_name name;
    struct piped_extent extent;
    piped_list *list = NULL;
    size_t extents = 0;
    EXPECT(piped_stat(queue, file, NULL, &known), PIPED_NULL);
    EXPECT(piped_stat(queue, file, "", NULL), PIPED_NULL);
    EXPECT(piped_stat(queue, (piped_handle *)queue, "", &known), PIPED_WRONG_KIND);
    EXPECT(piped_remove(queue, file, "x", 9), PIPED_ARGUMENT);
    EXPECT(piped_rename(queue, file, "x", "y", 9, 0), PIPED_ARGUMENT);
    EXPECT(piped_rename(queue, file, "x", "y", PIPED_OVER_KEEP, 1u << 30), PIPED_UNSUPPORTED);
    EXPECT(piped_advise(queue, file, 0, 0, 9), PIPED_ARGUMENT);
    EXPECT(piped_zero(queue, file, UINT64_MAX, 2, 0), PIPED_RANGE);
    EXPECT(piped_extents(queue, file, 0, 1, NULL, 1, &extents), PIPED_NULL);
    EXPECT(piped_extents(queue, file, 0, 1, &extent, 1, NULL), PIPED_NULL);
    EXPECT(piped_list_open(file, "", 1u << 30, &list), PIPED_UNSUPPORTED);
    CHECK(piped_list_open(file, "", 0, &list));
    EXPECT(piped_list_next(list, queue, NULL), PIPED_NULL);
    EXPECT(piped_list_next(list, queue, &name) != PIPED_OK, 1); /* a file has no names */
    CHECK(piped_list_free(list));
    EXPECT(piped_list_free(list), PIPED_STALE);
    EXPECT(piped_list_next(list, queue, &name), PIPED_STALE);
    CHECK(piped_list_free(NULL));

    /* Tables of pieces. */
    piped_pieces *pieces = NULL;
    struct piped_piece rows[2] = {{.length = 8}, {.offset = 64, .at = 4089, .length = 8}};
    EXPECT(piped_pieces_create(client, rows, 0, &pieces), PIPED_RANGE);
    EXPECT(piped_pieces_create(client, NULL, 1, &pieces), PIPED_NULL);
    EXPECT(piped_pieces_create(client, rows, SIZE_MAX, &pieces), PIPED_RANGE);
    CHECK(piped_pieces_create(client, rows, 2, &pieces));
    EXPECT(piped_read_pieces(queue, file, pieces, buffer, NULL, NULL), PIPED_RANGE);
    options.flags = PIPED_RESUBMIT;
    EXPECT(piped_read_pieces(queue, file, pieces, buffer, &options, NULL), PIPED_ARGUMENT);
    EXPECT(piped_read_pieces(queue, file, (piped_pieces *)file, buffer, NULL, NULL),
           PIPED_WRONG_KIND);
    CHECK(piped_pieces_free(pieces));
    EXPECT(piped_read_pieces(queue, file, pieces, buffer, NULL, NULL), PIPED_STALE);
    EXPECT(piped_pieces_free(pieces), PIPED_STALE);
    CHECK(piped_pieces_create(other, rows, 1, &pieces));
    EXPECT(piped_read_pieces(queue, file, pieces, buffer, NULL, NULL), PIPED_TABLE_LOST);
    CHECK(piped_pieces_free(pieces));
    options.flags = 0;

    /* Lists of several buffers. */
    piped_buffers *both = NULL, *other_way = NULL;
    piped_buffer *parts[1025] = {buffer, spare};
    EXPECT(piped_buffers_create(client, parts, 0, &both), PIPED_RANGE);
    EXPECT(piped_buffers_create(client, parts, 1025, &both), PIPED_RANGE);
    EXPECT(strstr(piped_last_message(), "1 to 1024 buffers") != NULL, 1);
    EXPECT(piped_buffers_create(client, parts, SIZE_MAX, &both), PIPED_RANGE);
    EXPECT(piped_buffers_create(client, NULL, 2, &both), PIPED_NULL);
    EXPECT(piped_buffers_create(NULL, parts, 2, &both), PIPED_NULL);
    EXPECT(piped_buffers_create(client, parts, 2, NULL), PIPED_NULL);
    EXPECT(piped_buffers_create(client, parts, 3, &both), PIPED_NULL); /* of the third */
    parts[2] = (piped_buffer *)file;
    EXPECT(piped_buffers_create(client, parts, 3, &both), PIPED_WRONG_KIND);
    parts[2] = (piped_buffer *)&number;
    EXPECT(piped_buffers_create(client, parts, 3, &both), PIPED_NOT_OURS);
    parts[2] = buffer;
    EXPECT(piped_buffers_create(client, parts, 3, &both), PIPED_ARGUMENT);
    EXPECT(strstr(piped_last_message(), "twice") != NULL, 1);
    EXPECT(both == NULL, 1);
    CHECK(piped_buffers_create(client, parts, 2, &both));
    CHECK(piped_buffers_create(client, parts + 1, 2, &other_way));
    EXPECT(piped_read_buffers(queue, file, 0, NULL, NULL, NULL), PIPED_NULL);
    EXPECT(piped_read_buffers(queue, file, 0, (piped_buffers *)buffer, NULL, NULL),
           PIPED_WRONG_KIND);
    EXPECT(piped_read(queue, file, 0, (piped_buffer *)both, NULL, NULL), PIPED_WRONG_KIND);
    EXPECT(piped_buffers_free((piped_buffers *)buffer), PIPED_WRONG_KIND);
    EXPECT(piped_read_buffers(queue, foreign, 0, both, NULL, NULL), PIPED_FOREIGN);
    EXPECT(piped_write_buffers(queue, file, 0, both, NULL, NULL), PIPED_DENIED);
    options.flags = PIPED_RESUBMIT;
    EXPECT(piped_read_buffers(queue, file, 0, both, &options, NULL), PIPED_ARGUMENT);
    options.flags = PIPED_DURABLE;
    EXPECT(piped_write_buffers(queue, file, 0, both, &options, NULL), PIPED_ARGUMENT);
    options.flags = 0;
    options.piece_length = 1;
    EXPECT(piped_read_buffers(queue, file, 0, both, &options, NULL), PIPED_ARGUMENT);
    options.piece_length = 0;
    /* One of its buffers is elsewhere: none is taken. */
    CHECK(piped_submit_receive(queue, mail, 1, spare, NULL, &request));
    EXPECT(piped_read_buffers(second, file, 0, both, NULL, NULL), PIPED_UNDERWAY);
    EXPECT(piped_submit_read_buffers(queue, file, 0, other_way, NULL, &number), PIPED_UNDERWAY);
    CHECK(piped_buffer_data(buffer, &data, NULL));
    CHECK(piped_cancel(queue, request, NULL));
    CHECK(piped_wait(queue, request, -1, &result));
    EXPECT(result.buffers == NULL, 1);
    /* Under way: held up by no sender, and by nothing but its result that nobody took. */
    CHECK(piped_submit_read_buffers(queue, file, 0, both, NULL, &request));
    CHECK(piped_buffer_where(spare, &state));
    EXPECT(state, PIPED_BUFFER_UNDERWAY);
    EXPECT(piped_buffer_data(buffer, &data, NULL), PIPED_UNDERWAY);
    EXPECT(piped_buffer_free(spare), PIPED_UNDERWAY);
    EXPECT(piped_buffers_free(both), PIPED_UNDERWAY);
    EXPECT(piped_read(second, file, 0, buffer, NULL, NULL), PIPED_UNDERWAY);
    EXPECT(piped_read_buffers(second, file, 0, both, NULL, NULL), PIPED_UNDERWAY);
    EXPECT(piped_read_buffers(second, file, 0, other_way, NULL, NULL), PIPED_UNDERWAY);
    CHECK(piped_wait(queue, request, -1, &result));
    CHECK(result.status);
    EXPECT(result.bytes, 8192);
    EXPECT(result.buffers == both && result.buffer == NULL, 1);
    EXPECT(result.buffer_state, PIPED_BUFFER_HERE);
    options.flags = PIPED_DETACHED;
    CHECK(piped_submit_read_buffers(queue, file, 4096, other_way, &options, NULL));
    options.flags = 0;
    CHECK(piped_next(queue, -1, &result));
    EXPECT(result.bytes, 8192);
    EXPECT(result.buffers == other_way, 1);
    CHECK(piped_buffer_data(spare, &data, NULL));
    CHECK(piped_buffers_free(other_way));
    EXPECT(piped_buffers_free(other_way), PIPED_STALE);
    EXPECT(piped_read_buffers(queue, file, 0, other_way, NULL, NULL), PIPED_STALE);
    /* With a buffer of another client, and one that is freed. */
    parts[1] = theirs;
    CHECK(piped_buffers_create(client, parts, 2, &other_way));
    EXPECT(piped_read_buffers(queue, file, 0, other_way, NULL, NULL), PIPED_FOREIGN);
    CHECK(piped_buffer_data(theirs, &data, NULL));
    CHECK(piped_buffers_free(other_way));
    CHECK(piped_buffer_allocate(client, 1, &parts[1]));
    CHECK(piped_buffers_create(client, parts, 2, &other_way));
    CHECK(piped_buffer_free(parts[1]));
    EXPECT(piped_read_buffers(queue, file, 0, other_way, NULL, NULL), PIPED_STALE);
    CHECK(piped_buffer_data(buffer, &data, NULL));
    CHECK(piped_buffers_free(other_way));
    /* A queue takes its requests along, and with them what they have. */
    piped_queue *third = NULL;
    CHECK(piped_buffer_allocate(client, 1, &parts[0]));
    CHECK(piped_buffers_create(client, parts, 1, &other_way));
    CHECK(piped_queue_create(client, &third));
    CHECK(piped_submit_read_buffers(third, file, 0, other_way, NULL, &request));
    CHECK(piped_queue_free(third));
    CHECK(piped_buffer_where(parts[0], &state));
    EXPECT(state, PIPED_BUFFER_LOST);
    EXPECT(piped_read_buffers(queue, file, 0, other_way, NULL, NULL), PIPED_LOST);
    CHECK(piped_buffers_free(other_way));
    CHECK(piped_buffer_free(parts[0]));
    CHECK(piped_buffers_free(both));
    EXPECT(piped_buffers_free(NULL), PIPED_OK);

    options.wanted_offset = 1;
    EXPECT(piped_write(queue, file, 0, buffer, &options, NULL), PIPED_ARGUMENT);
    options.wanted_offset = 0;

    /* Loops over strips. */
    piped_strips *strips = NULL;
    struct piped_strip strip = {.length = 7};
    struct piped_strips_options stripped = {.size = sizeof stripped, .strip_bytes = 100};
    /* auto has none */
    EXPECT(piped_strips_read(client, file, 0, 1000, &stripped, &strips), PIPED_ARGUMENT);
    stripped.policy = PIPED_STRIPS_VARIABLE + 1;
    EXPECT(piped_strips_read(client, file, 0, 1000, &stripped, &strips), PIPED_ARGUMENT);
    stripped.policy = PIPED_STRIPS_FIXED;
    stripped.strip_bytes = 0;
    EXPECT(piped_strips_read(client, file, 0, 1000, &stripped, &strips), PIPED_ARGUMENT);
    stripped.strip_bytes = SIZE_MAX;
    stripped.memory = SIZE_MAX;
    stripped.grain = SIZE_MAX;
    stripped.flags = PIPED_DURABLE;
    EXPECT(piped_strips_read(client, file, 0, 1000, &stripped, &strips), PIPED_ARGUMENT);
    stripped.flags = PIPED_NOTIFY;
    EXPECT(piped_strips_write(client, file, 0, 1000, &stripped, &strips), PIPED_UNSUPPORTED);
    stripped.flags = 0;
    EXPECT(piped_strips_read(client, file, 1000, 999, NULL, &strips), PIPED_RANGE);
    EXPECT(piped_strips_read(client, file, 0, 1000, NULL, NULL), PIPED_NULL);
    EXPECT(strips == NULL, 1);
    /* larger than anything is all */
    CHECK(piped_strips_read(client, file, 0, 1000, &stripped, &strips));
    EXPECT(piped_strips_next(strips, queue, NULL), PIPED_NULL);
    EXPECT(piped_strips_next(strips, NULL, &strip), PIPED_NULL);
    EXPECT(piped_strips_next(strips, (piped_queue *)client, &strip), PIPED_WRONG_KIND);
    EXPECT(piped_strips_next((piped_strips *)queue, queue, &strip), PIPED_WRONG_KIND);
    EXPECT(strip.length, 7);
    CHECK(piped_strips_next(strips, queue, &strip));
    EXPECT(strip.length, 1000);
    EXPECT(piped_strips_finish(strips, queue, NULL), PIPED_ARGUMENT);
    CHECK(piped_strips_next(strips, queue, &strip));
    EXPECT(strip.data == NULL && strip.length == 0, 1);
    CHECK(piped_strips_next(strips, queue, &strip));
    EXPECT(strip.data == NULL, 1);
    CHECK(piped_strips_free(strips));
    EXPECT(piped_strips_next(strips, queue, &strip), PIPED_STALE);
    EXPECT(piped_strips_finish(strips, queue, NULL), PIPED_STALE);
    EXPECT(piped_strips_free(strips), PIPED_STALE);
    /* Of a handle that may not be written: told when the first one is. */
    CHECK(piped_strips_write(client, file, 0, 1000, NULL, &strips));
    CHECK(piped_strips_next(strips, queue, &strip));
    EXPECT(piped_strips_finish(strips, queue, NULL), PIPED_DENIED);
    EXPECT(piped_strips_free(strips), PIPED_STALE);
    /* Under way when it is freed. */
    CHECK(piped_strips_read(client, file, 0, 300000, NULL, &strips));
    CHECK(piped_strips_next(strips, queue, &strip));
    CHECK(piped_strips_free(strips));

    /* Tiled loops. */
    piped_tiles *tiles = NULL;
    struct piped_tiles_options tiled = {.size = sizeof tiled, .grid_x = 1};
    /* no grid_y */
    EXPECT(piped_tiles_open(client, "misuse", &tiled, NULL, &tiles), PIPED_ARGUMENT);
    tiled.grid_y = 1;
    tiled.at_x = 1;
    EXPECT(piped_tiles_open(client, "misuse", &tiled, NULL, &tiles), PIPED_ARGUMENT);
    tiled.at_x = 0;
    EXPECT(piped_tiles_open(client, NULL, &tiled, NULL, &tiles), PIPED_NULL);
    EXPECT(piped_tiles_open(client, "misuse", NULL, NULL, &tiles), PIPED_NULL);
    EXPECT(piped_tiles_open(client, "misuse", &tiled, NULL, NULL), PIPED_NULL);
    tiled.edge_x = UINT64_MAX;
    EXPECT(piped_tiles_open(client, "misuse", &tiled, NULL, &tiles), PIPED_ARGUMENT);
    tiled.edge_x = 8;
    CHECK(piped_tiles_open(client, "misuse", &tiled, NULL, &tiles));
    struct inside inside = {.tiles = tiles, .again = PIPED_OK};
    EXPECT(piped_tiles_run(tiles, 10, 0, 2, look, &inside, NULL), PIPED_ARGUMENT);
    EXPECT(piped_tiles_run(tiles, 10, 0, PIPED_OVERLAPPING, NULL, &inside, NULL), PIPED_NULL);
    CHECK(piped_tiles_run(tiles, 10, 5, PIPED_NON_OVERLAPPING, look, &inside, NULL));
    EXPECT(inside.rows, 10);
    EXPECT(inside.again, PIPED_BUSY);
    tiled.grid_x = 2;
    tiled.patience_ns = 1;
    EXPECT(piped_tiles_open(client, "alone", &tiled, NULL, &tiles), PIPED_NOT_FOUND);
    CHECK(piped_tiles_free(tiles));
    EXPECT(piped_tiles_free(tiles), PIPED_STALE);

    /* A full queue. */
    uint32_t depth = 0;
    CHECK(piped_queue_depth(second, &depth));
    options.flags = PIPED_DETACHED;
    for (uint32_t at = 0; at < depth; at++)
        CHECK(piped_submit_nop(second, &options, NULL));
    EXPECT(piped_submit_read(second, file, 0, spare, &options, NULL), PIPED_FULL);
    EXPECT(piped_read(second, file, 0, spare, NULL, NULL), PIPED_FULL);
    CHECK(piped_buffer_data(spare, &data, NULL));
    for (uint32_t at = 0; at < depth; at++)
        CHECK(piped_next(second, -1, &result));
    EXPECT(piped_next(second, -1, &result), PIPED_IDLE);

    /* An exported buffer, and places beyond it. */
    CHECK(piped_region_export(client, "misuse", spare, PIPED_READ, &region));
    EXPECT(piped_buffer_data(spare, &data, NULL), PIPED_EXPORTED);
    EXPECT(piped_buffer_free(spare), PIPED_EXPORTED);
    EXPECT(piped_read(queue, file, 0, spare, NULL, NULL), PIPED_EXPORTED);
    char some[8] = {0};
    EXPECT(piped_region_read_at(region, 4090, some, 8), PIPED_RANGE);
    EXPECT(piped_region_read_at(region, SIZE_MAX, some, 8), PIPED_RANGE);
    EXPECT(piped_region_write_at(region, 0, NULL, 8), PIPED_NULL);
    EXPECT(piped_region_write_at(region, 0, some, SIZE_MAX), PIPED_RANGE);
    /* taken */
    EXPECT(piped_region_export(other, "misuse", theirs, PIPED_READ, &region) != PIPED_OK, 1);
    CHECK(piped_buffer_data(theirs, &data, NULL));
    CHECK(piped_region_close(region));
    EXPECT(piped_region_close(region), PIPED_STALE);
    CHECK(piped_buffer_data(spare, &data, NULL));

    /* Two threads on one queue: the second is refused while the first waits. */
    struct waiting waiting = {.queue = queue, .mail = mail, .buffer = buffer, .status = PIPED_OK};
    pthread_t thread;
    if (pthread_create(&thread, NULL, receive, &waiting) != 0)
        return EXIT_FAILURE;
    /* It looks between two turns, or valgrind, whose turns are of one length, would always find
     * one of the two inside. */
    while (piped_queue_depth(queue, &depth) != PIPED_BUSY)
        sched_yield();
    EXPECT(piped_read(queue, file, 0, spare, NULL, NULL), PIPED_BUSY);
    EXPECT(piped_queue_free(queue), PIPED_BUSY);
    CHECK(piped_buffer_data(spare, &data, NULL));
    piped_handle *outbox = NULL;
    CHECK(piped_open_channel(client, NULL, "misuse", &outbox));
    CHECK(piped_send(second, outbox, 5, spare, NULL, NULL));
    pthread_join(thread, NULL);
    EXPECT(waiting.status, PIPED_OK);
    CHECK(piped_queue_depth(queue, &depth));

    /* What was freed is freed; a queue takes its requests along. */
    CHECK(piped_submit_receive(queue, mail, 1, buffer, NULL, &request));
    CHECK(piped_queue_free(queue));
    EXPECT(piped_queue_free(queue), PIPED_STALE);
    EXPECT(piped_nop(queue, NULL, NULL), PIPED_STALE);
    EXPECT(piped_wait(queue, request, 0, &result), PIPED_STALE);
    CHECK(piped_buffer_where(buffer, &state));
    EXPECT(state, PIPED_BUFFER_LOST);
    EXPECT(piped_buffer_data(buffer, &data, NULL), PIPED_LOST);
    EXPECT(piped_read(second, file, 0, buffer, NULL, NULL), PIPED_LOST);
    CHECK(piped_buffer_free(buffer));
    EXPECT(piped_buffer_free(buffer), PIPED_STALE);
    EXPECT(piped_buffer_data(buffer, &data, NULL), PIPED_STALE);
    EXPECT(piped_read(second, file, 0, buffer, NULL, NULL), PIPED_STALE);
    piped_buffer *reused = NULL;
    CHECK(piped_buffer_allocate(client, 4096, &reused));
    EXPECT(reused != buffer, 1);
    EXPECT(piped_buffer_free(buffer), PIPED_STALE);
    CHECK(piped_buffer_free(reused));
    CHECK(piped_handle_free(file));
    EXPECT(piped_handle_free(file), PIPED_STALE);
    EXPECT(piped_read(second, file, 0, spare, NULL, NULL), PIPED_STALE);
    CHECK(piped_client_free(client));
    EXPECT(piped_client_free(client), PIPED_STALE);
    EXPECT(piped_buffer_allocate(client, 1, &buffer), PIPED_STALE);
    /* What was made with the client goes on. */
    CHECK(piped_nop(second, NULL, NULL));

    EXPECT(piped_buffer_free(NULL), PIPED_OK);
    EXPECT(piped_queue_free(NULL), PIPED_OK);
    EXPECT(piped_handle_free(NULL), PIPED_OK);
    EXPECT(piped_region_close(NULL), PIPED_OK);
    EXPECT(piped_client_free(NULL), PIPED_OK);
    EXPECT(strlen(piped_status_text(9999)) > 0, 1);

    CHECK(piped_handle_free(outbox));
    CHECK(piped_handle_free(mail));
    CHECK(piped_handle_free(foreign));
    CHECK(piped_buffer_free(spare));
    CHECK(piped_buffer_free(theirs));
    CHECK(piped_queue_free(second));
    CHECK(piped_client_free(other));
    if (failures == 0)
        printf("every misuse was told\n");
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
