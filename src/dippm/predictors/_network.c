/* What the additive networks do to the embeddings of operators.

   What dippm.predictors.network_steps does with NumPy, which serves where this file was not compiled. A number of the
   result is the sum of the same products in the same order whatever is asked for beside it, and no other thread takes
   part. */

#include "../costs/_buffers.h"

#include <stdlib.h>

#define COLUMNS 16 /* Columns of the weights that are worked on together: a panel, [terms, COLUMNS]. */

/* Rows of values by one panel: result[r][j] = start[j] + sum over k of values[r * terms + k] * panel[k * COLUMNS + j]. */
typedef void Kernel(const float *values, Py_ssize_t rows, Py_ssize_t terms, const float *panel, const float *start,
                    float *result);

/* The sums of so many rows stay in registers while the terms are walked. Copied by memcpy they would not: GCC copies 16
   bytes at a time, through memory that is then read as a whole, and keeps the sums there. */
#define BLOCK(ROWS, WIDTH)                                                                                             \
    for (; rows >= (ROWS); rows -= (ROWS), values += (ROWS) * terms, result += (ROWS) * COLUMNS) {                     \
        Lane_##WIDTH sum[ROWS][COLUMNS / (WIDTH)];                                                                     \
        for (int r = 0; r < (ROWS); r++)                                                                               \
            for (int i = 0; i < COLUMNS / (WIDTH); i++)                                                                \
                sum[r][i] = ((const Loose_##WIDTH *)start)[i];                                                         \
        for (Py_ssize_t k = 0; k < terms; k++)                                                                         \
            for (int r = 0; r < (ROWS); r++)                                                                           \
                for (int i = 0; i < COLUMNS / (WIDTH); i++)                                                            \
                    sum[r][i] += values[r * terms + k] * ((const Loose_##WIDTH *)(panel + k * COLUMNS))[i];            \
        for (int r = 0; r < (ROWS); r++)                                                                               \
            for (int i = 0; i < COLUMNS / (WIDTH); i++)                                                                \
                ((Loose_##WIDTH *)(result + r * COLUMNS))[i] = sum[r][i];                                              \
    }

/* A lane, and one in memory, which lies as any number does. */
#define KERNEL(NAME, ROWS, WIDTH, TARGET)                                                                              \
    typedef float Lane_##WIDTH __attribute__((vector_size((WIDTH) * sizeof(float))));                                  \
    typedef Lane_##WIDTH Loose_##WIDTH __attribute__((aligned(sizeof(float)), may_alias));                             \
    TARGET static void NAME(const float *values, Py_ssize_t rows, Py_ssize_t terms, const float *panel,                \
                            const float *start, float *result)                                                         \
    {                                                                                                                  \
        BLOCK(ROWS, WIDTH)                                                                                             \
        BLOCK(1, WIDTH)                                                                                                \
    }

KERNEL(multiply_narrow, 3, 4, )
#if defined(__x86_64__)
KERNEL(multiply_wide, 6, 8, __attribute__((target("avx2,fma"))))
KERNEL(multiply_widest, 12, 16, __attribute__((target("avx512f"))))
#endif

static Kernel *chosen = multiply_narrow;

/* The kernel that works on so many numbers at a time, NULL where the processor has none. */
static Kernel *find_kernel(long width)
{
    if (width == 4)
        return multiply_narrow;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (width == 8 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return multiply_wide;
    if (width == 16 && __builtin_cpu_supports("avx512f"))
        return multiply_widest;
#endif
    return NULL;
}

#define ROWS 12 /* Rows that go through all panels while they are near. */

/* Which operators each one hears: the sources from start[i] to start[i + 1]. */
typedef struct {
    const int64_t *start, *source;
    const float *weight;
} Neighbours;

typedef struct {
    Py_ssize_t batches, members, operators, terms, columns;
} Shape;

/* What the rows of a first layer begin with: of each operator the row of its number, one of `rows` of each member. */
typedef struct {
    const float *values;
    const int64_t *number;
    Py_ssize_t rows;
} Known;

/* The weighted sum of what an operator hears. */
static void hear(const float *values, Py_ssize_t width, const Neighbours *neighbours, Py_ssize_t operator, float *result)
{
    memset(result, 0, (size_t)width * sizeof(float));
    for (int64_t e = neighbours->start[operator]; e < neighbours->start[operator + 1]; e++) {
        const float *other = values + neighbours->source[e] * width;
        for (Py_ssize_t j = 0; j < width; j++)
            result[j] += neighbours->weight[e] * other[j];
    }
}

/* One member at one batch. `told` holds ROWS rows where there are neighbours: what producers and consumers tell, and the
   operator itself; then values and result are of the same width, and what was heard is added where it is positive. Where
   the beginning is known, it is added, and nothing less than 0 stays. */
static void run_one(const float *values, Shape shape, const Neighbours *neighbours, const Known *known,
                    const float *panels, const float *starts, float *told, float *result)
{
    float sums[ROWS * COLUMNS];
    Py_ssize_t width = shape.columns;
    for (Py_ssize_t first = 0; first < shape.operators; first += ROWS) {
        Py_ssize_t rows = shape.operators - first < ROWS ? shape.operators - first : ROWS;
        const float *terms = values + first * shape.terms;
        if (neighbours != NULL) {
            terms = told;
            for (Py_ssize_t r = 0; r < rows; r++) {
                float *row = told + r * shape.terms;
                hear(values, width, &neighbours[0], first + r, row);
                hear(values, width, &neighbours[1], first + r, row + width);
                memcpy(row + 2 * width, values + (first + r) * width, (size_t)width * sizeof(float));
            }
        }
        for (Py_ssize_t column = 0; column < width; column += COLUMNS) {
            Py_ssize_t own = width - column < COLUMNS ? width - column : COLUMNS;
            chosen(terms, rows, shape.terms, panels + column * shape.terms, starts + column, sums);
            for (Py_ssize_t r = 0; r < rows; r++) {
                float *target = result + (first + r) * width + column;
                const float *sum = sums + r * COLUMNS;
                if (neighbours != NULL) {
                    const float *before = values + (first + r) * width + column;
                    for (Py_ssize_t j = 0; j < own; j++)
                        target[j] = before[j] + (sum[j] > 0.0f ? sum[j] : 0.0f);
                } else if (known != NULL) {
                    const float *begun = known->values + known->number[first + r] * width + column;
                    for (Py_ssize_t j = 0; j < own; j++) {
                        float each = begun[j] + sum[j];
                        target[j] = each > 0.0f ? each : 0.0f;
                    }
                } else {
                    memcpy(target, sum, (size_t)own * sizeof(float));
                }
            }
        }
    }
}

/* -1 where there is no memory, else 0. */
static int run(const float *values, Shape shape, int is_of_member, const Neighbours *neighbours, const Known *known,
               const float *panels, const float *starts, float *result)
{
    float *told = NULL;
    if (neighbours != NULL && (told = malloc((size_t)(ROWS * shape.terms) * sizeof(float))) == NULL)
        return -1;
    Py_ssize_t padded = (shape.columns + COLUMNS - 1) / COLUMNS * COLUMNS;
    for (Py_ssize_t member = 0; member < shape.members; member++) {
        Known own_known = {0};
        if (known != NULL) {
            own_known = *known;
            own_known.values += member * known->rows * shape.columns;
        }
        for (Py_ssize_t batch = 0; batch < shape.batches; batch++) {
            Py_ssize_t place = batch * shape.members + member, read = is_of_member ? place : batch;
            Py_ssize_t width = neighbours ? shape.columns : shape.terms;
            run_one(values + read * shape.operators * width, shape, neighbours, known ? &own_known : NULL,
                    panels + member * shape.terms * padded, starts + member * padded, told,
                    result + place * shape.operators * shape.columns);
        }
    }
    free(told);
    return 0;
}

enum { MOST = 10 }; /* Arrays of a call. */

typedef struct {
    const char *name;
    char kind;
    int dimensions, is_written;
} Wanted;

/* Views of all arrays of a call; their number, or -1 and an exception. */
static int view_all(PyObject *const *given, Py_ssize_t count, const Wanted *wanted, int expected, Py_buffer *buffers)
{
    if (count != expected) {
        PyErr_Format(PyExc_TypeError, "%d arrays are needed.", expected);
        return -1;
    }
    for (int i = 0; i < expected; i++) {
        const Wanted *each = &wanted[i];
        if (view_array(given[i], &buffers[i], each->is_written ? PyBUF_WRITABLE : 0, each->dimensions, each->kind,
                       each->name) < 0) {
            while (i--)
                PyBuffer_Release(&buffers[i]);
            return -1;
        }
    }
    return expected;
}

static PyObject *finish(Py_buffer *buffers, int count, int status)
{
    while (count--)
        PyBuffer_Release(&buffers[count]);
    if (status == -1)
        return PyErr_NoMemory();
    if (status == -2) {
        PyErr_SetString(PyExc_ValueError, "The arrays must be of sizes that fit, with messages from operators that "
                                          "there are and a result that shares no memory with them.");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Whether the result, the last of the arrays, shares no memory with the others: what was checked of them would not hold
   while it is written. */
static int is_apart(const Py_buffer *arrays, int count)
{
    uintptr_t first = (uintptr_t)arrays[count - 1].buf, stop = first + (uintptr_t)arrays[count - 1].len;
    for (int i = 0; i < count - 1; i++) {
        uintptr_t own = (uintptr_t)arrays[i].buf;
        if (own < stop && first < own + (uintptr_t)arrays[i].len)
            return 0;
    }
    return 1;
}

/* Whether the sizes of values, panels, their starts and result go together; those of the call are filled in. */
static int measure(const Py_buffer *values, const Py_buffer *panels, const Py_buffer *starts, const Py_buffer *result,
                   Shape *shape)
{
    Py_ssize_t members = panels->shape[0];
    if (members < 1 || result->shape[0] % members)
        return 0;
    *shape = (Shape){
        .batches = result->shape[0] / members,
        .members = members,
        .operators = result->shape[1],
        .terms = panels->shape[2],
        .columns = result->shape[2],
    };
    return values->shape[1] == shape->operators && panels->shape[1] == (shape->columns + COLUMNS - 1) / COLUMNS &&
           panels->shape[3] == COLUMNS && starts->shape[0] == members && starts->shape[1] == panels->shape[1] &&
           starts->shape[2] == COLUMNS;
}

static PyObject *multiply(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    static const Wanted WANTED[] = {
        {"values", 'f', 3, 0}, {"panels", 'f', 4, 0}, {"starts", 'f', 3, 0}, {"result", 'f', 3, 1}};
    Py_buffer arrays[MOST], *values = arrays, *panels = arrays + 1, *starts = arrays + 2, *result = arrays + 3;
    Shape shape;
    int status = -2, held = view_all(given, count, WANTED, 4, arrays);
    (void)module;
    if (held < 0)
        return NULL;
    if (is_apart(arrays, held) && measure(values, panels, starts, result, &shape) && values->shape[2] == shape.terms &&
        (values->shape[0] == shape.batches || values->shape[0] == result->shape[0])) {
        Py_BEGIN_ALLOW_THREADS
        status = run(values->buf, shape, values->shape[0] != shape.batches, NULL, NULL, panels->buf, starts->buf,
                     result->buf);
        Py_END_ALLOW_THREADS
    }
    return finish(arrays, held, status);
}

/* Whether there is a row for each number. */
static int are_rows(const Py_buffer *number, Py_ssize_t rows)
{
    const int64_t *numbers = number->buf;
    for (Py_ssize_t i = 0; i < number->shape[0]; i++)
        if (numbers[i] < 0 || numbers[i] >= rows)
            return 0;
    return 1;
}

static PyObject *begin(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    static const Wanted WANTED[] = {
        {"values", 'f', 3, 0}, {"panels", 'f', 4, 0}, {"starts", 'f', 3, 0},
        {"known", 'f', 3, 0},  {"number", 'q', 1, 0},  {"result", 'f', 3, 1}};
    Py_buffer arrays[MOST], *values = arrays, *panels = arrays + 1, *starts = arrays + 2, *rows = arrays + 3,
                            *number = arrays + 4, *result = arrays + 5;
    Shape shape;
    int status = -2, held = view_all(given, count, WANTED, 6, arrays);
    (void)module;
    if (held < 0)
        return NULL;
    if (is_apart(arrays, held) && measure(values, panels, starts, result, &shape) && values->shape[2] == shape.terms &&
        values->shape[0] == shape.batches && rows->shape[0] == shape.members && rows->shape[2] == shape.columns &&
        number->shape[0] == shape.operators && are_rows(number, rows->shape[1])) {
        Known known = {.values = rows->buf, .number = number->buf, .rows = rows->shape[1]};
        Py_BEGIN_ALLOW_THREADS
        status = run(values->buf, shape, 0, NULL, &known, panels->buf, starts->buf, result->buf);
        Py_END_ALLOW_THREADS
    }
    return finish(arrays, held, status);
}

/* Whether each operator hears only operators that there are. */
static int are_neighbours(const Py_buffer *start, const Py_buffer *source, const Py_buffer *weight,
                          Py_ssize_t operators, Neighbours *neighbours)
{
    const int64_t *starts = start->buf, *sources = source->buf;
    Py_ssize_t edges = source->shape[0];
    if (start->shape[0] != operators + 1 || weight->shape[0] != edges || starts[0] != 0 || starts[operators] != edges)
        return 0;
    for (Py_ssize_t i = 0; i < operators; i++)
        if (starts[i] > starts[i + 1])
            return 0;
    for (Py_ssize_t e = 0; e < edges; e++)
        if (sources[e] < 0 || sources[e] >= operators)
            return 0;
    *neighbours = (Neighbours){.start = starts, .source = sources, .weight = weight->buf};
    return 1;
}

static PyObject *listen(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    static const Wanted WANTED[] = {
        {"values", 'f', 3, 0},
        {"producers.start", 'q', 1, 0}, {"producers.source", 'q', 1, 0}, {"producers.weight", 'f', 1, 0},
        {"consumers.start", 'q', 1, 0}, {"consumers.source", 'q', 1, 0}, {"consumers.weight", 'f', 1, 0},
        {"panels", 'f', 4, 0}, {"starts", 'f', 3, 0}, {"result", 'f', 3, 1}};
    Py_buffer arrays[MOST], *values = arrays, *panels = arrays + 7, *starts = arrays + 8, *result = arrays + 9;
    Neighbours neighbours[2];
    Shape shape;
    int status = -2, held = view_all(given, count, WANTED, 10, arrays);
    (void)module;
    if (held < 0)
        return NULL;
    if (is_apart(arrays, held) && measure(values, panels, starts, result, &shape) &&
        values->shape[0] == result->shape[0] &&
        values->shape[2] == shape.columns && shape.terms == 3 * shape.columns &&
        are_neighbours(arrays + 1, arrays + 2, arrays + 3, shape.operators, &neighbours[0]) &&
        are_neighbours(arrays + 4, arrays + 5, arrays + 6, shape.operators, &neighbours[1])) {
        Py_BEGIN_ALLOW_THREADS
        status = run(values->buf, shape, 1, neighbours, NULL, panels->buf, starts->buf, result->buf);
        Py_END_ALLOW_THREADS
    }
    return finish(arrays, held, status);
}

static PyObject *use(PyObject *module, PyObject *given)
{
    long width = PyLong_AsLong(given);
    (void)module;
    if (width == -1 && PyErr_Occurred())
        return NULL;
    Kernel *found = find_kernel(width);
    if (found == NULL)
        return PyErr_Format(PyExc_ValueError, "This processor does not work on %ld numbers at a time.", width);
    chosen = found;
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"multiply", (PyCFunction)(void (*)(void))multiply, METH_FASTCALL,
     "multiply(values, panels, starts, result)\n--\n\nSee dippm.predictors.network_steps."},
    {"begin", (PyCFunction)(void (*)(void))begin, METH_FASTCALL,
     "begin(values, panels, starts, known, number, result)\n--\n\nSee dippm.predictors.network_steps."},
    {"listen", (PyCFunction)(void (*)(void))listen, METH_FASTCALL,
     "listen(values, *producers, *consumers, panels, starts, result)\n--\n\nSee dippm.predictors.network_steps."},
    {"use", use, METH_O,
     "use(width)\n--\n\nWork on 4, 8 or 16 numbers at a time; without it on the most that the processor can."},
    {NULL, NULL, 0, NULL},
};

static int start_module(PyObject *module)
{
    (void)module;
    for (long width = 4; width <= 16; width *= 2)
        if (find_kernel(width) != NULL)
            chosen = find_kernel(width);
    return 0;
}

static struct PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, start_module}, {0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_network", "Steps of the additive networks, compiled.", 0, METHODS, SLOTS, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__network(void)
{
    return PyModuleDef_Init(&MODULE);
}
