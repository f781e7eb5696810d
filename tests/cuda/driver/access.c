/* Blocks of memory, and who touches which byte when.
 *
 * While an operation runs, each block that it touches gets two bits for each byte: read, written. When it ends, these
 * are compared with the records of operations that are not ordered to it, whichever of the two ran first, and become a
 * record: ranges of bytes. Allocation and release count as writing the whole block. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver.h"

static const size_t ARENA_NBYTES = (size_t)1 << 40; /* of addresses: memory is taken when it is touched */
enum { ALIGNMENT = 512, GAP = 4096 };               /* GAP: room for what runs over the end, which is reported */

typedef struct {
    char *start;
    size_t top;
    Block **blocks; /* ascending */
    int count, room;
    int oldest; /* blocks before it are closed for good */
} Arena;

static Arena arenas[2]; /* device, host */

typedef struct {
    size_t first, last; /* bytes, both included */
    bool is_write;
} Range;

struct Record {
    int operation;
    Range *ranges;
    int nranges;
};

/* What the running operation has touched so far. */
typedef struct {
    Block *block;
    uint8_t *read, *written; /* a bit for each byte */
} Touch;

static Touch *touches;
static int ntouches, touch_room;

/* ---- blocks */

static bool start_arena(Arena *arena, int protection) {
    if (arena->start) return true;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *start = mmap(NULL, ARENA_NBYTES, protection, flags, -1, 0);
    if (start == MAP_FAILED) return false;
    *arena = (Arena){.start = start, .top = ALIGNMENT};
    return true;
}

static void append_block(Arena *arena, Block *block) {
    if (arena->count == arena->room) {
        arena->room = arena->room * 2 + 64;
        arena->blocks = realloc(arena->blocks, sizeof(Block *) * (size_t)arena->room);
    }
    block->number = arena->count;
    arena->blocks[arena->count++] = block;
}

Block *new_block(size_t nbytes, bool is_host, Pool *pool) {
    Arena *arena = &arenas[is_host];
    size_t taken = (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + GAP;
    if (!start_arena(arena, is_host ? PROT_READ | PROT_WRITE : PROT_NONE) || arena->top + taken > ARENA_NBYTES)
        return NULL;
    Block *block = calloc(1, sizeof *block);
    *block = (Block){
        .start = arena->start + arena->top, .nbytes = nbytes, .pool = pool, .is_host = is_host, .is_live = true};
    arena->top += taken;
    append_block(arena, block);
    return block;
}

static bool is_in(const Arena *arena, const void *address) {
    return arena->start && (const char *)address >= arena->start && (const char *)address < arena->start + ARENA_NBYTES;
}

bool is_device_address(const void *address) {
    return is_in(&arenas[0], address);
}

/* The last block that begins at or before an address of an arena; NULL before the first. */
static Block *block_before(const Arena *arena, const char *address) {
    int low = 0, high = arena->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (arena->blocks[middle]->start <= address) low = middle + 1;
        else high = middle;
    }
    return low ? arena->blocks[low - 1] : NULL;
}

static const Arena *arena_of(const void *address) {
    for (size_t i = 0; i < LENGTH(arenas); i++)
        if (is_in(&arenas[i], address)) return &arenas[i];
    return NULL;
}

Block *block_at(const void *address) {
    const Arena *arena = arena_of(address);
    return arena ? block_before(arena, address) : NULL;
}

/* From the oldest block that is open: what lies before is given back, and stays as it is. */
void protect_device_memory(bool is_protected) {
    Arena *arena = &arenas[0];
    while (arena->oldest < arena->count && arena->blocks[arena->oldest]->is_closed) arena->oldest++;
    if (arena->oldest == arena->count) return;
    uintptr_t start = (uintptr_t)arena->blocks[arena->oldest]->start / GAP * GAP;
    uintptr_t stop = ((uintptr_t)arena->start + arena->top + GAP) / GAP * GAP;
    mprotect((void *)start, stop - start, is_protected ? PROT_NONE : PROT_READ | PROT_WRITE);
}

int describe_live_blocks(char *text, size_t room) {
    int count = 0;
    size_t length = 0;
    for (size_t a = 0; a < LENGTH(arenas); a++)
        for (int i = 0; i < arenas[a].count; i++) {
            const Block *block = arenas[a].blocks[i];
            if (!block->is_live) continue;
            count++;
            if (length + 80 < room)
                length += (size_t)sprintf(text + length, "%zu bytes of %s memory\n", block->nbytes,
                                          block->is_host ? "host" : "device");
        }
    return count;
}

/* ---- reports about blocks */

static const char *describe_operation(int number) {
    static char texts[4][160];
    static int turn;
    char *text = texts[turn++ % 4];
    snprintf(text, sizeof texts[0], "%s on stream %d", describe_work(work_of(number)), stream_of_operation(number));
    return text;
}

static const char *describe_block(const Block *block) {
    static char text[80];
    snprintf(text, sizeof text, "allocation %d of %zu bytes", block->number, block->nbytes);
    return text;
}

static void report_unordered(const Block *block, size_t byte, int first, int second) {
    WorkKind kinds[] = {work_of(first)->kind, work_of(second)->kind};
    const char *kind = kinds[0] == FREE || kinds[1] == FREE           ? "free while in use"
                       : kinds[0] == ALLOCATE || kinds[1] == ALLOCATE ? "use before allocation"
                                                                      : "use without order";
    report(kind, "%s and %s are not ordered; byte %zu of %s", describe_operation(first), describe_operation(second),
           byte, describe_block(block));
}

/* ---- accesses */

static Touch *touch_of(Block *block) {
    for (int i = ntouches - 1; i >= 0; i--)
        if (touches[i].block == block) return &touches[i];
    if (ntouches == touch_room) {
        touch_room = touch_room * 2 + 16;
        touches = realloc(touches, sizeof *touches * (size_t)touch_room);
    }
    size_t nbits = block->nbytes / 8 + 1;
    touches[ntouches] = (Touch){.block = block, .read = calloc(nbits, 1), .written = calloc(nbits, 1)};
    return &touches[ntouches++];
}

static void set_bits(uint8_t *bits, size_t first, size_t count) {
    size_t i = first, end = first + count;
    for (; i < end && i % 8; i++) bits[i / 8] |= (uint8_t)(1 << i % 8);
    memset(bits + i / 8, 0xFF, (end - i) / 8);
    for (i += (end - i) / 8 * 8; i < end; i++) bits[i / 8] |= (uint8_t)(1 << i % 8);
}

static bool check_inside(const Block *block, const char *address, size_t nbytes, const char *verb) {
    const char *operation = describe_operation(running_operation());
    if (!block) {
        report("out of bounds", "%s %s %zu bytes before every allocation", operation, verb, nbytes);
        return false;
    }
    size_t offset = (size_t)(address - block->start);
    if (offset + nbytes > block->nbytes) {
        report("out of bounds", "%s %s %zu bytes at byte %zu of %s", operation, verb, nbytes, offset,
               describe_block(block));
        return false;
    }
    /* while its release or allocation is unordered to this, the records tell that */
    bool is_freed = !block->is_open && block->freed_by && is_before(block->freed_by, running_operation());
    if (is_freed) report("use after free", "%s %s %s", operation, verb, describe_block(block));
    return !is_freed;
}

static void check_set(const Block *block, size_t offset, size_t nbytes) {
    if (!block->is_set || memchr(block->is_set + offset, 0, nbytes) == NULL) return;
    const uint8_t *unset = memchr(block->is_set + offset, 0, nbytes);
    report("uninitialised read", "%s reads byte %zu of %s", describe_operation(running_operation()),
           (size_t)(unset - block->is_set), describe_block(block));
}

void access_memory(const void *address, size_t nbytes, int is_write) {
    const Arena *arena = arena_of(address);
    if (!arena || nbytes == 0) return; /* the stack, literals, pageable memory */
    Block *block = block_before(arena, address);
    if (!check_inside(block, address, nbytes, is_write ? "writes" : "reads")) return;
    size_t offset = (size_t)((const char *)address - block->start);
    Touch *touch = touch_of(block);
    set_bits(is_write ? touch->written : touch->read, offset, nbytes);
    if (!is_write) check_set(block, offset, nbytes);
    else if (block->is_set) memset(block->is_set + offset, 1, nbytes);
}

static void touch_all(Block *block) {
    if (block->nbytes) set_bits(touch_of(block)->written, 0, block->nbytes);
}

void open_block(Block *block) {
    touch_all(block);
    block->is_open = true;
    if (!block->is_host) block->is_set = calloc(block->nbytes + 1, 1);
    if (!block->is_host) memset(block->start, 0xFF, block->nbytes); /* NaN in every floating-point type */
}

void close_block(Block *block) {
    touch_all(block);
    block->is_open = false;
    block->is_closed = true;
    free(block->is_set);
    block->is_set = NULL;
    size_t page = GAP;
    char *start = block->start + (page - (uintptr_t)block->start % page) % page;
    char *stop = block->start + block->nbytes / page * page;
    if (stop > start) madvise(start, (size_t)(stop - start), MADV_DONTNEED);
}

/* ---- comparing */

static bool bit_at(const uint8_t *bits, size_t i) {
    return bits[i / 8] >> (i % 8) & 1;
}

static void append_range(Record *record, Range range) {
    if ((record->nranges & (record->nranges - 1)) == 0) /* room doubles */
        record->ranges = realloc(record->ranges, sizeof(Range) * (size_t)(record->nranges ? record->nranges * 2 : 1));
    record->ranges[record->nranges++] = range;
}

/* From bit `i`, the last of the whole bytes of this value that follow, or `i` itself. */
static size_t skip_equal(const uint8_t *bits, size_t i, size_t nbytes, uint8_t value) {
    if (i % 8) return i;
    while (i + 8 < nbytes && bits[i / 8] == value && bits[i / 8 + 1] == value) i += 8;
    return i;
}

static void append_ranges(Record *record, const uint8_t *bits, size_t nbytes, bool is_write) {
    for (size_t i = 0; i < nbytes; i++) {
        i = skip_equal(bits, i, nbytes, 0x00);
        if (i >= nbytes || !bit_at(bits, i)) continue;
        size_t first = i;
        while (i + 1 < nbytes && bit_at(bits, i + 1)) i = skip_equal(bits, i + 1, nbytes, 0xFF);
        append_range(record, (Range){first, i, is_write});
    }
}

static void compare_records(const Block *block, const Record *old, const Record *new) {
    for (int i = 0; i < old->nranges; i++)
        for (int j = 0; j < new->nranges; j++) {
            const Range *a = &old->ranges[i], *b = &new->ranges[j];
            if ((!a->is_write && !b->is_write) || a->last < b->first || b->last < a->first) continue;
            report_unordered(block, a->first > b->first ? a->first : b->first, old->operation, new->operation);
            return;
        }
}

static bool are_ordered(int first, int second) {
    return is_before(first, second) || is_before(second, first);
}

static void drop_forgotten_records(Block *block) {
    int kept = 0;
    for (int i = 0; i < block->nrecords; i++) {
        if (is_forgotten(block->records[i].operation)) free(block->records[i].ranges);
        else block->records[kept++] = block->records[i];
    }
    block->nrecords = kept;
}

static void add_record(Block *block, Record record) {
    drop_forgotten_records(block);
    for (int i = 0; i < block->nrecords; i++)
        if (!are_ordered(block->records[i].operation, record.operation))
            compare_records(block, &block->records[i], &record);
    block->records = realloc(block->records, sizeof(Record) * (size_t)(block->nrecords + 1));
    block->records[block->nrecords++] = record;
}

void end_accesses(void) {
    for (int i = 0; i < ntouches; i++) {
        Touch *touch = &touches[i];
        Record record = {.operation = running_operation()};
        append_ranges(&record, touch->read, touch->block->nbytes, false);
        append_ranges(&record, touch->written, touch->block->nbytes, true);
        add_record(touch->block, record);
        free(touch->read);
        free(touch->written);
    }
    ntouches = 0;
}
