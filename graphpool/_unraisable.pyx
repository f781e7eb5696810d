"""Errors of those who are only told something, or give memory back: there is nobody to raise them to."""

cdef extern from "<Python.h>":
    void PyErr_SetInterrupt()
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


def interrupt_again(hook):
    """A hook for `sys.unraisablehook` with which Ctrl-C is not lost in a finaliser or in a callback of a weak reference.

    The interpreter can raise what they raise to nobody. Being compiled, the hook returns before the interpreter looks
    for signals again: what it interrupts is the code that the finaliser came into.

    Parameters
    ----------
    hook : callable
        What is told of all other errors.

    Returns
    -------
    hook : callable
    """
    def report(unraisable):
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            PyErr_SetInterrupt()
        else:
            hook(unraisable)
    return report
