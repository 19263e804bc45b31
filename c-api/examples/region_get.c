/* Offer memory by name, and get a piece of it: region_get SOCKET
 *
 * Here both ends are one program and one node; the name of a node instead of NULL gets it from
 * there. */

#include <string.h>

#include "check.h"

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: region_get SOCKET\n");
        return 64;
    }
    static const char left[] = "the left edge", renewed[] = "a new edge...";
    piped_client *client = NULL;
    piped_buffer *halo = NULL, *edge = NULL;
    piped_region *exported = NULL;
    piped_handle *region = NULL;
    piped_queue *queue = NULL;
    CHECK(piped_connect(argv[1], NULL, &client));
    CHECK(piped_buffer_allocate(client, 8192, &halo));
    memcpy((char *)bytes_of(halo) + 4096, left, sizeof left);
    /* From here on others may touch it, so bytes are only copied in and out. */
    CHECK(piped_region_export(client, "halo", halo, PIPED_READ | PIPED_WRITE, &exported));

    CHECK(piped_open_region(client, NULL, "halo", PIPED_READ | PIPED_WRITE, &region));
    CHECK(piped_queue_create(client, &queue));
    CHECK(piped_buffer_allocate(client, sizeof left, &edge));
    CHECK(piped_read(queue, region, 4096, edge, NULL, NULL));
    printf("%s\n", (const char *)bytes_of(edge));

    memcpy(bytes_of(edge), renewed, sizeof renewed);
    CHECK(piped_write(queue, region, 4096, edge, NULL, NULL));
    char seen[sizeof renewed];
    CHECK(piped_region_read_at(exported, 4096, seen, sizeof seen));
    printf("%s\n", seen);

    /* The memory is the buffer's again when nobody touches it any more. */
    CHECK(piped_region_close(exported));
    printf("%s\n", (const char *)bytes_of(halo) + 4096);

    piped_buffer_free(edge);
    piped_buffer_free(halo);
    piped_queue_free(queue);
    piped_handle_free(region);
    piped_client_free(client);
    return 0;
}
