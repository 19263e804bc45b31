/*
 * piped.h: move bytes between memory, files and other nodes through the piped daemon.
 *
 * This file is made from c-api/src; docs/c-api.md introduces it.
 *
 * Objects. A pointer that a function gives out (struct piped_client * and so on) is a name, not an
 * address: it is checked at every call, and a freed, foreign or made-up one is refused. Every
 * object is freed once, by the function of its kind, in any order: what an object needs of another
 * stays until it is freed itself. Freeing NULL does nothing.
 *
 * Requests. piped_prep_VERB fills a struct piped_request; piped_submit puts it into a queue, and
 * piped_run waits for its end as well. piped_submit_VERB and piped_VERB do both in one call.
 *
 * Results. Nearly every function returns a piped_status: PIPED_OK (0) or a reason;
 * piped_last_message() then says more. A function writes what it gives to its last pointers, and
 * only if it returns PIPED_OK. These must not be NULL unless it is said that they may.
 *
 * Conditions that nobody can check. Pointers to values, strings, options and memory are good until
 * the call returns; strings end with a NUL, and names are UTF-8. The program leaves the bytes of a
 * buffer alone while a request has it. A forked process uses nothing of its parent's.
 *
 * Threads. Everything is for all threads, but a queue is for one at a time.
 */

#ifndef PIPED_H
#define PIPED_H



#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * Access for reading from the handle.
 */
#define PIPED_READ 1

/**
 * Access for writing to the handle.
 */
#define PIPED_WRITE 2

/**
 * Access to a region: atomics.
 */
#define PIPED_ATOMIC 4

/**
 * When opening a file: make it if it is not there.
 */
#define PIPED_CREATE 16

/**
 * When opening a file: make it, and fail if something has its name.
 */
#define PIPED_CREATE_NEW 128

/**
 * When making a file: make the directories on the way to it, too.
 */
#define PIPED_CREATE_PARENTS 256

/**
 * When making a file: its permission bits, at most 0777, are shifted by so many bits into the
 * flags; 0 are the default (0640 below exports, 0666 here), of which umask takes some away.
 */
#define PIPED_MODE_SHIFT 16

/**
 * When opening a local file: empty it.
 */
#define PIPED_TRUNCATE 32

/**
 * When opening a local file: do not go past the page cache.
 */
#define PIPED_BUFFERED 64

/**
 * Access to a directory: names below it may be made, changed and removed.
 */
#define PIPED_NAMES 8

/**
 * For piped_list_open: each name comes with what is known of it.
 */
#define PIPED_WITH_STATS 1

/**
 * For piped_allocate: the file does not become longer.
 */
#define PIPED_KEEP_LENGTH 1

/**
 * For piped_zero: the range's room on the device is given up, if that is as fast.
 */
#define PIPED_RELEASE 1

/**
 * For piped_sync_range: without what is not needed to read the data again.
 */
#define PIPED_DATA_ONLY 1

/**
 * Bytes of a digest of piped_digest.
 */
#define PIPED_DIGEST_BYTES 32

/**
 * A write with this flag completes when its bytes are on stable storage.
 */
#define PIPED_DURABLE 1

/**
 * A request with this flag ends with PIPED_WOULD_BLOCK where it would have to wait: for a limit,
 * for a sender, or for room for what it sends.
 */
#define PIPED_NO_WAIT 2

/**
 * A read or write with this flag is submitted again if the daemon ends before it does, within its
 * deadline. The client was connected with reconnect_ns.
 */
#define PIPED_RESUBMIT 4

/**
 * Detached: piped_next gives the result, in the order in which requests end, and not piped_wait.
 */
#define PIPED_DETACHED 8

/**
 * A receive with this flag takes the next message, whatever its tag.
 */
#define PIPED_ANY_TAG 16

/**
 * A read, write, atomic or notification with this flag begins when all of these that this queue
 * asked of the same node before are over. Without the flag the daemon does requests in any order,
 * and only notifications wait for writes.
 */
#define PIPED_FENCE 32

/**
 * A write to a region with this flag notifies the exporter of notify_id, after this write and all
 * writes that this queue asked of that node before. The request ends after the notification. A
 * write that fails notifies nobody.
 */
#define PIPED_NOTIFY 64

/**
 * The verb of piped_prep_nop.
 */
#define PIPED_VERB_NOP 0

/**
 * The verb of piped_prep_read.
 */
#define PIPED_VERB_READ 1

/**
 * The verb of piped_prep_write.
 */
#define PIPED_VERB_WRITE 2

/**
 * The verb of piped_prep_read_pieces.
 */
#define PIPED_VERB_READ_PIECES 3

/**
 * The verb of piped_prep_write_pieces.
 */
#define PIPED_VERB_WRITE_PIECES 4

/**
 * The verb of piped_prep_copy.
 */
#define PIPED_VERB_COPY 5

/**
 * The verb of piped_prep_sync.
 */
#define PIPED_VERB_SYNC 6

/**
 * The verb of piped_prep_send.
 */
#define PIPED_VERB_SEND 7

/**
 * The verb of piped_prep_receive.
 */
#define PIPED_VERB_RECEIVE 8

/**
 * The verb of piped_prep_fetch_add.
 */
#define PIPED_VERB_FETCH_ADD 9

/**
 * The verb of piped_prep_compare_swap.
 */
#define PIPED_VERB_COMPARE_SWAP 10

/**
 * The verb of piped_prep_notify.
 */
#define PIPED_VERB_NOTIFY 11

/**
 * The verb of piped_prep_wait_notified.
 */
#define PIPED_VERB_WAIT_NOTIFIED 12

/**
 * The verb of piped_prep_flush.
 */
#define PIPED_VERB_FLUSH 13

/**
 * The verb of piped_prep_read_buffers.
 */
#define PIPED_VERB_READ_BUFFERS 14

/**
 * The verb of piped_prep_write_buffers.
 */
#define PIPED_VERB_WRITE_BUFFERS 15

/**
 * How a call or a request ended. 0 is success. Up to 63 are the daemon's reasons; the others are
 * this library's. Numbers keep their meaning; there may be more of them in later versions.
 */
enum piped_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Everything was done (reads: up to the end of the file).
     */
    PIPED_OK = 0,
    /**
     * The daemon, or this library, does not know that verb, flag or option.
     */
    PIPED_UNSUPPORTED = 1,
    /**
     * A length or offset of the request is out of the daemon's range.
     */
    PIPED_INVALID = 2,
    /**
     * The daemon has no such handle open for this session.
     */
    PIPED_BAD_HANDLE = 3,
    /**
     * The buffer does not lie inside the arena, or somebody has cut the memory lent for it.
     */
    PIPED_BAD_BUFFER = 4,
    /**
     * The handle was not opened for this kind of access, or permission was denied.
     */
    PIPED_DENIED = 5,
    /**
     * The request's deadline passed.
     */
    PIPED_DEADLINE_EXCEEDED = 6,
    /**
     * The request was cancelled.
     */
    PIPED_CANCELLED = 7,
    /**
     * The device reported an error.
     */
    PIPED_IO = 8,
    /**
     * No space left on the device.
     */
    PIPED_NO_SPACE = 9,
    /**
     * The peer is not reachable, or was lost and did not come back in time.
     */
    PIPED_PEER_LOST = 10,
    /**
     * The owner of the region or channel is gone, or took access back.
     */
    PIPED_GONE = 11,
    /**
     * No such export, file, region or channel.
     */
    PIPED_NOT_FOUND = 12,
    /**
     * A limit is reached, or the request would have to wait and was asked not to.
     */
    PIPED_WOULD_BLOCK = 13,
    /**
     * The operation may or may not have happened, because a daemon restarted in between.
     */
    PIPED_OUTCOME_UNKNOWN = 14,
    /**
     * A checksum did not match more often than retries allow.
     */
    PIPED_CORRUPT = 15,
    /**
     * The session is being closed.
     */
    PIPED_CLOSED = 16,
    /**
     * The message is longer than the buffer; it can still be received.
     */
    PIPED_TOO_LONG = 17,
    /**
     * No such export, or none for this user or node.
     */
    PIPED_NO_EXPORT = 18,
    /**
     * There is no directory where the file was looked for, or was to be made.
     */
    PIPED_NO_DIRECTORY = 19,
    /**
     * A directory is there, where a file is needed.
     */
    PIPED_IS_DIRECTORY = 20,
    /**
     * Something has that name already.
     */
    PIPED_EXISTS = 21,
    /**
     * No directory is there, or a part of the path is none.
     */
    PIPED_NOT_DIRECTORY = 22,
    /**
     * The directory has names in it.
     */
    PIPED_NOT_EMPTY = 23,
    /**
     * The file system can only be read.
     */
    PIPED_READ_ONLY = 24,
    /**
     * Larger than the file system or the call allows.
     */
    PIPED_TOO_LARGE = 25,
    /**
     * The file system does not permit it to the daemon's user, or here to this process.
     */
    PIPED_NOT_PERMITTED = 26,
    /**
     * A link in the path leads out of the export, or too far.
     */
    PIPED_LOOP = 27,
    /**
     * The two names, or the path and its directory, lie on different mounts.
     */
    PIPED_CROSS_DEVICE = 28,
    /**
     * A name is too long for the file system.
     */
    PIPED_NAME_TOO_LONG = 29,
    /**
     * Another handle, or a program on that node, has locked the range or a part of it.
     */
    PIPED_LOCKED = 30,
    /**
     * The daemon gave a reason that this library does not know; update the library.
     */
    PIPED_UNKNOWN = 63,
    /**
     * A pointer that must not be NULL is.
     */
    PIPED_NULL = 64,
    /**
     * The pointer was not given out by this library.
     */
    PIPED_NOT_OURS = 65,
    /**
     * The pointer stands for another kind of object.
     */
    PIPED_WRONG_KIND = 66,
    /**
     * The object was freed, or the request's result was taken.
     */
    PIPED_STALE = 67,
    /**
     * Another thread is using the object: a queue is for one thread at a time.
     */
    PIPED_BUSY = 68,
    /**
     * The request has not ended yet; or a request that has not ended has the buffer.
     */
    PIPED_UNDERWAY = 69,
    /**
     * The buffer's request has ended, and the kernel may still touch the buffer: see
     * piped_wait_released.
     */
    PIPED_HELD = 70,
    /**
     * The buffer went with its queue or its daemon, or the tiled loop failed before, and can only
     * be freed.
     */
    PIPED_LOST = 71,
    /**
     * The buffer is offered as a region: piped_region_close gives it back.
     */
    PIPED_EXPORTED = 72,
    /**
     * The request was submitted to another queue.
     */
    PIPED_OTHER_QUEUE = 73,
    /**
     * The request is detached: piped_next gives its result.
     */
    PIPED_DETACHED_REQUEST = 74,
    /**
     * There is nothing to wait for.
     */
    PIPED_IDLE = 75,
    /**
     * An argument makes no sense; the message says which.
     */
    PIPED_ARGUMENT = 76,
    /**
     * A length or offset is not inside the buffer or region.
     */
    PIPED_RANGE = 77,
    /**
     * As many requests are under way, or ended and not taken, as the queue is deep.
     */
    PIPED_FULL = 78,
    /**
     * The handle or buffer belongs to another client.
     */
    PIPED_FOREIGN = 79,
    /**
     * The handle could not be opened again when the client reconnected.
     */
    PIPED_HANDLE_LOST = 80,
    /**
     * The new connection's arena has no room for the buffer.
     */
    PIPED_NO_ROOM = 81,
    /**
     * The daemon ended, or ended the session.
     */
    PIPED_DISCONNECTED = 82,
    /**
     * The daemon sent bytes outside of the protocol; connect again, and report it.
     */
    PIPED_BROKEN = 83,
    /**
     * The daemon did not answer in the time the options allow.
     */
    PIPED_TIMED_OUT = 84,
    /**
     * The client was not connected with reconnect_ns.
     */
    PIPED_NOT_RECONNECTING = 85,
    /**
     * The operating system refused; the message says what.
     */
    PIPED_SYSTEM = 86,
    /**
     * This process has as many objects of the kind as it can have.
     */
    PIPED_LIMIT = 87,
    /**
     * This library failed inside, or did so in an earlier call on the object. The object can be
     * freed. A bug: report the message.
     */
    PIPED_INTERNAL = 88,
    /**
     * The table of pieces is another client's, or of the daemon before; make it anew.
     */
    PIPED_TABLE_LOST = 89,
    /**
     * The buffer is of memory that could not be lent again when the client reconnected; lend it
     * anew to hear why.
     */
    PIPED_NOT_LENT = 90,
    /**
     * Some of the part of lent memory is in another buffer, or was lost with its daemon.
     */
    PIPED_TAKEN = 91,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum piped_status piped_status;
#else
typedef int32_t piped_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Where a buffer's memory is.
 */
enum piped_buffer_state
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * No buffer: the request had none.
     */
    PIPED_BUFFER_NONE = 0,
    /**
     * The program has the buffer.
     */
    PIPED_BUFFER_HERE = 1,
    /**
     * A request has the buffer.
     */
    PIPED_BUFFER_UNDERWAY = 2,
    /**
     * The buffer's request has ended, and the kernel may still touch the buffer:
     * piped_wait_released.
     */
    PIPED_BUFFER_HELD = 3,
    /**
     * Gone with its queue or daemon; free it.
     */
    PIPED_BUFFER_LOST = 4,
    /**
     * Offered to others as a region: piped_region_close.
     */
    PIPED_BUFFER_EXPORTED = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum piped_buffer_state piped_buffer_state;
#else
typedef uint32_t piped_buffer_state;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How urgent requests are.
 */
enum piped_class
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The class that the session named when it connected, or else the daemon's default.
     */
    PIPED_CLASS_DEFAULT = 0,
    /**
     * Somebody is blocked on it: goes first.
     */
    PIPED_CLASS_LATENCY = 1,
    /**
     * Throughput matters more than latency.
     */
    PIPED_CLASS_BULK = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum piped_class piped_class;
#else
typedef uint32_t piped_class;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How a queue waits: how long it looks for completions before it sleeps. On the CPU of
 * piped_shard_cpu no policy spins: there a spin only keeps the shard from what is waited for.
 */
enum piped_wait_policy
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Wait as the daemon recommends.
     */
    PIPED_WAIT_DEFAULT = 0,
    /**
     * Spin briefly where a CPU is to spare.
     */
    PIPED_WAIT_BALANCED = 1,
    /**
     * Spin long before sleeping.
     */
    PIPED_WAIT_LATENCY = 2,
    /**
     * Sleep at once, and never spin.
     */
    PIPED_WAIT_THROUGHPUT = 3,
    /**
     * Spin as long as spin_ns says at most.
     */
    PIPED_WAIT_CUSTOM = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum piped_wait_policy piped_wait_policy;
#else
typedef uint32_t piped_wait_policy;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How long strips are.
 */
enum piped_strip_policy
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * By the computation and the path, strip by strip; one request where overlap cannot win.
     */
    PIPED_STRIPS_AUTO = 0,
    /**
     * strip_bytes each, the last one shorter.
     */
    PIPED_STRIPS_FIXED = 1,
    /**
     * The first of strip_bytes, each following one longer by the part `growth`, as far as the
     * memory goes.
     */
    PIPED_STRIPS_VARIABLE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum piped_strip_policy piped_strip_policy;
#else
typedef uint32_t piped_strip_policy;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How borders and computation follow each other.
 */
enum piped_schedule
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * A tile is computed while the border of the one before goes and that of the next one comes.
     */
    PIPED_OVERLAPPING = 0,
    /**
     * One after the other: receive, compute, send.
     */
    PIPED_NON_OVERLAPPING = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum piped_schedule piped_schedule;
#else
typedef uint32_t piped_schedule;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What a name stands for.
 */
enum piped_file_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * A device, a FIFO, a socket.
     */
    PIPED_KIND_OTHER = 0,
    /**
     * A file with bytes.
     */
    PIPED_KIND_FILE = 1,
    /**
     * A directory, which has names.
     */
    PIPED_KIND_DIRECTORY = 2,
    /**
     * A symbolic link, which no call follows at the end of a path.
     */
    PIPED_KIND_LINK = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum piped_file_kind piped_file_kind;
#else
typedef uint32_t piped_file_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What a name that is removed must stand for.
 */
enum piped_removed
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Anything but a directory.
     */
    PIPED_REMOVE_FILE = 0,
    /**
     * A directory, which must be empty.
     */
    PIPED_REMOVE_DIRECTORY = 1,
    /**
     * A file or an empty directory.
     */
    PIPED_REMOVE_ANY = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum piped_removed piped_removed;
#else
typedef uint32_t piped_removed;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What becomes of something that has the new name of a piped_rename.
 */
enum piped_over
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Something loses the name: a file, or an empty directory for a directory.
     */
    PIPED_OVER_REPLACE = 0,
    /**
     * The call fails, and nothing changes.
     */
    PIPED_OVER_KEEP = 1,
    /**
     * Something gets the old name.
     */
    PIPED_OVER_EXCHANGE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum piped_over piped_over;
#else
typedef uint32_t piped_over;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What a range of a file is.
 */
enum piped_extent_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Bytes on the device.
     */
    PIPED_EXTENT_DATA = 0,
    /**
     * Nothing: it reads as zeros and takes no room.
     */
    PIPED_EXTENT_HOLE = 1,
    /**
     * Room that nothing was written to: it reads as zeros.
     */
    PIPED_EXTENT_ZERO = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum piped_extent_kind piped_extent_kind;
#else
typedef uint32_t piped_extent_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What the page cache is told of a range.
 */
enum piped_advice
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Nothing in particular will be done.
     */
    PIPED_ADVICE_NORMAL = 0,
    /**
     * The range will be read soon.
     */
    PIPED_ADVICE_WILL_NEED = 1,
    /**
     * The range will not be needed soon.
     */
    PIPED_ADVICE_DONT_NEED = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum piped_advice piped_advice;
#else
typedef uint32_t piped_advice;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * A lock that a range of a file can have.
 */
enum piped_lock
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The range is not locked by this handle.
     */
    PIPED_LOCK_NONE = 0,
    /**
     * Others can lock the range so too, and not alone. Needs a handle that may read.
     */
    PIPED_LOCK_SHARED = 1,
    /**
     * No other can lock the range. Needs a handle that may write.
     */
    PIPED_LOCK_EXCLUSIVE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum piped_lock piped_lock;
#else
typedef uint32_t piped_lock;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Memory that the daemon moves bytes to and from without a copy. It starts at a page.
 *
 * A request borrows it: from its submission until its result was taken the buffer cannot be read
 * through this library, given to another request or freed (PIPED_UNDERWAY).
 */
typedef struct piped_buffer piped_buffer;

/**
 * A list of buffers that a request fills or empties one behind the other. It has their names and
 * not their memory: between requests each is used on its own, too. A request borrows all of them,
 * and none if one cannot be had. For all threads.
 */
typedef struct piped_buffers piped_buffers;

/**
 * A session with the daemon of this node: memory, handles, queues. For all threads. The session
 * ends when the client and everything made with it has been freed.
 */
typedef struct piped_client piped_client;

/**
 * Something open: a local file, a file of an export, a region, a channel. For all threads of its
 * client. Closed when it was freed and the last request that uses it has ended.
 */
typedef struct piped_handle piped_handle;

/**
 * A list of the names of a directory. For one thread at a time.
 */
typedef struct piped_list piped_list;

/**
 * Memory of the program that is lent to the daemon, until it is given back and all buffers of it
 * are freed. For all threads.
 */
typedef struct piped_memory piped_memory;

/**
 * A table of the pieces of a file or region that one request moves. Any number of requests may use
 * it at once: a program that exchanges the same halo again and again makes it once. For all
 * threads of its client.
 */
typedef struct piped_pieces piped_pieces;

/**
 * Submits requests and gives their results. For one thread at a time: a second one is refused with
 * PIPED_BUSY, also while the first waits.
 */
typedef struct piped_queue piped_queue;

/**
 * A buffer that others may read or write by name, until the region is closed. It ends with its
 * daemon, and a reconnect does not offer it again. For all threads.
 */
typedef struct piped_region piped_region;

/**
 * A loop over the strips of a range that is read, or written. For one thread at a time, as its
 * queue.
 */
typedef struct piped_strips piped_strips;

/**
 * A process of a tiled loop. For one thread at a time.
 */
typedef struct piped_tiles piped_tiles;

/**
 * How to connect. Set size to sizeof, and what shall differ from the defaults; 0 is always the
 * default.
 */
typedef struct piped_connect_options {
    /**
     * Set to sizeof(struct piped_connect_options).
     */
    uint32_t size;
    /**
     * Requests each queue can have under way. Default: 255.
     */
    uint32_t depth;
    /**
     * Bytes of the arena's first segment, and the least it grows by later. Default: 16 MiB.
     */
    uint64_t arena_bytes;
    /**
     * How long opening, growing and connecting may take, in nanoseconds. Default: 30 s.
     */
    uint64_t timeout_ns;
    /**
     * Not 0: go on with the next daemon when this one ends, and let that take so long, in
     * nanoseconds; see piped_reconnect.
     */
    uint64_t reconnect_ns;
    /**
     * With PIPED_WAIT_CUSTOM, the longest spin in nanoseconds; 0 sleeps at once.
     */
    uint64_t spin_ns;
    /**
     * The class (piped_class) of requests that name none.
     */
    uint32_t request_class;
    /**
     * The share of bytes among clients of the same class, 1 to 255. Default: 1.
     */
    uint32_t weight;
    /**
     * How queues wait (piped_wait_policy).
     */
    uint32_t wait_policy;
    /**
     * 1: all shards of the daemon serve the client's queues, each queue one, by turns, instead
     * of one shard: for programs with a queue for each of several threads. Things of other nodes,
     * receives and waits still pass by one. Default: 0.
     */
    uint32_t spread;
} piped_connect_options;

/**
 * The result of a request.
 */
typedef struct piped_result {
    /**
     * The request's number, as its submission gave it.
     */
    uint64_t request;
    /**
     * The tag of its options.
     */
    uint64_t tag;
    /**
     * Contiguous bytes done from the request's start.
     */
    uint64_t bytes;
    /**
     * For a receive, the message's tag; for an atomic, what the word was; for a wait for
     * notifications, how many are left; otherwise 0.
     */
    uint64_t value;
    /**
     * The request's buffer, or NULL.
     */
    struct piped_buffer *buffer;
    /**
     * PIPED_OK, or why it did not do everything.
     */
    piped_status status;
    /**
     * Where the buffer is, or all of several: PIPED_BUFFER_HERE unless status says otherwise.
     */
    piped_buffer_state buffer_state;
    /**
     * The request's several buffers, or NULL.
     */
    struct piped_buffers *buffers;
    /**
     * Reserved, and always 0.
     */
    uint64_t reserved;
} piped_result;

/**
 * What is known of a file or directory.
 */
typedef struct piped_file_info {
    /**
     * Length of the file in bytes.
     */
    uint64_t length;
    /**
     * Room that it takes on the device, in bytes.
     */
    uint64_t allocated;
    /**
     * Number on its file system, the same for all its names.
     */
    uint64_t inode;
    /**
     * Time of the last change of its bytes, in seconds since 1970.
     */
    int64_t modified_seconds;
    /**
     * Time of the last change of anything here, in seconds since 1970.
     */
    int64_t changed_seconds;
    /**
     * Nanoseconds that belong to modified_seconds.
     */
    uint32_t modified_nanoseconds;
    /**
     * Nanoseconds that belong to changed_seconds.
     */
    uint32_t changed_nanoseconds;
    /**
     * What it is (piped_file_kind).
     */
    uint32_t kind;
    /**
     * Permission bits, without the kind.
     */
    uint32_t mode;
    /**
     * The user that owns it, by number of its own node.
     */
    uint32_t user;
    /**
     * The group that owns it, by number of its own node.
     */
    uint32_t group;
    /**
     * How many names it has.
     */
    uint32_t links;
    /**
     * What offsets and lengths of direct I/O must be multiples of; 0: there is none.
     */
    uint32_t direct_offset;
    /**
     * What addresses of direct I/O must be multiples of; 0: there is none.
     */
    uint32_t direct_memory;
    /**
     * Reserved, and always 0.
     */
    uint32_t reserved;
} piped_file_info;

/**
 * Room on a file system.
 */
typedef struct piped_space_info {
    /**
     * All of it, in bytes.
     */
    uint64_t total;
    /**
     * What nothing takes, in bytes.
     */
    uint64_t free;
    /**
     * What of it the daemon may take, in bytes.
     */
    uint64_t available;
    /**
     * How many files there can be; 0: there is no such bound.
     */
    uint64_t files;
    /**
     * How many more files there can be.
     */
    uint64_t files_free;
} piped_space_info;

/**
 * A name of a directory, until the next call on its list.
 */
typedef struct piped_name {
    /**
     * The name, which ends with a NUL. NULL: there are no more.
     */
    const char *name;
    /**
     * What it stands for (piped_file_kind).
     */
    uint32_t kind;
    /**
     * Whether `stat` is there: with PIPED_WITH_STATS, if the name was there still.
     */
    bool has_stat;
    /**
     * What is known of it.
     */
    struct piped_file_info stat;
} piped_name;

/**
 * Equal pieces at equal distances: one, or the rows of a block of a matrix. All in bytes.
 */
typedef struct piped_piece {
    /**
     * Where the first one is in the file or region.
     */
    uint64_t offset;
    /**
     * From one to the next there.
     */
    uint64_t stride;
    /**
     * Where the first one is in the buffer.
     */
    size_t at;
    /**
     * From one to the next there.
     */
    size_t at_stride;
    /**
     * Length of each piece in bytes.
     */
    size_t length;
    /**
     * How many; 0 is 1.
     */
    size_t count;
} piped_piece;

/**
 * Counters of a queue since it was made.
 */
typedef struct piped_counters {
    /**
     * Requests that were submitted.
     */
    uint64_t submitted;
    /**
     * Requests that have ended.
     */
    uint64_t completed;
    /**
     * Requests that outlived a daemon and were submitted to the next.
     */
    uint64_t resubmitted;
    /**
     * Times the daemon slept and had to be woken: a system call each.
     */
    uint64_t doorbells;
    /**
     * Times this side slept: a system call each, or a few.
     */
    uint64_t sleeps;
    /**
     * Reserved, and always 0.
     */
    uint64_t reserved[3];
} piped_counters;

/**
 * A range of a file that is all of one kind.
 */
typedef struct piped_extent {
    /**
     * Where its first byte lies.
     */
    uint64_t offset;
    /**
     * How many bytes it has.
     */
    uint64_t length;
    /**
     * What it is (piped_extent_kind).
     */
    uint32_t kind;
    /**
     * Reserved, and always 0.
     */
    uint32_t reserved;
} piped_extent;

/**
 * Options of a loop over strips. Set size to sizeof; 0 is always the default. All options have
 * their defaults where NULL is given instead.
 */
typedef struct piped_strips_options {
    /**
     * Set to sizeof(struct piped_strips_options).
     */
    uint32_t size;
    /**
     * PIPED_RESUBMIT; for a loop that writes, PIPED_DURABLE.
     */
    uint32_t flags;
    /**
     * How long strips are (piped_strip_policy).
     */
    uint32_t policy;
    /**
     * Requests on their way behind the one that is waited for. Default: as many as the path's
     * latency is worth.
     */
    uint32_t unroll;
    /**
     * Bytes of a strip, with PIPED_STRIPS_FIXED and PIPED_STRIPS_VARIABLE.
     */
    uint64_t strip_bytes;
    /**
     * The part by which each strip is longer than the one before, with PIPED_STRIPS_VARIABLE.
     */
    double growth;
    /**
     * Bytes of the arena it may have at once. Default: 8 MiB.
     */
    uint64_t memory;
    /**
     * Strips but the last are multiples of so many bytes: the size of an element. Default: 64.
     */
    uint64_t grain;
    /**
     * Seconds that the program computes on a byte, as far as it knows.
     */
    double compute;
    /**
     * The time each request may take, in nanoseconds. Default: the daemon's.
     */
    uint64_t deadline_ns;
    /**
     * How urgent the requests are (piped_class).
     */
    uint32_t request_class;
    /**
     * Reserved: must be 0.
     */
    uint32_t reserved;
} piped_strips_options;

/**
 * Some of the range's bytes, until the next call on the loop.
 */
typedef struct piped_strip {
    /**
     * NULL: there are no more.
     */
    void *data;
    /**
     * How many bytes it has.
     */
    size_t length;
    /**
     * Where in the file or region its first byte lies.
     */
    uint64_t offset;
} piped_strip;

/**
 * Options of a process of a tiled loop. Set size to sizeof.
 */
typedef struct piped_tiles_options {
    /**
     * Set to sizeof(struct piped_tiles_options).
     */
    uint32_t size;
    /**
     * Processes along the first axis of the grid, 1 at least.
     */
    uint32_t grid_x;
    /**
     * Processes along the second axis.
     */
    uint32_t grid_y;
    /**
     * Place of this process along the first axis, counted from 0.
     */
    uint32_t at_x;
    /**
     * Place of this process along the second axis, counted from 0.
     */
    uint32_t at_y;
    /**
     * Reserved: must be 0.
     */
    uint32_t reserved;
    /**
     * Bytes that a unit of height hands to the neighbour after it along the first axis. Default:
     * 8.
     */
    uint64_t edge_x;
    /**
     * Bytes that a unit of height hands to the neighbour after it along the second axis. Default:
     * 8.
     */
    uint64_t edge_y;
    /**
     * The highest tile there may be; the same for all processes. Default: 1024.
     */
    uint64_t height_max;
    /**
     * How long to wait for a neighbour that does nothing, in nanoseconds. Default: half a minute.
     */
    uint64_t patience_ns;
} piped_tiles_options;

/**
 * A tile while it is computed.
 */
typedef struct piped_tile {
    /**
     * The first unit of the column's depth that it has.
     */
    uint64_t first;
    /**
     * The unit behind the tile's last.
     */
    uint64_t end;
    /**
     * Border that the neighbour before this process along the first axis computed: edge_x bytes
     * for each unit, one after the other. NULL where the grid ends.
     */
    const void *before_x;
    /**
     * Border that the neighbour before this process along the second axis computed.
     */
    const void *before_y;
    /**
     * Place for the border of the neighbour after this process along the first axis, to be filled
     * in the same way. NULL where the grid ends.
     */
    void *after_x;
    /**
     * Place for the border of the neighbour after this process along the second axis.
     */
    void *after_y;
} piped_tile;

/**
 * The function that computes a tile, with the context that piped_tiles_run was given. It must
 * return, and may use everything but the loop itself (PIPED_BUSY).
 */
typedef void (*piped_compute)(void *context, struct piped_tile *tile);

/**
 * Report of a run: what it did and how long it took.
 */
typedef struct piped_tiles_report {
    /**
     * Tiles that were computed.
     */
    uint64_t tiles;
    /**
     * The height of the last tile but one, or of the only one: what was chosen in the end.
     */
    uint64_t height;
    /**
     * Seconds that the run took.
     */
    double seconds;
    /**
     * Seconds in the computation.
     */
    double compute_seconds;
    /**
     * Seconds of waiting for neighbours and for transfers.
     */
    double blocked_seconds;
} piped_tiles_report;

/**
 * One request: a verb and its operands. A function piped_prep_VERB fills it; piped_submit and
 * piped_run copy it, so it can be changed and used again. Objects are named by their pointers.
 * Fields that the verb has no use for are ignored.
 */
typedef struct piped_request {
    /**
     * Set to sizeof(struct piped_request).
     */
    uint32_t size;
    /**
     * The verb: PIPED_VERB_READ and so on.
     */
    uint32_t verb;
    /**
     * The piped_handle it is about; a copy's source.
     */
    uint64_t handle;
    /**
     * The piped_handle that a copy writes to.
     */
    uint64_t to;
    /**
     * The piped_buffer that it fills or sends.
     */
    uint64_t buffer;
    /**
     * The piped_pieces of a request of many pieces.
     */
    uint64_t pieces;
    /**
     * Where in `handle`, in bytes.
     */
    uint64_t offset;
    /**
     * Where in `to`, in bytes.
     */
    uint64_t to_offset;
    /**
     * How many bytes a copy moves.
     */
    uint64_t length;
    /**
     * Further operands of the verb: a message's tag; the addend; the expected and the desired
     * word; the notification and how many of it.
     */
    uint64_t operands[2];
    /**
     * The piped_buffers of a request of several buffers.
     */
    uint64_t buffers;
} piped_request;

/**
 * Options of a request. Set size to sizeof; 0 is always the default. All options have their
 * defaults where NULL is given instead.
 */
typedef struct piped_request_options {
    /**
     * Set to sizeof(struct piped_request_options).
     */
    uint32_t size;
    /**
     * Flags of the request: PIPED_DURABLE and so on.
     */
    uint32_t flags;
    /**
     * A number of the program's own, given back in piped_result.
     */
    uint64_t tag;
    /**
     * The longest time from its submission, in nanoseconds. Default: the daemon's.
     */
    uint64_t deadline_ns;
    /**
     * How urgent the request is (piped_class).
     */
    uint32_t request_class;
    /**
     * With PIPED_NOTIFY, the notification that the exporter gets.
     */
    uint32_t notify_id;
    /**
     * Move only a piece of the buffer, from this byte of the buffer.
     */
    uint64_t piece_offset;
    /**
     * Length of the piece in bytes; 0: up to the buffer's end.
     */
    uint64_t piece_length;
    /**
     * For a read, the byte that is wanted first, from the start of the request. The page about it
     * travels before the rest; piped_landed says when it is there.
     */
    uint64_t wanted_offset;
} piped_request_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * A buffer of `length` bytes, at least 1. The arena grows if it has to and may; PIPED_WOULD_BLOCK
 * if it may not. Free it with piped_buffer_free.
 */
piped_status piped_buffer_allocate(struct piped_client *client,
                                   size_t length,
                                   struct piped_buffer **buffer);

/**
 * Free a buffer that is here or lost. NULL is nothing.
 */
piped_status piped_buffer_free(struct piped_buffer *buffer);

/**
 * Where a buffer's bytes are and how many; `length` may be NULL. The address stays good until the
 * buffer is freed, but for a client that reconnects: there until the buffer's first request after
 * a reconnect. Do not touch the bytes while a request has the buffer.
 */
piped_status piped_buffer_data(struct piped_buffer *buffer, void **data, size_t *length);

/**
 * Change the length: how much the next request moves. At most the buffer's capacity (PIPED_RANGE).
 */
piped_status piped_buffer_set_length(struct piped_buffer *buffer, size_t length);

/**
 * Bytes it can have at most: its length when it was allocated, in whole pages; of lent memory its
 * length when it was made.
 */
piped_status piped_buffer_capacity(struct piped_buffer *buffer, size_t *capacity);

/**
 * Where a buffer's memory is.
 */
piped_status piped_buffer_where(struct piped_buffer *buffer, piped_buffer_state *state);

/**
 * Make a list of `count` buffers, 1 to 1024 (PIPED_RANGE), each of them once. It takes a page of
 * the arena or more, and copies `parts`. The buffers stay the program's: they have their names,
 * bytes and lengths, and are freed on their own, before the list or after. A request of a list
 * with a buffer that is freed, lost or with another request is refused. Free the list with
 * piped_buffers_free.
 */
piped_status piped_buffers_create(struct piped_client *client,
                                  struct piped_buffer *const *parts,
                                  size_t count,
                                  struct piped_buffers **buffers);

/**
 * Free a list that no request has; its buffers stay as they are. NULL is nothing.
 */
piped_status piped_buffers_free(struct piped_buffers *buffers);

/**
 * The library's version: major << 16 | minor << 8 | patch.
 */
uint32_t piped_version(void);

/**
 * Why the last call of this thread that failed did so: cause and, if there is one, the fix. Empty
 * if none did. Never NULL. The text is the thread's, and changes with its next call that fails.
 */
const char *piped_last_message(void);

/**
 * The meaning of a piped_status. Never NULL; static.
 */
const char *piped_status_text(int32_t status);

/**
 * Connect to the daemon that listens on the unix socket `path`. NULL: the one that the environment
 * variable PIPED_CLIENT_SOCKET names, or else /run/piped/client.sock. `options` may be NULL. Free
 * the client with piped_client_free.
 */
piped_status piped_connect(const char *path,
                           const struct piped_connect_options *options,
                           struct piped_client **client);

/**
 * Free a client. What was made with it stays until it is freed itself. NULL is nothing.
 */
piped_status piped_client_free(struct piped_client *client);

/**
 * Go on with the next daemon after the end of the one before: wait for it as long as reconnect_ns
 * allows, make a new session and open everything again. At once if the connection stands. Any
 * thread may call it.
 *
 * Handles are open again; `opened` and `lost`, which may be NULL, count them. Queues carry on,
 * with another descriptor from piped_queue_fd. Requests that were under way have ended with
 * PIPED_DISCONNECTED, but for those with PIPED_RESUBMIT. Buffers keep their bytes; the first
 * request that takes one moves it, so ask piped_buffer_data again after that. Exported regions are
 * not offered again.
 */
piped_status piped_reconnect(struct piped_client *client, uint64_t *opened, uint64_t *lost);

/**
 * Whether the daemon holds the session open.
 */
piped_status piped_is_connected(struct piped_client *client, bool *connected);

/**
 * The session's number, as `pipectl clients` shows it.
 */
piped_status piped_session(struct piped_client *client, uint32_t *session);

/**
 * Counts the daemons that the client was connected to; 1 is the first. What one wrote and did not
 * sync may be lost with a peer that has restarted, too: the next does not know of it.
 */
piped_status piped_generation(struct piped_client *client, uint64_t *generation);

/**
 * The time that requests get which name none, in nanoseconds.
 */
piped_status piped_deadline_default(struct piped_client *client, uint64_t *deadline_ns);

/**
 * The CPU of the shard that serves this session; -1 if it has none of its own.
 */
piped_status piped_shard_cpu(struct piped_client *client, int32_t *cpu);

/**
 * Move the calling thread to the CPU of piped_shard_cpu, where it is woken fastest, and where no
 * wait spins. `moved`, which may be NULL, is false if the shard has no CPU of its own.
 */
piped_status piped_pin_thread_to_shard(struct piped_client *client, bool *moved);

/**
 * Wait for the end of a request that is not detached, `timeout_ns` at most; negative: as long as
 * it takes; 0 only looks. PIPED_OK: it ended, and its number is stale from now on; how, is in
 * `result`. PIPED_UNDERWAY: not yet. Every request ends: at its deadline, or with the daemon.
 */
piped_status piped_wait(struct piped_queue *queue,
                        uint64_t request,
                        int64_t timeout_ns,
                        struct piped_result *result);

/**
 * The result of the next detached request that ends, waiting `timeout_ns` at most; negative: as
 * long as it takes; 0 only looks. PIPED_UNDERWAY: none has ended. PIPED_IDLE: none is under way.
 */
piped_status piped_next(struct piped_queue *queue, int64_t timeout_ns, struct piped_result *result);

/**
 * The next buffer that was PIPED_BUFFER_HELD and is free now, as a result with the request that
 * had it; waits `timeout_ns` at most (negative: as long as it takes; 0 only looks). Its status is
 * PIPED_LOST if the daemon is gone and nobody will say when the memory is free. PIPED_UNDERWAY:
 * none yet. PIPED_IDLE: none is held. Nobody has to call it: buffers are also found to be free
 * again by whatever else is asked of the queue.
 */
piped_status piped_wait_released(struct piped_queue *queue,
                                 int64_t timeout_ns,
                                 struct piped_result *result);

/**
 * Let piped_next give the result of a request, instead of piped_wait.
 */
piped_status piped_detach(struct piped_queue *queue, uint64_t request);

/**
 * Ask the daemon to give up on a request. It ends all the same, once, as what it is by then.
 * `asked`, which may be NULL, is false if it is over already or was cancelled before.
 */
piped_status piped_cancel(struct piped_queue *queue, uint64_t request, bool *asked);

/**
 * Contiguous bytes in place from a request's start. They stay as they are, and never get fewer.
 */
piped_status piped_progress(struct piped_queue *queue, uint64_t request, uint64_t *bytes);

/**
 * The first bytes of a read beyond piped_progress that are in place, too, from `start` to before
 * `end`: with wanted_offset the part that was. The same number twice if there are none.
 */
piped_status piped_landed(struct piped_queue *queue,
                          uint64_t request,
                          uint64_t *start,
                          uint64_t *end);

/**
 * Copy bytes of a read that is under way: of `length` bytes from `offset` of the request those
 * that are in place. `copied` says how many; 0 if none are there yet.
 */
piped_status piped_copy_landed(struct piped_queue *queue,
                               uint64_t request,
                               uint64_t offset,
                               void *to,
                               size_t length,
                               size_t *copied);

/**
 * Open a local file with this process's rights, past the page cache where that can be. `flags`:
 * PIPED_READ or PIPED_WRITE or both, and PIPED_CREATE and its sisters, PIPED_TRUNCATE,
 * PIPED_BUFFERED. Free it with piped_handle_free.
 */
piped_status piped_open_file(struct piped_client *client,
                             const char *path,
                             uint32_t flags,
                             struct piped_handle **handle);

/**
 * Pass on a local file that is open already; `flags` are PIPED_READ and PIPED_WRITE, at most what
 * it was opened for. The descriptor stays the program's; its offset and flags are left alone.
 */
piped_status piped_open_fd(struct piped_client *client,
                           int fd,
                           uint32_t flags,
                           struct piped_handle **handle);

/**
 * Open the file `path` below the export `export` of the node `peer`, or of this node (NULL).
 * `flags`: PIPED_READ or PIPED_WRITE or both, and PIPED_CREATE and its sisters. Free it with
 * piped_handle_free.
 */
piped_status piped_open_export(struct piped_client *client,
                               const char *peer,
                               const char *export_,
                               const char *path,
                               uint32_t flags,
                               struct piped_handle **handle);

/**
 * Open a region that a client of the node `peer`, or of this node (NULL), exports. `flags`:
 * PIPED_READ, PIPED_WRITE and PIPED_ATOMIC, as many as are needed. Free it with piped_handle_free.
 */
piped_status piped_open_region(struct piped_client *client,
                               const char *peer,
                               const char *name,
                               uint32_t flags,
                               struct piped_handle **handle);

/**
 * Open a channel on which a client of the node `peer`, or of this node (NULL), receives, for
 * piped_send. Free it with piped_handle_free.
 */
piped_status piped_open_channel(struct piped_client *client,
                                const char *peer,
                                const char *name,
                                struct piped_handle **handle);

/**
 * Receive messages under a name, from clients of this node and of others, with piped_receive. The
 * name is free again when the handle was freed.
 */
piped_status piped_offer_channel(struct piped_client *client,
                                 const char *name,
                                 struct piped_handle **handle);

/**
 * Close a handle; requests that use it go on. NULL is nothing.
 */
piped_status piped_handle_free(struct piped_handle *handle);

/**
 * The handle's length in bytes when it was opened, the last time.
 */
piped_status piped_handle_length(struct piped_handle *handle, uint64_t *length);

/**
 * Offsets and lengths at multiples of this many bytes go past the page cache, without a copy. 0:
 * none do.
 */
piped_status piped_handle_direct_alignment(struct piped_handle *handle, uint32_t *bytes);

/**
 * The number the daemon gave it, as its reports show it.
 */
piped_status piped_handle_number(struct piped_handle *handle, uint32_t *number);

/**
 * Lend a memfd that is sealed against shrinking (F_SEAL_SHRINK), as it is now. The descriptor can
 * be closed. Give it back with piped_memory_give_back.
 */
piped_status piped_memory_lend_memfd(struct piped_client *client,
                                     int fd,
                                     struct piped_memory **memory);

/**
 * Lend a file of memory that has no seals: POSIX shared memory, a file below /dev/shm. Anybody who
 * may can cut it: requests on it end with PIPED_BAD_BUFFER then, and a program that loads from a
 * page that is gone gets a SIGBUS. The descriptor can be closed. Give it back with
 * piped_memory_give_back.
 */
piped_status piped_memory_lend_shared(struct piped_client *client,
                                      int fd,
                                      struct piped_memory **memory);

/**
 * Lend whole pages of private anonymous memory. The bytes are moved into a memfd that is mapped in
 * their place: pointers stay good. Nothing may write there during the call, and the area stays
 * mapped as long as it is lent. What is not whole pages, not mapped, shared, of a file, locked or
 * lent already is refused. A forked child does not have the area. Give it back with
 * piped_memory_give_back; it stays mapped then as it is.
 */
piped_status piped_memory_lend_private(struct piped_client *client,
                                       void *start,
                                       size_t length,
                                       struct piped_memory **memory);

/**
 * A buffer of `length` bytes of lent memory, at least 1, from `offset` on. No two buffers overlap
 * (PIPED_TAKEN). Free it with piped_buffer_free.
 */
piped_status piped_memory_buffer(struct piped_memory *memory,
                                 size_t offset,
                                 size_t length,
                                 struct piped_buffer **buffer);

/**
 * Where lent memory is mapped, and its length in bytes; either may be NULL. Memory that was lent
 * by a descriptor is mapped there until it is given back and all buffers of it are freed.
 */
piped_status piped_memory_data(struct piped_memory *memory, void **data, size_t *length);

/**
 * Give memory back. Buffers of it can be used as before; with the last of them it is no longer
 * lent. NULL is nothing.
 */
piped_status piped_memory_give_back(struct piped_memory *memory);

/**
 * Open the directory `path` below the export `export` of the node `peer`, or of this node (NULL);
 * an empty path is the export itself. `flags`: PIPED_READ, PIPED_WRITE, PIPED_NAMES, as many as
 * are needed. Calls are made of it. Free it with piped_handle_free.
 */
piped_status piped_open_directory(struct piped_client *client,
                                  const char *peer,
                                  const char *export_,
                                  const char *path,
                                  uint32_t flags,
                                  struct piped_handle **handle);

/**
 * What is known of a file or directory now. `path`: below the directory that is open; "" is what
 * is open itself. A link at the end of the path is not followed.
 */
piped_status piped_stat(struct piped_queue *queue,
                        struct piped_handle *handle,
                        const char *path,
                        struct piped_file_info *known);

/**
 * Room on the file system of what is open.
 */
piped_status piped_space(struct piped_queue *queue,
                         struct piped_handle *handle,
                         struct piped_space_info *space);

/**
 * A list of the names in a directory, in no order. `flags`: PIPED_WITH_STATS. Nothing is asked for
 * yet. Free it with piped_list_free.
 */
piped_status piped_list_open(struct piped_handle *handle,
                             const char *path,
                             uint32_t flags,
                             struct piped_list **list);

/**
 * The next name of a list; `name->name` is NULL behind the last one. While others change the
 * directory, a name that stays is given once. After a failure there are none.
 */
piped_status piped_list_next(struct piped_list *list,
                             struct piped_queue *queue,
                             struct piped_name *name);

/**
 * Free a list. NULL is nothing.
 */
piped_status piped_list_free(struct piped_list *list);

/**
 * Make a directory with these permission bits, of which the daemon's umask takes some away.
 * `flags`: PIPED_CREATE_PARENTS makes those on the way too, and one that is there is no error.
 */
piped_status piped_make_directory(struct piped_queue *queue,
                                  struct piped_handle *handle,
                                  const char *path,
                                  uint32_t mode,
                                  uint32_t flags);

/**
 * Remove a name. `kind`: what it must stand for (piped_removed).
 */
piped_status piped_remove(struct piped_queue *queue,
                          struct piped_handle *handle,
                          const char *path,
                          uint32_t kind);

/**
 * Give something another name, in one step that others see whole or not at all. `over`: what
 * becomes of something that has the new name (piped_over). `flags`: PIPED_DURABLE ends when the
 * change is on stable storage.
 */
piped_status piped_rename(struct piped_queue *queue,
                          struct piped_handle *handle,
                          const char *from,
                          const char *to,
                          uint32_t over,
                          uint32_t flags);

/**
 * Give a file one more name, which nothing else has.
 */
piped_status piped_link(struct piped_queue *queue,
                        struct piped_handle *handle,
                        const char *from,
                        const char *to);

/**
 * Copy a range of the file `from` to the same range of the file `to`, which is there, without
 * moving its bytes to this node: of 1 GiB at most. `copied` gets how many bytes that was: less
 * than wanted where `from` ends. With PIPED_DURABLE it returns when they are on stable storage: a
 * sync of the file knows nothing of what is copied by its name. Holes stay holes. Links are not
 * followed.
 */
piped_status piped_copy_range(struct piped_queue *queue,
                              struct piped_handle *handle,
                              const char *from,
                              const char *to,
                              uint64_t offset,
                              uint64_t length,
                              uint32_t flags,
                              uint64_t *copied);

/**
 * Replace the file `path` below the export `export` of the node `peer`, or of this node (NULL), or
 * make it, with these permission bits: others see the old bytes or the new ones, whenever they
 * look and whatever crashes. Returns when the new ones are on stable storage.
 */
piped_status piped_replace(struct piped_client *client,
                           struct piped_queue *queue,
                           const char *peer,
                           const char *export_,
                           const char *path,
                           const uint8_t *bytes,
                           size_t length,
                           uint32_t mode);

/**
 * A table of `count` rows, 1 to 65536, of 1 GiB together at most (PIPED_RANGE). It lies in the
 * arena, 32 bytes for each row, and ends with its daemon (PIPED_TABLE_LOST). Free it with
 * piped_pieces_free.
 */
piped_status piped_pieces_create(struct piped_client *client,
                                 const struct piped_piece *rows,
                                 size_t count,
                                 struct piped_pieces **pieces);

/**
 * Free a table; requests that use it go on. NULL is nothing.
 */
piped_status piped_pieces_free(struct piped_pieces *pieces);

/**
 * Bytes of all pieces, and the least length of a buffer that has room for them. Either may be
 * NULL.
 */
piped_status piped_pieces_size(struct piped_pieces *pieces, uint64_t *bytes, uint64_t *room);

/**
 * A queue, for one thread at a time. Free it with piped_queue_free.
 */
piped_status piped_queue_create(struct piped_client *client, struct piped_queue **queue);

/**
 * Free a queue. Its requests are cancelled, and results that were not taken are lost; buffers of
 * both are PIPED_BUFFER_LOST and are to be freed, their memory is the arena's again when the
 * daemon is done with it. NULL is nothing.
 */
piped_status piped_queue_free(struct piped_queue *queue);

/**
 * Let the daemon see what was submitted: once for a batch. Everything that looks for results does
 * it, too.
 */
piped_status piped_queue_flush(struct piped_queue *queue);

/**
 * A descriptor for poll or epoll, readable when there is something to take or the daemon is gone,
 * once piped_queue_arm has asked for it. It stays the queue's: do not close it. Another one after
 * a reconnect.
 */
piped_status piped_queue_fd(struct piped_queue *queue, int *fd);

/**
 * Ask for the descriptor to be rung. `armed` is false if something ended since the last time: take
 * it (piped_next until PIPED_UNDERWAY or PIPED_IDLE, and a look at the requests that are not
 * detached) and arm again. True: wait for the descriptor, then call piped_queue_drain. Always
 * false once the daemon is gone.
 */
piped_status piped_queue_arm(struct piped_queue *queue, bool *armed);

/**
 * Silence the descriptor and take in what was completed, after it was readable or the program gave
 * up waiting.
 */
piped_status piped_queue_drain(struct piped_queue *queue);

/**
 * Requests the daemon has not ended yet.
 */
piped_status piped_queue_underway(struct piped_queue *queue, uint32_t *count);

/**
 * Requests it can have under way or ended and not taken.
 */
piped_status piped_queue_depth(struct piped_queue *queue, uint32_t *count);

/**
 * Whether the daemon is known to be gone; not so any more once the client has reconnected and the
 * queue was used.
 */
piped_status piped_queue_is_disconnected(struct piped_queue *queue, bool *disconnected);

/**
 * Read the queue's counters.
 */
piped_status piped_queue_counters(struct piped_queue *queue, struct piped_counters *counters);

/**
 * How to wait from now on (piped_wait_policy, but PIPED_WAIT_DEFAULT); `spin_ns` is for
 * PIPED_WAIT_CUSTOM.
 */
piped_status piped_queue_set_wait_policy(struct piped_queue *queue,
                                         uint32_t policy,
                                         uint64_t spin_ns);

/**
 * How long it looks for completions at present before it sleeps, in nanoseconds: the policy's
 * longest spin, or less where spinning did not pay; 0 on the CPU of piped_shard_cpu.
 */
piped_status piped_queue_spin_budget(struct piped_queue *queue, uint64_t *spin_ns);

/**
 * Move the calling thread to the CPU of the daemon's shard and never spin. `moved`, which may be
 * NULL, is false if the shard has no CPU of its own.
 */
piped_status piped_queue_pin_to_shard(struct piped_queue *queue, bool *moved);

/**
 * Cut a file off at a length, or make it longer by zeros that take no room.
 */
piped_status piped_truncate(struct piped_queue *queue,
                            struct piped_handle *handle,
                            uint64_t length);

/**
 * Make sure that a range of a file has room on the device. `flags`: PIPED_KEEP_LENGTH.
 */
piped_status piped_allocate(struct piped_queue *queue,
                            struct piped_handle *handle,
                            uint64_t offset,
                            uint64_t length,
                            uint32_t flags);

/**
 * Make a range of a file zeros. `flags`: PIPED_RELEASE.
 */
piped_status piped_zero(struct piped_queue *queue,
                        struct piped_handle *handle,
                        uint64_t offset,
                        uint64_t length,
                        uint32_t flags);

/**
 * Give up the room of a range on the device; its bytes are zeros then.
 */
piped_status piped_trim(struct piped_queue *queue,
                        struct piped_handle *handle,
                        uint64_t offset,
                        uint64_t length);

/**
 * Where a file has data and where holes, in order: fills up to `capacity` places at `extents` and
 * says in `count` how many. The rest of the range is asked for from the end of the last one on; 0
 * are the end of the file.
 */
piped_status piped_extents(struct piped_queue *queue,
                           struct piped_handle *handle,
                           uint64_t offset,
                           uint64_t length,
                           struct piped_extent *extents,
                           size_t capacity,
                           size_t *count);

/**
 * Bring a range of a file to stable storage; of a directory, its names. Length 0: to the end of
 * the file. `flags`: PIPED_DATA_ONLY.
 */
piped_status piped_sync_range(struct piped_queue *queue,
                              struct piped_handle *handle,
                              uint64_t offset,
                              uint64_t length,
                              uint32_t flags);

/**
 * Tell the page cache what will be done with a range (piped_advice). Length 0: to the end of the
 * file.
 */
piped_status piped_advise(struct piped_queue *queue,
                          struct piped_handle *handle,
                          uint64_t offset,
                          uint64_t length,
                          uint32_t advice);

/**
 * The BLAKE3 digest of a range of a file, of 1 GiB at most: PIPED_DIGEST_BYTES bytes at `digest`.
 */
piped_status piped_digest(struct piped_queue *queue,
                          struct piped_handle *handle,
                          uint64_t offset,
                          uint64_t length,
                          uint8_t (*digest)[PIPED_DIGEST_BYTES]);

/**
 * Lock a range of a file against other handles, or give the lock up (piped_lock). Length 0: all
 * behind the offset. Waits for at most `patience_ns`, then ends with PIPED_LOCKED if somebody else
 * has locked a part of it.
 *
 * A lock is advice: reads and writes do not ask for it. Programs on the node with the file that
 * lock with fcntl see it. It ends with the handle; a handle that may have lost its locks with a
 * daemon or a connection serves nothing any more.
 */
piped_status piped_lock_range(struct piped_queue *queue,
                              struct piped_handle *handle,
                              uint64_t offset,
                              uint64_t length,
                              uint32_t lock,
                              uint64_t patience_ns);

/**
 * Let others reach a buffer by name, here and on other nodes. `flags`, what they may do:
 * PIPED_READ, PIPED_WRITE and PIPED_ATOMIC, as many as there shall be. Until piped_region_close
 * the buffer is PIPED_BUFFER_EXPORTED. If the call fails, the buffer is as it was, or
 * PIPED_BUFFER_LOST if the daemon may have offered it all the same.
 */
piped_status piped_region_export(struct piped_client *client,
                                 const char *name,
                                 struct piped_buffer *buffer,
                                 uint32_t flags,
                                 struct piped_region **region);

/**
 * Offer a buffer as piped_region_export does, for some alone: for this node's users with a number
 * in `users`, and for other nodes with a name in `peers`, 16 at most of each. NULL: all of them; 0
 * of them: none.
 */
piped_status piped_region_export_for(struct piped_client *client,
                                     const char *name,
                                     struct piped_buffer *buffer,
                                     uint32_t flags,
                                     const uint32_t *users,
                                     size_t user_count,
                                     const char *const *peers,
                                     size_t peer_count,
                                     struct piped_region **region);

/**
 * End the export; the memory is the buffer's again. Waits until the daemon says that nobody
 * touches it any more; if it does not say so, the buffer is PIPED_BUFFER_LOST. The region is freed
 * in any case. NULL is nothing.
 */
piped_status piped_region_close(struct piped_region *region);

/**
 * A handle for requests of this client on its own region. Free it with piped_handle_free.
 */
piped_status piped_region_handle(struct piped_region *region, struct piped_handle **handle);

/**
 * The region's length in bytes.
 */
piped_status piped_region_length(struct piped_region *region, size_t *length);

/**
 * Copy `length` bytes at `offset` out. Others may be writing them: whole 8-byte words arrive
 * whole, no more is promised.
 */
piped_status piped_region_read_at(struct piped_region *region,
                                  size_t offset,
                                  void *to,
                                  size_t length);

/**
 * Copy `length` bytes in at `offset`. Others may be reading them.
 */
piped_status piped_region_write_at(struct piped_region *region,
                                   size_t offset,
                                   const void *from,
                                   size_t length);

/**
 * The error number of Linux that says the same as `status` (ENOENT, ENOSPC ...); 0 of PIPED_OK and
 * where there is none.
 */
int piped_status_errno(int32_t status);

/**
 * A loop over the bytes from `start` to `end` (the first one behind it) of a file or region, which
 * are read in order while the program computes on those before. Nothing is asked for yet. Free it
 * with piped_strips_free.
 */
piped_status piped_strips_read(struct piped_client *client,
                               struct piped_handle *handle,
                               uint64_t start,
                               uint64_t end,
                               const struct piped_strips_options *options,
                               struct piped_strips **strips);

/**
 * The mirror image: strips that the program fills are written while it fills the next ones, and
 * piped_strips_finish waits for all of them.
 */
piped_status piped_strips_write(struct piped_client *client,
                                struct piped_handle *handle,
                                uint64_t start,
                                uint64_t end,
                                const struct piped_strips_options *options,
                                struct piped_strips **strips);

/**
 * The next strip: its bytes when they are there, or room to be filled. Takes the one before back,
 * or writes it, and asks for more; `strip->data` is NULL after the last one. After a failure,
 * which is that of a request, there are none.
 *
 * A queue is for several loops and for other requests at the same time.
 */
piped_status piped_strips_next(struct piped_strips *strips,
                               struct piped_queue *queue,
                               struct piped_strip *strip);

/**
 * Write the strip that the program has, if it has one, and wait for all of what is written;
 * `written`, which may be NULL, is how many bytes that are from the range's start. The loop is
 * freed in any case, unless it reads (PIPED_ARGUMENT) or is in use (PIPED_BUSY).
 */
piped_status piped_strips_finish(struct piped_strips *strips,
                                 struct piped_queue *queue,
                                 uint64_t *written);

/**
 * Free a loop. What is under way is cancelled; of what is written, too, and the strip that the
 * program has is not written. NULL is nothing.
 */
piped_status piped_strips_free(struct piped_strips *strips);

/**
 * Join the grid of a loop and wait for the neighbours. All processes of one give the same `name`.
 * `nodes`: on which node each process is, as this node's configuration calls it, grid_x * grid_y
 * names, those with the same place along the second axis together; NULL instead of a name, or of
 * all, is this node. Free it with piped_tiles_free, which ends the neighbours' runs.
 */
piped_status piped_tiles_open(struct piped_client *client,
                              const char *name,
                              const struct piped_tiles_options *options,
                              const char *const *nodes,
                              struct piped_tiles **tiles);

/**
 * Work through a column of `depth` units, tile by tile: `compute` is called for each, by this
 * thread. All processes of the grid do so with the same depth and `schedule` (piped_schedule), as
 * often as they like. `height`: of a tile, the process at (0, 0) decides; 0: as measurements want
 * it. Over when everybody after this process has what it needs; `report` may be NULL. After a
 * failure the loop can only be freed, and the neighbours are told.
 */
piped_status piped_tiles_run(struct piped_tiles *tiles,
                             uint64_t depth,
                             uint64_t height,
                             uint32_t schedule,
                             piped_compute compute,
                             void *context,
                             struct piped_tiles_report *report);

/**
 * Leave the grid. Neighbours that are still at work are told. NULL is nothing.
 */
piped_status piped_tiles_free(struct piped_tiles *tiles);

/**
 * Submit a request. `options` may be NULL. `number` is the request's number for piped_wait and
 * others; it may be NULL if the request is detached. The daemon sees the request after
 * piped_queue_flush, or with the next look for results. If the call fails, nothing was submitted
 * and the buffer is where it was.
 */
piped_status piped_submit(struct piped_queue *queue,
                          const struct piped_request *request,
                          const struct piped_request_options *options,
                          uint64_t *number);

/**
 * Submit a request and wait for its end. `options` and `result` may be NULL. The call returns the
 * result's status. A failure before the submission (a misuse, PIPED_FULL, PIPED_DISCONNECTED)
 * leaves `result` as it was and the buffer where it was.
 */
piped_status piped_run(struct piped_queue *queue,
                       const struct piped_request *request,
                       const struct piped_request_options *options,
                       struct piped_result *result);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PIPED_H */

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
