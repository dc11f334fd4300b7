/* One walk over the nodes of a graph with the number formats that autocast leaves behind, and the casts that it adds.

   The rules and their source stand in dippm.costs.autocast, and so does the same walk in Python: it serves where this
   file was not compiled, and tests hold the two against each other. */

#include "_buffers.h"

/* Stand-ins for a format, and bits of what is known of a tensor, as in dippm.costs.autocast. */
enum { STATED = -1, WIDEST = -2, FIRST = -3 };
enum { IS_VIEW = 1, IS_FREE = 2, HAS_SHAPE = 4, IS_CACHEABLE = 8, IS_CACHED = 16 };
enum { TARGET, RESULT, READ_START, READ_TENSOR, WRITE_START, WRITE_TENSOR, OWNER, FLAGS, HELD, READS, CASTS, ARRAYS };
enum { CAST_COLUMNS = 5, FORMATS = 63 };

static const char *const NAMES[ARRAYS] = {
    "target", "result", "read_start", "read_tensor", "write_start", "write_tensor",
    "owner",  "flags",  "held",       "reads",       "casts",
};

typedef struct {
    Py_ssize_t nodes, reads, writes, tensors;
    int64_t *of[ARRAYS];
    uint64_t castable;
    int64_t float32;
} Walk;

static int is_castable(const Walk *w, int64_t format)
{
    return format >= 0 && (w->castable >> format) & 1;
}

/* The one format that all castable reads have, FP32 where they differ, STATED where there are none. */
static int64_t widest(const Walk *w, int64_t first, int64_t stop, int64_t asked)
{
    int64_t result = STATED;
    for (int64_t i = first; i < stop; i++) {
        int64_t format = w->of[READS][i];
        if (!is_castable(w, format) || (w->of[FLAGS][w->of[READ_TENSOR][i]] & asked) != asked)
            continue;
        if (result == STATED)
            result = format;
        else if (result != format)
            return w->float32;
    }
    return result;
}

/* As widest, of the reads that have dimensions where there are any. */
static int64_t promoted(const Walk *w, int64_t first, int64_t stop)
{
    for (int64_t i = first; i < stop; i++)
        if (w->of[FLAGS][w->of[READ_TENSOR][i]] & HAS_SHAPE)
            return widest(w, first, stop, HAS_SHAPE);
    return widest(w, first, stop, 0);
}

static int64_t first_castable(const Walk *w, int64_t first, int64_t stop)
{
    for (int64_t i = first; i < stop; i++)
        if (is_castable(w, w->of[READS][i]))
            return w->of[READS][i];
    return STATED;
}

/* Cast what a node reads in another format than the target; the number of casts so far. */
static Py_ssize_t cast(Walk *w, Py_ssize_t node, int64_t first, int64_t stop, int64_t target, Py_ssize_t made)
{
    const int64_t *tensor = w->of[READ_TENSOR];
    for (int64_t i = first; i < stop; i++) {
        int64_t source = w->of[READS][i], index = tensor[i], is_known = 0;
        if (source == target || !is_castable(w, source))
            continue;
        w->of[READS][i] = target;
        int64_t is_cached = source == w->float32 && (w->of[FLAGS][index] & IS_CACHEABLE);
        if (is_cached) {
            int64_t *flags = &w->of[FLAGS][w->of[OWNER][index]];
            is_known = *flags & IS_CACHED;
            *flags |= IS_CACHED;
        }
        else
            for (int64_t before = first; before < i; before++)
                is_known |= tensor[before] == index;
        if (is_known)
            continue;
        int64_t *row = &w->of[CASTS][CAST_COLUMNS * made++];
        row[0] = node;
        row[1] = index;
        row[2] = source;
        row[3] = target;
        row[4] = is_cached != 0;
    }
    return made;
}

static Py_ssize_t run(Walk *w)
{
    Py_ssize_t made = 0;
    int64_t *held = w->of[HELD];
    for (Py_ssize_t node = 0; node < w->nodes; node++) {
        int64_t first = w->of[READ_START][node], stop = w->of[READ_START][node + 1];
        int64_t target = w->of[TARGET][node], result = w->of[RESULT][node];
        for (int64_t i = first; i < stop; i++)
            w->of[READS][i] = held[w->of[READ_TENSOR][i]];
        if (target == WIDEST)
            target = widest(w, first, stop, 0);
        if (target >= 0)
            made = cast(w, node, first, stop, target, made);
        if (result == WIDEST)
            result = promoted(w, first, stop);
        else if (result == FIRST)
            result = first_castable(w, first, stop);
        for (int64_t i = w->of[WRITE_START][node]; i < w->of[WRITE_START][node + 1]; i++) {
            int64_t index = w->of[WRITE_TENSOR][i];
            if (w->of[FLAGS][index] & IS_VIEW)
                held[index] = held[w->of[OWNER][index]];
            else if (w->of[FLAGS][index] & IS_FREE && result != STATED)
                held[index] = result;
        }
    }
    return made;
}

/* Whether the numbers ascend from 0 to a last one. */
static int ascends(const int64_t *starts, Py_ssize_t count, Py_ssize_t last)
{
    if (starts[0] != 0 || starts[count] != last)
        return 0;
    for (Py_ssize_t i = 0; i < count; i++)
        if (starts[i] > starts[i + 1])
            return 0;
    return 1;
}

static int lie_below(const int64_t *values, Py_ssize_t count, int64_t least, int64_t end)
{
    for (Py_ssize_t i = 0; i < count; i++)
        if (values[i] < least || values[i] >= end)
            return 0;
    return 1;
}

/* Whether nothing that is written is any other array; empty ones may begin at the same place. */
static int is_apart(const Walk *w, const Py_ssize_t *lengths)
{
    for (int written = FLAGS; written < ARRAYS; written++)
        for (int other = 0; other < written; other++)
            if (w->of[other] == w->of[written] && lengths[other] && lengths[written])
                return 0;
    return 1;
}

/* Whether all sizes fit together and all places are places. */
static int is_sound(const Walk *w, const Py_ssize_t *lengths)
{
    return w->float32 >= 0 && w->float32 < FORMATS && w->castable >> FORMATS == 0 && lengths[RESULT] == w->nodes && lengths[READ_START] == w->nodes + 1 && lengths[WRITE_START] == w->nodes + 1 &&
           lengths[OWNER] == w->tensors && lengths[FLAGS] == w->tensors && lengths[READS] == w->reads &&
           lengths[CASTS] / CAST_COLUMNS >= w->reads && ascends(w->of[READ_START], w->nodes, w->reads) &&
           ascends(w->of[WRITE_START], w->nodes, w->writes) &&
           lie_below(w->of[READ_TENSOR], w->reads, 0, w->tensors) &&
           lie_below(w->of[WRITE_TENSOR], w->writes, 0, w->tensors) &&
           lie_below(w->of[OWNER], w->tensors, 0, w->tensors) && lie_below(w->of[HELD], w->tensors, 0, FORMATS) &&
           lie_below(w->of[TARGET], w->nodes, WIDEST, FORMATS) && lie_below(w->of[RESULT], w->nodes, FIRST, FORMATS);
}

static PyObject *follow(PyObject *module, PyObject *arguments)
{
    PyObject *given[ARRAYS], *result = NULL;
    Py_buffer buffers[ARRAYS];
    Py_ssize_t lengths[ARRAYS], made = -1;
    unsigned long long castable;
    long long float32;
    Walk w;
    int held = 0;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOOOOOOOOKL", &given[0], &given[1], &given[2], &given[3], &given[4], &given[5],
                          &given[6], &given[7], &given[8], &given[9], &given[10], &castable, &float32))
        return NULL;
    for (; held < ARRAYS; held++) {
        if (view(given[held], &buffers[held], held < FLAGS ? PyBUF_CONTIG_RO : PyBUF_CONTIG, NAMES[held]) < 0)
            goto release;
        w.of[held] = buffers[held].buf;
        lengths[held] = buffers[held].len / 8;
    }
    w.nodes = lengths[TARGET];
    w.reads = lengths[READ_TENSOR];
    w.writes = lengths[WRITE_TENSOR];
    w.tensors = lengths[HELD];
    w.castable = castable;
    w.float32 = (int64_t)float32;
    Py_BEGIN_ALLOW_THREADS
    if (is_sound(&w, lengths) && is_apart(&w, lengths))
        made = run(&w);
    Py_END_ALLOW_THREADS
    if (made < 0)
        PyErr_SetString(PyExc_ValueError, "The arrays do not describe one graph.");
    else
        result = PyLong_FromSsize_t(made);
release:
    while (held--)
        PyBuffer_Release(&buffers[held]);
    return result;
}

static PyMethodDef METHODS[] = {
    {"follow", follow, METH_VARARGS,
     "follow(target, result, read_start, read_tensor, write_start, write_tensor, owner, flags, held, reads, casts,\n"
     "       castable, float32)\n--\n\nSee dippm.costs.autocast."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef_Slot SLOTS[] = {{0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_autocast", "Autocast's walk, compiled.", 0, METHODS, SLOTS, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__autocast(void)
{
    return PyModuleDef_Init(&MODULE);
}
