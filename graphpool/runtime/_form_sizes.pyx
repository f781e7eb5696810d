"""Shapes of a form's inputs and outputs for each set of sizes, and the sizes that shapes of inputs give."""

from graphpool._size_program cimport Numbers, SizeTable, SizeValues

from math import prod

from graphpool._sizes import key_of

from .described import Described
from .model_step import is_plain


cdef class SizedArrays:
    """What arrays for tensors are: `made` for each kind of them, of which `numbers` says the one of an id."""

    cdef readonly dict numbers
    cdef readonly list made

    def __contains__(self, tensor_id):
        return tensor_id in self.numbers

    def __getitem__(self, tensor_id):
        return self.made[self.numbers[tensor_id]]

    def get(self, tensor_id):
        """That of an id; None where there is none."""
        number = self.numbers.get(tensor_id)
        return None if number is None else self.made[number]

    def total_nbytes(self, list numbers not None):
        """Memory of one array for each of these numbers of kinds. Unit: bytes."""
        cdef Py_ssize_t number
        found = 0
        for number in numbers:
            found += (<tuple>self.made[number])[3]
        return found


cdef class FormSizes:
    """Shapes of tensors whose sizes may vary; those that are alike are computed once.

    Parameters
    ----------
    tensors : mapping of int to LogicalTensor
        With sizes where they vary.
    ids : iterable of int
        Of those that are wanted; ones that do not lie in memory are left out.
    """

    cdef dict numbers
    cdef list kinds             # rank, whether there are strides, type
    cdef list types             # of each kind as NumPy has it
    cdef list sizes             # of each kind its shape, strides if there are any, and bytes
    cdef SizeTable table        # the same

    def __init__(self, tensors, ids):
        cdef dict found = {}
        self.numbers, self.kinds, self.sizes = {}, [], []
        for i in ids:
            tensor = tensors.get(i)
            if tensor is None or not is_plain(tensor):
                continue
            kind = tensor.dtype, key_of(tensor.shape), key_of(tensor.strides)
            self.numbers[i] = found.setdefault(kind, len(found))
            if len(found) > len(self.kinds):
                shape, strides = tensor.shape or (), tensor.strides if tensor.dtype.bits != 4 else None
                self.kinds.append((len(shape), strides is not None, tensor.dtype))
                self.sizes += [*shape, *(strides or ()), prod(shape) * tensor.dtype.numpy.itemsize]
        self._finish()

    cdef int _finish(self) except -1:
        self.table = SizeTable(self.sizes)
        self.types = [data_type.numpy for _, _, data_type in self.kinds]
        return 0

    def __reduce__(self):
        return _restore, (self.numbers, self.kinds, self.sizes)

    def sizes_of(self, tensor_id):
        """Shape and bytes of a dense tensor, as they are in the form; None where there is no such one."""
        cdef Py_ssize_t place = 0, rank, k, number = self.numbers.get(tensor_id, -1)
        cdef bint has_strides
        for k, (rank, has_strides, _) in enumerate(self.kinds):
            if k == number:
                return (tuple(self.sizes[place:place + rank]), self.sizes[place + 2 * rank]) if has_strides else None
            place += rank + rank * has_strides + 1
        return None

    def of(self, SizeValues values):
        """By id, `SizedArrays`; `values` are None where nothing varies."""
        cdef SizedArrays found = SizedArrays.__new__(SizedArrays)
        cdef Numbers sizes = self.table.plain if values is None else self.table.of(values)
        cdef Py_ssize_t place = 0, rank, k
        cdef bint has_strides
        found.numbers, found.made = self.numbers, []
        for k, (rank, has_strides, _) in enumerate(self.kinds):
            shape, strides = numbers_at(sizes, place, rank), None
            place += rank
            if has_strides:
                strides = numbers_at(sizes, place, rank)
                place += rank
            found.made.append(tuple.__new__(Described, (shape, strides, self.types[k], sizes.numbers[place])))
            place += 1
        return found


def _restore(numbers, kinds, sizes):
    """What `FormSizes.__reduce__` describes."""
    cdef FormSizes made = FormSizes({}, ())
    made.numbers, made.kinds, made.sizes = numbers, kinds, sizes
    made._finish()
    return made


cdef tuple numbers_at(Numbers sizes, Py_ssize_t place, Py_ssize_t count):
    """So many from a place on."""
    cdef Py_ssize_t k
    return tuple([sizes.numbers[place + k] for k in range(count)])


def symbol_values(list places not None, dict ranks not None, shapes):
    """What stands in shapes at the places of each symbol; None where one would have two values, or a rank is another.

    Parameters
    ----------
    places : list of list of (name, int)
        Of each symbol the names and axes.
    ranks : dict of name to int or None
    shapes : mapping of name to tuple or None
        What stands there for sizes need not be numbers.

    Returns
    -------
    values : list or None
    """
    cdef list found = [], symbol
    for name, shape in shapes.items():
        if (None if shape is None else len(shape)) != ranks[name]:
            return None
    for symbol in places:
        value = None
        for name, axis in symbol:
            other = shapes[name][axis]
            if value is None:
                value = other
            elif value is not other and value != other:
                return None
        found.append(value)
    return found
