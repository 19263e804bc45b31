#ifndef PIPED_VERBS_H
#define PIPED_VERBS_H

/*
 * Requests. piped_prep_VERB fills a struct piped_request; piped_submit puts it into a queue, and
 * piped_run waits for its end as well.
 *
 * Each verb has both in one call, too, with the operands of its piped_prep_VERB:
 * piped_VERB(queue, operands, options, result) runs a request, and
 * piped_submit_VERB(queue, operands, options, number) submits one.
 */

static inline void piped_prep_(struct piped_request *request, uint32_t verb,
                               struct piped_handle *handle, struct piped_buffer *buffer,
                               uint64_t offset, uint64_t first, uint64_t second) {
    request->size = sizeof *request;
    request->verb = verb;
    request->handle = (uint64_t)(uintptr_t)handle;
    request->to = 0;
    request->buffer = (uint64_t)(uintptr_t)buffer;
    request->pieces = 0;
    request->offset = offset;
    request->to_offset = 0;
    request->length = 0;
    request->operands[0] = first;
    request->operands[1] = second;
    request->buffers = 0;
}

/**
 * Ask for nothing: to the daemon and back.
 */
static inline void piped_prep_nop(struct piped_request *request) {
    piped_prep_(request, PIPED_VERB_NOP, NULL, NULL, 0, 0, 0);
}

/**
 * Fill `buffer` from `offset` of a file or region: as much as is there, up to the buffer's length.
 */
static inline void piped_prep_read(struct piped_request *request, struct piped_handle *handle,
                                   uint64_t offset, struct piped_buffer *buffer) {
    piped_prep_(request, PIPED_VERB_READ, handle, buffer, offset, 0, 0);
}

/**
 * Write `buffer` at `offset` of a file or region.
 */
static inline void piped_prep_write(struct piped_request *request, struct piped_handle *handle,
                                    uint64_t offset, struct piped_buffer *buffer) {
    piped_prep_(request, PIPED_VERB_WRITE, handle, buffer, offset, 0, 0);
}

/**
 * Fill `buffer` with pieces of a file or region, in one request. The result's bytes count the
 * pieces one behind the other, in the table's order.
 */
static inline void piped_prep_read_pieces(struct piped_request *request,
                                          struct piped_handle *handle, struct piped_pieces *pieces,
                                          struct piped_buffer *buffer) {
    piped_prep_(request, PIPED_VERB_READ_PIECES, handle, buffer, 0, 0, 0);
    request->pieces = (uint64_t)(uintptr_t)pieces;
}

/**
 * Write pieces of `buffer` to a file or region, in one request. The pieces are written in any
 * order: pieces that overlap in the file or region have no defined result.
 */
static inline void piped_prep_write_pieces(struct piped_request *request,
                                           struct piped_handle *handle, struct piped_pieces *pieces,
                                           struct piped_buffer *buffer) {
    piped_prep_(request, PIPED_VERB_WRITE_PIECES, handle, buffer, 0, 0, 0);
    request->pieces = (uint64_t)(uintptr_t)pieces;
}

/**
 * Fill several buffers from `offset` of a file or region, one behind the other, as readv does. The
 * result's bytes count over all of them.
 */
static inline void piped_prep_read_buffers(struct piped_request *request,
                                           struct piped_handle *handle, uint64_t offset,
                                           struct piped_buffers *buffers) {
    piped_prep_(request, PIPED_VERB_READ_BUFFERS, handle, NULL, offset, 0, 0);
    request->buffers = (uint64_t)(uintptr_t)buffers;
}

/**
 * Write several buffers one behind the other, from `offset` of a file or region, as writev does.
 */
static inline void piped_prep_write_buffers(struct piped_request *request,
                                            struct piped_handle *handle, uint64_t offset,
                                            struct piped_buffers *buffers) {
    piped_prep_(request, PIPED_VERB_WRITE_BUFFERS, handle, NULL, offset, 0, 0);
    request->buffers = (uint64_t)(uintptr_t)buffers;
}

/**
 * Copy `length` bytes between two handles, without passing through this process. The source's end
 * ends the copy early.
 */
static inline void piped_prep_copy(struct piped_request *request, struct piped_handle *from,
                                   uint64_t from_offset, struct piped_handle *to,
                                   uint64_t to_offset, uint64_t length) {
    piped_prep_(request, PIPED_VERB_COPY, from, NULL, from_offset, 0, 0);
    request->to = (uint64_t)(uintptr_t)to;
    request->to_offset = to_offset;
    request->length = length;
}

/**
 * Bring what completed writes wrote to stable storage.
 */
static inline void piped_prep_sync(struct piped_request *request, struct piped_handle *handle) {
    piped_prep_(request, PIPED_VERB_SYNC, handle, NULL, 0, 0, 0);
}

/**
 * Send `buffer` to a channel under a tag. The request ends when the message was taken in: a short
 * one by the receiver's node, a longer one by its receiver.
 */
static inline void piped_prep_send(struct piped_request *request, struct piped_handle *channel,
                                   uint64_t message_tag, struct piped_buffer *buffer) {
    piped_prep_(request, PIPED_VERB_SEND, channel, buffer, 0, message_tag, 0);
}

/**
 * Receive the next message of that tag, or of any (PIPED_ANY_TAG), into `buffer`. The result's
 * value is the message's tag. A message that is longer than the buffer stays, and the request ends
 * with PIPED_TOO_LONG.
 */
static inline void piped_prep_receive(struct piped_request *request, struct piped_handle *channel,
                                      uint64_t message_tag, struct piped_buffer *buffer) {
    piped_prep_(request, PIPED_VERB_RECEIVE, channel, buffer, 0, message_tag, 0);
}

/**
 * Add `addend` to the 8 bytes at `offset` of a region, wrapping around: one atomic step for all
 * that change them by such requests. The result's value is what they were. They are a word of the
 * exporter's byte order at a multiple of 8 bytes, and the region is open with PIPED_ATOMIC. The
 * addition is done exactly once; PIPED_OUTCOME_UNKNOWN and a passed deadline leave open whether it
 * was done.
 */
static inline void piped_prep_fetch_add(struct piped_request *request, struct piped_handle *region,
                                        uint64_t offset, uint64_t addend) {
    piped_prep_(request, PIPED_VERB_FETCH_ADD, region, NULL, offset, addend, 0);
}

/**
 * Replace the 8 bytes at `offset` of a region by `desired` if they are `expected`, otherwise as
 * piped_prep_fetch_add. The result's value is what they were: if that is `expected`, they were
 * replaced.
 */
static inline void piped_prep_compare_swap(struct piped_request *request,
                                           struct piped_handle *region, uint64_t offset,
                                           uint64_t expected, uint64_t desired) {
    piped_prep_(request, PIPED_VERB_COMPARE_SWAP, region, NULL, offset, expected, desired);
}

/**
 * Notify the exporter of a region of `id`, after all writes that this queue asked of that node
 * before. The notification is given exactly once, like an atomic. An earlier write that fails does
 * not hold it back; see PIPED_NOTIFY.
 */
static inline void piped_prep_notify(struct piped_request *request, struct piped_handle *region,
                                     uint32_t id) {
    piped_prep_(request, PIPED_VERB_NOTIFY, region, NULL, 0, id, 0);
}

/**
 * Wait until `count` notifications of `id` have come to a region of this client
 * (piped_region_handle), and take them. The result's value is how many are left. Several waits for
 * one `id` are served in their order.
 */
static inline void piped_prep_wait_notified(struct piped_request *request,
                                            struct piped_handle *region, uint32_t id,
                                            uint64_t count) {
    piped_prep_(request, PIPED_VERB_WAIT_NOTIFIED, region, NULL, 0, id, count);
}

/**
 * Wait for all reads, writes, atomics and notifications that this queue asked of the handle's node
 * before. Each of them says itself how it ended. (piped_queue_flush is something else: it lets the
 * daemon see what was submitted.)
 */
static inline void piped_prep_flush(struct piped_request *request, struct piped_handle *handle) {
    piped_prep_(request, PIPED_VERB_FLUSH, handle, NULL, 0, 0, 0);
}

/* Below: piped_VERB and piped_submit_VERB of each verb. */

#define PIPED_LIST_(...) __VA_ARGS__
#define PIPED_VERB_(verb, parameters, operands)                                     \
    static inline piped_status piped_##verb(                                        \
        struct piped_queue *queue, PIPED_LIST_ parameters,                          \
        const struct piped_request_options *options, struct piped_result *result) { \
        struct piped_request request;                                               \
        piped_prep_##verb(&request, PIPED_LIST_ operands);                          \
        return piped_run(queue, &request, options, result);                         \
    }                                                                               \
    static inline piped_status piped_submit_##verb(                                 \
        struct piped_queue *queue, PIPED_LIST_ parameters,                          \
        const struct piped_request_options *options, uint64_t *number) {            \
        struct piped_request request;                                               \
        piped_prep_##verb(&request, PIPED_LIST_ operands);                          \
        return piped_submit(queue, &request, options, number);                      \
    }

PIPED_VERB_(read, (struct piped_handle *handle, uint64_t offset, struct piped_buffer *buffer),
            (handle, offset, buffer))
PIPED_VERB_(write, (struct piped_handle *handle, uint64_t offset, struct piped_buffer *buffer),
            (handle, offset, buffer))
PIPED_VERB_(read_pieces, (struct piped_handle *handle, struct piped_pieces *pieces,
                          struct piped_buffer *buffer),
            (handle, pieces, buffer))
PIPED_VERB_(write_pieces, (struct piped_handle *handle, struct piped_pieces *pieces,
                           struct piped_buffer *buffer),
            (handle, pieces, buffer))
PIPED_VERB_(read_buffers, (struct piped_handle *handle, uint64_t offset,
                           struct piped_buffers *buffers),
            (handle, offset, buffers))
PIPED_VERB_(write_buffers, (struct piped_handle *handle, uint64_t offset,
                            struct piped_buffers *buffers),
            (handle, offset, buffers))
PIPED_VERB_(copy, (struct piped_handle *from, uint64_t from_offset, struct piped_handle *to,
                   uint64_t to_offset, uint64_t length),
            (from, from_offset, to, to_offset, length))
PIPED_VERB_(sync, (struct piped_handle *handle), (handle))
PIPED_VERB_(send, (struct piped_handle *channel, uint64_t message_tag, struct piped_buffer *buffer),
            (channel, message_tag, buffer))
PIPED_VERB_(receive, (struct piped_handle *channel, uint64_t message_tag,
                      struct piped_buffer *buffer),
            (channel, message_tag, buffer))
PIPED_VERB_(fetch_add, (struct piped_handle *region, uint64_t offset, uint64_t addend),
            (region, offset, addend))
PIPED_VERB_(compare_swap, (struct piped_handle *region, uint64_t offset, uint64_t expected,
                           uint64_t desired),
            (region, offset, expected, desired))
PIPED_VERB_(notify, (struct piped_handle *region, uint32_t id), (region, id))
PIPED_VERB_(wait_notified, (struct piped_handle *region, uint32_t id, uint64_t count),
            (region, id, count))
PIPED_VERB_(flush, (struct piped_handle *handle), (handle))

#undef PIPED_VERB_
#undef PIPED_LIST_

static inline piped_status piped_nop(struct piped_queue *queue,
                                     const struct piped_request_options *options,
                                     struct piped_result *result) {
    struct piped_request request;
    piped_prep_nop(&request);
    return piped_run(queue, &request, options, result);
}

static inline piped_status piped_submit_nop(struct piped_queue *queue,
                                            const struct piped_request_options *options,
                                            uint64_t *number) {
    struct piped_request request;
    piped_prep_nop(&request);
    return piped_submit(queue, &request, options, number);
}

#endif  /* PIPED_VERBS_H */
