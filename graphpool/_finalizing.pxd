# Whether the interpreter is ending: modules are being taken apart then, so finalisers leave memory to the system.
cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030D0000
    #define gp_is_finalizing Py_IsFinalizing
    #else
    #define gp_is_finalizing _Py_IsFinalizing
    #endif
    """
    bint gp_is_finalizing() noexcept nogil
