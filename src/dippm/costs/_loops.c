/* Which loops of a compiled model run as one kernel.

   The rules stand in dippm.costs.loop_kernels, and so does the same walk in Python: it serves where this file was not
   compiled, and tests hold the two against each other. */

#include "_buffers.h"

#include <stdlib.h>

/* Bits of what is known of a node, as in dippm.costs.loop_kernels. */
enum { IS_VIEW = 1, IS_LOOP = 2, IS_BUILT = 4, IS_WINDOW = 8, REDUCES = 16 };
enum { NOWHERE = -1 };
enum { READER, WRITER, FLAGS, PART, STRETCH, PLACE, KERNEL, ARRAYS };

static const char *const NAMES[ARRAYS] = {"reader", "writer", "flags", "part", "stretch", "place", "kernel"};

typedef struct {
    Py_ssize_t nodes, reads;
    int64_t *of[ARRAYS];
    int64_t far;
    /* Of each node the first of those that read it; the last node of a kernel is found by following its leaders; how many
       kernels come after a kernel at least, and which stretch it reduces. */
    int64_t *first, *readers, *leader, *after, *reduced, *joined;
} Walk;

static int64_t find(int64_t *leader, int64_t node)
{
    while (leader[node] != node) {
        leader[node] = leader[leader[node]];
        node = leader[node];
    }
    return node;
}

static int descending(const void *first, const void *second)
{
    int64_t a = *(const int64_t *)first, b = *(const int64_t *)second;
    return (a < b) - (a > b);
}

/* Who reads each node: first[i] to first[i + 1] of the readers. Views read nothing. */
static void collect_readers(Walk *w)
{
    const int64_t *writer = w->of[WRITER], *reader = w->of[READER], *flags = w->of[FLAGS];
    memset(w->first, 0, (size_t)(w->nodes + 2) * sizeof(int64_t));
    /* Two places further, so that what is filled in moves each start by one. */
    for (Py_ssize_t i = 0; i < w->reads; i++)
        if (writer[i] >= 0 && !(flags[reader[i]] & IS_VIEW))
            w->first[writer[i] + 2]++;
    for (Py_ssize_t node = 0; node < w->nodes; node++)
        w->first[node + 2] += w->first[node + 1];
    for (Py_ssize_t i = 0; i < w->reads; i++)
        if (writer[i] >= 0 && !(flags[reader[i]] & IS_VIEW))
            w->readers[w->first[writer[i] + 1]++] = reader[i];
}

/* Kernels that a loop may join, the latest first; their number. */
static Py_ssize_t joinable(Walk *w, int64_t node, int is_alone)
{
    const int64_t *flags = w->of[FLAGS], *part = w->of[PART], *place = w->of[PLACE];
    Py_ssize_t count = 0, kept = 0;
    for (int64_t i = w->first[node]; i < w->first[node + 1]; i++) {
        int64_t kernel = find(w->leader, w->readers[i]);
        int waits = is_alone || flags[w->readers[i]] & IS_WINDOW;
        if (flags[kernel] & IS_LOOP && !waits && w->after[kernel] == w->after[node] && part[kernel] == part[node] &&
            (int64_t)((uint64_t)place[kernel] - (uint64_t)place[node]) <= w->far)
            w->joined[count++] = kernel;
    }
    qsort(w->joined, (size_t)count, sizeof(int64_t), descending);
    for (Py_ssize_t i = 0; i < count; i++)
        if (!i || w->joined[i] != w->joined[i - 1])
            w->joined[kept++] = w->joined[i];
    return kept;
}

static void visit(Walk *w, int64_t node)
{
    const int64_t *flags = w->of[FLAGS];
    int64_t stretch = w->of[STRETCH][node];
    int is_alone = !(flags[node] & IS_LOOP) || flags[node] & IS_BUILT;
    for (int64_t i = w->first[node]; i < w->first[node + 1]; i++) {
        int64_t least = w->after[find(w->leader, w->readers[i])] + (is_alone || flags[w->readers[i]] & IS_WINDOW);
        if (least > w->after[node])
            w->after[node] = least;
    }
    if (!(flags[node] & IS_LOOP))
        return;
    Py_ssize_t count = joinable(w, node, is_alone);
    if (flags[node] & REDUCES) {
        w->reduced[node] = stretch;
        for (Py_ssize_t i = 0; i < count; i++)
            if (w->reduced[w->joined[i]] != NOWHERE && w->reduced[w->joined[i]] != stretch) {
                w->after[node]++;
                return;
            }
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t kernel = w->joined[i], own = find(w->leader, node);
        int64_t by_own = w->reduced[own], by_other = w->reduced[kernel];
        if (by_own != NOWHERE && by_other != NOWHERE && by_own != by_other)
            continue;
        int64_t last = own > kernel ? own : kernel;
        w->leader[own > kernel ? kernel : own] = last;
        w->reduced[last] = by_own > by_other ? by_own : by_other;
    }
}

/* -1 where there is no memory, else 0. */
static int run(Walk *w)
{
    size_t nodes = (size_t)w->nodes, reads = (size_t)w->reads;
    int64_t *held = malloc((4 * nodes + 2 + 2 * reads) * sizeof(int64_t));
    if (held == NULL)
        return -1;
    w->leader = held;
    w->after = w->leader + nodes;
    w->reduced = w->after + nodes;
    w->first = w->reduced + nodes;
    w->readers = w->first + nodes + 2;
    w->joined = w->readers + reads;
    for (Py_ssize_t node = 0; node < w->nodes; node++) {
        w->leader[node] = node;
        w->after[node] = 0;
        w->reduced[node] = NOWHERE;
    }
    collect_readers(w);
    for (Py_ssize_t node = w->nodes - 1; node >= 0; node--)
        visit(w, node);
    for (Py_ssize_t node = 0; node < w->nodes; node++)
        w->of[KERNEL][node] = w->of[FLAGS][node] & IS_VIEW ? NOWHERE : find(w->leader, node);
    free(held);
    return 0;
}

/* Whether the result shares no memory with the other arrays: what was checked of them would not hold while it is written. */
static int is_apart(const Walk *w, const Py_ssize_t *lengths)
{
    uintptr_t first = (uintptr_t)w->of[KERNEL], stop = first + (uintptr_t)lengths[KERNEL] * sizeof(int64_t);
    for (int i = 0; i < KERNEL; i++) {
        uintptr_t own = (uintptr_t)w->of[i];
        if (own < stop && first < own + (uintptr_t)lengths[i] * sizeof(int64_t))
            return 0;
    }
    return 1;
}

/* Whether all sizes fit together and all places are places. */
static int is_sound(const Walk *w, const Py_ssize_t *lengths)
{
    if (lengths[WRITER] != w->reads)
        return 0;
    for (int i = FLAGS; i < ARRAYS; i++)
        if (lengths[i] != w->nodes)
            return 0;
    for (Py_ssize_t i = 0; i < w->reads; i++)
        if (w->of[READER][i] < 0 || w->of[READER][i] >= w->nodes || w->of[WRITER][i] < NOWHERE ||
            w->of[WRITER][i] >= w->nodes)
            return 0;
    return is_apart(w, lengths);
}

static PyObject *join(PyObject *module, PyObject *arguments)
{
    PyObject *given[ARRAYS], *result = NULL;
    Py_buffer buffers[ARRAYS];
    Py_ssize_t lengths[ARRAYS];
    long long far;
    Walk w;
    int held = 0, status = -2;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOOOOL", &given[0], &given[1], &given[2], &given[3], &given[4], &given[5],
                          &given[6], &far))
        return NULL;
    for (; held < ARRAYS; held++) {
        if (view(given[held], &buffers[held], held < KERNEL ? PyBUF_CONTIG_RO : PyBUF_CONTIG, NAMES[held]) < 0)
            goto release;
        w.of[held] = buffers[held].buf;
        lengths[held] = buffers[held].len / 8;
    }
    w.nodes = lengths[FLAGS];
    w.reads = lengths[READER];
    w.far = (int64_t)far;
    Py_BEGIN_ALLOW_THREADS
    if (is_sound(&w, lengths))
        status = run(&w);
    Py_END_ALLOW_THREADS
    if (status == -1)
        PyErr_NoMemory();
    else if (status < 0)
        PyErr_SetString(PyExc_ValueError, "The arrays do not describe the reads of one set of nodes.");
    else
        result = Py_NewRef(Py_None);
release:
    while (held--)
        PyBuffer_Release(&buffers[held]);
    return result;
}

static PyMethodDef METHODS[] = {
    {"join", join, METH_VARARGS,
     "join(reader, writer, flags, part, stretch, place, kernel, far)\n--\n\nSee dippm.costs.loop_kernels."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef_Slot SLOTS[] = {{0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_loops", "Which loops run as one kernel, compiled.", 0, METHODS, SLOTS, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__loops(void)
{
    return PyModuleDef_Init(&MODULE);
}
