#include "journal.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_uint_fast64_t all_bytes;

void journal_begin(struct journal *journal) {
    memset(journal, 0, sizeof *journal);
    pthread_mutex_init(&journal->lock, NULL);
    journal->end = &journal->first;
}

void journal_free(struct journal *journal) {
    journal_forget(journal, UINT64_MAX);
    pthread_mutex_destroy(&journal->lock);
}

static size_t bytes_of(const struct work *work) {
    return work->what == WORK_WRITE ? work->length : 0;
}

static size_t size_of(const struct entry *entry) {
    return sizeof *entry + bytes_of(&entry->work);
}

static struct entry *copy_of(const struct work *made) {
    struct entry *entry = malloc(sizeof *entry + bytes_of(made));
    if (entry == NULL)
        return NULL;
    entry->next = NULL;
    entry->work = *made;
    if (made->what == WORK_WRITE) {
        memcpy(entry->data, made->from, made->length);
        entry->work.from = entry->data;
        /* The sync behind it makes it so. */
        entry->work.flags &= ~(uint32_t)PIPED_DURABLE;
    }
    return entry;
}

void journal_note(struct journal *journal, const struct work *made, bool keep) {
    bool durable = made->what == WORK_WRITE && (made->flags & PIPED_DURABLE) != 0;
    struct entry *entry = keep ? copy_of(made) : NULL;
    pthread_mutex_lock(&journal->lock);
    if (durable && journal->first == NULL) {
        free(entry);
    } else if (entry != NULL) {
        entry->number = ++journal->last_number;
        *journal->end = entry;
        journal->end = &entry->next;
        all_bytes += size_of(entry);
    } else {
        bool same = journal->unkept_number == 0 || journal->unkept_run == made->run;
        journal->unkept_run = same ? made->run : RUN_NONE;
        journal->unkept_number = ++journal->last_number;
    }
    pthread_mutex_unlock(&journal->lock);
}

uint64_t journal_bytes(void) {
    return all_bytes;
}

bool journal_is_empty(struct journal *journal) {
    pthread_mutex_lock(&journal->lock);
    bool empty = journal->first == NULL && journal->unkept_number == 0;
    pthread_mutex_unlock(&journal->lock);
    return empty;
}

uint64_t journal_now(struct journal *journal) {
    pthread_mutex_lock(&journal->lock);
    uint64_t number = journal->last_number;
    pthread_mutex_unlock(&journal->lock);
    return number;
}

bool journal_is_of(struct journal *journal, uint64_t number, uint64_t run) {
    pthread_mutex_lock(&journal->lock);
    bool is = journal->unkept_number == 0 || journal->unkept_run == run;
    for (const struct entry *entry = journal->first;
         is && entry != NULL && entry->number <= number; entry = entry->next)
        is = entry->work.run == run;
    pthread_mutex_unlock(&journal->lock);
    return is;
}

void journal_forget(struct journal *journal, uint64_t number) {
    struct entry *gone = NULL;
    pthread_mutex_lock(&journal->lock);
    while (journal->first != NULL && journal->first->number <= number) {
        struct entry *entry = journal->first;
        journal->first = entry->next;
        all_bytes -= size_of(entry);
        entry->next = gone;
        gone = entry;
    }
    if (journal->first == NULL)
        journal->end = &journal->first;
    if (journal->unkept_number <= number)
        journal->unkept_number = 0;
    pthread_mutex_unlock(&journal->lock);
    while (gone != NULL) {
        struct entry *next = gone->next;
        free(gone);
        gone = next;
    }
}

void journal_doubt(struct journal *journal) {
    pthread_mutex_lock(&journal->lock);
    for (struct entry *entry = journal->first; entry != NULL; entry = entry->next)
        entry->work.run = RUN_NONE;
    journal->unkept_run = RUN_NONE;
    pthread_mutex_unlock(&journal->lock);
}

bool journal_take_unkept(struct journal *journal) {
    pthread_mutex_lock(&journal->lock);
    bool unkept = journal->unkept_number != 0;
    journal->unkept_number = 0;
    pthread_mutex_unlock(&journal->lock);
    return unkept;
}
