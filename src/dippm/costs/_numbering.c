/* Numbers for what is alike: equal for equal pieces of bytes, in the order in which they first appear.

   What dippm.costs.numbering does with a dictionary, which serves where this file was not compiled. */

#include "_buffers.h"

#include <stdlib.h>

/* Small, for the table is walked at random: half of it stays nearer. */
typedef struct {
    uint32_t hash;
    uint32_t piece; /* The first that is alike, counted from 1; 0 where the slot is free. */
} Slot;

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
