/* Messages between clients: one process receives, others send, on this node or another.
 * messages SOCKET receive NAME | messages SOCKET send NAME TEXT [PEER] */

#include <inttypes.h>
#include <string.h>

#include "check.h"

/* Prints one message. */
static void receive(piped_client *client, piped_queue *queue, const char *name) {
    piped_handle *mail = NULL;
    piped_buffer *buffer = NULL;
    CHECK(piped_offer_channel(client, name, &mail));
    CHECK(piped_buffer_allocate(client, 64 * 1024, &buffer));
    struct piped_request_options options = {.size = sizeof options, .flags = PIPED_ANY_TAG};
    piped_result result;
    CHECK(piped_receive(queue, mail, 0, buffer, &options, &result));
    printf("%" PRIu64 ": %.*s\n", result.value, (int)result.bytes, (const char *)bytes_of(buffer));
    piped_buffer_free(buffer);
    piped_handle_free(mail);
}

/* Sends one, and waits until it is taken in. */
static void send_text(piped_client *client, piped_queue *queue, const char *peer, const char *name,
                      const char *text) {
    piped_handle *mail = NULL;
    piped_buffer *buffer = NULL;
    CHECK(piped_open_channel(client, peer, name, &mail));
    CHECK(piped_buffer_allocate(client, strlen(text), &buffer));
    memcpy(bytes_of(buffer), text, strlen(text));
    CHECK(piped_send(queue, mail, 7, buffer, NULL, NULL));
    piped_buffer_free(buffer);
    piped_handle_free(mail);
}

int main(int argc, char **argv) {
    const bool receives = argc == 4 && strcmp(argv[2], "receive") == 0;
    const bool sends = (argc == 5 || argc == 6) && strcmp(argv[2], "send") == 0;
    if (!receives && !sends) {
        fprintf(stderr, "usage: messages SOCKET receive NAME\n"
                        "       messages SOCKET send NAME TEXT [PEER]\n");
        return 64;
    }
    piped_client *client = NULL;
    piped_queue *queue = NULL;
    CHECK(piped_connect(argv[1], NULL, &client));
    CHECK(piped_queue_create(client, &queue));
    if (receives)
        receive(client, queue, argv[3]);
    else
        send_text(client, queue, argc == 6 ? argv[5] : NULL, argv[3], argv[4]);
    piped_queue_free(queue);
    piped_client_free(client);
    return 0;
}
