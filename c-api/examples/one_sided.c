/* Tickets and halos without the other side's doing: one_sided SOCKET [PEER SOCKET_OF_PEER]
 *
 * A region has a counter in its first word and rows behind it. One client offers it; another takes
 * tickets by fetch_add, puts rows, has the exporter notified of them, and gets a column. With PEER
 * the second asks from another node. */

#include <inttypes.h>
#include <string.h>

#include "check.h"

enum { ROWS = 4, ROW_BYTES = 4096, ROW_ID = 7 };

int main(int argc, char **argv) {
    if (argc != 2 && argc != 4) {
        fprintf(stderr, "usage: one_sided SOCKET [PEER SOCKET_OF_PEER]\n");
        return 64;
    }
    const char *peer = argc == 4 ? argv[2] : NULL;
    const uint32_t access = PIPED_READ | PIPED_WRITE | PIPED_ATOMIC;

    /* The client that offers. */
    piped_client *owner = NULL;
    piped_buffer *memory = NULL;
    piped_region *exported = NULL;
    piped_handle *own = NULL;
    piped_queue *owners = NULL;
    CHECK(piped_connect(argc == 4 ? argv[3] : argv[1], NULL, &owner));
    CHECK(piped_buffer_allocate(owner, (1 + ROWS) * ROW_BYTES, &memory));
    memset(bytes_of(memory), 0, (1 + ROWS) * ROW_BYTES);
    CHECK(piped_region_export(owner, "halo", memory, access, &exported));
    CHECK(piped_region_handle(exported, &own));
    CHECK(piped_queue_create(owner, &owners));

    /* The client that asks. */
    piped_client *asker = NULL;
    piped_handle *region = NULL;
    piped_queue *queue = NULL;
    piped_buffer *row = NULL;
    CHECK(piped_connect(argv[1], NULL, &asker));
    CHECK(piped_open_region(asker, peer, "halo", access, &region));
    CHECK(piped_queue_create(asker, &queue));
    CHECK(piped_buffer_allocate(asker, ROW_BYTES, &row));
    struct piped_request_options notify = {
        .size = sizeof notify,
        .flags = PIPED_NOTIFY,
        .notify_id = ROW_ID,
    };
    piped_result result;
    for (unsigned number = 1; number <= ROWS; number++) {
        CHECK(piped_fetch_add(queue, region, 0, 1, NULL, &result));
        const uint64_t ticket = result.value;
        memset(bytes_of(row), (int)(10 + ticket), ROW_BYTES);
        CHECK(piped_write(queue, region, (1 + ticket) * ROW_BYTES, row, &notify, NULL));
    }
    CHECK(piped_compare_swap(queue, region, 0, ROWS, 100, NULL, &result));
    printf("%" PRIu64 " tickets", result.value);
    CHECK(piped_compare_swap(queue, region, 0, ROWS, 200, NULL, &result));
    printf(", then %" PRIu64 "\n", result.value);
    CHECK(piped_flush(queue, region, NULL, NULL));

    /* A column of all rows in one request: 8 bytes of each, packed. */
    const struct piped_piece column = {
        .offset = ROW_BYTES + 64,
        .stride = ROW_BYTES,
        .at_stride = 8,
        .length = 8,
        .count = ROWS,
    };
    piped_pieces *pieces = NULL;
    CHECK(piped_pieces_create(asker, &column, 1, &pieces));
    struct piped_request gather;
    piped_prep_read_pieces(&gather, region, pieces, row);
    CHECK(piped_run(queue, &gather, NULL, &result));
    const unsigned char *packed = bytes_of(row);
    printf("column: %d %d %d %d\n", packed[0], packed[8], packed[16], packed[24]);
    piped_pieces_free(pieces);

    /* The offering client goes on when all rows are there. */
    CHECK(piped_wait_notified(owners, own, ROW_ID, ROWS, NULL, &result));
    printf("%" PRIu64 " notifications left\n", result.value);
    for (size_t at = 1; at <= ROWS; at++) {
        unsigned char first = 0;
        CHECK(piped_region_read_at(exported, at * ROW_BYTES, &first, 1));
        printf("row %zu is %d\n", at, first);
    }

    piped_buffer_free(row);
    piped_queue_free(queue);
    piped_handle_free(region);
    piped_client_free(asker);
    piped_handle_free(own);
    CHECK(piped_region_close(exported));
    piped_buffer_free(memory);
    piped_queue_free(owners);
    piped_client_free(owner);
    return 0;
}
