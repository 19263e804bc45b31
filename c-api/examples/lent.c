/* Read a file into memory that the program has already: lent SOCKET FILE
 *
 * Three kinds of memory: a sealed memfd, pages of the process, and POSIX shared memory, which
 * anybody may cut. Then it is cut, and a forked child touches what it does not have.
 * */

#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { BYTES = 64 * 1024 };

static piped_client *client = NULL;
static piped_queue *queue = NULL;
static piped_handle *file = NULL;

/* Read the file's beginning into all of the memory; the sum of what the program's pointer sees. */
static uint64_t read_into(piped_memory *memory, const unsigned char *here) {
    piped_buffer *buffer = NULL;
    piped_result result;
    CHECK(piped_memory_buffer(memory, 0, BYTES, &buffer));
    CHECK(piped_read(queue, file, 0, buffer, NULL, &result));
    CHECK(piped_buffer_free(buffer));
    uint64_t sum = 0;
    for (size_t at = 0; at < BYTES; at++)
        sum += here[at];
    return sum;
}

static unsigned char *map(int fd) {
    void *mapped = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        exit(1);
    return mapped;
}

/* How a child ends that lends, and how one ends that touches private memory that was lent. */
static int child(piped_memory *memory, volatile unsigned char *area) {
    /* What is not written yet would be written by the child, too. */
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        /* A sanitizer would make an exit code of it. */
        signal(SIGSEGV, SIG_DFL);
        if (memory == NULL) {
            piped_memory *lent = NULL;
            _exit(piped_memory_lend_private(client, (void *)area, BYTES, &lent) == PIPED_DENIED
                      ? 7
                      : 1);
        }
        area[0] = 1;
        _exit(0);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        exit(1);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: lent SOCKET FILE\n");
        return 64;
    }
    CHECK(piped_connect(argv[1], NULL, &client));
    CHECK(piped_open_file(client, argv[2], PIPED_READ, &file));
    CHECK(piped_queue_create(client, &queue));
    piped_memory *sealed = NULL, *pages = NULL, *shared = NULL;

    int memfd = memfd_create("lent", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (ftruncate(memfd, BYTES) != 0 || fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        return 1;
    CHECK(piped_memory_lend_memfd(client, memfd, &sealed));
    printf("sealed: %" PRIu64 "\n", read_into(sealed, map(memfd)));

    unsigned char *area = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                               -1, 0);
    if (area == MAP_FAILED)
        return 1;
    printf("a child that lends: %d\n", child(NULL, area));
    CHECK(piped_memory_lend_private(client, area, BYTES, &pages));
    printf("private: %" PRIu64 "\n", read_into(pages, area));
    unsigned char first = area[0];
    printf("a child that touches it: %s\n", child(pages, area) == -SIGSEGV ? "faults" : "lives");
    printf("its parent's byte: %s\n", area[0] == first ? "as it was" : "changed");

    char name[64];
    snprintf(name, sizeof name, "/dev/shm/piped-lent-%ld", (long)getpid());
    int shm = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (shm < 0 || unlink(name) != 0 || ftruncate(shm, BYTES) != 0)
        return 1;
    CHECK(piped_memory_lend_shared(client, shm, &shared));
    printf("shared: %" PRIu64 "\n", read_into(shared, map(shm)));
    piped_buffer *buffer = NULL, *taken = NULL;
    piped_result result;
    CHECK(piped_memory_buffer(shared, 0, BYTES, &buffer));
    if (piped_memory_buffer(shared, BYTES - 1, 1, &taken) != PIPED_TAKEN)
        return 1;
    if (ftruncate(shm, 4096) != 0)
        return 1;
    piped_status status = piped_read(queue, file, 0, buffer, NULL, &result);
    printf("cut: %s\n", status == PIPED_BAD_BUFFER ? "bad buffer" : piped_status_text(status));

    piped_buffer_free(buffer);
    piped_memory_give_back(sealed);
    piped_memory_give_back(pages);
    piped_memory_give_back(shared);
    piped_queue_free(queue);
    piped_handle_free(file);
    piped_client_free(client);
    return 0;
}
