# Looks a key up in a dict that other threads change: a reference of its own to the value, or None. Cython's `dict.get`
# takes a borrowed reference first, which without a GIL may be freed before it is counted.
cdef extern from *:
    """
    static inline PyObject *gpc_look_up(PyObject *table, PyObject *key) {
        PyObject *value;
    #if PY_VERSION_HEX >= 0x030D0000
        if (PyDict_GetItemRef(table, key, &value) < 0) return NULL;
    #else
        value = PyDict_GetItemWithError(table, key);
        if (value == NULL && PyErr_Occurred()) return NULL;
        Py_XINCREF(value);
    #endif
        if (value == NULL) Py_RETURN_NONE;
        return value;
    }
    """
    object gpc_look_up(dict table, object key)
