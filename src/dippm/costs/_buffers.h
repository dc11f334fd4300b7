/* What the compiled modules ask of the arrays that they are given. */

#ifndef DIPPM_BUFFERS_H
#define DIPPM_BUFFERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* A contiguous array of so many dimensions, of 32-bit numbers ('f') or 64-bit integers ('q'); -1 and an exception where
   it is something else. */
static inline int view_array(PyObject *object, Py_buffer *buffer, int flags, int dimensions, char kind, const char *name)
{
    if (PyObject_GetBuffer(object, buffer, flags | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0)
        return -1;
    const char *format = buffer->format;
    int is_kind = format && (kind == 'f' ? !strcmp(format, "f") : !strcmp(format, "l") || !strcmp(format, "q"));
    if (is_kind && buffer->ndim == dimensions && buffer->itemsize == (kind == 'f' ? 4 : 8))
        return 0;
    PyBuffer_Release(buffer);
    PyErr_Format(PyExc_TypeError, "'%s' must be an array of %s, with %d for its number of dimensions.", name,
                 kind == 'f' ? "32-bit numbers" : "64-bit integers", dimensions);
    return -1;
}

/* A one-dimensional array of 64-bit integers. */
static inline int view(PyObject *object, Py_buffer *buffer, int flags, const char *name)
{
    return view_array(object, buffer, flags, 1, 'q', name);
}

#endif
