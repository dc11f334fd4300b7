/* What the compiled modules ask of the arrays that they are given. */

#ifndef DIPPM_BUFFERS_H
#define DIPPM_BUFFERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* A one-dimensional array of 64-bit integers; -1 and an exception where it is something else. */
static int view(PyObject *object, Py_buffer *buffer, int flags, const char *name)
{
    if (PyObject_GetBuffer(object, buffer, flags | PyBUF_FORMAT) < 0)
        return -1;
    const char *format = buffer->format;
    if (buffer->ndim == 1 && buffer->itemsize == 8 && format && (!strcmp(format, "l") || !strcmp(format, "q")))
        return 0;
    PyBuffer_Release(buffer);
    PyErr_Format(PyExc_TypeError, "'%s' must be a one-dimensional array of 64-bit integers.", name);
    return -1;
}

#endif
