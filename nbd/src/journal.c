#include "journal.h"

#include <stdlib.h>
#include <string.h>

void journal_begin(struct journal *journal) {
    memset(journal, 0, sizeof *journal);
    pthread_mutex_init(&journal->lock, NULL);
    journal->end = &journal->first;
}

void journal_free(struct journal *journal) {
    journal_forget(journal, UINT64_MAX);
    pthread_mutex_destroy(&journal->lock);
}

static size_t size_of(const struct entry *entry) {
    return sizeof *entry + (entry->change == CHANGE_WRITE ? entry->length : 0);
}

void journal_note(struct journal *journal, const struct entry *what, const void *data,
                  bool durable) {
    size_t size = size_of(what);
    struct entry *entry = malloc(size);
    if (entry != NULL) {
        *entry = *what;
        entry->next = NULL;
        if (size > sizeof *entry)
            memcpy(entry->data, data, size - sizeof *entry);
    }
    pthread_mutex_lock(&journal->lock);
    if (durable && journal->first == NULL && !journal->has_gap) {
        free(entry);
    } else if (entry == NULL) {
        journal->last_number++;
        journal->has_gap = true;
    } else {
        entry->number = ++journal->last_number;
        *journal->end = entry;
        journal->end = &entry->next;
        journal->bytes += size;
    }
    pthread_mutex_unlock(&journal->lock);
}

uint64_t journal_bytes(struct journal *journal) {
    pthread_mutex_lock(&journal->lock);
    uint64_t bytes = journal->bytes;
    pthread_mutex_unlock(&journal->lock);
    return bytes;
}

uint64_t journal_now(struct journal *journal) {
    pthread_mutex_lock(&journal->lock);
    uint64_t number = journal->last_number;
    pthread_mutex_unlock(&journal->lock);
    return number;
}

bool journal_is_of(struct journal *journal, uint64_t number, uint64_t generation) {
    pthread_mutex_lock(&journal->lock);
    bool is = true;
    for (const struct entry *entry = journal->first;
         is && entry != NULL && entry->number <= number; entry = entry->next)
        is = entry->generation == generation;
    pthread_mutex_unlock(&journal->lock);
    return is;
}

void journal_forget(struct journal *journal, uint64_t number) {
    struct entry *gone = NULL;
    pthread_mutex_lock(&journal->lock);
    while (journal->first != NULL && journal->first->number <= number) {
        struct entry *entry = journal->first;
        journal->first = entry->next;
        journal->bytes -= size_of(entry);
        entry->next = gone;
        gone = entry;
    }
    if (journal->first == NULL)
        journal->end = &journal->first;
    if (journal->last_number <= number)
        journal->has_gap = false;
    pthread_mutex_unlock(&journal->lock);
    while (gone != NULL) {
        struct entry *next = gone->next;
        free(gone);
        gone = next;
    }
}
