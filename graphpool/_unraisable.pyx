"""Errors of those who are only told something, or give memory back: there is nobody to raise them to."""

cdef extern from "<Python.h>":
    void PyErr_SetObject(object kind, object value)
    void PyErr_WriteUnraisable(object where)


def report_unraisable(error, where):
    """Hand an error to `sys.unraisablehook`, as the interpreter does with those of finalisers.

    Parameters
    ----------
    error : BaseException
    where : object
        Named in the report: the function that has failed.
    """
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(where)
