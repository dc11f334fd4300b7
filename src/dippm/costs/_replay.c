/* PyTorch's caching allocator followed through a run: what dippm.costs.allocator does, in a tenth of the time.

   The rules and their source stand there, and the Python class remains: it serves where this file was not compiled, and
   tests hold the two against each other. Sizes and addresses are in blocks of 512 bytes. */

#include "_buffers.h"

#include <stdlib.h>

enum { SMALL, LARGE, POOLS };
enum { NONE = -1 };
/* How a run ends. */
enum { DONE, NO_ROOM, NOT_TAKEN, TOO_LARGE, NO_MEMORY };

static const int64_t SMALL_REQUEST = 2048, SMALL_SEGMENT = 4096, LARGE_SEGMENT = 40960, OWN_SEGMENT = 20480,
                     SEGMENT_STEP = 4096, LARGEST = (int64_t)1 << 61, MOST_PIECES = (int64_t)1 << 28;

/* A stretch of a segment, free or taken, between its neighbours there. */
typedef struct {
    int64_t address, size;
    int32_t before, after;
    int8_t pool, is_free;
} Block;

/* A free block in its pool, which is sorted by size and then by address. */
typedef struct {
    int64_t size, address;
    int32_t block;
} Free;

typedef struct {
    int64_t size;
    int32_t first;
} Segment;

typedef struct {
    void *items;
    Py_ssize_t count, room;
} List;

typedef struct {
    List blocks, unused, segments, pools[POOLS];
    int32_t *taken; /* Block of each piece, NONE while it is not taken. */
    int64_t capacity, end, reserved, peak;
} Allocator;

#define BLOCK(a, i) (((Block *)(a)->blocks.items)[i])
#define FREE(list, i) (((Free *)(list)->items)[i])

/* Room for one more item; NULL where there is no memory. */
static void *grow(List *list, size_t item)
{
    if (list->count == list->room) {
        Py_ssize_t room = list->room ? 2 * list->room : 64;
        if (room > PY_SSIZE_T_MAX / (Py_ssize_t)item)
            return NULL;
        void *items = realloc(list->items, (size_t)room * item);
        if (items == NULL)
            return NULL;
        list->items = items;
        list->room = room;
    }
    return (char *)list->items + (size_t)list->count++ * item;
}

static int is_before(const Free *item, int64_t size, int64_t address)
{
    return (item->size < size) | ((item->size == size) & (item->address < address));
}

/* Place of the first free block, of those from one place to another, that is not before this size and address. Which
   half it is in no processor can guess: it is written so that nothing need branch on it. */
static Py_ssize_t find(const List *pool, Py_ssize_t from, Py_ssize_t to, int64_t size, int64_t address)
{
    Py_ssize_t count = to - from;
    if (count <= 0)
        return from;
    const Free *first = &FREE(pool, from);
    while (count > 1) {
        Py_ssize_t half = count / 2;
        first += is_before(&first[half - 1], size, address) ? half : 0;
        count -= half;
    }
    return first - &FREE(pool, 0) + is_before(first, size, address);
}

static Py_ssize_t place_of(const Allocator *a, int32_t index)
{
    const Block *block = &BLOCK(a, index);
    const List *pool = &a->pools[block->pool];
    return find(pool, 0, pool->count, block->size, block->address);
}

static void remove_at(List *pool, Py_ssize_t place)
{
    memmove(&FREE(pool, place), &FREE(pool, place + 1), (size_t)(--pool->count - place) * sizeof(Free));
}

static void withdraw(Allocator *a, int32_t index)
{
    remove_at(&a->pools[BLOCK(a, index).pool], place_of(a, index));
}

static void set_free(Allocator *a, List *pool, Py_ssize_t place, int32_t index)
{
    Block *block = &BLOCK(a, index);
    FREE(pool, place) = (Free){block->size, block->address, index};
    block->is_free = 1;
}

static int offer(Allocator *a, int32_t index)
{
    List *pool = &a->pools[BLOCK(a, index).pool];
    Py_ssize_t place = place_of(a, index);
    if (grow(pool, sizeof(Free)) == NULL)
        return NO_MEMORY;
    memmove(&FREE(pool, place + 1), &FREE(pool, place), (size_t)(pool->count - 1 - place) * sizeof(Free));
    set_free(a, pool, place, index);
    return DONE;
}

/* Offer what is left of a block instead of it, which is smaller and stands before it. */
static void offer_less(Allocator *a, Py_ssize_t place, int32_t index)
{
    const Block *block = &BLOCK(a, index);
    List *pool = &a->pools[block->pool];
    Py_ssize_t to = find(pool, 0, place, block->size, block->address);
    memmove(&FREE(pool, to + 1), &FREE(pool, to), (size_t)(place - to) * sizeof(Free));
    set_free(a, pool, to, index);
}

/* Offer what a block has grown to instead of it, which is larger and stands behind it. */
static void offer_more(Allocator *a, Py_ssize_t place, int32_t index)
{
    const Block *block = &BLOCK(a, index);
    List *pool = &a->pools[block->pool];
    Py_ssize_t to = find(pool, place + 1, pool->count, block->size, block->address) - 1;
    memmove(&FREE(pool, place), &FREE(pool, place + 1), (size_t)(to - place) * sizeof(Free));
    set_free(a, pool, to, index);
}

/* A block's number, NONE where there is no memory. */
static int32_t new_block(Allocator *a, Block block)
{
    int32_t index;
    if (a->unused.count)
        index = ((int32_t *)a->unused.items)[--a->unused.count];
    else if (a->blocks.count >= INT32_MAX || grow(&a->blocks, sizeof(Block)) == NULL)
        return NONE;
    else
        index = (int32_t)(a->blocks.count - 1);
    BLOCK(a, index) = block;
    return index;
}

static int drop_block(Allocator *a, int32_t index)
{
    int32_t *slot = grow(&a->unused, sizeof(int32_t));
    if (slot == NULL)
        return NO_MEMORY;
    *slot = index;
    return DONE;
}

/* Give every segment that is wholly free back to the device. */
static int release(Allocator *a)
{
    Segment *segments = a->segments.items;
    Py_ssize_t kept = 0;
    for (Py_ssize_t i = 0; i < a->segments.count; i++) {
        const Block *first = &BLOCK(a, segments[i].first);
        if (!first->is_free || first->size != segments[i].size) {
            segments[kept++] = segments[i];
            continue;
        }
        withdraw(a, segments[i].first);
        a->reserved -= segments[i].size;
        if (drop_block(a, segments[i].first) != DONE)
            return NO_MEMORY;
    }
    a->segments.count = kept;
    return DONE;
}

static int add_segment(Allocator *a, int pool, int64_t request)
{
    int64_t size = LARGE_SEGMENT;
    if (request <= SMALL_REQUEST)
        size = SMALL_SEGMENT;
    else if (request >= OWN_SEGMENT)
        size = (request + SEGMENT_STEP - 1) / SEGMENT_STEP * SEGMENT_STEP;
    if (a->reserved + size > a->capacity) {
        if (release(a) != DONE)
            return NO_MEMORY;
        if (a->reserved + size > a->capacity)
            return NO_ROOM;
    }
    if (a->end + size >= LARGEST)
        return TOO_LARGE;
    int32_t index = new_block(a, (Block){a->end, size, NONE, NONE, (int8_t)pool, 1});
    if (index == NONE)
        return NO_MEMORY;
    Segment *segment = grow(&a->segments, sizeof(Segment));
    if (segment == NULL)
        return NO_MEMORY;
    *segment = (Segment){size, index};
    a->end += size + 1;
    a->reserved += size;
    if (a->reserved > a->peak)
        a->peak = a->reserved;
    return offer(a, index);
}

/* Take a block, or only see to it that there is one: that is all that a piece does which is given back at once. */
static int take(Allocator *a, int64_t size, int32_t *taken)
{
    int kind = size <= SMALL_REQUEST ? SMALL : LARGE;
    List *pool = &a->pools[kind];
    if (size > LARGEST)
        return TOO_LARGE;
    Py_ssize_t place = find(pool, 0, pool->count, size, INT64_MIN);
    if (place == pool->count) {
        int status = add_segment(a, kind, size);
        if (status != DONE)
            return status;
        place = pool->count - 1;
    }
    if (taken == NULL)
        return DONE;
    int32_t index = FREE(pool, place).block;
    BLOCK(a, index).is_free = 0;
    int64_t rest = BLOCK(a, index).size - size;
    if (rest > SMALL_REQUEST || (rest && kind == SMALL)) {
        Block *whole = &BLOCK(a, index);
        int32_t after = whole->after;
        int32_t other = new_block(a, (Block){whole->address + size, rest, index, after, (int8_t)kind, 1});
        if (other == NONE)
            return NO_MEMORY;
        BLOCK(a, index).size = size;
        BLOCK(a, index).after = other;
        if (after != NONE)
            BLOCK(a, after).before = other;
        offer_less(a, place, other);
    }
    else
        remove_at(pool, place);
    *taken = index;
    return DONE;
}

/* Join a block with the one behind it, which is not offered any more. */
static int join(Allocator *a, int32_t index)
{
    int32_t gone = BLOCK(a, index).after, after = BLOCK(a, gone).after;
    BLOCK(a, index).size += BLOCK(a, gone).size;
    BLOCK(a, index).after = after;
    if (after != NONE)
        BLOCK(a, after).before = index;
    return drop_block(a, gone);
}

static int give_back(Allocator *a, int32_t index)
{
    int32_t before = BLOCK(a, index).before, after = BLOCK(a, index).after;
    int joins_before = before != NONE && BLOCK(a, before).is_free;
    int joins_after = after != NONE && BLOCK(a, after).is_free;
    if (!joins_before && !joins_after)
        return offer(a, index);
    /* Of two free neighbours one makes room for all three. */
    Py_ssize_t place = place_of(a, joins_before ? before : after);
    if (joins_before && joins_after) {
        Py_ssize_t gone = place_of(a, after);
        remove_at(&a->pools[BLOCK(a, after).pool], gone);
        place -= gone < place;
    }
    if (joins_after && join(a, index) != DONE)
        return NO_MEMORY;
    if (joins_before) {
        if (join(a, before) != DONE)
            return NO_MEMORY;
        index = before;
    }
    offer_more(a, place, index);
    return DONE;
}

/* Give back what is free, and begin a new peak. */
static int restart(Allocator *a)
{
    int status = release(a);
    a->peak = a->reserved;
    return status;
}

static int run(Allocator *a, const int64_t *events, const int64_t *sizes, Py_ssize_t count, int64_t pieces,
               Py_ssize_t before_restart)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t event = events[i], size = sizes[i];
        int status = i == before_restart ? restart(a) : DONE;
        if (status != DONE)
            return status;
        if (size <= 0)
            continue;
        if (event > pieces || event < -pieces)
            return NOT_TAKEN;
        if (event >= 0)
            status = take(a, size, event ? &a->taken[event] : NULL);
        else if (a->taken[-event] == NONE)
            return NOT_TAKEN;
        else {
            status = give_back(a, a->taken[-event]);
            a->taken[-event] = NONE;
        }
        if (status != DONE)
            return status;
    }
    return count == before_restart ? restart(a) : DONE;
}

static PyObject *peak_blocks(PyObject *module, PyObject *arguments)
{
    PyObject *given_events, *given_sizes, *result = NULL;
    Py_buffer events, sizes;
    Py_ssize_t pieces, before_restart;
    long long capacity;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOnLn", &given_events, &given_sizes, &pieces, &capacity, &before_restart))
        return NULL;
    if (view(given_events, &events, PyBUF_CONTIG_RO, "events") < 0)
        return NULL;
    if (view(given_sizes, &sizes, PyBUF_CONTIG_RO, "sizes") < 0) {
        PyBuffer_Release(&events);
        return NULL;
    }
    if (events.len != sizes.len || pieces < 0 || pieces > MOST_PIECES) {
        PyErr_SetString(PyExc_ValueError, "Each event must have a size, and there are at most 2^28 pieces.");
    }
    else {
        int status = NO_MEMORY;
        Allocator a;
        memset(&a, 0, sizeof(a));
        a.capacity = (int64_t)capacity;
        Py_BEGIN_ALLOW_THREADS
        size_t room = ((size_t)pieces + 1) * sizeof(int32_t);
        a.taken = malloc(room);
        if (a.taken != NULL) {
            memset(a.taken, 0xff, room);
            status = run(&a, events.buf, sizes.buf, events.len / 8, pieces, before_restart);
        }
        free(a.taken);
        free(a.blocks.items);
        free(a.unused.items);
        free(a.segments.items);
        for (int pool = 0; pool < POOLS; pool++)
            free(a.pools[pool].items);
        Py_END_ALLOW_THREADS
        if (status == DONE || status == NO_ROOM)
            result = PyLong_FromLongLong(status == DONE ? a.peak : -1);
        else if (status == NOT_TAKEN)
            PyErr_SetString(PyExc_LookupError, "A piece is given back and was not taken.");
        else if (status == TOO_LARGE)
            PyErr_SetString(PyExc_OverflowError, "The pieces do not fit into 64-bit addresses.");
        else
            PyErr_NoMemory();
    }
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&events);
    return result;
}

static PyMethodDef METHODS[] = {
    {"peak_blocks", peak_blocks, METH_VARARGS,
     "peak_blocks(events, sizes, pieces, capacity, before_restart)\n--\n\nSee dippm.costs.allocator.peak_blocks."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef_Slot SLOTS[] = {{0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_replay", "The caching allocator, compiled.", 0, METHODS, SLOTS, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__replay(void)
{
    return PyModuleDef_Init(&MODULE);
}
