/* Names and what is known of them: names SOCKET EXPORT [PEER]
 *
 * Makes a directory, replaces a file in it so that others see the old one or the new one, lists,
 * renames, cuts the file, looks where it has holes, locks and copies it, and removes everything
 * again.
 * */

#include <inttypes.h>
#include <string.h>

#include "check.h"

int main(int argc, char **argv) {
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: names SOCKET EXPORT [PEER]\n");
        return 64;
    }
    const char *peer = argc == 4 ? argv[3] : NULL;
    piped_client *client = NULL;
    piped_queue *queue = NULL;
    piped_handle *directory = NULL, *file = NULL;
    piped_list *list = NULL;
    CHECK(piped_connect(argv[1], NULL, &client));
    CHECK(piped_queue_create(client, &queue));
    CHECK(piped_open_directory(client, peer, argv[2], "", PIPED_READ | PIPED_NAMES, &directory));

    CHECK(piped_make_directory(queue, directory, "state/today", 0750, PIPED_CREATE_PARENTS));
    const char text[] = "what there is to know";
    CHECK(piped_replace(client, queue, peer, argv[2], "state/today/report",
                        (const uint8_t *)text, strlen(text), 0640));
    CHECK(piped_rename(queue, directory, "state/today/report", "state/report", PIPED_OVER_KEEP,
                       PIPED_DURABLE));
    /* A handle for changes alone. */
    piped_handle *changes = NULL;
    CHECK(piped_open_directory(client, peer, argv[2], "state", PIPED_NAMES, &changes));
    CHECK(piped_make_directory(queue, changes, "tomorrow", 0750, 0));
    CHECK(piped_remove(queue, changes, "tomorrow", PIPED_REMOVE_DIRECTORY));
    CHECK(piped_handle_free(changes));

    CHECK(piped_list_open(directory, "state", PIPED_WITH_STATS, &list));
    for (;;) {
        struct piped_name name;
        CHECK(piped_list_next(list, queue, &name));
        if (name.name == NULL)
            break;
        if (name.kind == PIPED_KIND_DIRECTORY)
            printf("%s/\n", name.name);
        else if (name.has_stat)
            printf("%s: %" PRIu64 " bytes\n", name.name, name.stat.length);
    }
    CHECK(piped_list_free(list));

    CHECK(piped_open_export(client, peer, argv[2], "state/report", PIPED_READ | PIPED_WRITE,
                            &file));
    CHECK(piped_truncate(queue, file, 1 << 20));
    struct piped_extent extents[8];
    uint64_t data = 0, at = 0;
    for (;;) {
        size_t count = 0;
        CHECK(piped_extents(queue, file, at, (1 << 20) - at, extents, 8, &count));
        if (count == 0)
            break;
        for (size_t one = 0; one < count; one++) {
            at = extents[one].offset + extents[one].length;
            if (extents[one].kind == PIPED_EXTENT_DATA)
                data += extents[one].length;
        }
        if (at == 1 << 20)
            break;
    }
    struct piped_file_info known;
    CHECK(piped_stat(queue, file, "", &known));
    printf("%" PRIu64 " bytes, %s of them with data\n", known.length,
           data == 0 ? "none" : data < known.length ? "some" : "all");
    uint8_t before[PIPED_DIGEST_BYTES], after[PIPED_DIGEST_BYTES];
    CHECK(piped_digest(queue, file, 0, known.length, &before));
    CHECK(piped_zero(queue, file, 0, 4, 0));
    CHECK(piped_digest(queue, file, 0, known.length, &after));
    printf("the digest is %s\n", memcmp(before, after, sizeof before) == 0 ? "the same" : "another");
    CHECK(piped_sync_range(queue, file, 0, 0, PIPED_DATA_ONLY));

    /* The node with both files copies, and nobody else locks the beginning meanwhile. */
    piped_handle *both = NULL;
    uint64_t copied = 0;
    CHECK(piped_replace(client, queue, peer, argv[2], "state/copy", (const uint8_t *)text, 0, 0640));
    CHECK(piped_open_directory(client, peer, argv[2], "state", PIPED_READ | PIPED_WRITE, &both));
    CHECK(piped_lock_range(queue, file, 0, 4096, PIPED_LOCK_EXCLUSIVE, 1000000000));
    CHECK(piped_copy_range(queue, both, "report", "copy", 0, 1 << 30, PIPED_DURABLE, &copied));
    CHECK(piped_lock_range(queue, file, 0, 4096, PIPED_LOCK_NONE, 0));
    CHECK(piped_handle_free(both));
    printf("%" PRIu64 " bytes are copied\n", copied);
    CHECK(piped_remove(queue, directory, "state/copy", PIPED_REMOVE_FILE));

    CHECK(piped_remove(queue, directory, "state/report", PIPED_REMOVE_FILE));
    CHECK(piped_remove(queue, directory, "state/today", PIPED_REMOVE_DIRECTORY));
    CHECK(piped_remove(queue, directory, "state", PIPED_REMOVE_ANY));
    piped_status gone = piped_stat(queue, directory, "state", &known);
    printf("%s\n", gone == PIPED_NOT_FOUND ? "nothing is left" : piped_last_message());

    piped_handle_free(file);
    piped_handle_free(directory);
    piped_queue_free(queue);
    piped_client_free(client);
    return 0;
}
