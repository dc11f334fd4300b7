/* Numbers for what is alike: equal for equal pieces of bytes, in the order in which they first appear.

   What dippm.costs.numbering does with a dictionary, which serves where this file was not compiled. */

#include "_buffers.h"

#include <stdlib.h>

/* Small, for the table is walked at random: half of it stays nearer. */
typedef struct {
    uint32_t hash;
    uint32_t piece; /* The first that is alike, counted from 1; 0 where the slot is free. */
} Slot;

enum { FEW = 32 }; /* Words that are sorted one by one. */
enum { LANES = 4 }; /* Words that are hashed side by side: one after the other each would wait for the last. */

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    return hash ^ (hash >> 32);
}

static uint64_t word_at(const unsigned char *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof(word));
    return word;
}

static uint64_t hash_of(const unsigned char *bytes, size_t count)
{
    uint64_t hash = 0x9e3779b97f4a7c15u ^ count, word = 0, lanes[LANES] = {1, 2, 3, 4};
    if (count >= sizeof(lanes)) {
        for (; count >= sizeof(lanes); bytes += sizeof(lanes), count -= sizeof(lanes))
            for (int i = 0; i < LANES; i++)
                lanes[i] = mix(lanes[i], word_at(bytes + i * sizeof(word)));
        for (int i = 0; i < LANES; i++)
            hash = mix(hash, lanes[i]);
    }
    for (; count >= sizeof(word); bytes += sizeof(word), count -= sizeof(word))
        hash = mix(hash, word_at(bytes));
    memcpy(&word, bytes, count);
    hash = (hash ^ word) * 0xc4ceb9fe1a85ec53u;
    return hash ^ (hash >> 32);
}

/* -1 where there is no memory, -2 where the stops do not ascend to the end, else 0. */
static int run(const unsigned char *content, Py_ssize_t size, const int64_t *stops, int64_t *numbers, Py_ssize_t count)
{
    if ((uint64_t)count >= UINT32_MAX)
        return -1;
    size_t slots = 16;
    while (slots < 2 * (size_t)count)
        slots *= 2;
    Slot *table = calloc(slots, sizeof(Slot));
    if (table == NULL)
        return -1;
    int64_t start = 0, found = 0;
    int status = 0;
    for (Py_ssize_t i = 0; i < count; start = stops[i++]) {
        if (stops[i] < start || stops[i] > size) {
            status = -2;
            break;
        }
        size_t length = (size_t)(stops[i] - start);
        uint64_t whole = hash_of(content + start, length);
        uint32_t hash = (uint32_t)(whole >> 32);
        size_t place = (size_t)whole & (slots - 1);
        for (;; place = (place + 1) & (slots - 1)) {
            Slot *slot = &table[place];
            if (slot->piece == 0) {
                *slot = (Slot){hash, (uint32_t)(i + 1)};
                numbers[i] = found++;
                break;
            }
            int64_t other = (int64_t)slot->piece - 1, before = other ? stops[other - 1] : 0;
            if (slot->hash == hash && stops[other] - before == (int64_t)length &&
                !memcmp(content + before, content + start, length)) {
                numbers[i] = numbers[other];
                break;
            }
        }
    }
    free(table);
    return status;
}

static int compare(const void *one, const void *other)
{
    int64_t first = *(const int64_t *)one, second = *(const int64_t *)other;
    return (first > second) - (first < second);
}

/* Ascending; most nodes have few neighbours. */
static void sort(int64_t *words, int64_t count)
{
    if (count > FEW) {
        qsort(words, (size_t)count, sizeof(*words), compare);
        return;
    }
    for (int64_t i = 1; i < count; i++) {
        int64_t word = words[i], place = i;
        for (; place > 0 && words[place - 1] > word; place--)
            words[place] = words[place - 1];
        words[place] = word;
    }
}

/* Numbers of nodes by their own colour, those of their sources and those of their targets. As `run`. */
static int run_around(const int64_t *colours, Py_ssize_t count, const int64_t *source, const int64_t *target,
                      Py_ssize_t edges, int64_t *numbers)
{
    size_t words = (size_t)count + 2 * (size_t)edges;
    int64_t *held = malloc((words + 2 * (size_t)count + 1) * sizeof(*held)), *stop = held + words, *next = stop + count;
    int status;
    if (held == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++)
        stop[i] = 1;
    for (Py_ssize_t e = 0; e < edges; e++) {
        if (source[e] < 0 || source[e] >= count || target[e] < 0 || target[e] >= count) {
            free(held);
            return -2;
        }
        stop[source[e]]++;
        stop[target[e]]++;
    }
    for (Py_ssize_t i = 0, before = 0; i < count; before = stop[i++]) {
        held[before] = colours[i];
        next[i] = before + 1;
        stop[i] += before;
    }
    for (Py_ssize_t e = 0; e < edges; e++)
        held[next[target[e]]++] = count + colours[source[e]];
    for (Py_ssize_t e = 0; e < edges; e++)
        held[next[source[e]]++] = 2 * count + colours[target[e]];
    for (Py_ssize_t i = 0, before = 0; i < count; before = stop[i++])
        sort(held + before, stop[i] - before);
    for (Py_ssize_t i = 0; i < count; i++)
        stop[i] *= (int64_t)sizeof(*held);
    status = run((const unsigned char *)held, (Py_ssize_t)(words * sizeof(*held)), stop, numbers, count);
    free(held);
    return status;
}

static PyObject *number_around(PyObject *module, PyObject *arguments)
{
    static const char *const NAMES[] = {"colours", "source", "target", "numbers"};
    PyObject *given[4];
    Py_buffer arrays[4];
    int status = -2, viewed = 0;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOO", &given[0], &given[1], &given[2], &given[3]))
        return NULL;
    while (viewed < 4 && view(given[viewed], &arrays[viewed], viewed < 3 ? PyBUF_CONTIG_RO : PyBUF_CONTIG,
                              NAMES[viewed]) == 0)
        viewed++;
    if (viewed == 4 && arrays[0].len == arrays[3].len && arrays[1].len == arrays[2].len) {
        Py_BEGIN_ALLOW_THREADS
        status = run_around(arrays[0].buf, arrays[0].len / 8, arrays[1].buf, arrays[2].buf, arrays[1].len / 8,
                            arrays[3].buf);
        Py_END_ALLOW_THREADS
    }
    for (int i = 0; i < viewed; i++)
        PyBuffer_Release(&arrays[i]);
    if (viewed < 4)
        return NULL;
    if (status == -1)
        return PyErr_NoMemory();
    if (status == -2) {
        PyErr_SetString(PyExc_ValueError, "Each node has a colour and a number, and each edge a source and a target "
                                          "among them.");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *number(PyObject *module, PyObject *arguments)
{
    PyObject *given_content, *given_stops, *given_numbers;
    Py_buffer content, stops, numbers;
    int status = -2;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOO", &given_content, &given_stops, &given_numbers))
        return NULL;
    if (PyObject_GetBuffer(given_content, &content, PyBUF_CONTIG_RO) < 0)
        return NULL;
    if (view(given_stops, &stops, PyBUF_CONTIG_RO, "stops") < 0) {
        PyBuffer_Release(&content);
        return NULL;
    }
    if (view(given_numbers, &numbers, PyBUF_CONTIG, "numbers") < 0) {
        PyBuffer_Release(&stops);
        PyBuffer_Release(&content);
        return NULL;
    }
    if (stops.len == numbers.len && (stops.len == 0 || (stops.buf != numbers.buf && content.buf != numbers.buf))) {
        Py_BEGIN_ALLOW_THREADS
        status = run(content.buf, content.len, stops.buf, numbers.buf, stops.len / 8);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&numbers);
    PyBuffer_Release(&stops);
    PyBuffer_Release(&content);
    if (status == -1)
        return PyErr_NoMemory();
    if (status == -2) {
        PyErr_SetString(PyExc_ValueError, "The stops must ascend within the content, and each has a number.");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"number", number, METH_VARARGS,
     "number(content, stops, numbers)\n--\n\nFill in the number of each piece; see dippm.costs.numbering."},
    {"number_around", number_around, METH_VARARGS,
     "number_around(colours, source, target, numbers)\n--\n\nFill in the number of each node; see "
     "dippm.costs.numbering."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef_Slot SLOTS[] = {{0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_numbering", "Numbers for what is alike, compiled.", 0, METHODS, SLOTS, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__numbering(void)
{
    return PyModuleDef_Init(&MODULE);
}
