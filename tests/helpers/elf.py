"""What the dynamic linker reads of a 64-bit ELF file."""

import struct

PT_DYNAMIC, PT_GNU_STACK, PT_GNU_RELRO = 2, 0x6474E551, 0x6474E552
DT_STRTAB, DT_STRSZ, DT_RPATH, DT_RUNPATH, DT_FLAGS = 5, 10, 15, 29, 30
DF_BIND_NOW = 8
EXECUTABLE = 1


class Elf:
    """Segments and dynamic entries.

    Attributes
    ----------
    segments : dict of int to (int, int, int)
        Type -> flags, offset and size in the file.
    dynamic : dict of int to int
        Tag -> value.
    names : set of bytes
        The strings of dynamic symbols and libraries.
    """

    def __init__(self, data):
        assert data[:6] == b"\x7fELF\x02\x01", "64 bits, little-endian"
        [start] = struct.unpack_from("<Q", data, 32)
        size, count = struct.unpack_from("<HH", data, 54)
        headers = [struct.unpack_from("<IIQQQQ", data, start + k * size) for k in range(count)]
        self.segments = {kind: (flags, offset, nbytes) for kind, flags, offset, _, _, nbytes in headers}
        _, offset, nbytes = self.segments[PT_DYNAMIC]
        self.dynamic = dict(struct.iter_unpack("<qQ", data[offset : offset + nbytes]))
        begin = self.dynamic[DT_STRTAB]  # shared objects are linked at 0, and their strings lie in the first segment
        self.names = set(data[begin : begin + self.dynamic[DT_STRSZ]].split(b"\0"))
