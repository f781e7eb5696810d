"""`dataclass` and `NamedTuple`, as in the standard library, made at a twentieth of the cost: no text is compiled.

The package has about 170 and 40 such classes, and to make them took more than 40 % of its import.
"""

from _collections import _tuplegetter

cdef extern from "Python.h":
    int PyObject_GenericSetAttr(object instance, object name, object value) except -1

__all__ = ["NamedTuple", "dataclass", "field", "replace"]

cdef object MISSING = object()


cdef class _Field:
    """What is known of one field: see `field`."""

    cdef str name
    cdef object annotation, default, default_factory
    cdef bint init, repr, compare, kw_only


cdef class _Layout:
    """The fields of one class, and what `__init__` has to know of them."""

    cdef str name
    cdef tuple fields
    cdef Py_ssize_t n_positional
    cdef bint has_post_init
    cdef tuple shown      # names of the fields that repr shows
    cdef tuple compared   # those that == and hash look at


def field(*, default=MISSING, default_factory=MISSING, init=True, repr=True, compare=True, kw_only=False):
    """As `dataclasses.field`, with the arguments that are used here."""
    cdef _Field made = _Field.__new__(_Field)
    made.default, made.default_factory = default, default_factory
    made.init, made.repr, made.compare, made.kw_only = init, repr, compare, kw_only
    return made


def dataclass(cls=None, /, *, init=True, eq=True, frozen=False, slots=False, kw_only=False):
    """As `dataclasses.dataclass`, with the arguments that are used here; bases may only be made by it too.

    The functions of `dataclasses` take its instances; `replace` of this module is quicker.
    """
    if cls is None:
        return lambda cls: make(cls, init, eq, frozen, slots, kw_only)
    return make(cls, init, eq, frozen, slots, kw_only)


def replace(instance, /, **changes):
    """A copy in which some fields have other values; as `dataclasses.replace`."""
    cdef _Field entry
    cdef _Layout layout = layout_of(type(instance))
    for entry in layout.fields:
        if not entry.init:
            if entry.name in changes:
                raise ValueError(f"field {entry.name} is declared with init=False, so replace() cannot set it")
        elif entry.name not in changes:
            changes[entry.name] = getattr(instance, entry.name)
    return type(instance)(**changes)


cdef _Layout layout_of(cls):
    for base in cls.__mro__:
        found = vars(base).get("__dataclass_fields__")
        if type(found) is _StandardFields:
            return (<_StandardFields>found).layout
    raise TypeError(f"{cls.__qualname__} is no dataclass")


cdef make(cls, bint init, bint eq, bint frozen, bint slots, bint kw_only):
    cdef _Layout layout = _Layout.__new__(_Layout)
    cdef _Field entry
    cdef dict entries = {}, own = own_fields(cls, kw_only)
    for base in cls.__mro__[-1:0:-1]:
        inherited = vars(base).get("__dataclass_fields__")
        if type(inherited) is _StandardFields:
            for entry in (<_StandardFields>inherited).layout.fields:
                entries[entry.name] = entry
    entries.update(own)
    fields = list(entries.values())
    layout.name = cls.__qualname__
    layout.fields = tuple([entry for entry in fields if is_positional(entry)])
    layout.n_positional = len(layout.fields)
    layout.fields += tuple([entry for entry in fields if not is_positional(entry)])
    layout.has_post_init = hasattr(cls, "__post_init__")
    layout.shown = tuple([(<_Field>entry).name for entry in fields if (<_Field>entry).repr])
    layout.compared = tuple([(<_Field>entry).name for entry in fields if (<_Field>entry).compare])
    check_order(layout)

    given = vars(cls)
    explicit_hash = given.get("__hash__", MISSING)
    has_hash = not (explicit_hash is MISSING or (explicit_hash is None and "__eq__" in given))
    added = {"__repr__": make_repr(layout.shown)}
    if init:
        added["__init__"] = make_init(layout)
        if "__init__" not in given:
            added["__signature__"] = _Signature(layout)
    if eq:
        added["__eq__"] = make_eq(layout.compared)
        added["__match_args__"] = tuple([(<_Field>entry).name for entry in layout.fields[: layout.n_positional]])
    for name, value in added.items():
        if name not in given:
            setattr(cls, name, value)
    if eq and not has_hash:
        cls.__hash__ = make_hash(layout.compared) if frozen else None
    if frozen:
        cls.__setattr__, cls.__delattr__ = _refuse_set, _refuse_delete
    cls.__dataclass_fields__ = _StandardFields(layout)
    return with_slots(cls, own, frozen) if slots else cls


cdef bint is_positional(_Field entry):
    return entry.init and not entry.kw_only


cdef dict own_fields(cls, bint kw_only):
    """The fields that a class declares itself; what it says of them beside their defaults is taken off the class."""
    cdef _Field entry
    cdef dict found = {}
    for name, annotation in cls.__annotations__.items():
        if str(annotation).startswith(("ClassVar", "typing.ClassVar")):
            continue
        value = vars(cls).get(name, MISSING)
        entry = value if type(value) is _Field else field(default=value)
        entry.name, entry.annotation = name, annotation
        entry.kw_only = entry.kw_only or kw_only
        if type(value) is _Field:
            if entry.default is MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, entry.default)
        found[name] = entry
    return found


cdef check_order(_Layout layout):
    cdef _Field entry
    default = None
    for entry in layout.fields[: layout.n_positional]:
        if entry.default is not MISSING or entry.default_factory is not MISSING:
            default = entry.name
        elif default is not None:
            raise TypeError(f"{layout.name}: field {entry.name} without a default follows {default}, which has one")


cdef with_slots(cls, dict own, bint frozen):
    """The class once more, with slots for the fields that it declares."""
    space = dict(vars(cls))
    for name in own:
        space.pop(name, None)
    space.pop("__dict__", None)
    space.pop("__weakref__", None)
    space["__slots__"] = tuple(own)
    if frozen and "__getstate__" not in space:
        space["__getstate__"], space["__setstate__"] = _get_state, _set_state
    return type(cls)(cls.__name__, cls.__bases__, space)


def _get_state(self):
    """The values of all fields, for copies and pickles."""
    cdef _Field entry
    return [getattr(self, entry.name) for entry in layout_of(type(self)).fields]


def _set_state(self, state):
    """Give the fields the values of `_get_state`."""
    cdef _Field entry
    for entry, value in zip(layout_of(type(self)).fields, state, strict=True):
        PyObject_GenericSetAttr(self, entry.name, value)


def _refuse_set(self, name, value):
    """`__setattr__` of a frozen class."""
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self, name):
    """`__delattr__` of a frozen class."""
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


cdef make_init(_Layout layout):
    def __init__(self, *args, **kwargs):
        initialise(layout, self, args, kwargs)
        if layout.has_post_init:
            self.__post_init__()

    return __init__


cdef initialise(_Layout layout, object self, tuple args, dict kwargs):
    cdef _Field entry
    cdef Py_ssize_t i = 0
    check_arguments(layout, "__init__", args, kwargs)
    for entry in layout.fields:
        value = args[i] if i < len(args) else named_value(layout, "__init__", entry, kwargs)
        if value is not MISSING:  # else __post_init__ sets it
            PyObject_GenericSetAttr(self, entry.name, value)
        i += 1


cdef check_arguments(_Layout layout, str function, tuple args, dict kwargs):
    """Refuse arguments that are too many or have unknown names."""
    cdef _Field entry
    cdef Py_ssize_t n_args = len(args), n_named = 0
    if n_args > layout.n_positional:
        raise TypeError(
            f"{layout.name}.{function}() takes {layout.n_positional + 1} positional arguments "
            f"but {n_args + 1} were given"
        )
    if kwargs:
        for entry in layout.fields[n_args:]:
            n_named += entry.init and entry.name in kwargs
        if n_named != len(kwargs):
            refuse_names(layout, function, n_args, kwargs)


cdef named_value(_Layout layout, str function, _Field entry, dict kwargs):
    """What the field is given by name or default: `MISSING` if it is none of `__init__`."""
    if entry.init and entry.name in kwargs:
        return kwargs[entry.name]
    if entry.default_factory is not MISSING:
        return entry.default_factory()
    if entry.default is MISSING and entry.init:
        raise TypeError(f"{layout.name}.{function}() missing required argument: {entry.name!r}")
    return entry.default


cdef refuse_names(_Layout layout, str function, Py_ssize_t n_args, dict kwargs):
    cdef _Field entry
    given = {entry.name for entry in layout.fields[:n_args]}
    known = {entry.name for entry in layout.fields if entry.init}
    for name in kwargs:
        if name in given:
            raise TypeError(f"{layout.name}.{function}() got multiple values for argument {name!r}")
        if name not in known:
            raise TypeError(f"{layout.name}.{function}() got an unexpected keyword argument {name!r}")


cdef make_repr(tuple names):
    def __repr__(self):
        values = ", ".join([f"{name}={getattr(self, name)!r}" for name in names])
        return f"{type(self).__qualname__}({values})"

    return __repr__


cdef make_eq(tuple names):
    def __eq__(self, other):
        if type(self) is not type(other):
            return NotImplemented
        return values_of(self, names) == values_of(other, names)

    return __eq__


cdef make_hash(tuple names):
    def __hash__(self):
        return hash(values_of(self, names))

    return __hash__


cdef tuple values_of(instance, tuple names):
    return tuple([getattr(instance, name) for name in names])


cdef class _StandardFields:
    """`__dataclass_fields__`: what the functions of `dataclasses` look for, made when they do."""

    cdef _Layout layout

    def __init__(self, _Layout layout):
        self.layout = layout

    def __get__(self, instance, owner):
        return standard_class(self.layout).__dataclass_fields__


cdef class _Signature:
    """`__signature__`: what `inspect.signature` shows of the class, made when it asks."""

    cdef _Layout layout

    def __init__(self, _Layout layout):
        self.layout = layout

    def __get__(self, instance, owner):
        from inspect import signature

        if instance is not None or vars(owner).get("__signature__") is not self:
            raise AttributeError("__signature__")
        return signature(standard_class(self.layout))


cdef standard_class(_Layout layout):
    """A class of `dataclasses` with the same fields."""
    cdef _Field entry
    import dataclasses

    fields = []
    for entry in layout.fields:
        options = {"init": entry.init, "repr": entry.repr, "compare": entry.compare, "kw_only": entry.kw_only}
        if entry.default is not MISSING:
            options["default"] = entry.default
        if entry.default_factory is not MISSING:
            options["default_factory"] = entry.default_factory
        fields.append((entry.name, entry.annotation, dataclasses.field(**options)))
    return dataclasses.make_dataclass(layout.name.rpartition(".")[2], fields)


class _NamedTupleType(type):
    """What makes the subclasses of `NamedTuple`: plain classes, whose base is `tuple`."""

    def __new__(meta, name, bases, space):
        if bases != (_NAMED_TUPLE,):
            raise TypeError(f"{name}: a NamedTuple has no other bases")
        return make_named_tuple(name, space)


class _NamedTupleBase:
    """`NamedTuple` as a base: what stands in its place is `_NAMED_TUPLE`, so that `_NamedTupleType` makes the class."""

    def __mro_entries__(self, bases):
        return (_NAMED_TUPLE,)


NamedTuple = _NamedTupleBase()
_NAMED_TUPLE = type.__new__(_NamedTupleType, "NamedTuple", (), {})


cdef make_named_tuple(str name, dict space):
    cdef _Layout layout = _Layout.__new__(_Layout)
    cdef _Field entry
    layout.name = space["__qualname__"]
    fields, defaults = [], {}
    for field_name, annotation in space.get("__annotations__", {}).items():
        entry = field(default=space.get(field_name, MISSING))
        entry.name, entry.annotation = field_name, annotation
        if entry.default is not MISSING:
            defaults[field_name] = entry.default
        space[field_name] = _tuplegetter(len(fields), f"Alias for field number {len(fields)}")
        fields.append(entry)
    layout.fields = tuple(fields)
    layout.n_positional = len(fields)
    check_order(layout)
    names = tuple([(<_Field>entry).name for entry in fields])
    for key, value in _NAMED_TUPLE_METHODS.items():
        space.setdefault(key, value)
    space["__slots__"] = ()
    space["__match_args__"] = space["_fields"] = names
    space["_field_defaults"] = defaults
    space["__new__"] = staticmethod(make_new(layout))
    space["__signature__"] = _Signature(layout)
    return type.__new__(type, name, (tuple,), space)


cdef make_new(_Layout layout):
    def __new__(cls, /, *args, **kwargs):
        if kwargs or len(args) != layout.n_positional:
            args = completed(layout, args, kwargs)
        return _new_tuple(cls, args)

    return __new__


cdef tuple completed(_Layout layout, tuple args, dict kwargs):
    """The values of all fields."""
    cdef _Field entry
    check_arguments(layout, "__new__", args, kwargs)
    return args + tuple([named_value(layout, "__new__", entry, kwargs) for entry in layout.fields[len(args):]])


_new_tuple = tuple.__new__


def _repr(self):
    values = ", ".join([f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True)])
    return f"{type(self).__name__}({values})"


def _make(cls, values):
    """A tuple of the values of all fields."""
    return cls(*values)


def _replace(self, /, **changes):
    """A copy in which some fields have other values."""
    values = [changes.pop(name, value) for name, value in zip(self._fields, self, strict=True)]
    if changes:
        raise ValueError(f"Got unexpected field names: {list(changes)!r}")
    return _new_tuple(type(self), values)


def _asdict(self):
    """A dictionary of names and values."""
    return dict(zip(self._fields, self, strict=True))


def _get_new_arguments(self):
    """The values of all fields, for copies and pickles."""
    return tuple(self)


cdef dict _NAMED_TUPLE_METHODS = {
    "__repr__": _repr, "_make": classmethod(_make), "_replace": _replace, "_asdict": _asdict,
    "__getnewargs__": _get_new_arguments,
}
